"""Lowers a JAX function, its derivatives and its batched form for several platforms, and writes them into a file.

The file is independent of the machine that writes it.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import export

from jaxpr_artifact import ArtifactError, LoadedFunction, load
from jaxpr_artifact.files import write_container
from jaxpr_artifact.header import Check, Fixed, Header, Program, Stored
from jaxpr_artifact.programs import argument_like, is_inexact, shape_of, to_program
from pytensor_jaxpr_linker.artifacts.shapes import Input, advising, has_symbols
from pytensor_jaxpr_linker.base.options import for_platforms
from pytensor_jaxpr_linker.base.version import __version__

#: The platforms that JAX lowers for without a device of theirs.
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")

_alone = threading.Lock()


class Lowerable(NamedTuple):
    """A JAX function with the kinds of its operands."""

    fn: Callable[..., Sequence[Any]]
    avals: Sequence[Any]
    has_batch: Sequence[bool]
    """Whether each operand gets the axis of a batch: arguments and cotangents of results do."""
    is_constant: Sequence[bool]
    """Whether each operand lacks a derivative."""
    places: Mapping[str, str]
    """The line of the user's program that made a node, by the name of its operations."""

    def derivative(self, results: Sequence[Any]) -> Lowerable | None:
        """Return the pullback, or None if there is none; `results` are the avals of the function's results.

        It takes the operands and cotangents of the inexact results. It returns cotangents of the inexact operands
        except the constants.
        """
        of = [i for i, aval in enumerate(results) if is_inexact(aval)]
        wrt = [i for i, aval in enumerate(self.avals) if is_inexact(aval) and not self.is_constant[i]]
        if not of or not wrt:
            return None
        count = len(self.avals)

        def pullback(*args: Any) -> Sequence[Any]:
            def restricted(*active: Any) -> list[Any]:
                values = dict(enumerate(args[:count])) | dict(zip(wrt, active, strict=True))
                found = self.fn(*values.values())
                return [found[i] for i in of]

            return jax.vjp(restricted, *[args[i] for i in wrt])[1](list(args[count:]))

        cotangents = [jax.ShapeDtypeStruct(results[i].shape, results[i].dtype) for i in of]
        return Lowerable(
            pullback,
            [*self.avals, *cotangents],
            [*self.has_batch, *[True] * len(of)],
            [*self.is_constant, *[False] * len(of)],
            self.places,
        )

    def batched(self, size: Any) -> Lowerable:
        """Return the function over one more axis, of this size."""
        avals = [
            jax.ShapeDtypeStruct((size, *aval.shape), aval.dtype) if has_batch else aval
            for aval, has_batch in zip(self.avals, self.has_batch, strict=True)
        ]
        axes = [0 if has_batch else None for has_batch in self.has_batch]
        return self._replace(fn=jax.vmap(lambda *args: tuple(self.fn(*args)), in_axes=axes), avals=avals)


def with_derivatives(
    given: Lowerable, name: str, platforms: Sequence[str], order: int, member: str, members: dict[str, Any], size: Any
) -> tuple[export.Exported, Program]:
    """Return a function as a program with its derivatives, and add their bytes to the members.

    `size` is the length of the batch, or None for a function without a batch. A derivative over a batch has one row for
    each row, also with respect to shared operands.
    """
    exported = lowered(given if size is None else given.batched(size), name, platforms)
    vjp, first = None, 0 if size is None else 1  # the axis of a batch comes first
    results = [jax.ShapeDtypeStruct(aval.shape[first:], aval.dtype) for aval in exported.out_avals]
    if order and (following := given.derivative(results)):
        _, vjp = with_derivatives(following, name, platforms, order - 1, f"{member}_vjp", members, size)
    return exported, to_program(exported, f"{member}.mlirbc", vjp, members)


