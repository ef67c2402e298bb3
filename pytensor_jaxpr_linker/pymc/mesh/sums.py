"""Sums of float32 numbers on several devices, whose parts meet in float32: XLA adds up all that devices have in one all-reduce for each dtype."""

from __future__ import annotations

from typing import Any

from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.tensor.math import Sum

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.elemwise import emit_CAReduce
from pytensor_jaxpr_linker.emit.scalar import numpy_astype
from pytensor_jaxpr_linker.jaxpr import prims


class SumOfParts(Sum):
    """A sum in two steps: in the accumulator's dtype within each of `parts` equal parts, and of these sums in the dtype of the result."""

    __props__ = (*Sum.__props__, "parts")  # type: ignore[assignment]

    def __init__(self, parts: int, **options: Any):
        super().__init__(**options)
        self.parts = parts


@emits(SumOfParts)
def emit_SumOfParts(op: Any, node: Any, b: Any, x: Any) -> Any:
    """Sum the parts of the longest axis, then the sums, if the length can be divided."""
    shape, dtype = x.aval.shape, node.outputs[0].type.dtype
    axes = range(len(shape)) if op.axis is None else op.axis
    longest = max(axes, key=shape.__getitem__, default=None)
    if longest is None or shape[longest] % op.parts or not shape[longest]:
        return emit_CAReduce(op, node, b, x)
    x = numpy_astype(b, x, op.acc_dtype)
    x = prims.reshape(b, x, (*shape[:longest], op.parts, shape[longest] // op.parts, *shape[longest + 1 :]))
    sums = prims.reduce_sum(b, x, [i + (i >= longest) for i in axes])
    return prims.reduce_sum(b, numpy_astype(b, sums, dtype), [longest - sum(i < longest for i in axes)])


def with_sums_of_parts(mode: Mode, parts: int) -> Mode:
    """Return a mode whose last rewrite divides the sums that accumulate float32 numbers in float64.

    A sum of all numbers in float32 would lose digits: a million terms have an error of up to 1e-4. The rounding of a few partial sums is that
    of the result.
    """

    @node_rewriter([Sum])
    def divide(_fgraph: Any, node: Any) -> list[Any] | None:
        op = node.op
        if type(op) is not Sum or (op.acc_dtype, node.outputs[0].type.dtype) != ("float64", "float32"):
            return None
        return [SumOfParts(parts, axis=op.axis, dtype="float32", acc_dtype="float64")(node.inputs[0])]

    return mode.register((dfs_rewriter(divide), AFTER_ALL_OTHERS))


#: The position of the rewrite; PyTensor's are below 200.
AFTER_ALL_OTHERS = 1000.0
