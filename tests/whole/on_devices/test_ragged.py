"""Log densities whose data the devices can't divide: every model has one, and it is that of one device."""

from __future__ import annotations

import re
import warnings

import jax
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.pymc import logdensity, shard
from pytensor_jaxpr_linker.run import placement

MESH = jax.make_mesh((8,), ("data",))
N = 43
COLLECTIVES = r" (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def covariates(rng, n):
    x, slope = rng.normal(size=(n, 3)), pm.Normal("slope", size=3)
    pm.Normal("y", x @ slope, pm.HalfNormal("noise"), observed=rng.normal(size=n), dims="obs")


def data_without_dims(rng, n):
    x = pm.Data("x", rng.normal(size=n))
    pm.Normal("y", pm.Normal("slope") * x, 1, observed=rng.normal(size=n), dims="obs")


def groups(rng, n):
    group, effect = rng.integers(0, 5, n), pm.Normal("effect", size=5)
    pm.Poisson("y", pt.exp(effect[group]), observed=rng.poisson(2, n), dims="obs")


def trials(rng, n):
    x, trials = rng.normal(size=n), rng.integers(5, 10, n)
    pm.Binomial("y", n=trials, logit_p=pm.Normal("slope") * x, observed=rng.integers(0, 5, n), dims="obs")


def censored(rng, n):
    parts = pm.Normal.dist(pm.Normal("slope") * rng.normal(size=n), 1)
    pm.Censored("y", parts, lower=None, upper=2, observed=rng.uniform(0, 2, n), dims="obs")


def mixture(rng, n):
    weights, means = pm.Dirichlet("weights", np.ones(2)), pm.Normal("means", size=2)
    pm.NormalMixture("y", weights, means, 1, observed=rng.normal(size=n), dims="obs")


def categorical(rng, n):
    pm.Categorical("y", logit_p=pm.Normal("level", size=3), observed=rng.integers(0, 3, n), dims="obs")


def ordered(rng, n):
    cuts = pm.Normal("cuts", 0, 1, size=3, transform=pm.distributions.transforms.ordered, initval=[-1, 0, 1])
    slope = pm.Normal("slope")
    pm.OrderedLogistic("y", eta=slope * rng.normal(size=n), cutpoints=cuts, observed=rng.integers(0, 4, n), dims="obs")


#: Models whose log density and gradient are one sum over observations.
SUMS = [covariates, data_without_dims, groups, trials, censored, mixture, categorical, ordered]


def centred(rng, n):
    """A sum over observations that other observations need."""
    x = pm.Data("x", rng.normal(size=n))
    pm.Normal("y", pm.Normal("slope") * (x - x.mean()), 1, observed=rng.normal(size=n), dims="obs")


def latent(rng, n):
    scale = pm.HalfNormal("scale")
    level = pm.Normal("level", 0, scale, dims="obs")
    pm.Normal("y", level, 1, observed=rng.normal(size=n), dims="obs")


def latent_in_groups(rng, n):
    group, spread, level = rng.integers(0, 5, n), pm.HalfNormal("spread", size=5), pm.Normal("level", dims="obs")
    pm.StudentT("y", nu=4, mu=spread[group] * level, sigma=0.5, observed=rng.normal(size=n), dims="obs")


def random_walk(rng, n):
    walk = pm.GaussianRandomWalk("walk", 0, pm.HalfNormal("step"), init_dist=pm.Normal.dist(0, 1), dims="obs")
    pm.Normal("y", walk, 1, observed=rng.normal(size=n), dims="obs")


def sum_of_steps(rng, n):
    walk = pt.cumsum(pm.HalfNormal("step") * pm.Normal("steps", dims="obs"))
    pm.Normal("y", walk, 1, observed=rng.normal(size=n), dims="obs")


def observed_walk(rng, n):
    step = pm.HalfNormal("step")
    pm.GaussianRandomWalk("y", 0, step, init_dist=pm.Normal.dist(0, 1), observed=rng.normal(size=n), dims="obs")


