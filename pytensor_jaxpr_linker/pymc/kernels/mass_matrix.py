"""How a warm-up adapts the mass matrix: in windows, from the draws and the gradients of each.

Diagonal and dense forms are estimated from variances or covariances in Stan's windows; `low_rank.py` has a third form.
All begin with a diagonal from the gradient at the start.

References
----------
.. [1] Stan Development Team. Stan Reference Manual, "MCMC sampling", section "HMC algorithm parameters": the windows.
.. [2] A. Seyboldt, E. Carlson, B. Carpenter (2026). Preconditioning Hamiltonian Monte Carlo by minimizing Fisher
   divergence: the diagonal from the gradient at the start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pytensor_jaxpr_linker.pymc.kernels.metric import (
    FEW_COORDINATES,
    MANY_DRAWS,
    Moments,
    add_state,
    empty_moments,
    factor_of,
    fisher_variances,
    inverse_mass_diagonal,
    is_scale,
    metric_diagonal,
    variances_by_gradient,
    weight_of_no_correlations,
    window_covariances,
    window_variances,
)

#: Stages of a schedule: the first two have BlackJAX's numbers.
ADAPT_STEP_SIZE, ADAPT_BOTH, SAMPLE = 0, 1, 2
#: The place of a transition in a window: inside, or at its end, or the one that evaluates the gradient at the start. A
#: short window renews the diagonal only.
INSIDE, LAST, FIRST, LAST_OF_SHORT = 0, 1, 2, 3
#: How many transitions adapt the step size alone, before Stan's windows and after them. After Stan's 50 two runs of
#: `eight_schools` had acceptance rates of 0.77 and 0.84 for 0.8, after 100 of 0.79 and 0.80.
FIRST_TRANSITIONS, LAST_TRANSITIONS = 75, 100
#: The length of the first of Stan's windows.
FIRST_WINDOW = 25
#: In how many transitions the step size settles after the mass matrix has changed: before it does, transitions may have
#: large errors.
SETTLING_DRAWS = 50
#: From which share of transitions with a large error on, and from which entirely, correlations are left out: where
#: curvature varies, so may they. With a diagonal mass matrix and an acceptance rate of 0.8, models have at most 0.003,
#: or more than 0.02 (see `nuts.py`). Up to 0.01 and 0.02 made no difference.
SOME_LARGE_ERRORS, TOO_MANY_LARGE_ERRORS = 0.003, 0.006


class MassMatrixAdaptation(NamedTuple):
    """How a warm-up adapts the mass matrix.

    Attributes
    ----------
    schedule
        Returns the stage of a transition, by its number, and its place in its window.
    start
        Returns the state of the adaptation for a number of coordinates. Its ``factor``, in a form of `metric.py`, is in
        use, and its ``frequencies`` are the result of `frequencies` for the last change of the mass matrix.
    update
        Returns the new state from the old one, the results of `schedule` for the transition (or SAMPLE and FIRST), the
        new state of NUTS, and whether the energy of the transition had a large error.
    """

    schedule: Callable[[Any], tuple[Any, Any]]
    start: Callable[[Any], Any]
    update: Callable[[Any, Any, Any, Any, Any], Any]


def stan_windows(i: Any, tune: Any) -> tuple[Any, Any]:
    """Return the stage of transition `i` of a warm-up, and its place in its window.

    After `FIRST_TRANSITIONS` come windows of 25, 50, 100 ... transitions. The last one ends `LAST_TRANSITIONS` before
    the end of the warm-up, and takes the rest that is too short for one more. In a short warm-up 15 percent come before
    the windows and 20 percent after them, and the first window has a third of the rest. Both arguments may be arrays,
    or traced.
    """
    before = jnp.minimum(FIRST_TRANSITIONS, tune * 3 // 20)
    length = tune - before - jnp.minimum(LAST_TRANSITIONS, tune // 5)
    window = jnp.clip(length // 3, 1, FIRST_WINDOW)
    done = i + 1 - before
    # A window ends after 1, 3, 7, 15 ... times the first one, if one of twice its length fits into the rest.
    count = done // window + 1
    is_end = (done % window == 0) & (count & (count - 1) == 0) & (2 * done + window <= length) | (done == length)
    is_in_windows = (done > 0) & (done <= length)
    stage = jnp.where(is_in_windows, ADAPT_BOTH, ADAPT_STEP_SIZE)
    return jnp.where(i < tune, stage, SAMPLE), jnp.where(is_in_windows & is_end, LAST, INSIDE)


class MomentsState(NamedTuple):
    """The state that adapts a diagonal or dense mass matrix: the factor in use, the `frequencies` of its last change,
    and the moments of the window.

    After the first `SETTLING_DRAWS` of the window, `errors` transitions had a large error. `varying` says how surely
    correlations vary from place to place, from 0 to 1.
    """

    factor: Any
    frequencies: tuple[Any, Any]
    window: Moments
    errors: Any
    varying: Any


def adaptation_by_moments(mass_matrix: str, tune: Any) -> MassMatrixAdaptation:
    """Return the adaptation of a diagonal or dense mass matrix in Stan's windows; `tune` may be traced.

    "correlated", the default, is a dense one that leaves out the correlations of many coordinates if draws do not show
    any, or if they vary from place to place.
    """
    dense = mass_matrix != "diagonal"

    def start(size: int) -> MomentsState:
        factor = np.eye(size) if dense else np.ones(size)
        return MomentsState(factor, unknown_frequencies(), empty_moments(size, dense), np.zeros(()), np.zeros(()))

    def by_gradient(metric: MomentsState, state: Any) -> MomentsState:
        first = factor_of(variances_by_gradient(state.logdensity_grad))
        return metric._replace(factor=jnp.diag(first) if dense else first)

    def estimate(metric: MomentsState, _: Any) -> MomentsState:
        window, old = metric.window, inverse_mass_diagonal(metric.factor)
        varying = jnp.maximum(metric.varying, variation(window, metric.errors))
        if not dense:
            new = window_variances(window, old)
        elif mass_matrix == "correlated" and len(old) > FEW_COORDINATES:
            new = window_covariances(window, old, weight_of_no_correlations(window, varying))
        else:
            new = window_covariances(window, old)
        changed = frequencies(old, metric_diagonal(new), fisher_variances(window))
        return MomentsState(factor_of(new), changed, empty_moments(len(new), dense), jnp.zeros(()), varying)

    def update(metric: MomentsState, stage: Any, place: Any, state: Any, is_large_error: Any) -> MomentsState:
        window = jax.lax.cond(stage == ADAPT_BOTH, add_state, lambda window, _: window, metric.window, state)
        is_settled = window.draws.sample_size > SETTLING_DRAWS
        metric = metric._replace(window=window, errors=metric.errors + (is_settled & is_large_error))
        choices = [lambda metric, _: metric, estimate, by_gradient]  # INSIDE, LAST and FIRST
        return jax.lax.switch(place, choices, metric, state)

    return MassMatrixAdaptation(lambda i: stan_windows(i, tune), start, update)


def variation(window: Moments, errors: Any) -> Any:
    """Return how surely correlations vary from place to place, from 0 to 1, by the `errors` of a `MomentsState`.

    It is 0 for a short window.
    """
    count = window.draws.sample_size
    share = errors / jnp.maximum(count - SETTLING_DRAWS, 1)
    found = jnp.clip((share - SOME_LARGE_ERRORS) / (TOO_MANY_LARGE_ERRORS - SOME_LARGE_ERRORS), 0, 1)
    return jnp.where(count >= MANY_DRAWS, found, 0)


def frequencies(old: Any, new: Any, fisher: Any) -> tuple[Any, Any]:
    """Return the highest frequency of trajectories under the mass matrix whose inverse has the diagonal `old`, and
    under the matrix of `new`.

    A coordinate oscillates with the square root of inverse mass times curvature. The curvature is the inverse of
    `fisher_variances`, from the window before the change.
    """
    curvature = jnp.where(is_scale(fisher), 1 / fisher, 0)
    before, after = (jnp.sqrt(jnp.max(diagonal * curvature)) for diagonal in (old, new))
    return before, after


def unknown_frequencies() -> tuple[Any, Any]:
    """Return the frequencies before the first change."""
    return jnp.ones(()), jnp.ones(())
