"""What a module of functions says of itself: a text beside the program, or in it."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from keyword import iskeyword
from typing import Any

import numpy as np

from jaxpr_artifact.header import Argument, Check, Header, Misfit, check_fixed, read_description
from jaxpr_artifact.tree_description import TreeDescription, count_leaves

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

    @property
    def nbytes(self) -> int:
        """The size of its value."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class NamedTree:
    """What a caller gives under one name: an array, or a tree of arrays."""

    name: str
    tree: TreeDescription | None = None


@dataclass(frozen=True)
class StateDescription:
    """State of a module under one name.

    Attributes
    ----------
    name, tree
        What it is called, and the form of its value; no tree is one array.
    globals
        The names of the globals that have its arrays, in their order.
    """

    name: str
    tree: TreeDescription | None
    globals: tuple[str, ...]


@dataclass(frozen=True)
class FunctionDescription:
    """A public function of a module.

    Attributes
    ----------
    name, kind
        Its symbol, and whether it is a "function" of the user's, or a "getter" or "setter" of globals.
    arguments, results
        Name, dtype and shape of each array that it takes and returns. With `checks`, the last result is their code.
    signature
        What a caller gives: the arrays of these trees are the arguments.
    returned
        What a caller gets: the form of the tree of the results.
    reads, writes
        The globals that it reads and writes.
    checks
        What its code stands for: 0 that all is well, 1 the first one. Where it is not 0, globals keep their values.
    """

    name: str
    kind: str
    arguments: tuple[Argument, ...]
    results: tuple[Argument, ...]
    signature: tuple[NamedTree, ...]
    returned: TreeDescription | None
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()

    @property
    def outputs(self) -> tuple[Argument, ...]:
        """The results without the code of the checks."""
        return self.results[: -1 if self.checks else None]


#: The name of the result that tells which check failed.
CHECK_CODE = Argument("check", "int32", ())


def function_description(header: Header) -> FunctionDescription:
    """Return the function of a file as one of a module: its state is what it reads, and what is updated is what it writes."""
    outputs = tuple([str(i) for i in range(len(header.outputs))])
    return FunctionDescription(
        header.name,
        "function",
        header.arguments,
        (*header.outputs, CHECK_CODE) if header.checks else header.outputs,
        tuple([NamedTree(a.name) for a in header.arguments]),
        None if header.is_bare else TreeDescription("list", "", outputs, (None,) * len(outputs)),
        tuple([s.name for s in header.state]),
        tuple([s.name for s in header.updated]),
        header.checks,
    )


@dataclass(frozen=True)
class ModuleDescription:
    """A module of functions that share globals.

    Attributes
    ----------
    name, functions, globals, state
        What it is called, and what it has. State is what callers know globals by.
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
    state: tuple[StateDescription, ...]
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
    known = {g.name for g in found.globals}
    for state in found.state:
        if not known.issuperset(state.globals) or count_leaves(state.tree) != len(state.globals):
            raise Misfit(f"the state {state.name!r:.80} has not the globals that it says")
    for function in found.functions:
        check_function(function)


def check_function(function: FunctionDescription) -> None:
    """Raise a `Misfit` if the parts of the description of a function do not fit together."""
    check_fixed((*function.arguments, *function.results))
    if function.checks and (not function.results or function.results[-1].dtype != "int32"):
        raise Misfit(f"{function.name} does not return the code of its checks")
    names = [given.name for given in function.signature]
    if len(set(names)) != len(names) or not all(name.isidentifier() and not iskeyword(name) for name in names):
        raise Misfit(f"{function.name} has arguments without a name each")
    if sum(count_leaves(given.tree) for given in function.signature) != len(function.arguments):
        raise Misfit(f"{function.name} takes other arrays than its trees have")
    if count_leaves(function.returned) != len(function.results) - bool(function.checks):
        raise Misfit(f"{function.name} returns other arrays than its tree has")
