"""Traces each random generator back to the one it comes from, and counts the draws between them.

A draw uses 64 bits of its generator's stream as its key. So does a loop, however many draws its steps make. Each draw of a region
gets the key at its own place in the stream. So the numbers drawn do not depend on how a graph is cut into regions or functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from pytensor.compile.ops import DeepCopyOp, TypeCastingOp
from pytensor.graph.basic import Apply, Variable
from pytensor.scan.op import Scan
from pytensor.tensor.random.type import RandomType

from pytensor_jaxpr_linker.graph.until_scan import UntilScan


class Ancestor(NamedTuple):
    """An ancestor of a generator, and the number of draws between them."""

    generator: Variable
    draws: int


def generator_ancestor(variable: Variable, inputs: Collection[Variable]) -> Ancestor:
    """Return the generator, among `inputs` or without an owner, from which a variable descends. A copy draws nothing."""
    draws = 0
    while variable not in inputs and variable.owner is not None:
        draws += is_draw(variable.owner)
        variable = parent_generator(variable)
    return Ancestor(variable, draws)


def generators_read(inputs: Collection[Variable], nodes: Iterable[Apply]) -> dict[Variable, Ancestor]:
    """Return the ancestor of each generator that nodes read: a generator that they do not compute."""
    known = {v: Ancestor(v, 0) for v in inputs if isinstance(v.type, RandomType)}
    read = {}
    for node in nodes:
        for v in node.inputs:
            if isinstance(v.type, RandomType):
                read[v] = known.setdefault(v, Ancestor(v, 0))
        for v in node.outputs:
            if isinstance(v.type, RandomType):
                source = known.setdefault(parent_generator(v), Ancestor(parent_generator(v), 0))
                known[v] = Ancestor(source.generator, source.draws + is_draw(node))
    return read


def key_counts(inputs: Collection[Variable], nodes: Iterable[Apply]) -> dict[Variable, int]:
    """Return the number of keys that nodes use of each generator."""
    counts: dict[Variable, int] = {}
    for generator, draws in generators_read(inputs, nodes).values():
        counts[generator] = max(counts.get(generator, 0), draws + 1)
    return counts


def is_draw(node: Apply) -> bool:
    """Return whether a node that returns a generator uses a key: all but copies do."""
    return not isinstance(node.op, DeepCopyOp | TypeCastingOp)


def parent_generator(variable: Variable) -> Variable:
    """Return the operand from which a computed generator descends."""
    node = variable.owner
    op = node.op.scan if isinstance(node.op, UntilScan) else node.op
    if isinstance(op, Scan):
        states = op.outer_untraced_sit_sot(node.inputs)
        return states[node.outputs.index(variable) - op.info.n_outer_outputs + len(states)]
    return next(v for v in node.inputs if isinstance(v.type, RandomType))
