"""Cuts a graph into regions, which the device runs, and host steps between them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from pytensor.compile.ops import DeepCopyOp, TypeCastingOp
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import TensorType

from pytensor_jaxpr_linker.base import errors, marks
from pytensor_jaxpr_linker.base.interpreter import gc_paused
from pytensor_jaxpr_linker.base.rules import Rule
from pytensor_jaxpr_linker.graph import facts
from pytensor_jaxpr_linker.graph.eager_numbers import ARITHMETIC
from pytensor_jaxpr_linker.graph.facts import SHAPE_READERS, BindingTime, Facts
from pytensor_jaxpr_linker.graph.sparse.ops import TakeApart, is_transfer
from pytensor_jaxpr_linker.graph.walk import Graph
from pytensor_jaxpr_linker.plan.host_ops import host_reason
from pytensor_jaxpr_linker.plan.model import (
    HostStep,
    Plan,
    PlannedRule,
    Region,
    Step,
    host_step,
    node_names,
    produced_by,
    taken_by,
)
from pytensor_jaxpr_linker.plan.schedule import NO_PHASES, Schedule, schedule

#: A region of up to this many nodes that only compute single numbers is not worth a program of its own.
FEW_SCALAR_NODES = 8


@gc_paused()
def partition(
    graph: Graph,
    find_rule: Callable[[Apply], Rule | None],
    fallbacks: Mapping[Apply, errors.CannotEmit] = MappingProxyType({}),
) -> Plan:
    """Make the plan of a graph that `prepare` returned: the fewest batches that alternate between device and host.

    `find_rule` is a `Rules`, or any function from a node to its emission rule or None if no node has inner graphs. `fallbacks`
    has what emission rules raised for nodes when regions were built before.
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
    inputs: Sequence[Variable],
    nodes: Sequence[Apply],
    find_rule: Callable[[Apply], Rule | None],
    fallbacks: Mapping[Apply, errors.CannotEmit],
) -> tuple[dict[Apply, Step], Facts]:
    """Return the step of each node, and what is known when. A node that a region can't hold has no rule."""
    steps: dict[Apply, Step] = {}
    op_names: dict[int, tuple[str, ...]] = {}

    def make_step(node: Apply) -> frozenset[int] | None:
        """Make a node's step as if a region could hold it; return its static operands' positions, None without a rule."""
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


def static_positions(steps: Mapping[Apply, Step]) -> dict[Apply, frozenset[int]]:
    """Return the positions of the static operands, for nodes that have any."""
    return {node: step.static for node, step in steps.items() if step.static}


def host_break(step: Step, fallbacks: Mapping[Apply, errors.CannotEmit]) -> errors.Break | None:
    """Return why a node must run on the host, or None."""
    node, rule = step.node, step.rule
    if rule is None:
        if isinstance(node.op, TakeApart) and not is_transfer(node):
            return errors.Break(errors.REFUSED, node, None, UNKNOWN_PATTERN)
        if (decided := host_reason(node.op)) is not None:
            return errors.Break(getattr(decided, "code", errors.NO_RULE), node, None, decided)
        if (found := not_array(node)) is not None:
            is_sparse = getattr(found.type, "format", None) is not None
            kind = f"{errors.variable_name(found)} is of type {found.type}, which is no array"
            kind += "; this Op is not lowered to the arrays of sparse matrices" * is_sparse
            return errors.Break(errors.NOT_ARRAY, node, None, kind)
        return errors.Break(errors.NO_RULE, node, None, errors.NO_RULE.why)
    if (reason := rule.refuse(node)) is not None:
        return errors.Break(getattr(reason, "code", errors.REFUSED), node, None, reason)
    if node in fallbacks and fallbacks[node].position is None:
        return errors.Break(errors.REFUSED, node, None, str(fallbacks[node]))
    return None


#: Why a sparse matrix is put together and taken apart again.
UNKNOWN_PATTERN = "which entries the matrix has follows from numbers, and an Op reads its indices or only its entries"


def not_array(node: Apply) -> Variable | None:
    """Return an operand or a result of a node that a region can't hold, or None."""
    for v in (*node.inputs, *node.outputs):
        if type(v.type) is not TensorType and not facts.is_array(v):
            return v
    return None


def needs_runtime_value(step: Step, known: Facts) -> bool:
    """Return whether a static operand of a node is known only when the program runs."""
    return any(known.static[step.node.inputs[i]] == BindingTime.RUNTIME for i in step.static)


def list_breaks(
    graph: Graph, on_host: Mapping[Apply, errors.Break], found: Schedule, steps: Mapping[Apply, Step]
) -> list[errors.Break]:
    """Return every reason for more than one batch, in the order of the nodes."""
    breaks = []
    roots = dynamic_roots(graph)
    for node in graph.nodes:
        if node in on_host:
            if is_transfer(node):
                continue
            breaks.append(on_host[node])
        elif node in found.on_host:
            marked = next((roots[v] for i in steps[node].static if (v := node.inputs[i]) in roots), None)
            code = errors.RUNTIME_STATIC if marked is None else errors.DYNAMIC_VALUE
            breaks.append(errors.Break(code, node, marked, code.why))
        for i in found.crossing.get(node, ()):
            breaks.append(errors.Break(errors.RUNTIME_STATIC, node, node.inputs[i], errors.RUNTIME_STATIC.why))
    return breaks


