"""Assigns each node of a graph to a batch: the fewest batches that alternate between device and host.

The schedule counts phases. A node runs in the phase of its latest operand if that is computed on the same side, else in
the next phase of its own side. A static operand that the device computes comes to the host first, where it keys the
specialization of a later region: an empty phase of the host lies between the two regions. Both sides are tried as the
first one. The pass visits each node once, so it takes linear time. Phases never decrease along an edge, so batches
can't depend on each other in a circle.

If no static operand crosses between regions, a longest chain of nodes that change sides has a node in every phase, so
no schedule has fewer batches. Otherwise a phase may hold nodes only because they run as early as they can: `delay`
moves them. The search ends at a schedule with no more batches than such a chain takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from pytensor.graph.basic import Apply, Variable

from pytensor_jaxpr_linker.base import marks
from pytensor_jaxpr_linker.graph.facts import LOOPS, SHAPE_READERS, may_be_static

NEVER = math.inf

#: `delay` gives up if all its attempts together would visit more nodes than this.
MOST_DELAYS = 200_000

#: A node; the positions of its static operands; whether it runs on the host; whether it reads only its operand's shape;
#: whether its results are known as soon as its operands are; its results, each with whether its value may key a
#: specialization, and whether its type declares its shape.
type Traits = tuple[Apply, frozenset[int], bool, bool, bool, list[tuple[Variable, bool, bool]]]

#: The phases from which on the device has a variable, the host has it, the host knows its value, and the host knows its
#: shape.
type Arrival = tuple[int, int, float, float]

#: The arrival of a constant.
AT_ONCE: Arrival = (0, 0, 0, 0)


#: The positions of the static operands of nodes that have any.
type StaticPositions = Mapping[Apply, frozenset[int]]


class Schedule(NamedTuple):
    """When each node runs."""

    phase: dict[Apply, int]  #: the phase of each node
    device_parity: int  #: whether the device has the even phases (0) or the odd ones (1)
    folded: set[Variable]  #: the variables that follow from shapes and known values by arithmetic
    crossing: dict[Apply, list[int]]  #: the positions of each node's static operands that an earlier region computes
    on_host: set[Apply]  #: further nodes for the host: a static operand is of a kind that can't key a specialization

    @property
    def batch_count(self) -> int:
        """The number of phases with nodes."""
        return len(set(self.phase.values()))

    def nodes_by_phase(self, nodes: Iterable[Apply]) -> dict[int, list[Apply]]:
        """Return the nodes of each phase, in order."""
        found: dict[int, list[Apply]] = {}
        for node in nodes:
            found.setdefault(self.phase[node], []).append(node)
        return found


def schedule(
    inputs: Sequence[Variable], nodes: Sequence[Apply], on_host: Collection[Apply], static: StaticPositions
) -> Schedule:
    """Return the schedule with the fewest batches, for `nodes` in topological order; `static` is for device nodes."""
    traits, further = traits_of_nodes(inputs, nodes, on_host, static)
    arrivals: dict[Variable, Arrival] = {v: (0, 0, 0 if may_be_static(v) else NEVER, 0) for v in inputs}

    def assign_from(parity: int, earliest: Mapping[Apply, int] = MappingProxyType({})) -> Schedule:
        return assign(traits, arrivals, parity, earliest)._replace(on_host=further)

    first = assign_from(0)
    if is_fewest(first.phase):
        return first
    fewest = 1 + max(assign(traits, arrivals, None, {}).phase.values(), default=-1)
    first = delay(first, assign_from, fewest)
    if first.batch_count <= fewest:
        return first
    second = delay(assign_from(1), assign_from, fewest)
    return first if first.batch_count <= second.batch_count else second


def is_fewest(phase: Mapping[Apply, int]) -> bool:
    """Return whether some chain of nodes that change sides has a node in each phase: each needs a batch of its own."""
    node = max(phase, key=phase.__getitem__, default=None)
    while node is not None and phase[node]:
        operands = (v.owner for v in node.inputs if v.owner in phase)
        before = max(operands, key=phase.__getitem__, default=None)
        if before is None or phase[before] < phase[node] - 1:
            return False
        node = before
    return True


def delay(found: Schedule, assign_from: Callable[[int, Mapping[Apply, int]], Schedule], fewest: int) -> Schedule:
    """Return a schedule whose nodes run one phase of their side later, phase by phase, if that needs no more batches.

    No proof says that this gives the fewest batches, but it did for every random graph that was compared with all
    schedules.
    """
    if not found.crossing:
        return found
    phase, last = 0, max(found.phase.values())
    if len(found.phase) * last > MOST_DELAYS:
        return found
    earliest: dict[Apply, int] = {}
    while phase <= last and found.batch_count > fewest:
        moved = earliest | {node: phase + 2 for node, p in found.phase.items() if p == phase}
        later = assign_from(found.device_parity, moved)
        if later.batch_count <= found.batch_count and max(later.phase.values()) <= last:
            found, earliest = later, moved
        phase += 1
    return found


def traits_of_nodes(
    inputs: Sequence[Variable], nodes: Sequence[Apply], on_host: Collection[Apply], static: StaticPositions
) -> tuple[list[Traits], set[Apply]]:
    """Return the traits of each node, and further host nodes, whose static operands can't key a specialization."""
    unknown = {v for v in inputs if not may_be_static(v)}
    dynamic = {v for v in inputs if marks.is_dynamic(v)}  # and the variables computed from them
    traits: list[Traits] = []
    further = set()
    for node in nodes:
        operands, op_type, needed = node.inputs, type(node.op), static.get(node, NO_PHASES)
        is_host = node in on_host
        if needed and any(operands[i] in unknown for i in needed):
            is_host = True
            further.add(node)
        reads_shape = op_type in SHAPE_READERS
        if is_dynamic := bool(dynamic) and not reads_shape and not dynamic.isdisjoint(operands):
            dynamic.update(node.outputs)
        may_fold = not is_host and op_type not in LOOPS
        is_known = may_fold and (reads_shape or unknown.isdisjoint(operands))
        outputs = []
        for v in node.outputs:
            is_key = not is_dynamic and may_be_static(v)
            if not (is_key or is_known):
                unknown.add(v)
            outputs.append((v, is_key, None not in getattr(v.type, "shape", ())))
        traits.append((node, NO_PHASES if is_host else needed, is_host, reads_shape, may_fold, outputs))
    return traits, further


