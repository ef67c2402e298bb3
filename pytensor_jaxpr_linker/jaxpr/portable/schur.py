"""Schur forms: Francis's QR iteration with double shifts, of all matrices of a batch at once.

The steps follow Golub and Van Loan (Matrix Computations, 4th ed., algorithms 7.4.2, 7.5.1 and 7.5.2). One
algorithm serves real and complex matrices: the reflections of real ones are real. Each sweep goes over all rows; where
a matrix has nothing to do there, its reflection is the identity.
"""

from __future__ import annotations

import numpy as np

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import INT32
from pytensor_jaxpr_linker.jaxpr.formula import apply, maximum, sqrt, where
from pytensor_jaxpr_linker.jaxpr.portable.arrays import Array, for_each, full, joined_arrays, repeat_while
from pytensor_jaxpr_linker.jaxpr.portable.orthogonal import reflector

#: As LAPACK: 30 sweeps for each eigenvalue, where 2 or 3 are usual, and another shift after 10 that found none.
MOST_SWEEPS_EACH, PATIENCE = 30, 10


def schur_factors(a: Array) -> tuple[Array, Array]:
    """Return triangular T and unitary Z with ``a = Z T Z^H``.

    T of real matrices has a block of two rows for each pair of complex eigenvalues: equal numbers on its diagonal, and
    off it two of opposite signs, as LAPACK standardizes them. ``a - Z T Z^H`` and ``Z^H Z - I`` are off by some n
    eps, times the norm of `a`: the transformations are reflections and rotations, and elements that are set to zero are
    less than eps times its neighbours. Both are NaN where the iteration does not converge.
    """
    n = a.shape[-1]
    if n < 2:
        return a, a.identity(n, n)
    largest = a.larger_size().max(-1).max(-2)
    root = float(np.sqrt(a.tiny))
    is_extreme = (largest > 0) & ((largest < root / a.eps) | (largest > a.eps / root))
    scale = where(is_extreme, largest, 1).astype(a.dtype)
    h, z = hessenberg_form(a / scale)
    h, z, failed = quasi_triangular(h, z)
    t, z = with_standard_blocks(h, z)
    return where(failed, np.nan, t * scale), where(failed, np.nan, z)


def hessenberg_form(a: Array) -> tuple[Array, Array]:
    """Return H, zero below its first subdiagonal, and unitary Z with ``a = Z H Z^H``."""
    n = a.shape[-1]

    def step(k: Array, h: Array, z: Array, rows: Array) -> list[Array]:
        column = h.at(k, -1)
        v, tau, beta = reflector(column.at(k + 1, -2), where(rows > k + 1, column, 0))
        whole = where(rows == k + 1, v.like(1), v)
        h = h - whole * (tau.conj * (whole.conj * h).sum(-2))
        h = h.put(k, -1, where(rows > k + 1, 0, where(rows == k + 1, beta, column)))
        h, z = (x - (x * whole.mT).sum(-1) * (tau * whole.mT.conj) for x in (h, z))
        return [h, z]

    h, z = for_each(max(n - 2, 0), step, [a, a.identity(n, n)], [a.positions()[0]])
    return h, z


def quasi_triangular(h: Array, z: Array) -> tuple[Array, Array, Array]:
    """Return H with blocks of at most two rows, Z times all transformations, and whether matrices did not converge."""
    n = h.shape[-1]
    # A row and a column of zeros, so that there are always three rows to reflect.
    h = joined_arrays([joined_arrays([h, h[..., :1] * 0.0], -1), full(h.b, 0, (*h.shape[:-2], 1, n + 1), h.dtype)], -2)
    z = joined_arrays([z, z[..., :1] * 0.0], -1)
    h, first, last = deflated(h)
    count = full(h.b, 0, last.shape, INT32)

    def sweep(_: Array, stack: Array, first: Array, last: Array, count: Array) -> list[Array]:
        start = first_column(stack[..., : n + 1, :], first, last, count)
        (stack,) = for_each(n - 1, chase, [stack], [start, first, last])
        h, first, following = deflated(stack[..., : n + 1, :])
        stack = joined_arrays([h, stack[..., n + 1 :, :]], -2)
        count = where(following == last, where(count == PATIENCE, 1, count + 1), 0)
        return [(following >= 0).any(), stack, first, following, count]

    stack, limit = joined_arrays([h, z], -2), MOST_SWEEPS_EACH * max(n, 10)
    stack, _, last, _ = repeat_while((last >= 0).any(), limit, sweep, [stack, first, last, count])
    return stack[..., :n, :n], stack[..., n + 1 :, :n], last >= 0


