"""The selections of one graph, the variables that count their lanes, and the lengths of axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.basic import Alloc
from pytensor.tensor.math import Sum
from pytensor.tensor.shape import Shape_i
from pytensor.tensor.subtensor import unflatten_index_variables

from pytensor_jaxpr_linker.graph.facts import BindingTime, Times
from pytensor_jaxpr_linker.graph.lanes.equal_lengths import END, are_equal, is_integer, length_source, lengths_read
from pytensor_jaxpr_linker.graph.lanes.lanes import Lanes, Operand
from pytensor_jaxpr_linker.graph.lanes.ops import only_output
from pytensor_jaxpr_linker.graph.lanes.selection import ONE, ZERO, Mask, Run, Selection, is_step, value_key

#: Returns the outputs of a node on operands that may have lanes, or None if its Op must know their length.
type LaneRule = Callable[[GraphSelections, Apply, Sequence[Operand]], list[Operand] | None]


class GraphSelections:
    """The selections of one graph: equal masks share one, and so do slices with equal bounds.

    `times` says when the value of each variable is known if a rule must know it. `writers` are nodes that write to a
    slice whose bounds depend on no rewritten node: a gradient may be as long as the slice.
    """

    def __init__(self, times: Times, writers: Iterable[Apply] = ()):
        self.times = Times(times.others, times)
        #: The selection whose active lanes a variable counts.
        self.counts: dict[Variable, Selection] = {}
        self._writers = writers
        self._masks: dict[Any, Mask] = {}
        self._whole: dict[Any, Run] = {}
        self._runs: dict[Variable, Run] = {}
        self._lengths: dict[tuple[Variable, int], Variable] = {}

    def time(self, bound: Variable | None) -> BindingTime:
        """Return when the value of a slice's bound is known."""
        if bound is None or isinstance(bound, Constant):
            return BindingTime.CONSTANT
        return self.times[bound]

    def computed_slices(self, entries: Sequence[Any]) -> dict[int, BindingTime]:
        """Return the axes with slices whose bounds don't follow from shapes, and when these are known."""
        found = {}
        for axis, entry in enumerate(entries):
            step = getattr(entry, "step", None)
            is_forward = step is None or (isinstance(step, Constant) and int(step.data) > 0)
            if isinstance(entry, slice) and is_forward:
                known = max(self.time(entry.start), self.time(entry.stop))
                if known > BindingTime.SHAPE:
                    found[axis] = known
        return found

    def forwards(self, entries: Sequence[Any]) -> tuple[list[Any], list[int]]:
        """Return an index whose slices with computed bounds go forwards, and the axes to reverse afterwards."""
        found, reversed_axes = list(entries), []
        for axis, entry in enumerate(entries):
            if not isinstance(entry, slice) or not is_step(entry, -1):
                continue
            if max(self.time(entry.start), self.time(entry.stop)) > BindingTime.SHAPE:
                found[axis] = slice(self._one_on(entry.stop), self._one_on(entry.start))
                reversed_axes.append(axis)
        return found, reversed_axes

    def _one_on(self, bound: Variable | None) -> Variable | None:
        """Return a slice's bound moved on by one. After -1, the last position, comes the end."""
        if bound is None:
            return None
        at_end = pt.constant(END, dtype="int64")
        found = pt.switch(pt.eq(bound, -1), at_end, pt.add(bound, ONE))
        self.times[found] = self.time(bound)
        return found

    @cached_property
    def _written(self) -> list[slice]:
        """The slices with computed bounds that nodes write to."""
        found = []
        for node in self._writers:
            entries = self.forwards(unflatten_index_variables(node.inputs[2:], node.op.idx_list))[0]
            found += [entries[axis] for axis in self.computed_slices(entries)]
        return found

    def of_mask(self, mask: Variable) -> Mask:
        """Return the lanes at which a mask is true."""
        return self._masks.setdefault(mask, Mask(mask))

    def within(self, selection: Selection, mask: Variable) -> Mask:
        """Return the lanes of a selection at which a vector is true."""
        key = (selection, mask)
        if key not in self._masks:
            self._masks[key] = Mask(pt.and_(selection.flat, mask))
        return self._masks[key]

    def run(self, n: Variable, entry: slice) -> Run:
        """Return the run that a slice of an axis of length `n` takes. Its step is ignored."""
        key = value_key(n)
        if key not in self._whole:
            self._whole[key] = Run(ZERO, n, n)
        found = self._whole[key].part(slice(entry.start, entry.stop))
        assert found is not None
        return found[0]

    def as_lanes(self, x: Variable, axis: int, entry: slice) -> Lanes:
        """Return an array whose lanes along an axis are all active, to read or to write the part at `entry`."""
        n = self.length(x, axis)
        run = self.run(n, entry)
        self._runs[run.count] = run
        return Lanes(self._whole[value_key(n)], axis, x, lambda: x, lambda: x)

    def counted(self, count: Variable) -> Selection | None:
        """Return the selection whose active lanes a variable counts, or None."""
        if count in self.counts:
            return self.counts[count]
        return self._counted_run(count) or self._counted_mask(count)

    def _counted_run(self, count: Variable) -> Run | None:
        if count in self._runs or not is_integer(count):
            return self._runs.get(count)
        if self.time(count) < BindingTime.RUNTIME:
            return None
        for length, run in self._runs.items():
            if are_equal(length, count):
                return run
        # A gradient is as long as a slice of one array, and will be written to a slice of another one.
        for n in lengths_read(count):
            for entry in self._written:
                if are_equal((run := self.run(n, entry)).count, count):
                    self._runs[run.count] = run
                    return run
        return None

    def _counted_mask(self, count: Variable) -> Mask | None:
        node = count.owner
        is_sum = node is not None and isinstance(node.op, Sum) and count.type.ndim == 0
        return self.of_mask(node.inputs[0]) if is_sum and is_mask(node.inputs[0]) else None

    def length(self, x: Variable, axis: int) -> Variable:
        """Return the length of an axis of `x`. Arrays that meet in an elementwise Op share it."""
        source, axis = length_source(x, axis)
        if (source, axis) not in self._lengths:
            known = source.type.shape[axis]
            if known is not None:
                found: Variable = pt.constant(known, dtype="int64")
            elif source.owner is not None and isinstance(source.owner.op, Alloc):
                found = source.owner.inputs[1 + axis]
            else:
                found = only_output(Shape_i(axis), source)
            self._lengths[source, axis] = found
        return self._lengths[source, axis]


def is_mask(entry: Any) -> bool:
    """Return whether an index is a boolean array that is computed."""
    return getattr(getattr(entry, "type", None), "dtype", None) == "bool" and not isinstance(entry, Constant)
