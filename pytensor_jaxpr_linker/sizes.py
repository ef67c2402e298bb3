"""Replaces nodes whose result has a size that depends on values by forms that need less to be known. Uses no JAX.

In this order: a slice needs its length only, so that one program serves ``x[i : i + 3]`` for every `i`; what is selected by a
mask, or by a slice whose bounds the program computes, is kept as lanes (see `masks`) as long as that goes; then its length has
to be known, and everything else stays on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.basic import Alloc, Nonzero
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Sum
from pytensor.tensor.shape import Shape_i
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    flatten_index_variables,
    unflatten_index_variables,
)

from pytensor_jaxpr_linker import facts
from pytensor_jaxpr_linker.facts import BindingTime
from pytensor_jaxpr_linker.masks import Lanes, Operand, Selection, keep, named, plain, select, write
from pytensor_jaxpr_linker.registry import Rule
from pytensor_jaxpr_linker.sized_ops import (
    CountedNonzero,
    DynamicSlice,
    DynamicUpdate,
    MatchedMask,
    SliceBounds,
    SliceLanes,
    WriteLanes,
)

FULL = slice(None)


def with_known_sizes(
    inputs: list[Variable], outputs: list[Variable], nodes: list[Apply], find_rule: Callable[[Apply], Rule | None]
) -> list[Variable]:
    """Return the outputs of a graph in which sizes depend on values only where they must.

    The graph that is passed is left as it is.
    """
    if not any(map(is_candidate, nodes)):
        return outputs

    def static(node: Apply) -> Iterable[int] | None:
        rule = None if has_mask(node) or isinstance(node.op, Nonzero) else find_rule(node)
        return None if rule is None else rule.static(node)

    rewriter = Rewriter(facts.analyze(inputs, nodes, static).static, find_rule)
    for node in nodes:
        rewriter.visit(node)
    return [named(plain(rewriter.operand(v)), v) for v in outputs]


def is_mask(entry: Any) -> bool:
    """Tell whether an index is a boolean mask that is computed."""
    return getattr(getattr(entry, "type", None), "dtype", None) == "bool" and not isinstance(entry, Constant)


def has_mask(node: Apply) -> bool:
    """Tell whether a node has a boolean mask among its indices."""
    first = INDICES.get(type(node.op))
    return first is not None and any(map(is_mask, node.inputs[first:]))


def is_candidate(node: Apply) -> bool:
    """Tell whether the size of a node's result, or of what it writes, may depend on values."""
    if isinstance(node.op, Nonzero) or has_mask(node):
        return True
    if type(node.op) not in (Subtensor, IncSubtensor):
        return False
    entries = unflatten_index_variables(node.inputs[INDICES[type(node.op)] :], node.op.idx_list)
    return any(is_computed(e.start) or is_computed(e.stop) for e in entries if isinstance(e, slice))


def is_computed(bound: Any) -> bool:
    """Tell whether a bound of a slice is given and not constant."""
    return bound is not None and not isinstance(bound, Constant)


#: At which input the indices of an Op begin.
INDICES: dict[type, int] = {AdvancedIncSubtensor: 2, AdvancedSubtensor: 1, IncSubtensor: 2, Subtensor: 1}


