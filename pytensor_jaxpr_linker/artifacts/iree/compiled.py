"""Writes a function into a ``.vmfb`` file."""

from __future__ import annotations

import os

from jaxpr_artifact import IreeFunction, load_iree
from jaxpr_artifact.replacing import replacing
from jaxpr_artifact.seal import seal
from pytensor_jaxpr_linker.artifacts.iree.compiler import IreeError, compile_mlir
from pytensor_jaxpr_linker.artifacts.iree.program import iree_text, user_line_of
from pytensor_jaxpr_linker.artifacts.iree.targets import CompileTarget, flags_of, target_name
from pytensor_jaxpr_linker.artifacts.writing import Exportable, check_loads


def write_iree(path: str | os.PathLike, given: Exportable, target: CompileTarget) -> IreeFunction | None:
    """Compile a function into a ``.vmfb`` file and return what is in it, or None if it is for another machine."""
    flags_of(target)  # a target that is none costs no time
    try:
        with replacing(path) as new:
            compile_mlir(iree_text(given, target_name(target)), new, target, name=given.name)
            seal(new)
            if target == "host":
                check_loads(path, new, load_iree)
    except IreeError as error:
        if line := user_line_of(error.location, given):
            error.add_note(f"Made at {line}")
        raise
    return load_iree(path) if target == "host" else None
