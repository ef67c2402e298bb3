"""Writes a JAX function, with the arrays that it keeps, into a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import export as jax_export

from jaxpr_artifact import ArtifactError, LoadedFunction, load
from jaxpr_artifact.container import write_container
from jaxpr_artifact.header import Check, Fixed, Header, Stored
from jaxpr_artifact.programs import argument_like, shape_of
from pytensor_jaxpr_linker.artifacts.lowering import Lowerable, with_derivatives
from pytensor_jaxpr_linker.artifacts.shapes import Input, advising, has_symbols
from pytensor_jaxpr_linker.base.options import for_platforms
from pytensor_jaxpr_linker.base.version import __version__


class KeptArray(NamedTuple):
    """An array that a function keeps: the value of a shared variable, or a constant."""

    input: Input
    value: np.ndarray
    output: int | None = None
    """The position of the result that is its next value."""


class Exportable(NamedTuple):
    """A function, ready to be written."""

    fn: Callable[..., Sequence[Any]]
    """Takes the arguments, the state and the constants; returns the outputs, the updates and, if there are checks, their code."""
    name: str
    arguments: Sequence[Input]
    outputs: Sequence[tuple[str, bool]]
    """Name of each output, and whether it is a key."""
    key_of: Sequence[int | None] = ()
    """The position of the key that each output follows, among the arguments and the state; none follows one by default."""
    is_bare: bool = False
    state: Sequence[KeptArray] = ()
    constants: Sequence[KeptArray] = ()
    fixed: Sequence[Fixed] = ()
    checks: Sequence[Check] = ()
    note: str = ""
    places: Mapping[str, str] = MappingProxyType({})
    """The line of the user's program that made a node, by the name that its operations have."""
    jaxpr: Callable[[], Any] | None = None
    """Returns the closed Jaxpr of the arguments, the state and the constants, of which nothing is traced; None if `fn` has to be traced."""


def write_exportable(
    path: str | os.PathLike,
    given: Exportable,
    platforms: Sequence[str],
    vjp_order: int = 0,
    batched: bool = False,
    constraints: Sequence[str] = (),
) -> LoadedFunction:
    """Lower a function, write it, and return what is in the file. Nothing is written if it can't be lowered, or loaded."""
    members: dict[str, Any] = {}
    arguments, kept = [x.aval for x in given.arguments], [*given.state, *given.constants]
    program = Lowerable(
        given.fn,
        [*arguments, *[k.input.aval for k in kept]],
        [True] * len(arguments) + [False] * len(kept),
        [False] * (len(arguments) + len(given.state)) + [True] * len(given.constants),
        given.places,
    )
    with for_platforms(platforms), advising([*given.arguments, *[k.input for k in kept]]):
        how = given.name, platforms, vjp_order
        exported, call = with_derivatives(program, *how, "programs/call", members, None)
        programs = {"call": call}
        if batched:
            _, programs["batched"] = with_derivatives(
                program, *how, "programs/batched", members, batch_size(given, program.avals)
            )
    header = header_of(
        given,
        exported.out_avals,
        state=stored_in("state", given.state, members),
        constants=stored_in("constants", given.constants, members),
        constraints=tuple(constraints),
        platforms=tuple(platforms),
        programs=programs,
        versions=versions_now(),
        key_of=tuple(given.key_of),
    )
    write_container(path, header.as_json(), members, partial(check_loads, path))
    return load(path, verify=False)


def check_loads(path: str | os.PathLike, new: Path, load: Callable[[Path], Any] = load) -> None:
    """Load a new file once, and raise an ArtifactError about `path`, which it is to replace, if that fails."""
    try:
        load(new)
    except ArtifactError as error:
        remedy = "Nothing was written, and an older file is as it was."
        raise ArtifactError(path, error.what, remedy) from error


def header_of(given: Exportable, results: Sequence[Any], **parts: Any) -> Header:
    """Return the header of a function whose results have these avals, with the parts that only one kind of file has, or has otherwise."""
    outputs = [argument_like(name, x, is_key) for (name, is_key), x in zip(given.outputs, results, strict=False)]
    return Header(
        name=given.name,
        arguments=tuple(argument_like(x.name, x.aval, x.is_key, x.by_value) for x in given.arguments),
        outputs=tuple(outputs),
        is_bare=given.is_bare,
        fixed=tuple(given.fixed),
        checks=tuple(given.checks),
        note=given.note,
        **parts,
    )


def stored(kept: KeptArray, member: str) -> Stored:
    """Return what the header says of an array that is in this member."""
    name, aval, is_key = kept.input[:3]
    symbolic = shape_of(aval.shape) if has_symbols([kept.input]) else None
    return Stored(name, np.dtype(aval.dtype).name, np.shape(kept.value), member, is_key, symbolic, kept.output)


def stored_in(folder: str, arrays: Sequence[KeptArray], members: dict[str, Any]) -> tuple[Stored, ...]:
    """Return what the header says of arrays, and add their bytes to the members."""
    found = tuple(stored(kept, f"arrays/{folder}/{i}") for i, kept in enumerate(arrays))
    for kept, s in zip(arrays, found, strict=True):
        value = np.ascontiguousarray(kept.value, s.dtype)
        members[s.member] = value.reshape(-1).view(np.uint8) if value.size else b""
    return found


def batch_size(given: Exportable, avals: Sequence[Any]) -> Any:
    """Return the symbol of a batch's length."""
    if not given.arguments:
        raise ValueError("batched=True is for functions with arguments: this one has none.")
    if updated := [k.input.name for k in given.state if k.output is not None]:
        raise ValueError(
            f"batched=True is for functions without updates, and this one updates {', '.join(updated)}: each row of the batch would"
            " have a next value of its own. Make the state an argument, or leave out batched=True."
        )
    symbols = [n for aval in avals for n in aval.shape if jax_export.is_symbolic_dim(n)]
    name = "batch"
    while any(name in str(n) for n in symbols):
        name += "_"
    (size,) = jax_export.symbolic_shape(name, scope=symbols[0].scope if symbols else jax_export.SymbolicScope(()))
    return size


def versions_now(**others: str) -> dict[str, str]:
    """Return the versions of what an artifact is made with; `others` are further names of packages."""
    found = {"pytensor_jaxpr_linker": __version__, "JAX": jax.__version__}
    for name, package in (("PyTensor", "pytensor"), ("jaxlib", "jaxlib"), *others.items()):
        try:
            found[name] = version(package)
        except PackageNotFoundError:  # a source tree on the path
            continue
    return found
