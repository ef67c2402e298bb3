"""`Subtensor` and `IncSubtensor` where an operand has lanes, or a slice has computed bounds.

A slice whose bounds are known before the program runs is a block. Only its length must be known to build the program:
one program serves ``x[i : i + 3]`` for every `i`. A slice whose bounds the program computes is a run of lanes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.subtensor import IncSubtensor, flatten_index_variables, unflatten_index_variables

from pytensor_jaxpr_linker.graph.facts import BindingTime
from pytensor_jaxpr_linker.graph.lanes.graph_selections import GraphSelections
from pytensor_jaxpr_linker.graph.lanes.lanes import (
    Lanes,
    Operand,
    filled,
    has_lanes,
    moved,
    named,
    plain,
    reverse,
    reversed_value,
    selected_lanes,
    to_be_written,
    write,
)
from pytensor_jaxpr_linker.graph.lanes.ops import DynamicSlice, DynamicUpdate, only_output
from pytensor_jaxpr_linker.graph.lanes.selection import FULL, REVERSED, PaddedRun, Run, indexed, is_step


def at_slices(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """`Subtensor`: reading at slices and integers."""
    x, *flat = operands
    entries = unflatten_index_variables([plain(v) for v in flat], node.op.idx_list)
    forwards, reversed_axes = known.forwards(entries)
    computed = known.computed_slices(forwards)
    if isinstance(x, Lanes) and computed.keys() <= {x.axis}:
        part = part_of_lanes(known, node, x, entries)
        if part is not None or not computed:
            return None if part is None else [part]
    if not computed:
        return None
    x = plain(x)
    if (late := run_axis(computed, forwards)) is None:
        result: Operand | None = read_block(known, x, forwards, node.outputs[0])
    else:
        result = part_of_lanes(known, node, known.as_lanes(x, late, forwards[late]), forwards)
    assert result is not None
    for axis in reversed_axes:
        result = reverse(result, axis - count_integers(entries[:axis]))
    return [result]


def written_at_slices(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """`IncSubtensor`: writing at slices and integers."""
    x, y, *flat = operands
    entries = unflatten_index_variables([plain(v) for v in flat], node.op.idx_list)
    forwards, reversed_axes = known.forwards(entries)
    computed = known.computed_slices(forwards)
    if isinstance(x, Lanes) and computed.keys() <= {x.axis}:
        new = with_part_written(known, node, x, y, entries)
        if new is not None or not computed:
            return None if new is None else [new]
    if not computed:
        return None
    x = plain(x)
    for axis in reversed_axes:
        y = reversed_value(y, x.type.ndim - axis - count_integers(entries[axis + 1 :]))
    if (late := run_axis(computed, forwards)) is None:
        return [write_block(known, x, plain(y), forwards, node.op.set_instead_of_inc, node.outputs[0])]
    new = with_part_written(known, node, known.as_lanes(x, late, forwards[late]), y, forwards)
    assert new is not None
    return [new.filled]


def run_axis(computed: Mapping[int, BindingTime], entries: Sequence[Any]) -> int | None:
    """Return the only axis along which the program computes the bounds of a slice with step 1, or None."""
    late = [axis for axis, time in computed.items() if time == BindingTime.RUNTIME]
    return late[0] if len(late) == 1 and is_step(entries[late[0]], 1) else None


def count_integers(entries: Iterable[Any]) -> int:
    """Return the number of integers in an index. Each of them takes an axis away."""
    return sum(not isinstance(entry, slice) for entry in entries)


# -- an index of lanes -------------------------------------------------------------------------------------------------


def part_of_lanes(known: GraphSelections, node: Apply, x: Lanes, entries: Sequence[Any]) -> Operand | None:
    """Return a part of an array with lanes: one of them, a run of them, or all of them; or None."""
    entries = [*entries, *[FULL] * (x.axis + 1 - len(entries))]
    entry, selection, (old,) = entries[x.axis], x.selection, node.outputs
    axis = x.axis - count_integers(entries[: x.axis])
    if entry != FULL:
        if not isinstance(selection, Run):
            return None
        if not isinstance(entry, slice):
            entries[x.axis] = selection.lane(entry)
            return read_block(known, x.filled, entries, old)
        if isinstance(selection, PaddedRun) and (block := selection.block(entry)) is not None:
            entries[x.axis] = FULL
            return read_block(known, block_at(x, *block), entries, old)
        if (part := selection.part(entry)) is None:
            return None
        selection, entries[x.axis] = part
    result = read_block(known, x.filled, entries, old)
    found = Lanes(selection, axis, old, lambda: result)
    # In reverse the lanes are at the end.
    if isinstance(selection, Run) and isinstance(to := selection.reversed, PaddedRun):
        found = moved(found, to, "")
    if found.selection.count is x.selection.count:
        return found
    return selected_lanes(found.filled, found.selection, found.selection.flat, axis, old)


def with_part_written(
    known: GraphSelections, node: Apply, x: Lanes, y: Operand, entries: Sequence[Any]
) -> Lanes | None:
    """Return an array with lanes after a part of it is set to, or incremented by, `y`; or None."""
    entries = [*entries, *[FULL] * (x.axis + 1 - len(entries))]
    entry, selection, is_set, (old,) = entries[x.axis], x.selection, node.op.set_instead_of_inc, node.outputs
    from_end = x.ndim - x.axis - count_integers(entries[x.axis + 1 :])
    if not isinstance(entry, slice):
        if not isinstance(selection, Run) or isinstance(y, Lanes):
            return None
        entries[x.axis] = selection.lane(entry)
        new = write_block(known, x.filled, y, entries, is_set, old)
        return selected_lanes(new, selection, selection.flat, x.axis, old)
    if isinstance(selection, PaddedRun) and (block := selection.block(entry)) is not None:
        if isinstance(y, Lanes):
            return None
        entries[x.axis] = FULL
        new = with_block(x, *block, write_block(known, block_at(x, *block), y, entries, is_set, old))
        return selected_lanes(new, selection, selection.flat, x.axis, old)
    rest = FULL
    if entry != FULL:
        if not isinstance(selection, Run) or (part := selection.part(entry)) is None:
            return None
        selection, rest = part
        if rest is REVERSED:
            selection, rest, y = x.selection, FULL, reversed_value(y, from_end)
    entries[x.axis] = rest
    if selection is x.selection:
        y = to_be_written(y, selection, from_end)
        if not has_lanes(y, selection, from_end):
            return None
        new = write_block(known, x.filled, filled(y), entries, is_set, old)
        return Lanes(selection, x.axis, old, lambda: new)
    lanes = read_block(known, x.filled, entries, old)
    new = write(lanes, y, selection, lanes.type.ndim - from_end, is_set)
    if lanes is not x.filled:
        new = write_block(known, x.filled, new, entries, True, old)
    return selected_lanes(new, x.selection, x.selection.flat, x.axis, old)


# -- blocks ------------------------------------------------------------------------------------------------------------


def read_block(known: GraphSelections, x: Variable, entries: Sequence[Any], old: Variable) -> Variable:
    """Return `x` at slices and integers, in the place of the user's variable `old`."""
    if computed := known.computed_slices(entries):
        x = named(only_output(DynamicSlice(tuple(computed)), x, *block_bounds(known, x, entries, computed)), old)
    return indexed(x, steps_only(entries, computed))


