"""Decides which nodes make up a region and why others can't: Regions, Breaks, Plan. Uses no JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import DeepCopyOp
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import AbstractFunctionGraph
from pytensor.graph.traversal import toposort
from pytensor.scalar.basic import ScalarOp
from pytensor.tensor.basic import ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import Elemwise

from pytensor_jaxpr_linker import errors, facts
from pytensor_jaxpr_linker.conditional import IfElse, LazyIfElse
from pytensor_jaxpr_linker.constants import LargeConstants
from pytensor_jaxpr_linker.facts import SHAPE_READERS, BindingTime, Facts
from pytensor_jaxpr_linker.pause import gc_paused
from pytensor_jaxpr_linker.registry import Rule

#: Ops that compute a number of numbers, at no cost.
ARITHMETIC = (DeepCopyOp, Elemwise, ScalarFromTensor, ScalarOp, TensorFromScalar)


class Step(NamedTuple):
    """One node of a region, with what lowering it needs."""

    node: Apply
    rule: Rule
    static: frozenset[int]
    names: tuple[str, ...]


class Region(NamedTuple):
    """Nodes that become one Jaxpr, whose inputs are `inputs` and then the arrays of `constants`."""

    steps: list[Step]
    inputs: list[Variable]
    outputs: list[Variable]
    constants: LargeConstants = LargeConstants([], {})


class Plan(NamedTuple):
    """What is done with a graph: its regions, when its values are known, and which inputs key a specialization."""

    regions: list[Region]
    facts: Facts
    static_inputs: list[Variable]


@gc_paused()
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
    op_names: dict[int, str] = {}
    for node in needed_nodes(nodes, outputs, static, known):
        rule = rules[node]
        found = find_break(node, rule, static, known)
        if rule is None or found is not None:
            breaks.append(found or errors.Break(errors.NO_RULE, node, None, errors.NO_RULE.why))
            continue
        for i in static[node]:
            if known.static[node.inputs[i]] == BindingTime.VALUE:
                roots |= facts.value_roots(node.inputs[i], known)
        steps.append(Step(node, rule, static[node], node_names(node, op_names)))
    if breaks:
        raise errors.GraphBreakError(breaks)
    region = Region(steps, inputs, outputs)
    return Plan([region], known, [v for v in inputs if v in roots])


def find_break(
    node: Apply, rule: Rule | None, static: dict[Apply, frozenset[int]], known: Facts
) -> errors.Break | None:
    """Return why `node` can't be part of a region, or None if it can."""
    if rule is None:
        return errors.Break(errors.NO_RULE, node, None, errors.NO_RULE.why)
    if (reason := rule.refuse(node)) is not None:
        return errors.Break(errors.REFUSED, node, None, reason)
    for i in sorted(static[node]):
        if known.static[node.inputs[i]] == BindingTime.RUNTIME:
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
        read = [v for v in node.outputs if v in needed]
        if read and not all(is_folded(v, known) for v in read):
            kept.append(node)
            fixed = static.get(node)
            if fixed:
                for i, v in enumerate(node.inputs):
                    (shapes if i in fixed else needed).add(v)
            else:
                needed.update(node.inputs)
        elif read or not shapes.isdisjoint(node.outputs):
            (needed if isinstance(node.op, SHAPE_READERS) else shapes).update(node.inputs)
    kept.reverse()
    return kept


def is_folded(variable: Variable, known: Facts) -> bool:
    """Tell whether a variable's value is computed at specialization time: a number that follows from shapes alone."""
    return known.value[variable] <= BindingTime.SHAPE and getattr(variable.type, "ndim", None) == 0


def inline(
    fgraph: AbstractFunctionGraph, find_rule: Callable[[Apply], Rule | None]
) -> tuple[list[Variable], list[Variable], list[Apply]]:
    """Return inputs, outputs and nodes of a graph in which each `OpFromGraph` without a rule is its inner graph."""

    def is_inlined(node: Apply) -> bool:
        return isinstance(node.op, OpFromGraph) and find_rule(node) is None

    inputs, outputs, nodes = list(fgraph.inputs), list(fgraph.outputs), list(fgraph.toposort())
    while has_op(nodes, OpFromGraph) and any(map(is_inlined, nodes)):
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
    if has_op(nodes, LazyIfElse):
        outputs, nodes = with_eager_numbers(inputs, outputs, nodes)
    return inputs, outputs, nodes


def has_op(nodes: Sequence[Apply], op_type: type) -> bool:
    """Tell whether a node has an Op of a class."""
    return any(issubclass(found, op_type) for found in {type(node.op) for node in nodes})


def with_eager_numbers(
    inputs: list[Variable], outputs: list[Variable], nodes: list[Apply]
) -> tuple[list[Variable], list[Apply]]:
    """Return outputs and nodes of a graph in which no `LazyIfElse` computes an integer that follows by arithmetic.

    Such integers are the lengths of what an `IfElse` returns, mostly. Computed before the choice, `facts` sees when they are
    known.
    """
    replaced: dict[Variable, Variable] = {}
    for node in nodes:
        operands = [replaced.get(v, v) for v in node.inputs]
        copied = node
        if any(a is not b for a, b in zip(operands, node.inputs, strict=True)):
            copied = node.clone_with_new_inputs(operands, strict=False)
            replaced.update(zip(node.outputs, copied.outputs, strict=True))
        if isinstance(node.op, LazyIfElse):
            branches = (node.op.true_branch.fgraph, node.op.false_branch.fgraph)
            for i, output in enumerate(node.outputs):
                if output.type.ndim == 0 and all(is_arithmetic(branch.outputs[i]) for branch in branches):
                    pair = [branch.bind(dict(zip(branch.inputs, operands[1:], strict=True)))[i] for branch in branches]
                    replaced[output] = IfElse(1)(operands[0], *pair)  # type: ignore[assignment]
    if not replaced:
        return outputs, nodes
    outputs = [replaced.get(v, v) for v in outputs]
    return outputs, list(toposort(outputs, blockers=inputs))


def is_arithmetic(variable: Variable) -> bool:
    """Tell whether a variable is an integer that follows from shapes and other integers by arithmetic."""
    integer = getattr(variable.type, "dtype", "").startswith(("int", "uint", "bool"))
    if not integer or variable.type.ndim != 0:
        return False
    node = variable.owner
    if node is None or isinstance(node.op, SHAPE_READERS):
        return True
    return isinstance(node.op, ARITHMETIC) and all(map(is_arithmetic, node.inputs))


def node_names(node: Apply, op_names: dict[int, str]) -> tuple[str, ...]:
    """Return the name stack of a node's equations: its Op, and the user's name of what it computes.

    `op_names` keeps what Ops are called, by their id.
    """
    op = op_names.get(id(node.op))
    if op is None:
        op = op_names[id(node.op)] = str(node.op).replace("/", "|")
    for variable in node.outputs:
        if variable.name:
            return (f"{op}[{variable.name}]",)
    return (op,)
