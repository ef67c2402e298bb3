"""Errors of special functions at the hardest points of docs/special-functions.md, against the bounds that it states.

`python benchmarks/bench.py special_functions` writes both the page and `special_values.npz`: arguments, and results of
mpmath.
"""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from itertools import groupby
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import FULLGRAPH

ROOT = Path(__file__).parents[2]
spec = spec_from_file_location("special_rows", ROOT / "benchmarks" / "special_rows.py")
assert spec is not None and spec.loader is not None
special_rows = module_from_spec(spec)
spec.loader.exec_module(special_rows)

FUNCTIONS = {name: list(rows) for name, rows in groupby(special_rows.ROWS, lambda row: row.name)}


@pytest.fixture(scope="module")
def values():
    with np.load(Path(__file__).parent / "special_values.npz") as file:
        return dict(file)


def points_of(values, row, dtype):
    prefix = f"{row.id}/{dtype}/"
    arguments = [values[f"{prefix}{i}"] for i in range(len(row.points))]
    return arguments, values[f"{prefix}want"], values[f"{prefix}scale"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_are_within_their_bounds(name, values):
    """One program for all rows of a function. Results computed in float64 and rounded are measured as float64 alone."""
    groups, inputs, outputs, arguments = [], [], [], []
    for i, dtype in enumerate(("float64", "float32")):
        rows = [row for row in FUNCTIONS[name] if special_rows.ROUNDED < row.bounds[i] < np.inf]
        if rows:
            groups.append([(row, row.bounds[i], *points_of(values, row, dtype)) for row in rows])
            columns = [np.concatenate(parts) for parts in zip(*(group[2] for group in groups[-1]), strict=True)]
            variables = [pt.vector(dtype=x.dtype.name) for x in columns]
            arguments, inputs = arguments + columns, inputs + variables
            outputs.append(rows[0].function(*variables))
    results = pytensor.function(inputs, outputs, mode=FULLGRAPH)(*arguments)
    for group, result in zip(groups, results, strict=True):
        pieces = np.split(result, np.cumsum([len(want) for _, _, _, want, _ in group])[:-1])
        for (row, bound, xs, want, scale), got in zip(group, pieces, strict=True):
            error = special_rows.errors(got, want, scale)
            worst = np.argmax(error)
            assert error[worst] <= bound, (row.id, got.dtype, [x[worst] for x in xs], got[worst], want[worst])


def test_page_states_these_bounds():
    """The page has the rows of the table, in order, with their bounds."""
    page = (ROOT / "docs" / "special-functions.md").read_text()
    stated = re.findall(
        r"^\| `(.+?)`(?: ¹)? \| (.+?) \| \d.*? \| (.+?) \|.* \| (.+?) \| .+? \| .+? \|$", page, re.MULTILINE
    )
    want = [
        (
            row.name,
            row.domain.replace("|", r"\|"),
            special_rows.number(row.bounds[0]),
            special_rows.number(row.bounds[1], 23),
        )
        for row in special_rows.ROWS
    ]
    assert stated == want


@pytest.mark.parametrize(
    "row_id, point",
    [
        ("betainc, a or b < 0.5, to 1e-30", (1e-8, 50.0, 0.01)),
        ("betainc, a or b < 0.5, to 1e-30", (50.0, 1e-8, 0.99)),
        ("betainc, a or b < 0.5, to 1e-30", (0.5, 1e-8, 0.9999)),
        ("owens_t, |h| < 37, all a", (-20.0, 1e-20)),
    ],
)
def test_points_contain(row_id, point, values):
    row = next(row for row in special_rows.ROWS if row.id == row_id)
    assert point in set(zip(*(x.tolist() for x in points_of(values, row, "float64")[0]), strict=True))
