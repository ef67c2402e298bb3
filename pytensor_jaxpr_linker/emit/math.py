"""Positions of maxima, products, softmax, and sorting."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.math import Argmax, Dot, MulWithoutZeros
from pytensor.tensor.sort import ArgSortOp, SortOp
from pytensor.tensor.special import LogSoftmax, Softmax, XLog1PY, XLogY

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.elemwise import check_not_empty
from pytensor_jaxpr_linker.emit.indexing import broadcast_shapes
from pytensor_jaxpr_linker.emit.linalg.matrices import matmul
from pytensor_jaxpr_linker.emit.scalar import emits_scalar, number, numpy_astype
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder


@emits(Argmax)
def emit_Argmax(op, node, b, x):
    """The first position of the maximum, in row-major order of the reduced axes."""
    ndim = len(x.aval.shape)
    axes = tuple(range(ndim)) if op.axis is None else op.axis
    kept = [i for i in range(ndim) if i not in axes]
    x = prims.transpose(b, x, [*kept, *axes])
    lead, last = x.aval.shape[: len(kept)], x.aval.shape[len(kept) :]
    if 0 in last:
        raise ValueError("attempt to get argmax of an empty sequence")
    if x.aval.dtype.kind == "b":
        x = numpy_astype(b, x, "int8")
    return prims.argmax(b, prims.reshape(b, x, (*lead, prod(last))), len(kept), "int64")


@emits(Dot, BatchedDot, batched=True)
def emit_Dot(op, node, b, x, y):
    """The product of matrices, or of stacks of them that have equal leading axes."""
    dtype = np.dtype(node.outputs[0].type.dtype)
    check_aligned(x, y)
    x, y = (numpy_astype(b, v, dtype) for v in (x, y))
    if dtype.kind == "b":
        x, y = (prims.convert(b, v, "int32") for v in (x, y))
    return numpy_astype(b, matmul(b, x, y), dtype)


def check_aligned(x: Atom, y: Atom) -> None:
    """Compare the lengths of a product of matrices.

    Raises
    ------
    TypeError
        If shared lengths differ, as `BatchedDot` raises.
    ValueError
        If contracted lengths differ.
    """
    (*batch, rows, n), (*other, m, columns) = x.aval.shape, y.aval.shape
    if batch != other:
        raise TypeError(f"The operands must have the same size in axis 0, but have sizes [{batch[0]}, {other[0]}].")
    if n != m:
        raise ValueError(f"shapes ({rows},{n}) and ({m},{columns}) not aligned: {n} (dim 1) != {m} (dim 0)")


@emits_scalar(MulWithoutZeros)
def mul_without_zeros(b, x, y):
    """The product in which a zero counts as one."""
    zero = number(b, x, 0)
    product = prims.select(b, prims.eq(b, y, zero), x, prims.mul(b, x, y))
    return prims.select(b, prims.eq(b, x, zero), y, product)


def below_maximum(op: Softmax | LogSoftmax, node: Apply, b: JaxprBuilder, x: Atom) -> tuple[Atom, Atom]:
    """Return ``x - max(x)`` and ``sum(exp(x - max(x)))``. The shift is no part of the derivative."""
    shape = x.aval.shape
    axes = range(len(shape)) if op.axis is None else [axis % len(shape) for axis in op.axis]
    check_not_empty(x, axes, "maximum")
    x = numpy_astype(b, x, node.outputs[0].type.dtype)
    if not shape:
        return prims.sub(b, x, prims.stop_gradient(b, x)), number(b, x, 1)
    kept = [i for i in range(len(shape)) if i not in axes]
    top = prims.stop_gradient(b, prims.reduce_max(b, x, axes))
    shifted = prims.sub(b, x, prims.broadcast_in_dim(b, top, shape, kept))
    total = prims.reduce_sum(b, prims.exp(b, shifted), axes)
    return shifted, prims.broadcast_in_dim(b, total, shape, kept)


@emits(Softmax)
def emit_Softmax(op, node, b, x):
    """``exp(x) / sum(exp(x))``."""
    shifted, total = below_maximum(op, node, b, x)
    return prims.div(b, prims.exp(b, shifted), total)


@emits(LogSoftmax)
def emit_LogSoftmax(op, node, b, x):
    """``x - log(sum(exp(x)))``."""
    shifted, total = below_maximum(op, node, b, x)
    return prims.sub(b, shifted, prims.log(b, total))


@emits(XLogY, XLog1PY)
def emit_XLogY(op, node, b, x, y):
    """``x * log(y)``, 0 where `x` is; as for PyTensor its derivative by `x` is ``log(y)`` there too."""
    shape = broadcast_shapes(x.aval.shape, y.aval.shape)
    x, y = (prims.broadcast_to(b, numpy_astype(b, v, node.outputs[0].type.dtype), shape) for v in (x, y))
    log = prims.log(b, y) if isinstance(op, XLogY) else prims.log1p(b, y)
    singular = prims.and_(b, prims.eq(b, x, number(b, x, 0)), prims.not_(b, prims.is_finite(b, log)))
    return prims.mul(b, x, prims.select(b, singular, number(b, x, 0), log))


def axis_operand(node: Apply) -> range:
    """Return where the axis is among the operands of a sort: PyTensor 3.3.0 has it there, later versions in the Op."""
    return range(1, len(node.inputs))


def refuse_batched_axis(node: Apply) -> str | None:
    return "the axis is an operand of a batch" if isinstance(node.op, Blockwise) and axis_operand(node) else None


@emits(SortOp, static=axis_operand, refuse=refuse_batched_axis, batched=True)
def emit_SortOp(op, node, b, x, *axis):
    """Sort one axis, NaN last."""
    return prims.sort(b, [x], sorted_axis(op, node, axis))[0]


def sorted_axis(op: SortOp | ArgSortOp, node: Apply, operand: Sequence[np.ndarray]) -> int:
    """Return the axis of an Op that may be the core of a `Blockwise`, counted with the batch axes."""
    if operand:
        return int(operand[0]) % node.inputs[0].type.ndim
    return op.axis + (node.op.batch_ndim(node) if isinstance(node.op, Blockwise) else 0)


@emits(ArgSortOp, static=axis_operand, refuse=refuse_batched_axis, batched=True)
def emit_ArgSortOp(op, node, b, x, *axis):
    """The positions that sort one axis; of equal elements the first comes first."""
    dim = sorted_axis(op, node, axis)
    return prims.sort(b, [x, prims.iota(b, "int64", x.aval.shape, dim)], dim)[1]
