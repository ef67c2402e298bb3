"""Lengths that do not fit, or that are 0: samplers refuse them before they compile, or sample and check the draws."""

from __future__ import annotations

import logging
import warnings

import jax
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr
from pytensor import wrap_py

import pytensor_jaxpr_linker.pymc as ours
from pytensor_jaxpr_linker.pymc import diagnose, fit_pathfinder, sample, sample_smc
from pytensor_jaxpr_linker.pymc.results import log_convergence

COORDS = {"a": [1, 2, 3], "b": [1, 2]}
QUIET = {"progressbar": False, "random_seed": 1}
SHORT = {"draws": 120, "tune": 50, "chains": 2, **QUIET}
#: The doors, each a function of a model.
DOORS = {
    "default": lambda model: sample(model=model, **SHORT),
    "numpyro": lambda model: sample(model=model, sampler="numpyro", **SHORT),
    "nutpie": lambda model: sample(model=model, sampler="nutpie", **SHORT),
    "mclmc": lambda model: sample(model=model, sampler="mclmc", **SHORT),
    "chees": lambda model: sample(model=model, sampler="chees", **SHORT),
    "pymc": lambda model: sample(model=model, sampler="pymc", cores=1, **SHORT),
    "compile": lambda model: ours.compile(model).sample(**SHORT),
    "mesh": lambda model: sample(model=model, mesh=jax.make_mesh((1,), ("chains",)), **SHORT),
    "sample_smc": lambda model: sample_smc(50, model=model, chains=2, **QUIET),
    "fit_pathfinder": lambda model: fit_pathfinder(50, model=model, paths=2, **QUIET),
}


@pytest.fixture
def no_compilation(monkeypatch):
    """Fail where a sampler begins, or XLA does."""

    def begin(*args, **kwargs):
        raise AssertionError("something is compiled")

    for place in ("pymc.sample", "jax.stages.Lowered.compile", "pytensor_jaxpr_linker.pymc.sampling.drawn"):
        monkeypatch.setattr(place, begin)


def with_dims(build):
    """Return the model that `build` makes in a context with coords."""
    with pm.Model(coords=COORDS) as model:
        build()
    return model


def free():
    pm.Normal("y", pm.Normal("x", shape=4, dims="a"), observed=np.zeros(4))


def second_axis():
    pm.Normal("y", pm.Normal("x", shape=(2, 4), dims=("b", "a")).sum(), observed=1.0)


def deterministic():
    pm.Normal("y", pm.Deterministic("x", pm.Normal("z", shape=4) * 2, dims="a"), observed=np.zeros(4))


def of_data():
    """The length is that of shared data without a dim."""
    pm.Normal("y", pm.Deterministic("x", pm.Normal("z") + pm.Data("d", np.zeros(4)), dims="a"), observed=np.zeros(4))


def picked():
    where = pm.Data("where", np.array([0, 1, 1, 0]))
    pm.Normal("y", pm.Deterministic("x", pm.Normal("z", dims="b")[where], dims="a"), observed=np.zeros(4))


def of_loop():
    steps, start = pm.Data("steps", np.zeros(4)), pm.Normal("z")
    found = pytensor.scan(lambda step, s: s + step, sequences=[steps], outputs_info=[start], return_updates=False)
    pm.Normal("y", pm.Deterministic("x", found, dims="a"), observed=np.zeros(4))


def of_python():
    """Only the value tells the length."""
    double = wrap_py([pt.dvector], [pt.dvector])(lambda value: 2 * value)
    pm.Normal("y", pm.Normal("z", shape=4), observed=np.zeros(4))
    pm.Deterministic("x", double(pt.ones(4)), dims="a")


def observed():
    pm.Normal("x", pm.Normal("z"), observed=np.zeros(4), dims="a")


def shared():
    """Data that got another length, by its own `set_value`."""
    data = pm.Data("x", np.zeros(3), dims="a")
    pm.Normal("y", pm.Normal("z"), observed=np.zeros(4))
    data.set_value(np.zeros(4))


@pytest.mark.parametrize(
    "build", [free, second_axis, deterministic, of_data, picked, of_loop, of_python, observed, shared]
)
@pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")
def test_dims_that_do_not_fit(build, no_compilation):
    with pytest.raises(ValueError, match="'x' has length 4 along the dim 'a', but the model has 3 coordinates: give"):
        DOORS["default"](with_dims(build))


@pytest.mark.parametrize("door", DOORS)
def test_each_door_refuses_them(door, no_compilation):
    with pytest.raises(ValueError, match="'x' has length 4 along the dim 'a', but the model has 3 coordinates"):
        DOORS[door](with_dims(deterministic))


