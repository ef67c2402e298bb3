"""Cuts a graph, and the graphs inside its nodes, into regions, which the device runs, and host steps between them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pytensor.compile.ops import DeepCopyOp, TypeCastingOp
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import AbstractFunctionGraph
from pytensor.tensor.random.type import RandomType

from pytensor_jaxpr_linker.base import marks
from pytensor_jaxpr_linker.base.errors import INNER_GRAPH, GraphBreakError, Reason
from pytensor_jaxpr_linker.base.interpreter import gc_paused
from pytensor_jaxpr_linker.base.rules import InnerGraphs, Rule
from pytensor_jaxpr_linker.graph import facts
from pytensor_jaxpr_linker.graph.decompose import ARITHMETIC, declared_outputs
from pytensor_jaxpr_linker.graph.prepare import prepare
from pytensor_jaxpr_linker.graph.walk import FindRule, Graph
from pytensor_jaxpr_linker.plan.breaks import Fallbacks, host_break, list_breaks
from pytensor_jaxpr_linker.plan.model import (
    HostStep,
    InnerPlan,
    Plan,
    PlannedRule,
    Region,
    Step,
    host_step,
    node_names,
    taken_by,
)
from pytensor_jaxpr_linker.plan.schedule import NO_PHASES, Schedule, StaticPositions, schedule

#: A region of up to this many nodes that only compute single numbers is not worth a program of its own.
FEW_SCALAR_NODES = 8


@gc_paused()
def partition(graph: Graph, find_rule: FindRule, fallbacks: Fallbacks = MappingProxyType({})) -> Plan:
    """Make the plan of a graph that `prepare` returned: the fewest batches that alternate between device and host.

    `find_rule` is a `Rules`, or any function from a node to its emission rule or None if no node has inner graphs.
    `fallbacks` has the errors that emission rules raised for nodes when regions were built before.
    """
    inputs, outputs, nodes = graph
    steps, known = make_steps(inputs, nodes, find_rule, fallbacks)
    needed = needed_steps(nodes, outputs, steps, known)
    on_host = {step.node: b for step in needed if (b := host_break(step, fallbacks)) is not None}
    is_held = all(map(facts.is_array, (*inputs, *outputs)))
    if is_held and not on_host and not [step for step in needed if step.static and needs_runtime_value(step, known)]:
        return Plan([make_region(inputs, needed, outputs, known)], [], inputs, outputs)
    found = best_schedule(inputs, nodes, on_host, static_positions(steps))
    batches = cut(graph, found, steps, known.has_generators)
    return Plan(batches, list_breaks(graph, on_host, found, steps), inputs, outputs)


def make_steps(
    inputs: Sequence[Variable], nodes: Sequence[Apply], find_rule: FindRule, fallbacks: Fallbacks
) -> tuple[dict[Apply, Step], facts.Facts]:
    """Return the step of each node, and the facts. A node that a region can't hold has no rule."""
    steps: dict[Apply, Step] = {}
    op_names: dict[int, tuple[str, ...]] = {}

    def make_step(node: Apply) -> frozenset[int] | None:
        """Make a node's step as if a region could hold it; return its static positions, or None without a rule."""
        rule, static, inner = find_rule(node), NO_PHASES, None
        if rule is not None:
            if type(rule) is PlannedRule:
                inner = rule.plans(node)
            static = frozenset(rule.static(node))
            if fallbacks and (found := fallbacks.get(node)) is not None and found.position is not None:
                static |= {found.position}
        steps[node] = Step(node, rule, static, node_names(node, op_names), inner)
        return None if rule is None else static

    known = facts.analyze(inputs, nodes, make_step)
    objects = known.objects
    for node in nodes:
        if objects and not objects.isdisjoint((*node.inputs, *node.outputs)):
            steps[node] = Step(node, None, NO_PHASES, node_names(node, op_names))
        elif node not in steps:
            make_step(node)
    return steps, known


def static_positions(steps: Mapping[Apply, Step]) -> StaticPositions:
    """Return the positions of the static operands, for nodes that have any."""
    return {node: step.static for node, step in steps.items() if step.static}


def needs_runtime_value(step: Step, known: facts.Facts) -> bool:
    """Return whether a static operand of a node is known only when the program runs."""
    return any(known.static[step.node.inputs[i]] == facts.BindingTime.RUNTIME for i in step.static)


# -- batches -----------------------------------------------------------------------------------------------------------


