"""MCLMC, tempered SMC and Pathfinder, on a linear model whose posterior is known."""

from __future__ import annotations

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.exceptions import SamplingError
from pytensor import config, wrap_py

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.pymc import fit_pathfinder, sample, sample_smc

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 2))
Y = X @ [1.0, -2.0] + RNG.normal(size=30)
QUIET = {"random_seed": 1, "compute_convergence_checks": False, "progressbar": False}


def linear_model():
    """Return a linear regression with known noise, in the current floatX."""
    with pm.Model(coords={"k": ["a", "b"]}) as model:
        slope = pm.Normal("slope", dims="k")
        pm.Deterministic("double", 2 * slope, dims="k")
        pm.Normal("y", pt.dot(pm.Data("x", X.astype(config.floatX)), slope), 1.0, observed=Y)
    return model


@pytest.fixture(scope="module")
def model():
    return linear_model()


def check_posterior(found, error):
    """Compare with the posterior of the conjugate model; `error` has the standard error over the standard deviation."""
    covariance = np.linalg.inv(np.eye(2) + X.T @ X)
    mean, sd = covariance @ X.T @ Y, np.sqrt(np.diag(covariance))
    slope = found.posterior["slope"]
    assert slope.dims == ("chain", "draw", "k")
    assert slope.dtype == config.floatX
    assert np.all(np.abs(slope.mean(("chain", "draw")) - mean) < 4 * error * sd)
    np.testing.assert_allclose(slope.std(("chain", "draw")), sd, rtol=0.2)
    np.testing.assert_allclose(found.posterior["double"], 2 * slope, rtol=1e-6)
    assert found.observed_data["y"].shape == (30,)
    assert found.constant_data["x"].shape == (30, 2)
    assert found.posterior.attrs["inference_library"] == "pytensor_jaxpr_linker"


def log_evidence():
    """Return the logarithm of the marginal likelihood."""
    covariance = np.eye(30) + X @ X.T
    return -0.5 * (30 * np.log(2 * np.pi) + np.linalg.slogdet(covariance)[1] + Y @ np.linalg.solve(covariance, Y))


@pytest.mark.parametrize("floatX", ["float64", "float32"])
def test_mclmc(floatX):
    with config.change_flags(floatX=floatX):
        options = {"chains": 2, "sampler": "mclmc", "chain_method": "vectorized", "desired_energy_var": 1e-3}
        found = sample(400, tune=100, model=linear_model(), **options, **QUIET)
        check_posterior(found, float(1 / np.sqrt(az.ess(found, var_names="slope")["slope"].min())))
    stats = found.sample_stats
    assert set(stats.data_vars) == {"diverging", "energy_error", "lp", "n_steps", "step_size"}
    assert not stats["diverging"].any()
    assert (stats["n_steps"] >= 1).all()
    assert abs(float(stats["energy_error"].mean())) < 0.1


def test_adjusted_mclmc_has_no_bias():
    """Where MCLMC takes too large steps, its variances are too small; with rejections they are right."""
    scales = np.exp(np.random.default_rng(0).normal(size=50))
    with pm.Model() as normal:
        pm.Normal("x", 0, scales, shape=50)
    options = {"model": normal, "sampler": "mclmc", "tune": 500, "chains": 2, **QUIET}
    coarse = sample(1000, desired_energy_var=0.05, **options)
    adjusted = sample(1000, adjusted=True, **options)
    ratios = [float(np.mean(found.posterior["x"].var(("chain", "draw")) / scales**2)) for found in (coarse, adjusted)]
    assert ratios[0] < 0.95 and 0.97 < ratios[1] < 1.03
    assert set(adjusted.sample_stats.data_vars) == {"acceptance_rate", "diverging", "lp", "n_steps", "step_size"}
    assert 0.5 < adjusted.sample_stats["acceptance_rate"].mean() < 0.85
    assert 10 < adjusted.sample_stats["n_steps"].mean() < 30


def test_mclmc_needs_two_dimensions():
    with pm.Model() as one:
        pm.Normal("x")
    with pytest.raises(ValueError, match="at least two dimensions"):
        sample(10, tune=0, chains=1, model=one, sampler="mclmc", **QUIET)


@pytest.mark.parametrize("floatX", ["float64", "float32"])
def test_smc(floatX):
    with config.change_flags(floatX=floatX):
        found = sample_smc(400, chains=2, model=linear_model(), log_likelihood=floatX == "float64", **QUIET)
        check_posterior(found, 1 / np.sqrt(400))
    assert dict(found.posterior.sizes) == {"chain": 2, "draw": 400, "k": 2}
    assert not np.array_equal(found.posterior["slope"][0], found.posterior["slope"][1])
    stats = found.sample_stats
    assert stats["beta"].dims == ("chain", "stage")
    beta, evidence = stats["beta"].to_numpy(), stats["log_marginal_likelihood"].to_numpy()
    assert (beta[:, 0] == 0).all() and (beta[:, -1] == 1).all() and (np.diff(beta) >= 0).all()
    assert np.array_equal(np.isnan(evidence), beta < 1)
    np.testing.assert_allclose(evidence[:, -1], log_evidence(), atol=0.5)
    assert (stats["accept_rate"] > 0.6).all()
    if floatX == "float64":
        assert found.log_likelihood["y"].shape == (2, 400, 30)


