"""Log densities of all distributions of PyMC and their gradients, beside mpmath from the middle to where numbers overflow.

docs/density-accuracy.md says what is compared; `tests/whole/densities` has the rows.
"""

from __future__ import annotations

import json
import os
import random

import numpy as np
import pymc as pm
import pytest
from densities import found, page, store
from densities.measure import reference
from densities.row import BOUND, GRID
from densities.rows import EXCLUDED, ROWS
from pymc.distributions.distribution import Distribution

#: So many distributions, of the order in `densities`, are tested in each run of the suite.
IN_EACH_RUN = 40
REFERENCES = store.load()
#: PyMC does not build these for vectors of two parameters.
NO_VECTORS = {"OrderedMultinomial"}
DATA = json.loads(page.ERRORS.read_text(encoding="utf-8"))


def classes() -> set[str]:
    """Return the names of PyMC's distributions."""
    return {
        name
        for name in pm.distributions.__all__
        if isinstance(getattr(pm, name, None), type) and issubclass(getattr(pm, name), Distribution)
    }


def test_every_distribution_has_rows():
    """A new one needs rows in `densities`, or a reason in `EXCLUDED`."""
    have = {
        name for row in ROWS for name in row.distribution.replace(",", " ").replace("(", " ").replace(")", " ").split()
    }
    assert classes() - have - EXCLUDED.keys() == set()
    assert EXCLUDED.keys() & have == set()
    assert EXCLUDED.keys() <= set(pm.distributions.__all__)


@pytest.mark.parametrize("column", ["ours", "ours, vectors", "ours, float32"])
@pytest.mark.parametrize("distribution", found.DISTRIBUTIONS)
def test_densities_and_gradients(distribution, column):
    """Ours are right wherever docs/density-accuracy.md does not list a departure, within `BOUND` or four times the error that it has."""
    is_later = column != "ours" or list(found.DISTRIBUTIONS).index(distribution) >= IN_EACH_RUN
    if is_later and "DENSITIES" not in os.environ:
        pytest.skip("XLA compiles these for minutes: they run with DENSITIES=all in the environment")
    if column == "ours, vectors" and distribution in NO_VECTORS:
        pytest.skip("PyMC does not build it")
    rows = found.DISTRIBUTIONS[distribution]
    recorded, wrong = DATA["columns"][column], []
    errors = page.errors_of(rows, REFERENCES, column, found.evaluate(rows, column))
    for row, both in zip(rows, errors, strict=True):
        for kind, off in zip(page.KINDS, both, strict=True):
            allowed = recorded[row.id][f"{kind} is wrong at"]
            bound = max(BOUND, 4 * (recorded[row.id][kind] or 0))
            wrong += [
                f"{row.id}: {kind} at {u:g} is off by {x:.3g} ulp"
                for u, x in zip(page.grid_of(column), off, strict=True)
                if x > bound and u not in allowed
            ]
    assert not wrong, "\n".join(wrong)


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
    """``python tests/whole/densities/page.py`` writes it."""
    assert page.PAGE.read_text(encoding="utf-8") == page.text(DATA)
    for column in ("ours", "ours, float32", "compile_dlogp"):
        assert set(DATA["columns"][column]) == {row.id for row in ROWS}
    vectors = {row.id for row in ROWS if row.distribution not in NO_VECTORS}
    assert set(DATA["columns"]["ours, vectors"]) == vectors
