"""A rewrite: loops keep the rows that are read, where it is known which rows these are. Uses no JAX.

PyTensor's own rewrite counts rows from the end by the largest number of steps. A loop that a condition ends may take fewer, so
``states[1:]`` of such a loop became its last rows, and ``states[-2:]`` had its initial state (PyTensor 3.3).
"""

from __future__ import annotations

from typing import Any

from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.scan.op import Scan
from pytensor.scan.rewriting.trace import scan_reduce_trace_no_prealloc
from pytensor.tensor.subtensor import Subtensor

from pytensor_jaxpr_linker.until import spans

#: The name of the rewrite.
REDUCED_TRACES = "jaxpr_reduced_traces"


@node_rewriter([Scan])
def reduce_trace(fgraph: FunctionGraph, node: Apply) -> Any:
    """Return what PyTensor's rewrite returns, for a loop whose number of steps does not matter to it."""
    if node.op.info.as_while and not reads_from_end(fgraph, node):
        return None
    return scan_reduce_trace_no_prealloc.transform(fgraph, node)


def reads_from_end(fgraph: FunctionGraph, node: Apply) -> bool:
    """Tell whether all that is read of a loop's rows are single ones, which constants count from the end."""

    def is_from_end(client: Any) -> bool:
        if not isinstance(client.op, Subtensor) or isinstance(client.op.idx_list[0], slice):
            return False
        return isinstance(client.inputs[1], Constant) and int(client.inputs[1].data) < 0

    rows = [v for v, span in zip(node.outputs, spans(node.op), strict=True) if span is not None]
    return all(is_from_end(client) for v in rows for client, _ in fgraph.clients[v])


if REDUCED_TRACES not in optdb:  # a reloaded module registers once
    rewrite = dfs_rewriter(reduce_trace, ignore_newtrees=True)
    optdb.register(REDUCED_TRACES, rewrite, position=1.612)  # where PyTensor has its own
