"""Takes a graph that PyTensor has rewritten before from a store, in this process or in an earlier one.

Two rewrites do it: the first of all looks for the graph, and puts one node in its place if it is kept; the last of all puts the rewritten graph in
place of the node, or keeps it. The rewrites between them see one node, and take no time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any

from pytensor import config
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.features import Feature
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.graph.rewriting.db import RewriteDatabase, RewriteDatabaseQuery

from pytensor_jaxpr_linker.base.interpreter import gc_paused
from pytensor_jaxpr_linker.frontend.original_graph import KeptOriginal, LazyOriginal
from pytensor_jaxpr_linker.graph.rewritten.describe import NotDescribed, name_of
from pytensor_jaxpr_linker.graph.rewritten.environment import text_of_environment
from pytensor_jaxpr_linker.graph.rewritten.flat import OF_VALUES, Tables, flatten, rebuilt, rewritten_graph, text_of
from pytensor_jaxpr_linker.graph.rewritten.store import STORE

#: The tag of the two rewrites, by which the linker asks for them and a user may leave them out; and their names.
REWRITE_CACHE = "jaxpr_rewrite_cache"
FIND, KEEP_OR_EXPAND = "jaxpr_find_rewritten", "jaxpr_keep_rewritten"


class Kept(Op):
    """Stands for a rewritten graph while PyTensor's rewrites run. No function contains it."""

    __props__ = ()

    def make_node(self, *inputs: Variable) -> Apply:
        """Raise an error: `put_in_place` makes the node."""
        raise NotImplementedError

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Raise an error."""
        raise NotImplementedError

    def do_constant_folding(self, fgraph: FunctionGraph, node: Apply) -> bool:
        """Never."""
        return False


class Pending(Feature):
    """What the last rewrite has to do."""

    def __init__(self, finish: Callable[[FunctionGraph], None]):
        self.finish = finish


class FindRewritten(GraphRewriter):
    """The first rewrite. It works when features are attached, so that those of other rewrites need not look at the whole graph."""

    def __init__(self, query: RewriteDatabaseQuery):
        self.query = query

    def add_requirements(self, fgraph: FunctionGraph) -> None:
        """Look for the graph, the first time."""
        with gc_paused():
            self.find(fgraph)

    def find(self, fgraph: FunctionGraph) -> None:
        """Look for the graph."""
        mode: Any = config.mode
        if getattr(mode, "_optimizer", None) is not self.query or any(isinstance(f, Pending) for f in fgraph._features):
            return  # the graph inside an Op, or a query with rewrites of the user's
        if self.query.exclude & {KEEP_OR_EXPAND, KeepOrExpand.__name__}:
            return  # nothing would put the graph in place
        try:
            environment = name_of(type(mode.linker)) + text_of_environment(fgraph, self.query, STORE.has_folder)
            entry = Entry(fgraph.inputs, fgraph.outputs, environment)
        except NotDescribed:
            return
        fgraph.attach_feature(KeptOriginal(LazyOriginal(entry.inputs, entry.flat, entry.tables)))
        rewritten = entry.find()
        if rewritten is None:
            fgraph.attach_feature(Pending(entry.keep))
        else:
            put_in_place(fgraph, stand_in(fgraph.inputs, fgraph.outputs))
            fgraph.attach_feature(Pending(lambda fgraph: put_in_place(fgraph, rewritten)))

    def apply(self, fgraph: FunctionGraph) -> None:
        """Do nothing."""


class KeepOrExpand(GraphRewriter):
    """The last rewrite."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Keep the graph, or put the one that was kept in place."""
        for feature in [f for f in fgraph._features if isinstance(f, Pending)]:
            fgraph.remove_feature(feature)
            with gc_paused():
                feature.finish(fgraph)


class Finders(RewriteDatabase):
    """Makes the first rewrite for each query: what is kept depends on it."""

    def query(self, *tags: Any, **kwtags: Any) -> Any:
        """Return the first rewrite for a query."""
        return FindRewritten(tags[0])


class Entry:
    """The place of a graph in the store. It is made before the rewrites, since these change the graph.

    Raises
    ------
    NotDescribed
        If a part of the graph has no text, so that nothing can be kept.
    """

    def __init__(self, inputs: Sequence[Variable], outputs: Sequence[Variable], environment: str):
        self.inputs, self.tables = list(inputs), Tables()
        self.flat = flatten(self.inputs, outputs, self.tables)
        text = text_of(self.flat, self.inputs, self.tables)
        self._key = sha256(f"{environment}\n{text}".encode()).hexdigest()
        self._restore = restorer((*self.inputs, *self.tables.constants))
        self._types = [v.type for v in outputs]

    def find(self) -> list[Variable] | None:
        """Return the outputs of the rewritten graph if it is kept."""
        kept = STORE.find(self._key)
        return None if kept is None else rebuilt(kept, self.inputs, self.tables)

    def keep(self, fgraph: FunctionGraph) -> None:
        """Keep the graph, which has been rewritten."""
        self._restore()
        if all(t.is_super(v.type) for t, v in zip(self._types, fgraph.outputs, strict=True)):
            with suppress(NotDescribed):  # a rewrite may make what the graph before did not have
                STORE.keep(self._key, rewritten_graph(fgraph.inputs, fgraph.outputs, self.tables))


def restorer(leaves: Sequence[Variable]) -> Callable[[], None]:
    """Return a function that gives inputs and constants, which are the user's own, the names and tags that they have now.

    PyTensor's rewrites give them names, tags and lines of code of what they replace: more with each function that is compiled of them.
    """
    found = [(v, v.name, dict(vars(v.tag))) for v in leaves]

    def restore() -> None:
        for v, name, tags in found:
            v.name = name
            of_value = {k: x for k, x in vars(v.tag).items() if k in OF_VALUES}
            v.tag.clear()
            vars(v.tag).update(tags | of_value)

    return restore


def stand_in(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> list[Variable]:
    """Return variables like the outputs that one node computes."""
    return Apply(Kept(), list(inputs), [v.type.make_variable() for v in outputs]).outputs


def put_in_place(fgraph: FunctionGraph, outputs: Sequence[Variable]) -> None:
    """Make these the outputs of a graph."""
    for i, v in enumerate(outputs):
        name, tags = v.name, dict(vars(v.tag))
        fgraph.change_node_input(fgraph.get_output_client(i)[0], 0, v, reason=REWRITE_CACHE)
        if v.owner is not None:  # PyTensor hands on names and tags of the output before
            v.name = name
            v.tag.clear()
            vars(v.tag).update(tags)
