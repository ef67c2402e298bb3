"""The pass that gives each loop with a condition its number of steps as an output.

PyTensor's Op cuts its outputs to the steps taken, so their lengths are known only when it has run. `UntilScan` returns outputs of
full length, and the count. Readers of an output then read a slice of that length. Where only the last rows are read, the loop
keeps only these, and no shape depends on the count.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scan.op import Scan
from pytensor.tensor.shape import Shape_i
from pytensor.tensor.subtensor import Subtensor

from pytensor_jaxpr_linker.base.rules import Table
from pytensor_jaxpr_linker.graph.facts import LOOPS, SHAPE_READERS, may_be_static
from pytensor_jaxpr_linker.graph.until_scan import UntilScan, spans
from pytensor_jaxpr_linker.graph.walk import FindRule, Graph, Operands, Rewrite, rewritten


def until_counts(graph: Graph, find_rule: FindRule) -> Graph:
    """Replace each loop that a condition ends, and that has a rule, by an `UntilScan`."""
    if Scan not in graph.op_types:  # the lengths alone are no reason to walk
        return graph
    return rewritten(graph, find_rule, REWRITES, CountedLoops)


class CountedLoops(Operands):
    """The operands of the new graph, with the lengths of the outputs of loops."""

    def __init__(self, graph: Graph, find_rule: FindRule):
        super().__init__(graph, find_rule)
        self.lengths: dict[Variable, Variable] = {}  #: by outputs of the old graph

    @cached_property
    def clients(self) -> dict[Variable, list[Apply | None]]:
        """The nodes that read each variable; None stands for an output of the graph."""
        found: dict[Variable, list[Apply | None]] = {v: [None] for v in self.graph.outputs}
        for node in self.graph.nodes:
            for v in node.inputs:
                found.setdefault(v, []).append(node)
        return found


def loop_with_count(known: CountedLoops, node: Apply) -> list[Variable]:
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
        if not reads_last(output, known.clients, kept):
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
        length = known.lengths[node.outputs[i]] = pt.minimum(taken + span, rows)
        results[i] = results[i][:length]
    return results


def length_of_loop(known: CountedLoops, node: Apply) -> list[Variable] | None:
    """Return the length of an output of a loop without its rows."""
    length = known.lengths.get(node.inputs[0]) if node.op.i == 0 else None
    return None if length is None else [length]


REWRITES: Table[Rewrite] = Table({Scan: loop_with_count, Shape_i: length_of_loop})


def takes_no_step(node: Apply, op: Scan) -> bool:
    """Return whether a loop is known to take no step: its number of steps is 0, or a sequence has no rows."""
    steps = node.inputs[0]
    if isinstance(steps, Constant) and steps.data == 0:
        return True
    return any(x.type.shape[0] == 0 for x in op.outer_seqs(node.inputs))


def reads_last(variable: Variable, clients: dict[Variable, list[Apply | None]], kept: int) -> bool:
    """Return whether all readers of a variable read only its last rows, up to `kept` of them."""

    def is_last(client: Apply | None) -> bool:
        if client is None or not isinstance(client.op, Subtensor) or isinstance(client.op.idx_list[0], slice):
            return False
        index = client.inputs[1]
        return isinstance(index, Constant) and -kept <= int(index.data) < 0

    return all(map(is_last, clients.get(variable, ())))


def follows_from_numbers(variable: Variable) -> bool:
    """Return whether a number follows from shapes and number inputs, and so may be known before the program runs."""
    stack, seen = [variable], set()
    while stack:
        v = stack.pop()
        if v in seen or isinstance(v, Constant):
            continue
        seen.add(v)
        if v.owner is None:
            if not may_be_static(v):
                return False
        elif isinstance(v.owner.op, LOOPS):
            return False
        elif not isinstance(v.owner.op, SHAPE_READERS):
            stack += v.owner.inputs
    return True
