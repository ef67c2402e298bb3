"""Cholesky and LU factors, and triangular and tridiagonal systems, by elimination: row by row, or column by column."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import INT32
from pytensor_jaxpr_linker.jaxpr.formula import sqrt, where
from pytensor_jaxpr_linker.jaxpr.nested import row_range
from pytensor_jaxpr_linker.jaxpr.portable.arrays import Array, for_each, full, joined_arrays, row_positions


def lower_cholesky(a: Array) -> Array:
    """Return the lower Cholesky factors of the lower triangles; NaN where a matrix is not positive definite.

    Each column follows from the columns before it (Golub and Van Loan, Matrix Computations, 4th ed., algorithm 4.2.1).
    The error equals the error of LAPACK's unblocked factorization: ``L L^T`` is off by some n eps times the diagonal.
    """
    b, n = a.b, a.shape[-1]

    def column(j: Array, factor: Array, a: Array, rows: Array) -> list[Array]:
        rest = a.at(j, -1) - factor @ factor.at(j, -2).mT.conj
        pivot = rest.at(j, -2).real
        root = sqrt(pivot)
        scaled = where(rows > j, rest / root.astype(a.dtype), 0)
        new = where(rows == j, where(pivot > 0, root, np.nan).astype(a.dtype), scaled)
        return [factor.put(j, -1, new)]

    (factor,) = for_each(n, column, [full(b, 0, a.shape, a.dtype)], [a, a.positions()[0]])
    return where(factor.has_nan(), np.nan, factor)


def substituted_left(a: Array, x: Array, lower: bool, unit_diagonal: bool) -> Array:
    """Return the solutions y of ``a y = x`` by substitution, row by row; only one triangle of `a` is read."""
    if not lower:  # the same equations from the last to the first
        return substituted_left(a.flip(-2, -1), x.flip(-2), True, unit_diagonal).flip(-2)
    b, n = a.b, a.shape[-1]
    rows, columns = a.positions()
    strict = where(rows > columns, a, 0)

    def row(i: Array, y: Array, strict: Array, a: Array, x: Array) -> list[Array]:
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
    """Return the LU factors in one matrix, the row exchanges, and the permutation that these make.

    Each step exchanges the largest element of a column into its place and subtracts an outer product (Golub and Van
    Loan, Matrix Computations, 4th ed., algorithm 3.4.1). Pivots and errors equal those of LAPACK's unblocked
    factorization. A column of zeros is left alone.
    """
    b, (*batch, m, n) = a.b, a.shape
    k, (rows, columns) = min(m, n), a.positions()
    pivots = full(b, 0, (*batch, 1, k), INT32)
    order = rows.broadcast((*batch, m, 1))

    def step(i: Array, a: Array, pivots: Array, order: Array, rows: Array, columns: Array) -> list[Array]:
        # LAPACK's size of complex numbers, too
        pivot = first_largest(where(rows >= i, a.at(i, -1).one_norm(), -1.0).reshape(*batch, m))
        a, order = (exchanged(x, i, pivot, rows, -2) for x in (a, order))
        row, column = a.at(i, -2), a.at(i, -1)
        head = column.at(i, -2)
        scaled = where((rows > i) & (head != 0), column / where(head == 0, 1, head), column)
        scaled = where(rows > i, scaled, 0)
        a = a - scaled * where(columns > i, row, 0)
        a = a.put(i, -1, where(rows > i, scaled, column))
        return [a, pivots.put(i, -1, pivot), order]

    a, pivots, order = for_each(k, step, [a, pivots, order], [rows, columns])
    return a, pivots.reshape(*batch, k), order.reshape(*batch, m)


def first_largest(x: Array) -> Array:
    """Return the first position where the last axis has its largest element, of shape (..., 1, 1)."""
    return Array(x.b, prims.argmax(x.b, x.atom, len(x.shape) - 1, INT32)).reshape(*x.shape[:-1], 1, 1)


def exchanged(x: Array, i: Array, other: Array, positions: Array, axis: int) -> Array:
    """Return matrices with rows (`axis` -2) or columns (-1) exchanged: number `i`, and one that each matrix chooses."""
    is_other = positions == other
    taken = where(is_other, x, 0).sum(axis)
    return where(positions == i, taken, where(is_other, x.at(i, axis), x))


def permutation_of(pivots: Array, count: int) -> Array:
    """Return the permutation of `count` rows that row exchanges make."""
    b, (*batch, k) = pivots.b, pivots.shape

    def step(i: Array, order: Array, pivots: Array, rows: Array) -> list[Array]:
        return [exchanged(order, i, pivots.at(i, -1), rows, -2)]

    rows = row_positions(b, count)
    (order,) = for_each(k, step, [rows.broadcast((*batch, count, 1))], [pivots.reshape(*batch, 1, k), rows])
    return order.reshape(*batch, count)


def solve_tridiagonal(lower: Array, main: Array, upper: Array, x: Array) -> Array:
    """Return the solutions; ``lower[0]`` and ``upper[-1]`` are not part of the matrices.

    Each step exchanges two rows if that makes the pivot larger, as LAPACK's ``gtsv``, whose errors these are.
    """
    b, (*batch, n, k), rank = x.b, x.shape, len(x.shape) - 2
    if not n:
        return x
    columns = [*(z.reshape(*batch, n, 1) for z in (lower, main, upper)), x]
    below, diagonal, above, right = (z.transpose([rank, *range(rank), rank + 1]) for z in columns)

    def part(z: Array, start: int, stop: int) -> Array:
        return Array(b, row_range(b, z.atom, start, stop))

    def with_row(z: Array, row: Array) -> Array:
        return joined_arrays([z, row.reshape(1, *row.shape)], -len(z.shape))

    def eliminate(d: Array, u: Array, r: Array, *row: Array) -> tuple[Sequence[Array], Sequence[Array]]:
        is_exchanged = abs(row[0]) > abs(d)
        pairs = [*zip(row, (d, u, d * 0.0, r), strict=True)]
        first = [where(is_exchanged, p, q) for p, q in pairs]
        other = [where(is_exchanged, q, p) for p, q in pairs]
        factor = other[0] / first[0]
        return [p - factor * q for p, q in zip(other[1:], first[1:], strict=True)], first

    start = [part(z, 0, 1).reshape(*z.shape[1:]) for z in (diagonal, above, right)]
    nothing = start[1] * 0.0
    if n > 1:
        above = with_row(part(above, 0, n - 1), nothing)
    else:
        start[1] = nothing
    last, pivots = scanned(eliminate, start, [part(z, 1, n) for z in (below, diagonal, above, right)], n - 1)
    ends = (last[0], last[1] * 0.0, last[1] * 0.0, last[2])
    rows = [with_row(z, end) for z, end in zip(pivots, ends, strict=True)]

    def substitute(y1: Array, y2: Array, *row: Array) -> tuple[Sequence[Array], Sequence[Array]]:
        p0, p1, p2, r = row
        y = (r - p1 * y1 - p2 * y2) / p0
        return [y, y1], [y]

    zeros = full(b, 0, (*batch, k), x.dtype)
    _, (found,) = scanned(substitute, [zeros, zeros], rows, n, reverse=True)
    return found.transpose([*range(1, rank + 1), 0, rank + 1])


def scanned(
    step: Callable[..., tuple[Sequence[Array], Sequence[Array]]],
    carry: Sequence[Array],
    rows: Sequence[Array],
    count: int,
    reverse: bool = False,
) -> tuple[list[Array], list[Array]]:
    """Return the last carry, and all rows of the steps. A step takes the carry and one row of each array."""
    b = carry[0].b
    inner = [b.aval(x.shape[1:], x.dtype) for x in rows]
    body, atoms = b.sub_jaxpr([*[x.atom.aval for x in carry], *inner])
    new, out = step(*[Array(body, x) for x in atoms])
    done = body.build([x.atom for x in (*new, *out)])
    results = prims.scan(b, done, [], [x.atom for x in carry], [x.atom for x in rows], count, reverse=reverse)
    found = [Array(b, x) for x in results]
    return found[: len(carry)], found[len(carry) :]
