"""Keep the values of mpmath in a file: ``python tests/whole/densities/store.py`` adds those of new rows, and leaves out those of rows that are gone."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from densities.measure import Reference, reference
from densities.rows import ROWS

FILE = Path(__file__).with_name("reference.npz")


def load() -> dict[str, Reference]:
    """Return the values by the ids of rows."""
    if not FILE.exists():
        return {}
    with np.load(FILE) as file:
        columns = {name: file[name] for name in file.files}
    return {name: Reference(x[:, 0], x[:, 1], *np.split(x[:, 2:], 2, axis=1)) for name, x in columns.items()}


def save(values: dict[str, Reference]) -> None:
    columns = {name: np.column_stack([x.density, x.largest, x.gradient, x.slopes]) for name, x in values.items()}
    np.savez_compressed(FILE, **columns)


def main() -> None:
    values = load()
    values = {row.id: values[row.id] for row in ROWS if row.id in values}
    saved = time.perf_counter()
    for row in ROWS:
        if row.id not in values:
            started = time.perf_counter()
            try:
                values[row.id] = reference(row)
            except ArithmeticError as error:
                print(f"{row.id}: {error!r}", flush=True)
            if time.perf_counter() - started > 10:
                print(f"{row.id}: {time.perf_counter() - started:.0f} s", flush=True)
        if time.perf_counter() - saved > 10:
            save(values)
            saved = time.perf_counter()
    save(values)
    print(f"{len(values)} rows of {len(ROWS)}")


if __name__ == "__main__":
    main()