def lowered(given: Lowerable, name: str, platforms: Sequence[str]) -> export.Exported:
    """Return a function lowered for platforms, or raise a NotImplementedError that names a failing platform."""

    def on(some: Sequence[str]) -> export.Exported:
        def call(*args: Any) -> tuple:
            return tuple(given.fn(*args))

        call.__name__ = call.__qualname__ = name
        return export.export(jax.jit(call), platforms=tuple(some))(*given.avals)

    with jax.enable_x64(True), without_source_paths():
        try:
            return on(platforms)
        except (NotImplementedError, ValueError) as error:
            reasons = faults_of_platforms(on, platforms) if fault_in(error) else {}
            if not reasons:
                raise
            raise not_lowered(name, platforms, reasons, given.places) from error


def faults_of_platforms(on: Callable[[Sequence[str]], Any], platforms: Sequence[str]) -> dict[str, LoweringFault]:
    """Return the fault of each failing platform."""
    reasons = {}
    for platform in platforms:
        try:
            on([platform])
        except (NotImplementedError, ValueError) as error:
            if reason := fault_in(error):
                reasons[platform] = reason
    return reasons


class LoweringFault(NamedTuple):
    """The reason why JAX can't lower a function."""

    text: str
    names: str = ""
    """The names of the operation, with slashes between them, if JAX gives them."""


#: A call of a library, in the ValueError of `jax.export`, and the names of the operation.
_LIBRARY_CALL = re.compile(r"custom_call @(?P<target>\w+).*? loc\((?P<names>[^\n]*)\)", re.DOTALL)


def fault_in(error: Exception) -> LoweringFault | None:
    """Return the reason why JAX can't lower a function, or None for other errors."""
    if isinstance(error, NotImplementedError):
        return LoweringFault(str(error).splitlines()[0])
    if "no compatibility guarantees" not in str(error) or not (found := _LIBRARY_CALL.search(str(error))):
        return None
    text = f"it would call {found['target']}, which JAX does not promise to have in later versions"
    return LoweringFault(text, found["names"].replace('"', "/"))


def not_lowered(
    name: str, platforms: Sequence[str], reasons: Mapping[str, LoweringFault], places: Mapping[str, str]
) -> NotImplementedError:
    """Return the error: the platforms that fail, the reasons, and the lines of the user's program."""
    rest = tuple(p for p in platforms if p not in reasons)
    them = "it" if len(reasons) == 1 else "them"
    remedy = f"platforms={rest} leaves {them} out" if rest else "Name others by `platforms`, or leave the operation out"
    why = "; ".join(f"{platform}: {reason.text}" for platform, reason in reasons.items())
    lines = dict.fromkeys(line_of_names(reason.names, places) for reason in reasons.values())
    where = "".join(f" Made at {line}" for line in lines if line)
    return NotImplementedError(f"JAX can't lower {name} for {why}. {remedy}.{where}")


def line_of_names(names: str, places: Mapping[str, str]) -> str:
    """Return the line of the user's program that made an operation with these names, or an empty text."""
    return next((places[name] for name in reversed(names.split("/")) if name in places), "")


def checked_platforms(platforms: Iterable[str]) -> tuple[str, ...]:
    """Return platforms in the order of `PLATFORMS`, each once; raise a ValueError if they are unknown or empty."""
    given = () if platforms is None or isinstance(platforms, str) else tuple(platforms)
    if not given:
        raise ValueError(f'platforms is a sequence of names such as ("cpu", "cuda"), not {platforms!r}.')
    for platform in given:
        if platform not in PLATFORMS:
            meant = {"gpu": " GPUs are 'cuda' and 'rocm'."}.get(str(platform).lower(), "")
            known = ", ".join(map(repr, PLATFORMS))
            raise ValueError(f"The platforms of a file are among {known}, not {platform!r}.{meant}")
    return tuple(p for p in PLATFORMS if p in given)


@contextmanager
def without_source_paths() -> Iterator[None]:
    """Keep the paths of source files out of lowered programs.

    The setting is the process's: meanwhile programs of other threads lack these debug locations, too.
    """
    with _alone:
        before = jax.config.jax_traceback_in_locations_limit
        try:
            jax.config.update("jax_traceback_in_locations_limit", 0)
            yield
        finally:
            jax.config.update("jax_traceback_in_locations_limit", before)


