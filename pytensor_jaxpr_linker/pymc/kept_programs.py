"""Programs of a model for later calls and, in the folder of `cache`, for later processes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import cache, cached_property
from hashlib import sha256
from typing import Any, NamedTuple

import jax
import pymc as pm
from jax import export
from pytensor.graph.rewriting.db import RewriteDatabaseQuery

from jaxpr_artifact.header import Program
from jaxpr_artifact.programs import from_program, to_program
from pytensor_jaxpr_linker.base.bounded import Bounded
from pytensor_jaxpr_linker.base.options import resolve
from pytensor_jaxpr_linker.base.rules import RULES, SCALAR_RULES
from pytensor_jaxpr_linker.graph.rewritten import environment
from pytensor_jaxpr_linker.graph.rewritten.describe import OF_PYTENSOR, NotDescribed
from pytensor_jaxpr_linker.graph.rewritten.live import package_of
from pytensor_jaxpr_linker.graph.rewritten.store import STORE
from pytensor_jaxpr_linker.run.placement import process

#: Settings of JAX that no program depends on: for its cache, for its messages, and one that samplers set.
OF_NO_PROGRAM = (
    "jax_compilation_cache",
    "jax_dump",
    "jax_enable_compilation_cache",
    "jax_enable_x64",
    "jax_explain",
    "jax_log",
    "jax_persistent_cache",
    "jax_raise_persistent_cache",
    "jax_traceback",
    "jax_transfer_guard",
)
#: PyTensor's environment.settings that no program depends on. The first is changed while starting points are made, in
#: any thread.
OF_NO_GRAPH = frozenset({"cxx"})


def surroundings(model: pm.Model) -> list:
    """Return everything except the model that its programs depend on and that may change in this process."""
    of_pytensor = [(name, value) for name, value in environment.settings() if name not in OF_NO_GRAPH]
    return [settings_of(model), of_pytensor, environment.foreign_rewrites(), foreign_rules()]


def settings_of(model: pm.Model) -> str:
    """Return options, JAX's configuration, and PyMC's checks of parameters as a text that is equal in each process."""
    names = [name for name in jax.config.values if not name.startswith(OF_NO_PROGRAM)]
    of_jax = [(name, getattr(jax.config, name, jax.config.values[name])) for name in names]
    return repr((model.check_bounds, resolve(), of_jax))


def foreign_rules() -> list[tuple[Any, Any]]:
    """Return the user's own functions that emit or evaluate Ops, by class of Op."""
    found: list[tuple[Any, Any]] = [(op, rule.emit) for table in (RULES, SCALAR_RULES) for op, rule in table.items()]
    if basic := sys.modules.get("pytensor.link.jax.dispatch.basic"):
        found += basic.jax_funcify.registry.items()
    return [(op, function) for op, function in found if package_of(function) not in OF_PYTENSOR]


def text_for_folder(query: RewriteDatabaseQuery) -> str:
    """Return a text of the versions, rewrites and the device, on which programs depend, too.

    Raise `NotDescribed` if no other process can have the same, as a rule, or a JAX function, for one of PyTensor's Ops
    is the user's own.
    """
    for op, function in foreign_rules():
        if (op.partition(".")[0] if isinstance(op, str) else package_of(op)) in OF_PYTENSOR:
            raise NotDescribed(f"{function} is registered for {op}")
    device = jax.devices()[0]
    versions = jax.__version__, jax.lib.__version__, device.platform, device.device_kind, len(jax.devices())
    return repr([environment.text_of_process(query), versions])


@cache
def digest_of_files(package: str) -> str:
    """Return a digest of the sizes and times of a sampler's files, which its programs depend on."""
    try:
        return sha256(repr(environment.files_of(package)).encode()).hexdigest()
    except NotDescribed:
        return str(environment.IMPORTED)  # no other process has it


#: The name of the one program among the members of a `StoredFunction`.
MEMBER = "program"


