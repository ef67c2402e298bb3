"""Variances and covariances of a window of the warm-up, from its draws and their gradients.

References
----------
.. [1] Stan Development Team. Stan Reference Manual, "MCMC sampling", section "HMC algorithm parameters": what a variance is shrunk to.
.. [2] A. Seyboldt, E. Carlson, B. Carpenter (2026). Preconditioning Hamiltonian Monte Carlo by minimizing Fisher divergence: the diagonal from draws and gradients.
   Alone it took fewer gradients on five of ten models of `benchmarks/`, and more on the others.
.. [3] M. S. Bartlett (1951). The effect of standardization on a chi square approximation in factor analysis: whether coordinates are correlated at all.
.. [4] BlackJAX: Welford's algorithm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from blackjax.adaptation.mass_matrix import WelfordAlgorithmState, welford_algorithm
from jax.flatten_util import ravel_pytree

from pytensor_jaxpr_linker.pymc.kernels.metric import factor_of

#: How many draws of a window weigh as much as what Stan shrinks its variance to.
PSEUDO_DRAWS = 5
#: What Stan shrinks covariance matrices to, times the identity; here correlation matrices.
RIDGE = 1e-3
#: A smaller gradient at the start says nothing of a scale: nutpie's limit.
TINY_GRADIENT = 1e-10
#: By default, the correlations of so many coordinates or fewer are those of any window; those of more need windows of `MANY_DRAWS` that show some.
FEW_COORDINATES, MANY_DRAWS = 16, 100
#: Of draws of independent coordinates, `noise_of_correlations` is 0.33 to 0.38, since draws of NUTS are not independent of each other. The power makes a switch of the limit.
NOISE, NOISE_POWER = 0.25, 8


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


def window_covariances(window: Moments, old: Any, least_shrinkage: Any = 0.0) -> Any:
    """Return the inverse mass matrix after a window: the diagonal of `window_variances`, and Stan's correlations of the draws.

    The correlations are shrunk to 0, by a weight of at least `least_shrinkage`, so that the matrix is positive definite whatever the scales are. Few draws say nothing of many directions, and
    along some of these the draws have next to no variance: where a window has fewer draws than there are coordinates, most of the weight is that of 0.
    """
    numpy = jax.numpy
    count, size = window.draws.sample_size, len(window.draws.m2)
    # Draws of independent coordinates have correlation matrices whose least eigenvalue is (1 - sqrt(size / count)) ** 2: half of 1 for a ratio of 1/12, 1/4 for
    # 1/4, and 0 from 1 on. The power leaves strong correlations of well-known matrices alone.
    few_draws = weight_of_odds((size / numpy.maximum(count, 1)) ** 4)
    shrinkage = numpy.maximum(numpy.maximum(weight_of_shrinkage(count) * RIDGE, few_draws), least_shrinkage)
    scale = numpy.sqrt(window_variances(window, old))
    correlation = numpy.where(numpy.eye(size, dtype=bool), 1, (1 - shrinkage) * correlations(window))
    return correlation * scale * scale[:, None]


def correlations(window: Moments) -> Any:
    """Return the correlations of the draws of a window.

    Products of draws may overflow where their variances do: such a pair counts as uncorrelated, since one NaN would stop the chain.
    """
    numpy = jax.numpy
    length = numpy.sqrt(metric_diagonal(window.draws.m2))
    length = numpy.where(is_scale(length), length, numpy.inf)
    found = window.draws.m2 / length / length[:, None]
    return numpy.where(numpy.isfinite(found), found, 0)


def weight_of_no_correlations(window: Moments, varying: Any) -> Any:
    """Return the weight of 0 in the correlations of many coordinates: 1 if the draws are too few, or show none, or if correlations vary from place to place."""
    numpy = jax.numpy
    unseen = weight_of_odds((noise_of_correlations(window) / NOISE) ** NOISE_POWER)
    return numpy.where(window.draws.sample_size >= MANY_DRAWS, numpy.maximum(unseen, varying), 1)


def noise_of_correlations(window: Moments) -> Any:
    """Return what Bartlett's test statistic would be without correlations, for independent draws, as a part of what it is: 1 if there are none, less if there are.

    The statistic is the negative logarithm of the determinant of the correlation matrix, times the number of draws. It tells also of a narrow direction of many coordinates, no two of which
    are strongly correlated, such as the sum of the coefficients of equal predictors.
    """
    numpy = jax.numpy
    matrix, count = correlations(window), window.draws.sample_size
    size = len(matrix)
    matrix = numpy.where(numpy.eye(size, dtype=bool), 1 + weight_of_shrinkage(count) * RIDGE, matrix)
    narrowness = -2 * numpy.log(numpy.diag(factor_of(matrix))).sum()
    # Not a number where products of draws have overflowed: then nothing is shown.
    narrowness = numpy.where(narrowness > 0, narrowness, np.finfo(float).tiny)
    return size * (size - 1) / 2 / numpy.maximum(count, 1) / narrowness


def weight_of_odds(odds: Any) -> Any:
    """Return the probability of odds."""
    return 1 - 1 / (1 + odds)


def weight_of_shrinkage(count: Any) -> Any:
    """Return the weight, in an estimate from so many draws, of what the estimate is shrunk to."""
    return PSEUDO_DRAWS / (count + PSEUDO_DRAWS)


def fisher_variances(window: Moments) -> Any:
    """Return ``sd(draws) / sd(gradients)`` of each coordinate: the diagonal that minimizes the Fisher divergence.

    For a normal distribution with independent coordinates that is the variance from two draws on, even where draws come from far out.
    """
    return jax.numpy.sqrt(metric_diagonal(window.draws.m2) / window.gradients.m2)


def metric_diagonal(matrix: Any) -> Any:
    """Return the diagonal of a matrix, or a vector as it is."""
    return matrix if matrix.ndim == 1 else jax.numpy.diag(matrix)


def is_scale(x: Any) -> Any:
    """Return where `x` is positive and finite."""
    return (x > 0) & jax.numpy.isfinite(x)


def flat(tree: Any) -> Any:
    """Return the numbers of a position or gradient as one vector."""
    return ravel_pytree(tree)[0]
