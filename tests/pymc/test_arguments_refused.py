"""Arguments that samplers refuse before they compile, and words of other samplers that they take."""

from __future__ import annotations

import inspect
import logging
import re
from ast import literal_eval
from functools import wraps
from pathlib import Path

import jax
import numpy as np
import pymc as pm
import pytest
from pytensor.compile.mode import get_mode
from rich.theme import Theme

import pytensor_jaxpr_linker as pjl
import pytensor_jaxpr_linker.pymc as ours
from pytensor_jaxpr_linker.pymc import constrain, logdensity, sample
from tests.pymc.test_arguments import IN_TURN, METHODS, NO_CHECKS, SAMPLERS, SHORT, draw, half


@pytest.fixture(scope="module")
def model():
    """Return a model of a vector and a scale."""
    with pm.Model() as model:
        mu = pm.Normal("mu", shape=2)
        sigma = pm.HalfNormal("sigma")
        pm.Deterministic("double", 2 * mu)
        pm.Normal("y", mu, sigma, observed=[1.0, 2.0])
    return model


@pytest.fixture
def no_compilation(monkeypatch):
    """Fail where a sampler begins."""

    def begin(*args, **kwargs):
        raise AssertionError("something is compiled")

    for place in ("sampling.drawn", "samplers.pymc_steps.pm.sample", "samplers.pathfinder.climb"):
        monkeypatch.setattr(f"pytensor_jaxpr_linker.pymc.{place}", begin)


@pytest.mark.parametrize("name", METHODS)
def test_an_unknown_gradient(model, name, no_compilation):
    with pytest.raises(ValueError, match="Unknown gradient 'stan': choose one of 'pytensor', 'jax'"):
        draw(name, model=model, gradient="stan")


