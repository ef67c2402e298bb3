"""Assigns each node of a graph to a batch: the fewest batches that alternate between device and host. Uses no JAX.

Counted are phases. A node runs in the phase of its latest operand if that is computed on the same side, else in the next
phase of its own side. A static operand that the device computes has to come to the host first, where it keys the
specialization of a later region: between two regions lies a phase of the host in which nothing is done. Both sides are tried
as the first one. Each node is looked at once, so the time is linear, and since phases never decrease along an edge, batches
can't depend on each other in a circle.

If no value crosses, a longest chain of nodes that change sides has a node in every phase, so no schedule has fewer batches. If
some do, a phase may hold nodes only because they run as early as they can: then these are delayed, see `delay`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from pytensor.graph.basic import Apply, Variable

from pytensor_jaxpr_linker.facts import LOOPS, SHAPE_READERS, may_be_static

NEVER = math.inf

#: Delaying nodes is left out where it would look at more than this many of them, all attempts together.
MOST_DELAYS = 200_000


class Schedule(NamedTuple):
    """When each node runs.

    Attributes
    ----------
    phase
        The phase of each node.
    device_parity
        Whether the device has the even phases (0) or the odd ones (1).
    known
        From which phase on the value of a variable is known to the host, for those that are known while a region is built.
    folded
        The variables among them that follow from shapes and known values by arithmetic.
    crossing
        For each node the positions of its static operands that a region before its own computes.
    on_host
        Further nodes that run on the host: a static operand is of a kind that can't key a specialization.
    """

    phase: dict[Apply, int]
    device_parity: int
    known: dict[Variable, float]
    folded: set[Variable]
    crossing: dict[Apply, list[int]]
    on_host: set[Apply]

    @property
    def batch_count(self) -> int:
        """How many phases have nodes."""
        return len(set(self.phase.values()))


def schedule(
    inputs: Sequence[Variable],
    nodes: Sequence[Apply],
    on_host: Collection[Apply],
    static: Mapping[Apply, frozenset[int]],
) -> Schedule:
    """Return the schedule with the fewest batches.

    Parameters
    ----------
    inputs
        The inputs of the graph.
    nodes
        Its nodes in topological order.
    on_host
        Those that run on the host.
    static
        The positions of each other node's operands whose values must be known when its region is built.
    """

    def assign_from(parity: int, earliest: Mapping[Apply, int] = MappingProxyType({})) -> Schedule:
        return assign(inputs, nodes, on_host, static, parity, earliest)

    first, second = (delay(assign_from(parity), assign_from) for parity in (0, 1))
    return first if first.batch_count <= second.batch_count else second


def delay(found: Schedule, assign_from: Callable[[int, Mapping[Apply, int]], Schedule]) -> Schedule:
    """Return a schedule whose nodes run one phase of their side later, phase by phase, where that needs no more batches.

    Not proved to give the fewest batches, but it did for every random graph on which it was compared with all schedules.
    """
    if not found.crossing:
        return found
    phase, last = 0, max(found.phase.values())
    if len(found.phase) * last > MOST_DELAYS:
        return found
    earliest: dict[Apply, int] = {}
    while phase <= last:
        moved = earliest | {node: phase + 2 for node, p in found.phase.items() if p == phase}
        later = assign_from(found.device_parity, moved)
        if later.batch_count <= found.batch_count and max(later.phase.values()) <= last:
            found, earliest = later, moved
        phase += 1
    return found


def assign(
    inputs: Sequence[Variable],
    nodes: Sequence[Apply],
    on_host: Collection[Apply],
    static: Mapping[Apply, frozenset[int]],
    device_parity: int,
    earliest: Mapping[Apply, int],
) -> Schedule:
    """Return the schedule in which the phases of the device are the even (0) or the odd (1) ones, none before `earliest`."""
    found = Schedule({}, device_parity, {}, set(), {}, set())
    computed: dict[Variable, int] = {}  # the phase in which a variable is computed
    host_values: set[Variable] = set()
    known, folded = found.known, found.folded  # the phase from which on the host knows a variable's value
    shaped: dict[Variable, float] = {}  # the same for its shape
    for variable in inputs:
        known[variable] = 0 if may_be_static(variable) else NEVER
        shaped[variable] = 0
    for node in nodes:
        needed = static.get(node, ())
        never = any(known.get(node.inputs[i], 0) == NEVER for i in needed)
        if is_host := never or node in on_host:
            needed = ()
            if never:
                found.on_host.add(node)
        ready: float = earliest.get(node, 0)
        operands_known: float = 0
        operands_shaped: float = 0
        for i, u in enumerate(node.inputs):
            known_from = known.get(u, 0)  # 0 for constants
            operands_known = max(operands_known, known_from)
            operands_shaped = max(operands_shaped, shaped.get(u, 0))
            if i in needed:
                ready = max(ready, known_from)
                operands_shaped = max(operands_shaped, known_from)
                if u in computed and u not in host_values and known_from > computed[u]:
                    found.crossing.setdefault(node, []).append(i)
            elif u in computed:
                ready = max(ready, computed[u] + ((u in host_values) != is_host))
        parity = device_parity ^ is_host
        phase = found.phase[node] = int(ready) + ((int(ready) ^ parity) & 1)
        if isinstance(node.op, SHAPE_READERS):
            operands_known = shaped.get(node.inputs[0], 0)
        for v in node.outputs:
            computed[v] = phase
            arrives = phase + 1 if may_be_static(v) else NEVER
            if operands_known < arrives and not is_host and not isinstance(node.op, LOOPS):
                known[v] = operands_known
                folded.add(v)
            else:
                known[v] = arrives
            if is_host:
                host_values.add(v)
                shaped[v] = phase + 1
            else:
                shaped[v] = min(operands_shaped, phase + 1)
            if None not in getattr(v.type, "shape", ()):
                shaped[v] = 0
    return found
