"""Features of a graph that do less at each change than PyTensor's: `GraphEvents` and `EqualParts`.

PyTensor calls every feature of a graph at each change, and measures how long each takes; most inherit methods that do
nothing. It finds equal constants by the sum of their elements that are not NaN, with masked arrays and a context of
warnings for each constant, also for the many that are one number. Over 23 PyMC models each was 2.5 % of the time to a
first result.

This module stays until PyTensor releases the patches of docs/notes/upstream/pytensor-rewriting.md and
pytensor-freeze.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import is_
from typing import Any

from pytensor.graph.basic import Apply, AtomicVariable
from pytensor.graph.features import Feature
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import MergeFeature, MergeOptimizer
from pytensor.graph.traversal import toposort
from pytensor.tensor.variable import TensorConstantSignature

#: The events after which a rewrite may find something new.
CHANGES = frozenset({"on_import", "on_change_input"})


class GraphEvents:
    """Replaces `FunctionGraph.execute_callbacks`: calls features that do something at an event, and counts changes."""

    def __init__(self, fgraph: FunctionGraph):
        self.fgraph, self.changes = fgraph, 0
        self._features: list[Feature] = []
        self._listeners: dict[str, list[Callable[..., Any]]] = {}
        self._order: tuple[int, list[Apply]] = -1, []

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Pass an event on."""
        if name in CHANGES:
            self.changes += 1
        if self._features != self.fgraph._features:
            self._features, self._listeners = [*self.fgraph._features], {}
        listeners, count = self._listeners.get(name), len(self._features)
        if listeners is None:
            listeners = self._listeners[name] = listeners_among(self._features, name)
        for listener in listeners:
            listener(self.fgraph, *args, **kwargs)
        # Features that were attached meanwhile hear of it, too.
        for listener in listeners_among(self.fgraph._features[count:], name):
            listener(self.fgraph, *args, **kwargs)

    def nodes(self) -> list[Apply]:
        """Return the nodes of the graph in topological order: the same list until the next change."""
        if self._order[0] != self.changes:
            self._order = self.changes, [*toposort(self.fgraph.outputs)]
        return self._order[1]


def listeners_among(features: Iterable[Feature], name: str) -> list[Callable[..., Any]]:
    """Return the methods by which features hear of an event, without the one of `Feature`, which does nothing."""
    methods = (getattr(feature, name, None) for feature in features)
    inherited = getattr(Feature, name, methods)
    return [m for m in methods if m is not None and getattr(m, "__func__", None) is not inherited]


@contextmanager
def counted_events(fgraph: FunctionGraph) -> Iterator[GraphEvents]:
    """Let a `GraphEvents` pass a graph's events on; if one does so already, it goes on."""
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


#: The kinds of dtypes without NaN and infinity.
ALWAYS_FINITE = "biu"


class Merge(MergeOptimizer):
    """Merges equal constants and nodes, as a `MergeOptimizer` does."""

    def add_requirements(self, fgraph: FunctionGraph) -> None:
        """Attach the feature that finds equal parts, unless there is one."""
        if not hasattr(fgraph, "merge_feature"):
            fgraph.attach_feature(EqualParts())


class EqualParts(MergeFeature):
    """Finds equal constants and nodes as a graph changes, as a `MergeFeature` does."""

    def process_atomic(self, fgraph: FunctionGraph, c: AtomicVariable) -> None:
        """Look for a constant that is equal to one that is new in the graph."""
        if id(c) in self.seen_atomics:
            return
        signature = signature_of(c)
        known = self.atomic_sig_inv.get(signature, None)
        if known is not None:
            self.scheduled.append([[(c, known, "merge")]])
            return
        self.atomic_sig[c] = signature
        self.atomic_sig_inv[signature] = c
        self.seen_atomics.add(id(c))

    def process_node(self, fgraph: FunctionGraph, node: Apply) -> None:
        """Look for nodes equal to one that is new or has changed, among the clients of the input with the fewest."""
        seen, inputs = self.nodes_seen, node.inputs
        if node in seen:
            return
        if inputs:
            clients = min(map(fgraph.clients.__getitem__, inputs), key=len)
            known = [other for other, _ in clients if other in seen and len(other.inputs) == len(inputs)]
            candidates = [other for other in known if all(map(is_, other.inputs, inputs))]
        else:
            candidates = list(self.noinput_nodes)
        equal = [
            [*zip(node.outputs, other.outputs, ["merge"] * len(node.outputs), strict=True)]
            for other in candidates
            if node.op == other.op and (node, other) not in self.blacklist
        ]
        if equal:
            self.scheduled.append(equal)
            return
        seen.add(node)
        if not inputs:
            self.noinput_nodes.add(node)


def signature_of(constant: AtomicVariable) -> Any:
    """Return a value that equal constants have: PyTensor's, with the sum of finite numbers computed at once."""
    signature: Any = constant.merge_signature()
    if type(signature) is TensorConstantSignature:
        data = signature[1]
        if data.size == 1:
            total = data.item()
        elif data.dtype.kind in ALWAYS_FINITE:
            total = data.sum()
        else:
            return signature
        if total - total == 0:  # it is finite, so no element is NaN
            vars(signature).update(_sum=total, _no_nan=data, has_nan=False)
    return signature
