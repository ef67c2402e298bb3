"""Ops that make, join and split tensors, choose among their elements, or pass them on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from pytensor.compile.ops import DeepCopyOp, TypeCastingOp
from pytensor.graph.basic import Apply
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor import basic

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.blocks import Span, make_block, read_box
from pytensor_jaxpr_linker.emit.indexing import broadcast_shapes, in_range, runtime_positions, take_along_last
from pytensor_jaxpr_linker.emit.scalar import number, numpy_astype
from pytensor_jaxpr_linker.graph.static_values import is_at_least, is_symbolic, larger, smaller, within
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape

#: The longest range whose values rules get to know, so that reads at these positions need no check at run time.
KNOWN_RANGE = 2**16


@emits(basic.TensorFromScalar, basic.ScalarFromTensor, TypeCastingOp)
def emit_TensorFromScalar(op, node, b, x):
    """Pass the operand on: these Ops change how PyTensor sees it, not its value."""
    return x


@emits(basic.Alloc, static=lambda node: range(1, len(node.inputs)))
def emit_Alloc(op, node, b, value, *shape):
    """Broadcast `value` to a shape; a length of 1 that was not declared broadcastable is an error."""
    lengths = checked_lengths(shape)
    inner = zip(node.inputs[0].type.shape[::-1], value.aval.shape[::-1], lengths[::-1], strict=False)
    for declared, n, out in inner:
        if declared is None and n == 1 and out != 1:
            raise ValueError(basic.Alloc._runtime_broadcast_error_msg)
        if n not in (1, out):
            raise ValueError(f"could not broadcast input array from shape {value.aval.shape} into shape {lengths}")
    return prims.broadcast_to(b, value, lengths)


@emits(basic.AllocEmpty, static=lambda node: range(len(node.inputs)))
def emit_AllocEmpty(op, node, b, *shape):
    """Return zeros: XLA has no uninitialized memory."""
    return prims.broadcast_to(b, b.constant(0, op.dtype), checked_lengths(shape))


def checked_lengths(shape: Sequence) -> Shape:
    """Return static lengths as integers, or symbolic dimensions; NumPy's ValueError if one is negative."""
    lengths = tuple(np.asarray(n).item() for n in shape)
    if any(n < 0 for n in lengths):  # JAX takes no length either of which it can't decide that
        raise ValueError("negative dimensions are not allowed")
    return lengths


@emits(basic.ARange, static=(0, 1, 2))
def emit_ARange(op, node, b, start, stop, step):
    """``start + step * [0, 1, ...]``, as long as `numpy.arange` makes it."""
    start, stop, step = (v.item() for v in (start, stop, step))
    dtype = np.dtype(op.dtype)
    if step == 0:
        raise ZeroDivisionError("division by zero")
    steps = (start - stop) // step
    length = larger(-(int(steps) if type(steps) is float else steps), 0)
    result = prims.iota(b, dtype, (length,), 0)
    if step != 1:
        result = prims.mul(b, result, b.constant(step, dtype))
    if start != 0:
        result = prims.add(b, result, b.constant(start, dtype))
    if type(length) is int and length <= KNOWN_RANGE:
        b.remember(result, np.arange(length).astype(dtype) * dtype.type(step) + dtype.type(start))
    return result


@emits(basic.Eye, static=(0, 1, 2))
def emit_Eye(op, node, b, n, m, k):
    """Ones where column - row is `k`."""
    shape = checked_lengths((n, m))
    row, column = prims.iota(b, "int64", shape, 0), prims.iota(b, "int64", shape, 1)
    return prims.convert(b, prims.eq(b, prims.add(b, row, b.constant(k.item(), "int64")), column), op.dtype)


@emits(basic.MakeVector)
def emit_MakeVector(op, node, b, *xs):
    """Join scalars to a vector."""
    parts = [prims.broadcast_in_dim(b, numpy_astype(b, x, op.dtype), (1,), ()) for x in xs]
    return prims.concatenate(b, parts, 0) if parts else b.constant(np.empty(0, op.dtype))


