"""`Callee`: a function out of any kind of file, as the command line calls it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxpr_artifact.header import Argument, Stored
from jaxpr_artifact.iree_function import IreeFunction
from jaxpr_artifact.iree_module import IreeModule, IreeModuleFunction
from jaxpr_artifact.iree_program import DEVICE
from jaxpr_artifact.loaded import LoadedFunction
from jaxpr_artifact.loading import load
from jaxpr_artifact.module_state import ModuleState
from jaxpr_artifact.trees import leaves_of, with_leaves


class Callee(NamedTuple):
    """A function that takes and returns arrays, and the state that it updates."""

    name: str
    arguments: Sequence[Argument]
    outputs: Sequence[str]
    """A name for each output, none twice."""
    call: Callable[[Sequence[Any]], Sequence[Any]]
    read_state: Callable[[], dict[str, np.ndarray]]
    write_state: Callable[[Mapping[str, Any]], None]
    device: str
    """Where it runs."""


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
    if batched and not isinstance(loaded, LoadedFunction):
        raise TypeError("--batched is for files of JAX: a .vmfb file holds programs of fixed shapes.")
    where = (device or DEVICE) if not isinstance(loaded, LoadedFunction) else str(jax.devices()[0])
    if isinstance(loaded, IreeModule):
        return callee_of_module(loaded, function, where)
    if function is not None:
        raise TypeError(f"--function is for modules, and {os.fspath(path)} has one function, {loaded.header.name}.")
    return callee_of_function(loaded, loaded.batched if batched else loaded, where)


def callee_of_function(loaded: LoadedFunction | IreeFunction, call: Callable[..., Any], device: str) -> Callee:
    """Return a function with state of its own."""
    header = loaded.header
    updated: list[Stored] = [s for s in header.state if s.output is not None]
    return Callee(
        header.name,
        header.arguments,
        names_without_doubles(o.name for o in header.outputs),
        lambda args: [call(*args)] if header.is_bare else call(*args),
        lambda: {s.name: np.asarray(loaded.state[s.name]) for s in updated},
        loaded.state.update,
        device,
    )


def callee_of_module(module: IreeModule, name: str | None, device: str) -> Callee:
    """Return the function of a module that has this name, or its only one."""
    functions = {f.__name__: f for f in vars(module).values() if isinstance(f, IreeModuleFunction)}
    own = [name for name, f in functions.items() if f.description.kind == "function"]
    if name not in functions and not (name is None and len(own) == 1):
        asked = "Say which function of the module" if name is None else f"The module has no function {name!r}"
        raise TypeError(f"{asked}, by --function: {', '.join(functions)}.")
    function = functions[own[0] if name is None else name]
    what = function.description
    state = {key: s for key, s in vars(module).items() if isinstance(s, ModuleState) and s.is_mutable}
    return Callee(
        what.name,
        what.arguments,
        names_without_doubles(r.name for r in what.results[: -1 if what.checks else None]),
        function.flat,
        lambda: {place: x for key, s in state.items() for place, x in leaves_of(s.get_value(), key)},
        lambda given: write_module_state(state, given),
        device,
    )


def write_module_state(state: Mapping[str, ModuleState], given: Mapping[str, Any]) -> None:
    """Set the arrays that are given by the names of their places."""
    for key, part in state.items():
        present = part.get_value()
        leaves = dict(leaves_of(present, key))
        if not leaves.keys().isdisjoint(given):
            part.set_value(with_leaves(present, iter([given.get(place, x) for place, x in leaves.items()])))


def names_without_doubles(names: Iterable[str]) -> list[str]:
    """Return names; one that is there already gets its position."""
    found: list[str] = []
    for name in names:
        found.append(name if name not in found else f"{name}_{len(found)}")
    return found
