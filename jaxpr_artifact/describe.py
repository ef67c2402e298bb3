"""What an artifact was made of, as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxpr_artifact.arguments import spelled
from jaxpr_artifact.container import FORMAT_VERSION
from jaxpr_artifact.header import Check, Header, Program


def described(header: Header, sizes: Mapping[str, int]) -> str:
    """Return a table of what a header says; `sizes` are those of the members in bytes."""
    return titled(f"{header.name}, an artifact of format {FORMAT_VERSION}", header.note, sections(header, sizes))


def titled(first: str, note: str, found: Mapping[str, Sequence[str]]) -> str:
    """Return a first line, a note, and the sections that are not empty, with their titles."""
    lines = [first, *([f"  {note}"] if note else [])]
    for title, texts in found.items():
        lines += [f"  {title if i == 0 else '':<12}{text}" for i, text in enumerate(texts)]
    return "\n".join(lines)


def sections(header: Header, sizes: Mapping[str, int]) -> dict[str, list[str]]:
    """Return what there is to say, by titles."""
    updated = {s.name for s in header.state if s.output is not None}
    return {
        "made with": [version_text(header.versions)],
        "runs on": [", ".join(header.platforms)],
        "arguments": columns([(a.name, array(a)) for a in header.arguments]),
        "state": columns(
            [(s.name, array(s), nbytes(sizes[s.member]), "updated" if s.name in updated else "") for s in header.state]
        ),
        "constants": columns([(s.name, array(s), nbytes(sizes[s.member])) for s in header.constants]),
        "fixed": columns([(f.name, f.value) for f in header.fixed]),
        "outputs": columns([(o.name, array(o)) for o in header.outputs]),
        "checks": check_texts(header.checks),
        "symbols": list(header.constraints),
        "programs": columns([program(name, p, sizes) for name, p in sorted(header.programs.items(), reverse=True)]),
    }


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
