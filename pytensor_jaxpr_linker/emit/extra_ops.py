"""Written diagonals, positions in flat arrays, windows, cumulative Ops, searches and repeated elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from itertools import accumulate
from typing import Any

import numpy as np
from jax import lax
from pytensor.graph.basic import Apply
from pytensor.tensor import extra_ops

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.indexing import broadcast_shapes, in_range, take_along_last, take_rows
from pytensor_jaxpr_linker.emit.scalar import number, numpy_astype, to_common_dtype
from pytensor_jaxpr_linker.emit.tensor_basic import slice_axis
from pytensor_jaxpr_linker.graph.lanes.ops import NEGATIVE_REPEATS, check_repeats
from pytensor_jaxpr_linker.graph.static_values import is_symbolic, larger
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.jaxpr.formula import Value


def axis_indices(b: JaxprBuilder, shape: Shape) -> list[Atom]:
    """Return the index along each axis of each element of a shape."""
    return [prims.iota(b, "int64", shape, axis) for axis in range(len(shape))]


@emits(extra_ops.FillDiagonal)
def emit_FillDiagonal(op, node, b, x, value):
    """Write a number where all indices are equal; arrays of more than two axes must have equal lengths."""
    shape = x.aval.shape
    if len(shape) > 2 and len(set(shape)) > 1:
        raise ValueError("All dimensions of input must be of equal length")
    first, *others = axis_indices(b, shape)
    return prims.select(b, reduce(lambda u, v: prims.and_(b, u, v), [prims.eq(b, first, i) for i in others]), value, x)


@emits(extra_ops.FillDiagonalOffset)
def emit_FillDiagonalOffset(op, node, b, x, value, offset):
    """Write a number where column - row is `offset`; nowhere for an offset outside, where PyTensor's slice wraps."""
    row, column = axis_indices(b, x.aval.shape)
    return prims.select(b, prims.eq(b, prims.add(b, row, prims.convert(b, offset, "int64")), column), value, x)


def strides(dims: Sequence[int], order: str) -> list[int]:
    """Return how far apart neighbours along each axis of an array of lengths `dims` are in the flat array."""
    if order == "F":
        return [math.prod(dims[:i]) for i in range(len(dims))]
    return [math.prod(dims[i + 1 :]) for i in range(len(dims))]


@emits(extra_ops.RavelMultiIndex, static=lambda node: (len(node.inputs) - 1,))
def emit_RavelMultiIndex(op, node, b, *operands):
    """The sum of the indices times the strides of their axes, as `numpy.ravel_multi_index`."""
    *indices, dims = operands
    dims = dims.tolist()
    if len(indices) != len(dims):
        raise ValueError(f"parameter multi_index must be a sequence of length {len(dims)}")
    shape = broadcast_shapes(*(x.aval.shape for x in indices))
    flat = b.constant(0, "int64")
    for x, n, stride in zip(indices, dims, strides(dims, op.order), strict=True):
        x = in_range(b, node, x, n, op.mode, "invalid entry in coordinates array")
        x = prims.broadcast_to(b, x, shape)
        flat = prims.add(b, flat, prims.mul(b, x, number(b, x, stride)))
    return prims.broadcast_to(b, flat, shape)


@emits(extra_ops.UnravelIndex, static=(1,))
def emit_UnravelIndex(op, node, b, flat, dims):
    """The index along each axis of positions in a flat array, as `numpy.unravel_index`."""
    dims = dims.tolist()
    size = math.prod(dims)
    flat = in_range(b, node, flat, size, "raise", f"index is out of bounds for array with size {size}")
    found = []
    for n, stride in zip(dims, strides(dims, op.order), strict=True):
        whole = prims.div(b, flat, number(b, flat, larger(stride, 1)))
        found.append(prims.rem(b, whole, number(b, flat, larger(n, 1))))
    return found


@emits(extra_ops.Bartlett, static=(0,))
def emit_Bartlett(op, node, b, length):
    """The triangular window, as `numpy.bartlett`."""
    if not is_symbolic(length):
        return b.constant(np.bartlett(int(length)))
    n = length.item()
    places = Value(b, prims.iota(b, "float64", (n,), 0))
    from_middle = 2.0 * places - Value(b, b.constant(n - 1, "float64"))
    return (1.0 - abs(from_middle) / Value(b, b.constant(larger(n - 1, 1), "float64"))).atom


#: Up to this number of pairs, comparing all at once is faster than a binary search.
COMPARED_AT_ONCE = 2**16


#: From this length on, XLA's windows are as fast.
COMBINED_ONE_BY_ONE = 8


@emits(extra_ops.CumOp)
def emit_CumOp(op, node, b, x):
    """Cumulative sum or product, as NumPy's: masks and smaller integers take 64 bits, unlike their declared dtype."""
    how = (prims.cumsum, prims.add) if op.mode == "add" else (prims.cumprod, prims.mul)
    if x.aval.dtype.kind == "b":
        return numpy_astype(b, running(*how, b, numpy_astype(b, x, "int32"), op.axis), bool)
    return running(*how, b, x, op.axis)


