"""Lanes that a slice takes: what more Ops they may meet than those that a mask selects. Uses no JAX.

They are side by side. So one of them, some of them and all of them in reverse are a slice again, and those of one slice can be moved to
where those of another one are: ``x[:k] * w[:k][::-1]`` needs all lanes of both and where they begin, no length.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Argmax, Dot
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
    filled,
    identity,
    keep_Dot,
    keep_Elemwise,
    keep_Subtensor,
    meets,
    plain,
    refilled,
    with_lanes,
)
from pytensor_jaxpr_linker.graph.lanes.ops import ShiftLanes, SliceBounds, SliceLanes, WriteLanes, apply

FULL, REVERSED = slice(None), slice(None, None, -1)
ZERO, ONE = pt.constant(0, dtype="int64"), pt.constant(1, dtype="int64")


class SliceSelection(Selection):
    """The lanes of a slice.

    Parameters
    ----------
    start, count
        The first of them, and how many they are.
    n
        How many lanes there are.
    """

    start: Variable

    def __init__(self, start: Variable, count: Variable, n: Variable):
        super().__init__(apply(SliceLanes(), start, count, n), count, start)
        self.n, self.keeps = n, SLICE_KEEPS
        self._parts: dict[Any, SliceSelection] = {}

    def part(self, start: Variable | None, stop: Variable | None) -> SliceSelection:
        """Return the lanes of a slice of these lanes."""
        start, stop = ZERO if start is None else start, self.count if stop is None else stop
        key = (same(start), same(stop))
        if key not in self._parts:
            first, length = SliceBounds().make_node(start, stop, self.count).outputs
            self._parts[key] = SliceSelection(pt.add(self.start, first), length, self.n)
        return self._parts[key]

    @cached_property
    def reversed(self) -> SliceSelection:
        """Where these lanes are if all lanes are put in reverse."""
        found = SliceSelection(pt.sub(pt.sub(self.n, self.start), self.count), self.count, self.n)
        found.__dict__["reversed"] = self
        return found

    def position(self, i: Variable) -> Variable:
        """Return the lane of an index, which may be negative; one out of bounds is out of the bounds of all lanes."""
        i, is_inside = from_start(i, self.count)
        return pt.switch(is_inside, pt.add(i, self.start), self.n)


def from_start(i: Variable, count: Variable) -> tuple[Variable, Variable]:
    """Return an index of `count` elements counted from the first, and whether it is in bounds."""
    i = pt.cast(i, "int64")
    i = pt.switch(pt.lt(i, 0), pt.add(i, count), i)
    return i, pt.and_(pt.ge(i, 0), pt.lt(i, count))


def same(variable: Variable) -> Any:
    """Return what is equal for a variable and for another one of equal value, as far as that is seen."""
    return int(variable.data) if isinstance(variable, Constant) else variable


def is_step(entry: slice, step: int) -> bool:
    """Tell whether the step of a slice is a number."""
    return same(ONE if entry.step is None else entry.step) == step


def reverse(x: Operand, axis: int) -> Operand:
    """Return an array in reverse along an axis."""
    if not isinstance(x, Lanes):
        return backwards(x, axis)
    selection = x.selection
    if x.axis == axis:
        if not isinstance(selection, SliceSelection):
            return backwards(x.compact, axis)
        selection = selection.reversed
    return Lanes(selection, x.axis, x.old, lambda: backwards(x.filled, axis))


def backwards(x: Any, axis: int) -> Variable:
    """Return an array with the elements of one axis in reverse."""
    return x[(*[FULL] * axis, REVERSED)]


def reversed_value(y: Operand, from_end: int) -> Operand:
    """Return what is written to an axis, counted from the last, in reverse; it may have fewer axes."""
    ndim = y.ndim if isinstance(y, Lanes) else y.type.ndim
    return y if ndim < from_end else reverse(y, ndim - from_end)


def moved(x: Lanes, to: SliceSelection, message: str, may_be_one: bool = False) -> Lanes:
    """Return an array with its lanes where those of another slice are, after a check that they are as many.

    Parameters
    ----------
    x
        The array.
    to
        The other slice.
    message
        What the ValueError says if they are not.
    may_be_one
        Whether a single lane may stand for all.
    """
    selection = x.selection
    assert isinstance(selection, SliceSelection)
    if selection is to:
        return x

    def fill() -> Variable:
        found = apply(ShiftLanes(x.axis), x.filled, pt.sub(selection.start, to.start), to.n)
        if selection.count is to.count:
            return found
        fits = pt.eq(selection.count, to.count)
        if may_be_one:
            fits = pt.or_(fits, pt.eq(selection.count, 1))
        return apply(CheckAndRaise(ValueError, message), found, fits)

    return Lanes(to, x.axis, x.old, fill)


def moved_together(operands: Sequence[Operand], message: str) -> list[Operand] | None:
    """Return operands of which all that have lanes have them where the first one has, or None if they are not of slices."""
    to = next(x.selection for x in operands if isinstance(x, Lanes))
    if any(isinstance(x, Lanes) and not isinstance(x.selection, SliceSelection) for x in operands):
        return None
    return [moved(x, to, message) if isinstance(x, Lanes) else x for x in operands]  # type: ignore[arg-type]


def to_be_written(y: Operand, selection: Selection, from_end: int) -> Operand:
    """Return what is written to lanes with its own lanes there; the axis is counted from the last."""
    if not isinstance(y, Lanes) or not isinstance(selection, SliceSelection) or y.ndim - y.axis != from_end:
        return y
    if not isinstance(y.selection, SliceSelection):
        return y
    return moved(y, selection, "could not broadcast a value of another length into a slice", may_be_one=True)


# -- Ops that take lanes -----------------------------------------------------------------------------------------------


def keep_slices_Elemwise(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Elementwise Ops."""
    found = moved_together(operands, "Incompatible Elemwise input shapes: slices of different lengths")
    return None if found is None else keep_Elemwise(node, found)