def autoregression(rng, n):
    start = pm.Normal.dist(0, 1, shape=2)
    pm.AR("y", pm.Normal("rho", size=2), 1, init_dist=start, observed=rng.normal(size=n), dims="obs")


def vectors(rng, n):
    mean = rng.normal(size=(n, 2)) @ pm.Normal("slope", size=(2, 2))
    pm.MvNormal("y", mean, np.array([[1, 0.3], [0.3, 1]]), observed=rng.normal(size=(n, 2)), dims=("obs", "pair"))


def gaussian_process(rng, n):
    where = pm.Data("where", np.linspace(0, 1, n)[:, None], dims=("obs", "one"))
    process = pm.gp.Marginal(cov_func=pm.HalfNormal("height") ** 2 * pm.gp.cov.ExpQuad(1, 0.3))
    process.marginal_likelihood("y", where, pm.Data("given", np.sin(np.arange(n)), dims="obs"), 0.1, dims="obs")


def distances(rng, n):
    """A matrix both of whose axes are padded."""
    place = rng.normal(size=n)
    distance = pm.Data("distance", abs(place[:, None] - place), dims=("obs", "obs"))
    near = pt.exp(-distance / pm.HalfNormal("range"))
    pm.Normal("y", near.sum(axis=1) * near.mean(axis=0), 1, observed=rng.normal(size=n), dims="obs")


#: Models with arrays of that length that are no data, or in which an operation must know it.
OTHERS = [
    *(centred, latent, latent_in_groups, random_walk, sum_of_steps, observed_walk),
    *(autoregression, vectors, gaussian_process, distances),
]


def model_of(make, rng, n=N):
    with pm.Model(coords={"obs": range(n), "pair": range(2), "one": [0]}) as model:
        make(rng, n)
    return model


def compare_with_one_device(logp, model, gradient, data=None, rtol=1e-12):
    """Check a log density and its gradient; return the compiled HLO."""
    data = logp.data if data is None else data
    want = logdensity(model, gradient=gradient)
    q = np.linspace(-0.5, 0.7, want.size)
    compiled = jax.jit(jax.value_and_grad(logp)).lower(q, data).compile()
    for found, wanted in zip(compiled(q, data), jax.jit(jax.value_and_grad(want))(q, want.data), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol * np.abs(wanted).max())
    return compiled.as_text()


@pytest.mark.parametrize("gradient", ["pytensor", "jax"])
@pytest.mark.parametrize("make", [*SUMS, *OTHERS], ids=lambda make: make.__name__)
def test_every_model(make, gradient, rng):
    model = model_of(make, rng)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        logp = shard(model, MESH, {"obs": "data"}, gradient=gradient)
    assert logp.padded == {"obs": 48}
    hlo = compare_with_one_device(logp, model, gradient, rtol=1e-9 if make is gaussian_process else 1e-12)
    if make in SUMS:
        assert re.findall(COLLECTIVES, hlo) == ["all-reduce"]


