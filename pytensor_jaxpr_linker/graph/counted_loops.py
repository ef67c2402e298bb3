"""Loops that a condition ends, as the analysis wants them: how far they came is a value of its own. Uses no JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import toposort
from pytensor.scan.op import Scan
from pytensor.tensor.shape import Shape_i
from pytensor.tensor.subtensor import Subtensor

from pytensor_jaxpr_linker.base.rules import Rule
from pytensor_jaxpr_linker.graph.facts import LOOPS, SHAPE_READERS, may_be_static
from pytensor_jaxpr_linker.graph.rewire import rewired
from pytensor_jaxpr_linker.graph.until_scan import UntilScan, spans


def with_counts(
    inputs: Sequence[Variable], outputs: list[Variable], nodes: list[Apply], find_rule: Callable[[Apply], Rule | None]
) -> tuple[list[Variable], list[Apply]]:
    """Return outputs and nodes of a graph in which each loop that a condition ends says how many steps it took.

    What reads an output of such a loop then reads a slice of it, whose length is that count. If only the last rows are read,
    only these are kept: then no shape depends on the count.
    """
    clients: dict[Variable, list[Apply | None]] = {v: [None] for v in outputs}
    for node in nodes:
        for v in node.inputs:
            clients.setdefault(v, []).append(node)
    replaced: dict[Variable, Variable] = {}
    for node in nodes:
        copied = rewired(node, replaced)
        if copied is not node:
            for old, new in zip(node.outputs, copied.outputs, strict=True):
                replaced.setdefault(old, new)
        if isinstance(node.op, Scan) and node.op.info.as_while and is_emitted(copied, find_rule):
            replaced.update(counted(node, copied, clients))
    if not replaced:
        return outputs, nodes
    outputs = [replaced.get(v, v) for v in outputs]
    return outputs, list(toposort(outputs, blockers=inputs))


def is_emitted(node: Apply, find_rule: Callable[[Apply], Rule | None]) -> bool:
    """Tell whether a node has a rule that takes it."""
    rule = find_rule(node)
    return rule is not None and rule.refuse(node) is None


def counted(node: Apply, copied: Apply, clients: dict[Variable, list[Apply | None]]) -> dict[Variable, Variable]:
    """Return what replaces the outputs of a loop, and their lengths; `copied` is its node in the new graph."""
    op: Scan = node.op
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
        if not reads_last(output, clients, kept):
            rows = operands[place].shape[0] if i < recurrent else operands[place]
            cut[i] = span, rows
        elif i < recurrent:
            operands[place] = operands[place][:kept]
        else:
            operands[place] = pt.constant(1, dtype=operands[place].type.dtype)
    results: list[Any]
    *results, count = UntilScan(op).make_node(*operands).outputs
    found: dict[Variable, Variable] = {}
    taken: Any = pt.constant(0, dtype=count.type.dtype) if takes_no_step(copied, op) else count
    for i, output in enumerate(node.outputs):
        result: Any = results[i]
        found[output] = result
        if i in cut:
            span, rows = cut[i]
            length = pt.minimum(taken + span, rows)
            found[output] = result[:length]
            for client in clients.get(output, ()):
                if client is not None and isinstance(client.op, Shape_i) and client.op.i == 0:
                    found[client.outputs[0]] = length
        found[output].name = output.name
    return found


def takes_no_step(node: Apply, op: Scan) -> bool:
    """Tell whether a loop is known to take no step: its number of steps is 0, or a sequence has no rows."""
    steps = node.inputs[0]
    if isinstance(steps, Constant) and steps.data == 0:
        return True
    return any(x.type.shape[0] == 0 for x in op.outer_seqs(node.inputs))


def reads_last(variable: Variable, clients: dict[Variable, list[Apply | None]], kept: int) -> bool:
    """Tell whether of a variable only its last rows, up to `kept` of them, are read."""

    def is_last(client: Apply | None) -> bool:
        if client is None or not isinstance(client.op, Subtensor) or isinstance(client.op.idx_list[0], slice):
            return False
        index = client.inputs[1]
        return isinstance(index, Constant) and -kept <= int(index.data) < 0

    return all(map(is_last, clients.get(variable, ())))


def follows_from_numbers(variable: Variable) -> bool:
    """Tell whether a number follows from shapes and inputs that are numbers, and so may be known before the program runs."""
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
