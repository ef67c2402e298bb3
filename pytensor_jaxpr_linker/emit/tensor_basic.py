"""Ops that make, join, split and copy tensors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from pytensor.compile.ops import DeepCopyOp, TypeCastingOp
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import (
    Alloc,
    AllocEmpty,
    ARange,
    ExtractDiag,
    Eye,
    Join,
    MakeVector,
    ScalarFromTensor,
    Split,
    TensorFromScalar,
)
from pytensor.tensor.extra_ops import CpuContiguous, Repeat

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.indexing import take_rows
from pytensor_jaxpr_linker.emit.scalar import convert
from pytensor_jaxpr_linker.graph.lanes.ops import NEGATIVE_REPEATS, check_repeats
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape

#: The longest range whose values rules get to know, so that reads at these positions need no check at run time.
KNOWN_RANGE = 2**16


@emits(TensorFromScalar, ScalarFromTensor, TypeCastingOp, CpuContiguous)
def emit_identity(op, node, b, x):
    """Pass the operand on: these Ops change how PyTensor sees it, not its value."""
    return x


@emits(DeepCopyOp)
def emit_DeepCopyOp(op, node, b, x):
    """Copy an array."""
    return prims.copy(b, x)


@emits(Alloc, static=lambda node: range(1, len(node.inputs)))
def emit_Alloc(op, node, b, value, *shape):
    """Broadcast `value` to a shape; a length of 1 that was not declared broadcastable is an error."""
    lengths = checked_lengths(shape)
    inner = zip(node.inputs[0].type.shape[::-1], value.aval.shape[::-1], lengths[::-1], strict=False)
    for declared, n, out in inner:
        if declared is None and n == 1 and out != 1:
            raise ValueError(Alloc._runtime_broadcast_error_msg)
        if n not in (1, out):
            raise ValueError(f"could not broadcast input array from shape {value.aval.shape} into shape {lengths}")
    return prims.broadcast_to(b, value, lengths)


@emits(AllocEmpty, static=lambda node: range(len(node.inputs)))
def emit_AllocEmpty(op, node, b, *shape):
    """Return zeros: XLA has no uninitialized memory."""
    return prims.broadcast_to(b, b.constant(0, op.dtype), checked_lengths(shape))


def checked_lengths(shape: Sequence) -> Shape:
    """Return static lengths as integers, or as the symbolic dimensions that they are under `jax.export`.

    Raises
    ------
    ValueError
        If one of them is negative, as NumPy does.
    """
    lengths = tuple(np.asarray(n).item() for n in shape)
    if any(n < 0 for n in lengths):
        raise ValueError("negative dimensions are not allowed")
    return lengths


@emits(ARange, static=(0, 1, 2))
def emit_ARange(op, node, b, start, stop, step):
    """``start + step * [0, 1, ...]``, as long as `numpy.arange` makes it."""
    start, stop, step = (float(v) if v.dtype.kind == "f" else int(v) for v in (start, stop, step))
    dtype = np.dtype(op.dtype)
    if step == 0:
        raise ZeroDivisionError("division by zero")
    length = max(0, -int((start - stop) // step))
    result = prims.iota(b, dtype, (length,), 0)
    if step != 1:
        result = prims.mul(b, result, b.constant(step, dtype))
    if start != 0:
        result = prims.add(b, result, b.constant(start, dtype))
    return (
        b.remember(result, np.arange(length).astype(dtype) * dtype.type(step) + dtype.type(start))
        if length <= KNOWN_RANGE
        else result
    )


@emits(Eye, static=(0, 1, 2))
def emit_Eye(op, node, b, n, m, k):
    """Ones where column - row is `k`."""
    shape = checked_lengths((n, m))
    row, column = prims.iota(b, "int64", shape, 0), prims.iota(b, "int64", shape, 1)
    return prims.convert(b, prims.eq(b, prims.add(b, row, b.constant(k, "int64")), column), op.dtype)


@emits(MakeVector)
def emit_MakeVector(op, node, b, *xs):
    """Join scalars to a vector."""
    parts = [prims.broadcast_in_dim(b, convert(b, x, op.dtype), (1,), ()) for x in xs]
    return prims.concatenate(b, parts, 0) if parts else b.constant(np.empty(0, op.dtype))


@emits(Join)
def emit_Join(op, node, b, *xs):
    """Concatenate along the Op's axis in the common dtype."""
    for x, y in pairwise(xs):
        if any(n != m for i, (n, m) in enumerate(zip(x.aval.shape, y.aval.shape, strict=True)) if i != op.axis):
            raise ValueError(
                "all the input array dimensions except for the concatenation axis must match exactly,"
                f" but along axis {op.axis} the shapes are {[x.aval.shape for x in xs]}"
            )
    return prims.concatenate(b, [convert(b, x, node.outputs[0].type.dtype) for x in xs], op.axis)


