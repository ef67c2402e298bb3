"""Lanes of which the first are used: what more Ops they may meet than those that a mask selects. Uses no JAX.

The lanes of a padded axis are such (see `padding`). An element is in the same place with and without the others, so
cumulative sums, positions of extrema and single elements are the same; and if there is a lane at all that is not used, it
repeats one that is, or what is computed of it, so it may be an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.compile.ops import DeepCopyOp, TypeCastingOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.basic import ARange, Join
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Argmax
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    flatten_index_variables,
    unflatten_index_variables,
)

from pytensor_jaxpr_linker.graph.lanes.lanes import (
    KEEPS,
    Keep,
    Lanes,
    Operand,
    Selection,
    common_lanes,
    filled,
    keep_Subtensor,
    meets,
    plain,
    refilled,
    with_lanes,
)
from pytensor_jaxpr_linker.graph.lanes.of_slices import FULL, ONE, ZERO, from_start, is_step, keep_Argmax
from pytensor_jaxpr_linker.graph.lanes.ops import FillLanes, SliceLanes, WriteLanes, apply


class Prefix(Selection):
    """The first `count` of `n` lanes.

    Attributes
    ----------
    least
        How many must be used: one that is not used has one to repeat then, in `shorter` ones, too.
    whole, dropped
        What this is a `shorter` one of, or itself, and how many lanes less it has.
    """

    def __init__(self, count: Variable, n: Variable):
        super().__init__(apply(SliceLanes(), ZERO, count, n), count, ZERO)
        self.n, self.least, self.keeps = n, 0, PREFIX_KEEPS
        self.whole, self.dropped = self, 0
        self._shorter: dict[int, Prefix] = {}

    def shorter(self, k: int) -> Prefix:
        """Return the same with `k` lanes less, and as many less that are used."""
        whole, dropped = self.whole, self.dropped + k
        whole.least = max(whole.least, dropped + 1)
        if dropped not in whole._shorter:
            found = Prefix(pt.sub(whole.count, dropped), pt.sub(whole.n, dropped))
            found.whole, found.dropped = whole, dropped
            whole._shorter[dropped] = found
        return whole._shorter[dropped]

    def position(self, i: Variable) -> Variable:
        """Return the lane of an index, which may be negative; one out of bounds is out of the bounds of all lanes."""
        i, is_inside = from_start(i, self.count)
        return pt.switch(is_inside, i, self.n)


def positions(node: Apply, selection: Prefix) -> Lanes:
    """Return the lanes of what ``arange(count)`` makes."""
    (old,) = node.outputs
    return Lanes(
        selection,
        0,
        old,
        lambda: pt.minimum(apply(ARange("int64"), ZERO, selection.n, ONE), pt.sub(selection.count, 1)).astype(
            old.type.dtype
        ),
    )


def keep_Subtensor_prefix(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """One of the lanes, or all but so many at either end."""
    x, *flat = operands
    assert isinstance(x, Lanes)
    assert isinstance(x.selection, Prefix)
    entries = list(unflatten_index_variables([plain(v) for v in flat], node.op.idx_list))
    entry = entries[x.axis] if x.axis < len(entries) else FULL
    if entry == FULL:
        return keep_Subtensor(node, operands)
    if not isinstance(entry, slice):
        entries[x.axis] = x.selection.position(entry)
        idx_list, indices = flatten_index_variables(entries)
        return [apply(Subtensor(idx_list), x.filled, *indices)]
    cut = cut_off(entry)
    if cut is None:
        return None
    axis = x.axis - sum(not isinstance(e, slice) for e in entries[: x.axis])
    idx_list, indices = flatten_index_variables(entries)
    return refilled(node, apply(Subtensor(idx_list), x.filled, *indices), x.selection.shorter(cut), axis)


def cut_off(entry: slice) -> int | None:
    """Return how many elements a slice leaves out, if that is said by constants."""
    start, stop = (
        0 if v is None else int(v.data) if isinstance(v, Constant) else None for v in (entry.start, entry.stop)
    )
    if start is None or stop is None or start < 0 or stop > 0 or not is_step(entry, 1):
        return None
    return None if stop == 0 and entry.stop is not None else start - stop


def keep_IncSubtensor(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Writing to other axes, or to all lanes but so many at either end."""
    x, y, *flat = operands
    if not isinstance(x, Lanes):
        return None
    assert isinstance(x.selection, Prefix)
    entries = list(unflatten_index_variables([plain(v) for v in flat], node.op.idx_list))
    entry = entries[x.axis] if x.axis < len(entries) else FULL
    cut = 0 if entry == FULL else cut_off(entry) if isinstance(entry, slice) else None
    if cut is None:
        return None
    written = x.selection.shorter(cut) if cut else x.selection
    from_end = x.ndim - x.axis - sum(not isinstance(e, slice) for e in entries[x.axis :])
    if not meets(y, written, from_end):
        return None
    if not cut:
        return with_lanes(node, operands, x.selection, x.axis)
    idx_list, indices = flatten_index_variables(entries)
    part = apply(Subtensor(idx_list), x.filled, *indices)
    value = y.filled if isinstance(y, Lanes) else y
    axis = part.type.ndim - from_end
    part = apply(WriteLanes(axis, node.op.set_instead_of_inc, False), part, value, written.flat)
    new = apply(IncSubtensor(idx_list, set_instead_of_inc=True), x.filled, part, *indices)
    return refilled(node, new, x.selection, x.axis)


