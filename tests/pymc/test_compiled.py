"""Models that are compiled once: `compile`, and what `sample` keeps."""

from __future__ import annotations

import logging
import pickle
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor import wrap_py

import pytensor_jaxpr_linker.pymc as jaxpr_pymc
from pytensor_jaxpr_linker import GraphBreakError, options
from pytensor_jaxpr_linker.pymc import constrain, fit_pathfinder, sample, sample_smc
from pytensor_jaxpr_linker.pymc.functions.graph import ModelFunction
from pytensor_jaxpr_linker.pymc.kept_models import KEPT_MODELS, MOST_MODELS
from pytensor_jaxpr_linker.pymc.kept_programs import MOST_PROGRAMS, KeptPrograms

SHORT = {"draws": 40, "tune": 40, "chains": 2, "random_seed": 1, "quiet": True, "compute_convergence_checks": False}
#: That start a chain, advance it, and compute the constrained values.
PROGRAMS = 3
Y = np.array([1.0, 2.0, 4.0])


def make_model(y=Y, scale=1.0, more=False):
    """Return a model with a dim, shared data, a transform and a Deterministic."""
    with pm.Model(coords={"row": range(len(y))}) as model:
        data = pm.Data("data", y, dims="row")
        mu = pm.Normal("mu", 0, 10 * scale)
        sigma = pm.HalfNormal("sigma")
        pm.Deterministic("centered", data - mu, dims="row")
        pm.Normal("y", mu, sigma, observed=data, dims="row")
        if more:
            pm.Normal("more", mu)
    return model


@pytest.fixture
def compilations(monkeypatch):
    """Return a list that grows by what XLA compiles and by calls of the model's functions, which JAX traces."""
    seen = []
    lower, call = jax.stages.Lowered.compile, ModelFunction.__call__
    monkeypatch.setattr(ModelFunction, "__call__", lambda self, *a, **k: seen.append("traced") or call(self, *a, **k))
    monkeypatch.setattr(
        jax.stages.Lowered, "compile", lambda self, *a, **k: seen.append("compiled") or lower(self, *a, **k)
    )
    return seen


@pytest.mark.parametrize(
    ("sampler", "method"), [("blackjax", "parallel"), ("blackjax", "vectorized"), ("nutpie", "parallel")]
)
def test_a_second_call_compiles_nothing(compilations, sampler, method):
    pytest.importorskip(sampler)
    model = make_model()
    arguments = {**SHORT, "model": model, "sampler": sampler, "chain_method": method}
    first = sample(**arguments)
    assert compilations
    compilations.clear()
    second = sample(**arguments)
    assert not compilations
    np.testing.assert_array_equal(first.posterior["mu"], second.posterior["mu"])
    other = sample(**{**arguments, "random_seed": 2})
    assert not compilations and not np.array_equal(first.posterior["mu"], other.posterior["mu"])


@pytest.fixture
def nothing_kept(monkeypatch):
    """Begin as a process does, whatever other tests have sampled."""
    monkeypatch.setattr(KEPT_MODELS, "_kept", [])


@pytest.mark.parametrize(
    ("sampler", "method", "inputs"),
    [
        ("blackjax", "parallel", {"tune": 90, "target_accept": 0.95, "step_size": 0.3}),
        ("blackjax", "vectorized", {"tune": 90, "target_accept": 0.95, "step_size": 0.3}),
        ("numpyro", "parallel", {"target_accept": 0.95, "step_size": 0.3}),
        ("mclmc", "parallel", {"desired_energy_var": 1e-5, "max_treedepth": 2}),
        ("chees", "vectorized", {"target_accept": 0.95, "step_size": 0.3, "max_treedepth": 2}),
    ],
)
def test_other_values_of_inputs_compile_nothing(compilations, nothing_kept, sampler, method, inputs):
    pytest.importorskip("numpyro" if sampler == "numpyro" else "blackjax")
    model = make_model()
    arguments = {**SHORT, "sampler": sampler, "chain_method": method}
    before = sample(model=model, **arguments).posterior["mu"]
    compilations.clear()
    for name, value in inputs.items():
        sample(model=model, **{**arguments, name: value})
        assert not compilations, name
    found = sample(model=model, **{**arguments, **inputs}).posterior["mu"]
    assert not np.array_equal(found, before)
    np.testing.assert_array_equal(found, alone(make_model(), **{**arguments, **inputs}).posterior["mu"])