class Rewriter:
    """Rewrites a graph node by node.

    Parameters
    ----------
    times
        When each variable's value is known if a rule must know it.
    find_rule
        Gives the emission rule of a node, or None.
    """

    def __init__(self, times: dict[Variable, BindingTime], find_rule: Callable[[Apply], Rule | None]):
        self.times, self._find_rule = dict(times), find_rule
        self._operands: dict[Variable, Operand] = {}
        self._selections: dict[Any, Selection] = {}
        self._bounds: dict[Any, tuple[Variable, Variable]] = {}
        self._lengths: dict[tuple[Variable, int], Variable] = {}

    def operand(self, variable: Variable) -> Operand:
        """Return what replaces a variable."""
        return self._operands.get(variable, variable)

    def visit(self, node: Apply) -> None:
        """Replace the outputs of a node."""
        operands = [self.operand(v) for v in node.inputs]
        rule = REWRITES.get(type(node.op))
        results = None if rule is None else rule(self, node, operands)
        if results is None and any(isinstance(x, Lanes) for x in operands) and self._has_equations(node):
            results = keep(node, operands)
        if results is None:
            variables = [plain(x) for x in operands]
            if all(a is b for a, b in zip(variables, node.inputs, strict=True)):
                return
            results = list(node.clone_with_new_inputs(variables, strict=False).outputs)
        for old, new in zip(node.outputs, results, strict=True):
            self._operands[old] = new
            if not isinstance(new, Lanes):
                named(new, old)
                self.times[new] = self.times[old]

    def _has_equations(self, node: Apply) -> bool:
        """Tell whether a node is no host step: an Op of the host gets what PyTensor would give it."""
        rule = self._find_rule(node)
        return rule is not None and rule.refuse(node) is None

    # -- slices --------------------------------------------------------------------------------------------------------

    def time(self, bound: Variable | None) -> BindingTime:
        """Return when the value of a slice's bound is known."""
        if bound is None or isinstance(bound, Constant):
            return BindingTime.CONSTANT
        return self.times.get(bound, BindingTime.RUNTIME)

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
        start = pt.constant(0, dtype="int64") if entry.start is None else entry.start
        stop = n if entry.stop is None else entry.stop
        key = (same(start), same(stop), same(n))
        if key not in self._bounds:
            self._bounds[key] = tuple(SliceBounds()(start, stop, n))
        return self._bounds[key]

    def slice_selection(self, x: Variable, axis: int, entry: slice) -> Selection:
        """Return the lanes of one axis that a slice takes."""
        start, length = self.bounds(x, axis, entry)
        if length not in self._selections:
            lanes = SliceLanes()(start, length, self.length(x, axis))
            self._selections[length] = Selection(lanes, length, start)
        return self._selections[length]

    def length(self, x: Variable, axis: int) -> Variable:
        """Return the length of an axis of `x`: of two arrays that meet in an elementwise Op it is one variable."""
        source, axis = length_source(x, axis)
        if (source, axis) not in self._lengths:
            known = source.type.shape[axis]
            if known is not None:
                found = pt.constant(known, dtype="int64")
            elif source.owner is not None and isinstance(source.owner.op, Alloc):
                found = source.owner.inputs[1 + axis]
            else:
                found = Shape_i(axis)(source)
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
            x = DynamicSlice(tuple(dynamic))(x, *(start for start, _ in bounds), *(length for _, length in bounds))
        return indexed(x, steps_only(entries, dynamic))

    def write(self, x: Variable, y: Operand, entries: Sequence[Any], is_set: bool) -> Variable:
        """Return `x` with the part at slices and integers set to, or incremented by, `y`."""
        dynamic = self.dynamic_axes(entries)
        rest = steps_only(entries, dynamic)
        if list(dynamic.values()) == [BindingTime.RUNTIME] and all(entry == FULL for entry in rest):
            (axis,) = dynamic
            return write(x, y, self.slice_selection(x, axis, entries[axis]), axis, is_set)
        if not dynamic:
            idx_list, flat = flatten_index_variables(rest)
            return IncSubtensor(idx_list, set_instead_of_inc=is_set)(x, plain(y), *flat)
        bounds = [self.bounds(x, axis, entries[axis]) for axis in dynamic]
        where = (*(start for start, _ in bounds), *(length for _, length in bounds))
        if all(entry == FULL for entry in rest):
            return DynamicUpdate(tuple(dynamic), is_set)(x, plain(y), *where)
        part = self.write(DynamicSlice(tuple(dynamic))(x, *where), y, rest, is_set)
        return DynamicUpdate(tuple(dynamic), True)(x, part, *where)

    # -- masks ---------------------------------------------------------------------------------------------------------

    def mask_selection(self, mask: Variable) -> Selection:
        """Return the lanes that a mask selects."""
        if mask not in self._selections:
            self._selections[mask] = Selection(mask)
        return self._selections[mask]

    def without_masks(self, x: Variable, entries: Sequence[Any]) -> list[Any]:
        """Return an index with the positions at which masks are true in the place of these."""
        found: list[Any] = []
        for entry in entries:
            if is_mask(entry):
                matched = MatchedMask(len(found))(entry, x)
                positions = CountedNonzero()(matched, self.mask_selection(entry).count)
                found += positions if isinstance(positions, list) else [positions]
            else:
                found.append(entry)
        return found


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
    return Subtensor(idx_list)(x, *flat)


def length_source(x: Variable, axis: int) -> tuple[Variable, int]:
    """Return the first variable that has the length of an axis of `x`, and its axis."""
    while x.type.shape[axis] is None and (node := x.owner) is not None:
        if isinstance(node.op, Elemwise):  # which does not broadcast lengths that are not declared to be 1
            x = next(u for u in node.inputs if u.type.shape[axis] is None)
        elif isinstance(node.op, DimShuffle):
            x, axis = node.inputs[0], node.op.new_order[axis]
        elif isinstance(node.op, AdvancedIncSubtensor | DynamicUpdate | IncSubtensor | WriteLanes):
            x = node.inputs[0]
        else:
            break
    return x, axis


# -- the nodes that are replaced ---------------------------------------------------------------------------------------


