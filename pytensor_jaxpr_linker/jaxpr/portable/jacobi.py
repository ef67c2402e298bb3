"""Jacobi's method: eigenvalues of Hermitian matrices, and singular values, by rotations of half of all pairs of rows at a time.

The order of the pairs is the round-robin tournament of Brent and Luk (The solution of singular-value and symmetric eigenvalue problems on
multiprocessor arrays, SIAM J. Sci. Stat. Comput. 6, 1985): the rotations of one round are independent, so each round is a few operations on whole
arrays. After ``n - 1`` rounds, a sweep, each pair has met once and the rows are in their first order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.formula import sqrt, where
from pytensor_jaxpr_linker.jaxpr.portable.arrays import (
    Array,
    column_positions,
    eps_of,
    full,
    identity_like,
    joined_arrays,
    row_positions,
    tiny_of,
)
from pytensor_jaxpr_linker.jaxpr.portable.loops import for_each, repeat_while
from pytensor_jaxpr_linker.jaxpr.portable.qr import larger_size, qr_factors, squares
from pytensor_jaxpr_linker.jaxpr.portable.triangular import is_nan_anywhere

#: Convergence is quadratic: 6 to 10 sweeps are usual.
MOST_SWEEPS = 40


def eigh_factors(a: Array, lower: bool) -> tuple[Array, Array]:
    """Return eigenvectors and ascending eigenvalues of Hermitian matrices, of which one triangle is read.

    Two-sided rotations (Golub and Van Loan, Matrix Computations, 4th ed., section 8.5), until what is beside the diagonal is less than eps times the
    norm. Eigenvalues are off by some n eps times the largest; eigenvectors are orthonormal to as much.
    """
    n = a.shape[-1]
    a = from_triangle(a, lower)
    if n == 0:
        return a, diagonal_of(a).real.reshape(*a.shape[:-1])
    scale = larger_size(a).max(-1).max(-2)
    scale = where(scale > 0, scale, 1)
    failed = is_nan_anywhere(a / scale.astype(a.dtype))
    rows = joined_arrays([even(a / scale.astype(a.dtype)), even(identity_like(a, n, n))], -1)
    size = rows.shape[-2]

    def sweep(_: Array, carry: Sequence[Array], read: Sequence[Array]) -> list[Array]:
        (rows,) = for_each(size - 1, two_sided_round, carry)
        return [is_off_diagonal(rows[..., :size]), rows]

    (rows,) = repeat_while(is_off_diagonal(rows[..., :size]), MOST_SWEEPS, sweep, [rows])
    values = diagonal_of(rows[..., :n, :n]).real
    values, vectors = sorted_rows(values * scale, rows[..., :n, size : size + n], descending=False)
    nan = np.nan
    return where(failed, nan, vectors.mT.conj), where(failed, nan, values).reshape(*a.shape[:-1])


def from_triangle(a: Array, lower: bool) -> Array:
    """Return the Hermitian matrices of which one triangle is given."""
    n = a.shape[-1]
    rows, columns = row_positions(a.b, n), column_positions(a.b, n)
    strict = where(rows > columns if lower else rows < columns, a, 0)
    return strict + strict.mT.conj + where(rows == columns, a.real.astype(a.dtype), 0)


def even(x: Array) -> Array:
    """Return matrices with a row and a column of zeros more if their number is odd: no rotation touches these."""
    *batch, n, m = x.shape
    if n % 2 == 0:
        return x
    x = joined_arrays([x, full(x.b, 0, (*batch, 1, m), x.dtype)], -2)
    return joined_arrays([x, full(x.b, 0, (*batch, n + 1, 1), x.dtype)], -1)


def diagonal_of(x: Array) -> Array:
    """Return diagonals as columns."""
    m, n = x.shape[-2:]
    return where(row_positions(x.b, m) == column_positions(x.b, n), x, 0).sum(-1)


def is_off_diagonal(a: Array) -> Array:
    """Return whether any matrix has more than rounding errors beside its diagonal."""
    n = a.shape[-1]
    off = where(row_positions(a.b, n) == column_positions(a.b, n), 0, squares(a)).sum(-1).sum(-2)
    total = squares(a).sum(-1).sum(-2)
    return anywhere(off > total * eps_of(a.dtype) ** 2)


def anywhere(x: Array) -> Array:
    """Return whether any element is true."""
    return Array(x.b, prims.reduce_or(x.b, x.atom, range(len(x.shape))))


def rotation(p: Array, q: Array, between: Array, enough: Array) -> tuple[Array, Array, Array, Array]:
    """Return cosines, sines, tangents and phases of the rotations that make ``[[p, between], [conj(between), q]]`` diagonal, where `enough`."""
    size = abs(between)
    safe = where(enough, size, 1)
    phase = where(enough, between.conj / safe.astype(between.dtype), 1)
    tau = (q - p) / (2.0 * safe)
    tangent = where(tau >= 0, 1.0, tau.like(-1.0)) / (abs(tau) + sqrt(1.0 + tau * tau))
    tangent = where(enough, tangent, 0)
    cosine = 1.0 / sqrt(1.0 + tangent * tangent)
    return cosine, tangent * cosine, tangent, phase


def two_sided_round(_: Array, carry: Sequence[Array], read: Sequence[Array]) -> list[Array]:
    """Make the elements between row i and row ``i + n / 2`` zero, for all i, and pair the rows anew. The rows go on beyond the matrix."""
    (x,) = carry
    n = x.shape[-2]
    h = n // 2
    p, q = (diagonal_of(x[..., k : k + h, k : k + h]).real for k in (0, h))
    between = diagonal_of(x[..., :h, h:n])
    cosine, sine, tangent, phase = rotation(p, q, between, abs(between) > tiny_of(x.dtype))
    size, dtype = abs(between), x.dtype
    x = rotated_rows(x, cosine.astype(dtype), sine.astype(dtype), phase.conj)
    columns = rotated_rows(x[..., :n].mT, cosine.astype(dtype), sine.astype(dtype), phase).mT
    top, bottom = (p - tangent * size).astype(dtype), (q + tangent * size).astype(dtype)
    columns = with_diagonals(columns, top, bottom)
    paired = paired_anew(paired_anew(columns).mT).mT
    return [joined_arrays([paired, paired_anew(x[..., n:])], -1)]


def rotated_rows(x: Array, cosine: Array, sine: Array, phase: Array) -> Array:
    """Return rows i and ``i + n / 2`` rotated, after the phases of the latter."""
    h = x.shape[-2] // 2
    top, bottom = x[..., :h, :], x[..., h:, :] * phase
    return joined_arrays([top * cosine - bottom * sine, top * sine + bottom * cosine], -2)


def with_diagonals(x: Array, top: Array, bottom: Array) -> Array:
    """Return matrices with the diagonal of the first and of the second half written, and with zeros between row i and row ``i + n / 2``."""
    n = x.shape[-1]
    rows, columns = row_positions(x.b, n), column_positions(x.b, n)
    is_between = (rows - columns == n // 2) | (columns - rows == n // 2)
    return where(rows == columns, joined_arrays([top, bottom], -2), where(is_between, 0, x))


def paired_anew(x: Array) -> Array:
    """Return the rows in the order of the next round: the first stays, the others move on by one place around both halves."""
    h = x.shape[-2] // 2
    parts = [(0, 1), (h, h + 1), (1, h - 1), (h + 1, 2 * h), (h - 1, h)] if h > 1 else [(0, 2)]
    return joined_arrays([x[..., i:j, :] for i, j in parts if i < j], -2)


def sorted_rows(values: Array, rows: Array, descending: bool) -> tuple[Array, Array]:
    """Return numbers, one for each row, in order, and the rows in the same order."""
    n = rows.shape[-2]
    keys = -values if descending else values
    others = keys.mT
    first = row_positions(rows.b, n) > column_positions(rows.b, n)
    rank = ((keys > others) | ((keys == others) & first)).astype(np.int32).sum(-1)
    order = (rank.mT == row_positions(rows.b, n)).astype(rows.dtype)
    return (order.real @ values), order @ rows


def svd_factors(a: Array, full_matrices: bool, compute_uv: bool) -> list[Array]:
    """Return the singular values, and with `compute_uv` the matrices on their left and right.

    One-sided rotations (Golub and Van Loan, section 8.6.3) make the rows of R, of a QR factorization, orthogonal. Where a singular value is
    less than n eps times the largest, QR factors complete the left vectors, so they are orthonormal whatever the rank is. Singular values are
    off by some n eps times the largest.
    """
    m, n = a.shape[-2:]
    if m < n:
        found = svd_factors(a.mT.conj, full_matrices, compute_uv)
        return [found[0], found[2].mT.conj, found[1].mT.conj] if compute_uv else found
    if n == 0:
        left = identity_like(a, m, m if full_matrices else 0)
        values = full(a.b, 0, (*a.shape[:-2], 0), a.real.dtype)
        return [values, left, identity_like(a, 0, 0)] if compute_uv else [values]
    scale = larger_size(a).max(-1).max(-2)
    scale = where(scale > 0, scale, 1)
    a = a / scale.astype(a.dtype)
    failed = is_nan_anywhere(a)
    q, r = qr_factors(a, full_matrices and compute_uv)
    values, x, w = orthogonal_rows(r[..., :n, :].mT, compute_uv)
    found = [where(failed, np.nan, values * scale).reshape(*a.shape[:-2], n)]
    if not compute_uv:
        return found
    left = completed(x, values)
    q = joined_arrays([q[..., :n] @ left, q[..., n:]], -1)
    return [*found, where(failed, np.nan, q), where(failed, np.nan, w.conj)]


def orthogonal_rows(x: Array, compute_vectors: bool) -> tuple[Array, Array, Array]:
    """Return the norms of the rows of ``w @ x``, descending, these rows, and w, which is unitary and makes them orthogonal."""
    n = x.shape[-1]
    parts = [even(x), even(identity_like(x, n, n))] if compute_vectors else [even(x)]
    rows = joined_arrays(parts, -1)
    size, rounds = parts[0].shape[-1], rows.shape[-2] - 1

    def one_round(_: Array, carry: Sequence[Array], read: Sequence[Array]) -> list[Array]:
        going, x = carry
        h = x.shape[-2] // 2
        top, bottom = x[..., :h, :size], x[..., h:, :size]
        p, q = squares(top).sum(-1), squares(bottom).sum(-1)
        between = (top.conj * bottom).sum(-1)
        least = sqrt(p) * sqrt(q) * (n * eps_of(x.dtype))
        enough = (abs(between) > least) & (abs(between) > tiny_of(x.dtype))
        cosine, sine, _, phase = rotation(p, q, between, enough)
        x = rotated_rows(x, cosine.astype(x.dtype), sine.astype(x.dtype), phase)
        return [going | anywhere(enough), paired_anew(x)]

    def sweep(_: Array, carry: Sequence[Array], read: Sequence[Array]) -> list[Array]:
        return for_each(rounds, one_round, [full(carry[0].b, False, (), np.dtype(bool)), *carry])

    true = full(x.b, True, (), np.dtype(bool))
    (rows,) = repeat_while(true, MOST_SWEEPS, sweep, [rows])
    rows = rows[..., :n, :]
    values, rows = sorted_rows(sqrt(squares(rows[..., :size]).sum(-1)), rows, descending=True)
    return values, rows[..., :n], rows[..., size : size + n] if compute_vectors else rows


def completed(x: Array, values: Array) -> Array:
    """Return unitary matrices whose columns are the rows of `x`, divided by their norms, as far as these are no rounding errors."""
    n = x.shape[-1]
    matters = values > values.max(-2) * (n * eps_of(x.dtype))
    safe = where(matters, values, 1).astype(x.dtype)
    columns = where(matters, x / safe, 0).mT
    q, r = qr_factors(columns, full_matrices=False)
    signs = where(matters, diagonal_of(r), 1).mT
    return q * signs
