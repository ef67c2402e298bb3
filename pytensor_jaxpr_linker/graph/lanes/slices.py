"""Slices whose bounds are computed: where they start, how long they are, and which lanes they take. Uses no JAX."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.basic import Alloc
from pytensor.tensor.shape import Shape_i
from pytensor.tensor.subtensor import IncSubtensor, Subtensor, flatten_index_variables, unflatten_index_variables

from pytensor_jaxpr_linker.graph.facts import BindingTime, Times
from pytensor_jaxpr_linker.graph.lanes.equal_lengths import END, are_equal, is_integer, length_source, lengths_read
from pytensor_jaxpr_linker.graph.lanes.lanes import Operand, named, plain, select, write
from pytensor_jaxpr_linker.graph.lanes.of_slices import FULL, ONE, ZERO, SliceSelection, is_step, same, to_be_written
from pytensor_jaxpr_linker.graph.lanes.ops import DynamicSlice, DynamicUpdate, SliceBounds, apply


class Slices:
    """Replaces reads and writes at slices of one graph.

    Parameters
    ----------
    times
        When each variable's value is known if a rule must know it.
    writers
        The nodes that write to slices of which nothing is replaced that their bounds are computed from.
    """

    def __init__(self, times: Times, writers: Iterable[Apply] = ()):
        self.times = Times(times.others, times)
        self._bounds: dict[Any, tuple[Variable, Variable]] = {}
        self._lengths: dict[tuple[Variable, int], Variable] = {}
        self._selections: dict[Variable, SliceSelection] = {}
        self._writers = writers

    def time(self, bound: Variable | None) -> BindingTime:
        """Return when the value of a slice's bound is known."""
        if bound is None or isinstance(bound, Constant):
            return BindingTime.CONSTANT
        return self.times[bound]

    def dynamic_axes(self, entries: Sequence[Any]) -> dict[int, BindingTime]:
        """Return the axes with slices whose bounds don't follow from shapes, and when these are known."""
        found = {}
        for axis, entry in enumerate(entries):
            if isinstance(entry, slice) and (entry.step is None or is_positive(entry.step)):
                known = max(self.time(entry.start), self.time(entry.stop))
                if known > BindingTime.SHAPE:
                    found[axis] = known
        return found

    def bounds(self, n: Variable, entry: slice) -> tuple[Variable, Variable]:
        """Return where a slice of an axis of length `n` starts and how long it is."""
        start = ZERO if entry.start is None else entry.start
        stop = n if entry.stop is None else entry.stop
        key = (same(start), same(stop), same(n))
        if key not in self._bounds:
            first, length = SliceBounds().make_node(start, stop, n).outputs
            self._bounds[key] = first, length
        return self._bounds[key]

    def selection(self, n: Variable, entry: slice) -> SliceSelection:
        """Return the lanes that a slice of an axis of length `n` takes."""
        start, length = self.bounds(n, entry)
        if length not in self._selections:
            self._selections[length] = SliceSelection(start, length, n)
        return self._selections[length]

    def counted(self, count: Variable) -> SliceSelection | None:
        """Return lanes that a variable counts, or None."""
        if count in self._selections or not is_integer(count):
            return self._selections.get(count)
        if self.time(count) < BindingTime.RUNTIME:
            return None
        for length, lanes in self._selections.items():
            if are_equal(length, count):
                return lanes
        # A gradient is as long as a slice of one array, and will be written to a slice of another one.
        for n in lengths_read(count):
            for entry in self._written:
                if are_equal(self.bounds(n, entry)[1], count):
                    return self.selection(n, entry)
        return None

    @cached_property
    def _written(self) -> list[slice]:
        """The slices with computed bounds that nodes write to."""
        found = []
        for node in self._writers:
            entries = self.upright(unflatten_index_variables(node.inputs[2:], node.op.idx_list))[0]
            found += [entries[axis] for axis in self.dynamic_axes(entries)]
        return found

    def upright(self, entries: Sequence[Any]) -> tuple[list[Any], list[int]]:
        """Return an index whose slices with computed bounds go forwards, and the axes along which its result is in reverse."""
        found, backwards = list(entries), []
        for axis, entry in enumerate(entries):
            if isinstance(entry, slice) and is_step(entry, -1):
                known = max(self.time(entry.start), self.time(entry.stop))
                if known > BindingTime.SHAPE:
                    found[axis] = slice(self._one_on(entry.stop), self._one_on(entry.start))
                    backwards.append(axis)
        return found, backwards

    def _one_on(self, bound: Variable | None) -> Variable | None:
        """Return a slice's bound one position on; behind the last one is the end."""
        if bound is None:
            return None
        at_end = pt.constant(END, dtype="int64")
        found = pt.switch(pt.eq(bound, -1), at_end, pt.add(bound, ONE))
        self.times[found] = self.time(bound)
        return found

    def length(self, x: Variable, axis: int) -> Variable:
        """Return the length of an axis of `x`: of two arrays that meet in an elementwise Op it is one variable."""
        source, axis = length_source(x, axis)
        if (source, axis) not in self._lengths:
            known = source.type.shape[axis]
            if known is not None:
                found: Variable = pt.constant(known, dtype="int64")
            elif source.owner is not None and isinstance(source.owner.op, Alloc):
                found = source.owner.inputs[1 + axis]
            else:
                found = apply(Shape_i(axis), source)
            self._lengths[source, axis] = found
        return self._lengths[source, axis]

    def read(self, x: Variable, entries: Sequence[Any], old: Variable) -> Operand:
        """Return `x` at slices and integers; `old` is what replaces it in the user's graph."""
        dynamic = self.dynamic_axes(entries)
        late = [axis for axis, known in dynamic.items() if known == BindingTime.RUNTIME]
        if len(late) == 1 and is_step(entries[late[0]], 1):
            (axis,) = late
            selection = self.selection(self.length(x, axis), entries[axis])
            rest = [*entries[:axis], FULL, *entries[axis + 1 :]]
            lead = sum(not isinstance(entry, slice) for entry in entries[:axis])
            return select(plain(self.read(x, rest, old)), selection, axis - lead, old)
        if dynamic:
            bounds = [self.bounds(self.length(x, axis), entries[axis]) for axis in dynamic]
            where = (*(start for start, _ in bounds), *(length for _, length in bounds))
            x = named(apply(DynamicSlice(tuple(dynamic)), x, *where), old)
        return indexed(x, steps_only(entries, dynamic))

    def write(self, x: Variable, y: Operand, entries: Sequence[Any], is_set: bool, old: Variable) -> Variable:
        """Return `x` with the part at slices and integers set to, or incremented by, `y`; `old` is as in `read`."""
        dynamic = self.dynamic_axes(entries)
        late = [axis for axis, known in dynamic.items() if known == BindingTime.RUNTIME]
        if len(late) == 1 and is_step(entries[late[0]], 1):
            (axis,) = late
            selection = self.selection(self.length(x, axis), entries[axis])
            others = [*entries[:axis], FULL, *entries[axis + 1 :]]
            part = plain(self.read(x, others, old))
            at = axis - sum(not isinstance(entry, slice) for entry in entries[:axis])
            part_written = write(part, to_be_written(y, selection, part.type.ndim - at), selection, at, is_set)
            return part_written if part is x else self.write(x, part_written, others, True, old)
        rest = steps_only(entries, dynamic)
        if not dynamic:
            idx_list, flat = flatten_index_variables(rest)
            return apply(IncSubtensor(idx_list, set_instead_of_inc=is_set), x, plain(y), *flat)
        bounds = [self.bounds(self.length(x, axis), entries[axis]) for axis in dynamic]
        where = (*(start for start, _ in bounds), *(length for _, length in bounds))
        if all(entry == FULL for entry in rest):
            return apply(DynamicUpdate(tuple(dynamic), is_set), x, plain(y), *where)
        part = named(apply(DynamicSlice(tuple(dynamic)), x, *where), old)
        return apply(DynamicUpdate(tuple(dynamic), True), x, self.write(part, y, rest, is_set, old), *where)


def is_positive(step: Variable) -> bool:
    """Tell whether a step is a positive constant."""
    return isinstance(step, Constant) and int(step.data) > 0


def steps_only(entries: Sequence[Any], axes: Iterable[int]) -> list[Any]:
    """Return an index with slices along `axes` that have no bounds, only steps."""
    return [slice(None, None, None if is_step(e, 1) else e.step) if i in axes else e for i, e in enumerate(entries)]


def indexed(x: Variable, entries: Sequence[Any]) -> Variable:
    """Return `x` at slices and integers whose bounds are known."""
    if all(entry == FULL for entry in entries):
        return x
    idx_list, flat = flatten_index_variables(entries)
    return apply(Subtensor(idx_list), x, *flat)
