"""Ops on a padded axis that need its lanes to be at the beginning: sorting, joining and splitting along it, blocks at its ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import MakeVector

from pytensor_jaxpr_linker.graph.lanes.graph_selections import GraphSelections
from pytensor_jaxpr_linker.graph.lanes.lanes import (
    Lanes,
    Operand,
    filled,
    first_lanes,
    for_all_lanes,
    refilled,
    selected_lanes,
)
from pytensor_jaxpr_linker.graph.lanes.ops import DynamicSlice, DynamicUpdate, only_output
from pytensor_jaxpr_linker.graph.lanes.selection import PaddedRun

# -- sorting -----------------------------------------------------------------------------------------------------------


def sorted_lanes(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """`SortOp` and `ArgSortOp`: inactive lanes hold what sorts last. They stand behind equal active ones, and sorts are stable."""
    x, axis = first_lanes(operands), sorted_axis_of(node)
    if axis is None:
        return None
    if x.axis != axis:
        return for_all_lanes(node, operands, x.selection, x.axis)
    if not isinstance(x.selection, PaddedRun) or (last := sorted_last(x.filled.type.dtype)) is None:
        return None
    (new,) = node.clone_with_new_inputs([x.with_neutral(last), *map(filled, operands[1:])], strict=False).outputs
    return refilled(node, new, x.selection, axis)


def sorted_axis_of(node: Apply) -> int | None:
    """Return the axis of a sort: PyTensor 3.3.0 has it among the operands, later versions in the Op."""
    if len(node.inputs) == 1:
        return int(node.op.axis)
    axis = node.inputs[1]
    return int(axis.data) % node.inputs[0].type.ndim if isinstance(axis, Constant) else None


def sorted_last(dtype: str) -> float | int | bool | None:
    """Return the element of a dtype that sorts last, or None for complex numbers."""
    kind = np.dtype(dtype).kind
    return np.nan if kind == "f" else True if kind == "b" else None if kind == "c" else np.iinfo(dtype).max


# -- joining and splitting ---------------------------------------------------------------------------------------------


def joined_with_blocks(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """`Join` along a padded axis of one array with others of known lengths: the lanes of the joined axis are padded, too."""
    axis, x = node.op.axis, first_lanes(operands)
    i = operands.index(x)
    lengths = [None if isinstance(y, Lanes) else y.type.shape[axis] for y in operands]
    lengths[i] = 0
    if not isinstance(x.selection, PaddedRun) or x.axis != axis or None in lengths:
        return None
    before, after = sum(lengths[:i]), sum(lengths[i:])  # type: ignore[arg-type]

    def fill() -> Variable:
        joined: Any
        (joined,) = node.clone_with_new_inputs([filled(y) for y in operands], strict=False).outputs
        if not after:
            return joined
        # Behind the padding these are copies of lanes. The lanes themselves follow the active ones.
        block = joined[(*[slice(None)] * axis, slice(-after, None))]
        start = pt.add(x.selection.count, before)
        return only_output(DynamicUpdate((axis,), True), joined, block, start, pt.constant(after, dtype="int64"))

    return [Lanes(x.selection.shorter(-before - after), axis, node.outputs[0], fill)]


def split_lanes(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """`Split` of a padded axis, as in the gradient of `Join`: all parts but one have known lengths. Or along another axis."""
    x, sizes = operands
    if not isinstance(x, Lanes) or isinstance(sizes, Lanes):
        return None
    if x.axis != (axis := node.op.axis):
        return for_all_lanes(node, operands, x.selection, x.axis)
    parts = sizes.owner.inputs if sizes.owner is not None and isinstance(sizes.owner.op, MakeVector) else []
    lengths = [int(v.data) if isinstance(v, Constant) else None for v in parts]
    if not isinstance(x.selection, PaddedRun) or lengths.count(None) != 1 or min((n or 0) for n in lengths) < 0:
        return None
    i = lengths.index(None)
    before, after = sum(n or 0 for n in lengths[:i]), sum(n or 0 for n in lengths[i:])
    run, all_lanes = x.selection.shorter(before + after), cast("Any", x.filled)
    open_part = all_lanes[(*[slice(None)] * axis, slice(before, -after or None))]
    if parts[i] is not run.count:
        check = CheckAndRaise(ValueError, "Split sizes do not sum to the length of the axis")
        open_part = only_output(check, open_part, pt.eq(parts[i], run.count))
    found: list[Operand] = []
    for place, (n, old) in enumerate(zip(lengths, node.outputs, strict=True)):
        if n is None:
            found.append(selected_lanes(open_part, run, run.flat, axis, old))
        else:
            offset = sum(n or 0 for n in lengths[:place])
            start = pt.constant(offset, dtype="int64") if place < i else pt.add(run.count, offset)
            found.append(block_at(x, start, n))
    return found


# -- blocks ------------------------------------------------------------------------------------------------------------


def block_at(x: Lanes, start: Variable, length: int) -> Variable:
    """Return lanes from a computed start on, of a known length."""
    return only_output(DynamicSlice((x.axis,)), x.filled, start, pt.constant(length, dtype="int64"))


def with_block(x: Lanes, start: Variable, length: int, block: Variable) -> Variable:
    """Return all lanes with a block in the place of those that `block_at` returns."""
    bounds = start, pt.constant(length, dtype="int64")
    return only_output(DynamicUpdate((x.axis,), True), x.filled, block, *bounds)