def deflated(h: Array) -> tuple[Array, Array, Array]:
    """Return H with zeros for negligible elements below its diagonal, and its last block of more than two rows.

    The block is told by its first and its last row, which is -1 without such a block.
    """
    n = h.shape[-1]
    rows, columns = h.positions()
    is_below = rows == columns + 1
    size = h.one_norm()
    diagonal = size.diagonal()
    near = diagonal + where(is_below, diagonal.mT, 0).sum(-1)
    near = where(near == 0, size.max(-1).max(-2), near)
    least = maximum(near * h.eps, near.like(n * h.tiny / h.eps))
    below = where(is_below, size, 0).sum(-1)
    h = where(is_below & (below <= least), 0, h)
    follows = (below > least).astype(INT32)
    is_third = (follows + where(is_below, follows.mT, 0).sum(-1)) == 2
    last = where(is_third, rows, -1).max(-2)
    first = where((rows <= last) & (follows == 0), rows, 0).max(-2)
    return h, first, last


def first_column(h: Array, first: Array, last: Array, count: Array) -> Array:
    """Return a multiple of the first column of ``(H - s1)(H - s2)`` of a block of H.

    The last two rows of the block have the eigenvalues s1 and s2.

    After 10 sweeps in vain, these are LAPACK's exceptional shifts.
    """
    rows, columns = h.positions()

    def element(i: Array, j: Array) -> Array:
        return where((rows == i) & (columns == j), h, 0).sum(-1).sum(-2)

    above = last - 1
    end, side = element(last, last), element(last, above)
    half = (element(above, above) - end) * 0.5
    middle, square = end + half, half * half + element(above, last) * side
    size = (side.one_norm() + element(above, last - 2).one_norm()).astype(h.dtype)
    is_stuck = count == PATIENCE
    middle = where(is_stuck, end + size * 0.75, middle)
    square = where(is_stuck, size * size * -0.4375, square)
    top, below = element(first, first), element(first + 1, first)
    apart = top - middle
    scale = apart.one_norm() + below.one_norm() + sqrt(square.one_norm())
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


def chase(k: Array, stack: Array, start: Array, first: Array, last: Array) -> list[Array]:
    """Reflect rows and columns k to ``k + 2`` of H above Z: first to bring the shifts in, then to Hessenberg form."""
    is_active, is_first = (first <= k) & (k < last), first == k
    rows = stack.at(k, -2, 3)
    three, columns = rows.positions()
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


def with_standard_blocks(h: Array, z: Array) -> tuple[Array, Array]:
    """Return a Schur form and vectors, of a matrix with blocks of at most two rows."""
    n = h.shape[-1]

    def step(j: Array, stack: Array, columns: Array) -> list[Array]:
        rows = stack.at(j, -2, 2)
        block = rows.at(j, -1, 2)
        is_block = block[..., 1:, :1] != 0
        turn = where(is_block, block, full(block.b, 0, block.shape, block.dtype))
        rotation, standard = complex_rotation(turn) if h.dtype.kind == "c" else real_rotation(turn)
        stack = stack.put(j, -2, product_of_pairs(rotation, rows))
        part = product_of_pairs(rotation.conj, stack.at(j, -1, 2).mT).mT
        stack = stack.put(j, -1, part)
        new = stack.at(j, -2, 2)
        spread = where(columns == j, standard[..., :1], where(columns == j + 1, standard[..., 1:], new))
        return [stack.put(j, -2, where(is_block, spread, new))]

    (stack,) = for_each(n - 1, step, [joined_arrays([h, z], -2)], [h.positions()[1]])
    rows, columns = h.positions()
    below = rows > columns + (0 if h.dtype.kind == "c" else 1)
    return where(below, 0, stack[..., :n, :]), stack[..., n:, :]


def product_of_pairs(x: Array, rows: Array) -> Array:
    """Return the products of matrices of two rows and columns with two rows."""
    return x[..., :1] * rows[..., :1, :] + x[..., 1:] * rows[..., 1:, :]


