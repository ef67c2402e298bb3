"""What a module of functions says of itself: a text beside the program, or in it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

from jaxpr_artifact.description import check_fixed, read_description
from jaxpr_artifact.header import Argument, Check, Misfit

#: The attribute of a compiled module's first function that holds the description.
MODULE_ATTRIBUTE = "pytensor_jaxpr_linker.module"


@dataclass(frozen=True)
class GlobalDescription:
    """A global of a module.

    Attributes
    ----------
    name, dtype, shape
        Its symbol and its type.
    is_key
        Whether it is a random key, ``uint32[2]``.
    is_mutable
        Whether functions of the module may write it.
    parameter
        The name of its first value in the files of parameters, or None if the module has the value.
    sha256
        The checksum of that value's bytes in C order, or None without a parameter.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    is_key: bool
    is_mutable: bool
    parameter: str | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class FunctionDescription:
    """A public function of a module.

    Attributes
    ----------
    name, kind
        Its symbol, and whether it is a "function" of the user's, or a "getter" or "setter" of globals.
    arguments, results
        Name, dtype and shape of each array that it takes and returns. With `checks`, the last result is their code.
    is_bare
        Whether a caller gets its one result by itself, not in a list.
    reads, writes
        The globals that it reads and writes.
    checks
        What its code stands for: 0 that all is well, 1 the first one. Where it is not 0, globals keep their values.
    """

    name: str
    kind: str
    arguments: tuple[Argument, ...]
    results: tuple[Argument, ...]
    is_bare: bool = False
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True)
class ModuleDescription:
    """A module of functions that share globals.

    Attributes
    ----------
    name, functions, globals
        What it is called, and what it has.
    scope
        What a runtime calls the file of its parameters.
    versions
        Of the packages that it was made with.
    target
        What it was compiled for, or nothing.
    """

    name: str
    functions: tuple[FunctionDescription, ...]
    globals: tuple[GlobalDescription, ...]
    scope: str
    versions: dict[str, str]
    target: str = ""

    def as_text(self, indent: int | None = None) -> str:
        """Return the description as JSON."""
        return json.dumps(asdict(self), indent=indent)


def module_description_of(path: str | os.PathLike, text: Any) -> ModuleDescription:
    """Return the description that a text spells.

    Raises
    ------
    ArtifactError
        If there is none, or its parts do not fit.
    """
    remedy = "Save it again, by `pytensor_jaxpr_linker.Module.save`."
    return read_description(ModuleDescription, path, text, "which functions it has", remedy, check_module)


def check_module(found: ModuleDescription) -> None:
    """Raise a `Misfit` if the parts of a description do not fit together."""
    for g in found.globals:
        check_fixed([Argument(g.name, g.dtype, g.shape)])
        if (g.parameter is None) != (g.sha256 is None):
            raise Misfit(f"{g.name} has not both a parameter and its checksum")
    for function in found.functions:
        check_fixed((*function.arguments, *function.results))
        if function.checks and (not function.results or function.results[-1].dtype != "int32"):
            raise Misfit(f"{function.name} does not return the code of its checks")
