"""Applies PyTensor's rewrites in PyTensor's order, with less work between them.

PyTensor measures each attempt to rewrite a node, counts the nodes that each rewrite makes, and tries again what can't have changed. That is a fourth of
the time of rewriting. The rewriters here call the same rewrites on the same nodes in the same order, without it.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from copy import copy
from functools import cache, cached_property, partial
from math import inf
from operator import attrgetter
from typing import Any

from pytensor import config
from pytensor.graph.basic import Apply
from pytensor.graph.features import Feature
from pytensor.graph.fg import FunctionGraph, Output
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import (
    EquilibriumGraphRewriter,
    FromFunctionNodeRewriter,
    GraphRewriter,
    NodeProcessingGraphRewriter,
    OpToRewriterTracker,
    Rewriter,
    SequentialGraphRewriter,
    SequentialNodeRewriter,
    WalkingGraphRewriter,
)
from pytensor.graph.traversal import apply_ancestors, toposort

from pytensor_jaxpr_linker.base.pytensor_compat import hears


def without_measurements(rewriter: GraphRewriter) -> GraphRewriter:
    """Return a rewriter that does the same in less time. Rewriters of classes that are not PyTensor's stay as they are."""
    if config.profile_optimizer or not type(rewriter).__module__.startswith("pytensor."):
        return rewriter
    if isinstance(rewriter, SequentialGraphRewriter):
        same = with_class(rewriter, type(rewriter))
        same.data = [*map(without_measurements, rewriter.data)]
        return same
    if isinstance(rewriter, WalkingGraphRewriter):
        return with_class(rewriter, derived(type(rewriter), WalkingGraphRewriter, GraphWalk))
    if isinstance(rewriter, EquilibriumGraphRewriter):
        same = with_class(rewriter, derived(type(rewriter), EquilibriumGraphRewriter, Equilibrium))
        for kind in ("global_rewriters", "final_rewriters", "cleanup_rewriters"):
            setattr(same, kind, [*map(without_measurements, getattr(rewriter, kind))])
        by_inheritance(same.node_tracker)
        return same
    return rewriter


def with_class(rewriter: GraphRewriter, new_class: type) -> Any:
    """Return a rewriter with the attributes of another one, which others may use, too."""
    same: Any = object.__new__(new_class)
    same.__dict__.update(rewriter.__dict__)
    return same


@cache
def derived(of: type, base: type, new_base: type) -> type:
    """Return the class like `of`, which is `base` or derived from it, that calls what `new_base` overrides."""
    return new_base if of is base else type(of.__name__, (of, new_base), {})


class RewriteAttempt:
    """Tries a node rewriter, and then stands for it, with the replacements that it found, so that PyTensor puts these in place."""

    def __init__(self, rewriter: Any, is_tracked: bool = True):
        self.rewriter, self.found = rewriter, None
        if type(rewriter) is FromFunctionNodeRewriter and (is_tracked or not rewriter.tracks()):
            self.find = rewriter.fn
            return
        if type(rewriter) is SequentialNodeRewriter:
            rewriter = copy(rewriter)
            rewriter.profile = False
        self.find = partial(rewriter.transform, enforce_tracks=not is_tracked)

    def change(self, navigator: NodeProcessingGraphRewriter, fgraph: FunctionGraph, node: Apply) -> bool:
        """Put what the rewriter finds for a node in its place, and tell whether that changed the graph."""
        try:
            found = self.find(fgraph, node)
        except Exception as error:
            if navigator.failure_callback is None:
                raise
            navigator.failure_callback(error, navigator, [(v, None) for v in node.outputs], self.rewriter, node)
            return False
        if found is False or found is None:
            return False
        self.found = found
        return navigator.process_node(fgraph, node, self)  # type: ignore[arg-type]

    def transform(self, *_args: Any, **_kwargs: Any) -> Any:
        """Return the replacements."""
        return self.found

    def __str__(self) -> str:
        return self.name

    @cached_property
    def name(self) -> str:
        """The rewriter's name: PyTensor writes it into each node that is replaced, and it may be the names of thirty rewriters."""
        return str(self.rewriter)


def by_inheritance(tracker: OpToRewriterTracker) -> None:
    """Let a tracker find the tracked classes of an Op among those that it inherits from, without a question to each abstract base class."""
    if tracker._cached_composed_mro is None:
        tracker._cached_composed_mro = attrgetter("__mro__")


@hears("on_import", "on_change_input")
class Changes(Feature):
    """Counts the changes of a graph."""

    def __init__(self) -> None:
        self.count = 0

    def on_import(self, fgraph: FunctionGraph, node: Apply, reason: Any) -> None:
        """Count a new node."""
        self.count += 1

    def on_change_input(self, *_args: Any, **_kwargs: Any) -> None:
        """Count a new input of a node."""
        self.count += 1


class GraphWalk(WalkingGraphRewriter):
    """Applies one node rewriter to each node, as a `WalkingGraphRewriter` does."""

    def apply(self, fgraph: FunctionGraph, start_from: Sequence[Any] | None = None) -> None:
        """Rewrite the nodes of a graph, once each."""
        attempt = RewriteAttempt(self.node_rewriter, is_tracked=False)
        order = apply_ancestors if self.order == "dfs" else toposort
        queue = deque(order(fgraph.outputs if start_from is None else start_from))
        take = queue.pop if self.order == "out_to_in" else queue.popleft
        node = None
        updater = self.attach_updater(fgraph, lambda new: None if new is node else queue.append(new), None)
        try:
            while queue:
                node = take()
                if node in fgraph.apply_nodes:
                    attempt.change(self, fgraph, node)
        finally:
            self.detach_updater(fgraph, updater)


