"""Log densities of all distributions of PyMC and their gradients, beside mpmath from the middle to where numbers overflow.

docs/density-accuracy.md says what is compared; `tests/densities` has the rows.
"""

from __future__ import annotations

import json
import random

import numpy as np
import pymc as pm
import pytest
from densities import found, page, store
from densities.departures import departure
from densities.measure import reference
from densities.row import GRID
from densities.rows import EXCLUDED, ROWS, bound
from pymc.distributions.distribution import Distribution

REFERENCES = store.load()


def classes() -> set[str]:
    """Return the names of PyMC's distributions."""
    return {
        name
        for name in pm.distributions.__all__
        if isinstance(getattr(pm, name, None), type) and issubclass(getattr(pm, name), Distribution)
    }


def test_every_distribution_has_rows():
    """A new one needs rows in `densities`, or a reason in `EXCLUDED`."""
    have = {name for row in ROWS for name in row.distribution.replace("(", " ").replace(")", " ").split()}
    assert classes() - have - EXCLUDED.keys() == set()
    assert EXCLUDED.keys() & have == set()
    assert EXCLUDED.keys() <= set(pm.distributions.__all__)


def check(distribution: str, column: str) -> None:
    rows = found.DISTRIBUTIONS[distribution]
    results = found.evaluate(rows, column)
    dtype = found.COLUMNS[column][1]
    wrong = []
    for row, errors in zip(rows, page.errors_of(rows, REFERENCES, column, results), strict=True):
        for kind, off in zip(page.KINDS, errors, strict=True):
            wrong += [
                f"{row.id}: {kind} at {u:g} is off by {x:.3g}"
                for u, x in zip(page.grid_of(column), off, strict=True)
                if x > bound(row, kind) and departure(row, u, dtype) is None
            ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("distribution", found.DISTRIBUTIONS)
def test_scalars(distribution):
    check(distribution, "ours")


@pytest.mark.parametrize("seed", range(3))
def test_references_are_mpmaths(seed):
    """A random sample of the kept values is computed again."""
    rng = random.Random(seed)
    for row in rng.sample(ROWS, 4):
        grid = rng.sample(GRID, 2)
        index = [GRID.index(u) for u in grid]
        for again, kept in zip(reference(row, grid), REFERENCES[row.id], strict=True):
            np.testing.assert_allclose(again, kept[index], rtol=1e-15)


def test_the_page_is_that_of_its_data():
    """``python tests/densities/page.py`` writes it."""
    data = json.loads(page.ERRORS.read_text(encoding="utf-8"))
    assert page.PAGE.read_text(encoding="utf-8") == page.text(data)
    assert set(data["columns"]["ours"]) == {row.id for row in ROWS}