NO_PHASES: frozenset[int] = frozenset()


def assign(
    traits: Sequence[Traits], arrivals: Mapping[Variable, Arrival], parity: int | None, earliest: Mapping[Apply, int]
) -> Schedule:
    """Return the schedule in which the device has the even (0) or the odd (1) phases, none before `earliest`.

    `arrivals` belong to the graph's inputs. Without a parity the sides have any phase: then a node of phase n ends a
    chain of n + 1 nodes that all need different batches, so no schedule has fewer.
    """
    found = Schedule({}, parity or 0, set(), {}, set())
    arrived, folded, alternating = dict(arrivals), found.folded, parity is not None
    for node, static, is_host, reads_shape, may_fold, outputs in traits:
        ready: float = earliest.get(node, 0)
        known: float = 0
        shaped: float = 0
        for i, u in enumerate(node.inputs):
            on_device, on_host, u_known, u_shaped = arrived.get(u, AT_ONCE)
            start: float = on_host if is_host else on_device
            if i in static:
                start = u_known
                shaped = max(shaped, u_known)
                if on_device < on_host and u_known > on_device:
                    found.crossing.setdefault(node, []).append(i)
            # Comparisons, since calls of `max` take most of the time of large graphs.
            if start > ready:
                ready = start
            if u_known > known:
                known = u_known
            if u_shaped > shaped:
                shaped = u_shaped
        phase = int(ready)
        if alternating:
            phase += (phase ^ found.device_parity ^ is_host) & 1
        found.phase[node] = phase
        if reads_shape:
            known = shaped
        after = phase + 1
        for v, is_key, is_declared in outputs:
            v_known: float = after if is_key else NEVER
            if may_fold and known < v_known:
                v_known = known
                folded.add(v)
            v_shaped = 0 if is_declared else after if is_host or after < shaped else shaped
            arrived[v] = (after, phase, v_known, v_shaped) if is_host else (phase, after, v_known, v_shaped)
    return found
