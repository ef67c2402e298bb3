"""The pass that replaces each `OpFromGraph` without a rule by its inner graph."""

from __future__ import annotations

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Variable

from pytensor_jaxpr_linker.base.rules import Table
from pytensor_jaxpr_linker.graph.walk import FindRule, Graph, Operands, Rewrite, made_for, rewritten, toposort


def inline(graph: Graph, find_rule: FindRule) -> Graph:
    """Replace each `OpFromGraph` without a rule, at any depth."""
    return rewritten(graph, find_rule, REWRITES)


def inner_graph(known: Operands, node: Apply) -> list[Variable] | None:
    """Return the outputs of the inner graph on the operands of the node."""
    if known.find_rule(node) is not None:
        return None
    inner, operands = node.op.fgraph, [known.variable(v) for v in node.inputs]
    # `bind` copies: the user's other functions may share the graph.
    results = made_for(node, operands, lambda: inner.bind(dict(zip(inner.inputs, operands, strict=True))))
    if any(isinstance(found.op, OpFromGraph) for found in inner.apply_nodes):
        return inline(Graph(operands, results, toposort(results, operands)), known.find_rule).outputs
    return results


REWRITES: Table[Rewrite] = Table({OpFromGraph: inner_graph})