def test_smc_is_reproducible_and_finds_both_modes(capsys):
    with pm.Model() as model:
        x = pm.Normal("x", 0, 3)
        pm.Potential("p", pt.logaddexp(-50 * (x - 3) ** 2, -50 * (x + 3) ** 2))
    draws = [
        sample_smc(200, chains=1, model=model, **{**QUIET, "progressbar": shown}).posterior["x"] for shown in (0, 1)
    ]
    np.testing.assert_array_equal(*draws)
    assert 0.3 < float((draws[0] > 0).mean()) < 0.7
    np.testing.assert_allclose(np.abs(draws[0]).mean(), 3, atol=0.1)
    assert "1 chains" in (shown := capsys.readouterr().out)
    assert "accepted, step size" in shown


def test_smc_without_a_possible_draw():
    with pm.Model() as model:
        pm.Uniform("y", pm.Normal("x") + 10, 100, observed=0.0)
    with pytest.raises(SamplingError, match="SMC can't begin"):
        sample_smc(10, chains=1, model=model, **QUIET)


@pytest.mark.parametrize("floatX", ["float64", "float32"])
def test_pathfinder(floatX):
    with config.change_flags(floatX=floatX):
        model = linear_model()
        found = fit_pathfinder(500, paths=2, maxiter=20, model=model, random_seed=1)
        check_posterior(found, 2 / np.sqrt(500))
        slope, stats = found.posterior["slope"].to_numpy(), found.sample_stats
        expected = model.compile_logp()({"slope": slope[0, 0]})
    assert set(stats.data_vars) == {"lp", "lq"}
    assert float(stats["lp"][0, 0]) == pytest.approx(float(expected), rel=1e-5)
    assert found.posterior.attrs["pareto_k"] < 0.7
    np.testing.assert_allclose(found.posterior.attrs["elbo"], log_evidence(), atol=0.5)


def test_pathfinder_says_that_it_misses_tails(caplog):
    with pm.Model() as model:
        pm.Cauchy("x", 0, 1)
    with caplog.at_level("WARNING", "pymc"):  # another test may have silenced it
        fit_pathfinder(500, paths=2, maxiter=20, model=model, random_seed=1)
    assert "the approximation misses a part of the posterior" in caplog.text


def nothing_observed():
    with pm.Model() as model:
        pm.Normal("x")
    return model


def discrete():
    with pm.Model() as model:
        pm.Normal("y", pm.Bernoulli("k", 0.5), observed=1.0)
    return model


@pytest.mark.parametrize(
    ("function", "make", "arguments", "message"),
    [
        (sample_smc, nothing_observed, {}, "no observed variables: draw from it with pm.sample_prior_predictive"),
        (sample_smc, discrete, {}, "'k' is discrete: use pm.sample_smc"),
        (sample_smc, linear_model, {"draws": 0}, "draws must be an integer and at least 1, not 0"),
        (sample_smc, linear_model, {"threshold": 1.5}, "threshold must be a number between 0 and 1, not 1.5"),
        (sample_smc, pm.Model, {}, "no free variables"),
        (fit_pathfinder, discrete, {}, "'k' is discrete: use sample"),
        (fit_pathfinder, linear_model, {"paths": 0}, "paths must be an integer and at least 1, not 0"),
        (fit_pathfinder, linear_model, {"maxiter": 2.5}, "maxiter must be an integer"),
        (fit_pathfinder, linear_model, {"var_names": ["z"]}, "has no 'z'"),
    ],
)
def test_bad_arguments(function, make, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(model=make(), **arguments)


def test_a_host_step_in_the_density():
    @wrap_py([pt.dscalar], [pt.dscalar])
    def half(x):
        return np.asarray(x / 2)

    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Potential("p", half(pm.Data("d", 1.0)) * x)
    for function, remedy in ((sample_smc, "pm.sample_smc"), (fit_pathfinder, "use sample,")):
        with pytest.raises(pjl.GraphBreakError) as error:
            function(10, model=model)
        *_, note = error.value.__notes__  # before it JAX says that frames of its own are hidden
        assert remedy in str(error.value) and "half" in note


def test_infinite_start_names_the_term():
    with pm.Model() as model:
        pm.Uniform("b", pm.Normal("a") + 10, 100, observed=0.0)
    with pytest.raises(SamplingError, match="the term of 'b' is -inf"):
        fit_pathfinder(10, model=model, random_seed=1)
