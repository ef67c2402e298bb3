"""Makes graphs and plans with the registered rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pytensor.graph.basic import Apply
from pytensor.graph.fg import AbstractFunctionGraph

from pytensor_jaxpr_linker.base import marks, rules
from pytensor_jaxpr_linker.base.errors import CannotEmit
from pytensor_jaxpr_linker.base.passes import Pass
from pytensor_jaxpr_linker.emit import traced_leaf
from pytensor_jaxpr_linker.graph.column_major import lay_constants, reads_gaining_constant
from pytensor_jaxpr_linker.graph.prepare import prepare
from pytensor_jaxpr_linker.graph.sorted_rows import is_by_group, sort_rows
from pytensor_jaxpr_linker.graph.walk import Graph
from pytensor_jaxpr_linker.jaxpr.passes import CPU
from pytensor_jaxpr_linker.plan.inner import Rules
from pytensor_jaxpr_linker.plan.model import Plan, Region
from pytensor_jaxpr_linker.plan.partition import partition

#: The passes over a whole graph, after those over each graph: they take constants of the user in another order. The
#: threads of a GPU do not wait for each other as they add to a group, and its libraries take matrices in any order.
FOR_CPUS = (
    Pass("sorted rows", sort_rows, is_by_group, when=(CPU,)),
    Pass("column-major constants", lay_constants, reads_gaining_constant, when=(CPU,)),
)


def rules_in_force(traced_leaves: bool = True) -> Rules:
    """Return the registered rules, and for an Op without one, if `traced_leaves`, the rule that traces its JAX function."""

    def find(node: Apply) -> rules.Rule | None:
        return rules.find_rule(node.op) or (traced_leaf.leaf_rule(node) if traced_leaves else None)

    return Rules(find)


def make_graph(fgraph: AbstractFunctionGraph, find_rule: Rules | None = None, more: Sequence[Pass] = ()) -> Graph:
    """Return the graph that `make_plan` takes, for these rules; by default those in force. The passes `more` are the last."""
    return prepare(fgraph, find_rule or rules_in_force(), (*FOR_CPUS, *more))


def make_plan(
    graph: Graph, find_rule: Rules | None = None, fallbacks: Mapping[Apply, CannotEmit] = MappingProxyType({})
) -> Plan:
    """Return the plan of a graph, see `partition`, for these rules; by default those in force."""
    plan = partition(graph, find_rule or rules_in_force(), fallbacks)
    if not any(map(marks.is_static, graph.inputs)):
        return plan
    batches = [with_marked_inputs(batch) if isinstance(batch, Region) else batch for batch in plan.batches]
    return plan._replace(batches=batches)


def with_marked_inputs(region: Region) -> Region:
    """Return a region with the inputs that are marked static among its static inputs."""
    marked = [v for v in region.inputs if marks.is_static(v)]
    static = {*region.static_inputs, *marked}
    return region._replace(
        static_inputs=[v for v in region.inputs if v in static],
        demanded=list(dict.fromkeys([*region.demanded, *marked])),
    )
