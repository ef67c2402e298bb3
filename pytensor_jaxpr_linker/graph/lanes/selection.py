"""Which lanes of an axis are active: the elements at which a mask is true, or a run of neighbours.

The length of ``x[m]`` depends on the values of `m`, and a compiled program can't depend on it. So the program computes
with all elements of `x`, its *lanes*, and a selection says which of them are active.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.subtensor import Subtensor, flatten_index_variables

from pytensor_jaxpr_linker.graph.lanes.ops import Compact, DynamicSlice, SliceBounds, SliceLanes, only_output

FULL, REVERSED = slice(None), slice(None, None, ps.constant(-1, dtype="int64"))
ZERO, ONE = pt.constant(0, dtype="int64"), pt.constant(1, dtype="int64")


class Selection:
    """The active lanes of an axis: a `Mask` or a `Run`."""

    mask: Variable  #: a boolean array, true for the active lanes
    count: Variable  #: the number of active lanes
    #: Whether an axis with lanes has an active one. Then each inactive lane holds a copy of an active one, which is a
    #: valid index, or a matrix that can be decomposed.
    never_empty = False
    is_whole = False  #: whether all lanes are active

    def __init__(self) -> None:
        self._along: dict[tuple[int, int], Variable] = {}

    @cached_property
    def flat(self) -> Variable:
        """The mask as a vector."""
        return self.mask if self.mask.type.ndim == 1 else pt.reshape(self.mask, (-1,))

    def along(self, axis: int, ndim: int) -> Variable:
        """Return the mask as an array of `ndim` dimensions that broadcasts along all but `axis`."""
        if (axis, ndim) not in self._along:
            self._along[axis, ndim] = pt.expand_dims(self.flat, [i for i in range(ndim) if i != axis])
        return self._along[axis, ndim]

    def compact(self, x: Variable, axis: int, mask: Variable) -> Variable:
        """Return the active lanes of `x`. `mask` indexes `axis` and the following axes."""
        return only_output(Compact(axis), x, mask, self.count)


class Mask(Selection):
    """The lanes at which a boolean array is true."""

    def __init__(self, mask: Variable):
        super().__init__()
        self.mask = mask

    @cached_property
    def count(self) -> Variable:  # type: ignore[override]
        """The number of active lanes."""
        count = pt.sum(self.mask, dtype="int64")
        if self.mask.name:
            count.name = f"{self.mask.name}.sum()"
        return count


class Run(Selection):
    """Neighbouring lanes: `count` of `n`, from `start` on.

    A slice of a run is a run, and so is a run in reverse. Two runs of equal counts differ by a shift. So a program for
    ``x[:k] * w[:k][::-1]`` need not know `k`: it takes all lanes of both arrays, and where the runs start.
    """

    def __init__(self, start: Variable, count: Variable, n: Variable):
        super().__init__()
        self.start, self.count, self.n = start, count, n
        self.is_whole = count is n
        self._parts: dict[Any, Run] = {}

    @cached_property
    def mask(self) -> Variable:  # type: ignore[override]
        """A vector, true for the active lanes."""
        return only_output(SliceLanes(), self.start, self.count, self.n)

    def compact(self, x: Variable, axis: int, mask: Variable) -> Variable:
        """Return the active lanes of `x`."""
        return only_output(DynamicSlice((axis,)), x, self.start, self.count)

    def part(self, entry: slice) -> tuple[Run, slice] | None:
        """Return the run that a slice of this run takes, and a slice of all lanes that holds it; or None."""
        if is_step(entry, -1) and entry.start is None is entry.stop:
            return self.reversed, REVERSED
        if not is_step(entry, 1):
            return None
        start, stop = ZERO if entry.start is None else entry.start, self.count if entry.stop is None else entry.stop
        key = (value_key(start), value_key(stop))
        if key not in self._parts:
            first, length = SliceBounds().make_node(start, stop, self.count).outputs
            self._parts[key] = Run(self._lane(first), length, self.n)
        return self._parts[key], FULL

    def _lane(self, i: Variable) -> Variable:
        return i if self.start is ZERO else pt.add(i, self.start)

    @cached_property
    def reversed(self) -> Run:
        """The run of the same elements in the array with all lanes in reverse."""
        found = Run(pt.sub(pt.sub(self.n, self.start), self.count), self.count, self.n)
        found.__dict__["reversed"] = self
        return found

    def lane(self, i: Variable) -> Variable:
        """Return the lane of element `i` of the run. An index out of the run's bounds gets a lane out of bounds."""
        i = pt.cast(i, "int64")
        i = pt.switch(pt.lt(i, 0), pt.add(i, self.count), i)
        is_inside = pt.and_(pt.ge(i, 0), pt.lt(i, self.count))
        return pt.switch(is_inside, self._lane(i), self.n)


