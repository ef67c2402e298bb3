"""Slices whose bounds are computed: where they start, how long they are, and which lanes they take. Uses no JAX."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import Shape_i
from pytensor.tensor.subtensor import AdvancedIncSubtensor, IncSubtensor, Subtensor, flatten_index_variables

from pytensor_jaxpr_linker.facts import BindingTime, Times
from pytensor_jaxpr_linker.masks import Operand, Selection, named, plain, select, write
from pytensor_jaxpr_linker.sized_ops import DynamicSlice, DynamicUpdate, SliceBounds, SliceLanes, WriteLanes, apply

FULL = slice(None)
ZERO, ONE = pt.constant(0, dtype="int64"), pt.constant(1, dtype="int64")


class Slices:
    """Replaces reads and writes at slices of one graph.

    Parameters
    ----------
    times
        When each variable's value is known if a rule must know it.
    """

    def __init__(self, times: Times):
        self.times = Times(times.others, times)
        self._bounds: dict[Any, tuple[Variable, Variable]] = {}
        self._lengths: dict[tuple[Variable, int], Variable] = {}
        self._selections: dict[Variable, Selection] = {}

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

    def bounds(self, x: Variable, axis: int, entry: slice) -> tuple[Variable, Variable]:
        """Return where a slice of one axis starts and how long it is."""
        n = self.length(x, axis)
        start = ZERO if entry.start is None else entry.start
        stop = n if entry.stop is None else entry.stop
        key = (same(start), same(stop), same(n))
        if key not in self._bounds:
            first, length = SliceBounds().make_node(start, stop, n).outputs
            self._bounds[key] = first, length
        return self._bounds[key]

    def slice_selection(self, x: Variable, axis: int, entry: slice) -> Selection:
        """Return the lanes of one axis that a slice takes."""
        start, length = self.bounds(x, axis, entry)
        if length not in self._selections:
            lanes = apply(SliceLanes(), start, length, self.length(x, axis))
            self._selections[length] = Selection(lanes, length, start)
        return self._selections[length]

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
        if len(late) == 1 and is_one(entries[late[0]].step):
            (axis,) = late
            selection = self.slice_selection(x, axis, entries[axis])
            rest = [*entries[:axis], FULL, *entries[axis + 1 :]]
            lead = sum(not isinstance(entry, slice) for entry in entries[:axis])
            return select(plain(self.read(x, rest, old)), selection, axis - lead, old)
        if dynamic:
            bounds = [self.bounds(x, axis, entries[axis]) for axis in dynamic]
            where = (*(start for start, _ in bounds), *(length for _, length in bounds))
            x = named(apply(DynamicSlice(tuple(dynamic)), x, *where), old)
        return indexed(x, steps_only(entries, dynamic))

    def write(self, x: Variable, y: Operand, entries: Sequence[Any], is_set: bool, old: Variable) -> Variable:
        """Return `x` with the part at slices and integers set to, or incremented by, `y`; `old` is as in `read`."""
        dynamic = self.dynamic_axes(entries)
        rest = steps_only(entries, dynamic)
        if list(dynamic.values()) == [BindingTime.RUNTIME] and all(entry == FULL for entry in rest):
            (axis,) = dynamic
            return write(x, y, self.slice_selection(x, axis, entries[axis]), axis, is_set)
        if not dynamic:
            idx_list, flat = flatten_index_variables(rest)
            return apply(IncSubtensor(idx_list, set_instead_of_inc=is_set), x, plain(y), *flat)
        bounds = [self.bounds(x, axis, entries[axis]) for axis in dynamic]
        where = (*(start for start, _ in bounds), *(length for _, length in bounds))
        if all(entry == FULL for entry in rest):
            return apply(DynamicUpdate(tuple(dynamic), is_set), x, plain(y), *where)
        part = named(apply(DynamicSlice(tuple(dynamic)), x, *where), old)
        return apply(DynamicUpdate(tuple(dynamic), True), x, self.write(part, y, rest, is_set, old), *where)


def same(variable: Variable) -> Any:
    """Return what is equal for a variable and for another one of equal value, as far as that is seen."""
    return int(variable.data) if isinstance(variable, Constant) else variable


def is_positive(step: Variable) -> bool:
    """Tell whether a step is a positive constant."""
    return isinstance(step, Constant) and int(step.data) > 0


def is_one(step: Variable | None) -> bool:
    """Tell whether a step is 1."""
    return step is None or (isinstance(step, Constant) and int(step.data) == 1)


def steps_only(entries: Sequence[Any], axes: Iterable[int]) -> list[Any]:
    """Return an index with slices along `axes` that have no bounds, only steps."""
    return [slice(None, None, None if is_one(e.step) else e.step) if i in axes else e for i, e in enumerate(entries)]


def indexed(x: Variable, entries: Sequence[Any]) -> Variable:
    """Return `x` at slices and integers whose bounds are known."""
    if all(entry == FULL for entry in entries):
        return x
    idx_list, flat = flatten_index_variables(entries)
    return apply(Subtensor(idx_list), x, *flat)


def length_source(x: Variable, axis: int) -> tuple[Variable, int]:
    """Return the first variable that has the length of an axis of `x`, and its axis."""
    while x.type.shape[axis] is None and (node := x.owner) is not None:
        if isinstance(node.op, Elemwise):  # which does not broadcast lengths that are not declared to be 1
            x = next(u for u in node.inputs if u.type.shape[axis] is None)
        elif isinstance(node.op, DimShuffle):
            x, axis = node.inputs[0], int(node.op.new_order[axis])
        elif isinstance(node.op, AdvancedIncSubtensor | DynamicUpdate | IncSubtensor | WriteLanes):
            x = node.inputs[0]
        elif isinstance(node.op, Subtensor):
            indices = [*node.op.idx_list, *[FULL] * node.inputs[0].type.ndim]
            source = [i for i, entry in enumerate(indices) if isinstance(entry, slice)][axis]
            if indices[source] != FULL:
                break
            x, axis = node.inputs[0], source
        elif isinstance(node.op, Alloc) and isinstance(getattr(node.inputs[1 + axis].owner, "op", None), Shape_i):
            n = node.inputs[1 + axis].owner
            x, axis = n.inputs[0], n.op.i
        else:
            break
    return x, axis
