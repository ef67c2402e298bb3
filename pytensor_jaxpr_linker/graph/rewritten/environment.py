"""The environment of PyTensor's rewrites: versions, settings, and the rewrites that are registered."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator
from functools import cache, cached_property
from glob import escape, glob
from hashlib import sha256
from operator import itemgetter
from typing import Any

import numpy as np
import pytensor
import scipy
from pytensor.compile.aliasing import Supervisor
from pytensor.compile.mode import optdb
from pytensor.graph.features import PreserveVariableAttributes, ReplaceValidate
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.db import RewriteDatabase, RewriteDatabaseQuery

from pytensor_jaxpr_linker.base.pytensor_compat import INFER_REGISTRIES
from pytensor_jaxpr_linker.graph.rewritten.describe import OF_PYTENSOR, NotDescribed

#: When this process imported the package, in ns: a file that was written later is not the one that runs.
IMPORTED = time.time_ns()
#: Settings that show or check rewrites, and the values with which they do nothing.
SILENT = {"optimizer_verbose": False, "profile_optimizer": False, "check_stack_trace": "off", "on_opt_error": "warn"}
#: A module that PyTensor imports with Numba, at any time, and that registers rewrites for its own Ops alone.
LATE = "pytensor.typed_list.rewriting"
#: Settings without plain values, or about C code, which this mode does not make: the first look at them takes 0.3 s.
#: The last is for messages, and changes in all threads while one of them builds a graph.
OTHERS = frozenset({"mode", "compiledir", "base_compiledir", "blas__ldflags", "gcc_version_str", "traceback__limit"})


def text_of_environment(fgraph: FunctionGraph, query: RewriteDatabaseQuery, in_folder: bool) -> str:
    """Return a text of all that rewrites depend on, apart from the graph; valid in other processes if `in_folder`."""
    return repr(state_of(fgraph)) + text_of_process(query, in_folder)


def text_of_process(query: RewriteDatabaseQuery, in_folder: bool = True) -> str:
    """Return a text of the chosen and registered rewrites, the settings and, if `in_folder`, the versions."""
    check_silent()
    return repr([chosen(query), settings(), registered(in_folder), inferences(), versions() if in_folder else None])


@cache
def versions() -> str:
    """Return a digest of the versions of Python and packages, and of the files of packages with rewrites or Ops."""
    numbers = [sys.version, platform.machine(), np.__version__, scipy.__version__, pytensor.__version__]
    return sha256(repr([numbers, [files_of(name) for name in OF_PYTENSOR if name in sys.modules]]).encode()).hexdigest()


def files_of(package: str) -> list[Any]:
    """Return the sources of a package with their sizes and times, and what its installation recorded.

    The time of a file that has not changed since is 0: so two installations of one wheel are equal.
    """
    root = os.path.dirname(sys.modules[package].__file__ or "")
    recorded, installed = installation(root)
    found, folders = [], [root]
    while folders:
        for entry in os.scandir(folders.pop()):
            if entry.name.endswith(".py"):
                stat = entry.stat()
                found.append((entry.path[len(root) :], stat.st_size, stat.st_mtime_ns))
            elif "." not in entry.name and entry.is_dir() and entry.name != "__pycache__":
                folders.append(entry.path)
    if found and max(found, key=itemgetter(2))[2] > IMPORTED:
        raise NotDescribed(f"a file of {package} was written after it was imported")
    return [recorded, *((path, size, at if at > installed else 0) for path, size, at in sorted(found))]


def installation(root: str) -> tuple[list[str], int]:
    """Return the checksums of a package's files that its installation recorded last of all, and when, in ns; or nothing
    and 0, as for a package that stands where it is edited.
    """
    folder, name = os.path.split(root)
    records = glob(os.path.join(escape(folder), f"{name}-*.dist-info", "RECORD"))
    if len(records) != 1:
        return [], 0
    with open(records[0], encoding="utf-8") as file:
        lines = [line for line in file.read().splitlines() if line.startswith(f"{name}/") and "sha256=" in line]
    return sorted(lines), os.stat(records[0]).st_mtime_ns if lines else 0


def settings() -> list[tuple[str, str]]:
    """Return PyTensor's settings."""
    config = pytensor.config
    return [(name, repr(getattr(config, name))) for name in config._config_var_dict if name not in OTHERS]


def check_silent() -> None:
    """Raise if rewrites show or check their work."""
    for name, value in SILENT.items():
        if getattr(pytensor.config, name) != value:
            raise NotDescribed(f"{name} is not {value}")