@pytest.mark.parametrize("n", [40, N])
def test_constants_are_divided(n, rng):
    """So is data for which the model says no dim."""
    for make, name in ((covariates, "constant_0"), (data_without_dims, "x")):
        logp = shard(model_of(make, rng, n), MESH, {"obs": "data"})
        array = logp.data[name]
        assert array.sharding.shard_shape(array.shape) == (-(-n // 8), *array.shape[1:])


@pytest.mark.parametrize("n", [40, N])
def test_a_covariate_equal_to_the_observations(n, rng):
    """PyMC makes one constant of both."""
    x = rng.normal(size=n)
    with pm.Model(coords={"obs": range(n)}) as model:
        pm.Normal("y", pm.Normal("a") * x.copy() + pm.Normal("b") * x.copy() ** 2, 1, observed=x, dims="obs")
    logp = shard(model, MESH, {"obs": "data"})
    assert {*logp.data} - {"obs_length"} == {"constant_0", "y"}
    compare_with_one_device(logp, model, "pytensor")


@pytest.mark.parametrize("gradient", ["pytensor", "jax"])
@pytest.mark.parametrize("make", [covariates, latent], ids=lambda make: make.__name__)
def test_second_derivatives(make, gradient, rng):
    model = model_of(make, rng, 11)
    logp, want = shard(model, MESH, {"obs": "data"}, gradient=gradient), logdensity(model, gradient="jax")
    q = np.linspace(-0.5, 0.7, want.size)
    np.testing.assert_allclose(jax.hessian(logp)(q, logp.data), jax.hessian(want)(q, want.data), rtol=1e-9, atol=1e-9)


def steps(rng, n):
    """Nothing must know the length, but there is a slice."""
    x = pm.Data("x", rng.normal(size=n), dims="obs")
    pm.Potential("y", -((x[3:] - pm.Normal("rho") * x[:-3]) ** 2).sum())


def test_other_lengths(rng):
    """A program for all lengths: the arrays with the dim must agree, and slices must leave some elements."""
    model = model_of(steps, rng)
    logp = shard(model, MESH, {"obs": "data"})
    for n in (4, 45, 48):
        pm.set_data({"x": rng.normal(size=n)}, model=model, coords={"obs": range(n)})
        assert int(logp.data["obs_length"]) == n
        compare_with_one_device(logp, model, "pytensor")
    for n in (3, 49):
        with pytest.raises(ValueError, match=rf"The data have {n} elements .* made for 4 to 48: call .*shard. again"):
            logp.place({"x": np.zeros(n)})


def test_arrays_of_different_lengths(rng):
    logp = shard(model_of(covariates, rng), MESH, {"obs": "data"})
    with pytest.raises(
        ValueError, match="Along the dim 'obs' 'y' has 44 elements and 'constant_0' 43: give all arrays"
    ):
        logp.place({"y": np.zeros(44)})
    placed = logp.place({"y": np.zeros(44), "constant_0": np.zeros((44, 3))})
    assert int(placed["obs_length"]) == 44


@pytest.mark.parametrize(("make", "n"), [(random_walk, N), (covariates, 40)], ids=["padded", "divided"])
def test_a_program_for_one_length(make, n, rng):
    logp = shard(model_of(make, rng, n), MESH, {"obs": "data"})
    assert "obs_length" not in logp.data
    longer = {name: np.concatenate([x, x[:1]]) for name, x in logp.current_data().items()}
    with pytest.raises(
        ValueError, match=rf"The data have {n + 1} elements along the dim 'obs', .* made for .*: call .*shard. again"
    ):
        logp.place(longer)


def test_parts_of_other_processes(rng, monkeypatch):
    """They come padded. The length is that of the model's data, or the one that is given."""
    logp = shard(model_of(data_without_dims, rng), MESH, {"obs": "data"})
    elsewhere = jax.device_put(np.resize(rng.normal(size=N), 48), logp.shardings["x"])
    monkeypatch.setattr(placement, "is_here", lambda value: value is not elsewhere)
    assert int(logp.place({"x": elsewhere})["obs_length"]) == N
    placed = logp.place({"x": elsewhere, "obs_length": np.array(41)})
    assert int(placed["obs_length"]) == 41 and placed["x"] is elsewhere
    monkeypatch.setattr(placement, "is_here", lambda value: False)
    with pytest.raises(
        ValueError, match=r"parts in other processes: make it 48 long, .*; obs_length says how many count"
    ):
        logp.place({"x": jax.device_put(np.zeros(40), logp.shardings["x"])})


def test_explain_takes_one(rng):
    told = pjl.explain(shard(model_of(latent, rng), MESH, {"obs": "data"}))
    assert [p.layout for p in told.placed if p.name == "'y'"] == ["divided, axis 0 along 'data'"]
