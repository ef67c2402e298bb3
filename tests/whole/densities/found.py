"""Evaluate log densities by all engines, and keep what they give: ``python tests/whole/densities/found.py [ENGINE ...]``.

One file for each engine in the folder `found`, written after each distribution: a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import batched
from pathlib import Path

import numpy as np
import pytensor
from pytensor.scalar.basic import autocast_float, autocast_int

sys.path.insert(0, str(Path(__file__).parents[1]))

from densities import engines
from densities.measure import Found, model_of, positions
from densities.row import GRID, SINGLE_GRID, Row
from densities.rows import ROWS

#: The columns of the table: engine, precision, and whether rows of one number are vectors of two.
COLUMNS = {
    "ours": (engines.ours, "float64", False),
    "ours, vectors": (engines.ours, "float64", True),
    "ours, float32": (engines.ours, "float32", False),
    "compile_dlogp": (engines.pymc, "float64", False),
    "nutpie": (engines.nutpie, "float64", False),
}
#: How many rows become one model, at most.
MOST_ROWS = 17
DISTRIBUTIONS: dict[str, list[Row]] = {}
for row in ROWS:
    DISTRIBUTIONS.setdefault(row.distribution, []).append(row)


@contextmanager
def precision(dtype: str) -> Iterator[None]:
    """Work in one precision: by default ``pt.sqrt(2.0)`` is a number of float32, because 2.0 is, and it is in many densities of PyMC."""
    before = autocast_float.dtypes, autocast_int.dtypes
    with pytensor.config.change_flags(floatX=dtype):
        if dtype == "float64":
            autocast_float.dtypes, autocast_int.dtypes = ("float64",), ("int64",)
        try:
            yield
        finally:
            autocast_float.dtypes, autocast_int.dtypes = before


def chunks(rows: list[Row]) -> list[list[Row]]:
    """Return the rows of one model each: XLA takes minutes for too many at once."""
    return [list(some) for some in batched(rows, MOST_ROWS, strict=False)]


def evaluate(rows: list[Row], column: str) -> list[Found]:
    """Return what an engine gives for each row at its grid."""
    return [found for some in chunks(rows) for found in evaluate_together(some, column)]


def evaluate_together(rows: list[Row], column: str) -> list[Found]:
    engine, dtype, vector = COLUMNS[column]
    grid = GRID if dtype == "float64" else SINGLE_GRID
    with precision(dtype), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, parts = model_of(rows, vector)
        flat = positions(parts, grid)
        found = engine(model, flat)
    return [Found(d, g[:, p.start : p.start + len(p.point)]) for d, g, p in zip(*found, parts, strict=True)]


def file_of(folder: Path, column: str, distribution: str) -> Path:
    name = "".join(c if c.isalnum() else "_" for c in f"{column}__{distribution}")
    return folder / f"{name}.npz"


def save(path: Path, found: list[Found]) -> None:
    columns = {f"{i}/{name}": getattr(x, name) for i, x in enumerate(found) for name in Found._fields}
    np.savez_compressed(path, **columns)


def load(path: Path) -> list[Found]:
    with np.load(path) as file:
        return [Found(*(file[f"{i}/{name}"] for name in Found._fields)) for i in range(len(file.files) // 2)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where files of results are, and are left out if they exist")
    parser.add_argument("columns", nargs="*", default=list(COLUMNS))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for distribution, rows in DISTRIBUTIONS.items():
        for column in given.columns:
            path = file_of(given.folder, column, distribution)
            if path.exists():
                continue
            started = time.process_time()
            try:
                found = evaluate(rows, column)
            except Exception as error:
                print(f"{column}, {distribution}: {error!r:.300}", flush=True)
                continue
            save(path, found)
            print(f"{column}, {distribution}: {time.process_time() - started:.1f} s of CPU", flush=True)


if __name__ == "__main__":
    main()