@pytest.mark.parametrize(("mass_matrix", "tune"), [("dense", 90), ("low_rank", SHORT["tune"])])
def test_other_values_of_inputs_and_another_mass_matrix(compilations, mass_matrix, tune):
    pytest.importorskip("blackjax")
    model = make_model()
    compiled = jaxpr_pymc.compile(model)
    compiled.sample(**SHORT, mass_matrix=mass_matrix)
    compilations.clear()
    arguments = {"mass_matrix": mass_matrix, "target_accept": 0.9, "tune": tune}
    found = compiled.sample(**{**SHORT, **arguments})
    assert not compilations
    np.testing.assert_array_equal(found.posterior["mu"], alone(make_model(), **arguments).posterior["mu"])


@pytest.mark.parametrize("arguments", [{"max_treedepth": 1}, {"mass_matrix": "diagonal"}], ids=str)
def test_other_values_of_constants_compile_the_sampler_anew(compilations, nothing_kept, arguments):
    pytest.importorskip("blackjax")
    model = make_model()
    before = sample(model=model, **SHORT)
    compilations.clear()
    found = sample(model=model, **{**SHORT, **arguments})
    assert compilations.count("compiled") == 2  # what starts a chain, and what advances it
    assert not np.array_equal(found.posterior["mu"], before.posterior["mu"])


def test_each_warm_up_keeps_to_its_schedule():
    pytest.importorskip("blackjax")
    model = make_model()
    for tune in (40, 0, 90):
        found = sample(model=model, **{**SHORT, "tune": tune}, discard_tuned_samples=False)
        assert np.ptp(found.sample_stats["step_size"].to_numpy(), axis=1).max() == 0  # adapted before the first draw
        if tune:
            sizes = found.warmup_sample_stats["step_size"].to_numpy()
            assert sizes.shape == (2, tune) and (sizes[:, 1:] != sizes[:, :-1]).all()


@pytest.mark.parametrize(
    ("draw", "others"), [(sample_smc, {"threshold": 0.8}), (fit_pathfinder, {"initvals": {"mu": 1.0}})]
)
def test_a_second_call_without_chains_compiles_nothing(compilations, nothing_kept, monkeypatch, draw, others):
    pytest.importorskip("blackjax")
    made, compile_ = [], pm.compile
    monkeypatch.setattr(pm, "compile", lambda *a, **k: made.append("compiled") or compile_(*a, **k))
    model, arguments = make_model(), {"random_seed": 1, "progressbar": False}
    if draw is sample_smc:
        arguments |= {"chains": 2, "compute_convergence_checks": False}
    first = draw(100, model=model, **arguments)
    assert compilations.count("compiled") == (
        2 if draw is sample_smc else 3
    )  # what draws, constrained values, a density
    for seen in (compilations, made):
        seen.clear()
    for changed in ({}, {"random_seed": 2}, others):
        found = draw(100, model=model, **{**arguments, **changed})
        assert (draw is fit_pathfinder and "initvals" in changed) or not made
        assert not compilations
        assert np.array_equal(found.posterior["centered"], first.posterior["centered"]) == (not changed)
    monkeypatch.setattr(KEPT_MODELS, "_kept", [])
    expected = draw(100, model=make_model(), **{**arguments, **others})
    np.testing.assert_array_equal(found.posterior["centered"], expected.posterior["centered"])


