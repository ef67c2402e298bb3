"""`Callee`: a function out of any kind of file, as the command line calls it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxpr_artifact.iree import IreeModule, IreeModuleFunction
from jaxpr_artifact.iree_program import DEVICE
from jaxpr_artifact.loaded import LoadedFunction
from jaxpr_artifact.loading import load
from jaxpr_artifact.module_header import FunctionDescription
from jaxpr_artifact.state import ModuleState
from jaxpr_artifact.trees import leaves_of, with_leaves


class Callee(NamedTuple):
    """A function that takes and returns arrays, and the state that it updates."""

    description: FunctionDescription
    call: Callable[[Sequence[Any]], Sequence[Any]]
    state: Mapping[str, ModuleState]
    device: str
    """Where it runs."""

    @property
    def outputs(self) -> list[str]:
        """A name for each output, none twice."""
        return names_without_doubles(r.name for r in self.description.outputs)

    def read_state(self) -> dict[str, np.ndarray]:
        """Return the arrays of the state by the names of their places."""
        return {place: x for name, part in self.state.items() for place, x in leaves_of(part.get_value(), name)}

    def write_state(self, given: Mapping[str, Any]) -> None:
        """Set the arrays that are given by the names of their places."""
        for name, part in self.state.items():
            present = part.get_value()
            leaves = dict(leaves_of(present, name))
            if not leaves.keys().isdisjoint(given):
                part.set_value(with_leaves(present, iter([given.get(place, x) for place, x in leaves.items()])))


def callee_in(
    path: str | os.PathLike, function: str | None = None, device: str | None = None, batched: bool = False
) -> Callee:
    """Return the function in a file, or the one of this name in a module.

    Raises
    ------
    TypeError
        If the file has not what is asked for.
    """
    loaded = load(path, device=device)
    is_by_jax = isinstance(loaded, LoadedFunction)
    if batched and not is_by_jax:
        raise TypeError("--batched is for files of JAX: a .vmfb file holds programs of fixed shapes.")
    where = str(jax.devices()[0]) if is_by_jax else device or DEVICE
    if isinstance(loaded, IreeModule):
        found = function_of_module(loaded, function)
        parts = {name: s for name, s in vars(loaded).items() if isinstance(s, ModuleState) and s.is_mutable}
        return Callee(found.description, found.flat, parts, where)
    if function is not None:
        raise TypeError(f"--function is for modules, and {os.fspath(path)} has one function, {loaded.__name__}.")
    state = {name: ModuleState(name, name, loaded.state) for name in loaded.state if name in loaded.description.writes}

    def by_rows(args: Sequence[Any]) -> Sequence[Any]:
        outputs = loaded.batched(*args)
        return [outputs] if loaded.header.is_bare else outputs

    return Callee(loaded.description, by_rows if batched else loaded.flat, state, where)


def function_of_module(module: IreeModule, name: str | None) -> IreeModuleFunction:
    """Return the function of a module that has this name, or its only one."""
    functions = {f.__name__: f for f in vars(module).values() if isinstance(f, IreeModuleFunction)}
    own = [name for name, f in functions.items() if f.description.kind == "function"]
    if name not in functions and not (name is None and len(own) == 1):
        asked = "Say which function of the module" if name is None else f"The module has no function {name!r}"
        raise TypeError(f"{asked}, by --function: {', '.join(functions)}.")
    return functions[own[0] if name is None else name]


def names_without_doubles(names: Iterable[str]) -> list[str]:
    """Return names; one that is there already gets its position."""
    found: list[str] = []
    for name in names:
        found.append(name if name not in found else f"{name}_{len(found)}")
    return found
