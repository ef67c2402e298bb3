"""Errors of the special functions beside mpmath; it writes docs/special-functions.md, and the points for the tests, in six minutes.

With names it prints the rows of these functions alone, and writes nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
import special_reference
from mpmath import mp
from rendering import text
from special_rows import ROWS, Row, errors, number

import pytensor_jaxpr_linker  # noqa: F401  registers the mode JAXPR

ROOT = Path(__file__).parents[1]


class Measured(NamedTuple):
    """A row in one precision: arguments, correctly rounded results, and errors of both modes in units of the last place."""

    arguments: list[np.ndarray]
    want: np.ndarray
    scale: np.ndarray
    ours: np.ndarray
    theirs: np.ndarray


def evaluate(row: Row, arguments: list[np.ndarray], mode: str) -> np.ndarray:
    inputs = [pt.vector(dtype=x.dtype.name) for x in arguments]
    with np.errstate(all="ignore"):
        return np.asarray(pytensor.function(inputs, row.function(*inputs), mode=mode)(*arguments))


def reference(name: str, arguments: list[np.ndarray]) -> np.ndarray:
    """Return correctly rounded values, NaN at poles and where the reference does not converge."""
    function = getattr(special_reference, name)

    def value(*point):
        try:
            return float(function(*point))
        except (ArithmeticError, ValueError):
            return np.nan

    return np.array([value(*point) for point in zip(*(x.tolist() for x in arguments), strict=True)])


def is_normal(x: np.ndarray, dtype: str) -> np.ndarray:
    limits = np.finfo(dtype)
    return (x == 0) | (np.abs(x) >= limits.tiny) & (np.abs(x) <= limits.max)


def to_single(x: np.ndarray) -> np.ndarray:
    return x.astype("float32") if x.dtype.kind == "f" else x


def measure(row: Row) -> tuple[Measured, Measured]:
    """Measure a row in double and in single precision; single precision has every third point, and double has those, too."""
    rounded = np.all([is_normal(x[::3], "float32") for x in row.points], axis=0)
    singles = [to_single(x[::3][rounded]).astype(x.dtype) for x in row.points]
    arguments = [np.concatenate(pair) for pair in zip(row.points, singles, strict=True)]
    want = reference(row.reference, arguments)
    scale = reference(row.scale, arguments) if row.scale else np.zeros_like(want)
    split, both = len(row.points[0]), []
    for start, dtype in ((0, "float64"), (split, "float32")):
        normal = is_normal(want, dtype) & (np.arange(len(want)) >= start)
        xs = [x[normal] if dtype == "float64" else to_single(x[normal]) for x in arguments]
        results = [errors(evaluate(row, xs, mode), want[normal], scale[normal]) for mode in ("JAXPR", "FAST_COMPILE")]
        both.append(Measured(xs, want[normal], scale[normal], *results))
    return both[0], both[1]


def hard_points(measured: Measured, count: int) -> np.ndarray:
    """Return the places of the first points, of the largest errors of both modes, and of points spread evenly over the sample."""
    worst = [np.argsort(-x, kind="stable")[: count // 3] for x in (measured.ours, measured.theirs)]
    spread = np.linspace(0, len(measured.want) - 1, count - 2 * (count // 3)).astype(int)
    return np.unique(np.concatenate([[0, 1, 2], *worst, spread]))


def values_of(row: Row, two: Sequence[Measured]) -> dict[str, np.ndarray]:
    """Return what the tests need of a row: arguments, results and scales of the hard points."""
    values = {}
    for measured, dtype, count in zip(two, ("float64", "float32"), (180, 90), strict=True):
        points = hard_points(measured, count)
        columns = {
            **{str(i): x for i, x in enumerate(measured.arguments)},
            "want": measured.want,
            "scale": measured.scale,
        }
        values |= {f"{row.id}/{dtype}/{name}": column[points] for name, column in columns.items()}
    return values


def place(measured: Measured, which: np.ndarray) -> str:
    return ", ".join(f"{x[np.argmax(which)]!r}" for x in (column.tolist() for column in measured.arguments))


def table(rows: Sequence[tuple[Row, Sequence[Measured]]]) -> list[str]:
    lines = [
        "| function | arguments | points | bound | worst | at | SciPy's worst | at | float32: bound | worst | SciPy's |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row, (double, single) in rows:
        cells = [f"`{row.name}`" + " ¹" * bool(row.scale), row.domain, f"{len(double.want)} + {len(single.want)}"]
        cells += [number(row.bounds[0]), number(double.ours.max()), place(double, double.ours)]
        cells += [number(double.theirs.max()), place(double, double.theirs)]
        cells += [number(x, 23) for x in (row.bounds[1], single.ours.max(), single.theirs.max())]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measurement."""
    parser.add_argument("names", nargs="*", help="functions like betainc or owens_t")


def run(args: argparse.Namespace) -> dict:
    """Measure; return the rows whose errors are above their bounds."""
    mp.dps = special_reference.DIGITS
    measured = []
    for row in ROWS:
        if not args.names or row.name in args.names:
            started = time.perf_counter()
            measured.append((row, measure(row)))
            print(f"{row.id}: {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
    if args.names:
        print("\n".join(table(measured)))
    else:
        (ROOT / "docs" / "special-functions.md").write_text("\n".join([text("special"), *table(measured), ""]))
        values = {name: array for pair in measured for name, array in values_of(*pair).items()}
        np.savez_compressed(ROOT / "tests" / "special_values.npz", **values)
    above = {
        f"{row.id}, {dtype}": {"failed": f"{two[i].ours.max():.3g} ulp, the bound is {row.bounds[i]}"}
        for row, two in measured
        for i, dtype in enumerate(("float64", "float32"))
        if two[i].ours.max() > row.bounds[i]
    }
    for row, found in above.items():
        print(f"{row}: {found['failed']}", file=sys.stderr)
    return above
