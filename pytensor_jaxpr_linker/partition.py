"""Decides which nodes make up a region and why others can't: Regions, Breaks, Plan. Uses no JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import AbstractFunctionGraph
from pytensor.graph.traversal import toposort

from pytensor_jaxpr_linker import errors, facts
from pytensor_jaxpr_linker.facts import SHAPE_READERS, BindingTime, Facts
from pytensor_jaxpr_linker.registry import Rule


class Step(NamedTuple):
    """One node of a region, with what lowering it needs."""

    node: Apply
    rule: Rule
    static: frozenset[int]
    names: tuple[str, ...]


class Region(NamedTuple):
    """Nodes that become one Jaxpr."""

    steps: list[Step]
    inputs: list[Variable]
    outputs: list[Variable]


class Plan(NamedTuple):
    """What is done with a graph: its regions, when its values are known, and which inputs key a specialization."""

    regions: list[Region]
    facts: Facts
    static_inputs: list[Variable]


def partition(fgraph: AbstractFunctionGraph, find_rule: Callable[[Apply], Rule | None]) -> Plan:
    """Make the plan of a rewritten graph.

    Parameters
    ----------
    fgraph
        The graph after PyTensor's rewrites.
    find_rule
        Gives the emission rule of a node, or None.

    Raises
    ------
    GraphBreakError
        If the graph needs more than one region. It lists every break.
    """
    inputs, outputs, nodes = inline(fgraph, find_rule)
    rules = {node: find_rule(node) for node in nodes}
    static = {node: frozenset(rule.static(node)) for node, rule in rules.items() if rule is not None}
    known = facts.analyze(inputs, nodes, static.get)
    steps: list[Step] = []
    breaks: list[errors.Break] = []
    roots: set[Variable] = set()
    for node in needed_nodes(nodes, outputs, static, known):
        rule = rules[node]
        found = find_break(node, rule, static, known)
        if rule is None or found is not None:
            breaks.append(found or errors.Break(errors.NO_RULE, node, None, errors.NO_RULE.why))
            continue
        for i in static[node]:
            if known.value[node.inputs[i]] == BindingTime.VALUE:
                roots |= facts.value_roots(node.inputs[i], known)
        steps.append(Step(node, rule, static[node], node_names(node)))
    if breaks:
        raise errors.GraphBreakError(breaks)
    region = Region(steps, inputs, outputs)
    return Plan([region], known, [v for v in inputs if v in roots])


def find_break(node: Apply, rule: Rule | None, static: dict[Apply, frozenset[int]], known: Facts) -> errors.Break | None:
    """Return why `node` can't be part of a region, or None if it can."""
    if rule is None:
        return errors.Break(errors.NO_RULE, node, None, errors.NO_RULE.why)
    if (reason := rule.refuse(node)) is not None:
        return errors.Break(errors.REFUSED, node, None, reason)
    for i in sorted(static[node]):
        if known.value[node.inputs[i]] == BindingTime.RUNTIME:
            return errors.Break(errors.RUNTIME_STATIC, node, node.inputs[i], errors.RUNTIME_STATIC.why)
    return None


def needed_nodes(
    nodes: Sequence[Apply], outputs: Sequence[Variable], static: dict[Apply, frozenset[int]], known: Facts
) -> list[Apply]:
    """Return the nodes that equations are needed for, in order.

    Left out is what is known when the region is specialized: 0-d values that follow from shapes, and what is read only as a
    static operand. The nodes whose shape such values read stay.
    """
    needed: set[Variable] = set(outputs)  # as numbers at run time
    shapes: set[Variable] = set()  # as a static value
    kept = []
    for node in reversed(nodes):
        if any(v in needed and not is_folded(v, known) for v in node.outputs):
            kept.append(node)
            fixed = static.get(node, frozenset())
            for i, v in enumerate(node.inputs):
                (shapes if i in fixed else needed).add(v)
        elif any(v in needed or v in shapes for v in node.outputs):
            reads_shape = isinstance(node.op, SHAPE_READERS)
            (needed if reads_shape else shapes).update(node.inputs)
    kept.reverse()
    return kept


def is_folded(variable: Variable, known: Facts) -> bool:
    """Tell whether a variable's value is computed at specialization time: a number that follows from shapes alone."""
    return getattr(variable.type, "ndim", None) == 0 and known.value[variable] <= BindingTime.SHAPE


def inline(
    fgraph: AbstractFunctionGraph, find_rule: Callable[[Apply], Rule | None]
) -> tuple[list[Variable], list[Variable], list[Apply]]:
    """Return inputs, outputs and nodes of a graph in which each `OpFromGraph` without a rule is its inner graph."""

    def is_inlined(node: Apply) -> bool:
        return isinstance(node.op, OpFromGraph) and find_rule(node) is None

    inputs, outputs, nodes = list(fgraph.inputs), list(fgraph.outputs), list(fgraph.toposort())
    while any(map(is_inlined, nodes)):
        # `bind` copies: the graph that the user's other functions share is left as it is.
        replaced: dict[Variable, Variable] = {}
        for node in nodes:
            operands = [replaced.get(v, v) for v in node.inputs]
            if is_inlined(node):
                results = node.op.fgraph.bind(dict(zip(node.op.fgraph.inputs, operands, strict=True)))
                for result, output in zip(results, node.outputs, strict=True):
                    if result.name is None and result.owner is not None:
                        result.name = output.name
            elif all(a is b for a, b in zip(operands, node.inputs, strict=True)):
                continue
            else:
                copied = node.clone_with_new_inputs(operands, strict=False)
                results = copied.outputs
            replaced.update(zip(node.outputs, results, strict=True))
        outputs = [replaced.get(v, v) for v in outputs]
        nodes = list(toposort(outputs, blockers=inputs))
    return inputs, outputs, nodes


def node_names(node: Apply) -> tuple[str, ...]:
    """Return the name stack of a node's equations: its Op, and the user's name of what it computes."""
    op = str(node.op).replace("/", "|")
    named = [v.name for v in node.outputs if v.name]
    return (f"{op}[{named[0]}]" if named else op,)


