"""Replaces nodes whose result has a size that depends on values by forms that need less to be known. Uses no JAX.

In this order: a slice needs its length only, so that one program serves ``x[i : i + 3]`` for every `i`; what is selected by a
mask, or by a slice whose bounds the program computes, is kept as lanes (see `masks`) as long as that goes; then its length has
to be known, and everything else stays on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.configdefaults import config
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.basic import Alloc, ARange, Nonzero
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.linalg.solvers.lstsq import Lstsq
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
from pytensor_jaxpr_linker.masks import (
    Lanes,
    Operand,
    Selection,
    filled,
    is_compact,
    keep,
    named,
    plain,
    select,
    write,
)
from pytensor_jaxpr_linker.pause import gc_paused
from pytensor_jaxpr_linker.plan import copied_onto
from pytensor_jaxpr_linker.registry import Rule
from pytensor_jaxpr_linker.sized_ops import (
    CountedNonzero,
    FillLanes,
    LstsqParts,
    MatchedMask,
    apply,
)
from pytensor_jaxpr_linker.slices import FULL, ONE, ZERO, Slices, same


def with_known_sizes(
    inputs: list[Variable], outputs: list[Variable], nodes: list[Apply], find_rule: Callable[[Apply], Rule | None]
) -> list[Variable]:
    """Return the outputs of a graph in which sizes depend on values only where they must.

    The graph that is passed is left as it is.
    """
    kinds = {type(node.op) for node in nodes}
    if kinds.isdisjoint(CANDIDATES) or not any(map(is_candidate, nodes)):
        return outputs

    def static(node: Apply) -> Iterable[int] | None:
        rule = None if has_mask(node) or isinstance(node.op, Nonzero) else find_rule(node)
        return None if rule is None else rule.static(node)

    rewriter = Rewriter(facts.analyze(inputs, nodes, static).static, find_rule)
    # New variables get the traces of those that they replace; recording where they are made would take most of the time.
    with gc_paused(), config.change_flags(traceback__limit=0):
        for node in nodes:
            rewriter.visit(node)
        return [rewriter.variable(v) for v in outputs]


def is_mask(entry: Any) -> bool:
    """Tell whether an index is a boolean mask that is computed."""
    return getattr(getattr(entry, "type", None), "dtype", None) == "bool" and not isinstance(entry, Constant)


def has_mask(node: Apply) -> bool:
    """Tell whether a node has a boolean mask among its indices."""
    first = INDICES.get(type(node.op))
    return first is not None and any(map(is_mask, node.inputs[first:]))


def is_candidate(node: Apply) -> bool:
    """Tell whether the size of a node's result, or of what it writes, may depend on values."""
    if type(node.op) in (Lstsq, Nonzero) or has_mask(node):
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

