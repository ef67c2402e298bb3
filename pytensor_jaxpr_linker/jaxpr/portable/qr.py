"""QR factors by Householder reflections, with the signs of LAPACK."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import INT32
from pytensor_jaxpr_linker.jaxpr.formula import sqrt, where
from pytensor_jaxpr_linker.jaxpr.portable.arrays import Array, column_positions, full, identity_like, row_positions
from pytensor_jaxpr_linker.jaxpr.portable.loops import for_each


def reflections(a: Array, free: Array | None = None) -> tuple[Array, Array, Array]:
    """Return R above the vectors of the reflections, their factors, and the positions of the columns.

    Each step reflects a column onto its first element (Golub and Van Loan, Matrix Computations, 4th ed., algorithm 5.2.1), with the signs of LAPACK's
    ``geqr2``. The norm of a column is computed of numbers divided by the largest, so nothing overflows. With `free`, of shape (..., 1, n) and true
    where a column may move, each step takes the column of the largest norm; norms are computed anew, not downdated.
    """
    b, (*batch, m, n) = a.b, a.shape
    k = min(m, n)
    taus = full(b, 0, (*batch, 1, k), a.dtype)
    order = column_positions(b, n).broadcast((*batch, 1, n))
    is_free = full(b, False, (1, n), np.dtype(bool)) if free is None else free
    is_free = is_free.broadcast((*batch, 1, n))

    def step(i: Array, carry: Sequence[Array], read: Sequence[Array]) -> list[Array]:
        (a, taus, order, is_free), (rows, columns) = carry, read
        if free is not None:
            a, order, is_free = with_next_column(a, order, is_free, i, rows, columns)
        column = a.at(i, -1)
        head, tail = column.at(i, -2), where(rows > i, column, 0)
        v, tau, beta = reflector(head, tail)
        whole = where(rows > i, v, where(rows == i, a.like(1), 0))
        reflected = a - whole * (tau.conj * (whole.mT.conj @ where(columns > i, a, 0)))
        kept = where(rows > i, v, where(rows == i, beta, column))
        return [reflected.put(i, -1, kept), taus.put(i, -1, tau), order, is_free]

    read = [row_positions(b, m), column_positions(b, n)]
    a, taus, order, _ = for_each(k, step, [a, taus, order, is_free], read)
    return a, taus.reshape(*batch, k), order.reshape(*batch, n)


def reflector(head: Array, tail: Array) -> tuple[Array, Array, Array]:
    """Return the vector of a reflection below its first element (which is 1), its factor, and what becomes of the first element."""
    size, largest = larger_size(head), larger_size(tail).max(-2)
    scale = where(size > largest, size, largest)
    scale = where(scale > 0, scale, 1)
    scaled = [squares(x / scale.astype(x.dtype)) for x in (head, tail)]
    norm = scale * sqrt(scaled[0] + scaled[1].sum(-2))
    is_null = largest == 0
    if head.dtype.kind == "c":
        is_null = is_null & (head.imag == 0)
    beta = where(is_null, head.real, where(head.real >= 0, -norm, norm)).astype(head.dtype)
    tau = where(is_null, 0, (beta - head) / where(is_null, 1, beta))
    return where(is_null, 0, tail / where(is_null, 1, head - beta)), tau, beta


def larger_size(x: Array) -> Array:
    """Return the size of numbers, of complex ones the larger of both parts."""
    if x.dtype.kind != "c":
        return abs(x)
    return where(abs(x.real) > abs(x.imag), abs(x.real), abs(x.imag))


def squares(x: Array) -> Array:
    """Return the squares of the sizes."""
    return x.real * x.real + x.imag * x.imag if x.dtype.kind == "c" else x * x


def with_next_column(
    a: Array, order: Array, is_free: Array, i: Array, rows: Array, columns: Array
) -> tuple[Array, Array, Array]:
    """Return matrices with the column that comes next at position `i`: a fixed one, or that of the largest norm."""
    *batch, n = a.shape[:-2] + a.shape[-1:]
    below = where(rows >= i, a, 0)
    largest = larger_size(below).max(-2).max(-1)
    norms = squares(below / where(largest > 0, largest, 1).astype(a.dtype)).sum(-2)
    fixed_first = where(is_free, norms, np.inf)
    ranked = where(columns >= i, fixed_first, -1.0).reshape(*batch, n)
    best = Array(a.b, prims.argmax(a.b, ranked.atom, len(batch), INT32)).reshape(*batch, 1, 1)
    moved = [exchanged_columns(x, i, best, columns) for x in (a, order, is_free.astype(INT32))]
    return moved[0], moved[1], moved[2] != 0


def exchanged_columns(x: Array, i: Array, other: Array, columns: Array) -> Array:
    """Return matrices with column `i` and a column that differs from matrix to matrix exchanged."""
    is_other = columns == other
    taken = where(is_other, x, 0).sum(-1)
    return where(columns == i, taken, where(is_other, x.at(i, -1), x))


def product_of_reflections(a: Array, taus: Array, columns: int | None = None) -> Array:
    """Return the first columns, by default as many as `a` has, of the product of reflections whose vectors `a` has below the diagonal."""
    b, (*batch, m, n) = a.b, a.shape
    k = taus.shape[-1]
    start = identity_like(a, m, n if columns is None else columns)

    def step(i: Array, carry: Sequence[Array], read: Sequence[Array]) -> list[Array]:
        (q,), (a, taus, rows) = carry, read
        i = i.like(k - 1) - i
        v = where(rows > i, a.at(i, -1), where(rows == i, a.like(1), 0))
        return [q - v * (taus.at(i, -1) * (v.mT.conj @ q))]

    (q,) = for_each(k, step, [start], [a, taus.reshape(*batch, 1, k), row_positions(b, m)])
    return q


def qr_factors(a: Array, full_matrices: bool, pivoting: bool = False) -> list[Array]:
    """Return Q and R, and with `pivoting` the positions of the columns."""
    b, (*batch, m, n) = a.b, a.shape
    k = m if full_matrices else min(m, n)
    free = full(b, True, (*batch, 1, n), np.dtype(bool)) if pivoting else None
    packed, taus, order = reflections(a, free)
    upper = where(row_positions(b, m) <= column_positions(b, n), packed, 0)
    return [product_of_reflections(packed, taus, k), upper[..., :k, :], *([order] if pivoting else [])]
