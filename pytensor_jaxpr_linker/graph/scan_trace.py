"""A PyTensor rewrite by which loops keep only the rows that are read.

It restricts PyTensor's own rewrite (PyTensor 3.3) to the cases where that is right. PyTensor's rewrite counts rows from the end, by
the largest number of steps, and assumes that all rows exist. A loop with a condition may take fewer steps: then ``states[1:]``
became its last rows, and ``states[-2:]`` contained the initial state. ``rows[-2:]`` of a loop of one step contained a row that no
step computed.
"""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply, Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.scan.op import Scan
from pytensor.scan.rewriting.trace import scan_reduce_trace_no_prealloc
from pytensor.tensor.subtensor import Subtensor, unflatten_index_variables

from pytensor_jaxpr_linker.graph.until_scan import spans

REDUCED_TRACES = "jaxpr_reduced_traces"


@node_rewriter([Scan])
def reduce_trace(fgraph: FunctionGraph, node: Apply) -> Any:
    """Apply PyTensor's rewrite if it is right for every number of steps that the loop may take."""
    op, steps = node.op, node.inputs[0]
    is_until = op.info.as_while
    least = int(steps.data) if isinstance(steps, Constant) and not is_until else 0
    for output, span in zip(node.outputs, spans(op), strict=True):
        if span is not None and not all(
            is_reducible(client, max(1, span + least), is_until) for client, _ in fgraph.clients[output]
        ):
            return None
    return scan_reduce_trace_no_prealloc.transform(fgraph, node)


def is_reducible(client: Any, rows: int, is_until: bool) -> bool:
    """Return whether PyTensor's rewrite is right for a client of an output: a node, or PyTensor's mark of an output of the graph.

    The output has at least `rows` rows. One may be counted on: if there is none, reading it fails.
    """
    if not isinstance(client.op, Subtensor):
        return True  # it keeps all rows
    entry: Any = unflatten_index_variables(client.inputs[1:], client.op.idx_list)[0]
    start = entry.start if isinstance(entry, slice) else entry
    if is_until and isinstance(entry, slice):
        return False
    if not isinstance(start, Constant):
        return True
    return -int(start.data) <= rows if start.data < 0 else not is_until
