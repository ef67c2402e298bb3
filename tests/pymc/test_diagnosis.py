"""`diagnose`: the problems of draws, in words."""

from __future__ import annotations

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr

from pytensor_jaxpr_linker.pymc import diagnose, sample

NORMAL = np.random.default_rng(1).normal(size=(4, 1000))


def tree(x=NORMAL, attrs=None, **stats):
    """Return draws of a variable ``x`` and statistics."""
    groups = {"posterior": xr.Dataset({"x": (("chain", "draw", "k"), np.stack([NORMAL, x], axis=-1))}, attrs=attrs)}
    if stats:
        groups["sample_stats"] = xr.Dataset({name: (("chain", "draw"), s) for name, s in stats.items()})
    return xr.DataTree.from_dict(groups)


AR = NORMAL.copy()
for i in range(1, 1000):
    AR[:, i] = 0.7 * AR[:, i - 1] + NORMAL[:, i]
SLOW = np.cumsum(NORMAL, axis=1)
STUCK = np.where(np.arange(4)[:, None] == 2, 0.5, NORMAL)


@pytest.mark.parametrize(
    ("data", "problem", "remedy"),
    [
        (tree(diverging=NORMAL < -2), "They gather where 'x'[0] is small (median ", "target_accept=0.95"),
        (tree(diverging=np.eye(4, 1000) > 0), "4 of 4000 transitions diverged", "non-centered"),
        (tree(reached_max_treedepth=NORMAL > 0), "of the transitions reached the maximum tree depth", "mass_matrix="),
        (tree(energy=SLOW), "energy changes too slowly in chains 0, 1, 2 and 3", "heavy tails"),
        (
            tree(NORMAL + np.array([[0], [8], [0], [0]])),
            "The chains are in 2 places: the mean of 'x'[1] is -0.02 (chains 0, 2 and 3) and 8.03 (chain 1).",
            "sample_smc",
        ),
        (
            tree(NORMAL + np.array([[0], [8], [0], [8]])),
            "The chains are in 2 places: the mean of 'x'[1] is -0.02 (chains 0 and 2) and 8.0 (chains 1 and 3).",
            "sample_smc",
        ),
        (
            tree(NORMAL + np.array([[0], [8], [-8], [8]])),
            "The chains are in 3 places: the mean of 'x'[1] is -7.98 (chain 2), -0.05 (chain 0) and 8.0 (chains 1 and"
            " 3).",
            "sample_smc",
        ),
        (
            tree(NORMAL + np.array([[0], [8], [0], [8]])).isel(chain=[0, 1]),
            "The chains are in 2 places: the mean of 'x'[1] is -0.05 (chain 0) and 8.03 (chain 1).",
            "sample_smc",
        ),
        (tree(np.where(NORMAL > 2, np.nan, NORMAL)), "draws of 'x' hold a value that is NaN", "logarithm of zero"),
        (tree(NORMAL + np.array([[0], [0.6], [0], [0]])), "The chains do not agree on 'x' yet", "longer warm-up"),
        (tree(AR).isel(draw=slice(400)), "'x' has only", "times the draws"),
        (tree(NORMAL, attrs={"interrupted": 1, "draws": 3000}), "interrupted before the 3000 draws", "to its end"),
    ],
    ids=[
        "funnel",
        "divergences",
        "depth",
        "energy",
        "one-away",
        "two-modes",
        "three-modes",
        "two-chains",
        "nan",
        "disagree",
        "few",
        "interrupted",
    ],
)
def test_findings(data, problem, remedy):
    found = diagnose(data).findings
    assert any(problem in f.problem and remedy in f.remedy for f in found), found


def test_nothing_is_wrong():
    found = diagnose(tree(diverging=NORMAL > 99, energy=NORMAL, reached_max_treedepth=NORMAL > 99))
    assert found.findings == []
    assert str(found).startswith("4 chains of 1000 draws: R-hat at most 1.00 ('x'), at least 4039 effective")
    assert str(found).endswith("Nothing is wrong that the draws show.")


