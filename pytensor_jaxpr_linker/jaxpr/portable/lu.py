"""LU factors with row exchanges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import INT32
from pytensor_jaxpr_linker.jaxpr.formula import where
from pytensor_jaxpr_linker.jaxpr.portable.arrays import Array, column_positions, full, row_positions
from pytensor_jaxpr_linker.jaxpr.portable.loops import for_each


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
