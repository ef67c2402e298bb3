"""Measure the special functions beside mpmath; write docs/special-functions.md, and the points for the tests."""

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
from special_rows import ROWS, Row, errors, number

import pytensor_jaxpr_linker  # noqa: F401  registers the mode JAXPR

ROOT = Path(__file__).parents[1]
INTRODUCTION = """# Special functions: how far off they are

How far the results of mode JAXPR and of mode FAST_COMPILE, which calls SciPy, are from the correctly rounded ones. `python
benchmarks/special_functions.py` measures them beside mpmath at fixed arguments, in under ten minutes on one core, and writes this page.
Change it there. `tests/emit/test_special_bounds.py` checks the bounds at the hardest of these points.

- Errors are in units in the last place (ulp) of the result in its own precision: 2.2e-16 to 1.1e-16 of it in float64, 1.2e-7 to 6e-8 in
  float32. 4.5e9 ulp of float64 are an error of 1e-6. The reference is rounded to float64 before, so one ulp may be half of one.
- The bound is what the tests assert. It holds for the arguments of the row, not only at these points as far as we know, but it
  is measured and not proved.
- ¹ Such a function has zeros between which it oscillates, or is a difference of two terms. There the unit is one in the last place of its amplitude (`jv`,
  `j0`, `j1`) or of the larger term, wherever that is larger than the result.
- Results far out in a tail are ``exp`` of a large exponent, whose own rounding counts: 1e-200 is ``exp(-460)``, and half an ulp of 460 is 230 ulp
  of the result. So bounds of tails are larger, and so are those of distributions whose argument is many standard deviations from zero:
  half an ulp of an argument changes such a result by as much.
- "All digits" is an error of 2^52 ulp or more, of 2^23 in float32: no digit of the result is right, or it is not finite. As a bound, it is none:
  the derivatives by parameters are PyTensor's own series, in both modes, and the table says where they fail.
- Results and arguments that are subnormal count as zero, as XLA has them, and are not in the table.
- In float32, functions of a bound of 0.5 are computed in float64 and rounded. The second number of points is theirs.
- Not in the table: arguments at which a function is infinite, NaN or a limit. There results are those of SciPy (`tests/emit/test_special.py`).
"""


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="print the rows of these functions alone, and write nothing")
    names = parser.parse_args().names
    mp.dps = special_reference.DIGITS
    measured = []
    for row in ROWS:
        if not names or row.name in names:
            started = time.perf_counter()
            measured.append((row, measure(row)))
            print(f"{row.id}: {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
    if names:
        print("\n".join(table(measured)))
    else:
        (ROOT / "docs" / "special-functions.md").write_text("\n".join([INTRODUCTION, *table(measured), ""]))
        values = {name: array for pair in measured for name, array in values_of(*pair).items()}
        np.savez_compressed(ROOT / "tests" / "special_values.npz", **values)
    above = [
        f"{row.id}, {dtype}: {worst:.3g} ulp, the bound is {bound}"
        for row, two in measured
        for dtype, worst, bound in zip(("float64", "float32"), (m.ours.max() for m in two), row.bounds, strict=True)
        if worst > bound
    ]
    print("\n".join(above), file=sys.stderr)
    return bool(above)


if __name__ == "__main__":
    sys.exit(main())
