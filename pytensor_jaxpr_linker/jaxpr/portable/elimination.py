"""Cholesky and LU factors, and triangular and tridiagonal systems, by elimination: row by row, or column by column."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import INT32
from pytensor_jaxpr_linker.jaxpr.formula import sqrt, where
from pytensor_jaxpr_linker.jaxpr.portable.arrays import (
    Array,
    column_positions,
    for_each,
    full,
    joined_arrays,
    row_positions,
)


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


def factors_with_exchanges(a: Array) -> tuple[Array, Array, Array]:
    """Return the LU factors in one matrix, the row exchanges, and the permutation that they are.

    Each step exchanges the largest element of a column into its place and subtracts an outer product (Golub and Van Loan, Matrix Computations, 4th
    ed., algorithm 3.4.1), as LAPACK's unblocked factorization, whose pivots and errors these are. A column of zeros is left alone.
    """
    b, (*batch, m, n) = a.b, a.shape
    k = min(m, n)
    pivots = full(b, 0, (*batch, 1, k), INT32)
    order = row_positions(b, m).broadcast((*batch, m, 1))

    def step(i: Array, carry: Sequence[Array], read: Sequence[Array]) -> list[Array]:
        (a, pivots, order), (rows, columns) = carry, read
        pivot = largest_row(a.at(i, -1), rows >= i)
        a, order = (exchanged(x, i, pivot, rows) for x in (a, order))
        row, column = a.at(i, -2), a.at(i, -1)
        head = column.at(i, -2)
        scaled = where((rows > i) & (head != 0), column / where(head == 0, 1, head), column)
        scaled = where(rows > i, scaled, 0)
        a = a - scaled * where(columns > i, row, 0)
        a = a.put(i, -1, where(rows > i, scaled, column))
        return [a, pivots.put(i, -1, pivot), order]

    a, pivots, order = for_each(k, step, [a, pivots, order], [row_positions(b, m), column_positions(b, n)])
    return a, pivots.reshape(*batch, k), order.reshape(*batch, m)


def largest_row(column: Array, allowed: Array) -> Array:
    """Return the first row, among those that are allowed, where a column is largest in size; the larger of real and imaginary part if complex."""
    *batch, m, _ = column.shape
    size = abs(column.real) + abs(column.imag) if column.dtype.kind == "c" else abs(column)
    size = where(allowed, size, -1.0).reshape(*batch, m)
    return Array(column.b, prims.argmax(column.b, size.atom, len(batch), INT32)).reshape(*batch, 1, 1)


def exchanged(x: Array, i: Array, other: Array, rows: Array) -> Array:
    """Return matrices with row `i` and a row that differs from matrix to matrix exchanged."""
    is_other = rows == other
    zero = np.zeros((), x.dtype)
    taken = where(is_other, x, zero).sum(-2)
    return where(rows == i, taken, where(is_other, x.at(i, -2), x))


def permutation_of(pivots: Array, count: int) -> Array:
    """Return the permutation of `count` rows that row exchanges are."""
    b, (*batch, k) = pivots.b, pivots.shape

    def step(i: Array, carry: Sequence[Array], read: Sequence[Array]) -> list[Array]:
        (order,), (pivots, rows) = carry, read
        return [exchanged(order, i, pivots.at(i, -1), rows)]

    rows = row_positions(b, count)
    (order,) = for_each(k, step, [rows.broadcast((*batch, count, 1))], [pivots.reshape(*batch, 1, k), rows])
    return order.reshape(*batch, count)


def solve_tridiagonal(lower: Array, main: Array, upper: Array, x: Array) -> Array:
    """Return the solutions; ``lower[0]`` and ``upper[-1]`` are not part of the matrices.

    Each step exchanges two rows if that makes the pivot larger, as LAPACK's ``gtsv``, whose errors these are.
    """
    b, (*batch, n, k) = x.b, x.shape
    if not n:
        return x
    rank = len(batch)
    columns = [first_axis(z.reshape(*batch, n, 1), rank) for z in (lower, main, upper)]
    below, diagonal, above, right = (*columns, first_axis(x, rank))
    zero = full(b, 0, (*batch, 1), x.dtype)

    def eliminate(carry: Sequence[Array], row: Sequence[Array]) -> tuple[Sequence[Array], Sequence[Array]]:
        (d, u, r), (low, d2, u2, r2) = carry, row
        exchanged = abs(low) > abs(d)
        nothing = d * 0.0
        first = [where(exchanged, p, q) for p, q in zip((low, d2, u2, r2), (d, u, nothing, r), strict=True)]
        other = [where(exchanged, p, q) for p, q in zip((d, u, nothing, r), (low, d2, u2, r2), strict=True)]
        factor = other[0] / first[0]
        following = [p - factor * q for p, q in zip(other[1:], first[1:], strict=True)]
        return following, first

    rest = [z[1:] for z in map(FirstAxis, (below, diagonal, masked_last(above), right))]
    start = [FirstAxis(z).first() for z in (diagonal, above if n > 1 else above * 0.0, right)]
    last, pivots = scanned(eliminate, start, rest, n - 1)
    rows = [
        FirstAxis(z).with_last(end)
        for z, end in zip(pivots, (last[0], last[1] * 0.0, last[1] * 0.0, last[2]), strict=True)
    ]

    def substitute(carry: Sequence[Array], row: Sequence[Array]) -> tuple[Sequence[Array], Sequence[Array]]:
        (y1, y2), (p0, p1, p2, r) = carry, row
        y = (r - p1 * y1 - p2 * y2) / p0
        return [y, y1], [y]

    nothing = zero.broadcast((*batch, k))
    _, (found,) = scanned(substitute, [nothing, nothing], rows, n, reverse=True)
    return last_axis_but_one(found, rank)


class FirstAxis:
    """An array as rows along its first axis."""

    def __init__(self, x: Array):
        self.x = x

    def __getitem__(self, part: slice) -> Array:
        """Return some of the rows."""
        start, stop, _ = part.indices(self.x.shape[0])
        rest = self.x.shape[1:]
        found = prims.slice_(self.x.b, self.x.atom, [start, *[0] * len(rest)], [stop, *rest], [1] * (len(rest) + 1))
        return Array(self.x.b, found)

    def first(self) -> Array:
        """Return the first row."""
        return self[:1].reshape(*self.x.shape[1:])

    def with_last(self, row: Array) -> Array:
        """Return the rows with one more behind them."""
        return joined_arrays([self.x, row.reshape(1, *row.shape)], -len(self.x.shape))


def masked_last(x: Array) -> Array:
    """Return rows of which the last is zero."""
    n = x.shape[0]
    return FirstAxis(FirstAxis(x)[: n - 1]).with_last(FirstAxis(x).first() * 0.0) if n > 1 else x * 0.0


def scanned(
    step: Callable[[Sequence[Array], Sequence[Array]], tuple[Sequence[Array], Sequence[Array]]],
    carry: Sequence[Array],
    rows: Sequence[Array],
    count: int,
    reverse: bool = False,
) -> tuple[list[Array], list[Array]]:
    """Return the last carry, and the rows that steps return, each of which takes one row of each array."""
    b = carry[0].b
    inner = [b.aval(x.shape[1:], x.dtype) for x in rows]
    body, atoms = b.sub_jaxpr([*[x.atom.aval for x in carry], *inner])
    arrays = [Array(body, x) for x in atoms]
    new, out = step(arrays[: len(carry)], arrays[len(carry) :])
    done = body.build([x.atom for x in (*new, *out)])
    results = prims.scan(b, done, [], [x.atom for x in carry], [x.atom for x in rows], count, reverse=reverse)
    found = [Array(b, x) for x in results]
    return found[: len(carry)], found[len(carry) :]


def first_axis(x: Array, axis: int) -> Array:
    """Return an array with an axis in front."""
    order = [axis, *[i for i in range(len(x.shape)) if i != axis]]
    return Array(x.b, prims.transpose(x.b, x.atom, order))


def last_axis_but_one(x: Array, rank: int) -> Array:
    """Return an array with its first axis behind `rank` others."""
    return Array(x.b, prims.transpose(x.b, x.atom, [*range(1, rank + 1), 0, *range(rank + 1, len(x.shape))]))
