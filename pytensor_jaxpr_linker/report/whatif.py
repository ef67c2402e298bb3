"""Counts the batches that would be left without a break: it schedules the graph again as if the break were gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pytensor.graph.basic import Apply

from pytensor_jaxpr_linker.base.errors import INNER_GRAPH, NO_RULE, SIDE_EFFECT, Break, CannotEmit
from pytensor_jaxpr_linker.base.rules import Rule
from pytensor_jaxpr_linker.graph.walk import Graph
from pytensor_jaxpr_linker.plan.partition import best_schedule, make_steps, static_positions
from pytensor_jaxpr_linker.report.hints import expression

#: How many nodes are scheduled in all the trials for one explanation.
MOST_VISITS = 100_000


class Trials(NamedTuple):
    """What the trials found."""

    alone: dict[int, int]
    """How many batches are left without one break, for the breaks that were tried."""
    changes: list[tuple[str, tuple[int, ...], int]]
    """What to do, the breaks that it removes, and how many batches are left; the best first."""


def try_changes(
    graph: Graph,
    breaks: Sequence[Break],
    host_steps: Mapping[int, Sequence[int]],
    batches: int,
    find_rule: Callable[[Apply], Rule | None],
    fallbacks: Mapping[Apply, CannotEmit],
) -> Trials:
    """Find what each change to a graph would bring: first the changes that remove most breaks, until `MOST_VISITS` is used up.

    The plan has `batches` batches and these `breaks`; `host_steps` says which of them are in one host step, by its number.
    """
    groups: dict[object, list[int]] = {}
    for i, b in enumerate(breaks):
        groups.setdefault(common_cause(b), []).append(i)
    # A node may be looked at once in each batch where values cross, else once.
    visits = len(graph.nodes) * (batches if any(b.variable is not None for b in breaks) else 1)
    budget = MOST_VISITS // max(1, visits) - 1
    if budget < 1:
        return Trials({}, [])
    by_size = sorted(groups.values(), key=lambda members: -len(members))
    candidates = [(describe_change(breaks[members[0]]), tuple(members)) for members in by_size[:budget]]
    candidates += [(f"do without all of host step {i}", tuple(step)) for i, step in host_steps.items() if len(step) > 1]
    candidates += [("", (i,)) for members in by_size if len(members) > 1 for i in members]
    static = static_positions(make_steps(graph.inputs, graph.nodes, find_rule, fallbacks)[0])
    # Both counts are of the schedule: what the plan drops or merges behind it, it does in each trial alike.
    now = count_without(graph, breaks, frozenset(), static)
    alone: dict[int, int] = {}
    changes = []
    for what, members in candidates[:budget]:
        left = max(1, batches - (now - count_without(graph, breaks, frozenset(members), static)))
        if len(members) == 1:
            alone[members[0]] = left
        if what and left < batches:
            changes.append((what, members, left))
    changes.sort(key=lambda change: (change[2], len(change[1])))
    return Trials(alone, changes)


def common_cause(b: Break) -> object:
    """Return a key: breaks that one change removes share it."""
    if b.code in (NO_RULE, SIDE_EFFECT):
        return type(b.node.op)
    return b.node if b.variable is None else b.variable


def describe_change(b: Break) -> str:
    """Return what removes a break, and all others with the same cause."""
    if b.code is NO_RULE:
        return f"register an emission rule for {type(b.node.op).__name__}"
    if b.code is SIDE_EFFECT:
        return f"take out each {type(b.node.op).__name__}"
    if b.variable is not None:
        return f"make the value of {expression(b.variable)} known before the call, or do without it"
    if b.code is INNER_GRAPH:
        return f"make the inner graph of {b.node.op} one program"
    named = next((v.name for v in b.node.outputs if v.name), None)
    return f"rewrite {b.node.op}" + (f" = '{named}'" if named else "")


def count_without(
    graph: Graph, breaks: Sequence[Break], gone: frozenset[int], static: Mapping[Apply, frozenset[int]]
) -> int:
    """Return how many batches the graph has without some of its breaks."""
    on_host = set()
    changed: dict[Apply, frozenset[int]] = {}
    for i, b in enumerate(breaks):
        if b.variable is None:
            if i in gone:
                changed[b.node] = frozenset()
            else:
                on_host.add(b.node)
        elif i in gone:
            fixed = changed.get(b.node, static.get(b.node, frozenset()))
            changed[b.node] = frozenset(p for p in fixed if b.node.inputs[p] is not b.variable)
    return best_schedule(graph.inputs, graph.nodes, on_host, {**static, **changed}).batch_count
