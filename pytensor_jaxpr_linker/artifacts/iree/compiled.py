"""Writes functions and modules into ``.vmfb`` files, as MLIR with a description of itself that IREE compiles."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxpr_artifact import IreeFunction, load_iree
from jaxpr_artifact.container import canonical
from jaxpr_artifact.iree_program import ATTRIBUTE, FIRST_STATE, MAIN
from jaxpr_artifact.replacing import replacing
from jaxpr_artifact.seal import seal
from pytensor_jaxpr_linker.artifacts.iree.compiler import IreeError, compile_mlir
from pytensor_jaxpr_linker.artifacts.iree.targets import CompileTarget, flags_of, target_name
from pytensor_jaxpr_linker.artifacts.lowering import line_of_names, without_source_paths
from pytensor_jaxpr_linker.artifacts.mlir.build import add_description, pure_module
from pytensor_jaxpr_linker.artifacts.mlir.mlir_module import MlirModule
from pytensor_jaxpr_linker.artifacts.mlir.parameters import write_parameter_file
from pytensor_jaxpr_linker.artifacts.mlir.source import ModuleSource
from pytensor_jaxpr_linker.artifacts.shapes import Input, has_symbols
from pytensor_jaxpr_linker.artifacts.writing import Exportable, check_loads, header_of, stored, versions_now
from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import DEAD_CODE, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.portable.for_iree import FOR_IREE
from pytensor_jaxpr_linker.jaxpr.portable.rewrite import NotPortableError, portable


def write_iree(path: str | os.PathLike, given: Exportable, target: CompileTarget) -> IreeFunction | None:
    """Compile a function into a ``.vmfb`` file and return what is in it, or None if it is for another machine."""
    flags_of(target)  # a target that is none costs no time

    def check(new: Path) -> None:
        if target == "host":
            check_loads(path, new, load_iree)

    line_of = partial(line_of_names, places=given.places)
    write_vmfb(path, iree_text(given, target_name(target)), target, given.name, line_of, check)
    return load_iree(path) if target == "host" else None


def write_module(
    path: str | os.PathLike,
    source: ModuleSource,
    target: CompileTarget,
    inline_bytes: int | None,
    parameters: str | os.PathLike | None = None,
) -> None:
    """Compile a module, and write its parameters beside it."""
    flags_of(target)  # a target that is none costs no time
    mlir = MlirModule(source, lower_for_iree, inline_bytes)
    places = {f.name: f.places for f in source.functions}

    def line_of(names: str) -> str:
        return line_of_names(names, places.get(names.partition("/")[0], {}))

    def write_parameters(_: Path) -> None:
        if mlir.parameters:
            write_parameter_file(parameters or Path(path).with_suffix(".irpa"), mlir.parameters)

    write_vmfb(path, mlir.text_with_description(target_name(target)), target, source.name, line_of, write_parameters)


def write_vmfb(
    path: str | os.PathLike,
    mlir: str,
    target: CompileTarget,
    name: str,
    line_of: Callable[[str], str],
    finish: Callable[[Path], None],
) -> None:
    """Compile MLIR into a ``.vmfb`` file. If something fails, also what `finish` does with the new file, nothing is written.

    `line_of` returns the line of the user's program that made an operation, by its names.
    """
    with replacing(path) as new:
        try:
            compile_mlir(mlir, new, target, name=name)
        except IreeError as error:
            if line := line_of(error.location):
                error.add_note(f"Made at {line}")
            raise
        seal(new)
        finish(new)


def iree_text(given: Exportable, target: str) -> str:
    """Return a function as MLIR text, with a description of it.

    Raises
    ------
    TypeError
        If a length is not known.
    NotPortableError
        If IREE has no form of an operation, and nothing stands for it.
    """
    kept = [*given.state, *given.constants]
    check_fixed_lengths([*given.arguments, *[k.input for k in kept]])
    with jax.enable_x64(True), without_source_paths():
        jaxpr = jaxpr_with_constants(given)
        lowered = {MAIN: lower_for_iree(jaxpr, given.name, given.places)}
        if given.state:
            first = constant_jaxpr([k.value for k in given.state])
            lowered[FIRST_STATE] = jax_compat.lower_to_mlir(first, FIRST_STATE, "cpu")
    header = header_of(
        given,
        jaxpr.out_avals,
        state=tuple(stored(k, FIRST_STATE) for k in given.state),
        constants=(),
        constraints=(),
        platforms=(),
        programs={},
        versions=versions_now(IREE="iree-base-compiler"),
        target=target,
    )
    name = re.sub(r"[^\w.-]", "_", given.name).rstrip("_")  # as JAX names modules
    module = pure_module(name, lowered)
    add_description(module, MAIN, ATTRIBUTE, canonical(header.as_json()).decode("ascii"))
    return str(module.operation.get_asm(enable_debug_info=True))


def jaxpr_with_constants(given: Exportable) -> Any:
    """Return the closed Jaxpr of a function of its arguments and state; the constants are part of it.

    That of a graph is assembled. JAX traces a function of its own around one: what makes the keys of predictions.
    """
    values = [k.value for k in given.constants]
    if given.jaxpr is None:
        avals = [x.aval for x in given.arguments] + [k.input.aval for k in given.state]
        return jax.make_jaxpr(lambda *args: tuple(given.fn(*args, *values)))(*avals)
    jaxpr = given.jaxpr()
    b = JaxprBuilder(given.name, passes=(DEAD_CODE,))
    inputs = [b.input(x.aval.shape, x.aval.dtype) for x in [*given.arguments, *[k.input for k in given.state]]]
    return b.build(prims.closed_call(b, jaxpr, [*inputs, *[b.constant(value) for value in values]]))


def lower_for_iree(jaxpr: Any, name: str, places: Mapping[str, str]) -> bytes:
    """Lower a closed Jaxpr by operations that IREE has and computes well; `places` is for errors."""
    try:
        return jax_compat.lower_to_mlir(portable(portable(jaxpr), FOR_IREE), name, "cpu")
    except NotPortableError as error:
        refused = [r._replace(line=line_of_names(r.names, places)) for r in error.refused]
        raise NotPortableError(refused) from None


def check_fixed_lengths(inputs: Sequence[Input]) -> None:
    """Raise a TypeError if a length is a symbol."""
    open_ = [x for x in inputs if has_symbols([x])]
    if open_:
        shapes = "; ".join(f"{x.name}: ({', '.join(map(str, x.aval.shape))})" for x in open_)
        raise TypeError(
            f"A program for IREE has fixed lengths, and these are open: {shapes}. Say them by dims={{{open_[0].name!r}: ...}} with"
            " numbers, or by examples."
        )


def constant_jaxpr(values: Sequence[np.ndarray]) -> Any:
    """Return a Jaxpr without inputs that returns arrays."""
    b = JaxprBuilder(FIRST_STATE)
    return b.build([prims.copy(b, b.constant(value)) for value in values])
