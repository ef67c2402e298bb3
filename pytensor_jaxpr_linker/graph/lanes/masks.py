"""Index Ops with masks: `x[mask]`, writes at a mask, `Nonzero`, and index arrays that have lanes.

The selected elements stay lanes of the whole array. So do the positions that `Nonzero` returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.basic import Alloc, ARange, Nonzero
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.sort import ArgSortOp
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    flatten_index_variables,
    unflatten_index_variables,
)

from pytensor_jaxpr_linker.graph.lanes.graph_selections import GraphSelections, is_mask
from pytensor_jaxpr_linker.graph.lanes.lanes import (
    Lanes,
    Operand,
    filled,
    for_all_lanes,
    has_lanes,
    named,
    plain,
    rank,
    refilled,
    selected_lanes,
    to_be_written,
    with_lanes_of,
    write,
)
from pytensor_jaxpr_linker.graph.lanes.ops import CountedNonzero, FillLanes, LstsqParts, MatchedMask, only_output
from pytensor_jaxpr_linker.graph.lanes.selection import FULL, ONE, ZERO, Run, Selection, value_key
from pytensor_jaxpr_linker.graph.lanes.slices import read_block, write_block

#: The position of an Op's first index among its inputs.
INDICES: dict[type, int] = {AdvancedIncSubtensor: 2, AdvancedSubtensor: 1, IncSubtensor: 2, Subtensor: 1}


def index_of(node: Apply, variables: Sequence[Any]) -> list[Any]:
    """Return the index of a node, a list of slices, integers and arrays, from its inputs or their replacements."""
    return list(unflatten_index_variables(variables[INDICES[type(node.op)] :], node.op.idx_list))


def has_mask(node: Apply) -> bool:
    """Return whether a node has a boolean mask among its indices."""
    first = INDICES.get(type(node.op))
    return first is not None and any(map(is_mask, node.inputs[first:]))


def selects(node: Apply) -> bool:
    """Return whether a node indexes with a mask, or with results of `Nonzero`."""
    return has_mask(node) or any(
        v.owner is not None and isinstance(v.owner.op, Nonzero) for v in node.inputs[INDICES[type(node.op)] :]
    )


# -- reading and writing -----------------------------------------------------------------------------------------------


def at_arrays(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """`AdvancedSubtensor`: reading at masks, at arrays with lanes, or at a vector along an axis without lanes."""
    if selects(node) and (found := at_masks(known, node, operands)) is not None:
        return [found]
    x, entries = operands[0], index_of(node, operands)
    if isinstance(x, Lanes) and is_beside(x, entries):
        return for_all_lanes(node, operands, x.selection, x.axis)
    if (index := index_lanes(node, x, operands[1:])) is None:
        return None
    return for_all_lanes(node, [x, *index.arrays], index.selection, index.axis)


def written_at_arrays(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """`AdvancedIncSubtensor`: writing where `at_arrays` reads."""
    if selects(node) and (written := written_at_masks(known, node, operands)) is not None:
        return [written]
    x, y, *flat = operands
    entries = index_of(node, operands)
    if isinstance(x, Lanes) and is_beside(x, entries):
        from_end = x.ndim - x.axis
        y = to_be_written(y, x.selection, from_end)
        if not has_lanes(y, x.selection, from_end):
            return None
        return for_all_lanes(node, [x, y, *flat], x.selection, x.axis)
    if node.op.set_instead_of_inc or (index := index_lanes(node, x, flat)) is None:
        return None
    selection, from_end = index.selection, index.ndim - index.axis
    y = with_lanes_of(y, index.lanes, from_end)
    if not has_lanes(y, selection, from_end):
        return None
    mask = selection.along(index.axis, index.ndim)
    added = pt.switch(mask, filled(y), pt.constant(0, dtype=filled(y).type.dtype))
    (new,) = node.clone_with_new_inputs([filled(x), added, *map(filled, index.arrays)], strict=False).outputs
    return refilled(node, new, selection, x.axis) if isinstance(x, Lanes) else [new]


def is_beside(x: Lanes, entries: Sequence[Any]) -> bool:
    """Return whether one vector indexes an axis other than the axis of a run, so that each axis stays in its place."""
    arrays = [i for i, e in enumerate(entries) if not isinstance(e, slice)]
    if not isinstance(x.selection, Run) or len(arrays) != 1 or arrays[0] == x.axis:
        return False
    index = entries[arrays[0]]
    return not isinstance(index, Lanes) and index.type.ndim == 1 and all(e is index or e == FULL for e in entries)


class IndexLanes(NamedTuple):
    """The lanes that the arrays of an index share."""

    arrays: list[Operand]  #: the arrays of the index: each has the lanes, or broadcasts along them
    lanes: Lanes  #: the first array that has them
    axis: int  #: the axis of lanes of the result
    ndim: int  #: the rank of the result

    @property
    def selection(self) -> Selection:
        """Which lanes are active."""
        return self.lanes.selection


def index_lanes(node: Apply, x: Operand, arrays: Sequence[Operand]) -> IndexLanes | None:
    """Return the lanes that the arrays of an index share, or None if they don't.

    The arrays index neighbouring axes, and the rest are full slices. If `x` has lanes, they are indexed by their own
    positions: the length of the axis would not tell whether other positions are in bounds.
    """
    entries = list(unflatten_index_variables(arrays, node.op.idx_list))
    at = [i for i, e in enumerate(entries) if not isinstance(e, slice)]
    if len(at) != at[-1] - at[0] + 1 or any(e != FULL for e in entries if isinstance(e, slice)):
        return None
    lanes = next((v for v in arrays if isinstance(v, Lanes)), None)
    if lanes is None or not lanes.selection.never_empty:
        return None
    from_end = lanes.ndim - lanes.axis
    arrays = [with_lanes_of(v, lanes, from_end) for v in arrays]
    if not all(has_lanes(v, lanes.selection, from_end) for v in arrays):
        return None
    if isinstance(x, Lanes):
        own = arrays[x.axis - at[0]] if at[0] <= x.axis <= at[-1] else None
        if x.selection is not lanes.selection or not isinstance(own, Lanes) or not is_position(own.old):
            return None
    ndim = max(rank(v) for v in arrays)
    return IndexLanes(arrays, lanes, at[0] + ndim - from_end, rank(x) - len(at) + ndim)


def is_position(index: Variable) -> bool:
    """Return whether an index holds the positions of active lanes along its one axis, in their order or sorted."""
    while index.owner is not None and isinstance(index.owner.op, DimShuffle):
        index = index.owner.inputs[0]
    if isinstance(index, Constant):
        size = index.data.size
        return size in index.data.shape and np.array_equal(np.ravel(index.data), np.arange(size))
    return index.type.ndim == 1 and index.owner is not None and isinstance(index.owner.op, ARange | ArgSortOp)


# -- masks -------------------------------------------------------------------------------------------------------------


def at_masks(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> Operand | None:
    """Return the elements at masks, or None if `Nonzero` returned the positions for another array."""
    (old,) = node.outputs
    if within := lanes_within(known, node, operands):
        lanes, selection = within
        return selected_lanes(lanes.filled, selection, selection.mask, lanes.axis, old)
    x = plain(operands[0])
    if found := single_mask(known, node, operands):
        selection, axis, slices = found
        return selected_lanes(read_block(known, x, slices, old), selection, selection.mask, axis, old)
    if not has_mask(node):
        return None
    idx_list, arrays = flatten_index_variables(without_masks(known, node, operands))
    return only_output(AdvancedSubtensor(idx_list), x, *arrays)


def written_at_masks(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> Operand | None:
    """Return an array that is written to at masks, or None as `at_masks` does."""
    y, op, (old,) = operands[1], node.op, node.outputs
    is_set = op.set_instead_of_inc
    if within := lanes_within(known, node, operands):
        lanes, selection = within
        return Lanes(lanes.selection, lanes.axis, old, lambda: write(lanes.filled, y, selection, lanes.axis, is_set))
    x = plain(operands[0])
    if found := single_mask(known, node, operands):
        selection, axis, slices = found
        part = read_block(known, x, slices, old)
        from_end = part.type.ndim - selection.mask.type.ndim + 1 - axis
        if not has_mask(node) and not has_lanes(y, selection, from_end):
            return None  # written at positions, a value of length 1 is not broadcast
        new = write(part, y, selection, axis, is_set)
        return new if part is x else write_block(known, x, new, slices, True, old)
    if not has_mask(node):
        return None
    idx_list, arrays = flatten_index_variables(without_masks(known, node, operands))
    return only_output(AdvancedIncSubtensor(idx_list, False, is_set, op.ignore_duplicates), x, plain(y), *arrays)


def lanes_within(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> tuple[Lanes, Selection] | None:
    """Return an operand that has lanes already, and the lanes that a mask with the same lanes selects; or None."""
    x, masks = operands[0], operands[INDICES[type(node.op)] :]
    if not isinstance(x, Lanes) or len(masks) != 1 or not isinstance(mask := masks[0], Lanes):
        return None
    if mask.selection is not x.selection or list(node.op.idx_list) != [*[FULL] * x.axis, 0] or mask.ndim != 1:
        return None
    return x, known.within(x.selection, mask.filled)


def single_mask(
    known: GraphSelections, node: Apply, operands: Sequence[Operand]
) -> tuple[Selection, int, list[Any]] | None:
    """Return the selection of the only mask of an index, its axis, and the index with full slices there; or None.

    The results of `Nonzero` for an array of the same lengths are a mask, too.
    """
    entries, new = index_of(node, node.inputs), index_of(node, operands)
    arrays = [i for i, entry in enumerate(entries) if not isinstance(entry, slice)]
    first, stop = arrays[0], arrays[-1] + 1
    if is_mask(entries[first]) and stop == first + 1:
        selection: Selection = known.of_mask(plain(new[first]))
    elif is_nonzero(entries[first:stop]):
        selection, x = new[first].selection, plain(operands[0])
        ndim = selection.mask.type.ndim
        lengths = [
            [value_key(known.length(v, i + at)) for i in range(ndim)] for v, at in ((selection.mask, 0), (x, first))
        ]
        if lengths[0] != lengths[1]:
            return None
    else:
        return None
    return selection, first, [*new[:first], *[FULL] * selection.mask.type.ndim, *new[stop:]]


def is_nonzero(entries: Sequence[Any]) -> bool:
    """Return whether indices are all that `Nonzero` returned of an array, in order."""
    node = getattr(entries[0], "owner", None)
    return node is not None and isinstance(node.op, Nonzero) and tuple(entries) == tuple(node.outputs)


def without_masks(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Any]:
    """Return the index of a node with each mask replaced by the positions at which it is true."""
    x, old = plain(operands[0]), node.outputs[0]
    found: list[Any] = []
    for entry in index_of(node, list(map(plain, operands))):
        if is_mask(entry):
            matched = only_output(MatchedMask(len(found)), entry, x)
            positions = CountedNonzero().make_node(matched, known.of_mask(entry).count).outputs
            found += [named(v, old) for v in positions]
        else:
            found.append(entry)
    return found


# -- other Ops with results as long as a mask selects ------------------------------------------------------------------


def lanes_of_nonzero(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """`Nonzero`: the positions of all elements are the lanes."""
    mask = plain(operands[0])
    if mask.type.dtype != "bool":
        mask = pt.neq(mask, 0)
    selection, ndim = known.of_mask(mask), mask.type.ndim
    counted = CountedNonzero().make_node(mask, selection.count).outputs
    lengths = [known.length(mask, axis) for axis in range(ndim)]

    def fill(axis: int) -> Variable:
        positions = only_output(ARange("int64"), ZERO, lengths[axis], ONE)
        positions = pt.expand_dims(positions, [i for i in range(ndim) if i != axis])
        return only_output(FillLanes(0), only_output(Alloc(), positions, *lengths), mask)

    return [
        Lanes(selection, 0, old, lambda axis=axis: fill(axis), lambda axis=axis: counted[axis])  # type: ignore[misc]
        for axis, old in enumerate(node.outputs)
    ]


def least_squares(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """`Lstsq`. Only the number of residuals depends on values."""
    x, y, rcond = map(plain, operands)
    if (x.type.ndim, y.type.ndim) != (2, 2) or any(v.type.dtype.startswith("complex") for v in (x, y)):
        # PyTensor declares every solution a matrix of float64, and returns the solution of NumPy.
        return None
    solution, residuals, rank, s, returned = LstsqParts().make_node(x, y, rcond).outputs
    return [solution, selected_lanes(residuals, known.of_mask(returned), returned, 0, node.outputs[1]), rank, s]