def test_an_equal_model_compiles_nothing(compilations):
    first = sample(model=make_model(), **SHORT)
    compilations.clear()
    second = sample(model=make_model(), **SHORT)  # as when a cell of a notebook runs again
    assert not compilations
    np.testing.assert_array_equal(first.posterior["centered"], second.posterior["centered"])
    third = sample(model=make_model(Y + 100), **SHORT)  # data are arguments
    assert not compilations
    np.testing.assert_allclose(
        third.posterior["centered"] + third.posterior["mu"], np.broadcast_to(Y + 100, (2, 40, 3))
    )


@pytest.mark.parametrize("arguments", [{"scale": 2.0}, {"more": True}], ids=str)
def test_another_model_is_not_mistaken_for_one_that_is_kept(arguments):
    sample(model=make_model(), **SHORT)
    found = sample(model=make_model(**arguments), **SHORT)
    expected = alone(make_model(**arguments))
    np.testing.assert_array_equal(found.posterior["mu"], expected.posterior["mu"])


def alone(model, **arguments):
    """Sample while nothing is kept."""
    kept, KEPT_MODELS._kept = KEPT_MODELS._kept, []
    try:
        return sample(model=model, **{**SHORT, **arguments})
    finally:
        KEPT_MODELS._kept = kept


def test_changes_of_a_model_are_seen():
    model = make_model()
    sample(model=model, **SHORT)
    with model:
        pm.set_data({"data": Y + 5})
    np.testing.assert_array_equal(
        sample(model=model, **SHORT).posterior["mu"], alone(make_model(Y + 5)).posterior["mu"]
    )
    with model:
        pm.set_data({"data": np.ones(5)}, coords={"row": range(5)})
    longer = sample(model=model, **SHORT)
    assert longer.posterior["centered"].shape == (2, 40, 5)
    np.testing.assert_array_equal(longer.posterior["mu"], alone(make_model(np.ones(5))).posterior["mu"])
    with model:
        pm.Potential("penalty", -((model["mu"] - 50) ** 2) * 100)
    assert abs(sample(model=model, **SHORT).posterior["mu"].mean() - 50) < 1
    with model:
        pm.Deterministic("double", 2 * model["mu"])
    assert "double" in sample(model=model, **SHORT).posterior


def test_options_are_seen():
    model = make_model()
    first = KEPT_MODELS.find(model, "pytensor")
    with options(checks="skip"):
        assert KEPT_MODELS.find(model, "pytensor") is not first
    with jax.default_matmul_precision("highest"):
        assert KEPT_MODELS.find(model, "pytensor") is not first
    model.check_bounds = False
    assert KEPT_MODELS.find(model, "pytensor").programs is not first.programs
    assert KEPT_MODELS.find(model, "jax") is not KEPT_MODELS.find(model, "pytensor")


def test_what_is_kept_is_bounded():
    models = [make_model(np.ones(n)) for n in range(3, 5 + MOST_MODELS)]
    for model in models:
        KEPT_MODELS.find(model, "pytensor")
    assert [k.model for k in KEPT_MODELS._kept] == models[: -MOST_MODELS - 1 : -1]
    kept = KeptPrograms()
    for i in range(MOST_PROGRAMS + 3):
        kept.find(i, lambda i=i: -i)
    assert len(kept) == MOST_PROGRAMS
    assert kept.find(MOST_PROGRAMS, lambda: "made") == -MOST_PROGRAMS
    assert kept.find(0, lambda: "made") == "made"