def test_a_dim_without_coords_has_one_length():
    """ArviZ would fill the shorter variable with NaN."""
    with pm.Model() as model:
        model.add_coord("a", length=3)
        pm.Normal("x", shape=4, dims="a")
        pm.Normal("z", dims="a")
    with pytest.raises(ValueError, match="'z' has length 3 along the dim 'a', but 'x' has length 4"):
        sample(model=model, **SHORT)
    assert sample(model=model, var_names="x", quiet=True, **SHORT).posterior["x"].shape == (2, 120, 4)


def test_what_is_not_returned_may_have_any_length():
    model = with_dims(deterministic)
    found = sample(model=model, var_names="z", quiet=True, **SHORT)
    assert set(found.posterior.data_vars) == {"z"}
    model.set_dim("a", 4, [1, 2, 3, 4])
    assert sample(model=model, quiet=True, **SHORT).posterior["x"].sizes["a"] == 4


def test_other_axis_names_of_the_result():
    model = with_dims(deterministic)
    given = {"idata_kwargs": {"dims": {"x": ["c"]}, "coords": {"c": range(4)}}}
    assert sample(model=model, quiet=True, **SHORT, **given).posterior["x"].sizes["c"] == 4
    given["idata_kwargs"]["coords"] = {"c": range(5)}
    with pytest.raises(ValueError, match="'x' has length 4 along the dim 'c', but idata_kwargs has 5 coordinates"):
        sample(model=model, **SHORT, **given)


# -- length 0, and what does not vary ----------------------------------------------------------------------------------


@pytest.mark.parametrize("door", [name for name in DOORS if name != "sample_smc"])
def test_nothing_to_sample(door, no_compilation):
    with pm.Model() as model:
        pm.Normal("empty", shape=0)
        pm.Dirichlet("one", np.ones(1))
    with pytest.raises(ValueError, match="The free variables 'empty', 'one_simplex__' are empty, so there is nothing"):
        DOORS[door](model)


def hard_to_judge() -> pm.Model:
    """Return a model with variables that are empty, constant, integers, truth values or NaN, and constant elements."""
    with pm.Model() as model:
        pm.Dirichlet("one", np.ones(1))
        empty, x = pm.Normal("empty", shape=(0, 2)), pm.Normal("x", shape=2)
        pm.Deterministic("empty, too", 2 * empty)
        pm.Deterministic("constant", pt.ones(2))
        pm.Deterministic("positive", x > 0)
        pm.Deterministic("whole", pt.cast(pt.round(x), "int64"))
        pm.Deterministic("no_number", pt.log(x - 100))
        pm.Deterministic("correlations", pt.stack([[1.0, x[0]], [x[0], 1.0]]))
        pm.Normal("y", x, observed=np.ones(2))
    return model


@pytest.mark.parametrize("door", ["default", "nutpie", "pymc", "mesh", "sample_smc", "fit_pathfinder"])
def test_empty_and_constant_variables(door, caplog):
    with warnings.catch_warnings(), caplog.at_level(logging.INFO, "pymc"):
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "PyTensor could not link to a BLAS")
        found = DOORS[door](hard_to_judge())
        diagnosis = diagnose(found)
    assert "failed" not in caplog.text
    assert found.posterior["empty"].shape[2:] == (0, 2)
    assert "'no_number' hold a value that is NaN" in diagnosis.findings[0].problem
    assert "effective draws" in diagnosis.summary


def test_a_constant_variable_does_not_hide_the_others(caplog):
    """PyMC's check takes the largest R-hat, and finds NaN if that of the first variable is NaN."""
    model = hard_to_judge()
    apart = np.random.default_rng(1).normal(size=(4, 200)) + np.array([[0.0], [0.0], [0.0], [9.0]])
    draws = {"one": np.ones((4, 200, 1)), "empty": np.ones((4, 200, 0)), "x": np.stack([apart, apart], axis=-1)}
    posterior = xr.Dataset({name: (("chain", "draw", f"{name}_dim"), x) for name, x in draws.items()})
    stats = xr.Dataset({"diverging": (("chain", "draw"), np.zeros((4, 200), bool))})
    with warnings.catch_warnings(), caplog.at_level(logging.INFO, "pymc"):
        warnings.simplefilter("error")
        log_convergence(xr.DataTree.from_dict({"posterior": posterior, "sample_stats": stats}), model)
    assert "The rhat statistic is larger than 1.01" in caplog.text and "failed" not in caplog.text


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (1, 200), (4, 1), (4, 3), (4, 200), (40, 200)])
def test_diagnose_takes_what_can_not_be_judged(shape):
    """All of it without a warning: single chains, few draws, elements that are constant or no numbers."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(*shape, 5))
    x[..., 0], x[..., 1], x[0, 0, 2] = 1.0, np.nan, np.inf
    x[..., 3] = np.arange(shape[0])[:, None]
    posterior = xr.Dataset({"x": (("chain", "draw", "i"), x), "e": (("chain", "draw", "j"), x[..., :0])})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert str(diagnose(xr.DataTree.from_dict({"posterior": posterior})))
