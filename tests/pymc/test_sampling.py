"""`pytensor_jaxpr_linker.pymc.sample`, with each sampler."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from helpers import run_python
from pymc.exceptions import SamplingError
from pytensor import wrap_py
from threadpoolctl import threadpool_info, threadpool_limits

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base.interpreter import usable_cores
from pytensor_jaxpr_linker.pymc import sample
from pytensor_jaxpr_linker.pymc.chains import chains, runners

SHORT = {
    "draws": 60,
    "tune": 60,
    "chains": 2,
    "random_seed": 1,
    "progressbar": False,
    "compute_convergence_checks": False,
}
STATS = {"acceptance_rate", "diverging", "energy", "lp", "n_steps", "reached_max_treedepth", "step_size", "tree_depth"}
MORE_STATS = {
    "blackjax": {"energy_error", "step_size_bar", "index_in_trajectory", "max_energy_error"},
    "nutpie": {"energy_error", "step_size_bar", "index_in_trajectory"},
    "numpyro": set(),
}


@pytest.fixture(scope="module")
def model():
    """Return a small model with dims, shared data, a transform and a Deterministic."""
    with pm.Model(coords={"k": ["a", "b"]}) as model:
        x = pm.Data("x", np.linspace(-1, 1, 20))
        slope = pm.Normal("slope", dims="k")
        sigma = pm.HalfNormal("sigma")
        pm.Deterministic("double", 2 * slope, dims="k")
        pm.Normal("y", slope[0] + slope[1] * x, sigma, observed=np.linspace(0, 2, 20) + np.sin(np.arange(20.0)))
    return model


@pytest.mark.parametrize(
    ("sampler", "method"),
    [
        ("blackjax", "parallel"),
        ("blackjax", "vectorized"),
        ("numpyro", "parallel"),
        ("numpyro", "vectorized"),
        ("nutpie", "parallel"),
    ],
)
def test_draws_statistics_and_data(model, sampler, method):
    pytest.importorskip(sampler)
    found = sample(model=model, sampler=sampler, chain_method=method, log_likelihood=method == "vectorized", **SHORT)
    posterior = found.posterior
    assert dict(posterior.sizes) == {"chain": 2, "draw": 60, "k": 2}
    assert posterior["slope"].dims == ("chain", "draw", "k")
    assert list(posterior["k"].to_numpy()) == ["a", "b"]
    assert set(posterior.data_vars) == {"slope", "sigma", "double"}
    np.testing.assert_allclose(posterior["double"], 2 * posterior["slope"])
    assert (
        np.abs(posterior["slope"].mean(("chain", "draw")) - 1).max() < 0.5
    )  # the data are a line with slope 1, and waves
    assert (posterior["sigma"] > 0).all()
    assert not np.array_equal(posterior["slope"][0], posterior["slope"][1])
    assert set(found.sample_stats.data_vars) == STATS | MORE_STATS[sampler]
    assert found.sample_stats["lp"].shape == (2, 60)
    assert 0.5 < found.sample_stats["acceptance_rate"].mean() < 1
    assert found.observed_data["y"].shape == (20,)
    assert found.constant_data["x"].shape == (20,)
    assert {"inference_library_version", "sampling_time", "tuning_steps"} <= posterior.attrs.keys()
    if method == "vectorized":
        assert found.log_likelihood["y"].shape == (2, 60, 20)


@pytest.mark.parametrize(
    ("mass_matrix", "target_accept"),
    [("diagonal", 0.65), ("diagonal", 0.8), ("diagonal", 0.95), ("dense", 0.8), ("low_rank", 0.8)],
)
def test_the_warm_up_reaches_the_acceptance_rate(mass_matrix, target_accept):
    """With the constants of BlackJAX's step size adaptation, 0.8 is 0.87 to 0.93."""
    with pm.Model() as model:
        x = pm.Normal("x", sigma=np.geomspace(0.5, 2, 30), shape=30)
        pm.Normal("y", x[0] + x[1], 1.0, observed=1.0)
    options = {"target_accept": target_accept, "mass_matrix": mass_matrix, "draws": 400, "tune": 600}
    found = sample(model=model, sampler="blackjax", **SHORT | options)
    assert abs(found.sample_stats["acceptance_rate"].mean() - target_accept) < 0.05


