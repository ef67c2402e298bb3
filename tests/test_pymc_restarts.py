"""Chains that start again because they are in a region of negligible probability."""

from __future__ import annotations

import re

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pytensor_jaxpr_linker.pymc import sample
from pytensor_jaxpr_linker.pymc.chains.chain_progress import Watched
from pytensor_jaxpr_linker.pymc.chains.chunk_lengths import CALL_SECONDS, GROWTH, ChunkLengths
from pytensor_jaxpr_linker.pymc.chains.restarts import NEGLIGIBLE, are_rising, log_shares, lost_chains, trial_length

pytest.importorskip("blackjax")
SHORT = {"draws": 50, "tune": 200, "chains": 6, "random_seed": 4, "progressbar": False}
QUIET = {**SHORT, "compute_convergence_checks": False}


def two_modes(log_share):
    """A mode at 5, and one at -5 with a share of the probability. Chains start between -1 and 1, so both get some."""
    with pm.Model() as model:
        x = pm.Flat("x")
        main, minor = -0.5 * ((x - 5) / 0.3) ** 2, log_share - 0.5 * ((x + 5) / 0.3) ** 2
        pm.Potential("modes", pt.logaddexp(main, minor))
    return model


def modes_of(found):
    """Return the mode in which each chain ends."""
    return np.sign(found.posterior["x"].to_numpy()[:, -1])


@pytest.mark.parametrize("method", ["parallel", "vectorized", "sequential"])
@pytest.mark.parametrize("sampler", ["blackjax", "numpyro"])
def test_chains_leave_a_minor_mode(sampler, method, caplog):
    pytest.importorskip(sampler)
    model, arguments = two_modes(-30.0), {**QUIET, "sampler": sampler, "chain_method": method}
    with caplog.at_level("INFO", "pymc"):
        kept = sample(model=model, restarts=0, **arguments)
        assert "starts again" not in caplog.text
        found = sample(model=model, **arguments)
    again = {
        int(n) for n in re.findall(r"Chain (\d) starts again from another point: after 40 transitions", caplog.text)
    }
    assert set(np.flatnonzero(modes_of(kept) < 0)) <= again and 0 < len(again) < 6
    assert kept.posterior.attrs["restarts"] == 0 and found.posterior.attrs["restarts"] >= len(again)
    assert (modes_of(kept) < 0).any() and (modes_of(found) > 0).all()
    others = np.setdiff1d(range(6), [*again])  # which draw what they would have drawn
    np.testing.assert_array_equal(found.posterior["x"][others], kept.posterior["x"][others])


def test_the_number_of_restarts_is_bounded():
    """With one restart each, a second bad point keeps a chain where it is."""
    model = two_modes(-30.0)
    found = [sample(model=model, restarts=n, **{**QUIET, "chains": 24}).posterior.attrs["restarts"] for n in (1, 5)]
    assert 0 < found[0] < found[1]


@pytest.mark.parametrize("log_share", [0.0, -15.0])
def test_modes_that_count_keep_their_chains(log_share):
    found = sample(model=two_modes(log_share), **QUIET)
    assert found.posterior.attrs["restarts"] == 0
    assert set(modes_of(found)) == {-1.0, 1.0}


def test_points_that_the_user_chose_are_kept():
    model, starts = two_modes(-30.0), [{"x": x} for x in (-1.0, -1.0, 1.0, 1.0, 1.0, 1.0)]
    for chosen in ({"initvals": starts, "jitter": False}, {"initvals": starts}):
        found = sample(model=model, **QUIET, **chosen)
        assert found.posterior.attrs["restarts"] == 0
        assert modes_of(found)[:2].tolist() == [-1.0, -1.0] or "jitter" not in chosen
    assert sample(model=model, initvals=starts, restarts=5, **QUIET).posterior.attrs["restarts"] > 0


def test_each_transition_is_given_once():
    """Those of a trial before a restart are neither kept nor told of."""
    seen = []
    found = sample(
        model=two_modes(-30.0),
        sampler="blackjax",
        discard_tuned_samples=False,
        callback=lambda trace, draw: seen.append((draw.chain, draw.draw_idx)),
        **QUIET,
    )
    assert found.posterior.attrs["restarts"] > 0
    assert found.warmup_posterior.sizes["draw"] == 200 and found.posterior.sizes["draw"] == 50
    assert len(seen) == len(set(seen)) == 6 * 250
    assert (found.warmup_posterior["x"][:, -1] > 0).all()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"restarts": -1}, ValueError, "restarts must be an integer and at least 0"),
        ({"restarts": 1.5}, ValueError, "restarts must be an integer and at least 0"),
        ({"restarts": 2, "jitter": False}, ValueError, "Without jitter a chain would start again at the same point"),
        ({"restarts": 2, "sampler": "mclmc"}, TypeError, "sampler='mclmc' starts no chain again: leave out restarts"),
        ({"restarts": 2, "sampler": "pymc"}, TypeError, "sampler='pymc' starts no chain again: leave out restarts"),
    ],
)
def test_what_is_refused(monkeypatch, arguments, error, message):
    monkeypatch.setattr("pytensor_jaxpr_linker.pymc.sampling.sample_compiled", lambda request: 1 / 0)
    with pytest.raises(error, match=message):
        sample(model=two_modes(0.0), **QUIET, **arguments)