class Equilibrium(EquilibriumGraphRewriter):
    """Applies rewrites until none changes the graph, as an `EquilibriumGraphRewriter` does."""

    def apply(self, fgraph: FunctionGraph, start_from: Sequence[Any] | None = None) -> None:
        """Rewrite a graph.

        Raises
        ------
        AssertionError
            If a rewrite has changed the graph `max_use_ratio` times as often as the graph has nodes, and errors of rewrites are raised; else
            this is logged. The graph is then what the rewrites have made of it.
        """
        changes = Changes()
        fgraph.attach_feature(changes)
        try:
            Rounds(self, fgraph, fgraph.outputs if start_from is None else start_from, changes).run()
        finally:
            fgraph.remove_feature(changes)


class Rounds:
    """The rounds of one `Equilibrium.apply`.

    A rewrite that left a node, or the graph, as it was is not tried on it again while the graph is the same: it would see nothing new.
    """

    def __init__(self, rewriter: Equilibrium, fgraph: FunctionGraph, outputs: Sequence[Any], changes: Changes):
        self.rewriter, self.fgraph, self.outputs, self.changes = rewriter, fgraph, outputs, changes
        #: By the id of an Op, what tries the rewrites that track it; and the Op, for no other to have its id.
        self.attempts: dict[int, tuple[Op, list[RewriteAttempt]]] = {}
        #: For a node or a graph rewriter, how many changes there had been when no rewrite changed it, or it nothing.
        self.settled: dict[Any, int] = {}
        self.uses: Counter[Rewriter] = Counter()
        self.most_nodes = len(fgraph.apply_nodes)
        self.overused: Rewriter | None = None

    def run(self) -> None:
        """Apply all rewriters, again and again, until nothing changes."""
        rewriter, before = self.rewriter, -1
        while before != self.changes.count and self.overused is None:
            before = self.changes.count
            self.rewrite_graph(rewriter.global_rewriters)
            self.rewrite_graph(rewriter.cleanup_rewriters)
            self.rewrite_nodes()
            self.rewrite_graph(rewriter.final_rewriters)
            self.rewrite_graph(rewriter.cleanup_rewriters)
        if self.overused is not None:
            message = f"A rewrite of {rewriter} does not come to an end: {self.overused}. The setting optdb__max_use_ratio raises the limit."
            if config.on_opt_error == "raise":
                raise AssertionError(message)
            logging.getLogger(EquilibriumGraphRewriter.__module__).error(message)

    def rewrite_graph(self, rewriters: Iterable[GraphRewriter]) -> None:
        """Apply rewriters of the whole graph."""
        for rewriter in rewriters:
            before = self.changes.count
            if self.settled.get(rewriter) == before:
                continue
            rewriter.apply(self.fgraph)
            if self.changes.count != before:
                self.count_use(rewriter)
            else:
                self.settled[rewriter] = before

    def rewrite_nodes(self) -> None:
        """Apply the node rewriters to each node, from the outputs on, and to new nodes if new nodes are asked for."""
        fgraph, rewriter = self.fgraph, self.rewriter
        queue = deque(toposort(self.outputs))
        self.most_nodes = max(self.most_nodes, len(queue))
        node = None

        def on_import(new: Apply) -> None:
            if new is not node:
                queue.append(new)

        def on_change_input(changed: Apply, *_args: Any) -> None:
            if changed is not node and not isinstance(changed.op, Output):
                queue.append(changed)

        asks_for_changed = rewriter.tracks_on_change_inputs
        updater = rewriter.attach_updater(fgraph, on_import, None, chin=on_change_input if asks_for_changed else None)
        try:
            while queue:
                node = queue.pop()
                if node in fgraph.apply_nodes and self.settled.get(node) != self.changes.count:
                    self.rewrite_node(node)
        finally:
            rewriter.detach_updater(fgraph, updater)

    def rewrite_node(self, node: Apply) -> None:
        """Try the rewrites that track the Op of a node, until the node is gone."""
        fgraph, rewriter, before = self.fgraph, self.rewriter, self.changes.count
        known = self.attempts.get(id(node.op))  # the hash of an Op takes as long as a rewrite
        if known is None:
            known = node.op, [*map(RewriteAttempt, rewriter.node_tracker.get_trackers(node.op))]
            self.attempts[id(node.op)] = known
        for attempt in known[1]:
            if attempt.change(rewriter, fgraph, node):
                self.count_use(attempt.rewriter)
                self.rewrite_graph(rewriter.cleanup_rewriters)
                if node not in fgraph.apply_nodes:
                    return
        if self.changes.count == before:
            self.settled[node] = before

    def count_use(self, rewriter: Rewriter) -> None:
        """Note that a rewriter has changed the graph, and whether that is too often."""
        self.uses[rewriter] += 1
        if self.uses[rewriter] > self.most_nodes * (self.rewriter.max_use_ratio or inf):
            self.overused = rewriter
