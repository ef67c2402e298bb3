"""Diagonals that are written, positions in flat arrays, choices and permutations, windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np
import pytensor.scalar as ps
from jax.lax import GatherDimensionNumbers, GatherScatterMode
from pytensor.graph.basic import Apply
from pytensor.tensor.basic import Choose, PermuteRowElements
from pytensor.tensor.extra_ops import Bartlett, FillDiagonal, FillDiagonalOffset, RavelMultiIndex, UnravelIndex

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.indexing import runtime_positions
from pytensor_jaxpr_linker.emit.scalar import emit_scalar, number
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape

# -- diagonals ---------------------------------------------------------------------------------------------------------


def positions(b: JaxprBuilder, shape: Shape) -> list[Atom]:
    """Return the index along each axis of each element of a shape."""
    return [prims.iota(b, "int64", shape, axis) for axis in range(len(shape))]


@emits(FillDiagonal)
def emit_FillDiagonal(op, node, b, x, value):
    """Write a number where all indices are equal; arrays of more than two axes must have equal lengths."""
    shape = x.aval.shape
    if len(shape) > 2 and len(set(shape)) > 1:
        raise ValueError("All dimensions of input must be of equal length")
    first, *others = positions(b, shape)
    return prims.select(b, reduce(lambda u, v: prims.and_(b, u, v), [prims.eq(b, first, i) for i in others]), value, x)


@emits(FillDiagonalOffset)
def emit_FillDiagonalOffset(op, node, b, x, value, offset):
    """Write a number where column - row is `offset`."""
    row, column = positions(b, x.aval.shape)
    return prims.select(b, prims.eq(b, prims.add(b, row, prims.convert(b, offset, "int64")), column), value, x)


# -- positions in flat arrays ------------------------------------------------------------------------------------------


def in_range(b: JaxprBuilder, node: Apply, x: Atom, n: int, mode: str, message: str) -> Atom:
    """Emit integers as positions from 0 to ``n - 1``: checked, wrapped around, or moved to the nearest end."""
    x = prims.convert(b, x, "int64")
    last, zero = number(b, x, n - 1), number(b, x, 0)
    if mode == "wrap":
        return emit_scalar(ps.mod, "int64", b, [x, number(b, x, n)])
    if mode == "raise":
        ok = prims.and_(b, prims.ge(b, x, zero), prims.le(b, x, last))
        ok = prims.reduce_and(b, ok, range(len(ok.aval.shape))) if ok.aval.shape else ok
        b.check(ok, lambda: ValueError(message), node)
    return prims.clamp(b, zero, x, last)


def strides(dims: Sequence[int], order: str) -> list[int]:
    """Return how far apart neighbours along each axis of an array of lengths `dims` are in the flat array."""
    if order == "F":
        return [math.prod(dims[:i]) for i in range(len(dims))]
    return [math.prod(dims[i + 1 :]) for i in range(len(dims))]


@emits(RavelMultiIndex, static=lambda node: (len(node.inputs) - 1,))
def emit_RavelMultiIndex(op, node, b, *operands):
    """The sum of the indices times the strides of their axes, as `numpy.ravel_multi_index`."""
    *indices, dims = operands
    dims = [int(n) for n in dims]
    if len(indices) != len(dims):
        raise ValueError(f"parameter multi_index must be a sequence of length {len(dims)}")
    shape = np.broadcast_shapes(*(x.aval.shape for x in indices))
    flat = b.constant(0, "int64")
    for x, n, stride in zip(indices, dims, strides(dims, op.order), strict=True):
        x = in_range(b, node, x, n, op.mode, "invalid entry in coordinates array")
        x = prims.broadcast_to(b, x, shape)
        flat = prims.add(b, flat, prims.mul(b, x, number(b, x, stride)))
    return prims.broadcast_to(b, flat, shape)


@emits(UnravelIndex, static=(1,))
def emit_UnravelIndex(op, node, b, flat, dims):
    """The index along each axis of positions in a flat array, as `numpy.unravel_index`."""
    dims = [int(n) for n in dims]
    size = math.prod(dims)
    flat = in_range(b, node, flat, size, "raise", f"index is out of bounds for array with size {size}")
    found = []
    for n, stride in zip(dims, strides(dims, op.order), strict=True):
        whole = prims.div(b, flat, number(b, flat, max(stride, 1)))
        found.append(prims.rem(b, whole, number(b, flat, max(n, 1))))
    return found if len(found) > 1 else found[0]


# -- choices and permutations ------------------------------------------------------------------------------------------


def take_along_last(b: JaxprBuilder, x: Atom, indices: Atom) -> Atom:
    """Emit the elements of each vector along the last axis at the positions in that of `indices`; the other axes agree."""
    batch = tuple(range(len(x.aval.shape) - 1))
    axis = (len(batch),)
    dims = GatherDimensionNumbers((), axis, axis, batch, batch)
    columns = prims.reshape(b, indices, (*indices.aval.shape, 1))
    sizes, shape = (1,) * len(x.aval.shape), indices.aval.shape
    if not shape[-1] or 0 in x.aval.shape:
        return prims.broadcast_to(b, number(b, x, 0), shape)
    return prims.gather(b, x, columns, dims, sizes, shape, GatherScatterMode.CLIP)


@emits(Choose)
def emit_Choose(op, node, b, which, choices):
    """Of each element that of the choice whose number `which` holds there."""
    n, *tail = choices.aval.shape
    shape = np.broadcast_shapes(which.aval.shape, tail)
    which = prims.broadcast_to(b, in_range(b, node, which, n, op.mode, "invalid entry in choice array"), shape)
    choices = prims.broadcast_to(
        b, prims.reshape(b, choices, (n, *(1,) * (len(shape) - len(tail)), *tail)), (n, *shape)
    )
    last = prims.transpose(b, choices, [*range(1, len(shape) + 1), 0])
    return prims.reshape(b, take_along_last(b, last, prims.reshape(b, which, (*shape, 1))), shape)


@emits(PermuteRowElements)
def emit_PermuteRowElements(op, node, b, x, order):
    """Permute each vector along the last axis; the inverse of a permutation is what sorts it."""
    shape = permuted_shape(node, x.aval.shape, order.aval.shape)
    n = x.aval.shape[-1]
    order = runtime_positions(b, node, order, len(shape) - 1, n, np.dtype("int64"))
    if op.inverse:
        order = prims.sort(b, [order, prims.iota(b, "int64", order.aval.shape, len(shape) - 1)], len(shape) - 1)[1]
    return take_along_last(b, prims.broadcast_to(b, x, (*shape[:-1], n)), prims.broadcast_to(b, order, shape))


def permuted_shape(node: Apply, x: Shape, y: Shape) -> Shape:
    """Return the shape of permuted rows.

    Raises
    ------
    ValueError
        If lengths differ, or a length of 1 that was not declared so meets another one.
    """
    declared = [v.type.shape for v in node.inputs]
    for n, m, *static in zip(x[:-1], y[:-1], *(s[:-1] for s in declared), strict=True):
        if n != m and (1 not in (n, m) or static[0 if n == 1 else 1] != 1):
            raise ValueError(f"Dimension mismatch: {n}, {m}")
    if x[-1] != y[-1] and 1 not in (x[-1], y[-1]):
        raise ValueError(f"Dimension mismatch: {x[-1]}, {y[-1]}")
    return np.broadcast_shapes(x, y)


@emits(Bartlett, static=(0,))
def emit_Bartlett(op, node, b, length):
    """The triangular window, as `numpy.bartlett`."""
    return b.constant(np.bartlett(length))