class KeptArray(NamedTuple):
    """An array that a function keeps: the value of a shared variable, or a constant."""

    input: Input
    value: np.ndarray
    output: int | None = None
    """The position of the result that is its next value."""


class Exportable(NamedTuple):
    """A function, ready to be written."""

    fn: Callable[..., Sequence[Any]]
    """Takes the arguments, the state and the constants; returns the outputs, the updates and the code of any checks."""
    name: str
    arguments: Sequence[Input]
    outputs: Sequence[tuple[str, bool]]
    """Name of each output, and whether it is a key."""
    key_of: Sequence[int | None] = ()
    """For each output, the position of its key among the arguments and the state, or None; empty without keys."""
    is_bare: bool = False
    state: Sequence[KeptArray] = ()
    constants: Sequence[KeptArray] = ()
    fixed: Sequence[Fixed] = ()
    checks: Sequence[Check] = ()
    note: str = ""
    places: Mapping[str, str] = MappingProxyType({})
    """The line of the user's program that made a node, by the name of its operations."""
    jaxpr: Callable[[], Any] | None = None
    """Returns a closed Jaxpr of the arguments, the state and the constants, untraced; None if `fn` has to be traced."""


def write_exportable(
    path: str | os.PathLike,
    given: Exportable,
    platforms: Sequence[str],
    vjp_order: int = 0,
    batched: bool = False,
    constraints: Sequence[str] = (),
) -> LoadedFunction:
    """Lower a function, write it, and load it from the file. If lowering or loading fails, no file is left."""
    members: dict[str, Any] = {}
    inputs = [*given.arguments, *[k.input for k in (*given.state, *given.constants)]]
    program = Lowerable(
        given.fn,
        [x.aval for x in inputs],
        [i < len(given.arguments) for i in range(len(inputs))],
        [i >= len(given.arguments) + len(given.state) for i in range(len(inputs))],
        given.places,
    )
    with for_platforms(platforms), advising(inputs):
        how = given.name, platforms, vjp_order
        exported, call = with_derivatives(program, *how, "programs/call", members, None)
        programs = {"call": call}
        if batched:
            size = batch_size(given, program.avals)
            _, programs["batched"] = with_derivatives(program, *how, "programs/batched", members, size)
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
    """Load a new file once, and raise an ArtifactError about `path`, which it would replace, if that fails."""
    try:
        load(new)
    except ArtifactError as error:
        remedy = "Nothing was written, and an older file is as it was."
        raise ArtifactError(path, error.what, remedy) from error


def header_of(given: Exportable, results: Sequence[Any], **parts: Any) -> Header:
    """Return the header of a function whose results have these avals. `parts` depend on the kind of file."""
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
    """Return the description of an array in this member."""
    name, aval, is_key = kept.input[:3]
    symbolic = shape_of(aval.shape) if has_symbols([kept.input]) else None
    return Stored(name, np.dtype(aval.dtype).name, np.shape(kept.value), member, is_key, symbolic, kept.output)


def stored_in(folder: str, arrays: Sequence[KeptArray], members: dict[str, Any]) -> tuple[Stored, ...]:
    """Return the descriptions of arrays, and add their bytes to the members."""
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
            f"batched=True is for functions without updates, and this one updates {', '.join(updated)}: each row of the"
            " batch would have a next value of its own. Make the state an argument, or leave out batched=True."
        )
    symbols = [n for aval in avals for n in aval.shape if export.is_symbolic_dim(n)]
    name = "batch"
    while any(name in str(n) for n in symbols):
        name += "_"
    (size,) = export.symbolic_shape(name, scope=symbols[0].scope if symbols else export.SymbolicScope(()))
    return size


def versions_now(**others: str) -> dict[str, str]:
    """Return the versions of the packages that make an artifact; `others` are further packages by name."""
    found = {"pytensor_jaxpr_linker": __version__, "JAX": jax.__version__}
    for name, package in (("PyTensor", "pytensor"), ("jaxlib", "jaxlib"), *others.items()):
        try:
            found[name] = version(package)
        except PackageNotFoundError:  # a source tree on the path
            continue
    return found