@emits(basic.Join)
def emit_Join(op, node, b, *xs):
    """Concatenate along the Op's axis in the common dtype."""
    for x, y in pairwise(xs):
        if any(n != m for i, (n, m) in enumerate(zip(x.aval.shape, y.aval.shape, strict=True)) if i != op.axis):
            raise ValueError(
                "all the input array dimensions except for the concatenation axis must match exactly,"
                f" but along axis {op.axis} the shapes are {[x.aval.shape for x in xs]}"
            )
    return prims.concatenate(b, [numpy_astype(b, x, node.outputs[0].type.dtype) for x in xs], op.axis)


@emits(basic.Split, static=(1,))
def emit_Split(op, node, b, x, sizes):
    """Cut along the Op's axis into parts of given sizes."""
    if len(sizes) != op.len_splits:
        raise ValueError("Length of splits is not equal to n_splits")
    if sizes.sum() != x.aval.shape[op.axis]:
        raise ValueError(f"Split sizes sum to {sizes.sum()}; expected {x.aval.shape[op.axis]}")
    n, ends = x.aval.shape[op.axis], [0, *np.cumsum(sizes).tolist()]
    if is_symbolic(sizes):
        ends = check_sizes(b, node, sizes.tolist(), ends, n)
    elif (sizes < 0).any():
        raise ValueError(NEGATIVE_SIZES)
    return [slice_axis(b, x, op.axis, lo, hi) for lo, hi in pairwise(ends)]


#: PyTensor's message.
NEGATIVE_SIZES = "Split sizes cannot be negative"


def check_sizes(b: JaxprBuilder, node: Apply, sizes: Sequence, ends: Sequence, n: int) -> list:
    """Check that no size is negative, at run time if JAX can't decide; return the ends within an axis of length `n`."""
    for size in sizes:
        if is_at_least(size, 0) == 0:
            raise ValueError(NEGATIVE_SIZES)
        if type(size) is not int and is_at_least(size, 0) != 1:
            ok = prims.ge(b, b.constant(size, "int64"), b.constant(0, "int64"))
            b.check(ok, lambda: ValueError(NEGATIVE_SIZES), node)
    return [within(end, n) for end in ends]


def slice_axis(b: JaxprBuilder, x: Atom, axis: int, start: int, stop: int) -> Atom:
    """Emit the elements from `start` to `stop` of one axis."""
    if not type(start) is type(stop) is type(x.aval.shape[axis]) is int:
        spans = [Span(start, stop - start) if i == axis else Span(0, n) for i, n in enumerate(x.aval.shape)]
        return read_box(b, x, make_block(b, x.aval.shape, spans, [axis]))
    starts, stops = [0] * len(x.aval.shape), list(x.aval.shape)
    starts[axis], stops[axis] = start, stop
    return prims.slice_(b, x, starts, stops, [1] * len(stops))


@emits(basic.ExtractDiag)
def emit_ExtractDiag(op, node, b, x):
    """Take a diagonal of two axes, as the new last axis."""
    rows, columns = x.aval.shape[op.axis1], x.aval.shape[op.axis2]
    others = [i for i in range(len(x.aval.shape)) if i not in (op.axis1, op.axis2)]
    x = prims.transpose(b, x, [*others, op.axis1, op.axis2])
    row, column = max(-op.offset, 0), max(op.offset, 0)
    length = larger(smaller(rows - row, columns - column), 0)
    if type(length) is not int:
        return symbolic_diagonal(b, x, row, column, length)
    row, column = min(row, rows), min(column, columns)
    x = slice_axis(b, x, len(others), row, row + length)
    x = slice_axis(b, x, len(others) + 1, column, column + length)
    return diagonal(b, x)