def best_schedule(
    inputs: Sequence[Variable], nodes: Sequence[Apply], on_host: Collection[Apply], static: StaticPositions
) -> Schedule:
    """Return the schedule with the fewest batches, with regions that are not worth a program on the host."""
    found = schedule(inputs, nodes, on_host, static)
    merged = {*on_host, *small_regions(found, nodes, on_host)}
    if len(merged) > len(on_host):
        better = schedule(inputs, nodes, merged, static)
        found = better if better.batch_count < found.batch_count else found
    return found


def small_regions(found: Schedule, nodes: Sequence[Apply], on_host: Collection[Apply]) -> list[Apply]:
    """Return the nodes of regions that compute a few single numbers or only copy: they are not worth a program."""
    small = []
    for batch in found.nodes_by_phase(nodes).values():
        if len(batch) <= FEW_SCALAR_NODES and batch[0] not in on_host and all(map(is_cheap, batch)):
            small += batch
    return small


def is_cheap(node: Apply) -> bool:
    """Return whether the host takes next to no time for a node: numbers, shapes, and copies of results."""
    if isinstance(node.op, (DeepCopyOp, TypeCastingOp, *facts.SHAPE_READERS)):
        return True
    return isinstance(node.op, ARITHMETIC) and all(
        getattr(v.type, "ndim", 1) == 0 for v in (*node.inputs, *node.outputs)
    )


def cut(graph: Graph, found: Schedule, steps: Mapping[Apply, Step], has_generators: bool) -> list[Region | HostStep]:
    """Return the batches of a schedule, in order. They are made from the last to the first, as later batches read."""
    phases = found.nodes_by_phase(graph.nodes)
    wanted: dict[int, dict[Variable, None]] = {phase: {} for phase in phases}

    def want(variables: Iterable[Variable]) -> None:
        for v in variables:
            if (node := v.owner) in found.phase:
                wanted[found.phase[node]][v] = None

    want(graph.outputs)
    batches: list[Region | HostStep] = []
    for phase in sorted(phases, reverse=True):
        nodes, results = phases[phase], list(wanted[phase])
        is_region = phase % 2 == found.device_parity
        batch: Region | HostStep | None = (
            cut_region(nodes, results, found, steps, has_generators) if is_region else cut_host_step(nodes, results)
        )
        if batch is not None:
            want(batch.inputs)
            batches.append(batch)
    batches.reverse()
    return batches


def cut_host_step(nodes: Sequence[Apply], results: list[Variable]) -> HostStep | None:
    """Return the host step of the `nodes` that `results` depend on."""
    needed, kept = set(results), []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            kept.append(node)
            needed.update(node.inputs)
    kept.reverse()
    return host_step(kept, results) if kept else None


def cut_region(
    nodes: Sequence[Apply], results: list[Variable], found: Schedule, steps: Mapping[Apply, Step], has_generators: bool
) -> Region | None:
    """Return the region of the `nodes` that `results` depend on."""
    if not results:
        return None
    nodes = [*earlier_arithmetic(nodes, found), *nodes]
    inputs = taken_by(nodes)
    if any(steps[node].static or not found.folded.isdisjoint(node.outputs) for node in nodes):
        known = facts.analyze(inputs, nodes, lambda node: steps[node].static)
    else:
        known = facts.nothing_known(inputs, has_generators)
    kept = needed_steps(nodes, results, steps, known)
    return make_region(inputs, kept, results, known)


def earlier_arithmetic(nodes: Sequence[Apply], found: Schedule) -> list[Apply]:
    """Return the nodes of earlier phases that compute, from shapes and known values, the numbers that `nodes` read.

    They are computed again, instead of being sent from an earlier region. They keep the order of the graph: a node that
    reads a shape comes after the node that makes it.
    """
    own = set(nodes)
    earlier: set[Apply] = set()
    stack = [v for node in nodes for v in node.inputs if v in found.folded]
    while stack:
        node = stack.pop().owner
        if node is None or node in own or node in earlier:
            continue
        earlier.add(node)
        if not isinstance(node.op, facts.SHAPE_READERS):
            stack += [u for u in node.inputs if u in found.folded]
    return [node for node in found.phase if node in earlier] if earlier else []


