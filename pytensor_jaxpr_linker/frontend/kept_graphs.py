"""Keeps graphs: as they were before PyTensor's rewrites, and as the rewrites have left them.

The graph before the rewrites determines the derivatives of a function. Rewrites drop Ops that change no value, such as
`zero_grad` and `grad_clip`, before a linker sees the graph. They change its nodes in place, so the graph is copied
before the first of them.

A graph that was rewritten before, in this process or an earlier one, is taken from a store. The first rewrite looks for
the graph and, if it is kept, puts one node in its place. The last rewrite puts the rewritten graph in place of the
node, or keeps it. The rewrites between them see one node, and take no time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NamedTuple

import jax
import pytensor
from jax.experimental.compilation_cache import compilation_cache
from pytensor import config
from pytensor.graph.basic import Apply, Variable, clone
from pytensor.graph.features import Feature
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.graph.rewriting.db import RewriteDatabase, RewriteDatabaseQuery

from pytensor_jaxpr_linker.base.errors import CacheWarning, warn_user
from pytensor_jaxpr_linker.base.interpreter import gc_paused
from pytensor_jaxpr_linker.base.private_files import UnsafeFolderError, checked_folder, make_folder
from pytensor_jaxpr_linker.base.session import note_build
from pytensor_jaxpr_linker.base.words import counted
from pytensor_jaxpr_linker.graph.rewritten import flat
from pytensor_jaxpr_linker.graph.rewritten.describe import NotDescribed, name_of
from pytensor_jaxpr_linker.graph.rewritten.environment import text_of_environment
from pytensor_jaxpr_linker.graph.rewritten.store import STORE

#: The name of the rewrite that keeps a copy.
KEEP = "jaxpr_keep_original"


class Original(NamedTuple):
    """Inputs and outputs of a graph before rewrites."""

    inputs: list[Variable]
    outputs: list[Variable]


class LazyOriginal:
    """The same as `Original`, built from the graph's tables on first use: few functions need it, and it takes 10 ms."""

    def __init__(self, inputs: Sequence[Variable], graph: flat.Flat, tables: flat.Tables):
        self._from = inputs, graph, tables

    @cached_property
    def built(self) -> Original:
        """The graph."""
        inputs, graph, tables = self._from
        copies: list[Any] = [v.clone() for v in inputs]
        return Original(copies, flat.rebuilt(flat.Rewritten(graph, [], [], []), copies, tables))

    @property
    def inputs(self) -> list[Variable]:
        """Copies of the inputs."""
        return self.built.inputs

    @property
    def outputs(self) -> list[Variable]:
        """Copies of the outputs."""
        return self.built.outputs

    def __reduce__(self) -> tuple:
        return Original, tuple(self.built)


