"""PyMC's own functions with mode JAXPR: fits, predictions, data of new lengths. Very short runs on small models."""

from __future__ import annotations

import logging

import numpy as np
import pymc as pm
import pytensor
import pytest

import pytensor_jaxpr_linker as pjl

logging.getLogger("pymc").setLevel(logging.ERROR)
DATA = np.array([1.0, 2.0, 2.5, 0.5])
QUIET = {"progressbar": False, "random_seed": 1}


@pytest.fixture(scope="module")
def model():
    """Return a linear regression on shared data of which the length may change."""
    with pm.Model(coords={"row": range(4)}) as model:
        x = pm.Data("x", np.array([-1.0, 0.0, 1.0, 2.0]), dims="row")
        slope = pm.Normal("slope")
        sigma = pm.HalfNormal("sigma")
        pm.Deterministic("double", 2 * slope)
        pm.Potential("penalty", -(slope**2) / 10)
        pm.Normal("y", slope * x, sigma, observed=DATA, dims="row")
    return model


@pytest.fixture(scope="module")
def posterior(model):
    """Return draws of PyMC's NUTS by `backend`, which must be ours: no warning of a break, no other backend."""
    return pm.sample(
        10, tune=10, chains=2, cores=1, model=model, backend="JAXPR", nuts_sampler="pymc",
        compute_convergence_checks=False, quiet=True, **QUIET,
    )  # fmt: skip


def test_sampling_by_backend_runs_this_linker(posterior, model):
    assert posterior.posterior["slope"].shape == (2, 10)
    with model:
        step = pm.NUTS(compile_kwargs={"mode": "JAXPR"})
    assert isinstance(step._logp_dlogp_func._pytensor_function.maker.linker, pjl.JaxprLinker)


def test_step_methods():
    with pm.Model() as model:
        k = pm.Poisson("k", 2.0)
        z = pm.Bernoulli("z", 0.5)
        x = pm.Normal("x", k + z)
        steps = [
            pm.Metropolis([k], compile_kwargs={"mode": "JAXPR"}),
            pm.BinaryGibbsMetropolis([z], compile_kwargs={"mode": "JAXPR"}),
            pm.Slice([x], compile_kwargs={"mode": "JAXPR"}),
        ]
        found = pm.sample(
            5, tune=5, chains=1, cores=1, step=steps, compute_convergence_checks=False, quiet=True,
            compile_kwargs={"mode": "JAXPR"}, **QUIET,
        )  # fmt: skip
    assert found.posterior.sizes["draw"] == 5
    assert model.discrete_value_vars


def test_log_densities_and_predictions(posterior, model):
    with model:
        pm.compute_log_likelihood(posterior, progressbar=False, compile_kwargs={"mode": "JAXPR"})
        with pytest.warns(UserWarning, match="Potentials"):
            predicted = pm.sample_posterior_predictive(posterior, compile_kwargs={"mode": "JAXPR"}, **QUIET)
        with pytest.warns(UserWarning, match="Potentials"):
            prior = pm.sample_prior_predictive(7, random_seed=1, compile_kwargs={"mode": "JAXPR"})
    assert posterior.log_likelihood["y"].shape == (2, 10, 4)
    draw = posterior.posterior.isel(chain=1, draw=3)
    mean, sigma = float(draw["slope"]) * np.array([-1.0, 0.0, 1.0, 2.0]), float(draw["sigma"])
    expected = -0.5 * ((DATA - mean) / sigma) ** 2 - np.log(sigma * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(posterior.log_likelihood["y"][1, 3], expected, rtol=1e-10)
    assert predicted.posterior_predictive["y"].shape == (2, 10, 4)
    assert prior.prior["double"].shape == (1, 7)


def test_second_derivative():
    with pm.Model() as model:
        pm.StudentT("t", 3, shape=2)
    point = {"t": np.array([0.3, -0.2])}
    expected = model.compile_d2logp(mode="FAST_COMPILE", negate_output=False)(point)
    np.testing.assert_allclose(model.compile_d2logp(mode="JAXPR", negate_output=False)(point), expected, rtol=1e-8)


def test_data_of_a_new_length():
    with pm.Model(coords={"row": range(3)}) as model:
        x = pm.Data("x", np.zeros(3), dims="row")
        pm.Normal("y", pm.Normal("m") + x, observed=x, dims="row")
    f = model.compile_logp(mode="JAXPR")
    for n in (3, 5, 2):
        with model:
            pm.set_data({"x": np.arange(float(n))}, coords={"row": range(n)})
        expected = model.compile_logp(mode="FAST_COMPILE")({"m": 0.5})
        np.testing.assert_allclose(f({"m": 0.5}), expected, rtol=1e-12)


def test_missing_values_are_imputed():
    with pm.Model() as model, pytest.warns(pm.exceptions.ImputationWarning):
        pm.Normal("y", pm.Normal("m"), observed=np.ma.masked_invalid([1.0, np.nan, 2.0]))
    point = model.initial_point()
    expected = model.compile_logp(mode="FAST_COMPILE")(point)
    np.testing.assert_allclose(model.compile_logp(mode="JAXPR")(point), expected, rtol=1e-12)


def test_intervened_and_observed_models(model):
    for changed in (pm.do(model, {"slope": 1.0}), pm.observe(pm.do(model, {"x": np.ones(4)}), {"sigma": 0.5})):
        point = changed.initial_point()
        expected = changed.compile_logp(mode="FAST_COMPILE")(point)
        np.testing.assert_allclose(changed.compile_logp(mode="JAXPR")(point), expected, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:`find_MAP` will:FutureWarning")
def test_find_map_takes_the_mode_from_the_configuration(model):
    """`pm.find_MAP` has no argument for it."""
    with pytensor.config.change_flags(mode=pjl.JAXPR):
        found = pm.find_MAP(model=model, progressbar=False)
    np.testing.assert_allclose(found["slope"], (DATA @ [-1, 0, 1, 2]) / (6 + 1.2 * found["sigma"] ** 2), rtol=1e-3)


@pytest.mark.parametrize("method", ["advi", "fullrank_advi"])
def test_variational_fit(model, method):
    with model:
        found = pm.fit(20, method=method, backend="JAXPR", **QUIET)
    assert found.hist.shape == (20,)
    assert np.isfinite(found.hist).all()


def test_variational_fit_of_minibatches():
    with pm.Model():
        batch = pm.Minibatch(np.arange(50.0), batch_size=5)
        pm.Normal("y", pm.Normal("m"), observed=batch, total_size=50)
        found = pm.fit(10, backend="JAXPR", **QUIET)
    assert np.isfinite(found.hist).all()


def test_sequential_monte_carlo(model):
    found = pm.sample_smc(
        20, chains=1, cores=1, model=model, backend="JAXPR", compute_convergence_checks=False, **QUIET
    )
    assert found.posterior["slope"].shape == (1, 20)