def index_axis(x: Operand, entries: Sequence[Any]) -> int | None:
    """Return the axis of lanes that vectors of lanes index, side by side between full slices, or None.

    Lanes are indexed by their own positions only: the length of the axis would not tell whether others are in bounds.
    """
    arrays = [i for i, e in enumerate(entries) if not isinstance(e, slice)]
    first, last = arrays[0], arrays[-1]
    if len(arrays) != last - first + 1 or any(e != FULL for e in entries if isinstance(e, slice)):
        return None
    lanes = [v for v in entries[first : last + 1] if isinstance(v, Lanes) and v.ndim == 1]
    if len(lanes) < len(arrays) or any(v.selection is not lanes[0].selection for v in lanes):
        return None
    if isinstance(x, Lanes) and not (
        x.selection is lanes[0].selection and first <= x.axis <= last and is_position(entries[x.axis])
    ):
        return None
    return first


def is_position(x: Lanes) -> bool:
    """Tell whether lanes are their own positions."""
    return x.old.owner is not None and isinstance(x.old.owner.op, ARange)


def keep_AdvancedSubtensor(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Reading at vectors of lanes."""
    x, *flat = operands
    axis = index_axis(x, unflatten_index_variables(flat, node.op.idx_list))
    if axis is None:
        return None
    return with_lanes(node, operands, next(v for v in flat if isinstance(v, Lanes)).selection, axis)


def keep_AdvancedIncSubtensor(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Adding at vectors of lanes: what is added by those that are not used is 0."""
    x, y, *flat = operands
    axis = index_axis(x, unflatten_index_variables(flat, node.op.idx_list))
    if axis is None or node.op.set_instead_of_inc:
        return None
    index = [v for v in flat if isinstance(v, Lanes)]
    selection, ndim = index[0].selection, node.outputs[0].type.ndim - len(index) + 1
    if not meets(y, selection, ndim - axis):
        return None
    added = pt.switch(selection.along(axis, ndim), filled(y), pt.constant(0, dtype=filled(y).type.dtype))
    (new,) = node.clone_with_new_inputs([filled(x), added, *map(filled, flat)], strict=False).outputs
    return refilled(node, new, selection, x.axis) if isinstance(x, Lanes) else [new]


def keep_CumOp(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Cumulative sums and products."""
    (x,) = operands
    assert isinstance(x, Lanes)
    if x.axis != node.op.axis:
        return with_lanes(node, operands, x.selection, x.axis)
    # Where 0 is added, or by 1 multiplied, the last lane that is used is repeated.
    x_used = x.used(0 if node.op.mode == "add" else 1)
    return [Lanes(x.selection, x.axis, node.outputs[0], lambda: apply(node.op, x_used))]


def keep_FillLanes(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """The lanes at which a mask with the same lanes is true: whatever is not used repeats one that is."""
    x, mask = operands
    if not isinstance(x, Lanes) or not isinstance(mask, Lanes) or mask.ndim != 1:
        return None
    if mask.selection is not x.selection or x.axis != node.op.axis:
        return None
    return with_lanes(node, operands, x.selection, x.axis)


def keep_WriteLanes(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Writing to those lanes at which a mask with the same lanes is true."""
    x, y, mask = operands
    if not isinstance(x, Lanes) or not isinstance(mask, Lanes) or mask.ndim != 1 or node.op.is_compact:
        return None
    from_end = x.ndim - x.axis
    if mask.selection is not x.selection or x.axis != node.op.axis or not meets(y, x.selection, from_end):
        return None
    return with_lanes(node, operands, x.selection, x.axis)


def keep_Blockwise(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Batches of lanes."""
    first = common_lanes(operands)
    if first is None or first.axis >= node.op.batch_ndim(node):
        return None
    return with_lanes(node, operands, first.selection, first.axis)


def keep_copy(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Copies and views."""
    (x,) = operands
    assert isinstance(x, Lanes)
    return with_lanes(node, operands, x.selection, x.axis)


def keep_Join(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Arrays that all have the lanes, along another axis."""
    first = next(x for x in operands if isinstance(x, Lanes))
    same = all(isinstance(x, Lanes) and x.selection is first.selection and x.axis == first.axis for x in operands)
    if not same or node.op.axis == first.axis:
        return None
    return with_lanes(node, operands, first.selection, first.axis)


#: What becomes of lanes of which the first are used, by class of Op.
PREFIX_KEEPS: dict[type, Keep] = {
    **KEEPS,
    AdvancedIncSubtensor: keep_AdvancedIncSubtensor,
    AdvancedSubtensor: keep_AdvancedSubtensor,
    Argmax: keep_Argmax,
    Blockwise: keep_Blockwise,
    CumOp: keep_CumOp,
    DeepCopyOp: keep_copy,
    FillLanes: keep_FillLanes,
    IncSubtensor: keep_IncSubtensor,
    Join: keep_Join,
    Subtensor: keep_Subtensor_prefix,
    TypeCastingOp: keep_copy,
    WriteLanes: keep_WriteLanes,
}
