"""Programs of a model for later calls and, in a folder, for later processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from functools import cache, cached_property
from hashlib import sha256
from time import perf_counter
from typing import Any

import jax
import pymc as pm
from pytensor.graph.rewriting.db import RewriteDatabaseQuery

from pytensor_jaxpr_linker.base.bounded import Bounded
from pytensor_jaxpr_linker.base.session import note_build, parts_of_build
from pytensor_jaxpr_linker.graph.rewritten import environment
from pytensor_jaxpr_linker.graph.rewritten.describe import NotDescribed
from pytensor_jaxpr_linker.pymc.blas import limit_loaded_blas
from pytensor_jaxpr_linker.run import kept_executables
from pytensor_jaxpr_linker.run.kept_executables import foreign_rules, jax_settings, pytensor_settings
from pytensor_jaxpr_linker.run.placement import process
from pytensor_jaxpr_linker.run.recompiles import AGAIN, STATIC


def surroundings(model: pm.Model) -> list:
    """Return everything except the model that its programs depend on and that may change in this process."""
    return [settings_of(model), pytensor_settings(), environment.foreign_rewrites(), foreign_rules()]


def settings_of(model: pm.Model) -> str:
    """Return options, JAX's configuration, and PyMC's checks of parameters as a text that is equal in each process."""
    return repr((model.check_bounds, jax_settings()))


@cache
def digest_of_files(package: str) -> str:
    """Return a digest of the sizes and times of a sampler's files, which its programs depend on."""
    try:
        return sha256(repr(environment.files_of(package)).encode()).hexdigest()
    except NotDescribed:
        return str(environment.IMPORTED)  # no other process has it


class FolderPrograms:
    """The programs of one model in the folder for later processes.

    Equal models have the same text `structure` in each process; without it nothing is kept. `query` is for PyTensor's
    rewrites of its graphs.
    """

    def __init__(self, structure: str | None = None, query: RewriteDatabaseQuery | None = None):
        self._structure, self._query = structure, query

    def place(self, key: Hashable) -> str | None:
        """Return where programs are kept, or None if they are not.

        The key is everything except the model that they depend on, and its `repr` must be the same in each process.
        """
        if self._structure is None or self._query is None:
            return None
        return kept_executables.place_of_text(lambda: f"{self._identity} {key!r}")

    @cached_property
    def _identity(self) -> str:
        """A text of the model and of the rewrites of its graphs, or `NotDescribed` is raised."""
        assert self._query is not None
        return f"{self._structure} {environment.text_of_process(self._query)}"


def shapes_within(key: Hashable) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names and shapes of arrays in a key, where they stand as name, shape and dtype."""
    match key:
        case (str(name), tuple(shape), str()) if all(isinstance(length, int) for length in shape):
            yield name, shape
        case tuple():
            for part in key:
                yield from shapes_within(part)


#: The number of programs of one model that are kept: for a few samplers, each with one for the constrained values.
MOST_PROGRAMS = 16


class KeptPrograms:
    """Compiled programs by keys. The least recently used program goes first.

    `folder` has the programs of the same model that later processes find, before XLA compiles them.
    """

    def __init__(self) -> None:
        self.folder = FolderPrograms()
        self._kept: Bounded[Hashable, Any] = Bounded(MOST_PROGRAMS)
        self._shapes: dict[str, dict[str, tuple[int, ...]]] = {}
        self._in_turn = threading.RLock()  # two threads that sample one model compile it once

    def find(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the entry under a key, or make and keep it."""
        process.check()
        with self._in_turn:
            if key not in self._kept:
                self._kept[key] = make()
                limit_loaded_blas()
            return self._kept.use(key)

    def compiled(self, key: Hashable, function: Callable, args: tuple) -> jax.stages.Compiled:
        """Return the program under a key, or compile the function for the avals of arguments, and keep it."""
        return self.find(key, lambda: jax.jit(function).lower(*args).compile())

    def by_way_of_folder(
        self, key: tuple, make: Callable[[], tuple[jax.stages.Compiled, Any]]
    ) -> tuple[jax.stages.Compiled, Any]:
        """Return the program under a key with a value about it, from the folder if it has them, or make and keep them.

        The key begins with the name of the program. Its `repr` must be the same in each process.
        """

        def find() -> tuple[jax.stages.Compiled, Any]:
            began, place, seconds, name = perf_counter(), self.folder.place(key), dict[str, float](), str(key[0])
            if place is not None and (found := kept_executables.find_programs(place)) is not None:
                seconds["load"] = perf_counter() - began
                note_build("program", name, seconds, kept=True)
                return found.programs[0], found.about
            note_build("program", name, seconds)
            with parts_of_build():
                program, about = make()
            seconds["build"] = perf_counter() - began
            if place is not None:
                kept_executables.keep_programs(place, [program], about)
            return program, about

        return self.find(key, find)

    def cause(self, name: str, key: Hashable) -> str:
        """Return which arrays have other shapes than when a program of this name was compiled last, or nothing."""
        now = dict(shapes_within(key))
        last, self._shapes[name] = self._shapes.get(name, now), now
        changes = [f"the shape of {v!r} is {now[v]}, not {last[v]}" for v in now if last.get(v, now[v]) != now[v]]
        return f"{AGAIN}{'; '.join(changes)}. {STATIC}" if changes else ""

    def drop(self, key: Hashable) -> None:
        """Forget the entry under a key: its compilation has failed."""
        with self._in_turn:
            self._kept.pop(key, None)

    def __len__(self) -> int:
        return len(self._kept)
