"""Arrays with lanes: all elements along one axis, and the selection of the active ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.raise_op import CheckAndRaise

from pytensor_jaxpr_linker.graph.lanes.ops import FillLanes, PadLanes, ShiftLanes, WriteLanes, only_output
from pytensor_jaxpr_linker.graph.lanes.selection import FULL, REVERSED, PaddedRun, Run, Selection, indexed


class Lanes:
    """An array whose length along one axis is unknown: its value in all lanes, and which lanes are active.

    `old` is the variable of the user's graph. `fill` makes the array with all lanes; inactive lanes must hold valid
    values, such as copies of an active lane. `compact` makes the array with the active lanes; by default they are
    selected from all lanes.
    """

    def __init__(
        self,
        selection: Selection,
        axis: int,
        old: Variable,
        fill: Callable[[], Variable],
        compact: Callable[[], Variable] | None = None,
    ):
        self.selection, self.axis, self.old = selection, axis, old
        self._fill, self._compact = fill, compact

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.old.type.ndim

    @cached_property
    def filled(self) -> Variable:
        """The array with all lanes."""
        return named(self._fill(), self.old)

    @cached_property
    def compact(self) -> Variable:
        """The array with the active lanes, of the length that it has in the user's graph."""
        if self._compact is not None:
            return named(self._compact(), self.old)
        return named(self.selection.compact(self.filled, self.axis, self.selection.flat), self.old)

    def with_neutral(self, value: Any) -> Variable:
        """Return the array with all lanes, with `value` in the inactive ones."""
        x = self.filled
        return pt.switch(self.selection.along(self.axis, self.ndim), x, pt.constant(value, dtype=x.type.dtype))


type Operand = Variable | Lanes


def plain(operand: Operand) -> Variable:
    """Return an operand in the length that it has in the user's graph."""
    return operand.compact if isinstance(operand, Lanes) else operand


def filled(operand: Operand) -> Variable:
    """Return an operand with all lanes."""
    return operand.filled if isinstance(operand, Lanes) else operand


def named(new: Variable, old: Variable) -> Variable:
    """Give a variable the name and the line of the user's variable that it replaces."""
    if new is not old and new.owner is not None:
        new.name = new.name or old.name
        if trace := getattr(old.tag, "trace", None):
            new.tag.trace = trace
    return new


# -- several operands --------------------------------------------------------------------------------------------------


def first_lanes(operands: Sequence[Operand]) -> Lanes:
    """Return the first operand with lanes."""
    return next(x for x in operands if isinstance(x, Lanes))


def common_lanes(operands: Sequence[Operand]) -> Lanes | None:
    """Return the first operand with lanes if the others have the same lanes, or broadcast along them; or None."""
    first = first_lanes(operands)
    for x in operands:
        if isinstance(x, Lanes):
            if x.selection is not first.selection or x.axis != first.axis:
                return None
        elif x.type.shape[first.axis] != 1:
            return None
    return first


def rank(x: Operand) -> int:
    """Return the number of dimensions of an operand."""
    return x.ndim if isinstance(x, Lanes) else x.type.ndim


def has_lanes(y: Operand, selection: Selection, from_end: int) -> bool:
    """Return whether `y` has the lanes along an axis, counted from the last, or broadcasts along it."""
    if isinstance(y, Lanes):
        return y.selection is selection and y.ndim - y.axis == from_end
    return y.type.ndim < from_end or y.type.shape[-from_end] == 1


def with_lanes_of(x: Operand, lanes: Lanes, from_end: int) -> Operand:
    """Return an array to be broadcast with `lanes`, as `padded_like` makes it; the axis counts from the last."""
    return x if rank(x) < from_end else padded_like(x, lanes, rank(x) - from_end)


def moved[T: Operand](x: T, to: Selection, message: str, may_be_one: bool = False) -> T | Lanes:
    """Return an array with its run of lanes moved to the place of the run `to`.

    If the counts differ, the program raises a ValueError with `message`.

    An array without lanes, or with the lanes of a mask, is returned as it is. With `may_be_one`, a single lane may
    stand for all.
    """
    if not isinstance(x, Lanes) or not isinstance(run := x.selection, Run) or not isinstance(to, Run) or run is to:
        return x

    def fill() -> Variable:
        found = only_output(ShiftLanes(x.axis), x.filled, pt.sub(run.start, to.start), to.n)
        if run.count is to.count:
            return found
        may_move = pt.eq(run.count, to.count)
        if may_be_one:
            may_move = pt.or_(may_move, pt.eq(run.count, 1))
        return only_output(CheckAndRaise(ValueError, message), found, may_move)

    return Lanes(to, x.axis, x.old, fill)


