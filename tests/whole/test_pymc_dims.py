"""Models of `pymc.dims`, whose variables have named dimensions: one program, sampled and predicted like any other."""

from __future__ import annotations

import logging

import jax
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytensor.xtensor as px
import pytest
import xarray as xr
from helpers import FULLGRAPH
from pytensor.xtensor.signal import convolve1d

import pytensor_jaxpr_linker as pjl
import pytensor_jaxpr_linker.pymc as pjl_pymc

pmd = pytest.importorskip("pymc.dims")

logging.getLogger("pymc").setLevel(logging.ERROR)
# PyTensor's C code, in inner graphs, complains where no BLAS is installed.
pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

SHORT = {
    "draws": 20,
    "tune": 20,
    "chains": 2,
    "random_seed": 1,
    "progressbar": False,
    "compute_convergence_checks": False,
}
WAVES = np.sin(np.arange(12.0))


def linear() -> pm.Model:
    """Return a regression with shared data and a reduction over the features."""
    with pm.Model(coords={"obs": range(12), "feature": ["a", "b", "c"]}) as model:
        x = pmd.Data("x", np.cos(np.arange(36.0)).reshape(12, 3), dims=("obs", "feature"))
        intercept, slope = pmd.Normal("intercept"), pmd.Normal("slope", dims="feature")
        mu = pmd.Deterministic("mu", intercept + (x * slope).sum("feature"))
        observed = pmd.Data("observed", WAVES, dims="obs")
        pmd.Normal("y", mu, pmd.HalfNormal("sigma"), observed=observed, dims="obs")
    return model


def hierarchical() -> pm.Model:
    """Return varying intercepts, which each observation takes by the index of its group."""
    with pm.Model(coords={"group": list("wxyz"), "obs": range(12)}) as model:
        group = pmd.Data("which", np.arange(12) % 4, dims="obs")
        mean, spread = pmd.Normal("mean"), pmd.HalfNormal("spread")
        intercepts = pmd.Deterministic("intercepts", mean + spread * pmd.Normal("offset", dims="group"))
        pmd.Normal("y", intercepts.isel(group=group), 1, observed=px.as_xtensor(WAVES, dims=("obs",)))
    return model


def reductions() -> pm.Model:
    """Return a multivariate variable whose mean two others make together, read by reductions, and a transform over a dimension."""
    with pm.Model(coords={"k": range(3), "j": range(2), "both": range(5), "obs": range(12)}) as model:
        u, v = pmd.Normal("u", dims="k"), pmd.Normal("v", dims="j")
        covariance = px.as_xtensor(np.eye(5) + 0.3, dims=("both", "other"))
        mean = px.concat([u.rename(k="both"), v.rename(j="both")], dim="both") / 2
        mv = pmd.MvNormal("mv", mean, covariance, core_dims=("both", "other"), dims="both")
        zero = pmd.ZeroSumNormal("zero", core_dims="k", dims="k")
        level = mv.mean("both") + px.math.exp(u).max("k") + zero.std("k") + v.cumsum("j").isel(j=-1)
        pmd.Deterministic("level", level)
        pmd.Normal("y", level, 1, observed=px.as_xtensor(WAVES, dims=("obs",)), dims="obs")
    return model


def media_mix() -> pm.Model:
    """Return spend that wears off and saturates, channel by channel, a trend by scan, and an intercept that varies with time."""
    coords = {"date": range(12), "channel": ["tv", "web"], "lag": range(4), "basis": range(5)}
    with pm.Model(coords=coords) as model:
        spend = pmd.Data("spend", np.abs(np.cos(np.arange(24.0))).reshape(12, 2), dims=("date", "channel"))
        retention = pmd.Beta("retention", 2, 2, dims="channel")
        weights = retention ** px.as_xtensor(np.arange(4.0), dims=("lag",))
        carried = convolve1d(spend, weights / weights.sum("lag"), dims=("date", "lag"))
        saturated = 1 - px.math.exp(-pmd.HalfNormal("rate", dims="channel") * carried.isel(date=slice(None, 12)))
        share = pmd.Deterministic("share", saturated * pmd.HalfNormal("effect", dims="channel"))
        stock = pytensor.scan(
            lambda x, last, kept: x + kept * last,
            sequences=[spend.values],
            outputs_info=[pt.zeros(2)],
            non_sequences=[retention.values],
            return_updates=False,
        )
        trend = px.as_xtensor(stock, dims=("date", "channel")).mean("channel")
        gp = pm.gp.HSGP(m=[5], c=1.5, cov_func=pm.gp.cov.Matern52(1, ls=3.0))
        basis, spectrum = gp.prior_linearized(np.arange(12.0)[:, None])
        weights = pmd.Normal("weights", dims="basis") * px.as_xtensor(spectrum, dims=("basis",))
        intercept = px.as_xtensor(basis, dims=("date", "basis")).dot(weights)
        mu = intercept + share.sum("channel") + 0.1 * trend
        pmd.Normal("y", mu, 1, observed=px.as_xtensor(WAVES, dims=("date",)))
    return model


MODELS = [linear, hierarchical, reductions, media_mix]


@pytest.fixture(scope="module", params=MODELS, ids=lambda build: build.__name__)
def any_model(request):
    """Return each of the models in turn."""
    return request.param()


@pytest.fixture(scope="module")
def model():
    """Return the linear model."""
    return linear()