def diagonal(b: JaxprBuilder, x: Atom, k: int = 0) -> Atom:
    """Emit the k-th diagonals of square matrices, k >= 0: in row-major order every (n + 1)-th of the n x n elements."""
    *batch, n, _ = x.aval.shape
    flat = prims.reshape(b, x, (*batch, n * n))
    return prims.slice_(b, flat, [0] * len(batch) + [k], (*batch, n * (n - k)), [1] * len(batch) + [n + 1])


def symbolic_diagonal(b: JaxprBuilder, x: Atom, row: int, column: int, length: int) -> Atom:
    """Emit diagonals of a symbolic length from a row and a column on, as sums of masked rows: some may be empty."""
    *batch, _, _ = x.aval.shape
    first, second = (prims.iota(b, "int64", x.aval.shape, len(batch) + i) for i in (0, 1))
    is_on = prims.eq(b, prims.add(b, first, b.constant(column - row, "int64")), second)
    on = prims.select(b, is_on, x, number(b, x, 0))
    total = (prims.reduce_or if x.aval.dtype == bool else prims.reduce_sum)(b, on, (len(batch) + 1,))
    spans = [*(Span(0, n) for n in batch), Span(row, length)]
    return read_box(b, total, make_block(b, total.aval.shape, spans, [len(batch)]))


@emits(basic.Choose)
def emit_Choose(op, node, b, which, choices):
    """For each element, the choice with the number in `which`."""
    n, *tail = choices.aval.shape
    shape = broadcast_shapes(which.aval.shape, tail)
    which = prims.broadcast_to(b, in_range(b, node, which, n, op.mode, "invalid entry in choice array"), shape)
    choices = prims.reshape(b, choices, (n, *(1,) * (len(shape) - len(tail)), *tail))
    last = prims.transpose(b, prims.broadcast_to(b, choices, (n, *shape)), [*range(1, len(shape) + 1), 0])
    return prims.reshape(b, take_along_last(b, last, prims.reshape(b, which, (*shape, 1))), shape)


@emits(basic.PermuteRowElements)
def emit_PermuteRowElements(op, node, b, x, order):
    """Permute each vector along the last axis; sorting a permutation gives its inverse."""
    shape = permuted_shape(node, x.aval.shape, order.aval.shape)
    n = x.aval.shape[-1]
    order = runtime_positions(b, node, order, len(shape) - 1, n, np.dtype("int64"))
    if op.inverse:
        order = prims.sort(b, [order, prims.iota(b, "int64", order.aval.shape, len(shape) - 1)], len(shape) - 1)[1]
    return take_along_last(b, prims.broadcast_to(b, x, (*shape[:-1], n)), prims.broadcast_to(b, order, shape))


def permuted_shape(node: Apply, x: Shape, y: Shape) -> Shape:
    """Return the shape of permuted rows; a ValueError if lengths differ, or an undeclared 1 meets another."""
    declared = [v.type.shape for v in node.inputs]
    for n, m, *static in zip(x[:-1], y[:-1], *(s[:-1] for s in declared), strict=True):
        if n != m and (1 not in (n, m) or static[0 if n == 1 else 1] != 1):
            raise ValueError(f"Dimension mismatch: {n}, {m}")
    if x[-1] != y[-1] and 1 not in (x[-1], y[-1]):
        raise ValueError(f"Dimension mismatch: {x[-1]}, {y[-1]}")
    return broadcast_shapes(x, y)


# -- Ops that pass their operand on ------------------------------------------------------------------------------------


@emits(DeepCopyOp)
def emit_DeepCopyOp(op, node, b, x):
    """Copy an array."""
    return prims.copy(b, x)


@emits(CheckAndRaise)
def emit_CheckAndRaise(op, node, b, x, *conditions):
    """Pass the value on; the caller raises the Op's exception if a condition was false."""
    for condition in conditions:
        b.check(numpy_astype(b, condition, bool), lambda: op.exc_type(op.msg), node)
    return x
