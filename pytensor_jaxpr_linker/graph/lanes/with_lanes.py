"""Replaces nodes whose result has a size that depends on values by forms that need less to be known. Uses no JAX.

In this order: a slice needs its length only, so that one program serves ``x[i : i + 3]`` for every `i`; what is selected by a
mask, or by a slice whose bounds the program computes, is kept as lanes (see `masks`) as long as that goes; then its length has
to be known, and everything else stays on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.configdefaults import config
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import Alloc, ARange, Nonzero
from pytensor.tensor.linalg.solvers.lstsq import Lstsq
from pytensor.tensor.shape import Shape_i
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    flatten_index_variables,
    unflatten_index_variables,
)

from pytensor_jaxpr_linker.base.gc_pause import gc_paused
from pytensor_jaxpr_linker.base.rules import Rule
from pytensor_jaxpr_linker.graph import facts
from pytensor_jaxpr_linker.graph.lanes.lanes import (
    Lanes,
    Operand,
    Selection,
    filled,
    is_compact,
    keep,
    plain,
    select,
    write,
)
from pytensor_jaxpr_linker.graph.lanes.of_slices import FULL, ONE, ZERO, SliceSelection, reverse, reversed_value, same
from pytensor_jaxpr_linker.graph.lanes.ops import (
    CountedNonzero,
    FillLanes,
    LstsqParts,
    apply,
)
from pytensor_jaxpr_linker.graph.lanes.rewriter import (
    CANDIDATES,
    INDICES,
    Rewriter,
    has_mask,
    is_candidate,
    is_mask,
    rewrites,
)


def with_known_sizes(
    inputs: list[Variable], outputs: list[Variable], nodes: list[Apply], find_rule: Callable[[Apply], Rule | None]
) -> list[Variable]:
    """Return the outputs of a graph in which sizes depend on values only where they must.

    The graph that is passed is left as it is.
    """
    kinds = {type(node.op) for node in nodes}
    candidates = [] if kinds.isdisjoint(CANDIDATES) else [node for node in nodes if is_candidate(node)]
    if not candidates:
        return outputs

    def static(node: Apply) -> Iterable[int] | None:
        rule = None if has_mask(node) or isinstance(node.op, Nonzero) else find_rule(node)
        return None if rule is None else rule.static(node)

    rewriter = Rewriter(facts.analyze(inputs, nodes, static).static, find_rule, written_slices(candidates))
    # New variables get the traces of those that they replace; recording where they are made would take most of the time.
    with gc_paused(), config.change_flags(traceback__limit=0):
        for node in nodes:
            rewriter.visit(node)
        return [rewriter.variable(v) for v in outputs]


def written_slices(candidates: Sequence[Apply]) -> Iterator[Apply]:
    """Yield the nodes that write to slices whose bounds nothing replaces."""
    replaced = {v for node in candidates for v in node.outputs}
    for node in candidates:
        if type(node.op) is IncSubtensor and replaced.isdisjoint(ancestors(node.inputs[INDICES[IncSubtensor] :])):
            yield node


# -- the nodes that are replaced ---------------------------------------------------------------------------------------


@rewrites(Subtensor)
def rewrite_Subtensor(r: Rewriter, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Reading at slices and integers."""
    x, *flat = operands
    entries, backwards = r.slices.upright(unflatten_index_variables(flat, node.op.idx_list))
    dynamic = r.slices.dynamic_axes(entries)
    if not dynamic:
        return None
    if is_of_lanes(x, dynamic) and (kept := keep(node, operands)) is not None:
        return kept
    result = r.slices.read(plain(x), entries, node.outputs[0])
    for axis in backwards:
        result = reverse(result, axis - sum(not isinstance(e, slice) for e in entries[:axis]))
    return [result]


