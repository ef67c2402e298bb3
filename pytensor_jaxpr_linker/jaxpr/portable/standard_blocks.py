"""The blocks of two rows on the diagonal of a Schur form: made triangular where they have real eigenvalues, else standard."""

from __future__ import annotations

from collections.abc import Sequence

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.formula import apply, maximum, sqrt, where
from pytensor_jaxpr_linker.jaxpr.portable.arrays import Array, column_positions, full, joined_arrays, row_positions
from pytensor_jaxpr_linker.jaxpr.portable.loops import for_each
from pytensor_jaxpr_linker.jaxpr.portable.qr import larger_size, squares


def with_standard_blocks(h: Array, z: Array) -> tuple[Array, Array]:
    """Return a Schur form and vectors, of a matrix with blocks of at most two rows."""
    n = h.shape[-1]

    def step(j: Array, carry: Sequence[Array], read: Sequence[Array]) -> list[Array]:
        (stack,), (columns,) = carry, read
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

    (stack,) = for_each(n - 1, step, [joined_arrays([h, z], -2)], [column_positions(h.b, n)])
    below = row_positions(h.b, n) > column_positions(h.b, n) + (0 if h.dtype.kind == "c" else 1)
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
    """Return a rotation G and ``G x G^T``, which is triangular, or has equal numbers on its diagonal and two of opposite signs beside it.

    The first rotation makes the diagonal equal. It turns the symmetric part of `x` less its trace, of size `radius`, and leaves the other part as
    it is. If then both numbers beside the diagonal have one sign, the eigenvalues are real, and a second rotation makes one of them zero.
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
    scale = maximum(larger_size(apart), larger_size(c))
    safe = where(scale > 0, scale, 1).astype(x.dtype)
    first, second = where(scale > 0, apart / safe, 1), c / safe
    norm = sqrt(squares(first) + squares(second)).astype(x.dtype)
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
    """Return a square root of complex numbers, by those of real ones."""
    size = hypotenuse(x.real, x.imag)
    large = sqrt((size + abs(x.real)) * 0.5)
    small = abs(x.imag) / where(large > 0, 2.0 * large, 1)
    is_right = x.real >= 0
    real, imag = where(is_right, large, small), where(is_right, small, large)
    return apply(prims.complex_, real, where(x.imag < 0, -imag, imag))