def test_a_compiled_model(compilations, nothing_kept):
    model = make_model()
    compiled = jaxpr_pymc.compile(model)
    found = compiled.sample(**SHORT)
    np.testing.assert_array_equal(found.posterior["mu"], alone(model).posterior["mu"])
    point = {"mu": 0.5, "sigma_log__": 0.1}
    expected = model.compile_logp(mode="FAST_COMPILE")(point)
    np.testing.assert_allclose(compiled.logdensity(point), expected, rtol=1e-12)
    compilations.clear()
    for i in range(MOST_MODELS + 1):  # until `sample` has forgotten it
        KEPT_MODELS.find(make_model(np.ones(10 + i)), "pytensor")
    np.testing.assert_array_equal(compiled.sample(**SHORT).posterior["mu"], found.posterior["mu"])
    assert not compilations
    assert "2 programs" in repr(compiled)


def test_other_data(compilations):
    model = make_model()
    compiled = jaxpr_pymc.compile(model)
    compiled.sample(**SHORT)
    compilations.clear()
    moved = compiled.with_data(data=Y + 5)
    np.testing.assert_array_equal(moved.sample(**SHORT).posterior["mu"], alone(make_model(Y + 5)).posterior["mu"])
    assert compilations.count("compiled") == PROGRAMS  # of `alone`
    longer = compiled.with_data({"data": np.ones(5)}).sample(**SHORT)
    assert list(longer.posterior["row"]) == list(range(5))
    np.testing.assert_array_equal(longer.posterior["mu"], alone(make_model(np.ones(5))).posterior["mu"])
    np.testing.assert_array_equal(model["data"].get_value(), Y)
    with pytest.raises(ValueError, match=r"no shared data 'dat'; it has 'data' \(pm.Data\). Did you mean 'data'\?"):
        compiled.with_data(dat=Y)
    with pytest.raises(ValueError):  # PyMC's, about the shape
        compiled.with_data(data=np.ones((2, 2)))


def test_a_copy_has_the_draws_of_the_model(nothing_kept):
    """Whichever compiles: PyMC's copy has variables in another order."""
    with pm.Model() as model:
        slope, level = pm.Normal("slope"), pm.Normal("level")
        pm.Deterministic("sum", slope + level)
        pm.Normal("y", level + slope * np.arange(3.0), pm.HalfNormal("spread"), observed=pm.Data("out", np.ones(3)))
    compiled = jaxpr_pymc.compile(model)
    copy = compiled.with_data(out=np.ones(3))
    for name in ("free_RVs", "unobserved_RVs", "value_vars", "basic_RVs"):
        assert [v.name for v in getattr(copy.model, name)] == [v.name for v in getattr(model, name)]
    of_copy, of_model = copy.sample(**SHORT).posterior, compiled.sample(**SHORT).posterior
    for name in ("slope", "level", "spread", "sum"):
        np.testing.assert_array_equal(of_copy[name], of_model[name])


def test_fits_in_threads(compilations, nothing_kept):
    """A thread that builds a graph, for which it changes PyTensor's settings, does not make others compile again."""
    compiled = jaxpr_pymc.compile(make_model(np.ones(7)))
    compiled.sample(**SHORT)
    compilations.clear()
    level = logging.getLogger("pymc").level

    def fit(i):
        return compiled.with_data(data=np.full(7, i)).sample(**SHORT).posterior["mu"]

    # PyTensor's threads put back what others of them have set, so that nodes would have no lines from here on.
    with pytensor.config.change_flags(traceback__limit=pytensor.config.traceback__limit), ThreadPoolExecutor(4) as pool:
        found = list(pool.map(fit, range(12)))
    assert not compilations and logging.getLogger("pymc").level == level
    np.testing.assert_array_equal(found[11], fit(11))


def test_other_data_with_names():
    with pm.Model(coords={"who": ["a", "b"]}) as model:
        x = pm.Data("x", np.zeros(2), dims="who")
        pm.Normal("y", pm.Normal("mu", dims="who"), observed=x)
    compiled = jaxpr_pymc.compile(model)
    found = compiled.with_data(x=np.zeros(3), coords={"who": ["a", "b", "c"]}).sample(**SHORT)
    assert list(found.posterior["who"].to_numpy()) == ["a", "b", "c"] and found.posterior["mu"].shape == (2, 40, 3)
    with pytest.raises(Exception, match="who"):  # PyMC's: it wants coordinates
        compiled.with_data(x=np.zeros(3))