def moved_together(operands: Sequence[Operand], message: str) -> list[Operand]:
    """Return operands whose runs of lanes are where the first one is."""
    to = first_lanes(operands).selection
    return [moved(x, to, message) for x in operands]


def padded_like(x: Operand, lanes: Lanes, axis: int) -> Operand:
    """Return an array without lanes with the lanes of an axis that is padded from a constant length.

    Any other array is returned as it is.

    The axis of `x` must have that length, or be declared to have the length 1.
    """
    run = lanes.selection
    if isinstance(x, Lanes) or not isinstance(run, PaddedRun) or run.length is None or x.type.shape[axis] == 1:
        return x
    pad = PadLanes(axis, run.length)
    return Lanes(run, axis, x, lambda: only_output(pad, x, run.n), lambda: x)


def padded_together(operands: Sequence[Operand]) -> list[Operand]:
    """Return operands of one rank with the lanes of the first that has lanes, as `padded_like` makes them."""
    first = first_lanes(operands)
    return [padded_like(x, first, first.axis) for x in operands]


def to_be_written(y: Operand, selection: Selection, from_end: int) -> Operand:
    """Return a value for a write to a selection: its run of lanes is moved there. The axis is counted from the last."""
    if not isinstance(y, Lanes) or y.ndim - y.axis != from_end:
        return y
    return moved(y, selection, "could not broadcast a value of another length into a slice", may_be_one=True)


# -- reading and writing -----------------------------------------------------------------------------------------------


def selected_lanes(x: Variable, selection: Selection, mask: Variable, axis: int, old: Variable) -> Lanes:
    """Return the selected elements of `x`. `mask`, or its flat form, indexes `axis` and the axes behind it."""
    if selection.is_whole:
        return Lanes(selection, axis, old, lambda: x, lambda: x)
    return Lanes(
        selection, axis, old, lambda: only_output(FillLanes(axis), x, mask), lambda: selection.compact(x, axis, mask)
    )


def write(x: Variable, y: Operand, selection: Selection, axis: int, is_set: bool) -> Variable:
    """Return `x` with the selected elements set to, or incremented by, `y`."""
    from_end = x.type.ndim - selection.mask.type.ndim + 1 - axis
    y = to_be_written(y, selection, from_end)
    if not has_lanes(y, selection, from_end):
        y = plain(y)
    is_compact = not has_lanes(y, selection, from_end)
    return only_output(WriteLanes(axis, is_set, is_compact), x, filled(y), selection.mask)


def reverse(x: Operand, axis: int) -> Operand:
    """Return an array in reverse along an axis."""
    index = [*[FULL] * axis, REVERSED]
    if not isinstance(x, Lanes):
        return indexed(x, index)
    selection = x.selection
    if x.axis == axis:
        if not isinstance(selection, Run):
            return indexed(x.compact, index)
        selection = selection.reversed
    return Lanes(selection, x.axis, x.old, lambda: indexed(x.filled, index))


def reversed_value(y: Operand, from_end: int) -> Operand:
    """Return a value for a write to an axis in reverse. The axis is counted from the last; the value may have fewer."""
    return y if rank(y) < from_end else reverse(y, rank(y) - from_end)


# -- results of rules --------------------------------------------------------------------------------------------------


def for_all_lanes(node: Apply, operands: Sequence[Operand], selection: Selection, axis: int) -> list[Operand]:
    """Return the outputs of a node computed for all lanes. They have the selection's lanes along `axis`."""
    copied = node.clone_with_new_inputs([filled(x) for x in operands], strict=False)
    return [
        Lanes(selection, axis, old, lambda new=new: new)  # type: ignore[misc]
        for old, new in zip(node.outputs, copied.outputs, strict=True)
    ]


def refilled(node: Apply, new: Variable, selection: Selection, axis: int) -> list[Operand]:
    """Return the output of a node from `new`, which may hold anything in inactive lanes."""
    return [selected_lanes(new, selection, selection.flat, axis, node.outputs[0])]
