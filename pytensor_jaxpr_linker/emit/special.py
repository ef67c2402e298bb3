"""Softmax, and products with a logarithm: symbolic Ops with a better form than their inner graph."""

from __future__ import annotations

from pytensor.graph.basic import Apply
from pytensor.tensor.special import LogSoftmax, Softmax, XLog1PY, XLogY

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.elemwise import check_not_empty
from pytensor_jaxpr_linker.emit.indexing import broadcast_shapes
from pytensor_jaxpr_linker.emit.scalar import number, numpy_astype, one
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder


def below_maximum(op: Softmax | LogSoftmax, node: Apply, b: JaxprBuilder, x: Atom) -> tuple[Atom, Atom]:
    """Return ``x - max(x)`` and ``sum(exp(x - max(x)))``. The shift is no part of the derivative."""
    shape = x.aval.shape
    axes = range(len(shape)) if op.axis is None else [axis % len(shape) for axis in op.axis]
    check_not_empty(x, axes, "maximum")
    x = numpy_astype(b, x, node.outputs[0].type.dtype)
    if not shape:
        return prims.sub(b, x, prims.stop_gradient(b, x)), one(b, x)
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