class StoredFunction(NamedTuple):
    """A function of arrays from `jax.export`, without a third party's class.

    `program` is JAX's data about the program of its flat arguments and results, and `module` its StableHLO. `results`
    is the tree of its results (dicts, lists and tuples), with the number of a flat result in place of each array.
    `about` is a value of the caller's.
    """

    program: Program
    module: bytes
    results: Any
    about: Any = None

    def jitted(self) -> jax.stages.Wrapped:
        """Return the function, which can be lowered for arguments of the stored shapes."""
        platforms = [jax.default_backend()]
        exported = from_program("the cache", self.program, {MEMBER: memoryview(self.module)}, platforms, ())

        def call(*args: Any) -> Any:
            found = exported.call(*jax.tree.leaves(args))
            return jax.tree.map(lambda i: found[i], self.results)

        return jax.jit(call)


def stored_function(function: Callable, args: tuple, about: Any = None) -> StoredFunction:
    """Return a function in a form that can be stored, for arguments of these shapes and dtypes.

    Raise a ValueError or NotImplementedError if `jax.export` does not take it: a program for several devices, or with
    calls that a later XLA may lack.
    """
    leaves, tree = jax.tree.flatten(args)
    trees = []

    def flat(*values: Any) -> list:
        found, of_results = jax.tree.flatten(function(*jax.tree.unflatten(tree, values)))
        trees.append(of_results)
        return found

    exported = export.export(jax.jit(flat), platforms=[jax.default_backend()])(*leaves)
    members: dict[str, bytes] = {}
    program = to_program(exported, MEMBER, None, members)
    results = jax.tree.unflatten(trees[0], range(len(program.outputs)))
    return StoredFunction(program, bytes(members[MEMBER]), results, about)


class FolderPrograms:
    """The programs of one model in the folder of `cache`.

    Equal models have the same text `structure` in each process; without it nothing is kept. `query` is for PyTensor's
    rewrites of its graphs.
    """

    def __init__(self, structure: str | None = None, query: RewriteDatabaseQuery | None = None):
        self._structure, self._query = structure, query

    @cached_property
    def _identity(self) -> str | None:
        """A digest of everything that the programs depend on, or None if a part of it has no text."""
        if self._structure is None or self._query is None:
            return None
        with suppress(NotDescribed):
            return sha256(f"{self._structure} {text_for_folder(self._query)}".encode()).hexdigest()
        return None

    def find(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the entry of the folder under a key, or make it; None without a folder, or if it can't be exported.

        The key is everything except the model that the program depends on, and its `repr` must be the same in each
        process. `make` returns a `StoredFunction`, or a tuple of them.
        """
        if not STORE.has_folder or self._identity is None:
            return None
        place = sha256(f"{self._identity} {key!r}".encode()).hexdigest()
        found = STORE.find(place)
        if found is None:
            try:
                found = make()
            except (ValueError, NotImplementedError):
                return None  # compilation raises the errors of a model
            STORE.keep(place, found)
        return found

    def jitted(self, key: Hashable, function: Callable, args: tuple) -> jax.stages.Wrapped:
        """Return a function for `jax.jit`, by way of the folder if there is one."""
        found = self.find(key, lambda: stored_function(function, args))
        return jax.jit(function) if found is None else found.jitted()


#: The number of programs of one model that are kept: for a few samplers, each with one for the constrained values.
MOST_PROGRAMS = 16


class KeptPrograms:
    """Compiled programs by keys. The least recently used program goes first.

    `folder` has the programs of the same model that later processes find, before XLA compiles them.
    """

    def __init__(self) -> None:
        self.folder = FolderPrograms()
        self._kept: Bounded[Hashable, Any] = Bounded(MOST_PROGRAMS)
        self._in_turn = threading.RLock()  # two threads that sample one model compile it once

    def find(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the entry under a key, or make and keep it."""
        process.check()
        with self._in_turn:
            if key not in self._kept:
                self._kept[key] = make()
            return self._kept.use(key)

    def compiled(self, key: Hashable, function: Callable, args: tuple) -> jax.stages.Compiled:
        """Return the program under a key, or compile the function for the avals of arguments, and keep it."""
        return self.find(key, lambda: jax.jit(function).lower(*args).compile())

    def drop(self, key: Hashable) -> None:
        """Forget the entry under a key: its compilation has failed."""
        with self._in_turn:
            self._kept.pop(key, None)

    def __len__(self) -> int:
        return len(self._kept)
