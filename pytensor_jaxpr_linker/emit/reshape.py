"""Joining and splitting dimensions."""

from __future__ import annotations

import math

from pytensor.tensor.reshape import JoinDims, SplitDims

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.shape import complete_shape
from pytensor_jaxpr_linker.jaxpr import prims


@emits(JoinDims)
def emit_JoinDims(op, node, b, x):
    """Join neighbouring dimensions into one; joining none adds a dimension of length 1."""
    shape, stop = x.aval.shape, op.start_axis + op.n_axes
    joined = math.prod(shape[op.start_axis : stop])
    return prims.reshape(b, x, (*shape[: op.start_axis], joined, *shape[stop:]))


@emits(SplitDims, static=(1,))
def emit_SplitDims(op, node, b, x, lengths):
    """Split one dimension into several."""
    shape = (*x.aval.shape[: op.axis], *lengths, *x.aval.shape[op.axis + 1 :])
    return prims.reshape(b, x, complete_shape(x.aval.shape, shape))
