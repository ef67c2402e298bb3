"""Graphs and plans, by the rules that are registered."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytensor.graph.basic import Apply
from pytensor.graph.fg import AbstractFunctionGraph

from pytensor_jaxpr_linker.base import marks, rules
from pytensor_jaxpr_linker.base.errors import CannotEmit
from pytensor_jaxpr_linker.emit import traced_leaf
from pytensor_jaxpr_linker.graph.prepare import prepare
from pytensor_jaxpr_linker.graph.walk import Graph
from pytensor_jaxpr_linker.plan.model import Plan, Region
from pytensor_jaxpr_linker.plan.partition import partition


def rule_for(node: Apply) -> rules.Rule | None:
    """Return the emission rule of a node, or that of a traced leaf if a third party registered its Op with JAX mode."""
    return rules.find_rule(node.op) or traced_leaf.leaf_rule(node)


def make_graph(fgraph: AbstractFunctionGraph, traced_leaves: bool = True) -> Graph:
    """Return a rewritten graph as `make_plan` takes it."""
    with traced_leaf.allow(traced_leaves):
        return prepare(fgraph, rule_for)


def make_plan(
    graph: Graph, fallbacks: Mapping[Apply, CannotEmit] = MappingProxyType({}), traced_leaves: bool = True
) -> Plan:
    """Return the plan of a graph with the rules that are registered, see `partition`."""
    with traced_leaf.allow(traced_leaves):
        plan = partition(graph, rule_for, fallbacks)
    if not any(map(marks.is_static, graph.inputs)):
        return plan
    batches = [with_marked_inputs(batch) if isinstance(batch, Region) else batch for batch in plan.batches]
    return plan._replace(batches=batches)


def with_marked_inputs(region: Region) -> Region:
    """Return a region whose specializations depend on the values of the inputs that are marked static, too."""
    marked = [v for v in region.inputs if marks.is_static(v)]
    static = {*region.static_inputs, *marked}
    return region._replace(
        static_inputs=[v for v in region.inputs if v in static],
        demanded=list(dict.fromkeys([*region.demanded, *marked])),
    )
