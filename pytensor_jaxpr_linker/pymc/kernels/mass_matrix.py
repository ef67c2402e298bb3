"""How a warm-up adapts the mass matrix: in windows, from the draws and the gradients of each.

Two of the three forms are estimated from variances or covariances in Stan's windows, the third, of rank 10 beside a diagonal, by nutpie's method.
All begin with a diagonal from the gradient at the start.

References
----------
.. [1] Stan Development Team. Stan Reference Manual, "MCMC sampling", section "HMC algorithm parameters": the windows, and what a variance is shrunk to.
.. [2] A. Seyboldt, E. Carlson, B. Carpenter (2026). Preconditioning Hamiltonian Monte Carlo by minimizing Fisher divergence: the diagonal from draws and
   gradients, the one from the gradient at the start, and the form of low rank. The paper's diagonal alone took fewer gradients on five of ten models of
   `benchmarks/`, and more on the others.
.. [3] BlackJAX: Welford's algorithm, the windows of the third form and its estimate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from blackjax.adaptation.low_rank_adaptation import build_growing_window_schedule
from blackjax.adaptation.mass_matrix import WelfordAlgorithmState, welford_algorithm
from blackjax.adaptation.metric_recipes import MetricCore, lookup_recipe, seed_low_rank_sigma_from_grad
from blackjax.mcmc.metrics import LowRankInverseMassMatrix
from jax.flatten_util import ravel_pytree

from pytensor_jaxpr_linker.pymc.kernels.metric import factor_of, inverse_mass_diagonal

#: Stages of a schedule: the first two are BlackJAX's.
ADAPT_STEP_SIZE, ADAPT_BOTH, SAMPLE = 0, 1, 2
#: What a transition is to a window: inside it, or its last, or the one that evaluates the gradient at the start. A short window renews the diagonal only.
INSIDE, LAST, FIRST, LAST_OF_SHORT = 0, 1, 2, 3
#: How many transitions adapt the step size alone, before Stan's windows and after them. After Stan's 50 two runs of `eight_schools` had acceptance rates of
#: 0.77 and 0.84 for 0.8, after 100 of 0.79 and 0.80.
FIRST_TRANSITIONS, LAST_TRANSITIONS = 75, 100
#: The length of the first of Stan's windows.
FIRST_WINDOW = 25
#: From so few draws a window estimates no directions.
SHORT_WINDOW = 20
#: How many draws of a window weigh as much as what Stan shrinks its variance to.
PSEUDO_DRAWS = 5
#: What Stan shrinks covariance matrices to, times the identity; here correlation matrices.
RIDGE = 1e-3
#: A smaller gradient at the start says nothing of a scale: nutpie's limit.
TINY_GRADIENT = 1e-10


class MassMatrixAdaptation(NamedTuple):
    """How a warm-up adapts the mass matrix.

    Attributes
    ----------
    schedule
        Returns the stage of a transition, by its number, and what the transition is to its window.
    start
        Returns the state of the adaptation for a number of coordinates. Its ``factor``, in a form of `metric.py`, is in use, and its ``frequencies`` are those of
        `frequencies` for the last change of the mass matrix.
    update
        Returns the new state from the old one, what `schedule` says of the transition (or SAMPLE and FIRST), and the new state of NUTS.
    """

    schedule: Callable[[Any], tuple[Any, Any]]
    start: Callable[[Any], Any]
    update: Callable[[Any, Any, Any, Any], Any]


def mass_matrix_adaptation(mass_matrix: str, tune: int) -> MassMatrixAdaptation:
    """Return the adaptation of one of the forms of the mass matrix, in a warm-up of `tune` transitions."""
    return low_rank_adaptation(tune) if mass_matrix == "low_rank" else adaptation_by_moments(mass_matrix, tune)


def stan_windows(i: Any, tune: Any) -> tuple[Any, Any]:
    """Return the stage of transition `i` of a warm-up, and what the transition is to its window.

    After `FIRST_TRANSITIONS` come windows of 25, 50, 100 ... transitions. The last one ends `LAST_TRANSITIONS` before the end of the warm-up, and takes what is
    too short for one more. In a short warm-up 15 percent come before the windows and 20 percent after them, and the first window has a third of the rest.
    Both arguments may be arrays, or traced.
    """
    numpy = jax.numpy
    before = numpy.minimum(FIRST_TRANSITIONS, tune * 3 // 20)
    length = tune - before - numpy.minimum(LAST_TRANSITIONS, tune // 5)
    window = numpy.clip(length // 3, 1, FIRST_WINDOW)
    done = i + 1 - before
    # A window ends after 1, 3, 7, 15 ... times the first one, if one of twice its length fits into the rest.
    count = done // window + 1
    is_end = (done % window == 0) & (count & (count - 1) == 0) & (2 * done + window <= length) | (done == length)
    is_in_windows = (done > 0) & (done <= length)
    stage = numpy.where(is_in_windows, ADAPT_BOTH, ADAPT_STEP_SIZE)
    return numpy.where(i < tune, stage, SAMPLE), numpy.where(is_in_windows & is_end, LAST, INSIDE)


class Moments(NamedTuple):
    """The moments of a window: variances or covariances of its draws, and variances of its gradients."""

    draws: WelfordAlgorithmState
    gradients: WelfordAlgorithmState


def moments(dense: bool) -> tuple[Callable[[int], Moments], Callable[[Moments, Any], Moments]]:
    """Return two functions: one makes empty moments of a number of coordinates, the other adds a state of NUTS to moments."""
    empty_draws, add_draw, _ = welford_algorithm(not dense)
    empty_gradients, add_gradient, _ = welford_algorithm(True)

    def empty(size: int) -> Moments:
        return Moments(empty_draws(size), empty_gradients(size))

    def add(window: Moments, state: Any) -> Moments:
        draws = add_draw(window.draws, flat(state.position))
        return Moments(draws, add_gradient(window.gradients, flat(state.logdensity_grad)))

    return empty, add


class MomentsState(NamedTuple):
    """The factor in use, what its last change did to frequencies, and the moments of the window."""

    factor: Any
    frequencies: tuple[Any, Any]
    window: Moments


def adaptation_by_moments(mass_matrix: str, tune: Any) -> MassMatrixAdaptation:
    """Return the adaptation of a diagonal or dense mass matrix in Stan's windows; `tune` may be traced."""
    dense = mass_matrix == "dense"
    empty, add = moments(dense)
    of_window = window_covariances if dense else window_variances

    def start(size: int) -> MomentsState:
        return MomentsState(np.eye(size) if dense else np.ones(size), unknown_frequencies(), empty(size))

    def by_gradient(metric: MomentsState, state: Any) -> MomentsState:
        first = factor_of(variances_by_gradient(flat(state.logdensity_grad)))
        return metric._replace(factor=jax.numpy.diag(first) if dense else first)

    def estimate(metric: MomentsState, _: Any) -> MomentsState:
        old = inverse_mass_diagonal(metric.factor)
        new = of_window(metric.window, old)
        changed = frequencies(old, metric_diagonal(new), fisher_variances(metric.window))
        return MomentsState(factor_of(new), changed, empty(len(new)))

    def update(metric: MomentsState, stage: Any, place: Any, state: Any) -> MomentsState:
        window = jax.lax.cond(stage == ADAPT_BOTH, add, lambda window, _: window, metric.window, state)
        choices = {INSIDE: lambda metric, _: metric, LAST: estimate, FIRST: by_gradient}
        return jax.lax.switch(place, [choices[i] for i in sorted(choices)], metric._replace(window=window), state)

    return MassMatrixAdaptation(lambda i: stan_windows(i, tune), start, update)