@pytest.mark.parametrize("sampler", ["blackjax", "nutpie"])
def test_parameters_of_another_length(sampler):
    pytest.importorskip(sampler)
    with pm.Model(coords={"row": range(2)}) as model:
        x = pm.Data("x", np.zeros(2), dims="row")
        pm.Normal("y", pm.Normal("mu", dims="row"), observed=x, dims="row")
    for n in (2, 4, 3):
        with model:
            pm.set_data({"x": np.full(n, 3.0)}, coords={"row": range(n)})
        found = sample(model=model, sampler=sampler, **SHORT).posterior["mu"]
        assert found.shape == (2, 40, n) and abs(found.mean() - 1.5) < 0.7


def test_pickles():
    compiled = jaxpr_pymc.compile(make_model(), gradient="jax")
    found = pickle.loads(pickle.dumps(compiled))
    assert found.gradient == "jax"
    np.testing.assert_array_equal(found.sample(**SHORT).posterior["mu"], compiled.sample(**SHORT).posterior["mu"])


def test_threads_compile_a_model_once(compilations):
    model = make_model(np.ones(6))
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: sample(model=model, **SHORT).posterior["mu"], range(2)))
    assert compilations.count("compiled") == PROGRAMS
    np.testing.assert_array_equal(*found)


def test_a_model_without_a_program_is_forgotten():
    """A rule may be registered before the next call. Other errors leave the programs: other initvals may do."""

    @wrap_py([pt.dscalar], [pt.dscalar])
    def half(x):
        return np.asarray(x / 2)

    with pm.Model() as broken:
        pm.Potential("p", half(pm.Data("d", 1.0)) * pm.Normal("x"))
    with pytest.raises(GraphBreakError):
        sample(model=broken, sampler="blackjax", **SHORT)
    assert broken not in [k.model for k in KEPT_MODELS._kept]
    with pm.Model() as without_density:
        pm.Uniform("b", pm.Normal("a") + 10, 100, observed=0.0)
    with pytest.raises(pm.exceptions.SamplingError):
        sample(model=without_density, **SHORT)
    assert without_density in [k.model for k in KEPT_MODELS._kept]


def test_arguments_that_can_not_be():
    with pytest.raises(ValueError, match="Unknown gradient 'stan'"):
        jaxpr_pymc.compile(make_model(), gradient="stan")
    with pm.Model() as empty, pytest.raises(ValueError, match="no free variables"):
        jaxpr_pymc.compile(empty)
    with pytest.raises(TypeError, match="model"):
        jaxpr_pymc.compile(make_model()).sample(model=make_model())


def test_constrained_values_inside_transformations():
    """Values, a batch and a gradient equal the formula's."""
    function = constrain(make_model(), var_names=["sigma", "centered"])
    point = {"mu": np.array(0.5), "sigma_log__": np.array(0.1)}
    with jax.enable_x64(True):
        one = jax.jit(function)(point)
        many = jax.vmap(function)({name: np.stack([x, x + 1]) for name, x in point.items()})
        slope = jax.grad(lambda q: function(q)["sigma"])(point)
        new = jax.jit(lambda q, d: function(q, {"data": d}))(point, np.array([0.5, 1.5, 2.5]))
    assert set(one) == {"sigma", "centered"}
    np.testing.assert_allclose(one["centered"], Y - 0.5)
    np.testing.assert_allclose(many["sigma"], np.exp([0.1, 1.1]))
    np.testing.assert_allclose(slope["sigma_log__"], np.exp(0.1))
    np.testing.assert_allclose(new["centered"], [0, 1, 2])
    np.testing.assert_allclose(function({name: np.stack([x, x]) for name, x in point.items()})["sigma"], np.exp(0.1))