def keep_slices_Dot(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """A product of matrices."""
    x, y = operands
    if isinstance(x, Lanes) and isinstance(y, Lanes) and (x.axis, y.axis) == (1, 0):
        found = moved_together(operands, "shapes not aligned: slices of different lengths")
        return None if found is None else keep_Dot(node, found)
    return keep_Dot(node, operands)


def lane_entry(x: Lanes, flat: Sequence[Operand], op: Subtensor | IncSubtensor) -> tuple[list[Any], Any]:
    """Return an index of slices and integers, and what of it is for the axis of lanes."""
    entries = list(unflatten_index_variables([plain(v) for v in flat], op.idx_list))
    entries += [FULL] * (x.axis + 1 - len(entries))
    return entries, entries[x.axis]


def keep_slices_Subtensor(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """One of the lanes, some of them, or all in reverse."""
    x, *flat = operands
    assert isinstance(x, Lanes)
    assert isinstance(x.selection, SliceSelection)
    entries, entry = lane_entry(x, flat, node.op)
    if entry == FULL:
        return keep_Subtensor(node, operands)
    if not isinstance(entry, slice):
        entries[x.axis] = x.selection.position(entry)
        idx_list, indices = flatten_index_variables(entries)
        return [apply(Subtensor(idx_list), x.filled, *indices)]
    if any(e != FULL for i, e in enumerate(entries) if i != x.axis):
        return None
    if is_step(entry, 1):
        return refilled(node, x.filled, x.selection.part(entry.start, entry.stop), x.axis)
    if is_step(entry, -1) and entry.start is None is entry.stop:
        return [Lanes(x.selection.reversed, x.axis, node.outputs[0], lambda: backwards(x.filled, x.axis))]
    return None


def keep_slices_IncSubtensor(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Writing to one of the lanes, or to some of them."""
    x, y, *flat = operands
    if not isinstance(x, Lanes):
        return None
    assert isinstance(x.selection, SliceSelection)
    entries, entry = lane_entry(x, flat, node.op)
    if any(e != FULL for i, e in enumerate(entries) if i != x.axis):
        return None
    if not isinstance(entry, slice):
        if isinstance(y, Lanes):
            return None
        entries[x.axis] = x.selection.position(entry)
        idx_list, indices = flatten_index_variables(entries)
        is_set = node.op.set_instead_of_inc
        new = apply(IncSubtensor(idx_list, set_instead_of_inc=is_set), x.filled, y, *indices)
        return refilled(node, new, x.selection, x.axis)
    from_end, selection = x.ndim - x.axis, x.selection
    if is_step(entry, -1) and entry.start is None is entry.stop:
        y = reversed_value(y, from_end)
    elif is_step(entry, 1):
        selection = x.selection.part(entry.start, entry.stop)
    else:
        return None
    y = to_be_written(y, selection, from_end)
    if not meets(y, selection, from_end):
        return None
    op = WriteLanes(x.axis, node.op.set_instead_of_inc, False)
    return refilled(node, apply(op, x.filled, filled(y), selection.flat), x.selection, x.axis)


def is_beside(x: Operand, op: AdvancedSubtensor | AdvancedIncSubtensor, flat: Sequence[Operand]) -> bool:
    """Tell whether one vector indexes an axis other than that of lanes, so that each axis stays where it is."""
    entries = unflatten_index_variables(flat, op.idx_list)
    arrays = [i for i, e in enumerate(entries) if not isinstance(e, slice)]
    if not isinstance(x, Lanes) or len(arrays) != 1 or arrays[0] == x.axis:
        return False
    (index,) = (e for e in entries if not isinstance(e, slice))
    return not isinstance(index, Lanes) and index.type.ndim == 1 and all(e in (index, FULL) for e in entries)


def keep_slices_AdvancedSubtensor(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Reading at a vector along another axis."""
    x, *flat = operands
    if not is_beside(x, node.op, flat):
        return None
    assert isinstance(x, Lanes)
    return with_lanes(node, operands, x.selection, x.axis)


def keep_slices_AdvancedIncSubtensor(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Writing at a vector along another axis."""
    x, y, *flat = operands
    if not is_beside(x, node.op, flat):
        return None
    assert isinstance(x, Lanes)
    from_end = x.ndim - x.axis
    y = to_be_written(y, x.selection, from_end)
    if not meets(y, x.selection, from_end):
        return None
    return with_lanes(node, [x, y, *flat], x.selection, x.axis)


def keep_slices_CumOp(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Cumulative sums and products: lanes before the first that is used add 0, or multiply by 1."""
    (x,) = operands
    assert isinstance(x, Lanes)
    if x.axis != node.op.axis:
        return with_lanes(node, operands, x.selection, x.axis)
    return refilled(node, apply(node.op, x.used(0 if node.op.mode == "add" else 1)), x.selection, x.axis)


def keep_Argmax(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """The position of the largest of the lanes, or along another axis."""
    (x,) = operands
    assert isinstance(x, Lanes)
    axes = tuple(range(x.ndim)) if node.op.axis is None else node.op.axis
    if x.axis not in axes:
        return with_lanes(node, operands, x.selection, x.axis - sum(axis < x.axis for axis in axes))
    lowest = identity(pt.maximum.scalar_op, x.filled.type.dtype)
    if axes != (x.axis,) or lowest is None:
        return None
    (found,) = node.clone_with_new_inputs([x.used(lowest)], strict=False).outputs
    # Of lanes that are all as low as those that are not used, the first is the largest.
    assert x.selection.start is not None
    place = pt.maximum(pt.sub(found, x.selection.start), 0)
    error = CheckAndRaise(ValueError, "attempt to get argmax of an empty sequence")
    return [apply(error, place, pt.gt(x.selection.count, 0))]


#: What becomes of lanes of a slice, by class of Op.
SLICE_KEEPS: dict[type, Keep] = {
    **KEEPS,
    AdvancedIncSubtensor: keep_slices_AdvancedIncSubtensor,
    AdvancedSubtensor: keep_slices_AdvancedSubtensor,
    Argmax: keep_Argmax,
    CumOp: keep_slices_CumOp,
    Dot: keep_slices_Dot,
    Elemwise: keep_slices_Elemwise,
    IncSubtensor: keep_slices_IncSubtensor,
    Subtensor: keep_slices_Subtensor,
}
