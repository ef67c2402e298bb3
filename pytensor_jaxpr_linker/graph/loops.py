"""Loops with a condition: an Op that returns the number of steps, the pass that makes it, and a rewrite for PyTensor.

PyTensor's Op cuts its outputs to the steps taken, so their lengths are known only after it has run. `UntilScan` returns
outputs of full length, and the count. Readers of an output then read a slice of that length. If the readers need only
the last rows, the loop keeps only these rows, and no shape depends on the count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.scan.op import Scan
from pytensor.scan.rewriting.trace import scan_reduce_trace_no_prealloc
from pytensor.tensor.shape import Shape_i
from pytensor.tensor.subtensor import Subtensor, unflatten_index_variables

from pytensor_jaxpr_linker.base.rules import Table
from pytensor_jaxpr_linker.graph.walk import FindRule, Graph, Operands, Rewrite, rewritten


class UntilScan(Op):
    """A `Scan` with a condition, with outputs of full length as if it never ended early, and the number of steps."""

    __props__ = ("scan",)

    def __init__(self, scan: Scan):
        self.scan = scan

    def make_node(self, *inputs: Variable) -> Apply:
        """Return the node, which takes the inputs of the scan."""
        inner = self.scan.make_node(*inputs)
        return Apply(self, list(inner.inputs), [*(v.type() for v in inner.outputs), pt.lscalar()])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Sequence[list]) -> None:
        """Run the scan on the host. It cuts its outputs itself; the cuts that follow change nothing."""
        scan_node = self.scan.make_node(*node.inputs)
        cells: dict[Variable, list] = {v: [x] for v, x in zip(scan_node.inputs, inputs, strict=True)}
        cells |= {v: [None] for v in scan_node.outputs}
        self.scan.make_thunk(scan_node, cells, {v: [True] for v in cells}, [], impl="py")()
        most = steps = int(inputs[0])
        lengths = row_counts(self.scan, inputs)
        for cell, variable, span, length in zip(
            output_storage, scan_node.outputs, spans(self.scan), lengths, strict=False
        ):
            cell[0] = cells[variable][0]
            if span is not None and length == most + span:
                steps = len(cell[0]) - span
        output_storage[-1][0] = np.asarray(steps, "int64")

    def __str__(self) -> str:
        return str(self.scan)


def spans(op: Scan) -> list[int | None]:
    """Return the number of initial rows of each output, which no step writes; None for outputs without rows."""
    info = op.info
    taps = info.mit_sot_in_slices + info.sit_sot_in_slices
    return [
        *[None] * info.n_mit_mot,
        *(-min(ins) for ins in taps),
        *[0] * info.n_nit_sot,
        *[None] * info.n_untraced_sit_sot,
    ]


def row_counts(op: Scan, inputs: Sequence[Any]) -> list[int]:
    """Return the number of rows that each output of a scan is given, for the outputs with rows."""
    buffers = (*op.outer_mitmot(inputs), *op.outer_mitsot(inputs), *op.outer_sitsot(inputs))
    return [*map(len, buffers), *(int(n) for n in op.outer_nitsot(inputs))]


def until_counts(graph: Graph, find_rule: FindRule) -> Graph:
    """Replace each loop that a condition ends, and that has a rule, by an `UntilScan`."""
    if Scan not in graph.op_types:  # the lengths alone do not need a walk
        return graph
    return rewritten(graph, find_rule, REWRITES)


def loop_with_count(known: Operands, node: Apply) -> list[Variable]:
    """Return the outputs of an `UntilScan`, cut to the steps taken unless only the last rows are read."""
    op: Scan = node.op
    copied = known.node(node)
    if not op.info.as_while or (rule := known.find_rule(copied)) is None or rule.refuse(copied) is not None:
        return copied.outputs
    operands: list[Any] = list(copied.inputs)
    info = op.info
    first_buffer = 1 + info.n_seqs
    first_length = info.n_outer_inputs - info.n_non_seqs - info.n_nit_sot
    recurrent = info.n_mit_mot + info.n_mit_sot + info.n_sit_sot
    cut: dict[int, Any] = {}  # by the position of an output, how many rows it has before the loop, and at most
    for i, (output, span) in enumerate(zip(node.outputs, spans(op), strict=True)):
        if span is None:
            continue
        kept = max(span, 1)
        place = first_buffer + i if i < recurrent else first_length + i - recurrent
        if not reads_last(output, known.graph, kept):
            rows = operands[place].shape[0] if i < recurrent else operands[place]
            cut[i] = span, rows
        elif i < recurrent:
            operands[place] = operands[place][:kept]
        else:
            operands[place] = pt.constant(1, dtype=operands[place].type.dtype)
    outputs: list[Any] = UntilScan(op).make_node(*operands).outputs
    *results, count = outputs
    taken: Any = pt.constant(0, dtype=count.type.dtype) if takes_no_step(copied, op) else count
    for i, (span, rows) in cut.items():
        length = known.noted[node.outputs[i]] = pt.minimum(taken + span, rows)
        results[i] = results[i][:length]
    return results


def length_of_loop(known: Operands, node: Apply) -> list[Variable] | None:
    """Return the length of an output of a loop without its rows."""
    length = known.noted.get(node.inputs[0]) if node.op.i == 0 else None
    return None if length is None else [length]


REWRITES: Table[Rewrite] = Table({Scan: loop_with_count, Shape_i: length_of_loop})


def takes_no_step(node: Apply, op: Scan) -> bool:
    """Return whether a loop is known to take no step: its number of steps is 0, or a sequence has no rows."""
    steps = node.inputs[0]
    if isinstance(steps, Constant) and steps.data == 0:
        return True
    return any(x.type.shape[0] == 0 for x in op.outer_seqs(node.inputs))


def reads_last(variable: Variable, graph: Graph, kept: int) -> bool:
    """Return whether all readers of a variable read only its last rows, up to `kept` of them."""

    def is_last(client: Apply) -> bool:
        if not isinstance(client.op, Subtensor) or isinstance(client.op.idx_list[0], slice):
            return False
        index = client.inputs[1]
        return isinstance(index, Constant) and -kept <= int(index.data) < 0

    return variable not in graph.outputs and all(map(is_last, graph.readers.get(variable, ())))


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
    """Return whether PyTensor's rewrite is right for a client of an output: a node, or the mark of a graph output.

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
