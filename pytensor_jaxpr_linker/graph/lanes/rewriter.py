"""The walk that `sizes` and `padding` share: replaces variables by others, or by lanes. Uses no JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.basic import Nonzero
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.linalg.solvers.lstsq import Lstsq
from pytensor.tensor.math import Sum
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    unflatten_index_variables,
)

from pytensor_jaxpr_linker.base.rules import Rule
from pytensor_jaxpr_linker.graph.facts import Times
from pytensor_jaxpr_linker.graph.lanes.lanes import (
    Lanes,
    Operand,
    Selection,
    keep,
    named,
    plain,
)
from pytensor_jaxpr_linker.graph.lanes.ops import (
    CountedNonzero,
    MatchedMask,
    apply,
)
from pytensor_jaxpr_linker.graph.lanes.slices import Slices
from pytensor_jaxpr_linker.graph.rewire import copied_onto


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


#: Gives what replaces the outputs of a node, on operands that were replaced, or None.
type Rewrite = Callable[[Rewriter, Apply, Sequence[Operand]], list[Operand] | None]

#: What is replaced, by class of Op; `sizes` fills it.
REWRITES: dict[type, Rewrite] = {}


def rewrites(op_type: type) -> Callable[[Rewrite], Rewrite]:
    """Register the decorated function for an Op."""

    def register(rewrite: Rewrite) -> Rewrite:
        REWRITES[op_type] = rewrite
        return rewrite

    return register


class Rewriter:
    """Rewrites a graph node by node.

    Parameters
    ----------
    times
        When each variable's value is known if a rule must know it.
    find_rule
        Gives the emission rule of a node, or None.
    writers
        See `Slices`.
    """

    def __init__(self, times: Times, find_rule: Callable[[Apply], Rule | None], writers: Iterable[Apply] = ()):
        self.slices, self._find_rule = Slices(times, writers), find_rule
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
        if (found := self.slices.counted(count)) is not None:
            return found
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


def counted_mask(count: Variable) -> Variable | None:
    """Return the mask whose true elements a variable counts, or None."""
    node = count.owner
    if node is None or not isinstance(node.op, CAReduce) or not isinstance(node.op, Sum):
        return None
    (mask,) = node.inputs
    return mask if mask.type.dtype == "bool" and count.type.ndim == 0 and is_mask(mask) else None