def dynamic_roots(graph: Graph) -> dict[Variable, Variable]:
    """Map each variable that depends on an input that the user marked dynamic to such an input."""
    roots = {v: v for v in graph.inputs if marks.is_dynamic(v) and not marks.is_varying(v)}
    for node in graph.nodes if roots else ():
        if not isinstance(node.op, SHAPE_READERS):
            marked = next((roots[v] for v in node.inputs if v in roots), None)
            if marked is not None:
                roots.update(dict.fromkeys(node.outputs, marked))
    return roots


# -- batches -----------------------------------------------------------------------------------------------------------


def best_schedule(
    inputs: Sequence[Variable],
    nodes: Sequence[Apply],
    on_host: Collection[Apply],
    static: Mapping[Apply, frozenset[int]],
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
    by_phase: dict[int, list[Apply]] = {}
    for node in nodes:
        by_phase.setdefault(found.phase[node], []).append(node)
    small = []
    for batch in by_phase.values():
        if len(batch) <= FEW_SCALAR_NODES and batch[0] not in on_host and all(map(is_cheap, batch)):
            small += batch
    return small


def is_cheap(node: Apply) -> bool:
    """Return whether the host takes next to no time for a node: numbers, shapes, and copies of results."""
    if isinstance(node.op, (DeepCopyOp, TypeCastingOp, *SHAPE_READERS)):
        return True
    return isinstance(node.op, ARITHMETIC) and all(
        getattr(v.type, "ndim", 1) == 0 for v in (*node.inputs, *node.outputs)
    )


def cut(graph: Graph, found: Schedule, steps: Mapping[Apply, Step], has_generators: bool) -> list[Region | HostStep]:
    """Return the batches of a schedule, in order. They are made from the last to the first, by what later batches read."""
    phases: dict[int, list[Apply]] = {}
    for node in graph.nodes:
        phases.setdefault(found.phase[node], []).append(node)
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
        if batch is None:
            continue
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
    nodes: Sequence[Apply],
    results: list[Variable],
    found: Schedule,
    steps: Mapping[Apply, Step],
    has_generators: bool,
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
    region = make_region(inputs, kept, results, known)
    produced = produced_by(nodes)
    # An input may be needed only for static values that follow from its value or shape.
    read = {v for node in nodes for v in node.inputs if v not in produced}
    return region._replace(inputs=[v for v in inputs if v in read])


def earlier_arithmetic(nodes: Sequence[Apply], found: Schedule) -> list[Apply]:
    """Return the nodes of earlier phases that compute, from shapes and known values, the numbers that `nodes` read.

    They are computed again, instead of being sent from an earlier region. They keep the order of the graph: a node that reads a
    shape comes after the node that makes it.
    """
    own = set(nodes)
    earlier: set[Apply] = set()
    stack = [v for node in nodes for v in node.inputs if v in found.folded]
    while stack:
        node = stack.pop().owner
        if node is None or node in own or node in earlier:
            continue
        earlier.add(node)
        if not isinstance(node.op, SHAPE_READERS):
            stack += [u for u in node.inputs if u in found.folded]
    return [node for node in found.phase if node in earlier] if earlier else []


def make_region(inputs: list[Variable], steps: list[Step], outputs: list[Variable], known: Facts) -> Region:
    """Return the region of needed steps."""
    operands = [step.node.inputs[i] for step in steps if step.static for i in step.static]
    demanded = {v: None for v in operands if known.static[v] == BindingTime.VALUE}
    roots = facts.value_roots(demanded, known)
    # A value that follows from the shape of a computed variable is known only while the region is built: its roots are the key.
    unclear = facts.not_from_inputs(demanded, known)
    keys = {v: None for v in demanded if v not in unclear} | dict.fromkeys(facts.value_roots(unclear, known))
    nodes = [step.node for step in steps] if known.has_generators else []
    draws = [node for node in nodes if any(isinstance(v.type, RandomType) for v in node.inputs)]
    return Region(steps, inputs, outputs, [v for v in inputs if v in roots], list(keys), draws)


def needed_steps(
    nodes: Sequence[Apply], outputs: Sequence[Variable], steps: Mapping[Apply, Step], known: Facts
) -> list[Step]:
    """Return the nodes that need equations, in order.

    A node whose values are known when the region is specialized needs none: 0-d values that follow from shapes, and values that
    are read only as static operands. A node whose shape such a value reads stays.
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
                    is_known = i in fixed and known.static[v] != BindingTime.RUNTIME
                    (shapes if is_known else needed).add(v)
            else:
                needed.update(node.inputs)
        elif read or not shapes.isdisjoint(node.outputs):
            (needed if isinstance(node.op, SHAPE_READERS) else shapes).update(node.inputs)
    kept.reverse()
    return kept


def is_folded(variable: Variable, known: Facts) -> bool:
    """Return whether a variable is a number that follows from shapes alone: it is computed at specialization time."""
    return known.value[variable] <= BindingTime.SHAPE and getattr(variable.type, "ndim", None) == 0