def test_nothing_but_nan():
    data = xr.DataTree.from_dict({"posterior": xr.Dataset({"x": (("chain", "draw"), np.full((4, 100), np.nan))})})
    found = diagnose(data)
    assert found.summary == "4 chains of 100 draws: too few to judge."
    assert "400 of 400 draws of 'x'" in found.findings[0].problem


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (None, TypeError, "takes the DataTree that sample or pymc.sample returned, not None"),
        ({}, TypeError, "takes the DataTree that sample or pymc.sample returned, not {}"),
        (tree()["posterior"].to_dataset(), TypeError, "takes the DataTree that"),
        (
            xr.DataTree.from_dict({"posterior": xr.Dataset({"x": ("sample", np.zeros(4))})}),
            ValueError,
            "needs a posterior with the dimensions 'chain' and 'draw'; it has no 'chain'",
        ),
        (xr.DataTree.from_dict({"prior": xr.Dataset()}), ValueError, "needs the group 'posterior'.* has prior"),
    ],
)
def test_what_is_no_posterior(data, error, message):
    with pytest.raises(error, match=message):
        diagnose(data)


def test_chains_that_never_moved():
    data = tree()
    data["posterior"] = xr.DataTree(xr.Dataset({"x": (("chain", "draw"), STUCK)}))
    assert next(f.problem for f in diagnose(data).findings) == "Chain 2 never moved."


def test_one_chain_and_few_draws():
    one = diagnose(tree().isel(chain=[0]))
    assert "One chain alone" in one.findings[0].problem and "R-hat" not in one.summary
    for count, words in ((0, "0 draws"), (1, "1 draw"), (3, "3 draws")):
        few = diagnose(tree(diverging=NORMAL > 99, reached_max_treedepth=NORMAL > 99).isel(draw=slice(count)))
        assert few.summary == f"4 chains of {words}: too few to judge."
        assert [f.problem for f in few.findings] == [f"A chain has only {words}, which tell nothing."]


@pytest.mark.parametrize(
    ("sampler", "data", "remedy"),
    [
        ("nuts", tree(AR).isel(draw=slice(400)), "times the draws, or try mass_matrix='low_rank'."),
        ("nutpie", tree(AR).isel(draw=slice(400)), "times the draws, or try adaptation='low_rank'."),
        ("chees", tree(AR).isel(draw=slice(400)), "or try sampler='nuts' with mass_matrix='low_rank'."),
        ("smc", tree(AR).isel(draw=slice(400)), "times the draws."),
        ("nutpie", tree(reached_max_treedepth=NORMAL > 0), "try adaptation='low_rank' for correlated variables"),
        ("pathfinder", tree().isel(chain=[0]), "Pathfinder approximates the posterior"),
        ("smc", tree(NORMAL + np.array([[0], [8], [0], [0]])), "components), or run more draws."),
        ("smc", tree(NORMAL + np.array([[0], [0.6], [0], [0]])), "Run more draws; if"),
        ("smc", xr.DataTree.from_dict({"posterior": xr.Dataset({"x": (("chain", "draw"), STUCK)})}), "Run more draws."),
    ],
)
def test_advice_is_in_the_words_of_the_sampler(sampler, data, remedy):
    data = data.copy()
    data["posterior"].attrs["sampler"] = sampler
    assert any(remedy in f.remedy for f in diagnose(data).findings), diagnose(data)


def test_variables_that_were_not_drawn_are_left_out():
    data = tree()
    data["posterior"] = xr.DataTree(data["posterior"].to_dataset().assign(fixed=("j", np.zeros(3)), name="a"))
    assert str(diagnose(data)) == str(diagnose(tree()))


def test_many_chains_that_start_at_few_points():
    """Chains that stay where they started agree with their neighbours, and nested R-hat tells."""
    rng = np.random.default_rng(2)
    draws = rng.normal(size=(64, 8))
    good = xr.Dataset({"x": (("chain", "draw"), draws)}, attrs={"superchains": 16})
    bad = xr.Dataset({"x": (("chain", "draw"), draws + np.repeat(rng.normal(size=16), 4)[:, None])}, good.attrs)
    assert diagnose(xr.DataTree.from_dict({"posterior": good})).findings == []
    (found,) = diagnose(xr.DataTree.from_dict({"posterior": bad})).findings
    assert "do not agree on 'x'" in found.problem


