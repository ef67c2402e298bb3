"""Functions of pymc-extras that take a mode, with mode JAXPR. (pymc-extras 0.15.1 asks for PyMC below 6.4.)"""

from __future__ import annotations

import logging
import warnings

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pytensor_jaxpr_linker as pjl
import pytensor_jaxpr_linker.pymc

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pmx = pytest.importorskip("pymc_extras")
    from pymc_extras.inference.pathfinder import fit_blackjax_pathfinder
    from pymc_extras.marginal import marginalize, recover
    from pymc_extras.statespace import structural
    from pymc_extras.utils.spline import bspline_interpolation

logging.getLogger("pymc").setLevel(logging.ERROR)
pytestmark = [pytest.mark.usefixtures("jax_settings"), pytest.mark.filterwarnings("ignore")]  # pymc-extras has its own
JAXPR = {"compile_kwargs": {"mode": "JAXPR"}}


@pytest.fixture
def compiled(monkeypatch):
    """Return the list of the linkers of all functions that are compiled, ours as `JaxprLinker`."""
    seen, make = [], pytensor.compile.maker.FunctionMaker.create

    def create(self, *args, **kwargs):
        seen.append(type(self.linker))
        return make(self, *args, **kwargs)

    monkeypatch.setattr(pytensor.compile.maker.FunctionMaker, "create", create)
    return seen


@pytest.fixture(scope="module")
def line():
    """Return a regression with a normal posterior, and its mean."""
    x, y = np.linspace(-1, 1, 20), np.linspace(0, 2, 20)
    with pm.Model() as model:
        slope = pm.Normal("slope", 0, 10, shape=2)
        pm.Normal("y", slope[0] + slope[1] * x, 1.0, observed=y)
    design = np.stack([np.ones(20), x], axis=1)
    return model, np.linalg.solve(design.T @ design + np.eye(2) / 100, design.T @ y)


def test_find_map(line, compiled):
    model, mean = line
    found = pmx.find_MAP(model=model, progressbar=False, use_hessp=True, method="trust-ncg", **JAXPR)
    assert pjl.JaxprLinker in compiled
    np.testing.assert_allclose(found.posterior["slope"].to_numpy().squeeze(), mean, rtol=1e-5)


def test_find_map_with_gradients_of_jax(line, no_other_jax):
    model, mean = line
    with pjl.in_place_of_jax():
        found = pmx.find_MAP(model=model, progressbar=False, gradient_backend="jax", compile_kwargs={"mode": "JAX"})
    np.testing.assert_allclose(found.posterior["slope"].to_numpy().squeeze(), mean, rtol=1e-4)


def test_laplace_approximation(line, compiled):
    model, mean = line
    found = pmx.fit_laplace(model=model, progressbar=False, draws=500, random_seed=1, **JAXPR)
    assert pjl.JaxprLinker in compiled
    np.testing.assert_allclose(found.posterior["slope"].mean(("chain", "draw")), mean, atol=0.1)


def test_pathfinder(line, compiled):
    model, mean = line
    found = pmx.fit_pathfinder(
        model=model, num_paths=1, num_draws=200, num_draws_per_path=200, parallel=False, progressbar=False,
        random_seed=1, **JAXPR,
    )  # fmt: skip
    assert pjl.JaxprLinker in compiled
    np.testing.assert_allclose(found.posterior["slope"].mean(("chain", "draw")), mean, atol=0.3)


def test_pathfinder_of_blackjax(line, no_other_jax):
    model, mean = line
    with pjl.in_place_of_jax():
        found = fit_blackjax_pathfinder(model=model, num_draws=100, random_seed=1)
    np.testing.assert_allclose(found.posterior["slope"].mean(("chain", "draw")), mean, atol=0.3)


