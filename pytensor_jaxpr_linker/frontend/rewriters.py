"""Applies PyTensor's rewrites in PyTensor's order, with less work between them.

PyTensor measures each attempt to rewrite a node, counts the nodes that each rewrite makes, and repeats attempts after
which nothing can have changed. That is a fourth of the time of rewriting. The rewriters here call the same rewrites on
the same nodes in the same order, without it.

It stays until PyTensor releases the patch of docs/notes/upstream/pytensor-rewriting.md.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import cache, cached_property, partial
from math import inf
from operator import attrgetter
from typing import Any

from pytensor import config
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph, Output
from pytensor.graph.op import Op
from pytensor.graph.rewriting import basic
from pytensor.graph.traversal import apply_ancestors, toposort

from pytensor_jaxpr_linker.base.interpreter import identity
from pytensor_jaxpr_linker.frontend.graph_features import GraphEvents, Merge, counted_events


def without_measurements(rewriter: basic.GraphRewriter) -> basic.GraphRewriter:
    """Return a rewriter that does the same in less time, or a rewriter whose class is not PyTensor's itself."""
    if config.profile_optimizer or not type(rewriter).__module__.startswith("pytensor."):
        return rewriter
    if isinstance(rewriter, basic.SequentialGraphRewriter):
        same = with_class(rewriter, derived(type(rewriter), basic.SequentialGraphRewriter, RewriteSequence))
        same.data = [*map(without_measurements, rewriter.data)]
        return same
    if isinstance(rewriter, basic.WalkingGraphRewriter):
        return with_class(rewriter, derived(type(rewriter), basic.WalkingGraphRewriter, GraphWalk))
    if isinstance(rewriter, basic.MergeOptimizer):
        return with_class(rewriter, derived(type(rewriter), basic.MergeOptimizer, Merge))
    if isinstance(rewriter, basic.EquilibriumGraphRewriter):
        same = with_class(rewriter, derived(type(rewriter), basic.EquilibriumGraphRewriter, Equilibrium))
        for kind in ("global_rewriters", "final_rewriters", "cleanup_rewriters"):
            setattr(same, kind, [*map(without_measurements, getattr(rewriter, kind))])
        same.node_tracker = by_inheritance(copy(same.node_tracker))
        return same
    return rewriter


#: How many traces of a variable are few: most have one.
SOME_TRACES = 8


def with_class(rewriter: basic.GraphRewriter, new_class: type) -> Any:
    """Return a rewriter with the attributes of another one, which others may use, too."""
    same: Any = object.__new__(new_class)
    same.__dict__.update(rewriter.__dict__)
    return same


@cache
def derived(of: type, base: type, new_base: type) -> type:
    """Return the class like `of`, which is `base` or derived from it, that calls what `new_base` overrides."""
    return new_base if of is base else type(of.__name__, (of, new_base), {})


class RewriteAttempt:
    """Tries a node rewriter, and then replaces it in PyTensor's method that puts the replacements in place."""

    def __init__(self, rewriter: Any, is_tracked: bool = True):
        self.rewriter, self.found = rewriter, None
        #: Returns whether the rewriter may track Ops of a class.
        self.is_for: Callable[[type], bool] = lambda op_class: True
        if type(rewriter) is basic.FromFunctionNodeRewriter:
            tracked = () if is_tracked else rewriter.tracks() or ()
            if all(isinstance(t, type) for t in tracked):
                self.find = rewriter.fn
                if tracked:
                    classes = frozenset(tracked)
                    self.is_for = cache(lambda op_class: not classes.isdisjoint(op_class.__mro__))
                return
        if type(rewriter) is basic.SequentialNodeRewriter and not config.optimizer_verbose:
            self.find = InTurn(rewriter)
        else:
            self.find = partial(rewriter.transform, enforce_tracks=not is_tracked)

    def change(self, navigator: basic.NodeProcessingGraphRewriter, fgraph: FunctionGraph, node: Apply) -> bool:
        """Replace a node if the rewriter finds replacements, and return whether that changed the graph."""
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
        without_repeated_traces(found.values() if isinstance(found, dict) else found)
        return navigator.process_node(fgraph, node, self)  # type: ignore[arg-type]

    def transform(self, *_args: Any, **_kwargs: Any) -> Any:
        """Return the replacements."""
        return self.found

    def __str__(self) -> str:
        return self.name

    @cached_property
    def name(self) -> str:
        """The rewriter's name, perhaps of thirty rewriters: PyTensor writes it into each node that is replaced."""
        return str(self.rewriter)


