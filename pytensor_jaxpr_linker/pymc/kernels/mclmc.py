"""Microcanonical Langevin Monte Carlo of BlackJAX."""

from __future__ import annotations

from typing import Any

import blackjax
import jax
import jax.numpy as jnp
from blackjax.mcmc import adjusted_mclmc_dynamic

from pytensor_jaxpr_linker.pymc.chains.kernel import Kernel

#: The arguments that are inputs of the programs, and their types.
INPUTS = {"desired_energy_var": float, "max_treedepth": int}
#: Steps of warm-up for each of `tune`: a step takes two gradients, a draw of NUTS some tens.
TUNING_STEPS = 10
#: Shares of the three stages of the adaptation; the second stage takes a third more, so they add up to all steps.
FIRST, SECOND, THIRD = 0.3, 0.3, 0.3


#: Of the corrected method: proposals for each draw, which have two steps on average, and the share that is to be
#: accepted: BlackJAX's advice.
PROPOSALS, TARGET_ACCEPTANCE = 10, 0.65


def make_kernel(
    logp: Any, tune: int, max_treedepth: int, desired_energy_var: float = 5e-4, adjusted: bool = False
) -> Kernel:
    """Return MCLMC (Robnik, De Luca, Silverstein and Seljak, 2023) with BlackJAX's adaptation.

    Before the first transition, ``10 * tune`` steps adapt the step size, the metric, and the length over which the
    momentum is forgotten. A draw is the end of a trajectory of that length, since draws closer to each other would
    hardly differ; a trajectory has at most ``2 ** max_treedepth`` steps, as in NUTS. No step is rejected, so draws have
    a bias. It is bounded by `desired_energy_var`, the variance of a step's energy error by dimension, at which the step
    size aims. With `adjusted`, steps are proposals that may be rejected, see `adjusted_kernel`.
    """
    if logp.size < 2:
        raise ValueError("MCLMC needs at least two dimensions, and the model has one: use sampler='nuts'.")
    if adjusted:
        return adjusted_kernel(logp, tune)
    mclmc = blackjax.mclmc.build_kernel()
    find, init = blackjax.mclmc_find_L_and_step_size, blackjax.mclmc.init
    start = adapted_start(find, init, mclmc, logp, tune, frac_tune3=THIRD, desired_energy_var=desired_energy_var)

    def transition(data: Any, chain: tuple) -> tuple[tuple, tuple[Any, dict]]:
        key, state, params = chain
        n_steps = jnp.clip(jnp.ceil(params.L / params.step_size), 1, 2**max_treedepth).astype(int)
        key, subkey = jax.random.split(key)

        def step(i: Any, carry: tuple) -> tuple:
            state, error, diverging = carry
            metric, length, size = params.inverse_mass_matrix, params.L, params.step_size
            state, info = mclmc(jax.random.fold_in(subkey, i), state, lambda q: logp(q, data), metric, length, size)
            return state, error + info.energy_change, diverging | ~info.nonans

        state, error, diverging = jax.lax.fori_loop(0, n_steps, step, (state, 0.0, False))
        stats = {
            "diverging": diverging,
            "energy_error": error,
            "lp": state.logdensity,
            "n_steps": n_steps,
            "step_size": params.step_size,
        }
        return (key, state, params), (state.position, stats)

    return Kernel(start, transition, has_warmup=False)


def adapted_start(find: Any, init: Any, mclmc: Any, logp: Any, tune: int, **options: Any) -> Any:
    """Return the function that starts a chain of a kernel of BlackJAX, and adapts it by ``find``."""

    def start(data: Any, key: Any, position: Any) -> tuple:
        def logdensity(q: Any) -> Any:
            return logp(q, data)

        first, tuning, key = jax.random.split(key, 3)
        state, params, _ = find(
            mclmc,
            logdensity_fn=logdensity,
            num_steps=TUNING_STEPS * tune,
            state=init(position, logdensity, first),
            rng_key=tuning,
            frac_tune1=FIRST,
            frac_tune2=SECOND,
            **options,
        )
        return key, state, params

    return start


def adjusted_kernel(logp: Any, tune: int) -> Kernel:
    """Return Metropolis-adjusted MCLMC, whose draws have no bias (Robnik, Cohn-Gordon and Seljak, 2025), with
    BlackJAX's adaptation.

    A draw is the last of `PROPOSALS` proposals.
    """
    mclmc = adjusted_mclmc_dynamic.build_kernel(
        integration_steps_fn=adjusted_mclmc_dynamic.make_random_trajectory_length_fn(True)
    )

    find, init = blackjax.adjusted_mclmc_find_L_and_step_size, adjusted_mclmc_dynamic.init
    start = adapted_start(find, init, mclmc, logp, tune, target=TARGET_ACCEPTANCE)

    def transition(data: Any, chain: tuple) -> tuple[tuple, tuple[Any, dict]]:
        key, state, params = chain
        key, subkey = jax.random.split(key)

        def propose(state: Any, key: Any) -> tuple:
            return mclmc(
                key,
                state,
                lambda q: logp(q, data),
                params.step_size,
                inverse_mass_matrix=params.inverse_mass_matrix,
                integration_steps_params=(params.L / params.step_size,),
            )

        info: Any
        state, info = jax.lax.scan(propose, state, jax.random.split(subkey, PROPOSALS))
        stats = {
            "acceptance_rate": info.acceptance_rate.mean(),
            "diverging": info.is_divergent.any(),
            "lp": state.logdensity,
            "n_steps": info.num_integration_steps.sum(),
            "step_size": jnp.asarray(params.step_size),
        }
        return (key, state, params), (state.position, stats)

    return Kernel(start, transition, has_warmup=False)