@gc_paused()
def copy_of(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> Original:
    """Return a copy of the graph between inputs and outputs."""
    return Original(*clone(list(inputs), list(outputs), copy_orphans=False))


class KeptOriginal(Feature):
    """Holds the original of a graph."""

    def __init__(self, original: Original | LazyOriginal):
        self.original = original


class KeepOriginal(GraphRewriter):
    """A rewrite that changes nothing: it keeps a copy of the graph."""

    def add_requirements(self, fgraph: FunctionGraph) -> None:
        """Copy the graph, the first time."""
        if kept_by_feature(fgraph) is None:
            fgraph.attach_feature(KeptOriginal(copy_of(fgraph.inputs, fgraph.outputs)))

    def apply(self, fgraph: FunctionGraph, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""


def kept_by_feature(fgraph: FunctionGraph) -> Original | LazyOriginal | None:
    """Return the original that the rewrite kept."""
    return next((f.original for f in fgraph._features if isinstance(f, KeptOriginal)), None)


def remember_original(fgraph: FunctionGraph) -> None:
    """Note the original in the tags of the graph's outputs: `Function.copy` clones the graph with its tags."""
    original = kept_by_feature(fgraph)
    if original is not None:
        for v in fgraph.outputs:
            if v.owner is not None:
                setattr(v.tag, flat.ORIGINAL, original)


def original_of(fgraph: FunctionGraph) -> Original | None:
    """Return inputs and outputs before the rewrites of a function's graph, or None if nothing kept them.

    `Function.copy` may leave out updates, which are the last outputs.
    """
    found = next(filter(None, (getattr(v.tag, flat.ORIGINAL, None) for v in fgraph.outputs)), None)
    return None if found is None else Original(found.inputs, found.outputs[: len(fgraph.outputs)])


#: The tag of the two rewrites, for the linker and for users who leave them out; and their names.
REWRITE_CACHE = "jaxpr_rewrite_cache"
FIND, KEEP_OR_EXPAND = "jaxpr_find_rewritten", "jaxpr_keep_rewritten"


class Kept(Op):
    """Stands for a rewritten graph while PyTensor's rewrites run. No function contains it."""

    __props__ = ()

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Raise an error."""
        raise NotImplementedError

    def do_constant_folding(self, fgraph: FunctionGraph, node: Apply) -> bool:
        """Never."""
        return False


class Pending(Feature):
    """Holds the task of the last rewrite, when the first one began, and whether it found the graph."""

    def __init__(self, finish: Callable[[FunctionGraph], None], kept: bool = False):
        self.finish, self.kept, self.began = finish, kept, perf_counter()


class FindRewritten(GraphRewriter):
    """The first rewrite. It works when features are attached, so that other features see one node."""

    def __init__(self, query: RewriteDatabaseQuery):
        self.query = query

    def add_requirements(self, fgraph: FunctionGraph) -> None:
        """Look for the graph, the first time."""
        with gc_paused():  # a decorator would stand where warnings look for the user's line
            self._find(fgraph)

    def _find(self, fgraph: FunctionGraph) -> None:
        mode: Any = config.mode
        if getattr(mode, "_optimizer", None) is not self.query or any(isinstance(f, Pending) for f in fgraph._features):
            return  # the graph inside an Op, or a query with rewrites of the user's
        if self.query.exclude & {KEEP_OR_EXPAND, KeepOrExpand.__name__}:
            return  # nothing would put the graph in place
        try:
            environment = name_of(type(mode.linker)) + text_of_environment(fgraph, self.query, STORE.has_folder)
            entry = Entry(fgraph.inputs, fgraph.outputs, environment)
        except NotDescribed:
            fgraph.attach_feature(Pending(lambda fgraph: None))
            return
        fgraph.attach_feature(KeptOriginal(LazyOriginal(entry.inputs, entry.flat, entry.tables)))
        rewritten = entry.find()
        if rewritten is None:
            fgraph.attach_feature(Pending(entry.keep))
        else:
            outputs = [v.type.make_variable() for v in fgraph.outputs]
            put_in_place(fgraph, Apply(Kept(), [*fgraph.inputs], outputs).outputs)
            fgraph.attach_feature(Pending(lambda fgraph: put_in_place(fgraph, rewritten), kept=True))

    def apply(self, fgraph: FunctionGraph) -> None:
        """Do nothing."""


class KeepOrExpand(GraphRewriter):
    """The last rewrite."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Keep the graph, or put the kept graph in place."""
        for feature in [f for f in fgraph._features if isinstance(f, Pending)]:
            fgraph.remove_feature(feature)
            with gc_paused():
                feature.finish(fgraph)
            seconds = {"rewrite": perf_counter() - feature.began}
            note_build("graph", counted(len(fgraph.apply_nodes), "node"), seconds, feature.kept)


class Finders(RewriteDatabase):
    """Makes the first rewrite for each query, on which the result depends."""

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
        self.inputs, self.tables = list(inputs), flat.Tables()
        self.flat = flat.flatten(self.inputs, outputs, self.tables)
        text = flat.text_of(self.flat, self.inputs, self.tables)
        self._key = sha256(f"{environment}\n{text}".encode()).hexdigest()
        self._restore = restorer((*self.inputs, *self.tables.constants))
        self._types = [v.type for v in outputs]

    def find(self) -> list[Variable] | None:
        """Return the outputs of the rewritten graph if it is kept."""
        kept = STORE.find(self._key)
        return None if kept is None else flat.rebuilt(kept, self.inputs, self.tables)

    def keep(self, fgraph: FunctionGraph) -> None:
        """Keep the graph, which has been rewritten."""
        self._restore()
        if all(t.is_super(v.type) for t, v in zip(self._types, fgraph.outputs, strict=True)):
            with suppress(NotDescribed):  # of a part that a rewrite made
                STORE.keep(self._key, flat.rewritten_graph(fgraph.inputs, fgraph.outputs, self.tables))


def restorer(leaves: Sequence[Variable]) -> Callable[[], None]:
    """Return a function that restores the names and tags of inputs and constants, which are the user's own.

    PyTensor's rewrites give them names, tags and lines of code of replaced variables: more with each function that is
    compiled of them.
    """
    found = [(v, v.name, dict(vars(v.tag))) for v in leaves]

    def restore() -> None:
        for v, name, tags in found:
            v.name = name
            of_value = {k: x for k, x in vars(v.tag).items() if k in flat.OF_VALUES}
            v.tag.clear()
            vars(v.tag).update(tags | of_value)

    return restore


def put_in_place(fgraph: FunctionGraph, outputs: Sequence[Variable]) -> None:
    """Make these the outputs of a graph."""
    for i, v in enumerate(outputs):
        name, tags = v.name, dict(vars(v.tag))
        fgraph.change_node_input(fgraph.get_output_client(i)[0], 0, v, reason=REWRITE_CACHE)
        if v.owner is not None:  # PyTensor hands on names and tags of the output before
            v.name = name
            v.tag.clear()
            vars(v.tag).update(tags)


#: The rewrites that keep graphs, by their positions among PyTensor's; a tag may follow.
KEEPING_REWRITES = (
    (-3, FIND, Finders(), REWRITE_CACHE),
    (-2, KEEP, KeepOriginal()),
    (1000, KEEP_OR_EXPAND, KeepOrExpand(), REWRITE_CACHE),
)


def cache(directory: str | Path | Literal[False] | None = None) -> Path | None:
    """Choose where programs and rewritten graphs are kept for later processes, or turn that off.

    Without a call of this function they are kept in PyTensor's ``base_compiledir``, in its folder ``jaxpr``, which the
    environment variable ``PYTENSOR_JAXPR_CACHE`` replaces (``off`` for none): functions and samplers that an earlier
    process compiled need no time of XLA, of PyTensor's rewrites and of tracing. That folder holds at most 1 GiB: then
    the entries that were used least recently go.

    A call turns JAX's persistent compilation cache on, too, for programs of every size: it serves all JAX code of the
    process. Nothing is dropped from the folder of a call. An entry that can't be read or written costs a warning, and
    the program is compiled, or the graph rewritten, again.

    Parameters
    ----------
    directory : str, Path or False, optional
        The folder, which is made if it is missing. If None, a folder in PyTensor's ``base_compiledir``, for this
        platform and Python. If False, nothing is kept for later processes from now on; JAX's settings stay.

    Notes
    -----
    Files of the folder are executed: its folder ``graphs`` has pickles, and programs are machine code. So a folder that
    somebody else can write to is refused, as ssh does, and new files are for you alone. JAX reads and writes its
    programs by itself: this check of the folder and its files protects them. Windows has no such rights, and nothing is
    checked there: choose a folder in your profile.

    Returns
    -------
    Path or None
        The folder; None if nothing is kept: with a `CacheWarning`, if no file can be written there.

    Raises
    ------
    UnsafeFolderError
        A PermissionError, if the folder or something in it belongs to another user or can be written to by one, or a
        folder above it can.

    Examples
    --------
    >>> import tempfile
    >>> import pytensor_jaxpr_linker as pjl
    >>> folder = pjl.cache(tempfile.mkdtemp())
    """
    if directory is False:
        STORE.use(None)
        return None
    if directory is None:
        compiled = Path(pytensor.config.compiledir)
        directory = compiled.with_name(compiled.name.replace("compiledir", "xla"))
    folder = Path(directory).expanduser()
    try:
        make_folder(folder)
        real = checked_folder(folder)  # a link may lead elsewhere later
        make_folder(real / "graphs")
        checked_folder(real / "graphs")
        with tempfile.TemporaryFile(dir=real) as file:
            file.write(b"0")
    except UnsafeFolderError:
        raise
    except OSError as error:
        message = (
            f"Compiled programs can't be kept in {folder}: {error}. Functions work, and are compiled in each process."
            " To do: call pytensor_jaxpr_linker.cache(directory) with a folder that can be written to."
        )
        warn_user(message, CacheWarning)
        return None
    STORE.use(real / "graphs")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # JAX remembers that it had none, if it has compiled before
    compilation_cache.set_cache_dir(str(real))
    return folder