@rewrites(IncSubtensor)
def rewrite_IncSubtensor(r: Rewriter, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Writing at slices and integers."""
    x, y, *flat = operands
    entries, backwards = r.slices.upright(unflatten_index_variables(flat, node.op.idx_list))
    dynamic = r.slices.dynamic_axes(entries)
    if not dynamic:
        return None
    if is_of_lanes(x, dynamic) and (kept := keep(node, operands)) is not None:
        return kept
    for axis in backwards:
        from_end = plain(x).type.ndim - axis - sum(not isinstance(e, slice) for e in entries[axis + 1 :])
        y = reversed_value(y, from_end)
    return [r.slices.write(plain(x), y, entries, node.op.set_instead_of_inc, node.outputs[0])]


def is_of_lanes(x: Operand, dynamic: Iterable[int]) -> bool:
    """Tell whether it is the lanes of a slice that are sliced once more."""
    return isinstance(x, Lanes) and isinstance(x.selection, SliceSelection) and list(dynamic) == [x.axis]


def split_mask(r: Rewriter, node: Apply, x: Variable) -> tuple[Variable, int, list[Any]] | None:
    """Return the mask of an index that has one mask and slices, its axis, and the slices; else None.

    What ``nonzero`` returns for an array of the same lengths is such a mask, too.
    """
    variables = node.inputs[INDICES[type(node.op)] :]
    entries: Sequence[Any] = unflatten_index_variables(variables, node.op.idx_list)
    arrays = [i for i, entry in enumerate(entries) if not isinstance(entry, slice)]
    first, stop = arrays[0], arrays[-1] + 1
    entry = entries[first]
    if is_mask(entry) and stop == first + 1:
        mask = plain(r.operand(entry))
    elif is_nonzero(entries[first:stop]):
        mask = plain(r.operand(entry.owner.inputs[0]))
        if any(same(r.slices.length(mask, i)) != same(r.slices.length(x, first + i)) for i in range(mask.type.ndim)):
            return None
        mask = r.truth(mask)
    else:
        return None
    slices = [*entries[:first], *[FULL] * mask.type.ndim, *entries[stop:]]
    return mask, first, [e if e == FULL else replaced_slice(r, e) for e in slices]


def is_nonzero(entries: Sequence[Any]) -> bool:
    """Tell whether indices are all that `Nonzero` returned of an array, in order."""
    node = getattr(entries[0], "owner", None)
    return node is not None and isinstance(node.op, Nonzero) and tuple(entries) == tuple(node.outputs)


def replaced_slice(r: Rewriter, entry: slice) -> slice:
    """Return a slice with what replaces its bounds."""
    return slice(*(None if v is None else plain(r.operand(v)) for v in (entry.start, entry.stop, entry.step)))


def lanes_within(r: Rewriter, node: Apply, x: Operand) -> tuple[Lanes, Selection] | None:
    """Return an operand that has lanes already, and those of them that a mask with the same lanes selects; else None."""
    first = INDICES[type(node.op)]
    masks = [r.operand(v) for v in node.inputs[first:]]
    if not isinstance(x, Lanes) or len(masks) != 1 or not isinstance(mask := masks[0], Lanes):
        return None
    if mask.selection is not x.selection or list(node.op.idx_list) != [*[FULL] * x.axis, 0] or mask.ndim != 1:
        return None
    return x, r.selection_within(x.selection, mask.filled)


@rewrites(AdvancedSubtensor)
def rewrite_AdvancedSubtensor(r: Rewriter, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Reading at masks."""
    if not selects(node):
        return None
    (old,) = node.outputs
    if within := lanes_within(r, node, operands[0]):
        lanes, selection = within
        return [select(lanes.filled, selection, lanes.axis, old)]
    x, *flat = map(plain, operands)
    if found := split_mask(r, node, x):
        mask, axis, slices = found
        return [select(plain(r.slices.read(x, slices, old)), r.mask_selection(mask), axis, old)]
    if not has_mask(node):
        return None
    idx_list, arrays = flatten_index_variables(
        r.without_masks(x, unflatten_index_variables(flat, node.op.idx_list), old)
    )
    return [apply(AdvancedSubtensor(idx_list), x, *arrays)]


@rewrites(AdvancedIncSubtensor)
def rewrite_AdvancedIncSubtensor(r: Rewriter, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Writing at masks."""
    if not selects(node):
        return None
    y, op, (old,) = operands[1], node.op, node.outputs
    if within := lanes_within(r, node, operands[0]):
        lanes, selection = within
        return [
            Lanes(
                lanes.selection,
                lanes.axis,
                old,
                lambda: write(lanes.filled, y, selection, lanes.axis, op.set_instead_of_inc),
            )
        ]
    x, *flat = (plain(v) for i, v in enumerate(operands) if i != 1)
    if found := split_mask(r, node, x):
        mask, axis, slices = found
        part, selection = plain(r.slices.read(x, slices, old)), r.mask_selection(mask)
        if not has_mask(node) and is_compact(part, y, selection, axis):
            return None  # written at positions, a value of length 1 is not broadcast
        result = write(part, y, selection, axis, op.set_instead_of_inc)
        return [result if part is x else r.slices.write(x, result, slices, True, old)]
    if not has_mask(node):
        return None
    idx_list, arrays = flatten_index_variables(r.without_masks(x, unflatten_index_variables(flat, op.idx_list), old))
    how = (idx_list, False, op.set_instead_of_inc, op.ignore_duplicates)
    return [apply(AdvancedIncSubtensor(*how), x, plain(y), *arrays)]


def selects(node: Apply) -> bool:
    """Tell whether a node indexes with a mask, or with what `Nonzero` returned."""
    return has_mask(node) or any(
        v.owner is not None and isinstance(v.owner.op, Nonzero) for v in node.inputs[INDICES[type(node.op)] :]
    )


@rewrites(Nonzero)
def rewrite_Nonzero(r: Rewriter, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """The positions of what is not zero."""
    mask = r.truth(plain(operands[0]))
    selection = r.mask_selection(mask)
    counted = CountedNonzero().make_node(mask, selection.count).outputs
    lengths = [r.slices.length(mask, axis) for axis in range(mask.type.ndim)]

    def lanes(axis: int) -> Lanes:
        return Lanes(
            selection,
            0,
            node.outputs[axis],
            lambda: apply(FillLanes(0), positions_along(axis, lengths), mask),
            lambda: counted[axis],
        )

    return [lanes(axis) for axis in range(mask.type.ndim)]


def positions_along(axis: int, lengths: Sequence[Variable]) -> Variable:
    """Return an array of the given lengths that holds the position of each element along one axis."""
    positions = apply(ARange("int64"), ZERO, lengths[axis], ONE)
    ndim = len(lengths)
    return apply(Alloc(), pt.expand_dims(positions, [i for i in range(ndim) if i != axis]), *lengths)


@rewrites(Alloc)
def rewrite_Alloc(r: Rewriter, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """An array as long as lanes are used: gradients have such arrays. The value may have these lanes already."""
    value, lengths = operands[0], [plain(x) for x in operands[1:]]
    counted = {axis: found for axis, n in enumerate(lengths) if (found := r.counted(n)) is not None}
    if len(counted) != 1:
        return None
    ((axis, selection),) = counted.items()
    from_end = len(lengths) - axis
    if isinstance(value, Lanes):
        if value.selection is not selection or value.ndim - value.axis != from_end:
            return None
    elif value.type.ndim >= from_end and value.type.shape[-from_end] != 1:
        return None
    all_lanes = [*lengths[:axis], apply(Shape_i(0), selection.flat), *lengths[axis + 1 :]]

    def fill() -> Variable:
        result = apply(node.op, filled(value), *all_lanes)
        if selection.count is lengths[axis]:
            return result
        # The proof that they are equal is about integers. Those of a program wrap around.
        return apply(CheckAndRaise(ValueError, WRAPPED), result, pt.eq(selection.count, lengths[axis]))

    return [Lanes(selection, axis, node.outputs[0], fill, lambda: apply(node.op, plain(value), *lengths))]


#: What is said where two lengths differ that were proved to be equal.
WRAPPED = "the length of an array is not that of the slice it belongs to: an index of the slice is too large for int64"


@rewrites(Lstsq)
def rewrite_Lstsq(r: Rewriter, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Least squares, of which only the number of residuals depends on values."""
    x, y, rcond = map(plain, operands)
    if (x.type.ndim, y.type.ndim) != (2, 2) or any(v.type.dtype.startswith("complex") for v in (x, y)):
        # PyTensor declares every solution a matrix of float64, and returns what NumPy does.
        return None
    solution, residuals, rank, s, returned = LstsqParts().make_node(x, y, rcond).outputs
    return [solution, select(residuals, r.mask_selection(returned), 0, node.outputs[1]), rank, s]