def test_chains_at_the_same_time_share_the_threads_of_blas(model, monkeypatch):
    cores, seen = usable_cores(), blas_threads_seen_by_chains(monkeypatch)
    before = blas_threads()
    for method in ("parallel", "sequential"):
        sample(model=model, sampler="blackjax", **SHORT | {"draws": 2, "tune": 2, "chain_method": method})
    assert seen[0] and set(seen[0]) == {max(1, cores // SHORT["chains"])}
    assert seen[1] == before == blas_threads()


LATE_LAPACK = """
import os
import numpy as np, pymc as pm, pytensor.tensor as pt
import pytensor_jaxpr_linker as pjl
from threadpoolctl import threadpool_info
from pytensor_jaxpr_linker.pymc import sample
from pytensor_jaxpr_linker.pymc.chains.chains import Chains

pjl.cache(os.environ["FOLDER"])
threads = lambda: [info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"]
before, chunks = threads(), Chains.chunks
Chains.chunks = lambda *args: print(len(threads()) > len(before), set(threads())) or chunks(*args)
with pm.Model():
    pm.MvNormal("x", np.zeros(3), chol=pt.linalg.cholesky(np.eye(3) * pm.HalfNormal("s") + 1.0), shape=3)
    sample(2, tune=2, chains=2, cores=2, random_seed=1, progressbar=False, compute_convergence_checks=False)
print(len(set(threads())))
"""


def test_chains_share_the_threads_of_a_lapack_that_is_loaded_late(tmp_path):
    """JAX loads SciPy's LAPACK while it compiles; a later process loads it with the kept programs."""
    share = max(1, usable_cores() // 2)
    for _ in range(2):
        assert run_python(LATE_LAPACK, FOLDER=str(tmp_path)) == f"True {{{share}}}\n1\n"


def blas_threads() -> list[int]:
    """Return how many threads each BLAS library has."""
    return [info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"]


def blas_threads_seen_by_chains(monkeypatch) -> list[list[int]]:
    """Return a list to which every run of chains adds `blas_threads`."""
    seen: list[list[int]] = []
    original = chains.Chains.chunks
    monkeypatch.setattr(chains.Chains, "chunks", lambda *args: seen.append(blas_threads()) or original(*args))
    return seen


def test_chains_have_no_more_threads_than_the_process_has_cores_and_the_user_allows(model, monkeypatch):
    seen, one_chain = blas_threads_seen_by_chains(monkeypatch), SHORT | {"draws": 2, "tune": 2, "chains": 1}
    with monkeypatch.context() as pinned:
        pinned.setattr("os.sched_getaffinity", lambda pid: {0}, raising=False)
        sample(model=model, sampler="blackjax", **one_chain)
    with threadpool_limits(1, user_api="blas"):
        sample(model=model, sampler="blackjax", **one_chain)
    assert {n for threads in seen for n in threads} == {1}


@pytest.mark.parametrize("in_turn", [{"chain_method": "sequential"}, {"cores": 1}])
def test_pymcs_own_steps_for_discrete_variables(in_turn):
    with pm.Model() as model:
        k = pm.Bernoulli("k", 0.5)
        pm.Normal("x", k)
    found = sample(model=model, sampler="pymc", **SHORT | {"draws": 10, "tune": 10} | in_turn, quiet=True)
    assert found.posterior["k"].dtype.kind == "i"
    assert found.posterior["x"].shape == (2, 10)
    with pytest.raises(ValueError, match="'k' is discrete: use sampler='pymc'"):
        sample(model=model, sampler="blackjax", **SHORT)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"sampler": "stan"}, ValueError, "Unknown sampler 'stan': choose one of 'nuts', 'nutpie'"),
        ({"chain_method": "pmap"}, ValueError, "Unknown chain_method 'pmap'"),
        ({"draws": 0}, ValueError, "draws must be an integer and at least 1, not 0"),
        ({"tune": -1}, ValueError, "tune must be an integer and at least 0"),
        ({"chains": 1.5}, ValueError, "chains must be an integer"),
        ({"draws": True}, ValueError, "draws must be an integer and at least 1, not True"),
        ({"target_accept": 1.0}, ValueError, "target_accept must be a number between 0 and 1, not 1.0"),
        ({"max_treedepth": 0}, ValueError, "max_treedepth must be an integer and at least 1, not 0"),
        ({"initvals": {"slop": 1.0}}, ValueError, "initvals has 'slop', but the free variables are 'slope', 'sigma'"),
        ({"sampler": "blackjax", "initvals": [{"slope": 1.0}] * 2}, ValueError, r"initvals has shape \(\) for 'slope'"),
        ({"sampler": "pymc", "chain_method": "vectorized"}, ValueError, "chain_method='parallel'"),
        ({"sampler": "mclmc", "target_accept": 0.9}, TypeError, "use desired_energy_var"),
        ({"sampler": "blackjax", "var_names": ["z"]}, ValueError, "has no 'z'"),
    ],
)
def test_bad_arguments(model, arguments, error, message):
    with pytest.raises(error, match=message):
        sample(model=model, **{**SHORT, **arguments})


