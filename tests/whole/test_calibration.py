"""The calibration of samplers (`calibration/run.py`) finds what it has to find; the whole of it runs at night."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("blackjax")
from calibration import models, mutations, ranks, run, transitions

pytestmark = pytest.mark.filterwarnings("ignore")  # of PyMC's, for draws of few chains


def calibration_of(positions):
    return ranks.Calibration(["a", "b"], positions, 0.0, 0.0)


def test_bands_of_ranks():
    uniform = np.random.default_rng(0).uniform(size=(300, 2))
    assert calibration_of(uniform).outside() == []
    assert calibration_of(uniform ** [1, 1.6]).outside() == ["b"]
    narrow = 0.5 + (uniform - 0.5) * [0.8, 1]
    assert calibration_of(narrow).outside() == ["a"]


def test_an_exact_sampler_keeps_the_distribution():
    change = transitions.change_of("normal", "NUTS, diagonal", 1000)
    assert not change.is_found and len(change.z) == 7


def test_a_missing_jacobian_is_found():
    with mutations.without_jacobian():
        assert transitions.change_of("normal", "NUTS, diagonal", 1000).is_found


@pytest.mark.nightly
@pytest.mark.parametrize("what", list(mutations.MUTATIONS))
def test_errors_are_found(what):
    assert run.mutation_of(what, run.MUTATED_DRAWS)["found"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", list(transitions.MODELS))
def test_the_unadjusted_sampler_is_found_to_be_biased(name):
    assert transitions.change_of(name, run.BIASED, 20_000).is_found


@pytest.mark.nightly
@pytest.mark.parametrize("sampler", list(ranks.SAMPLERS))
def test_ranks_of_each_sampler(sampler):
    """A run of few replications, for the machinery."""
    found = ranks.calibrate("mixture", sampler, 10)
    assert found.quantities == ["w", "distance"] and found.positions.shape == (10, 2)
    assert np.all((found.positions > 0) & (found.positions < 1))


@pytest.mark.parametrize("name", [f.__name__ for f in models.MODELS])
def test_exact_draws_are_in_the_support(name):
    model = models.build(name)
    priors, data = models.exact_draws(model, 3, 1)
    assert data.shape[1:] == models.MODELS[models.BY_NAME[name]]
    positions = transitions.unconstrained(model, priors)
    assert positions.shape[0] == 3 and np.isfinite(positions).all()


def test_what_the_page_complains_of():
    inside = {"test": "ranks_of", "model": "normal", "sampler": "NUTS", "outside": []}
    found = {"test": "transitions_of", "model": "normal", "mover": "MCLMC", "found": True}
    assert run.complaints([inside, found]) == []
    assert len(run.complaints([{**inside, "outside": ["mu"]}, {**found, "found": False}])) == 2
    assert run.complaints([{"test": "mutation_of", "found": False}])