@pytest.fixture(scope="module")
def fit(model):
    """Return draws of an approximation of the linear model's posterior."""
    return pjl_pymc.fit_pathfinder(40, paths=2, model=model, random_seed=1)


def point(model: pm.Model) -> dict[str, np.ndarray]:
    """Return a point where no variable has its initial value."""
    start = model.initial_point(random_seed=1)
    return {
        name: value + 0.3 * np.cos(np.arange(np.size(value))).reshape(np.shape(value)) for name, value in start.items()
    }


def test_density_gradient_and_deterministics_are_one_program(any_model):
    outputs = [any_model.logp(), any_model.dlogp(), *any_model.replace_rvs_by_values(any_model.deterministics)]
    at = point(any_model)
    f = any_model.compile_fn(outputs, mode=FULLGRAPH)
    want = any_model.compile_fn(outputs, mode="FAST_COMPILE")(at)
    for expected, got in zip(want, f(at), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
    assert not pjl.explain(f.f).breaks


def test_logdensity_has_the_gradient():
    model = reductions()
    at = point(model)
    logp = pjl_pymc.logdensity(model)
    with jax.enable_x64(True):
        value, gradient = jax.value_and_grad(logp)(at)
    np.testing.assert_allclose(value, model.compile_logp(mode="FAST_COMPILE")(at), rtol=1e-12)
    np.testing.assert_allclose(
        np.concatenate([np.ravel(gradient[v.name]) for v in model.value_vars]),
        model.compile_dlogp(mode="FAST_COMPILE")(at),
        rtol=1e-11,
    )


def test_logdensity_takes_shared_data_by_dimension(model):
    logp, at = pjl_pymc.logdensity(model), point(model)
    x = np.random.default_rng(1).normal(size=(12, 3))
    want = logp(at, {"x": x})
    np.testing.assert_array_equal(logp(at, {"x": xr.DataArray(x.T, dims=("feature", "obs"))}), want)
    assert want != logp(at)
    with pytest.raises(ValueError, match="do not exist"):
        logp(at, {"x": xr.DataArray(x.T, dims=("feature", "row"))})


@pytest.mark.parametrize("sampler", ["blackjax", "numpyro", "nutpie", "mclmc", "pymc"])
def test_samplers(model, sampler):
    pytest.importorskip("blackjax" if sampler == "mclmc" else sampler)
    options = {"cores": 1} if sampler == "pymc" else {}
    found = pjl_pymc.sample(model=model, sampler=sampler, **SHORT, **options)
    check_draws(found.posterior)
    assert found.constant_data["x"].dims == ("obs", "feature")
    assert found.observed_data["y"].dims == ("obs",)


def check_draws(posterior) -> None:
    """Check dims, coords and values of what was drawn of the linear model."""
    assert posterior["slope"].dims[-1:] == ("feature",)
    assert posterior["mu"].dims[-1:] == ("obs",)
    assert list(posterior["feature"].to_numpy()) == ["a", "b", "c"]
    x = xr.DataArray(np.cos(np.arange(36.0)).reshape(12, 3), dims=("obs", "feature"))
    want = posterior["intercept"] + (x * posterior["slope"]).sum("feature")
    np.testing.assert_allclose(posterior["mu"], want.transpose(*posterior["mu"].dims), rtol=1e-6, atol=1e-12)
    assert posterior["sigma"].std() > 0


@pytest.mark.parametrize("build", [hierarchical, reductions], ids=lambda build: build.__name__)
def test_other_models_are_sampled(build):
    model = build()
    posterior = pjl_pymc.sample(model=model, sampler="blackjax", **SHORT).posterior
    for v in (*model.free_RVs, *model.deterministics):
        assert posterior[v.name].dims == ("chain", "draw", *model.named_vars_to_dims.get(v.name, ()))
    if build is reductions:
        np.testing.assert_allclose(posterior["zero"].sum("k"), 0, atol=1e-12)
    else:
        assert list(posterior["group"].to_numpy()) == list("wxyz")


def test_pathfinder(fit):
    check_draws(fit.posterior)


def test_smc(model):
    options = {"random_seed": 1, "progressbar": False, "compute_convergence_checks": False}
    check_draws(pjl_pymc.sample_smc(60, chains=2, model=model, **options).posterior)


def test_constrain(model):
    start = point(model)
    found = pjl_pymc.constrain(model)({name: np.stack([value, value]) for name, value in start.items()})
    np.testing.assert_allclose(found["sigma"], np.exp(start["sigma_log__"]).repeat(2), rtol=1e-12)
    assert found["mu"].shape == (2, 12)


def test_predictions_on_new_data(fit):
    with linear():
        prior = pm.sample_prior_predictive(5, random_seed=1, compile_kwargs={"mode": FULLGRAPH})
        pm.set_data({"x": np.ones((3, 3)), "observed": np.zeros(3)}, coords={"obs": [7, 8, 9]})
        options = {"random_seed": 1, "progressbar": False, "compile_kwargs": {"mode": FULLGRAPH}}
        found = pm.sample_posterior_predictive(fit, var_names=["mu", "y"], predictions=True, **options).predictions
    assert prior.prior_predictive["y"].dims == ("chain", "draw", "obs")
    assert prior.prior["slope"].dims == ("chain", "draw", "feature")
    assert list(found["obs"].to_numpy()) == [7, 8, 9]
    want = fit.posterior["intercept"] + fit.posterior["slope"].sum("feature")
    np.testing.assert_allclose(found["mu"].isel(obs=0), want, rtol=1e-12)
    assert found["y"].std() > 0
