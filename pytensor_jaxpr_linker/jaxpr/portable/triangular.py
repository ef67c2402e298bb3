"""Cholesky factors and triangular systems, column by column and row by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytensor_jaxpr_linker.jaxpr.formula import sqrt, where
from pytensor_jaxpr_linker.jaxpr.portable.arrays import Array, column_positions, full, row_positions
from pytensor_jaxpr_linker.jaxpr.portable.loops import for_each


def lower_cholesky(a: Array) -> Array:
    """Return the lower Cholesky factors of the lower triangles; NaN where a matrix is not positive definite.

    Each column follows from those before it (Golub and Van Loan, Matrix Computations, 4th ed., algorithm 4.2.1). The error is that of LAPACK's
    unblocked factorization: ``L L^T`` is off by some n eps times the diagonal.
    """
    b, n = a.b, a.shape[-1]

    def column(j: Array, carry: Sequence[Array], read: Sequence[Array]) -> list[Array]:
        (factor,), (a, rows) = carry, read
        rest = a.at(j, -1) - factor @ factor.at(j, -2).mT.conj
        pivot = rest.at(j, -2).real
        root = sqrt(pivot)
        scaled = where(rows > j, rest / root.astype(a.dtype), 0)
        new = where(rows == j, where(pivot > 0, root, np.nan).astype(a.dtype), scaled)
        return [factor.put(j, -1, new)]

    (factor,) = for_each(n, column, [full(b, 0, a.shape, a.dtype)], [a, row_positions(b, n)])
    return where(is_nan_anywhere(factor), np.nan, factor)


def is_nan_anywhere(x: Array) -> Array:
    """Tell which matrices have an element that is NaN."""
    count = (x != x).astype(np.int32)
    return count.sum(-1).sum(-2) > 0 if 0 not in x.shape[-2:] else full(x.b, False, (1, 1), np.dtype(bool))


def substituted_left(a: Array, x: Array, lower: bool, unit_diagonal: bool) -> Array:
    """Return the solutions y of ``a y = x`` by substitution, row by row; only one triangle of `a` is read."""
    if not lower:  # the same equations from the last to the first
        return substituted_left(a.flip(-2, -1), x.flip(-2), True, unit_diagonal).flip(-2)
    b, n = a.b, a.shape[-1]
    strict = where(row_positions(b, n) > column_positions(b, n), a, 0)

    def row(i: Array, carry: Sequence[Array], read: Sequence[Array]) -> list[Array]:
        (y,), (strict, a, x) = carry, read
        rest = x.at(i, -2) - strict.at(i, -2) @ y
        return [y.put(i, -2, rest if unit_diagonal else rest / a.at(i, -2).at(i, -1))]

    (y,) = for_each(n, row, [full(b, 0, x.shape, x.dtype)], [strict, a, x])
    return y


def substituted(
    a: Array, x: Array, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool, unit_diagonal: bool
) -> Array:
    """Return the solutions y of ``a y = x``, or ``y a = x``, for triangular matrices or their transposes."""
    if conjugate_a:
        a = a.conj
    if not left_side:
        a, lower = (a, lower) if transpose_a else (a.mT, not lower)
        return substituted_left(a, x.mT, lower, unit_diagonal).mT
    a, lower = (a.mT, not lower) if transpose_a else (a, lower)
    return substituted_left(a, x, lower, unit_diagonal)
