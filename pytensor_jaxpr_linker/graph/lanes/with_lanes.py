"""The graph pass that keeps the elements that masks and computed slices select as lanes.

Readers of lanes compute with all of them, if they have a rule for that in `LANE_RULES`. Any other reader needs the
length, and everything else stays on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pytensor.compile.ops import DeepCopyOp, TypeCastingOp
from pytensor.configdefaults import config
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import Alloc, ARange, Join, Nonzero, Split
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.linalg.solvers.lstsq import Lstsq
from pytensor.tensor.math import Argmax, Dot
from pytensor.tensor.shape import Shape, Shape_i, SpecifyShape
from pytensor.tensor.sort import ArgSortOp, SortOp
from pytensor.tensor.special import LogSoftmax, Softmax
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor, IncSubtensor, Subtensor

from pytensor_jaxpr_linker.base.interpreter import gc_paused
from pytensor_jaxpr_linker.base.rules import Table
from pytensor_jaxpr_linker.graph import facts
from pytensor_jaxpr_linker.graph.lanes import masks, rules, slices
from pytensor_jaxpr_linker.graph.lanes.graph_selections import GraphSelections, LaneRule
from pytensor_jaxpr_linker.graph.lanes.lanes import Lanes, Operand, named, plain
from pytensor_jaxpr_linker.graph.lanes.masks import INDICES, has_mask, index_of
from pytensor_jaxpr_linker.graph.lanes.ops import FillLanes, WriteLanes
from pytensor_jaxpr_linker.graph.walk import FindRule, Graph, copied_onto, toposort

#: How an Op takes operands with lanes, or makes lanes, by class.
LANE_RULES: Table[LaneRule] = Table(
    {
        AdvancedIncSubtensor: masks.written_at_arrays,
        AdvancedSubtensor: masks.at_arrays,
        Alloc: rules.allocated,
        ARange: rules.numbered,
        Argmax: rules.position_of_largest,
        ArgSortOp: rules.sorted_lanes,
        Blockwise: rules.blockwise_lanes,
        CAReduce: rules.reduced,
        CheckAndRaise: rules.checked,
        CumOp: rules.cumulative_lanes,
        DeepCopyOp: rules.copied_lanes,
        DimShuffle: rules.permuted,
        Dot: rules.matrix_product_of_lanes,
        Elemwise: rules.elementwise_lanes,
        FillLanes: rules.at_mask,
        IncSubtensor: slices.written_at_slices,
        Join: rules.joined_lanes,
        LogSoftmax: rules.softmax,
        Lstsq: masks.least_squares,
        Nonzero: masks.lanes_of_nonzero,
        Shape: rules.all_lengths,
        Shape_i: rules.one_length,
        Softmax: rules.softmax,
        SortOp: rules.sorted_lanes,
        SpecifyShape: rules.specified,
        Split: rules.split_lanes,
        Subtensor: slices.at_slices,
        TypeCastingOp: rules.copied_lanes,
        WriteLanes: rules.at_mask,
    }
)

#: The Ops that may make lanes of operands without lanes.
SOURCES = frozenset((Alloc, ARange, Lstsq, Nonzero, *INDICES))


def lanes(graph: Graph, find_rule: FindRule) -> Graph:
    """Keep the results of masks and computed slices at full length, so that few sizes depend on values."""
    inputs, outputs, nodes = graph
    candidates = [] if graph.op_types.isdisjoint(CANDIDATES) else [node for node in nodes if is_candidate(node)]
    if not candidates:
        return graph

    def static(node: Apply) -> Iterable[int] | None:
        rule = None if has_mask(node) or isinstance(node.op, Nonzero) else find_rule(node)
        return None if rule is None else rule.static(node)

    rewriter = Rewriter(facts.analyze(inputs, nodes, static).static, find_rule, written_slices(candidates))
    # New variables get the traces of the replaced ones: recording where they are made would take most of the time.
    with gc_paused(), config.change_flags(traceback__limit=0):
        for node in nodes:
            rewriter.visit(node)
        outputs = [rewriter.variable(v) for v in outputs]
    return Graph(inputs, outputs, toposort(outputs, inputs))


#: The Ops whose nodes `is_candidate` looks at.
CANDIDATES = frozenset((Lstsq, Nonzero, *INDICES))


def is_candidate(node: Apply) -> bool:
    """Return whether the size of a node's result, or of the value that it writes, may depend on values."""
    if type(node.op) in (Lstsq, Nonzero) or has_mask(node):
        return True
    if type(node.op) not in (Subtensor, IncSubtensor):
        return False
    return any(is_computed(e.start) or is_computed(e.stop) for e in index_of(node, node.inputs) if isinstance(e, slice))


def is_computed(bound: Any) -> bool:
    """Return whether a bound of a slice is given and not constant."""
    return bound is not None and not isinstance(bound, Constant)


def written_slices(candidates: Sequence[Apply]) -> Iterator[Apply]:
    """Yield the nodes that write to a slice whose bounds depend on no rewritten node."""
    replaced = {v for node in candidates for v in node.outputs}
    for node in candidates:
        if type(node.op) is IncSubtensor and replaced.isdisjoint(ancestors(node.inputs[INDICES[IncSubtensor] :])):
            yield node


class Rewriter:
    """Replaces variables node by node, by others or by lanes; `GraphSelections` explains `times` and `writers`."""

    def __init__(self, times: facts.Times, find_rule: FindRule, writers: Iterable[Apply] = ()):
        self.selections, self._find_rule = GraphSelections(times, writers), find_rule
        self._operands: dict[Variable, Operand] = {}

    def operand(self, variable: Variable) -> Operand:
        """Return the replacement of a variable."""
        return self._operands.get(variable, variable)

    def replace(self, variable: Variable, operand: Operand) -> None:
        """Replace a variable that no node computes."""
        self._operands[variable] = operand

    def variable(self, old: Variable) -> Variable:
        """Return the replacement of a variable, in the length that it has in the user's graph."""
        return named(plain(self.operand(old)), old)

    def visit(self, node: Apply) -> None:
        """Replace the outputs of a node."""
        is_source = type(node.op) in SOURCES
        if not is_source and self._operands.keys().isdisjoint(node.inputs):
            return
        operands = [self.operand(v) for v in node.inputs]
        results = None
        if is_source or (any(isinstance(x, Lanes) for x in operands) and self._has_equations(node)):
            rule = LANE_RULES.of(type(node.op))
            results = None if rule is None else rule(self.selections, node, operands)
        if results is None:
            variables = [plain(x) for x in operands]
            if all(a is b for a, b in zip(variables, node.inputs, strict=True)):
                return
            results = list(copied_onto(node, variables).outputs)
        for old, new in zip(node.outputs, results, strict=True):
            self._operands[old] = new
            if not isinstance(new, Lanes):
                named(new, old)
                self.selections.times[new] = self.selections.times[old]

    def _has_equations(self, node: Apply) -> bool:
        """Return whether a node becomes equations. A host step gets arrays without lanes, as from PyTensor."""
        rule = self._find_rule(node)
        return rule is not None and rule.refuse(node) is None