def make_region(inputs: list[Variable], steps: list[Step], outputs: list[Variable], known: facts.Facts) -> Region:
    """Return the region of needed steps."""
    operands = [step.node.inputs[i] for step in steps if step.static for i in step.static]
    demanded = {v: None for v in operands if known.static[v] == facts.BindingTime.VALUE}
    roots = facts.value_roots(demanded, known)
    # A value that follows from the shape of a computed variable is known only while the region is built: its roots are
    # the key.
    unclear = facts.not_from_inputs(demanded, known)
    keys = {v: None for v in demanded if v not in unclear} | dict.fromkeys(facts.value_roots(unclear, known))
    nodes = [step.node for step in steps] if known.has_generators else []
    draws = [node for node in nodes if any(isinstance(v.type, RandomType) for v in node.inputs)]
    return Region(steps, inputs, outputs, [v for v in inputs if v in roots], list(keys), draws)


def needed_steps(
    nodes: Sequence[Apply], outputs: Sequence[Variable], steps: Mapping[Apply, Step], known: facts.Facts
) -> list[Step]:
    """Return the nodes that need equations, in order.

    A node whose values are known when the region is specialized needs none: 0-d values that follow from shapes, and
    values that are read only as static operands. A node whose shape such a value reads stays.
    """
    needed: set[Variable] = set(outputs)  # as numbers at run time
    shapes: set[Variable] = set()  # as a static value
    kept = []
    for node in reversed(nodes):
        read = [v for v in node.outputs if v in needed]
        if [v for v in read if v not in known.value or not is_folded(v, known)]:
            kept.append(step := steps[node])
            if fixed := step.static:
                for i, v in enumerate(node.inputs):
                    is_known = i in fixed and known.static[v] != facts.BindingTime.RUNTIME
                    (shapes if is_known else needed).add(v)
            else:
                needed.update(node.inputs)
        elif read or not shapes.isdisjoint(node.outputs):
            (needed if isinstance(node.op, facts.SHAPE_READERS) else shapes).update(node.inputs)
    kept.reverse()
    return kept


def is_folded(variable: Variable, known: facts.Facts) -> bool:
    """Return whether a variable is a number that follows from shapes alone: it is computed at specialization time."""
    return known.value[variable] <= facts.BindingTime.SHAPE and getattr(variable.type, "ndim", None) == 0


# -- inner graphs ------------------------------------------------------------------------------------------------------


class Rules:
    """The emission rules in force. Called with a node it returns the node's rule, or None.

    A rule that declares inner graphs is returned with their plans. Each inner graph is planned once, also if several
    others contain it.
    """

    def __init__(self, find: FindRule):
        self._find = find
        self._planned: dict[Rule, PlannedRule] = {}
        self._plans: dict[tuple[AbstractFunctionGraph, int], Plan] = {}

    def __call__(self, node: Apply) -> Rule | None:
        rule = self._find(node)
        if rule is None or rule.inner is None:
            return rule
        if rule not in self._planned:
            self._planned[rule] = self._with_plans(rule, rule.inner)
        return self._planned[rule]

    def _with_plans(self, rule: Rule, inner: InnerGraphs) -> PlannedRule:
        """Return a rule with the static operands of its inner graphs. It refuses a node if a graph has breaks."""

        def plans(node: Apply) -> list[InnerPlan]:
            return [InnerPlan(self._plan(g.graph, g.varying), g.where, g.first) for g in inner(node)]

        def static(node: Apply) -> set[int]:
            return {*rule.static(node), *(i for plan in plans(node) for i in plan.static_operands())}

        def refuse(node: Apply) -> str | None:
            if (reason := rule.refuse(node)) is not None:
                return reason
            found = plans(node)
            breaks = [b for inner in found for b in inner.plan.breaks]
            return Reason(f"{found[0].where}: {GraphBreakError(breaks)}", INNER_GRAPH) if breaks else None

        return PlannedRule(rule.emit, static, refuse, inner, plans=plans)

    def _plan(self, fgraph: AbstractFunctionGraph, varying: int) -> Plan:
        """Return the plan of an inner graph with `varying` leading inputs that differ from step to step."""
        if (fgraph, varying) not in self._plans:
            # The passes copy nodes, which a frozen graph does not allow. The marks are for this plan alone.
            graph: Any = fgraph
            thawed = graph.unfreeze() if hasattr(graph, "unfreeze") else graph.clone()
            for v in thawed.inputs[:varying]:
                marks.mark_varying(v)
            declared = declared_outputs(prepare(thawed, self), thawed.outputs)
            self._plans[fgraph, varying] = partition(declared, self)
        return self._plans[fgraph, varying]