@emits(Split, static=(1,))
def emit_Split(op, node, b, x, sizes):
    """Cut along the Op's axis into parts of given sizes."""
    if len(sizes) != op.len_splits:
        raise ValueError("Length of splits is not equal to n_splits")
    if sizes.sum() != x.aval.shape[op.axis]:
        raise ValueError(f"Split sizes sum to {sizes.sum()}; expected {x.aval.shape[op.axis]}")
    if (sizes < 0).any():
        raise ValueError("Split sizes cannot be negative")
    ends = [0, *(int(n) for n in np.cumsum(sizes))]
    parts = [slice_axis(b, x, op.axis, lo, hi) for lo, hi in pairwise(ends)]
    return parts if len(parts) > 1 else parts[0]


def slice_axis(b: JaxprBuilder, x: Atom, axis: int, start: int, stop: int) -> Atom:
    """Emit the elements from `start` to `stop` of one axis."""
    starts, stops = [0] * len(x.aval.shape), list(x.aval.shape)
    starts[axis], stops[axis] = start, stop
    return prims.slice_(b, x, starts, stops, [1] * len(stops))


@emits(ExtractDiag)
def emit_ExtractDiag(op, node, b, x):
    """Take a diagonal of two axes, as the new last axis."""
    rows, columns = x.aval.shape[op.axis1], x.aval.shape[op.axis2]
    others = [i for i in range(len(x.aval.shape)) if i not in (op.axis1, op.axis2)]
    x = prims.transpose(b, x, [*others, op.axis1, op.axis2])
    row, column = min(max(-op.offset, 0), rows), min(max(op.offset, 0), columns)
    length = max(0, min(rows - row, columns - column))
    x = slice_axis(b, x, len(others), row, row + length)
    x = slice_axis(b, x, len(others) + 1, column, column + length)
    return diagonal(b, x)


def diagonal(b: JaxprBuilder, x: Atom) -> Atom:
    """Emit the main diagonals of square matrices: in row-major order it is every (n + 1)-th of the n x n elements."""
    *batch, length, _ = x.aval.shape
    flat = prims.reshape(b, x, (*batch, length * length))
    return prims.slice_(b, flat, [0] * (len(batch) + 1), flat.aval.shape, [1] * len(batch) + [length + 1])


@emits(Repeat, static=(1,))
def emit_Repeat(op, node, b, x, repeats):
    """Repeat each element along the Op's axis as often as `repeats`, which is constant, says; see also `simpler_ops`."""
    length = x.aval.shape[op.axis]
    check_repeats(len(repeats), length)
    if (repeats < 0).any():
        raise ValueError(NEGATIVE_REPEATS)
    if (repeats == repeats[:1]).all() and len(repeats):
        return repeat_evenly(b, x, op.axis, int(repeats[0]))
    return take(b, x, np.repeat(np.arange(length), repeats), op.axis)


def repeat_evenly(b: JaxprBuilder, x: Atom, axis: int, times: int) -> Atom:
    """Emit each element of one axis `times` times."""
    shape = x.aval.shape
    dims = [i if i <= axis else i + 1 for i in range(len(shape))]
    spread = prims.broadcast_in_dim(b, x, (*shape[: axis + 1], times, *shape[axis + 1 :]), dims)
    return prims.reshape(b, spread, (*shape[:axis], shape[axis] * times, *shape[axis + 1 :]))


def take(b: JaxprBuilder, x: Atom, positions: np.ndarray, axis: int) -> Atom:
    """Emit the elements of one axis at known positions."""
    return take_rows(b, x, b.constant(positions), axis)


@emits(CheckAndRaise)
def emit_CheckAndRaise(op, node, b, x, *conditions):
    """Pass the value on; the caller raises the Op's exception if a condition was false."""
    for condition in conditions:
        b.check(convert(b, condition, bool), lambda: op.exc_type(op.msg), node)
    return x