def test_a_sampler_that_is_not_installed(model, monkeypatch):
    monkeypatch.setattr("pytensor_jaxpr_linker.pymc.arguments.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'pytensor_jaxpr_linker\[numpyro\]'"):
        sample(model=model, sampler="numpyro", **SHORT)


def test_a_model_without_free_variables():
    with pm.Model() as empty, pytest.raises(ValueError, match="sample_prior_predictive"):
        sample(model=empty, sampler="blackjax", **SHORT)


@pytest.mark.parametrize("sampler", ["blackjax", "nutpie"])
def test_a_start_without_density_names_the_term(sampler):
    pytest.importorskip(sampler)
    with pm.Model() as model:
        pm.Uniform("b", pm.Normal("a") + 10, 100, observed=0.0)
    with pytest.raises(SamplingError, match="the term of 'b' is -inf"):
        sample(model=model, sampler=sampler, **SHORT)


@pytest.mark.parametrize("sampler", ["blackjax", "nutpie"])
def test_a_start_without_gradient_names_the_variable(sampler):
    """The log density is finite at 0, the square root's gradient is not; with jitter the chains start elsewhere."""
    pytest.importorskip(sampler)
    with pm.Model() as model:
        pm.Normal("a")
        x = pm.Normal("x", shape=3, initval=np.zeros(3))
        pm.Potential("p", -pt.sqrt((x**2).sum()))
    with pytest.raises(SamplingError, match=r"is -3\.67\d*: the gradient by 'x' is not finite \(3 of 3 elements"):
        sample(model=model, sampler=sampler, jitter=False, **SHORT)
    assert not sample(model=model, sampler=sampler, **SHORT).sample_stats["diverging"].all()


@pytest.mark.parametrize("method", ["parallel", "vectorized", "sequential"])
def test_a_start_without_density_is_drawn_anew(method):
    """If half of the jittered points have no density, each chain finds another one, which chains of a group share."""
    with pm.Model() as model:
        x = pm.Normal("x", shape=2, initval=np.zeros(2))
        pm.Potential("p", pt.log(x[0]))
    found = sample(model=model, sampler="blackjax", chain_method=method, **{**SHORT, "chains": 6})
    assert (found.posterior["x"][..., 0] > 0).all()


