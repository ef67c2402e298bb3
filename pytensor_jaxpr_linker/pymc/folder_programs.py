"""Programs of a model in the folder of `cache`: a later process neither rewrites the model's graphs nor traces its sampler."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

import jax
from jax import export
from pytensor.graph.rewriting.db import RewriteDatabaseQuery

from jaxpr_artifact.header import Program
from jaxpr_artifact.programs import from_program, to_program
from pytensor_jaxpr_linker.graph.rewritten.describe import NotDescribed
from pytensor_jaxpr_linker.graph.rewritten.store import STORE
from pytensor_jaxpr_linker.pymc.surroundings import text_for_folder

#: The name of the one program among the members of a `StoredFunction`.
MEMBER = "program"


class StoredFunction(NamedTuple):
    """A function of arrays as `jax.export` gives it, without a class of anybody's.

    Attributes
    ----------
    program, module
        The program of its flat arguments and results: what JAX knows of it, and StableHLO.
    results
        Its results, a tree of dicts, lists and tuples, with the number of a flat result in place of each array.
    about
        What the caller wants to know of it.
    """

    program: Program
    module: bytes
    results: Any
    about: Any = None

    def jitted(self) -> jax.stages.Wrapped:
        """Return the function, to lower for arguments of the shapes for which it was stored."""
        platforms = [jax.default_backend()]
        exported = from_program("the cache", self.program, {MEMBER: memoryview(self.module)}, platforms, ())

        def call(*args: Any) -> Any:
            found = exported.call(*jax.tree.leaves(args))
            return jax.tree.map(lambda i: found[i], self.results)

        return jax.jit(call)


def stored_function(function: Callable, args: tuple, about: Any = None) -> StoredFunction:
    """Return a function as it can be stored, for arguments of these shapes and dtypes.

    Raises
    ------
    ValueError, NotImplementedError
        If `jax.export` does not take it, as programs for several devices, or with calls that a later version of XLA may not have.
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
    return StoredFunction(
        program, bytes(members[MEMBER]), jax.tree.unflatten(trees[0], range(len(program.outputs))), about
    )


class FolderPrograms:
    """The programs of one model in the folder of `cache`.

    Parameters
    ----------
    structure
        A text that equal models have in each process; without it nothing is kept.
    query
        Which of PyTensor's rewrites its graphs get.
    """

    def __init__(self, structure: str | None = None, query: RewriteDatabaseQuery | None = None):
        self._structure, self._query = structure, query

    @cached_property
    def _identity(self) -> str | None:
        """A digest of the model and of what its programs depend on beside it, or None if there is no text of that."""
        if self._structure is None or self._query is None:
            return None
        with suppress(NotDescribed):
            return sha256(f"{self._structure} {text_for_folder(self._query)}".encode()).hexdigest()
        return None

    def find(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what is in the folder under a key; else put there what `make` returns, if `jax.export` takes it, and return that or None.

        Parameters
        ----------
        key
            What the program depends on beside the model. Its `repr` must be the same in each process.
        make
            Returns a `StoredFunction`, or a tuple of them.
        """
        if not STORE.has_folder or self._identity is None:
            return None
        place = sha256(f"{self._identity} {key!r}".encode()).hexdigest()
        found = STORE.find(place)
        if found is None:
            try:
                found = make()
            except (ValueError, NotImplementedError):
                return None  # what is wrong with a model is raised where it compiles
            STORE.keep(place, found)
        return found

    def jitted(self, key: Hashable, function: Callable, args: tuple) -> jax.stages.Wrapped:
        """Return a function for `jax.jit`, by way of the folder if there is one."""
        found = self.find(key, lambda: stored_function(function, args))
        return jax.jit(function) if found is None else found.jitted()
