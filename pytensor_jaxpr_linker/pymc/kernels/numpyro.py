"""NUTS of NumPyro."""

from __future__ import annotations

from typing import Any, Literal

import jax.numpy as jnp
from numpyro.infer import NUTS

from pytensor_jaxpr_linker.pymc.chains.kernel import Kernel

#: The arguments that are inputs of the programs, and their types: NumPyro makes a schedule of `tune`, and allocates
#: memory by `max_treedepth`.
INPUTS = {"target_accept": float, "step_size": float}
#: The forms of the mass matrix.
MASS_MATRICES = ("diagonal", "dense")


def make_kernel(
    logp: Any,
    tune: int,
    target_accept: float,
    max_treedepth: int,
    mass_matrix: Literal["diagonal", "dense"] = "diagonal",
    step_size: float = 1.0,
) -> Kernel:
    """Return NumPyro's NUTS; parameters as for BlackJAX's."""

    def initialize(data: Any, key: Any, position: Any) -> tuple[NUTS, Any]:
        nuts = NUTS(
            potential_fn=lambda q: -logp(q, data),
            step_size=step_size,
            dense_mass=mass_matrix == "dense",
            target_accept_prob=target_accept,
            max_tree_depth=max_treedepth,
        )
        return nuts, nuts.init(key, tune, init_params=position)

    def transition(data: Any, state: Any) -> tuple[Any, tuple[Any, dict]]:
        # A NUTS object keeps in its closures what `init` set, so it is made where it is traced; XLA drops the state.
        nuts, _ = initialize(data, state.rng_key, state.z)
        step_size = state.adapt_state.step_size
        state = nuts.sample(state, (), {})
        depth = jnp.ceil(jnp.log2(state.num_steps + 1)).astype(int)
        stats = {
            "acceptance_rate": state.accept_prob,
            "diverging": state.diverging,
            "energy": state.energy,
            "lp": -state.potential_energy,
            "n_steps": state.num_steps,
            # NumPyro does not say whether the last doubling made a turn: as in Stan, it counts.
            "reached_max_treedepth": depth >= max_treedepth,
            "step_size": step_size,
            "tree_depth": depth,
        }
        return state, (state.z, stats)

    return Kernel(lambda *args: initialize(*args)[1], transition)