def test_a_host_step_in_the_density():
    """nutpie runs it, the samplers that are one program refuse it and say why."""

    @wrap_py([pt.dscalar], [pt.dscalar])
    def half(x):
        return np.asarray(x / 2)

    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Potential("p", half(pm.Data("d", 1.0)) * x)
    with pytest.raises(pjl.GraphBreakError) as error:
        sample(model=model, sampler="blackjax", **SHORT)
    (note,) = error.value.__notes__
    assert "leave out sampler='nuts', or give sampler='nutpie' or 'pymc', which run it" in str(error.value)
    assert "gradient='jax'" not in str(error.value) and "half" in note
    pytest.importorskip("nutpie")
    with pytest.warns(pjl.GraphBreakWarning):
        found = sample(model=model, sampler="nutpie", **SHORT)
    assert abs(float(found.posterior["x"].mean()) - 0.5) < 0.7


def test_the_default_says_what_it_took(model, caplog):
    with caplog.at_level("INFO", "pymc.pytensor_jaxpr_linker"):
        found = sample(model=model, **SHORT)
    assert found.posterior.attrs["sampler"] == "nuts"
    assert [r.message for r in caplog.records if r.name == "pymc.pytensor_jaxpr_linker"] == [
        "NUTS of this package, which runs a chain as one XLA program with the model (sampler='nuts')"
    ]
    caplog.clear()
    sample(model=model, sampler="blackjax", **SHORT)
    assert not [r for r in caplog.records if r.name == "pymc.pytensor_jaxpr_linker"]


def test_the_default_for_host_steps(caplog):
    pytest.importorskip("nutpie")

    @wrap_py([pt.dscalar], [pt.dscalar])
    def half(x):
        return np.asarray(x / 2)

    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Potential("p", half(pm.Data("d", 1.0)) * x)
    with caplog.at_level("INFO", "pymc.pytensor_jaxpr_linker"), pytest.warns(pjl.GraphBreakWarning):
        found = sample(model=model, **SHORT)
    assert found.posterior.attrs["sampler"] == found.posterior.attrs["inference_library"] == "nutpie"
    assert "NUTS of nutpie: the log density has steps on the host" in caplog.text and "BlackJAX" not in caplog.text
    for argument in ({"mass_matrix": "low_rank"}, {"callback": print}, {"chain_method": "vectorized"}):
        with pytest.raises(pjl.GraphBreakError) as error:
            sample(model=model, **SHORT | argument)
        assert f"leave out {next(iter(argument))}" in str(error.value) and not hasattr(error.value, "__notes__")


@pytest.mark.parametrize("method", ["parallel", "vectorized"])
@pytest.mark.parametrize("mass_matrix", ["diagonal", "dense", "low_rank"])
def test_mass_matrices(mass_matrix, method):
    """The variances of two correlated variables, and how many gradients a draw takes."""
    covariance = np.array([[1.0, 0.999], [0.999, 1.0]]) * np.outer([1.0, 100.0], [1.0, 100.0])
    with pm.Model() as model:
        pm.MvNormal("x", np.zeros(2), covariance)
    options = SHORT | {"tune": 300, "draws": 500, "chain_method": method}
    found = sample(model=model, sampler="blackjax", mass_matrix=mass_matrix, **options)
    np.testing.assert_allclose(found.posterior["x"].std(("chain", "draw")), [1, 100], rtol=0.3)
    steps = float(found.sample_stats["n_steps"].mean())
    assert steps > 20 if mass_matrix == "diagonal" else steps < 10


def test_cores_are_chains_at_a_time(model, monkeypatch):
    asked = []
    pool = runners.ThreadPoolExecutor
    monkeypatch.setattr(runners, "ThreadPoolExecutor", lambda workers: asked.append(workers) or pool(workers))
    sample(model=model, sampler="blackjax", cores=1, **SHORT)
    assert asked[-1] == 1
    with pytest.raises(ValueError, match="leave one of them out"):
        sample(model=model, sampler="blackjax", cores=1, chain_method="vectorized", **SHORT)
