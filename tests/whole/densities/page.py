"""Write docs/density-accuracy.md from `errors.json`: ``python tests/whole/densities/page.py [FOLDER]``.

With a folder of results, of which `found.py` writes one for each engine and distribution, `errors.json` is written first.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from densities import found, store
from densities.departures import KNOWN, departure
from densities.measure import Found, Reference, model_of, row_errors, truths
from densities.row import GRID, SINGLE_GRID, Row
from densities.rows import ROWS

type Errors = tuple[np.ndarray, np.ndarray]

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
ERRORS, PAGE = HERE / "errors.json", ROOT / "docs" / "density-accuracy.md"
#: From this error on a number is called wrong: less than half of the digits of the largest term are right.
WRONG = {"float64": 2.0**26, "float32": 2.0**12}
KINDS = ("density", "gradient")
PACKAGES = ("pymc", "pytensor", "jax", "numba", "nutpie", "mpmath")


def grid_of(column: str) -> list[float]:
    return GRID if found.COLUMNS[column][1] == "float64" else SINGLE_GRID


def errors_of(rows: list[Row], references: dict[str, Reference], column: str, results: list[Found]) -> list[Errors]:
    """Return for each row the errors of the density and of the gradient at each point."""
    result_of = dict(zip((row.id for row in rows), results, strict=True))
    return [
        errors
        for some in found.chunks(rows)
        for errors in errors_together(some, references, column, [result_of[row.id] for row in some])
    ]


def errors_together(
    rows: list[Row], references: dict[str, Reference], column: str, results: list[Found]
) -> list[Errors]:
    """Return the errors of rows that are one model."""
    _, dtype, vector = found.COLUMNS[column]
    with found.precision(dtype):
        _, parts = model_of(rows, vector)
    right = truths(parts, [references[row.id] for row in rows], grid_of(column))
    here = [part._replace(start=0) for part in parts]
    return [row_errors(part, truth, x, dtype) for part, truth, x in zip(here, right, results, strict=True)]


def summary(errors: Errors, column: str) -> dict[str, Any]:
    """Return the largest error of what is right, and where it is wrong."""
    limit, entry = WRONG[found.COLUMNS[column][1]], {}
    for kind, off in zip(KINDS, errors, strict=True):
        wrong = off > limit
        right = off[~wrong & ~np.isnan(off)]
        entry[kind] = round(float(right.max()), 1) if len(right) else None
        entry[f"{kind} is wrong at"] = [u for u, bad in zip(grid_of(column), wrong, strict=True) if bad]
    return entry


def measured(folder: Path, references: dict[str, Reference]) -> dict[str, Any]:
    """Return the summaries by column and row."""
    columns: dict[str, Any] = {}
    for column in found.COLUMNS:
        entries = columns.setdefault(column, {})
        for distribution, rows in found.DISTRIBUTIONS.items():
            path = found.file_of(folder, column, distribution)
            if path.exists():
                for row, errors in zip(rows, errors_of(rows, references, column, found.load(path)), strict=True):
                    entries[row.id] = summary(errors, column)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    about = {"date": datetime.now(UTC).date().isoformat(), "commit": commit.stdout.strip()}
    return {"about": about | {name: version(name) for name in PACKAGES}, "columns": columns}


def number(x: float) -> str:
    return f"{x:.0f}" if x >= 10 else f"{x:.1f}"


def cell(entries: Sequence[dict[str, Any]], kind: str) -> str:
    """Return the worst error, and at how many points all is lost."""
    if not entries:
        return ""
    worst = [x[kind] for x in entries if x[kind] is not None]
    wrong = sum(len(x[f"{kind} is wrong at"]) for x in entries)
    return " ".join([number(max(worst))] * bool(worst) + [f"**({wrong})**"] * bool(wrong)) or "–"


def table(columns: dict[str, Any]) -> list[str]:
    names = list(found.COLUMNS)
    lines = [
        f"| distribution | rows | {' | '.join(f'{name}: density | gradient' for name in names)} |",
        "|---|---|" + "---|---|" * len(names),
    ]
    for distribution, rows in found.DISTRIBUTIONS.items():
        ids = [row.id for row in rows]
        cells = [cell([columns[name][i] for i in ids if i in columns[name]], kind) for name in names for kind in KINDS]
        lines.append(f"| {distribution} | {len(ids)} | {' | '.join(cells)} |")
    return lines


def values(wrong: Sequence[float]) -> str:
    return ", ".join(f"{u:g}" for u in sorted(wrong))


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


def wrong_at(entry: dict[str, Any]) -> list[float]:
    return sorted({u for kind in KINDS for u in entry[f"{kind} is wrong at"]})


def known_departures(ours: dict[str, Any]) -> list[str]:
    """Return our wrong points by their reasons."""
    lines = []
    for known in KNOWN:
        named = []
        for row in ROWS:
            at = [u for u in wrong_at(ours[row.id]) if departure(row, u) is known] if row.id in ours else []
            if at:
                named.append(broken(f"  - `{row.id}`, at {values(at)}", "    "))
        if named:
            lines += [broken(f"- {known.reason}", "  "), *named]
    return lines


def broken(text: str, indent: str = "") -> str:
    """Break a text into lines of at most 120 columns, but not inside code."""
    whole = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(whole, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def others_wrong(columns: dict[str, Any]) -> list[str]:
    """Return the rows in which another engine is wrong where ours are right."""
    lines = ["| row | `compile_dlogp` is wrong at | nutpie is wrong at |", "|---|---|---|"]
    for row in ROWS:
        ours = columns["ours"].get(row.id)
        if ours is None:
            continue
        here = set(wrong_at(ours))
        theirs = [
            [u for u in wrong_at(columns[name][row.id]) if u not in here] if row.id in columns[name] else []
            for name in ("compile_dlogp", "nutpie")
        ]
        if any(theirs):
            lines.append(f"| `{escaped(row.id)}` | {' | '.join(map(values, theirs))} |")
    return lines


def text(data: dict[str, Any]) -> str:
    """Return the page."""
    columns, about = data["columns"], data["about"]
    versions = ", ".join(f"{name} {about[name]}" for name in PACKAGES)
    introduction = (HERE / "introduction.md").read_text(encoding="utf-8").rstrip()
    parts = [
        introduction,
        broken(f"Measured on {about['date']} at commit {about['commit']}, with {versions}."),
        "## Distributions\n\n" + "\n".join(table(columns)),
        "## Known departures\n\nHere ours are wrong though the truth is finite. The tests allow these points and no others.\n\n"
        + "\n".join(known_departures(columns["ours"])),
        "## Where the others are wrong and ours are right\n\n" + "\n".join(others_wrong(columns)),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    folder = parser.parse_args().folder
    if folder:
        data = measured(folder, store.load())
        ERRORS.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(text(json.loads(ERRORS.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