def without_repeated_traces(variables: Iterable[Any]) -> None:
    """Keep each trace of variables once.

    PyTensor's `local_useless_switch` adds the traces of its operands to one of them: each ``switch(., x, x)`` makes
    three times as many, and twenty of them need more memory than there is.
    """
    for v in variables:
        if len(traces := getattr(getattr(v, "tag", None), "trace", None) or ()) > SOME_TRACES:
            v.tag.trace = list({id(trace): trace for trace in traces}.values())


class InTurn:
    """Tries node rewriters one after the other, as a `SequentialNodeRewriter` does."""

    def __init__(self, rewriter: basic.SequentialNodeRewriter):
        self.goes_on = rewriter.apply_all_rewrites
        self.attempts = Attempts(by_inheritance(copy(rewriter.tracker)))

    def __call__(self, fgraph: FunctionGraph, node: Apply) -> Any:
        """Return the replacements of the first rewriter that finds some, or of the last if all are to be applied."""
        result = None
        while True:
            found = next(filter(None, (attempt.find(fgraph, node) for attempt in self.attempts.of(node.op))), None)
            if found is None:
                return result
            new = found if isinstance(found, tuple | list) else [*found.values()]
            if not self.goes_on or new[0].owner is None:
                return found
            result, node = found, new[0].owner


class Attempts:
    """The attempts to rewrite nodes, by the identity of their Op: its hash takes as long as a rewrite."""

    def __init__(self, tracker: basic.OpToRewriterTracker):
        self.tracker = tracker
        #: With an Op, for no other to have its identity.
        self.known: dict[int, tuple[Op, list[RewriteAttempt]]] = {}
        #: The attempt of each rewriter, which the tracker has.
        self.by_rewriter: dict[int, RewriteAttempt] = {}

    def of(self, op: Op) -> list[RewriteAttempt]:
        """Return the attempts of the rewrites that track an Op."""
        key = identity(op)
        known = self.known.get(key)
        if known is None:
            known = self.known[key] = op, [*map(self.attempt, self.tracker.get_trackers(op))]
        return known[1]

    def attempt(self, rewriter: Any) -> RewriteAttempt:
        """Return the attempt of a rewriter."""
        key = identity(rewriter)
        found = self.by_rewriter.get(key)
        if found is None:
            found = self.by_rewriter[key] = RewriteAttempt(rewriter)
        return found


def by_inheritance(tracker: basic.OpToRewriterTracker) -> basic.OpToRewriterTracker:
    """Return a tracker that finds an Op's tracked classes by inheritance, without asking each abstract base class."""
    tracker._cached_composed_mro = attrgetter("__mro__")
    tracker.get_trackers = tracker._get_trackers  # type: ignore[assignment]  # PyTensor's remembers by hash
    return tracker


class RewriteSequence(basic.SequentialGraphRewriter):
    """Applies rewriters in turn, as a `SequentialGraphRewriter` does."""

    def apply(self, fgraph: FunctionGraph) -> Any:
        """Rewrite a graph."""
        with counted_events(fgraph):
            return super().apply(fgraph)


class GraphWalk(basic.WalkingGraphRewriter):
    """Applies one node rewriter to each node, as a `WalkingGraphRewriter` does."""

    def apply(self, fgraph: FunctionGraph, start_from: Sequence[Any] | None = None) -> None:
        """Rewrite the nodes of a graph, once each."""
        attempt = RewriteAttempt(self.node_rewriter, is_tracked=False)
        if not any(attempt.is_for(type(node.op)) for node in fgraph.apply_nodes):
            return  # most walks look for an Op that a graph does not have
        order = apply_ancestors if self.order == "dfs" else toposort
        node = None
        with counted_events(fgraph) as events:
            in_order = order is toposort and start_from is None
            queue = deque(events.nodes() if in_order else order(fgraph.outputs if start_from is None else start_from))
            take = queue.pop if self.order == "out_to_in" else queue.popleft
            updater = self.attach_updater(fgraph, lambda new: None if new is node else queue.append(new), None)
            try:
                while queue:
                    node = take()
                    if attempt.is_for(type(node.op)) and node in fgraph.apply_nodes:
                        attempt.change(self, fgraph, node)
            finally:
                self.detach_updater(fgraph, updater)