class PaddedRun(Run):
    """The first `count` of `n` lanes: an axis of length `count`, padded to length `n` with copies of its first element.

    With a constant `count`, Ops may know the length, and arrays without lanes are padded as well.
    """

    never_empty = True

    def __init__(self, count: Variable, n: Variable):
        super().__init__(ZERO, count, n)
        #: The smallest `count` for which each run that `part` returned has an active lane.
        self.least = 0
        #: The run that this one is a part of, or itself, and how many lanes less it has.
        self.whole, self.dropped = self, 0
        self._shorter: dict[int, PaddedRun] = {}

    @property
    def length(self) -> int | None:
        """The number of active lanes if it is a constant."""
        count = self.whole.count
        return int(count.data) - self.dropped if isinstance(count, Constant) else None

    def part(self, entry: slice) -> tuple[Run, slice] | None:
        """Return the run of a slice that reverses, or leaves out a constant number of lanes at the ends; or None.

        The array is cut as the run is. So ``x[1:]`` and ``x[:-1]`` have the same run.
        """
        dropped = dropped_by(entry)
        if dropped is None:
            return None
        run = self.shorter(dropped) if dropped else self
        if is_step(entry, 1):
            return run, entry
        return run.reversed, entry if dropped else REVERSED

    def block(self, entry: slice) -> tuple[Variable, int] | None:
        """Return the first lane and the length of a slice of constant length, as ``x[:3]`` or ``x[-3:]``; else None."""
        if not is_step(entry, 1) or (bounds := constant_bounds(entry)) is None:
            return None
        start, stop = bounds[0] or 0, bounds[1]
        if (stop is None or stop < 0) != (start < 0):
            return None
        self.whole.least = max(self.whole.least, self.dropped + (-start if stop is None or start < 0 else stop))
        first = pt.constant(start, dtype="int64") if start >= 0 else pt.add(self.count, start)
        return first, max((stop or 0) - start, 0)

    def shorter(self, k: int) -> PaddedRun:
        """Return the run with `k` lanes less, or more if it is negative."""
        whole, dropped = self.whole, self.dropped + k
        if not dropped:
            return whole
        whole.least = max(whole.least, dropped + 1)
        if dropped not in whole._shorter:
            found = PaddedRun(pt.sub(whole.count, dropped), pt.sub(whole.n, dropped))
            found.whole, found.dropped = whole, dropped
            whole._shorter[dropped] = found
        return whole._shorter[dropped]


def dropped_by(entry: slice) -> int | None:
    """Return the number of elements that a slice leaves out, if the length does not change it; or None."""
    if (bounds := constant_bounds(entry)) is None:
        return None
    start, stop = bounds
    if is_step(entry, -1):
        if stop == -1:  # no element
            return None
        start, stop = None if stop is None else stop + 1, None if start in (None, -1) else start + 1
    elif not is_step(entry, 1):
        return None
    start = 0 if start is None else start
    if start < 0 or (stop is not None and stop >= 0):
        return None
    return start - (stop or 0)


def constant_bounds(entry: slice) -> tuple[int | None, int | None] | None:
    """Return the bounds of a slice as numbers where it has them, or None if one is computed."""
    start, stop = (int(v.data) if isinstance(v, Constant) else v for v in (entry.start, entry.stop))
    return None if isinstance(start, Variable) or isinstance(stop, Variable) else (start, stop)


def value_key(variable: Variable) -> Any:
    """Return a key: equal constants share one."""
    return int(variable.data) if isinstance(variable, Constant) else variable


def is_step(entry: slice, step: int) -> bool:
    """Return whether a slice has the step `step`."""
    return value_key(ONE if entry.step is None else entry.step) == step


def indexed(x: Variable, entries: list[Any]) -> Variable:
    """Return `x` at slices and integers."""
    if all(entry == FULL for entry in entries):
        return x
    idx_list, flat = flatten_index_variables(entries)
    return only_output(Subtensor(idx_list), x, *flat)