def write_block(
    known: GraphSelections, x: Variable, y: Variable, entries: Sequence[Any], is_set: bool, old: Variable
) -> Variable:
    """Return `x` with the part at slices and integers set to, or incremented by, `y`, in the place of `old`."""
    rest, computed = entries, known.computed_slices(entries)
    if computed:
        rest, bounds = steps_only(entries, computed), block_bounds(known, x, entries, computed)
        if all(entry == FULL for entry in rest):
            return only_output(DynamicUpdate(tuple(computed), is_set), x, y, *bounds)
        part = named(only_output(DynamicSlice(tuple(computed)), x, *bounds), old)
        part = write_block(known, part, y, rest, is_set, old)
        return only_output(DynamicUpdate(tuple(computed), True), x, part, *bounds)
    idx_list, flat = flatten_index_variables(rest)
    return only_output(IncSubtensor(idx_list, set_instead_of_inc=is_set), x, y, *flat)


def block_bounds(known: GraphSelections, x: Variable, entries: Sequence[Any], axes: Iterable[int]) -> list[Variable]:
    """Return the starts of the slices along `axes`, then their lengths."""
    runs = [known.run(known.length(x, axis), entries[axis]) for axis in axes]
    return [*(run.start for run in runs), *(run.count for run in runs)]


def steps_only(entries: Sequence[Any], axes: Iterable[int]) -> list[Any]:
    """Return an index with slices along `axes` that have no bounds, only steps."""
    return [slice(None, None, None if is_step(e, 1) else e.step) if i in axes else e for i, e in enumerate(entries)]


def block_at(x: Lanes, start: Variable, length: int) -> Variable:
    """Return lanes from a computed start on, of a known length."""
    return only_output(DynamicSlice((x.axis,)), x.filled, start, pt.constant(length, dtype="int64"))


def with_block(x: Lanes, start: Variable, length: int, block: Variable) -> Variable:
    """Return all lanes with a block in the place of the lanes that `block_at` returns."""
    bounds = start, pt.constant(length, dtype="int64")
    return only_output(DynamicUpdate((x.axis,), True), x.filled, block, *bounds)
