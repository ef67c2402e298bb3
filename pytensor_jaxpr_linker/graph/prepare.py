"""The list of graph passes. They turn the graph that PyTensor hands over into one that the partition can cut well."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pytensor.graph.fg import AbstractFunctionGraph, FrozenFunctionGraph, FunctionGraph
from pytensor.printing import debugprint

from pytensor_jaxpr_linker.base.interpreter import gc_paused
from pytensor_jaxpr_linker.base.passes import Pass, run_passes
from pytensor_jaxpr_linker.graph.decompose import DECOMPOSITIONS, NUMBERS_OF_BRANCHES, inline, wide_counts
from pytensor_jaxpr_linker.graph.lanes.with_lanes import lanes
from pytensor_jaxpr_linker.graph.loops import until_counts
from pytensor_jaxpr_linker.graph.outer_products import OUTER_PRODUCTS
from pytensor_jaxpr_linker.graph.sparse import basic, math  # noqa: F401  (they register lowerings)
from pytensor_jaxpr_linker.graph.sparse.lowering import sparse
from pytensor_jaxpr_linker.graph.walk import FindRule, Graph, rewritten, toposort

#: The passes over a graph, in order. Each takes a graph and `find_rule`, and returns the same graph if it does not
#: apply.
PASSES = (
    Pass("outer products", partial(rewritten, rewrites=OUTER_PRODUCTS)),
    Pass("inline", inline),
    Pass("sparse", sparse),
    Pass("decompose", partial(rewritten, rewrites=DECOMPOSITIONS)),
    Pass("wide counts", wide_counts),
    Pass("eager numbers", partial(rewritten, rewrites=NUMBERS_OF_BRANCHES)),
    Pass("until counts", until_counts),
    Pass("lanes", lanes),
)


@gc_paused()
def prepare(fgraph: AbstractFunctionGraph, find_rule: FindRule, more: Sequence[Pass] = ()) -> Graph:
    """Run all passes, and then `more`, on a copy of a graph: the one after PyTensor's rewrites, or an inner graph."""
    inputs, outputs = list(fgraph.inputs), list(fgraph.outputs)
    if isinstance(fgraph, FrozenFunctionGraph):  # its nodes can't be copied one by one
        outputs = fgraph.bind(inputs)
    is_ordered = isinstance(fgraph, FunctionGraph) and fgraph.orderings()
    nodes = list(fgraph.toposort()) if is_ordered else toposort(outputs, inputs)
    graph = Graph(inputs, outputs, nodes)
    return run_passes((*PASSES, *more), graph, find_rule, parts=lambda graph: graph.nodes, show=graph_text)


def graph_text(graph: Graph) -> str:
    """Return a graph as PyTensor prints it."""
    return str(debugprint(graph.outputs, file="str")).rstrip("\n")