def running(cumulative: Any, combine: Any, b: JaxprBuilder, x: Atom, axis: int) -> Atom:
    """Emit a cumulative sum or product; few elements one by one, which compiles and runs sooner than windows."""
    length = x.aval.shape[axis]
    if type(length) is not int or not 0 < length <= COMBINED_ONE_BY_ONE:
        return cumulative(b, x, axis)
    elements = [slice_axis(b, x, axis, i, i + 1) for i in range(length)]
    return prims.concatenate(b, [*accumulate(elements, partial(combine, b))], axis)


@emits(extra_ops.SearchsortedOp)
def emit_SearchsortedOp(op, node, b, x, v, *sorter):
    """Count the elements of the sorted vector `x` that come before each element of `v`."""
    if sorter:
        x = permute(node, b, x, numpy_astype(b, sorter[0], "int64"))
    x, v = to_common_dtype(b, (x, v))
    pairs = x.aval.shape[0] * math.prod(v.aval.shape)
    if type(pairs) is not int or pairs > COMPARED_AT_ONCE:
        return search(b, x, v, op.side)
    shape = (*v.aval.shape, *x.aval.shape)
    x = prims.broadcast_to(b, x, shape)
    v = prims.broadcast_in_dim(b, v, shape, range(len(shape) - 1))
    return prims.reduce_sum(b, prims.convert(b, goes_before(b, x, v, op.side), "int64"), (len(shape) - 1,))


#: A vector of symbolic length has fewer than two to the power of this many elements.
MOST_BITS = 48


def search(b: JaxprBuilder, x: Atom, v: Atom, side: str) -> Atom:
    """Count by binary search: try steps of falling powers of two, and take each that stays before the element."""
    (n,), shape = x.aval.shape, v.aval.shape
    dims = lax.GatherDimensionNumbers(offset_dims=(), collapsed_slice_dims=(0,), start_index_map=(0,))
    count = prims.broadcast_to(b, b.constant(0, "int64"), shape)
    for k in reversed(range(n.bit_length() if type(n) is int else MOST_BITS)):
        further = prims.add(b, count, b.constant(2**k, "int64"))
        last = prims.sub(b, further, b.constant(1, "int64"))
        columns = prims.reshape(b, last, (*shape, 1))
        element = prims.gather(b, x, columns, dims, (1,), shape, lax.GatherScatterMode.CLIP)
        inside = prims.le(b, further, b.constant(n, "int64"))
        taken = prims.and_(b, inside, goes_before(b, element, v, side))
        count = prims.select(b, taken, further, count)
    return count


def goes_before(b: JaxprBuilder, x: Atom, v: Atom, side: str) -> Atom:
    """Emit whether an element of a sorted vector stays before `v`, which goes to the left, or right, of its equals."""
    return comes_before(b, x, v) if side == "left" else prims.not_(b, comes_before(b, v, x))


def comes_before(b: JaxprBuilder, x: Atom, y: Atom) -> Atom:
    """Emit ``x < y`` in the order of a sort: NaN after all numbers."""
    less = prims.lt(b, x, y)
    if x.aval.dtype.kind != "f":
        return less
    return prims.or_(b, less, prims.and_(b, prims.eq(b, x, x), prims.ne(b, y, y)))


def permute(node: Apply, b: JaxprBuilder, x: Atom, positions: Atom) -> Atom:
    """Emit the elements of a vector at run-time positions, which are checked."""
    if positions.aval.shape != x.aval.shape:
        raise ValueError("sorter.size must equal len(ap)")
    (n,) = x.aval.shape
    return take_along_last(b, x, in_range(b, node, positions, n, "raise", "Sorter index out of range."))


@emits(extra_ops.CpuContiguous)
def emit_CpuContiguous(op, node, b, x):
    """Pass the operand on: XLA chooses the layout of arrays."""
    return x


@emits(extra_ops.Repeat, static=(1,))
def emit_Repeat(op, node, b, x, repeats):
    """Repeat each element along the Op's axis as often as the constant `repeats` says; see also `graph.decompose`."""
    length = x.aval.shape[op.axis]
    check_repeats(len(repeats), length)
    if (repeats < 0).any():
        raise ValueError(NEGATIVE_REPEATS)
    if (repeats == repeats[:1]).all() and len(repeats):
        return repeat_evenly(b, x, op.axis, repeats[0].item())
    return take_rows(b, x, b.constant(np.repeat(np.arange(length), repeats)), op.axis)


def repeat_evenly(b: JaxprBuilder, x: Atom, axis: int, times: int) -> Atom:
    """Emit each element of one axis `times` times."""
    shape = x.aval.shape
    dims = [i if i <= axis else i + 1 for i in range(len(shape))]
    spread = prims.broadcast_in_dim(b, x, (*shape[: axis + 1], times, *shape[axis + 1 :]), dims)
    return prims.reshape(b, spread, (*shape[:axis], shape[axis] * times, *shape[axis + 1 :]))
