"""Tells what watches a graph of its changes, while the graph is rewritten.

PyTensor calls every feature of a graph at each change, and measures how long each takes; most inherit methods that do nothing. Over 23 PyMC models that was 2.5 % of
the time to a first result.

It stays until PyTensor releases the patch of docs/notes/upstream/pytensor-rewriting.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pytensor.graph.basic import Apply
from pytensor.graph.features import Feature
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import toposort

#: The events after which a rewrite may find something new.
CHANGES = frozenset({"on_import", "on_change_input"})


class GraphEvents:
    """Stands in for `FunctionGraph.execute_callbacks`: calls the features of a graph that do something at an event, and counts changes."""

    def __init__(self, fgraph: FunctionGraph):
        self.fgraph, self.changes = fgraph, 0
        self._features: list[Feature] = []
        self._listeners: dict[str, list[Callable[..., Any]]] = {}
        self._order: tuple[int, list[Apply]] = -1, []

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Tell of an event."""
        if name in CHANGES:
            self.changes += 1
        if self._features != self.fgraph._features:
            self._features, self._listeners = [*self.fgraph._features], {}
        listeners, told = self._listeners.get(name), len(self._features)
        if listeners is None:
            listeners = self._listeners[name] = listeners_among(self._features, name)
        for listener in listeners:
            listener(self.fgraph, *args, **kwargs)
        for listener in listeners_among(self.fgraph._features[told:], name):  # those that were attached meanwhile
            listener(self.fgraph, *args, **kwargs)

    def nodes(self) -> list[Apply]:
        """Return the nodes of the graph in topological order. The list is of all who ask before the next change."""
        if self._order[0] != self.changes:
            self._order = self.changes, [*toposort(self.fgraph.outputs)]
        return self._order[1]


def listeners_among(features: Iterable[Feature], name: str) -> list[Callable[..., Any]]:
    """Return the methods by which features hear of an event, without those that do nothing."""
    methods = (getattr(feature, name, None) for feature in features)
    return [method for method in methods if method is not None and not is_inherited(method, name)]


def is_inherited(method: Callable[..., Any], name: str) -> bool:
    """Return whether a method is that of `Feature`, which does nothing."""
    return getattr(method, "__func__", None) is getattr(Feature, name, method)


@contextmanager
def counted_events(fgraph: FunctionGraph) -> Iterator[GraphEvents]:
    """Let a `GraphEvents` tell of a graph's changes; it is the one that does so already, if there is one."""
    found = vars(fgraph).get("execute_callbacks")
    if isinstance(found, GraphEvents):
        yield found
        return
    events = GraphEvents(fgraph)
    fgraph.execute_callbacks = events  # type: ignore[method-assign]
    try:
        yield events
    finally:
        del fgraph.execute_callbacks