def chunk(x, lp):
    """A chunk of 100 transitions of each chain, whose positions are those of `x`, shaped as the chains and coordinates."""
    return {"x": np.asarray(x)}, {"lp": np.broadcast_to(np.asarray(lp, "float64")[:, None], np.shape(x)[:2])}


def test_shares_by_density_and_width():
    """Chains as the best one, lower, lower but wider in all of two directions, and narrower."""
    z = np.random.default_rng(1).normal(size=(100, 2))
    scales = np.array([1.0, 1.0, np.exp(10.0), np.exp(-10.0)])
    x = scales[:, None, None] * z + np.arange(4.0)[:, None, None]
    np.testing.assert_allclose(log_shares([chunk(x, [-3, -33, -33, -33])]), [0, -30, -10, -30], atol=1e-9)
    assert lost_chains([chunk(x, [-3, -33, -33, -33])]) == pytest.approx({1: -30.0, 3: -30.0})
    parts = [chunk(x[:, a:b], [-3, -33, -33, -33]) for a, b in ((0, 1), (1, 40), (40, 100))]
    np.testing.assert_allclose(log_shares(parts), [0, -30, -10, -30], atol=1e-9)


def test_the_first_half_does_not_count():
    x = np.random.default_rng(1).normal(size=(2, 100, 3))
    found = chunk(x, [0.0, 0.0])
    found[1]["lp"] = np.array([np.zeros(100), np.r_[np.full(50, -1e6), np.zeros(50)]])
    assert lost_chains([found]) == {}


def test_chains_that_do_not_move():
    """One is lost if its density is low. If the best one does not move, its region has no width, and no other is lost."""
    x = np.random.default_rng(1).normal(size=(3, 100, 2))
    x[2] = 1.0
    assert lost_chains([chunk(x, [0.0, -1.0, NEGLIGIBLE - 1])]) == {2: NEGLIGIBLE - 1}
    assert lost_chains([chunk(x, [-1000.0, -1001.0, 0.0])]) == {}


@pytest.mark.parametrize("lp", [[np.nan, np.nan], [-np.inf, -np.inf], [np.inf, 0.0]])
def test_densities_that_are_not_finite(lp):
    assert lost_chains([chunk(np.zeros((2, 100, 1)), lp)]) == {}


@pytest.mark.parametrize("lp", [-np.inf, np.nan])
def test_a_chain_without_a_density_is_not_the_best_one(lp):
    x = np.random.default_rng(1).normal(size=(3, 100, 1))
    assert 1 in lost_chains([chunk(x, [lp, -30.0, 0.0])])


def test_a_chain_that_rises_is_on_its_way():
    """By three standard deviations, which are 2 for 8 coordinates, in the second half; what a chain did before does not count."""
    x = np.random.default_rng(1).normal(size=(4, 100, 8))
    found = chunk(x, [0.0, -90.0, -90.0, -90.0])
    found[1]["lp"] = lp = found[1]["lp"].copy()
    lp[1, 75:] += 5.9
    lp[2, 75:] += 6.1
    lp[3, :50] = -1e6
    assert are_rising([found]).tolist() == [False, False, True, False]
    assert lost_chains([found]).keys() == {1, 3}
    lp[1, 50:75] = -np.inf
    assert lost_chains([found]).keys() == {3}


def test_predictors_of_other_scales_than_the_starting_points():
    """Chains of a regression far away from its only mode are not taken for lost."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(100, 5)) * 100
    with pm.Model() as model:
        beta, sigma = pm.Normal("beta", 0, 10, shape=5), pm.HalfNormal("sigma", 10)
        pm.Normal("y", x @ beta, sigma, observed=x.sum(axis=1) + rng.normal(size=100))
    found = sample(model=model, draws=50, tune=1000, chains=8, random_seed=3, progressbar=False)
    assert found.posterior.attrs["restarts"] == 0
    np.testing.assert_allclose(found.posterior["beta"].mean(("chain", "draw")), 1, atol=0.01)


def test_a_model_without_elements():
    assert lost_chains([chunk(np.zeros((2, 100, 0)), [0.0, 0.0])]) == {}
    assert lost_chains([]) == {}


@pytest.mark.parametrize(("tune", "expected"), [(0, 0), (99, 0), (100, 20), (500, 100), (10_000, 100)])
def test_when_chains_are_compared(tune, expected):
    assert trial_length(tune) == expected


def test_lengths_of_chunks_go_on_after_others():
    first = ChunkLengths(50, 256)
    for number, length in enumerate([1, 4, 16, 29]):
        assert first(number) == length
        first.took(length, length * 1e-9)
    assert [first(number) for number in range(5)] == [1, 4, 16, 29, 0]  # the same ones once more
    assert ChunkLengths(1000, 256, first)(0) == 29 * GROWTH
    first.took(29, 29 * CALL_SECONDS / 10.5)
    assert ChunkLengths(1000, 256, first)(0) == 10
    assert ChunkLengths(1000, 256, ChunkLengths(0, 256))(0) == 1


def test_progress_begins_again():
    watched = Watched(2, tune=20, total=40)
    stats = {"diverging": np.zeros((2, 10), bool), "n_steps": np.full((2, 10), 3), "step_size": np.full((2, 10), 0.1)}
    watched.add([0, 1], stats)
    watched.begin_again()
    assert watched.count([0, 1]) == "0/40"
    watched.add([0, 1], stats)
    assert watched.count([0, 1]) == "10/40" and watched.gradients.tolist() == [30, 30]