def variances_by_gradient(gradient: Any) -> Any:
    """Return ``1 / abs(gradient)``, a first guess of the variances, or 1 where the gradient is about zero or not finite."""
    numpy = jax.numpy
    size = abs(gradient).astype(float)
    is_usable = numpy.isfinite(size) & (size > TINY_GRADIENT)
    return 1 / numpy.where(is_usable, size, 1)


def window_variances(window: Moments, old: Any) -> Any:
    """Return the diagonal of the inverse mass matrix after a window, from the `old` diagonal.

    It is the variance of the draws, shrunk to that of `fisher_variances` in logarithms. Stan shrinks to 0.001 with the same weight, which outweighs much smaller
    variances. A coordinate whose draws are all the same keeps the old value.
    """
    numpy = jax.numpy
    count = window.draws.sample_size
    variance, fisher = metric_diagonal(window.draws.m2) / numpy.maximum(count - 1, 1), fisher_variances(window)
    weight = weight_of_shrinkage(count)
    target = numpy.where(is_scale(fisher), fisher, variance)
    found = numpy.exp((1 - weight) * numpy.log(variance) + weight * numpy.log(target))
    return numpy.where(is_scale(found), found, old)


def window_covariances(window: Moments, old: Any) -> Any:
    """Return the inverse mass matrix after a window: the diagonal of `window_variances`, and Stan's correlations of the draws.

    The correlations are shrunk to 0, so that the matrix is positive definite whatever the scales are. Few draws say nothing of many directions, and along some of
    these the draws have next to no variance: where a window has fewer draws than there are coordinates, most of the weight is that of 0.
    """
    numpy = jax.numpy
    length = numpy.sqrt(metric_diagonal(window.draws.m2))
    length = numpy.where(is_scale(length), length, numpy.inf)
    count, size = window.draws.sample_size, len(length)
    # Draws of independent coordinates have correlation matrices whose least eigenvalue is (1 - sqrt(size / count)) ** 2: half of 1 for a ratio of 1/12, 1/4 for
    # 1/4, and 0 from 1 on. The power leaves strong correlations of well-known matrices alone.
    odds = (size / numpy.maximum(count, 1)) ** 4
    shrinkage = numpy.maximum(weight_of_shrinkage(count) * RIDGE, odds / (1 + odds))
    correlation = (1 - shrinkage) * window.draws.m2 / length / length[:, None]
    # Products of draws may overflow where their variances do: such a pair counts as uncorrelated, since one NaN would stop the chain.
    correlation = numpy.where(numpy.isfinite(correlation), correlation, 0)
    scale = numpy.sqrt(window_variances(window, old))
    return numpy.where(numpy.eye(size, dtype=bool), 1, correlation) * scale * scale[:, None]


