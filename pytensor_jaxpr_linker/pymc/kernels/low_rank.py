"""The mass matrix of rank 10 with a diagonal, by nutpie's method [1]_ with BlackJAX's windows and estimate.

References
----------
.. [1] A. Seyboldt, E. Carlson, B. Carpenter (2026). Preconditioning Hamiltonian Monte Carlo by minimizing Fisher
   divergence.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.adaptation.low_rank_adaptation import build_growing_window_schedule
from blackjax.adaptation.metric_recipes import MetricCore, lookup_recipe, seed_low_rank_sigma_from_grad
from blackjax.mcmc.metrics import LowRankInverseMassMatrix

from pytensor_jaxpr_linker.pymc.kernels.mass_matrix import (
    INSIDE,
    LAST,
    LAST_OF_SHORT,
    SAMPLE,
    MassMatrixAdaptation,
    frequencies,
    unknown_frequencies,
)
from pytensor_jaxpr_linker.pymc.kernels.metric import (
    LowRankFactor,
    Moments,
    add_state,
    empty_moments,
    fisher_variances,
    inverse_mass_diagonal,
    is_scale,
)

#: A window of this many draws, or fewer, estimates no directions.
SHORT_WINDOW = 20


class LowRankState(NamedTuple):
    """The state that adapts a mass matrix of low rank.

    `window` has draws and gradients, with the mass matrix in use. For the others see `MomentsState`; there the moments
    are called `window`.
    """

    window: Any
    frequencies: tuple[Any, Any]
    moments: Moments

    @property
    def factor(self) -> LowRankFactor:
        """The mass matrix in use."""
        return LowRankFactor(*self.window.inverse_mass_matrix)


def low_rank_adaptation(tune: int) -> MassMatrixAdaptation:
    """Return nutpie's adaptation, with fewer estimates.

    nutpie estimates directions after every tenth draw at first. An estimate takes as long as hundreds of gradients
    where there are many variables, and ten draws say little of directions: here they give a diagonal.
    """
    with jax.ensure_compile_time_eval():  # a program may be traced here, and BlackJAX makes the windows of JAX's arrays
        windows = build_growing_window_schedule(tune, early_window=0.05, early_window_size=10, window_size=50)
    rows = np.array(windows, dtype=np.int64).reshape(-1, 2)
    ends = np.flatnonzero(rows[:, 1])
    lengths = np.diff([-1, *ends])
    rows[ends, 1] = np.where(lengths <= SHORT_WINDOW, LAST_OF_SHORT, LAST)
    # One row more, for all transitions after warm-up.
    rows = np.array([*rows, (SAMPLE, INSIDE)])
    by_window: MetricCore = lookup_recipe("fisher_low_rank").build_core(buffer_size=max([1, *lengths]))

    def schedule(i: Any) -> tuple[Any, Any]:
        stage, place = jnp.asarray(rows)[jnp.minimum(i, tune)]
        return stage, place

    def start(size: int) -> LowRankState:
        return LowRankState(by_window.init(size), unknown_frequencies(), empty_moments(size, dense=False))

    def by_gradient(metric: LowRankState, gradient: Any) -> tuple:
        found = seed_low_rank_sigma_from_grad(metric.window, gradient).inverse_mass_matrix
        return LowRankFactor(*found), metric.frequencies

    def low_rank(metric: LowRankState, _: Any) -> tuple:
        return changed(metric, LowRankFactor(*by_window.final(metric.window).inverse_mass_matrix))

    def diagonal(metric: LowRankState, _: Any) -> tuple:
        old, found = metric.factor, fisher_variances(metric.moments)
        sigma = jnp.sqrt(jnp.where(is_scale(found), found, inverse_mass_diagonal(old)))
        return changed(metric, LowRankFactor(sigma, jnp.zeros_like(old.U), jnp.ones_like(old.lam)))

    def changed(metric: LowRankState, new: LowRankFactor) -> tuple:
        return new, frequencies(
            inverse_mass_diagonal(metric.factor), inverse_mass_diagonal(new), fisher_variances(metric.moments)
        )

    def update(metric: LowRankState, stage: Any, place: Any, state: Any, _: Any) -> LowRankState:
        # At every transition, also where nothing reads it: a branch would copy the window, which takes as long as some
        # gradients.
        window = by_window.update(metric.window, state.position, state.logdensity_grad)
        metric = LowRankState(window, metric.frequencies, add_state(metric.moments, state))
        # INSIDE, LAST, FIRST and LAST_OF_SHORT
        choices = [lambda metric, _: (metric.factor, metric.frequencies), low_rank, by_gradient, diagonal]
        matrix, found = jax.lax.switch(place, choices, metric, state.logdensity_grad)
        is_inside = place == INSIDE
        index = jnp.where(is_inside, window.buffer_idx, 0)
        window = window._replace(inverse_mass_matrix=LowRankInverseMassMatrix(*matrix), buffer_idx=index)
        fresh = empty_moments(state.position.size, dense=False)
        whole = jax.tree.map(lambda a, b: jnp.where(is_inside, a, b), metric.moments, fresh)
        return LowRankState(window, found, whole)

    return MassMatrixAdaptation(schedule, start, update)