#: The Ops whose nodes `is_candidate` looks at.
CANDIDATES = frozenset((Lstsq, Nonzero, *INDICES))


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
        self.slices, self._find_rule = Slices(times), find_rule
        self._operands: dict[Variable, Operand] = {}
        self._selections: dict[Any, Selection] = {}
        self._counted: dict[Variable, Selection] = {}
        self._truths: dict[Variable, Variable] = {}

    def operand(self, variable: Variable) -> Operand:
        """Return what replaces a variable."""
        return self._operands.get(variable, variable)

    def replace(self, variable: Variable, operand: Operand) -> None:
        """Say what replaces a variable that no node computes."""
        self._operands[variable] = operand

    def variable(self, old: Variable) -> Variable:
        """Return what replaces a variable, in the length that it has in the user's graph."""
        return named(plain(self.operand(old)), old)

    def visit(self, node: Apply) -> None:
        """Replace the outputs of a node."""
        rule = REWRITES.get(type(node.op))
        if rule is None and self._operands.keys().isdisjoint(node.inputs):
            return
        operands = [self.operand(v) for v in node.inputs]
        results = None if rule is None else rule(self, node, operands)
        if results is None and any(isinstance(x, Lanes) for x in operands) and self._has_equations(node):
            results = keep(node, operands)
        if results is None:
            variables = [plain(x) for x in operands]
            if all(a is b for a, b in zip(variables, node.inputs, strict=True)):
                return
            results = list(copied_onto(node, variables).outputs)
        for old, new in zip(node.outputs, results, strict=True):
            self._operands[old] = new
            if not isinstance(new, Lanes):
                named(new, old)
                self.slices.times[new] = self.slices.times[old]

    def _has_equations(self, node: Apply) -> bool:
        """Tell whether a node is no host step: an Op of the host gets what PyTensor would give it."""
        rule = self._find_rule(node)
        return rule is not None and rule.refuse(node) is None

    def mask_selection(self, mask: Variable) -> Selection:
        """Return the lanes that a mask selects."""
        if mask not in self._selections:
            self._selections[mask] = Selection(mask)
        return self._selections[mask]

    def know_count(self, count: Variable, selection: Selection) -> None:
        """Say that a variable is how many lanes a selection uses."""
        self._counted[count] = selection

    def counted(self, count: Variable) -> Selection | None:
        """Return the lanes that a variable counts, or None."""
        if count in self._counted:
            return self._counted[count]
        mask = counted_mask(count)
        return None if mask is None else self.mask_selection(mask)

    def selection_within(self, selection: Selection, mask: Variable) -> Selection:
        """Return those lanes of a selection in which a vector is true."""
        key = (selection, mask)
        if key not in self._selections:
            self._selections[key] = Selection(pt.and_(selection.flat, mask))
        return self._selections[key]

    def truth(self, x: Variable) -> Variable:
        """Return the mask that is true where `x` is not zero."""
        if x.type.dtype == "bool":
            return x
        if x not in self._truths:
            self._truths[x] = pt.neq(x, 0)
        return self._truths[x]

    def positions(self, mask: Variable, matched: Variable, old: Variable) -> list[Variable]:
        """Return where a mask is true; `matched` is the mask, after checks."""
        node = CountedNonzero().make_node(matched, self.mask_selection(mask).count)
        return [named(v, old) for v in node.outputs]

    def without_masks(self, x: Variable, entries: Sequence[Any], old: Variable) -> list[Any]:
        """Return an index with the positions at which masks are true in the place of these."""
        found: list[Any] = []
        for entry in entries:
            if is_mask(entry):
                matched = apply(MatchedMask(len(found)), entry, x)
                found += self.positions(entry, matched, old)
            else:
                found.append(entry)
        return found


# -- the nodes that are replaced ---------------------------------------------------------------------------------------


def rewrite_Subtensor(r: Rewriter, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Reading at slices and integers."""
    x, *flat = operands
    entries = unflatten_index_variables(flat, node.op.idx_list)
    if not r.slices.dynamic_axes(entries):
        return None
    return [r.slices.read(plain(x), entries, node.outputs[0])]


def rewrite_IncSubtensor(r: Rewriter, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Writing at slices and integers."""
    x, y, *flat = operands
    entries = unflatten_index_variables(flat, node.op.idx_list)
    if not r.slices.dynamic_axes(entries):
        return None
    return [r.slices.write(plain(x), y, entries, node.op.set_instead_of_inc, node.outputs[0])]


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
    return [
        Lanes(
            selection,
            axis,
            node.outputs[0],
            lambda: apply(node.op, filled(value), *all_lanes),
            lambda: apply(node.op, plain(value), *lengths),
        )
    ]


def rewrite_Lstsq(r: Rewriter, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Least squares, of which only the number of residuals depends on values."""
    x, y, rcond = map(plain, operands)
    if (x.type.ndim, y.type.ndim) != (2, 2):
        return None
    solution, residuals, rank, s, returned = LstsqParts().make_node(x, y, rcond).outputs
    return [solution, select(residuals, r.mask_selection(returned), 0, node.outputs[1]), rank, s]


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
    Lstsq: rewrite_Lstsq,
    Nonzero: rewrite_Nonzero,
    Subtensor: rewrite_Subtensor,
}
