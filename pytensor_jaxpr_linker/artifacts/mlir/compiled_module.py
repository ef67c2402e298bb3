"""Writes a module into a ``.vmfb`` file, by IREE's compiler."""

from __future__ import annotations

import os
from pathlib import Path

from jaxpr_artifact.replacing import replacing
from jaxpr_artifact.seal import seal
from pytensor_jaxpr_linker.artifacts.iree.compiler import IreeError, compile_mlir
from pytensor_jaxpr_linker.artifacts.iree.program import for_iree
from pytensor_jaxpr_linker.artifacts.iree.targets import CompileTarget, flags_of, target_name
from pytensor_jaxpr_linker.artifacts.mlir.mlir_module import MlirModule
from pytensor_jaxpr_linker.artifacts.mlir.parameters import write_parameter_file
from pytensor_jaxpr_linker.artifacts.mlir.source import FunctionSource, ModuleSource
from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.jaxpr.portable.rewrite import NotPortableError


def lower_for_iree(function: FunctionSource) -> bytes:
    """Lower a function by operations that IREE has and computes well."""
    try:
        jaxpr = for_iree(function.jaxpr)
    except NotPortableError as error:
        raise NotPortableError([r._replace(line=line_of(r.names, function)) for r in error.refused]) from None
    return jax_compat.lower_to_mlir(jaxpr, function.name, "cpu")


def line_of(names: str, function: FunctionSource) -> str:
    """Return the line of the user's program that made an operation with these names, or nothing."""
    return next((function.places[name] for name in reversed(names.split("/")) if name in function.places), "")


def write_compiled(
    path: str | os.PathLike,
    source: ModuleSource,
    target: CompileTarget,
    inline_bytes: int | None,
    parameters: str | os.PathLike | None = None,
) -> None:
    """Compile a module, and write its parameters beside it. If something fails, nothing is written."""
    flags_of(target)  # a target that is none costs no time
    mlir = MlirModule(source, lower_for_iree, inline_bytes)
    with replacing(path) as new:
        try:
            compile_mlir(mlir.text_with_description(target_name(target)), new, target, name=source.name)
        except IreeError as error:
            of = [f for f in source.functions if f.name == error.location.partition("/")[0]]
            if line := "".join(line_of(error.location, f) for f in of):
                error.add_note(f"Made at {line}")
            raise
        seal(new)
        if mlir.parameters:
            write_parameter_file(parameters or Path(path).with_suffix(".irpa"), mlir.parameters)
