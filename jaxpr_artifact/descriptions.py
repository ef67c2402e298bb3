"""The description of a module, a JSON text in the program or in a file of its own, and text for ``print``."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from keyword import iskeyword
from types import MappingProxyType
from typing import Any

import numpy as np

from jaxpr_artifact.files import FORMAT_VERSION
from jaxpr_artifact.header import Argument, Check, Header, Misfit, Program, Stored, check_fixed, read_description
from jaxpr_artifact.state import spelled
from jaxpr_artifact.trees import TreeDescription, count_leaves, leaves_of, tree_like

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
        The name of its first value in the files of parameters, or None if the module contains the value.
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
    """An argument: an array, or a tree of arrays."""

    name: str
    tree: TreeDescription | None = None


@dataclass(frozen=True)
class StateDescription:
    """State of a module under one name.

    Attributes
    ----------
    name, tree
        Its name, and the form of its value; None is one array.
    globals
        The names of the globals that hold its arrays, in order.
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
        The arguments of a call: the arrays of these trees are the arguments of the program.
    returned
        The form of the tree that a call returns.
    reads, writes
        The globals that it reads and writes.
    checks
        The meaning of their code: 0 is success, 1 the first check. If it is not 0, globals keep their values.
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


#: The result that says which check failed.
CHECK_CODE = Argument("check", "int32", ())


def function_description(header: Header) -> FunctionDescription:
    """Return the function of a file as one of a module. It reads its state, and writes the updated part of that."""
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
        Its name and its parts. Callers know globals as state.
    scope
        A runtime's name for the file of its parameters.
    versions
        Of the packages that it was made with.
    target
        The target that it was compiled for, or empty.
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
    """Return the description that a text spells, or raise an ArtifactError."""
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


def described(header: Header, sizes: Mapping[str, int] = MappingProxyType({})) -> str:
    """Return a header as a table. `sizes` are the sizes in bytes of the members; a file of IREE has no members."""

    def kept(s: Stored, *more: str) -> tuple[str, ...]:
        return (s.name, array(s), *([nbytes(sizes[s.member])] if s.member in sizes else []), *more)

    found = {
        "made with": [version_text(header.versions)],
        "runs on": [", ".join(header.platforms)] if header.platforms else [],
        "arguments": columns([(a.name, array(a)) for a in header.arguments]),
        "state": columns([kept(s, "" if s.output is None else "updated") for s in header.state]),
        "constants": columns([kept(s) for s in header.constants]),
        "fixed": columns([(f.name, f.value) for f in header.fixed]),
        "outputs": columns([(o.name, array(o)) for o in header.outputs]),
        "checks": check_texts(header.checks),
        "symbols": list(header.constraints),
        "programs": columns([program(name, p, sizes) for name, p in sorted(header.programs.items(), reverse=True)]),
    }
    by_iree, by_jax = f"a function compiled by IREE for {header.target}", f"an artifact of format {FORMAT_VERSION}"
    return titled(f"{header.name}, {by_iree if header.target else by_jax}", header.note, found)


def titled(first: str, note: str, found: Mapping[str, Sequence[str]]) -> str:
    """Return a first line, a note, and the nonempty sections with their titles."""
    lines = [first, f"  {note}"] if note else [first]
    for title, texts in found.items():
        lines += [f"  {title if i == 0 else '':<12}{text}" for i, text in enumerate(texts)]
    return "\n".join(lines)


def described_module(description: ModuleDescription) -> str:
    """Return the description of a module as a table."""
    known = {g.name: g for g in description.globals}
    found = {
        "made with": [version_text(description.versions)],
        "functions": columns([row for f in description.functions for row in function_rows(f)]),
        "state": columns([row for s in description.state for row in state_rows(s, known)]),
        "parameters": columns([(str(g.parameter), array(g), nbytes(g.nbytes)) for g in known.values() if g.parameter]),
        "checks": check_texts([check for f in description.functions for check in f.checks]),
    }
    return titled(f"{description.name}, a module compiled by IREE for {description.target}", "", found)


def function_rows(function: FunctionDescription) -> Iterator[tuple[str, ...]]:
    """Yield a row for each array that a function takes or returns."""
    first = f"{function.name}({', '.join(given.name for given in function.signature)})"
    rows = [*(("takes", a) for a in function.arguments), *(("returns", r) for r in function.outputs)]
    if not rows:
        yield first, "", "", ""
    for i, (verb, a) in enumerate(rows):
        yield "" if i else first, verb, a.name, array(a)


def state_rows(state: StateDescription, known: Mapping[str, GlobalDescription]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each array of state. The row of an alias names the global."""
    for place, name in leaves_of(tree_like(state.tree, iter(state.globals)), state.name):
        alias = "" if place == name else f" = {name}"
        yield f"{place}{alias}", array(known[name]), "" if known[name].is_mutable else "constant"


def version_text(versions: Mapping[str, str]) -> str:
    """Return the versions of packages in a line."""
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


def check_texts(checks: Iterable[Check]) -> list[str]:
    """Return the exceptions of run-time checks, each once."""
    return list(dict.fromkeys(f"{check.type}: {check.message}" for check in checks))


def program(name: str, given: Program, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the row of a program: its size, and how often it can be differentiated."""
    found = given.with_derivatives
    gradients = f"with gradients of order {len(found) - 1}" if given.vjp else "without gradients"
    return name, nbytes(sum(sizes[p.member] for p in found)), gradients


def array(given: Any) -> str:
    """Return dtype and shape."""
    shape = given.open_shape if isinstance(given, Stored) else given.shape
    return "random key" if given.is_key else f"{given.dtype} {spelled(shape)}"


def nbytes(size: int) -> str:
    """Return a size in words."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
