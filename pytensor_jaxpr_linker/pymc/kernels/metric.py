"""Mass matrices by a factor of their inverse, which is the factor times its transpose.

A momentum here is the factor's transpose times that of Hamilton's equations: it is standard normal, its kinetic energy is half its square, and the criterion of a turn
multiplies momenta alone. So only a step multiplies by the factor, twice: to move the position, and to turn the gradient into a force. That is a
linear change of coordinates [1]_, in which nutpie's trajectories move, too.

A factor is a vector (of a diagonal mass matrix), a matrix (of a dense one), or BlackJAX's ``LowRankInverseMassMatrix``.

References
----------
.. [1] R. M. Neal (2011). MCMC using Hamiltonian dynamics, section 4.1.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from blackjax.mcmc.metrics import LowRankInverseMassMatrix


def to_velocity(factor: Any, momentum: Any) -> Any:
    """Return the factor times a momentum: how fast the position changes."""
    if isinstance(factor, LowRankInverseMassMatrix):
        return factor.sigma * in_directions(factor, momentum)
    return factor * momentum if factor.ndim == 1 else factor @ momentum


def to_force(factor: Any, gradient: Any) -> Any:
    """Return the transpose of the factor times a gradient of the log density: how fast the momentum changes."""
    if isinstance(factor, LowRankInverseMassMatrix):
        return in_directions(factor, factor.sigma * gradient)
    return factor * gradient if factor.ndim == 1 else factor.T @ gradient


def inverse_mass_diagonal(factor: Any) -> Any:
    """Return the diagonal of the inverse mass matrix."""
    if isinstance(factor, LowRankInverseMassMatrix):
        return factor.sigma**2 * (1 + factor.U**2 @ (factor.lam - 1))
    return factor**2 if factor.ndim == 1 else (factor**2).sum(axis=1)


def factor_of(inverse_mass: Any) -> Any:
    """Return the factor of the inverse of a mass matrix, of its diagonal or of all of it."""
    if inverse_mass.ndim == 1 or inverse_mass.size == 0:
        return jax.numpy.sqrt(inverse_mass)
    return jax.lax.platform_dependent(inverse_mass, cpu=cholesky_by_columns, default=jax.lax.linalg.cholesky)


def cholesky_by_columns(matrix: Any) -> Any:
    """Return Cholesky's factor of a positive definite matrix, column by column.

    A call of LAPACK in a chain's program takes XLA 0.1 s more to compile, a tenth of the time to the last draw of a small model. A factor is needed a few times in a warm-up.
    """
    rows = np.arange(len(matrix))

    def with_column(j: Any, factor: Any) -> Any:
        rest = matrix[:, j] - factor @ factor[j]
        return factor.at[:, j].set(jax.numpy.where(rows >= j, rest, 0) / jax.numpy.sqrt(rest[j]))

    return jax.lax.fori_loop(0, len(matrix), with_column, jax.numpy.zeros_like(matrix))


def in_directions(factor: LowRankInverseMassMatrix, x: Any) -> Any:
    """Return `x` scaled along the directions of a factor, by the roots of its eigenvalues."""
    return x + factor.U @ ((jax.numpy.sqrt(factor.lam) - 1) * (factor.U.T @ x))
