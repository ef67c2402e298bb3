"""How a warm-up adapts the mass matrix: in windows, by BlackJAX's estimates.

The first two forms are Stan's. The third, of rank 10 beside a diagonal, is nutpie's (A. Seyboldt et al., "Preconditioning Hamiltonian Monte Carlo by
minimizing Fisher divergence", 2026). That paper's diagonal took fewer gradients on five of ten models of `benchmarks/`, and more on the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from blackjax.adaptation.low_rank_adaptation import build_growing_window_schedule
from blackjax.adaptation.metric_recipes import MetricCore, lookup_recipe, seed_low_rank_sigma_from_grad
from blackjax.adaptation.staged_adaptation import build_schedule
from blackjax.mcmc.metrics import LowRankInverseMassMatrix

#: Stages of a schedule: the first two are BlackJAX's.
ADAPT_STEP_SIZE, ADAPT_BOTH, SAMPLE = 0, 1, 2
#: What a transition is to a window: inside it, or its last. A short window renews the diagonal only.
INSIDE, LAST, LAST_OF_SHORT = 0, 1, 2
#: How many transitions at the end of the warm-up adapt the step size alone. After Stan's 50 two runs of `eight_schools` had acceptance rates of 0.77 and 0.84
#: for 0.8, after 100 of 0.79 and 0.80.
LAST_TRANSITIONS = 100
#: From so few draws a window estimates no directions.
SHORT_WINDOW = 20


class MassMatrixAdaptation(NamedTuple):
    """How a warm-up adapts the mass matrix.

    Attributes
    ----------
    schedule
        A row for each transition: its stage, and what it is to its window.
    start
        Returns the state of the adaptation from that of NUTS; its ``inverse_mass_matrix`` is in use.
    update
        Returns the new state from the old one, the row of the schedule and the new state of NUTS.
    """

    schedule: np.ndarray
    start: Callable[[Any], Any]
    update: Callable[[Any, Any, Any, Any], Any]


def mass_matrix_adaptation(mass_matrix: str, tune: int) -> MassMatrixAdaptation:
    """Return the adaptation of one of the forms of the mass matrix, in a warm-up of `tune` transitions."""
    return low_rank_adaptation(tune) if mass_matrix == "low_rank" else adaptation_by_moments(MOMENTS[mass_matrix], tune)


#: The forms that BlackJAX estimates from the moments of a window, by its names of the estimates.
MOMENTS = {"diagonal": "welford_diag", "dense": "welford_dense"}


def adaptation_by_moments(recipe: str, tune: int) -> MassMatrixAdaptation:
    """Return the adaptation of Stan's windows."""
    core = lookup_recipe(recipe).build_core()

    def update(metric: Any, stage: Any, place: Any, state: Any) -> Any:
        given = metric, state.position, state.logdensity_grad
        metric = jax.lax.cond(stage == ADAPT_BOTH, core.update, lambda metric, *_: metric, *given)
        return jax.lax.cond(place == LAST, core.final, lambda metric: metric, metric)

    rows = np.array(build_schedule(tune, final_buffer_size=LAST_TRANSITIONS), dtype=np.int64).reshape(-1, 2)
    return MassMatrixAdaptation(rows, lambda state: core.init(size_of(state)), update)


class LowRankState(NamedTuple):
    """The draws and gradients of a window, and their moments; BlackJAX has a state for each."""

    window: Any
    moments: Any

    @property
    def inverse_mass_matrix(self) -> LowRankInverseMassMatrix:
        """The one in use."""
        return self.window.inverse_mass_matrix


def low_rank_adaptation(tune: int) -> MassMatrixAdaptation:
    """Return nutpie's adaptation, with fewer estimates.

    nutpie estimates directions after every tenth draw at first. An estimate takes as long as hundreds of gradients where there are many variables, and
    ten draws say little of directions: here they give a diagonal.
    """
    windows = build_growing_window_schedule(tune, early_window=0.05, early_window_size=10, window_size=50)
    rows = np.array(windows, dtype=np.int64).reshape(-1, 2)
    ends = np.flatnonzero(rows[:, 1])
    lengths = np.diff([-1, *ends])
    rows[ends, 1] = np.where(lengths <= SHORT_WINDOW, LAST_OF_SHORT, LAST)
    by_window: MetricCore = lookup_recipe("fisher_low_rank").build_core(buffer_size=max([1, *lengths]))
    by_moments: MetricCore = lookup_recipe("fisher_diag").build_core()

    def start(state: Any) -> LowRankState:
        size = size_of(state)
        window = seed_low_rank_sigma_from_grad(by_window.init(size), state.logdensity_grad)
        return LowRankState(window, by_moments.init(size))

    def diagonal(metric: LowRankState) -> LowRankInverseMassMatrix:
        sigma = jax.numpy.sqrt(by_moments.final(metric.moments).inverse_mass_matrix)
        old = metric.inverse_mass_matrix
        return LowRankInverseMassMatrix(sigma, jax.numpy.zeros_like(old.U), jax.numpy.ones_like(old.lam))

    def update(metric: LowRankState, stage: Any, place: Any, state: Any) -> LowRankState:
        # At every transition, also where nothing reads it: a branch would copy the window, which takes as long as some gradients.
        given = state.position, state.logdensity_grad
        metric = LowRankState(by_window.update(metric.window, *given), by_moments.update(metric.moments, *given))
        matrix = jax.lax.switch(
            place,
            [
                lambda metric: metric.inverse_mass_matrix,
                lambda metric: by_window.final(metric.window).inverse_mass_matrix,
                diagonal,
            ],
            metric,
        )
        is_inside = place == INSIDE
        window = metric.window._replace(
            inverse_mass_matrix=matrix, buffer_idx=jax.numpy.where(is_inside, metric.window.buffer_idx, 0)
        )
        empty = by_moments.init(size_of(state))
        return LowRankState(window, jax.tree.map(lambda a, b: jax.numpy.where(is_inside, a, b), metric.moments, empty))

    return MassMatrixAdaptation(rows, start, update)


def size_of(state: Any) -> int:
    """Return how many numbers the position of a state of NUTS has."""
    return sum(x.size for x in jax.tree.leaves(state.position))