def test_many_chains_adapt_together(caplog):
    """ChEES: a Gaussian with unequal scales, many chains and few draws."""
    scales = np.array([0.1, 1.0, 10.0])
    with pm.Model() as model:
        pm.Normal("x", np.arange(3.0), scales, shape=3)
    arguments = {"model": model, "sampler": "chees", "tune": 300, "draws": 60, "random_seed": 1, "progressbar": False}
    with caplog.at_level("WARNING", "pymc"):
        found = sample(**arguments, chains=48)
    assert found.posterior["x"].shape == (48, 60, 3)
    assert found.posterior.attrs["superchains"] == 16
    assert found.posterior.attrs["chain_method"] == "vectorized"
    x = found.posterior["x"].to_numpy().reshape(-1, 3)
    np.testing.assert_allclose((x.mean(axis=0) - np.arange(3.0)) / scales, 0, atol=0.15)
    np.testing.assert_allclose(x.std(axis=0), scales, rtol=0.15)
    n_steps = found.sample_stats["n_steps"].to_numpy()
    assert (n_steps == n_steps[0]).all() and len(
        set(n_steps[0])
    ) > 3  # one length for all chains, another for each draw
    assert found.posterior["x"][0, 0, 0] != found.posterior["x"][1, 0, 0]  # chains that started together
    assert not caplog.records
    again = sample(**arguments, chains=48)
    np.testing.assert_array_equal(found.posterior["x"], again.posterior["x"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cores": 2}, "adapt together, so they are one program"),
        ({"chain_method": "sequential"}, "adapt together, so they are one program"),
        ({"chains": 1}, "chains must be an integer and at least 2"),
        ({"tune": 0}, "tune must be an integer and at least 1"),
    ],
    ids=str,
)
def test_what_many_chains_can_not_do(arguments, message):
    with pm.Model() as model:
        pm.Normal("x", shape=2)
    with pytest.raises(ValueError, match=message):
        sample(model=model, sampler="chees", **arguments)


def test_chains_in_two_modes():
    """R-hat shows both modes: an AR(1) of 0.99 with a tenth of the probability, and a normal one with as large a basin.

    No chain leaves its mode.
    """
    d, share = 20, 0.9
    correlation = 0.99 ** abs(np.subtract.outer(np.arange(d), np.arange(d)))
    precision, logdet = np.linalg.inv(correlation), np.linalg.slogdet(correlation)[1]
    starts = np.random.default_rng(0).uniform(-1, 1, (4000, d))
    narrow = -0.5 * logdet - 0.5 * np.einsum("ni,ij,nj->n", starts, precision, starts)
    center = min(np.linspace(3, 8, 200), key=lambda c: abs(np.mean(-0.5 * ((starts - c) ** 2).sum(1) > narrow) - 0.5))
    with pm.Model() as model:
        x = pm.Flat("x", shape=d)
        one = np.log(1 - share) - 0.5 * logdet - 0.5 * pt.dot(x, pt.dot(precision, x))
        pm.Potential("modes", pt.logaddexp(one, np.log(share) - 0.5 * pt.sum((x - center) ** 2)))
    seen = set()
    for seed in range(3):
        arguments = {"model": model, "draws": 200, "tune": 600, "chains": 6, "random_seed": seed, "quiet": True}
        default, without = sample(**arguments), sample(restarts=0, **arguments)
        np.testing.assert_array_equal(default.posterior["x"], without.posterior["x"])
        modes = default.posterior["x"].to_numpy().mean(axis=(1, 2)) > center / 2
        if modes.any() and not modes.all():
            assert float(az.rhat(default.posterior["x"]).max()) > 1.1
            told = str(diagnose(default))
            assert "The chains are in 2 places" in told and "use sample_smc" in told
            seen.add(seed)
    assert seen  # else the test shows nothing
