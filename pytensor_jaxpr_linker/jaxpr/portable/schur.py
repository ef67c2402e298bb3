"""Schur forms: Francis's QR iteration with double shifts, of all matrices of a batch at once.

The steps are those of Golub and Van Loan (Matrix Computations, 4th ed., algorithms 7.4.2, 7.5.1 and 7.5.2). One algorithm serves real and complex
matrices: the reflections of real ones are real. Each sweep goes over all rows; where a matrix has nothing to do there, its reflection is the identity.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytensor_jaxpr_linker.jaxpr.builder import INT32
from pytensor_jaxpr_linker.jaxpr.formula import maximum, sqrt, where
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
from pytensor_jaxpr_linker.jaxpr.portable.jacobi import anywhere, diagonal_of
from pytensor_jaxpr_linker.jaxpr.portable.loops import for_each, repeat_while
from pytensor_jaxpr_linker.jaxpr.portable.qr import larger_size, reflector
from pytensor_jaxpr_linker.jaxpr.portable.standard_blocks import with_standard_blocks

#: As LAPACK: 30 sweeps for each eigenvalue, where 2 or 3 are usual, and another shift after 10 that found none.
MOST_SWEEPS_EACH, PATIENCE = 30, 10


def schur_factors(a: Array) -> tuple[Array, Array]:
    """Return triangular T and unitary Z with ``a = Z T Z^H``.

    T of real matrices has a block of two rows for each pair of complex eigenvalues: equal numbers on its diagonal, and beside it two of opposite
    signs, as LAPACK standardizes them. ``a - Z T Z^H`` and ``Z^H Z - I`` are off by some n eps, times the norm of `a`: the transformations are
    reflections and rotations, and what is set to zero is less than eps times its neighbours. Both are NaN where the iteration does not converge.
    """
    n = a.shape[-1]
    if n < 2:
        return a, identity_like(a, n, n)
    largest = larger_size(a).max(-1).max(-2)
    root = float(np.sqrt(tiny_of(a.dtype)))
    is_extreme = (largest > 0) & ((largest < root / eps_of(a.dtype)) | (largest > eps_of(a.dtype) / root))
    scale = where(is_extreme, largest, 1).astype(a.dtype)
    h, z = hessenberg_form(a / scale)
    h, z, failed = quasi_triangular(h, z)
    t, z = with_standard_blocks(h, z)
    return where(failed, np.nan, t * scale), where(failed, np.nan, z)


def hessenberg_form(a: Array) -> tuple[Array, Array]:
    """Return H, zero below its first subdiagonal, and unitary Z with ``a = Z H Z^H``."""
    b, n = a.b, a.shape[-1]

    def step(k: Array, carry: Sequence[Array], read: Sequence[Array]) -> list[Array]:
        (h, z), (rows,) = carry, read
        column = h.at(k, -1)
        v, tau, beta = reflector(column.at(k + 1, -2), where(rows > k + 1, column, 0))
        whole = where(rows == k + 1, v.like(1), v)
        h = h - whole * (tau.conj * (whole.conj * h).sum(-2))
        h = h.put(k, -1, where(rows > k + 1, 0, where(rows == k + 1, beta, column)))
        h, z = (x - (x * whole.mT).sum(-1) * (tau * whole.mT.conj) for x in (h, z))
        return [h, z]

    h, z = for_each(max(n - 2, 0), step, [a, identity_like(a, n, n)], [row_positions(b, n)])
    return h, z


def quasi_triangular(h: Array, z: Array) -> tuple[Array, Array, Array]:
    """Return H with blocks of at most two rows on its diagonal, Z times all that was done to it, and whether matrices did not converge."""
    n = h.shape[-1]
    # A row and a column of zeros, so that there are always three rows to reflect.
    h = joined_arrays([joined_arrays([h, h[..., :1] * 0.0], -1), full(h.b, 0, (*h.shape[:-2], 1, n + 1), h.dtype)], -2)
    z = joined_arrays([z, z[..., :1] * 0.0], -1)
    h, first, last = deflated(h)
    count = full(h.b, 0, last.shape, INT32)

    def sweep(_: Array, carry: Sequence[Array], read: Sequence[Array]) -> list[Array]:
        stack, first, last, count = carry
        start = first_column(stack[..., : n + 1, :], first, last, count)
        (stack,) = for_each(n - 1, chase, [stack], [start, first, last])
        h, first, following = deflated(stack[..., : n + 1, :])
        stack = joined_arrays([h, stack[..., n + 1 :, :]], -2)
        count = where(following == last, where(count == PATIENCE, 1, count + 1), 0)
        return [anywhere(following >= 0), stack, first, following, count]

    stack, limit = joined_arrays([h, z], -2), MOST_SWEEPS_EACH * max(n, 10)
    stack, _, last, _ = repeat_while(anywhere(last >= 0), limit, sweep, [stack, first, last, count])
    return stack[..., :n, :n], stack[..., n + 1 :, :n], last >= 0


def deflated(h: Array) -> tuple[Array, Array, Array]:
    """Return H with zeros for what is negligible below its diagonal, and the first and last row of its last block of more than two rows.

    The last row is -1 if there is no such block.
    """
    b, n = h.b, h.shape[-1]
    rows, columns = row_positions(b, n), column_positions(b, n)
    is_below = rows == columns + 1
    size = one_norm(h)
    diagonal = diagonal_of(size)
    near = diagonal + where(is_below, diagonal.mT, 0).sum(-1)
    near = where(near == 0, size.max(-1).max(-2), near)
    least = maximum(near * eps_of(h.dtype), near.like(n * tiny_of(h.dtype) / eps_of(h.dtype)))
    below = where(is_below, size, 0).sum(-1)
    h = where(is_below & (below <= least), 0, h)
    follows = (below > least).astype(INT32)
    is_third = (follows + where(is_below, follows.mT, 0).sum(-1)) == 2
    last = where(is_third, rows, -1).max(-2)
    first = where((rows <= last) & (follows == 0), rows, 0).max(-2)
    return h, first, last


def one_norm(x: Array) -> Array:
    """Return the size of numbers, of complex ones the sum of those of both parts."""
    return abs(x.real) + abs(x.imag) if x.dtype.kind == "c" else abs(x)


def first_column(h: Array, first: Array, last: Array, count: Array) -> Array:
    """Return a multiple of the first column of ``(H - s1)(H - s2)``, of a block of H whose last two rows have the eigenvalues s1 and s2.

    After 10 sweeps in vain, these are LAPACK's exceptional shifts.
    """
    rows, columns = row_positions(h.b, h.shape[-1]), column_positions(h.b, h.shape[-1])

    def element(i: Array, j: Array) -> Array:
        return where((rows == i) & (columns == j), h, 0).sum(-1).sum(-2)

    above = last - 1
    end, side = element(last, last), element(last, above)
    half = (element(above, above) - end) * 0.5
    middle, square = end + half, half * half + element(above, last) * side
    size = (one_norm(side) + one_norm(element(above, last - 2))).astype(h.dtype)
    is_stuck = count == PATIENCE
    middle = where(is_stuck, end + size * 0.75, middle)
    square = where(is_stuck, size * size * -0.4375, square)
    top, below = element(first, first), element(first + 1, first)
    apart = top - middle
    scale = one_norm(apart) + one_norm(below) + sqrt(one_norm(square))
    scale = where(scale > 0, scale, 1).astype(h.dtype)
    below = below / scale
    return joined_arrays(
        [
            apart * (apart / scale) - square / scale + element(first, first + 1) * below,
            below * (apart + element(first + 1, first + 1) - middle),
            below * element(first + 2, first + 1),
        ],
        -2,
    )


def chase(k: Array, carry: Sequence[Array], read: Sequence[Array]) -> list[Array]:
    """Reflect rows and columns k to ``k + 2``, of H above Z: first so that the shifts come in, then so that H is a Hessenberg matrix again."""
    (stack,), (start, first, last) = carry, read
    three, columns = row_positions(stack.b, 3), column_positions(stack.b, stack.shape[-1])
    is_active, is_first = (first <= k) & (k < last), first == k
    rows = stack.at(k, -2, 3)
    before = maximum(k - 1, k.like(0))
    x = where(is_first, start, rows.at(before, -1))
    x = where(three <= last - k, x, 0)
    v, tau, beta = reflector(x[..., :1, :], x[..., 1:, :])
    whole = joined_arrays([full(x.b, 1, beta.shape, x.dtype), v], -2)
    tau = where(is_active, tau, 0)
    rows = rows - whole * (tau.conj * (whole.conj * rows).sum(-2))
    cleared = where(three == 0, beta, 0)
    rows = where((columns == before) & is_active & ~is_first, cleared, rows)
    stack = stack.put(k, -2, rows)
    part = stack.at(k, -1, 3)
    return [stack.put(k, -1, part - (part * whole.mT).sum(-1) * (tau * whole.mT.conj))]