def weight_of_shrinkage(count: Any) -> Any:
    """Return the weight, in an estimate from so many draws, of what the estimate is shrunk to."""
    return PSEUDO_DRAWS / (count + PSEUDO_DRAWS)


def fisher_variances(window: Moments) -> Any:
    """Return ``sd(draws) / sd(gradients)`` of each coordinate: the diagonal that minimizes the Fisher divergence.

    For a normal distribution with independent coordinates that is the variance from two draws on, even where draws come from far out.
    """
    return jax.numpy.sqrt(metric_diagonal(window.draws.m2) / window.gradients.m2)


def frequencies(old: Any, new: Any, fisher: Any) -> tuple[Any, Any]:
    """Return the highest frequency of trajectories under the mass matrix whose inverse has the diagonal `old`, and under that of `new`.

    A coordinate oscillates with the square root of inverse mass times curvature. The curvature is the inverse of `fisher_variances`, from the window before the change.
    """
    curvature = jax.numpy.where(is_scale(fisher), 1 / fisher, 0)
    before, after = (jax.numpy.sqrt(jax.numpy.max(diagonal * curvature)) for diagonal in (old, new))
    return before, after


def unknown_frequencies() -> tuple[Any, Any]:
    """Return the frequencies before the first change."""
    return jax.numpy.ones(()), jax.numpy.ones(())


