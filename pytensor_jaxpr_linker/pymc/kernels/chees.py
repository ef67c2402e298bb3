"""Hamiltonian Monte Carlo of many chains that adapt together: BlackJAX's ChEES."""

from __future__ import annotations

from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import optax  # which BlackJAX requires: its adaptation takes one of its optimizers
from blackjax.mcmc import dynamic_hmc

from pytensor_jaxpr_linker.pymc.chains.kernel import Kernel

#: The arguments that are inputs of the programs, and their types.
INPUTS = {"target_accept": float, "step_size": float, "max_treedepth": int}
#: How fast the length of trajectories is learned, as in the paper.
LEARNING_RATE = 0.025
#: Lengths repeat after ``2 ** LENGTH_BITS`` draws.
LENGTH_BITS = 20


def make_kernel(
    logp: Any, tune: int, max_treedepth: int, target_accept: float = 0.651, step_size: float = 1.0
) -> Kernel:
    """Return HMC whose trajectories have one length for all chains (Hoffman, Radul and Sountsov, 2021).

    Before the first transition, `tune` steps of all chains adapt the step size, a diagonal mass matrix and the mean
    length, of at most ``2 ** max_treedepth`` steps. As all chains take the same number of steps, none waits for
    another, as trees of NUTS would.
    """
    hmc = dynamic_hmc.build_kernel(next_random_arg_fn=lambda i: i + 1, integration_steps_fn=steps_of_trajectory)

    def start(data: Any, keys: Any, positions: Any) -> tuple:
        chains = len(keys)
        adaptation = blackjax.chees_adaptation(
            lambda q: logp(q, data),
            chains,
            target_acceptance_rate=target_accept,
            max_leapfrog_steps=2**max_treedepth,
            mass_matrix_estimation="diagonal",
            adaptation_info_fn=lambda *_: None,  # all draws of the warm-up otherwise
        )
        tuning = jax.random.fold_in(keys[0], 1)
        (states, found), _ = adaptation.run(tuning, positions, step_size, optax.adam(LEARNING_RATE), tune)
        (steps,) = found["integration_steps_params"]
        # From here on the sequence of lengths begins anew.
        states = states._replace(random_generator_arg=jnp.zeros(chains, dtype=jnp.int64))
        return keys, states, found["step_size"], found["inverse_mass_matrix"], steps

    def transition(data: Any, chains: tuple) -> tuple[tuple, tuple[Any, dict]]:
        keys, states, size, inverse_mass, steps = chains
        keys, subkeys = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)

        def move(key: Any, state: Any) -> Any:
            return hmc(key, state, lambda q: logp(q, data), size, inverse_mass, (steps,))

        states, info = jax.vmap(move)(subkeys, states)
        stats = {
            "acceptance_rate": info.acceptance_rate,
            "diverging": info.is_divergent,
            "energy": info.energy,
            "lp": states.logdensity,
            "n_steps": info.num_integration_steps,
            "step_size": jnp.broadcast_to(size, (len(keys),)),
        }
        return (keys, states, size, inverse_mass, steps), (states.position, stats)

    return Kernel(start, transition, has_warmup=False, is_ensemble=True)


def steps_of_trajectory(i: Any, most: Any) -> Any:
    """Return how many steps the i-th trajectory takes, from 1 to `most`: as BlackJAX's adaptation chooses them."""
    share = dynamic_hmc.halton_sequence(i, LENGTH_BITS)
    return jnp.ceil(share * most).astype(int)
