"""Sorting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.sort import ArgSortOp, SortOp

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.jaxpr import prims


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
