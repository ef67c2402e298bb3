"""What an artifact was made of, as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jaxpr_artifact.arguments import spelled
from jaxpr_artifact.container import FORMAT_VERSION
from jaxpr_artifact.header import Check, Header, Program, Stored
from jaxpr_artifact.module_header import FunctionDescription, GlobalDescription, ModuleDescription, StateDescription
from jaxpr_artifact.tree_description import tree_like
from jaxpr_artifact.trees import leaves_of


def described(header: Header, sizes: Mapping[str, int] = MappingProxyType({})) -> str:
    """Return a table of what a header says; `sizes` are the sizes in bytes of the members, of which a file of IREE has none."""
    by_iree, by_jax = f"a function compiled by IREE for {header.target}", f"an artifact of format {FORMAT_VERSION}"
    return titled(f"{header.name}, {by_iree if header.target else by_jax}", header.note, sections(header, sizes))


def titled(first: str, note: str, found: Mapping[str, Sequence[str]]) -> str:
    """Return a first line, a note, and the sections that are not empty, with their titles."""
    lines = [first, *([f"  {note}"] if note else [])]
    for title, texts in found.items():
        lines += [f"  {title if i == 0 else '':<12}{text}" for i, text in enumerate(texts)]
    return "\n".join(lines)


def sections(header: Header, sizes: Mapping[str, int]) -> dict[str, list[str]]:
    """Return what there is to say, by titles."""

    def size_of(s: Stored) -> list[str]:
        return [nbytes(sizes[s.member])] if s.member in sizes else []

    return {
        "made with": [version_text(header.versions)],
        "runs on": [", ".join(header.platforms)] if header.platforms else [],
        "arguments": columns([(a.name, array(a)) for a in header.arguments]),
        "state": columns(
            [(s.name, array(s), *size_of(s), "" if s.output is None else "updated") for s in header.state]
        ),
        "constants": columns([(s.name, array(s), *size_of(s)) for s in header.constants]),
        "fixed": columns([(f.name, f.value) for f in header.fixed]),
        "outputs": columns([(o.name, array(o)) for o in header.outputs]),
        "checks": check_texts(header.checks),
        "symbols": list(header.constraints),
        "programs": columns([program(name, p, sizes) for name, p in sorted(header.programs.items(), reverse=True)]),
    }


def described_module(description: ModuleDescription) -> str:
    """Return a table of what a module is made of."""
    known = {g.name: g for g in description.globals}
    beside = [(str(g.parameter), array(g), nbytes(g.nbytes)) for g in known.values() if g.parameter]
    found = {
        "made with": [version_text(description.versions)],
        "functions": columns([row for f in description.functions for row in function_rows(f)]),
        "state": columns([row for s in description.state for row in state_rows(s, known)]),
        "parameters": columns(beside),
        "checks": check_texts([check for f in description.functions for check in f.checks]),
    }
    return titled(f"{description.name}, a module compiled by IREE for {description.target}", "", found)


def function_rows(function: FunctionDescription) -> Iterator[tuple[str, ...]]:
    """Yield a row for each array that a function takes or returns."""
    first = f"{function.name}({', '.join(given.name for given in function.signature)})"
    rows = [("takes", a) for a in function.arguments]
    rows += [("returns", r) for r in function.outputs]
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
    """Return what run-time checks raise, each once."""
    return list(dict.fromkeys(f"{check.type}: {check.message}" for check in checks))


def program(name: str, given: Program, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the row of a program: its size, and how often it can be differentiated."""
    order, total, current = -1, 0, given
    while current is not None:
        order, total = order + 1, total + sizes[current.member]
        current = current.vjp  # type: ignore[assignment]
    gradients = f"with gradients of order {order}" if order else "without gradients"
    return name, nbytes(total), gradients


def array(given: Any) -> str:
    """Return dtype and shape."""
    shape = given.shape if getattr(given, "symbolic", None) is None else given.symbolic
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
