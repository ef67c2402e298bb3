"""Mass matrices by a factor of their inverse, which is the factor times its transpose, and their estimates.

A momentum here is the factor's transpose times the momentum of Hamilton's equations: it is standard normal, its kinetic
energy is half its square, and the criterion of a turn multiplies momenta alone. So only a step multiplies by the
factor, twice: to move the position, and to turn the gradient into a force. That is a linear change of coordinates [1]_,
in which nutpie's trajectories move, too.

A factor is a vector (of a diagonal mass matrix), a matrix (of a dense one), or a `LowRankFactor`.

The variances and covariances of a window of the warm-up come from its draws and their gradients.

References
----------
.. [1] R. M. Neal (2011). MCMC using Hamiltonian dynamics, section 4.1.
.. [2] Stan Development Team. Stan Reference Manual, "MCMC sampling", section "HMC algorithm parameters": shrinkage.
.. [3] A. Seyboldt, E. Carlson, B. Carpenter (2026). Preconditioning Hamiltonian Monte Carlo by minimizing Fisher
   divergence: the diagonal from draws and gradients. Alone it took fewer gradients on five of ten models of
   `benchmarks/`, and more on the others.
.. [4] M. S. Bartlett (1951). The effect of standardization on a chi square approximation in factor analysis: whether
   coordinates are correlated at all.
.. [5] B. P. Welford (1962). Note on a method for calculating corrected sums of squares and products.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

#: How many draws of a window weigh as much as the number to which Stan shrinks its variance.
PSEUDO_DRAWS = 5
#: The multiple of the identity to which Stan shrinks covariance matrices; here correlation matrices.
RIDGE = 1e-3
#: A smaller gradient at the start shows no scale: nutpie's limit.
TINY_GRADIENT = 1e-10
#: By default, any window gives the correlations of this many coordinates or fewer. Correlations of more need windows
#: of `MANY_DRAWS` that show some.
FEW_COORDINATES, MANY_DRAWS = 16, 100
#: Of draws of independent coordinates, `noise_of_correlations` is 0.33 to 0.38, since draws of NUTS are not independent
#: of each other. The power makes a switch of the limit.
NOISE, NOISE_POWER = 0.25, 8


class LowRankFactor(NamedTuple):
    """A diagonal times a symmetric matrix that scales a few orthonormal directions, the columns of ``U``.

    ``sigma`` and the eigenvalues ``lam`` of the inverse mass matrix between the diagonals are vectors.
    """

    sigma: Any
    U: Any
    lam: Any


def to_velocity(factor: Any, momentum: Any) -> Any:
    """Return the factor times a momentum: how fast the position changes."""
    if isinstance(factor, LowRankFactor):
        return factor.sigma * in_directions(factor, momentum)
    return factor * momentum if factor.ndim == 1 else factor @ momentum


def to_force(factor: Any, gradient: Any) -> Any:
    """Return the transpose of the factor times a gradient of the log density: how fast the momentum changes."""
    if isinstance(factor, LowRankFactor):
        return in_directions(factor, factor.sigma * gradient)
    return factor * gradient if factor.ndim == 1 else factor.T @ gradient


def inverse_mass_diagonal(factor: Any) -> Any:
    """Return the diagonal of the inverse mass matrix."""
    if isinstance(factor, LowRankFactor):
        return factor.sigma**2 * (1 + factor.U**2 @ (factor.lam - 1))
    return factor**2 if factor.ndim == 1 else (factor**2).sum(axis=1)


def factor_of(inverse_mass: Any) -> Any:
    """Return the factor of the inverse of a mass matrix, of its diagonal or of all of it."""
    if inverse_mass.ndim == 1 or inverse_mass.size == 0:
        return jnp.sqrt(inverse_mass)
    return jax.lax.platform_dependent(inverse_mass, cpu=cholesky_by_columns, default=jax.lax.linalg.cholesky)


def cholesky_by_columns(matrix: Any) -> Any:
    """Return Cholesky's factor of a positive definite matrix, column by column.

    A call of LAPACK in a chain's program takes XLA 0.1 s more to compile, a tenth of the time to the last draw of a
    small model. A factor is needed a few times in a warm-up.
    """
    rows = np.arange(len(matrix))

    def with_column(j: Any, factor: Any) -> Any:
        rest = matrix[:, j] - factor @ factor[j]
        return factor.at[:, j].set(jnp.where(rows >= j, rest, 0) / jnp.sqrt(rest[j]))

    return jax.lax.fori_loop(0, len(matrix), with_column, jnp.zeros_like(matrix))


def in_directions(factor: LowRankFactor, x: Any) -> Any:
    """Return `x` scaled along the directions of a factor, by the roots of its eigenvalues."""
    return x + factor.U @ ((jnp.sqrt(factor.lam) - 1) * (factor.U.T @ x))


class Sums(NamedTuple):
    """The number of vectors so far, their mean, and the sum of squares or products of their deviations from it."""

    mean: Any
    m2: Any
    sample_size: Any


def add_vector(sums: Sums, x: Any) -> Sums:
    """Return the sums with one more vector [5]_."""
    count, before = sums.sample_size + 1, x - sums.mean
    mean = sums.mean + before / count
    after = x - mean
    return Sums(mean, sums.m2 + (before * after if sums.m2.ndim == 1 else jnp.outer(after, before)), count)


class Moments(NamedTuple):
    """The moments of a window: variances or covariances of its draws, and variances of its gradients."""

    draws: Sums
    gradients: Sums


def empty_moments(size: int, dense: bool) -> Moments:
    """Return the moments of no draws, for a number of coordinates; `dense` ones have covariances of the draws."""
    zero, products = jnp.zeros(size), jnp.zeros((size, size) if dense else size)
    return Moments(Sums(zero, products, 0), Sums(zero, zero, 0))


def add_state(window: Moments, state: Any) -> Moments:
    """Return the moments with one more state of NUTS."""
    return Moments(add_vector(window.draws, state.position), add_vector(window.gradients, state.logdensity_grad))


def variances_by_gradient(gradient: Any) -> Any:
    """Return ``1 / abs(gradient)``, a first guess of variances, or 1 where the gradient is near zero or not finite."""
    size = abs(gradient).astype(float)
    is_usable = jnp.isfinite(size) & (size > TINY_GRADIENT)
    return 1 / jnp.where(is_usable, size, 1)


def window_variances(window: Moments, old: Any) -> Any:
    """Return the diagonal of the inverse mass matrix after a window, from the `old` diagonal.

    It is the variance of the draws, shrunk to `fisher_variances` in logarithms. Stan shrinks to 0.001 with the
    same weight, which outweighs much smaller variances. A coordinate whose draws are all the same keeps the old value.
    """
    count = window.draws.sample_size
    variance, fisher = metric_diagonal(window.draws.m2) / jnp.maximum(count - 1, 1), fisher_variances(window)
    weight = weight_of_shrinkage(count)
    target = jnp.where(is_scale(fisher), fisher, variance)
    found = jnp.exp((1 - weight) * jnp.log(variance) + weight * jnp.log(target))
    return jnp.where(is_scale(found), found, old)


def window_covariances(window: Moments, old: Any, least_shrinkage: Any = 0.0) -> Any:
    """Return the inverse mass matrix after a window: the diagonal of `window_variances`, and Stan's correlations of the
    draws.

    The correlations are shrunk to 0, by a weight of at least `least_shrinkage`, so that the matrix is positive definite
    whatever the scales are. Few draws do not show all directions, and along some of these the draws have next to no
    variance: where a window has fewer draws than there are coordinates, 0 has most of the weight.
    """
    count, size = window.draws.sample_size, len(window.draws.m2)
    # Draws of independent coordinates have correlation matrices whose least eigenvalue is (1 - sqrt(size / count)) **
    # 2: half of 1 for a ratio of 1/12, 1/4 for 1/4, and 0 from 1 on. The power leaves strong correlations of well-known
    # matrices alone.
    few_draws = weight_of_odds((size / jnp.maximum(count, 1)) ** 4)
    shrinkage = jnp.maximum(jnp.maximum(weight_of_shrinkage(count) * RIDGE, few_draws), least_shrinkage)
    scale = jnp.sqrt(window_variances(window, old))
    correlation = jnp.where(jnp.eye(size, dtype=bool), 1, (1 - shrinkage) * correlations(window))
    return correlation * scale * scale[:, None]


def correlations(window: Moments) -> Any:
    """Return the correlations of the draws of a window.

    Products of draws may overflow where their variances do: such a pair counts as uncorrelated, since one NaN would
    stop the chain.
    """
    length = jnp.sqrt(metric_diagonal(window.draws.m2))
    length = jnp.where(is_scale(length), length, jnp.inf)
    found = window.draws.m2 / length / length[:, None]
    return jnp.where(jnp.isfinite(found), found, 0)


def weight_of_no_correlations(window: Moments, varying: Any) -> Any:
    """Return the weight of 0 in the correlations of many coordinates.

    It is 1 if the draws are too few, or show no correlations, or if these vary from place to place.
    """
    unseen = weight_of_odds((noise_of_correlations(window) / NOISE) ** NOISE_POWER)
    return jnp.where(window.draws.sample_size >= MANY_DRAWS, jnp.maximum(unseen, varying), 1)


def noise_of_correlations(window: Moments) -> Any:
    """Return the ratio of Bartlett's test statistic for independent draws without correlations to the actual one.

    It is 1 without correlations, and less with them. The statistic is the negative logarithm of the determinant of the
    correlation matrix, times the number of draws. It also shows a narrow direction of many coordinates without any
    strong correlation of two, such as the sum of the coefficients of equal predictors.
    """
    matrix, count = correlations(window), window.draws.sample_size
    size = len(matrix)
    matrix = jnp.where(jnp.eye(size, dtype=bool), 1 + weight_of_shrinkage(count) * RIDGE, matrix)
    narrowness = -2 * jnp.log(jnp.diag(factor_of(matrix))).sum()
    # Not a number where products of draws have overflowed: then nothing is shown.
    narrowness = jnp.where(narrowness > 0, narrowness, np.finfo(float).tiny)
    return size * (size - 1) / 2 / jnp.maximum(count, 1) / narrowness


def weight_of_odds(odds: Any) -> Any:
    """Return the probability of odds."""
    return 1 - 1 / (1 + odds)


def weight_of_shrinkage(count: Any) -> Any:
    """Return the weight, in an estimate from some draws, of the value to which the estimate is shrunk."""
    return PSEUDO_DRAWS / (count + PSEUDO_DRAWS)


def fisher_variances(window: Moments) -> Any:
    """Return ``sd(draws) / sd(gradients)`` of each coordinate: the diagonal that minimizes the Fisher divergence.

    For a normal distribution with independent coordinates that is the variance from two draws on, even where draws come
    from far out.
    """
    return jnp.sqrt(metric_diagonal(window.draws.m2) / window.gradients.m2)


def metric_diagonal(matrix: Any) -> Any:
    """Return the diagonal of a matrix, or a vector as it is."""
    return matrix if matrix.ndim == 1 else jnp.diag(matrix)


def is_scale(x: Any) -> Any:
    """Return where `x` is positive and finite."""
    return (x > 0) & jnp.isfinite(x)