def block_of(a: Array, b: Array, c: Array, d: Array) -> Array:
    """Return matrices of two rows from their elements, row by row."""
    return joined_arrays([joined_arrays([a, b], -1), joined_arrays([c, d], -1)], -2)


def elements_of(x: Array) -> tuple[Array, Array, Array, Array]:
    """Return the elements of matrices of two rows, row by row."""
    return x[..., :1, :1], x[..., :1, 1:], x[..., 1:, :1], x[..., 1:, 1:]


def real_rotation(x: Array) -> tuple[Array, Array]:
    """Return a rotation G and ``G x G^T``, which is triangular, or in LAPACK's standard form.

    That form has equal numbers on the diagonal and numbers of opposite signs off it.

    The first rotation makes the diagonal equal. It turns the symmetric part of `x` less its trace, of size `radius`,
    and leaves the other part as it is. If then both numbers off the diagonal have one sign, the eigenvalues are
    real, and a second rotation makes one of them zero.
    """
    a, b, c, d = elements_of(x)
    mean, apart, sum_, difference = (a + d) * 0.5, a - d, b + c, b - c
    radius = hypotenuse(apart, sum_)
    safe = where(radius > 0, radius, 1)
    sign = where(sum_ < 0, sum_.like(-1.0), 1.0)
    cosine = sqrt((1.0 + abs(sum_) / safe) * 0.5)
    sine = -sign * apart / (2.0 * safe * cosine)
    cosine, sine = where(radius > 0, cosine, 1), where(radius > 0, sine, 0)
    upper, lower = (sign * radius + difference) * 0.5, (sign * radius - difference) * 0.5
    is_real = (upper == 0) | (lower == 0) | ((upper > 0) == (lower > 0))
    roots = [sqrt(abs(y)) for y in (upper, lower)]
    total = hypotenuse(*roots)
    second = [
        where(is_real & (total > 0), y / where(total > 0, total, 1), one) for y, one in zip(roots, (1, 0), strict=True)
    ]
    shift = where(is_real, where(lower < 0, -roots[0], roots[0]) * roots[1], 0)
    cosine, sine = cosine * second[0] - sine * second[1], cosine * second[1] + sine * second[0]
    upper, lower = where(is_real, difference, upper), where(is_real, 0, lower)
    return block_of(cosine, sine, -sine, cosine), block_of(mean + shift, upper, lower, mean - shift)


def complex_rotation(x: Array) -> tuple[Array, Array]:
    """Return a unitary G and ``G x G^H``, which is triangular: the first row of G is an eigenvector's adjoint."""
    a, b, c, d = elements_of(x)
    half = (a - d) * 0.5
    root = complex_root(half * half + b * c)
    is_against = half.real * root.real + half.imag * root.imag < 0
    apart = half + where(is_against, -root, root)
    scale = maximum(apart.larger_size(), c.larger_size())
    safe = where(scale > 0, scale, 1).astype(x.dtype)
    first, second = where(scale > 0, apart / safe, 1), c / safe
    norm = sqrt(first.squares() + second.squares()).astype(x.dtype)
    first, second = first / norm, second / norm
    rotation = block_of(first.conj, second.conj, -second, first)
    turned = product_of_pairs(rotation.conj, product_of_pairs(rotation, x).mT).mT
    _, upper, _, end = elements_of(turned)
    return rotation, block_of(d + apart, upper, c * 0.0, end)


def hypotenuse(x: Array, y: Array) -> Array:
    """Return ``sqrt(x^2 + y^2)`` without overflow."""
    scale = maximum(abs(x), abs(y))
    safe = where(scale > 0, scale, 1)
    return scale * sqrt((x / safe) * (x / safe) + (y / safe) * (y / safe))


def complex_root(x: Array) -> Array:
    """Return a square root of complex numbers, by square roots of real numbers."""
    size = hypotenuse(x.real, x.imag)
    large = sqrt((size + abs(x.real)) * 0.5)
    small = abs(x.imag) / where(large > 0, 2.0 * large, 1)
    is_right = x.real >= 0
    real, imag = where(is_right, large, small), where(is_right, small, large)
    return apply(prims.complex_, real, where(x.imag < 0, -imag, imag))