class Equilibrium(basic.EquilibriumGraphRewriter):
    """Applies rewrites until none changes the graph, as an `EquilibriumGraphRewriter` does."""

    def apply(self, fgraph: FunctionGraph, start_from: Sequence[Any] | None = None) -> None:
        """Rewrite a graph.

        Raises
        ------
        AssertionError
            If a rewrite has changed the graph `max_use_ratio` times as often as the graph has nodes, and errors of
            rewrites are raised; else this is logged, and the graph stays as the rewrites have left it.
        """
        with counted_events(fgraph) as events:
            Rounds(self, fgraph, fgraph.outputs if start_from is None else start_from, events).run()


class Rounds:
    """The rounds of one `Equilibrium.apply`; a rewrite that changed nothing waits until the graph has changed."""

    def __init__(self, rewriter: Equilibrium, fgraph: FunctionGraph, outputs: Sequence[Any], events: GraphEvents):
        self.rewriter, self.fgraph, self.outputs, self.events = rewriter, fgraph, outputs, events
        self.attempts = Attempts(rewriter.node_tracker)
        #: The number of changes so far when no rewrite changed a node, or a graph rewriter, by its identity, the graph.
        self.settled_nodes: dict[Apply, int] = {}
        self.settled_rewriters: dict[int, int] = {}
        #: How often a rewriter has changed the graph, by its identity.
        self.uses: Counter[int] = Counter()
        self.most_nodes = len(fgraph.apply_nodes)
        self.overused: basic.Rewriter | None = None

    def run(self) -> None:
        """Apply all rewriters, again and again, until nothing changes."""
        rewriter, before = self.rewriter, -1
        while before != self.events.changes and self.overused is None:
            before = self.events.changes
            self.rewrite_graph(rewriter.global_rewriters)
            self.rewrite_graph(rewriter.cleanup_rewriters)
            self.rewrite_nodes()
            self.rewrite_graph(rewriter.final_rewriters)
            self.rewrite_graph(rewriter.cleanup_rewriters)
        if self.overused is not None:
            message = (
                f"A rewrite of {rewriter} does not come to an end: {self.overused}."
                " The setting optdb__max_use_ratio raises the limit."
            )
            if config.on_opt_error == "raise":
                raise AssertionError(message)
            logging.getLogger(basic.EquilibriumGraphRewriter.__module__).error(message)

    def rewrite_graph(self, rewriters: Iterable[basic.GraphRewriter]) -> None:
        """Apply rewriters of the whole graph."""
        for rewriter in rewriters:
            before, key = self.events.changes, identity(rewriter)
            if self.settled_rewriters.get(key) == before:
                continue
            rewriter.apply(self.fgraph)
            if self.events.changes != before:
                self.count_use(rewriter)
            else:
                self.settled_rewriters[key] = before

    def rewrite_nodes(self) -> None:
        """Apply the node rewriters to each node, from the outputs on, and to new nodes if new nodes are asked for."""
        fgraph, rewriter = self.fgraph, self.rewriter
        queue = deque(self.events.nodes() if self.outputs is fgraph.outputs else toposort(self.outputs))
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
                if node in fgraph.apply_nodes and self.settled_nodes.get(node) != self.events.changes:
                    self.rewrite_node(node)
        finally:
            rewriter.detach_updater(fgraph, updater)

    def rewrite_node(self, node: Apply) -> None:
        """Try the rewrites that track the Op of a node, until the node is gone."""
        fgraph, rewriter, before = self.fgraph, self.rewriter, self.events.changes
        for attempt in self.attempts.of(node.op):
            if attempt.change(rewriter, fgraph, node):
                self.count_use(attempt.rewriter)
                self.rewrite_graph(rewriter.cleanup_rewriters)
                if node not in fgraph.apply_nodes:
                    return
        if self.events.changes == before:
            self.settled_nodes[node] = before

    def count_use(self, rewriter: basic.Rewriter) -> None:
        """Note that a rewriter has changed the graph, and whether that is too often."""
        key = identity(rewriter)
        self.uses[key] += 1
        if self.uses[key] > self.most_nodes * (self.rewriter.max_use_ratio or inf):
            self.overused = rewriter