def chosen(query: RewriteDatabaseQuery) -> list:
    """Return which rewrites a query chooses."""
    if query.extra_rewrites or query.subquery or query.position_cutoff != float("inf"):
        raise NotDescribed("the query has parts without a name")
    if "cxx_only" not in query.exclude:
        raise NotDescribed("the query does not belong to a function")
    return [list(query.include), list(query.require), list(query.exclude)]


def registered(in_folder: bool) -> str:
    """Return a text of the rewrites that are registered with PyTensor: their tags, order, positions and functions.

    In one process a number is enough, which is another one after each change.
    """
    global _last
    tagged = [(db, tag, list(found)) for db in databases_below(optdb) for tag, found in db.__db__.items() if found]
    if tagged != _last.tagged:
        _last = Registered(tagged, _last.number + 1)
    return _last.digest if in_folder else f"{_last.number}"


def foreign_rewrites() -> list[tuple[str, Any]]:
    """Return the registered rewrites, by tag, of neither PyTensor, which imports some when needed, nor PyMC."""
    tagged = ((tag, r) for db in databases_below(optdb) for tag, found in db.__db__.items() for r in found)
    return [(tag, r) for tag, r in tagged if is_foreign(r)]


@cache
def is_foreign(rewrite: Any) -> bool:
    """Return whether a rewrite may be the user's own."""
    try:
        sources(rewrite)
    except NotDescribed:
        return True
    return False


def is_of_late_ops(rewrite: Any) -> bool:
    """Return whether a rewrite is for Ops whose module registers it: a graph with such an Op has imported that."""
    return getattr(getattr(rewrite, "node_rewriter", rewrite), "fn", rewrite).__module__ == LATE


class Registered:
    """Databases of rewrites, and the rewrites that each has under each tag. Their sources are known."""

    def __init__(self, tagged: list[tuple[RewriteDatabase, str, list]], number: int):
        for r in {id(r): r for db, tag, found in tagged if tag in db._names for r in found}.values():
            sources(r)
        self.tagged, self.number = tagged, number

    @cached_property
    def digest(self) -> str:
        """A digest of names, positions and sources, which another process has, too."""
        tagged = [(db, tag, [r for r in found if not is_of_late_ops(r)]) for db, tag, found in self.tagged]
        rewrites = {id(r): (getattr(db, "__position__", {}).get(r.name), r) for db, _, found in tagged for r in found}
        texts = {i: f"{r.name} {position} {sources(r)}" for i, (position, r) in rewrites.items()}
        text = repr([(tag, [texts.pop(id(r), r.name) for r in found]) for _, tag, found in tagged if found])
        return sha256(text.encode()).hexdigest()


#: The rewrites that were registered when they were last asked for.
_last = Registered([], 0)


def inferences() -> list[str]:
    """Return the functions with which rewrites infer the kind of a matrix: diagonal, positive definite."""
    found = [f for table in INFER_REGISTRIES for fs in table.values() for f in (fs if isinstance(fs, list) else [fs])]
    return [source(f) for f in found]


def databases_below(db: Any) -> Iterator[RewriteDatabase]:
    """Yield a database of rewrites and the databases inside it."""
    yield db
    inner = [getattr(db, "db", None), *(r for name in sorted(db._names) for r in db.__db__[name])]
    for other in inner:
        if isinstance(other, RewriteDatabase):
            yield from databases_below(other)


def sources(rewrite: Any) -> list[str]:
    """Return which class and function a rewrite is of, or raise if it may be the user's own."""
    found = [rewrite, getattr(rewrite, "fn", None), getattr(rewrite, "node_rewriter", None)]
    found += getattr(rewrite, "rewrites", [])
    return [source(x if hasattr(x, "__qualname__") else type(x)) for x in found if x is not None]


def source(owner: Any) -> str:
    """Return the module and name of a class or function, or raise if it may be the user's own."""
    if owner.__module__.partition(".")[0] not in OF_PYTENSOR:
        raise NotDescribed(f"{owner} of {owner.__module__} is registered")
    return f"{owner.__module__}.{owner.__qualname__}"


def state_of(fgraph: FunctionGraph) -> list:
    """Return which inputs are updated, and which may be overwritten."""
    features = {type(f): f for f in fgraph._features}
    if set(features) != {ReplaceValidate, Supervisor, PreserveVariableAttributes}:
        raise NotDescribed("the graph has other features")
    protected: Any = features[Supervisor]
    return [sorted((fgraph.update_mapping or {}).items()), [v in protected.protected for v in fgraph.inputs]]