def test_marginalized_mixture(compiled):
    with pm.Model() as model:
        mean = pm.Normal("mean", [-3.0, 3.0], 1.0)
        k = pm.Bernoulli("k", 0.4, shape=4)
        pm.Normal("y", mean[k], 1.0, observed=np.array([-3.2, 2.9, 3.3, -2.5]))
    sums = marginalize(model, ["k"])
    point = sums.initial_point()
    for method in ("compile_logp", "compile_dlogp"):
        want, got = (getattr(sums, method)(mode=mode)(point) for mode in ("FAST_COMPILE", "JAXPR"))
        np.testing.assert_allclose(got, want, rtol=1e-9)
    draws = pm.sample(
        20, tune=20, chains=1, model=sums, backend="JAXPR", nuts_sampler="pymc", progressbar=False, random_seed=1
    )
    del compiled[:]
    found = recover(draws, model=sums, random_seed=1, **JAXPR)
    assert pjl.JaxprLinker in compiled
    np.testing.assert_array_equal(np.round(found.posterior["k"].mean(("chain", "draw"))), [0, 1, 1, 0])


@pytest.mark.parametrize("sparse", [False, True])
def test_splines(sparse):
    x, at = pt.dvector("x"), pt.dvector("at")
    y = bspline_interpolation(x, n=None, eval_points=at, degree=3, sparse=sparse)
    values = np.sin(np.arange(8.0)), np.linspace(0.05, 0.95, 11)
    want, got = (pytensor.function([x, at], y, mode=mode)(*values) for mode in ("FAST_COMPILE", "JAXPR"))
    np.testing.assert_allclose(got, want, rtol=1e-10)


def test_state_space_model(compiled):
    data = np.cumsum(np.random.default_rng(1).normal(size=(30, 1)), axis=0)
    parts = structural.LevelTrend(order=1) + structural.MeasurementError()
    trend = parts.build(mode="JAXPR", verbose=False)
    with pm.Model(coords=trend.coords) as model:
        pm.Normal("initial_level_trend", dims=trend.param_dims["initial_level_trend"])
        pm.HalfNormal("sigma_level_trend", dims=trend.param_dims["sigma_level_trend"])
        pm.HalfNormal("sigma_MeasurementError")
        pm.Deterministic("P0", pt.eye(1), dims=trend.param_dims["P0"])
        trend.build_statespace_graph(data)
        point = model.initial_point()
        want, got = (model.compile_logp(mode=mode)(point) for mode in ("FAST_COMPILE", "JAXPR"))
        np.testing.assert_allclose(got, want, rtol=1e-9)
        draws = pm.sample(10, tune=10, chains=1, backend="JAXPR", nuts_sampler="pymc", progressbar=False, random_seed=1)
    del compiled[:]
    forecast = trend.forecast(draws, start=29, periods=5, random_seed=1, verbose=False, progressbar=False)
    assert pjl.JaxprLinker in compiled
    assert np.isfinite(forecast["forecast_observed"]).all()


def mixture():
    """Return a model of a discrete variable, and the probability that it is 1."""
    with pm.Model() as model:
        z = pm.Bernoulli("z", 0.3)
        pm.Normal("y", pm.Normal("mu", 0, 0.1) + 2 * z, 1.0, observed=pm.Data("data", 1.5))
    return model


@pytest.mark.parametrize("asked", [True, "z", ["z"]], ids=str)
def test_discrete_variables_are_summed_over_on_request(asked, monkeypatch):
    model, short = mixture(), {"draws": 300, "tune": 300, "chains": 2, "random_seed": 1, "quiet": True}
    found = pjl.pymc.sample(model=model, marginalize=asked, **short)
    assert set(found.posterior.data_vars) == {"mu"}
    seen = []
    monkeypatch.setattr(pmx, "marginalize", lambda *args: seen.append(args))
    again = pjl.pymc.sample(model=model, marginalize=asked, **short)
    np.testing.assert_array_equal(found.posterior["mu"], again.posterior["mu"])
    with model:
        pm.set_data({"data": 9.0})
    assert pjl.pymc.sample(model=model, marginalize=asked, **short).posterior["mu"].mean() > 0.02
    assert not seen


def test_what_can_not_be_summed_over():
    with pytest.raises(ValueError, match="sums over discrete variables, which 'mu' is not; the model has 'z'"):
        pjl.pymc.sample(model=mixture(), marginalize=["mu"])
    with pm.Model() as counts:
        pm.Normal("y", pm.Poisson("n", 3.0), 1.0, observed=2.0)
    with pytest.raises(NotImplementedError, match=r"pymc-extras can't sum over 'n': .* Use sampler='pymc'"):
        pjl.pymc.sample(model=counts, marginalize=True)
