"""The file of parameters beside a module that IREE compiled: found, checked, and mapped into memory."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from jaxpr_artifact.errors import ArtifactError
from jaxpr_artifact.iree_program import IreeProgram, first_line
from jaxpr_artifact.module_header import GlobalDescription, ModuleDescription

#: Kinds of files of parameters beside a module, the first one that is there.
PARAMETER_FILES = (".irpa", ".safetensors")


def parameter_modules(
    program: IreeProgram, description: ModuleDescription, given: str | os.PathLike | None, verify: bool
) -> list[Any]:
    """Return the module by which IREE reads the file of parameters, which it maps into memory; none for a program without parameters.

    Raises
    ------
    ArtifactError
        If there is no such file, it lacks an array, or `verify` finds other values in it than the program was saved with.
    """
    wanted = [g for g in description.globals if g.parameter]
    if not wanted:
        return []
    file = parameter_file(program.path, given)
    index = program.runtime.ParameterIndex()
    try:
        index.load(os.fspath(file))
    except Exception as error:  # the runtime raises several types
        what = f"IREE can't read the parameters: {first_line(error)}."
        raise ArtifactError(file, what, "Save the module again.") from error
    entries = dict(index.items())
    for g in wanted:
        check_parameter(file, program.path, g, entries.get(str(g.parameter)), verify)
    provider = index.create_provider(scope=description.scope)
    return [program.runtime.create_io_parameters_module(program.config.vm_instance, provider)]


def parameter_file(path: str, given: str | os.PathLike | None) -> Path:
    """Return the file of a module's parameters: the one that is given, or the one beside the module."""
    near = [Path(path).with_suffix(kind) for kind in PARAMETER_FILES]
    file = Path(given) if given is not None else next((p for p in near if p.exists()), near[0])
    if not file.exists():
        remedy = "Copy it to the module, or say where it is: load_iree_module(path, parameters=...)."
        raise ArtifactError(path, f"Its parameters are in another file, and {file} is not there.", remedy)
    return file


def check_parameter(file: Path, path: str, known: GlobalDescription, entry: Any, verify: bool) -> None:
    """Raise an ArtifactError unless an entry of a file, or None, is the parameter that a module at `path` was saved with."""
    view = entry.file_view if entry is not None and entry.is_file else None  # mapped, not copied
    if view is None or len(view) != known.nbytes:
        what = f"It has not the parameter {known.parameter} of {path}."
        raise ArtifactError(file, what, "Use the files of one module.")
    if verify and hashlib.sha256(view).hexdigest() != known.sha256:
        what = (
            f"The parameter {known.parameter} is not the one that {path} was saved with: its checksum does not fit."
            " The file is damaged, or from another save."
        )
        raise ArtifactError(file, what, "Copy both files again, or save the module again.")