def test_jaxs_gradient_is_not_dropped(model):
    with pytest.raises(ValueError, match="leave out gradient='jax'"):
        sample(model=model, gradient="jax", **IN_TURN)
    pytest.importorskip("nutpie")
    with pm.Model() as with_host_step:
        pm.Normal("x", half(pm.Data("d", 1.0)))
    with pytest.raises(pjl.GraphBreakError) as error:
        sample(model=with_host_step, sampler="nutpie", gradient="jax", **SHORT)
    assert "leave out gradient='jax'" in error.value.__notes__[0]


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"target_acept": 0.9}, "takes no argument 'target_acept'. Did you mean 'target_accept'?"),
        ({"frobnicate": 1}, "takes no argument 'frobnicate'."),
        ({"thin": 2}, "takes no argument 'thin'. It is thinning here."),
        (
            {"backend": "jax"},
            "takes no argument 'backend' here: the mode is JAXPR, so leave it out, or call pm.sample.",
        ),
    ],
    ids=lambda x: "".join(x) if isinstance(x, dict) else "",
)
def test_an_unknown_argument(model, name, argument, message, no_compilation):
    pytest.importorskip({"mclmc": "blackjax"}.get(name, name))
    with pytest.raises(TypeError) as error:
        sample(model=model, sampler=name, **SHORT, **argument)
    shown = {"blackjax": "nuts"}.get(name, name)
    assert str(error.value).startswith(f"sampler={shown!r} {message}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sampler": "blackjax", "adaptation": "flow"}, "takes no argument 'adaptation'. Samplers that do: 'nutpie'."),
        ({"sampler": "mclmc", "desired_energy": 1}, "Did you mean 'desired_energy_var'?"),
        ({"sampler": "mclmc", "desired_energy_var": -1}, "desired_energy_var must be a number above 0, not -1."),
        ({"sampler": "mclmc", "adjusted": "yes"}, "adjusted must be True or False, not 'yes'."),
        ({"sampler": "mclmc", "adjusted": True, "desired_energy_var": 1e-3}, "desired_energy_var to bound: leave it"),
        (
            {"sampler": "pymc", "nuts": {"step_scal": 1}},
            "NUTS takes no argument 'step_scal'. Did you mean 'step_scale'?",
        ),
        (
            {"sampler": "pymc", "compile_kwargs": {"mode": "C"}},
            "takes no argument 'compile_kwargs' here: the mode is JA",
        ),
        ({"mass_matrix": "diag"}, "Unknown mass_matrix 'diag': choose one of 'diagonal', 'dense', 'low_rank'."),
        ({"cores": 0}, "cores must be an integer and at least 1, not 0."),
        ({"sampler": "nutpie", "save_warmup": True}, "'save_warmup' here: use discard_tuned_samples."),
        ({"sampler": "nutpie", "blocking": False}, "'blocking' here: sample returns when all chains are done."),
        ({"sampler": "nutpie", "return_raw_trace": True}, "'return_raw_trace' here: sample returns a DataTree."),
        ({"sampler": "nutpie", "seed": 1}, "'seed' here: use random_seed."),
        ({"sampler": "nutpie", "store_gradent": True}, "Did you mean 'store_gradient'?"),
        ({"sampler": "nutpie", "mass_matrix_gamma": 1e-5}, "not available for diag adaptation"),
        (
            {"sampler": "nutpie", "adaptation": "flow"},
            "nutpie' refuses its options: No transformation adapter specified.",
        ),
    ],
    ids=lambda x: "-".join(map(str, x.values())) if isinstance(x, dict) else "",
)
def test_refused_options(model, arguments, message, no_compilation):
    pytest.importorskip("nutpie")
    with pytest.raises((TypeError, ValueError)) as error:
        sample(model=model, **SHORT, **arguments)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"mass_matrix": np.eye(2)}, ValueError, "Unknown mass_matrix array([[1., 0.], [0., 1.]]): choose one of 'dia"),
        ({"sampler": ["blackjax"]}, ValueError, "Unknown sampler ['blackjax']: choose one of"),
        ({"nuts": 3}, TypeError, "nuts must be a dict, not 3."),
        ({"var_names": 3}, TypeError, "Variables of the model, or their names, are needed, not 3."),
        ({"var_names": [3]}, TypeError, "Variables of the model, or their names, are needed, not [3]."),
        ({"initvals": "x"}, TypeError, "initvals must be a dict, or a list with a dict for each chain, not 'x'."),
        ({"initvals": [1, 2]}, TypeError, "initvals must be a dict, or a list with a dict for each chain, not [1, 2]."),
        ({"idata_kwargs": 3}, TypeError, "idata_kwargs must be a dict, not 3."),
        ({"idata_kwargs": {"dims": 3}}, TypeError, "idata_kwargs['dims'] must be a dict, not 3."),
        ({"idata_kwargs": {"log_likelihood": ["z"]}}, ValueError, "has 'z', but the observed variables are 'y'."),
        ({"log_likelihood": 3}, TypeError, "Variables of the model, or their names, are needed, not 3."),
        ({"log_likelihood": True, "var_names": "mu"}, ValueError, "var_names leaves out 'sigma': add it."),
        ({"random_seed": -1}, ValueError, "random_seed must be at least 0, not -1."),
        ({"random_seed": [1, -2]}, ValueError, "random_seed must be at least 0, not -2."),
        ({"random_seed": "a"}, TypeError, "random_seed must be an integer, one for each chain, or a NumPy generator"),
        ({"random_seed": 1.5}, TypeError, "or a NumPy generator, not 1.5."),
        ({"random_seed": jax.random.key(1)}, TypeError, "give int(jax.random.bits(key)) of a key"),
        ({"idata_kwargs": {"bad": 1}}, TypeError, "idata_kwargs takes 'coords', 'dims', "),
        ({"idata_kwargs": {"dims": {"sigma": ["a"]}}}, ValueError, "names 1 axis of 'sigma', which has 0."),
        (
            {"idata_kwargs": {"dims": {"mu": ["a"]}, "coords": {"a": [1]}}},
            ValueError,
            "'mu' has length 2 along the dim 'a', but idata_kwargs has 1 coordinate: give",
        ),
        ({"initvals": {"muu": 1}}, ValueError, "initvals has 'muu', but the free variables are 'mu', 'sigma'."),
        ({"progressbar": "wide"}, ValueError, "Unknown progressbar 'wide': choose one of 'combined', 'split'"),
        ({"progressbar": 3}, TypeError, "progressbar must be True or False, not 3."),
        ({"progressbar_theme": 3}, TypeError, "progressbar_theme must be a rich.theme.Theme, not 3."),
        ({"jitter": "no"}, TypeError, "jitter must be True or False, not 'no'."),
        ({"return_inferencedata": False}, TypeError, "sample returns a DataTree, so leave it out and read data.post"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
@pytest.mark.parametrize("sampler", ["blackjax", "pymc"])
def test_arguments_of_another_kind(model, sampler, arguments, error, message, no_compilation):
    if sampler == "pymc" and "mass_matrix" in arguments:
        pytest.skip("PyMC has no such argument")
    with pytest.raises(error) as raised:
        sample(model=model, **{**SHORT, "sampler": sampler, **arguments})
    assert message in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("restarts", [1, -1, None, True, 0.5, "no"])
@pytest.mark.parametrize(
    "more", [{}, {"sampler": "pymc"}, {"sampler": "mclmc"}, {"mesh": jax.make_mesh((1,), ("chains",))}], ids=str
)
def test_chains_do_not_start_again(model, restarts, more, no_compilation):
    with pytest.raises(ValueError, match=r"that hid modes .* more chains.* reparametrize.* sample_smc"):
        sample(model=model, restarts=restarts, **SHORT, **more)


def test_no_restarts_are_accepted(model):
    """The argument has no effect; on a mesh the error is about another one."""
    found = ours.compile(model).sample(restarts=np.int64(0), **SHORT)
    assert "restarts" not in found.posterior.attrs
    np.testing.assert_array_equal(found.posterior["mu"], sample(model=model, **SHORT).posterior["mu"])
    with pytest.raises(TypeError, match="cores is not for runs with mesh"):
        sample(model=model, restarts=0, mesh=jax.make_mesh((1,), ("chains",)), cores=2, **SHORT)


def test_one_seed_in_several_forms(model):
    first = draw("blackjax", model=model, random_seed=[0, 1]).posterior["mu"]
    np.testing.assert_array_equal(first, draw("blackjax", model=model, random_seed=range(2)).posterior["mu"])
    second = draw("blackjax", model=model, random_seed=1).posterior["mu"]
    np.testing.assert_array_equal(second, draw("blackjax", model=model, random_seed=np.array(1)).posterior["mu"])
    assert draw("pymc", model=model, random_seed=range(2)).posterior["mu"].shape == (2, 20, 2)


def test_what_pymcs_users_write_is_taken(model):
    found = draw("blackjax", model=model, return_inferencedata=True, progressbar=0)
    assert found.posterior["mu"].shape == (2, 20, 2)


#: Of each argument of `pm.sample` values other than its default, and, unless they work, what the message says to do,
#: for samplers other than "pymc" and for "pymc".
OTHER_VALUES = {
    "draws": [(7, "", "")],
    "tune": [(7, "", "")],
    "chains": [(1, "", "")],
    "cores": [(1, "", "")],
    "random_seed": [([3, 4], "", "")],
    "progressbar": [("combined", "", "")],
    "progressbar_theme": [(Theme(), "", "")],
    "quiet": [(True, "", "")],
    "step": [(pm.Metropolis, "leave it out, or give sampler='pymc'", "")],
    "var_names": [(["mu"], "", "")],
    "nuts_sampler": [("nuts", "", "leave out one of them"), ("pymc", "leave out one of them", "")],
    "initvals": [({"sigma": 2.0}, "", "")],
    "init": [("jitter+adapt_diag_grad", "", ""), ("adapt_full", "", ""), ("map", "or sampler='pymc' for it", "")],
    "jitter_max_retries": [(5, "leave it out, or give sampler='pymc'", "")],
    "n_init": [(1_000, "leave it out, or give sampler='pymc'", "")],
    "trace": [(pm.backends.NDArray, "use store, a folder for draws, or give sampler='pymc'", "")],
    "discard_tuned_samples": [(False, "", "")],
    "compute_convergence_checks": [(False, "", "")],
    "keep_warning_stat": [(True, "read sample_stats.diverging, or give sampler='pymc'", "")],
    "return_inferencedata": [(False, "read data.posterior", "read data.posterior")],
    "idata_kwargs": [({"coords": {"a": [1]}}, "", "")],
    "nuts_sampler_kwargs": [({"max_treedepth": 5}, "give them as arguments of their own", "use nuts")],
    "callback": [(print, "", "")],
    "mp_ctx": [("spawn", "leave it out, or give sampler='pymc'", "")],
    "blas_cores": [(None, "leave it out, or give", ""), (1, "leave it out, or give", "")],
    "model": [(3, "or none inside `with model:`", "or none inside `with model:`")],
    "backend": [("jaxpr", "", ""), ("numba", "or call pm.sample", "or call pm.sample")],
    "compile_kwargs": [({}, "", ""), ({"mode": get_mode("JAXPR")}, "", ""), ({"mode": "C"}, "pm.sample", "pm.sample")],
}
#: The default of each argument of `pm.sample`.
PYMCS = {name: p.default for name, p in inspect.signature(pm.sample).parameters.items() if name != "kwargs"}


def test_each_argument_of_pymc_has_a_row():
    """A new argument of PyMC's needs a row here and one in the table of docs/from_pymc.md, with its default."""
    page = (Path(ours.__file__).parents[2] / "docs" / "from_pymc.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| `(\w+)` \| `([^|]+)` \| [^|]+ \|$", page.partition("### Each argument of `pm.sample`")[2], re.M
    )
    assert PYMCS.keys() == OTHER_VALUES.keys() == dict(rows).keys()
    assert {name: literal_eval(default) for name, default in rows} == PYMCS


@pytest.fixture
def begins(monkeypatch):
    """Fail where a sampler begins, with the words "it begins"; `pm.sample` keeps its signature."""

    def begin(*args, **kwargs):
        raise AssertionError("it begins")

    monkeypatch.setattr("pytensor_jaxpr_linker.pymc.sampling.drawn", begin)
    monkeypatch.setattr(pm, "sample", wraps(pm.sample)(begin))


@pytest.mark.parametrize("sampler", ["nuts", "pymc"])
@pytest.mark.parametrize(
    ("name", "row"),
    [
        pytest.param(name, row, id=f"{name}, {type(row[0]).__name__} {i}")
        for name, rows in OTHER_VALUES.items()
        for i, row in enumerate(rows)
    ],
)
def test_values_of_pymcs_arguments_work_or_name_the_remedy(model, sampler, name, row, begins):
    value, *remedies = row
    remedy = remedies[sampler == "pymc"]
    with pytest.raises((TypeError, ValueError) if remedy else AssertionError, match=re.escape(remedy or "it begins")):
        sample(**{"model": model, "chains": 2, "sampler": sampler, name: value})


@pytest.mark.parametrize("sampler", ["nuts", "nutpie", "pymc"])
def test_pymcs_own_defaults_change_nothing(model, sampler):
    """A wrapper of `pymc.sample` may hand on each of its arguments with its default."""
    pytest.importorskip({"nuts": "pymc"}.get(sampler, sampler))
    small = {"draws": 5, "tune": 5, "chains": 1, "cores": 1, "model": model, "progressbar": False, "random_seed": 1}
    small |= {"nuts_sampler": sampler, "compute_convergence_checks": False}
    found = [sample(**more, **small) for more in ({}, {k: v for k, v in PYMCS.items() if k not in small})]
    np.testing.assert_array_equal(found[0].posterior["mu"], found[1].posterior["mu"])


def test_what_only_pymc_takes_reaches_it(model):
    given = {"keep_warning_stat": True, "blas_cores": 1, "jitter_max_retries": 3, "mp_ctx": "spawn"}
    found = sample(model=model, **IN_TURN, **given)
    assert "warning" in found.sample_stats and "warning" not in sample(model=model, **IN_TURN).sample_stats


def test_pymcs_default_of_tune_is_ours(model):
    found = sample(2, tune=None, model=model, chains=1, random_seed=1, progressbar=False, **NO_CHECKS)
    assert found.posterior.attrs["tuning_steps"] == 1000


@pytest.mark.parametrize(
    ("sampler", "name", "meant"),
    [("nuts", "stepp", "step"), ("nuts", "backnd", "backend"), ("nuts", "adaptaton", "adaptation")]
    + [(sampler, name, meant) for sampler in SAMPLERS for name, meant in [("drawz", "draws"), ("mp_ctxt", "mp_ctx")]],
)
def test_a_misspelt_argument_is_looked_for_among_all_samplers_arguments(model, sampler, name, meant, begins):
    pytest.importorskip({"mclmc": "blackjax", "nuts": "pymc"}.get(sampler, sampler))
    with pytest.raises(TypeError, match=rf"takes no argument '{name}'\. Did you mean '{meant}'\?"):
        sample(model=model, sampler=sampler, **{name: 1})


def test_a_misspelt_argument_beside_one_of_another_sampler(model):
    with pytest.raises(TypeError) as error:
        sample(model=model, step=pm.Metropolis, frobnicate=1, drawz=5)
    assert str(error.value) == (
        "sampler='nuts' takes no argument 'frobnicate'. sampler='nuts' takes no argument 'drawz'. Did you mean 'draws'?"
        " sampler='nuts' takes no argument 'step' here: leave it out, or give sampler='pymc'."
    )


def test_the_log_likelihood_of_some_variables():
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Normal("y1", x, observed=1.0)
        pm.Normal("y2", x, observed=2.0)
    for asked in ({"log_likelihood": "y1"}, {"idata_kwargs": {"log_likelihood": ["y1"]}}):
        assert list(draw("blackjax", model=model, **asked).log_likelihood.data_vars) == ["y1"]


def test_the_argument_of_a_compiled_model(model):
    with pytest.raises(TypeError, match="The compiled model has its model: leave out model="):
        ours.compile(model).sample(model=model)


def test_nutpies_words(model):
    pytest.importorskip("nutpie")
    with pytest.raises(TypeError, match=r"takes no argument 'mass_matrix'\. It is adaptation='low_rank' here\."):
        sample(model=model, sampler="nutpie", mass_matrix="low_rank", **SHORT)
    plain, jittered = (draw("nutpie", model=model, init=init).posterior["mu"] for init in ("adapt_diag", "auto"))
    np.testing.assert_array_equal(plain, draw("nutpie", model=model, jitter=False).posterior["mu"])
    np.testing.assert_array_equal(jittered, draw("nutpie", model=model).posterior["mu"])


def test_an_option_that_is_given_twice(model):
    with pytest.raises(ValueError, match="target_accept is given twice, once in nuts"):
        sample(model=model, target_accept=0.8, nuts={"target_accept": 0.9}, **IN_TURN)


def test_options_of_nutpie(model):
    pytest.importorskip("nutpie")
    options = {"adaptation": "low_rank", "mass_matrix_gamma": 1e-4, "store_gradient": True, "store_unconstrained": True}
    stats = sample(model=model, sampler="nutpie", **SHORT, **options).sample_stats
    assert stats["gradient"].shape == stats["unconstrained_draw"].shape == (2, 20, 3)
    logp = logdensity(model)
    expected = model.compile_dlogp(mode="FAST_COMPILE")(logp.unravel(stats["unconstrained_draw"].to_numpy()[1, 7]))
    np.testing.assert_allclose(stats["gradient"][1, 7], expected, rtol=1e-8)
    with pytest.raises(ValueError, match="nutpie can't sample without warm-up"):
        sample(model=model, sampler="nutpie", **SHORT | {"tune": 0})


def test_options_that_pymc_has_by_its_signature():
    """That `pymc.sample` still has what `sample` hands on to it."""
    assert {"init", "cores", "mp_ctx", "step"} <= inspect.signature(pm.sample).parameters.keys()


@pytest.mark.parametrize("name", SAMPLERS[:3])
def test_warning_of_the_tree_depth(name, caplog):
    with pm.Model() as stiff:
        x = pm.Normal("x", shape=10)
        pm.Potential("p", -5e3 * ((x[1:] - x[:-1]) ** 2).sum())
    with caplog.at_level(logging.WARNING, "pymc"):
        found = draw(name, model=stiff, max_treedepth=3, compute_convergence_checks=True, draws=50, tune=50)
    stats = found.sample_stats
    assert stats["reached_max_treedepth"].dtype == bool
    assert stats["reached_max_treedepth"].mean() > 0.5
    assert (stats["tree_depth"].where(stats["reached_max_treedepth"], 3) == 3).all()
    assert "Chain 1 reached the maximum tree depth" in caplog.text


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nutpie", "pymc"])
def test_a_name_of_a_variable(model, name):
    assert set(draw(name, model=model, var_names="mu").posterior.data_vars) == {"mu"}


def test_names_of_variables(model):
    mu, sigma, double = (model[name] for name in ("mu", "sigma", "double"))
    assert constrain(model, var_names=sigma).names == ["sigma"]
    assert constrain(model, var_names=[double, "mu"]).names == ["mu", "double"]
    assert constrain(model, var_names=[]).names == []
    assert logdensity(model, var_names=[sigma, "mu"]).names == ["sigma_log__", "mu"]
    assert logdensity(model, var_names=[mu, model.rvs_to_values[sigma]]).names == ["mu", "sigma_log__"]
    with pytest.raises(ValueError, match=r"has no 'doble'; it has mu, sigma, double\. Did you mean 'double'\?"):
        constrain(model, var_names="doble")


@pytest.mark.parametrize("name", SAMPLERS)
def test_an_unknown_variable(model, name, no_compilation):
    pytest.importorskip({"mclmc": "blackjax"}.get(name, name))
    with pytest.raises(ValueError, match="The model has no 'sigm'"):
        sample(model=model, sampler=name, **SHORT, var_names=["sigm"])