def metric_diagonal(matrix: Any) -> Any:
    """Return the diagonal of a matrix, or a vector as it is."""
    return matrix if matrix.ndim == 1 else jax.numpy.diag(matrix)


def is_scale(x: Any) -> Any:
    """Return where `x` is positive and finite."""
    return (x > 0) & jax.numpy.isfinite(x)


class LowRankState(NamedTuple):
    """The draws and gradients of a window with the mass matrix in use, what its last change did to frequencies, and the moments of the window."""

    window: Any
    frequencies: tuple[Any, Any]
    moments: Moments

    @property
    def factor(self) -> LowRankInverseMassMatrix:
        """The one in use."""
        return self.window.inverse_mass_matrix


def low_rank_adaptation(tune: int) -> MassMatrixAdaptation:
    """Return nutpie's adaptation, with fewer estimates.

    nutpie estimates directions after every tenth draw at first. An estimate takes as long as hundreds of gradients where there are many variables, and
    ten draws say little of directions: here they give a diagonal.
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
    empty, add = moments(dense=False)

    def schedule(i: Any) -> tuple[Any, Any]:
        stage, place = jax.numpy.asarray(rows)[jax.numpy.minimum(i, tune)]
        return stage, place

    def start(size: int) -> LowRankState:
        return LowRankState(by_window.init(size), unknown_frequencies(), empty(size))

    def kept(metric: LowRankState, _: Any) -> tuple:
        return metric.factor, metric.frequencies

    def by_gradient(metric: LowRankState, gradient: Any) -> tuple:
        return seed_low_rank_sigma_from_grad(metric.window, gradient).inverse_mass_matrix, metric.frequencies

    def low_rank(metric: LowRankState, _: Any) -> tuple:
        return changed(metric, by_window.final(metric.window).inverse_mass_matrix)

    def diagonal(metric: LowRankState, _: Any) -> tuple:
        old, found = metric.factor, fisher_variances(metric.moments)
        sigma = jax.numpy.sqrt(jax.numpy.where(is_scale(found), found, inverse_mass_diagonal(old)))
        new = LowRankInverseMassMatrix(sigma, jax.numpy.zeros_like(old.U), jax.numpy.ones_like(old.lam))
        return changed(metric, new)

    def changed(metric: LowRankState, new: LowRankInverseMassMatrix) -> tuple:
        return new, frequencies(
            inverse_mass_diagonal(metric.factor), inverse_mass_diagonal(new), fisher_variances(metric.moments)
        )

    def update(metric: LowRankState, stage: Any, place: Any, state: Any) -> LowRankState:
        # At every transition, also where nothing reads it: a branch would copy the window, which takes as long as some gradients.
        window = by_window.update(metric.window, state.position, state.logdensity_grad)
        metric = LowRankState(window, metric.frequencies, add(metric.moments, state))
        choices = {INSIDE: kept, LAST: low_rank, FIRST: by_gradient, LAST_OF_SHORT: diagonal}
        matrix, found = jax.lax.switch(place, [choices[i] for i in sorted(choices)], metric, state.logdensity_grad)
        is_inside = place == INSIDE
        window = window._replace(
            inverse_mass_matrix=matrix, buffer_idx=jax.numpy.where(is_inside, window.buffer_idx, 0)
        )
        fresh = empty(size_of(state))
        return LowRankState(
            window, found, jax.tree.map(lambda a, b: jax.numpy.where(is_inside, a, b), metric.moments, fresh)
        )

    return MassMatrixAdaptation(schedule, start, update)


def flat(tree: Any) -> Any:
    """Return the numbers of a position or gradient as one vector."""
    return ravel_pytree(tree)[0]


def size_of(state: Any) -> int:
    """Return how many numbers the position of a state of NUTS has."""
    return sum(x.size for x in jax.tree.leaves(state.position))