def rewrite_Subtensor(r: Rewriter, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Reading at slices and integers."""
    x, *flat = operands
    entries = unflatten_index_variables(flat, node.op.idx_list)
    if not r.dynamic_axes(entries):
        return None
    return [r.read(plain(x), entries, node.outputs[0])]


def rewrite_IncSubtensor(r: Rewriter, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Writing at slices and integers."""
    x, y, *flat = operands
    entries = unflatten_index_variables(flat, node.op.idx_list)
    if not r.dynamic_axes(entries):
        return None
    return [r.write(plain(x), y, entries, node.op.set_instead_of_inc)]


def split_mask(entries: Sequence[Any]) -> tuple[Variable, int, list[Any]] | None:
    """Return the mask of an index that has one mask and slices, its axis, and the slices; else None."""
    arrays = [entry for entry in entries if not isinstance(entry, slice)]
    if len(arrays) != 1:
        return None
    axis = next(i for i, entry in enumerate(entries) if not isinstance(entry, slice))
    return arrays[0], axis, [*entries[:axis], *[FULL] * arrays[0].type.ndim, *entries[axis + 1 :]]


def rewrite_AdvancedSubtensor(r: Rewriter, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Reading at masks."""
    if not has_mask(node):
        return None
    x, *flat = map(plain, operands)
    entries = unflatten_index_variables(flat, node.op.idx_list)
    if (found := split_mask(entries)) is None:
        idx_list, flat = flatten_index_variables(r.without_masks(x, entries))
        return [AdvancedSubtensor(idx_list)(x, *flat)]
    mask, axis, slices = found
    part = plain(r.read(x, slices, node.outputs[0]))
    return [select(part, r.mask_selection(mask), axis, node.outputs[0])]


def rewrite_AdvancedIncSubtensor(r: Rewriter, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Writing at masks."""
    if not has_mask(node):
        return None
    y = operands[1]
    x, *flat = (plain(v) for i, v in enumerate(operands) if i != 1)
    entries = unflatten_index_variables(flat, node.op.idx_list)
    is_set = node.op.set_instead_of_inc
    if (found := split_mask(entries)) is None:
        idx_list, flat = flatten_index_variables(r.without_masks(x, entries))
        return [AdvancedIncSubtensor(idx_list, False, is_set, node.op.ignore_duplicates)(x, plain(y), *flat)]
    mask, axis, slices = found
    part = plain(r.read(x, slices, x))
    result = write(part, y, r.mask_selection(mask), axis, is_set)
    return [result if part is x else r.write(x, result, slices, True)]


def rewrite_Nonzero(r: Rewriter, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """The positions of what is not zero."""
    x = plain(operands[0])
    mask = x if x.type.dtype == "bool" else pt.neq(x, 0)
    positions = CountedNonzero()(mask, r.mask_selection(mask).count)
    return list(positions) if isinstance(positions, list) else [positions]


def rewrite_Alloc(r: Rewriter, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """An array as long as a mask has true elements: gradients have such arrays."""
    if any(isinstance(x, Lanes) for x in operands):
        return None
    value, *lengths = operands
    counted = {axis: mask for axis, n in enumerate(lengths) if (mask := counted_mask(n)) is not None}
    if len(counted) != 1:
        return None
    ((axis, mask),) = counted.items()
    from_end = len(lengths) - axis
    if value.type.ndim >= from_end and value.type.shape[-from_end] != 1:
        return None
    selection = r.mask_selection(mask)
    all_lanes = [*lengths[:axis], Shape_i(0)(selection.flat), *lengths[axis + 1 :]]
    return [
        Lanes(
            selection,
            axis,
            node.outputs[0],
            lambda: node.op(value, *all_lanes),
            lambda: node.op(value, *lengths),
        )
    ]


def counted_mask(count: Variable) -> Variable | None:
    """Return the mask whose true elements a variable counts, or None."""
    node = count.owner
    if node is None or not isinstance(node.op, CAReduce) or not isinstance(node.op, Sum):
        return None
    (mask,) = node.inputs
    return mask if mask.type.dtype == "bool" and count.type.ndim == 0 and is_mask(mask) else None


#: What is replaced, by class of Op.
REWRITES: dict[type, Callable[[Rewriter, Apply, Sequence[Operand]], list[Operand] | None]] = {
    AdvancedIncSubtensor: rewrite_AdvancedIncSubtensor,
    AdvancedSubtensor: rewrite_AdvancedSubtensor,
    Alloc: rewrite_Alloc,
    IncSubtensor: rewrite_IncSubtensor,
    Nonzero: rewrite_Nonzero,
    Subtensor: rewrite_Subtensor,
}
