"""The walk that all graph passes share: it replaces nodes, and copies their readers onto the new operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from pytensor.configdefaults import config
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.tensor.elemwise import DimShuffle

from pytensor_jaxpr_linker.base.array_types import is_tensor
from pytensor_jaxpr_linker.base.errors import WrongResult, describe_node, variable_name
from pytensor_jaxpr_linker.base.rules import Rule, Table

type FindRule = Callable[[Apply], Rule | None]


class GraphParts(NamedTuple):
    """The fields of a `Graph`, which adds cached properties."""

    inputs: list[Variable]
    outputs: list[Variable]
    nodes: list[Apply]


class Graph(GraphParts):
    """Inputs, outputs, and nodes in topological order."""

    @cached_property
    def op_types(self) -> frozenset[type[Op]]:
        """The classes of the nodes' Ops."""
        return frozenset({type(node.op) for node in self.nodes})

    @cached_property
    def readers(self) -> Mapping[Variable, Sequence[Apply]]:
        """The nodes that read each variable."""
        found: dict[Variable, list[Apply]] = {}
        for node in self.nodes:
            for variable in node.inputs:
                found.setdefault(variable, []).append(node)
        return found


def is_transpose(node: Apply) -> bool:
    """Return whether a node transposes a matrix."""
    return isinstance(node.op, DimShuffle) and node.op.new_order == (1, 0)


def copied_onto(node: Apply, operands: Sequence[Variable]) -> Apply:
    """Return a copy of a node that reads other operands, which hold the same values.

    A strict copy keeps the declared types. Without `strict`, PyTensor makes nodes like `Alloc` anew and evaluates their
    lengths through the whole graph before them, which takes quadratic time.
    """
    is_same_type = all(a.type == b.type for a, b in zip(operands, node.inputs, strict=True))
    return node.clone_with_new_inputs(list(operands), strict=is_same_type)


class Operands:
    """Maps the variables of `graph` to the variables of the graph that replaces it."""

    def __init__(self, graph: Graph, find_rule: FindRule):
        self.graph, self.find_rule = graph, find_rule
        #: Variables of the new graph that one rewrite notes for others, by variables of the old graph.
        self.noted: dict[Variable, Variable] = {}
        self._variables: dict[Variable, Variable] = {}

    def variable(self, old: Variable) -> Variable:
        """Return the variable that replaces `old`, or `old`."""
        return self._variables.get(old, old)

    def node(self, old: Apply) -> Apply:
        """Return a copy of a node on its new operands, or the node if they are the same."""
        if self._variables.keys().isdisjoint(old.inputs):
            return old
        return copied_onto(old, [self.variable(v) for v in old.inputs])

    def define(self, old: Variable, new: Any) -> None:
        """Replace a variable by another one, which keeps its name."""
        if new is old:
            return
        if new.name is None and new.owner is not None:
            new.name = old.name
        self._variables[old] = new


#: Returns the replacements of the outputs of a node, or None to keep the node.
type Rewrite = Callable[[Any, Apply], Sequence[Any] | None]


def rewritten[T: Operands](
    graph: Graph,
    find_rule: FindRule,
    rewrites: Table[Rewrite],
    operands: type[T] = Operands,  # type: ignore[assignment]
) -> Graph:
    """Return the graph in which `rewrites` replace nodes: the same object if they replace none, never changed in place.

    A rewrite is called as ``rewrite(known, node)``, with an object `known` of the class `operands`.
    """
    found = {op_type: rewrite for op_type in graph.op_types if (rewrite := rewrites.of(op_type))}
    if not found:
        return graph
    known = operands(graph, find_rule)
    for node in graph.nodes:
        rewrite = found.get(type(node.op))
        results = None if rewrite is None else rewrite(known, node)
        if results is None:
            if (copied := known.node(node)) is node:
                continue
            results = copied.outputs
        else:
            check_replacement(rewrite, node, results)
        for old, new in zip(node.outputs, results, strict=True):
            known.define(old, new)
    outputs = [known.variable(v) for v in graph.outputs]
    if all(new is old for old, new in zip(graph.outputs, outputs, strict=True)):
        return graph
    return Graph(graph.inputs, outputs, toposort(outputs, graph.inputs))


def with_other_operands(
    graph: Graph, find_rule: FindRule, replaced: Callable[[Apply], Mapping[Variable, Variable]]
) -> Graph:
    """Rebuild a graph with other operands: ``replaced(node)`` maps old operands to new ones of the same type."""
    known = Operands(graph, find_rule)
    for node in graph.nodes:
        others = replaced(node)
        operands = [others[v] if v in others else known.variable(v) for v in node.inputs]
        if any(new is not old for new, old in zip(operands, node.inputs, strict=True)):
            for old, new in zip(node.outputs, copied_onto(node, operands).outputs, strict=True):
                known.define(old, new)
    outputs = [known.variable(v) for v in graph.outputs]
    return Graph(graph.inputs, outputs, toposort(outputs, graph.inputs))


def check_replacement(rewrite: Any, node: Apply, results: Any) -> None:
    """Raise a `WrongResult` unless a rewrite returned a value for each output, with its dtype and rank."""
    message = (
        f"The rewrite {rewrite.__module__}.{rewrite.__qualname__} returned {{}}. The node is {describe_node(node)}."
    )
    if isinstance(results, Variable) or len(results) != len(node.outputs):
        count = "a bare variable" if isinstance(results, Variable) else f"{len(results)} values"
        raise WrongResult(
            message.format(f"{count}, but must return a sequence with one for each of {len(node.outputs)} outputs")
        )
    for old, new in zip(node.outputs, results, strict=True):
        types = [v.type for v in (old, new) if isinstance(v, Variable) and is_tensor(v.type)]
        if len(types) == 2 and (types[0].dtype, types[0].ndim) != (types[1].dtype, types[1].ndim):
            raise WrongResult(message.format(f"a {new.type} for {variable_name(old)}, which is a {old.type}"))


def made_for[T: Sequence[Variable]](node: Apply, operands: Sequence[Variable], make: Callable[[], T]) -> T:
    """Return what `make` computes in place of a node, with its trace: recording stacks would take most of the time."""
    with config.change_flags(traceback__limit=0):
        results = make()
    if trace := getattr(node.outputs[0].tag, "trace", None):
        for new in toposort(results, operands):
            for variable in new.outputs:
                variable.tag.trace = trace
    return results


def toposort(outputs: Iterable[Variable], inputs: Iterable[Variable]) -> list[Apply]:
    """Return the nodes between inputs and outputs in topological order.

    The order is the one of `pytensor.graph.traversal.toposort`, in half the time: sorting took a tenth of the way from
    a large graph to its Jaxpr.
    """
    computed, nodes, stack = set(inputs), [], list(outputs)
    while stack:
        variable = stack[-1]
        node = variable.owner
        if node is None or variable in computed:
            stack.pop()
        elif missing := [v for v in node.inputs if v not in computed and v.owner is not None]:
            stack += missing
        else:
            nodes.append(node)
            computed.update(node.outputs)
            stack.pop()
    return nodes
