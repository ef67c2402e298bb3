"""What fails after sampling does not lose the draws."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from pytensor import wrap_py

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.pymc import diagnose, sample, sample_smc

SHORT = {"draws": 20, "tune": 20, "chains": 2, "random_seed": 1, "progressbar": False}


@pytest.fixture(autouse=True)
def warnings_of_pymc(caplog):
    """Other modules of tests set the level of PyMC's log."""
    caplog.set_level("WARNING", "pymc")


@pytest.fixture(scope="module")
def model():
    """Return a model with a Deterministic of truth values."""
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Deterministic("positive", x > 0)
        pm.Normal("y", x, observed=[1.0, 2.0])
    return model


def test_truth_values_of_many_chains(model, caplog):
    with caplog.at_level("WARNING", "pymc"):
        found = sample(model=model, **SHORT | {"chains": 20})
    assert found.posterior["positive"].dtype == bool and found.posterior["positive"].shape == (20, 20)
    assert "failed" not in caplog.text


def test_truth_values_are_compared():
    draws = np.random.default_rng(1).normal(size=(4, 100)) > np.array([[0.0], [0.0], [0.0], [2.0]])
    found = diagnose(xr.DataTree.from_dict({"posterior": xr.Dataset({"b": (("chain", "draw"), draws)})}))
    assert "do not agree on 'b'" in found.findings[0].problem


@pytest.mark.parametrize("names", [[], ["positive"]], ids=str)
@pytest.mark.parametrize("chains", [2, 20])
def test_without_free_variables(model, chains, names, caplog):
    with caplog.at_level("WARNING", "pymc"):
        found = sample(model=model, var_names=names, **SHORT | {"chains": chains, "draws": 100})
    assert list(found.posterior.data_vars) == names and dict(found.posterior.sizes) == {"chain": chains, "draw": 100}
    assert "failed" not in caplog.text
    assert diagnose(found).summary.startswith(f"{chains} chains of 100 draws")


def test_variables_without_elements():
    empty = xr.Dataset({"x": (("chain", "draw", "k"), np.zeros((4, 100, 0)))})
    assert diagnose(xr.DataTree.from_dict({"posterior": empty})).summary.endswith("too few to judge.")


@pytest.mark.parametrize("error", [ZeroDivisionError("no\nchance"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("function", [sample, sample_smc])
def test_the_check_of_convergence_fails(model, monkeypatch, caplog, function, error):
    def fail(*args):
        raise error

    monkeypatch.setattr("pytensor_jaxpr_linker.pymc.results.warn_divergences", fail)
    arguments = {name: x for name, x in SHORT.items() if function is sample or name != "tune"}
    found = function(model=model, **arguments)
    assert found.posterior["x"].shape == (2, 20)
    expected = "was interrupted" if isinstance(error, KeyboardInterrupt) else "failed (ZeroDivisionError: no)"
    assert f"The check of convergence {expected}. The draws are kept. Call diagnose(data)" in caplog.text


def test_the_log_likelihood_fails(model, monkeypatch, caplog):
    def fail(*args, **kwargs):
        raise ZeroDivisionError

    monkeypatch.setattr("pymc.compute_log_likelihood", fail)
    found = sample(model=model, log_likelihood=True, compute_convergence_checks=False, **SHORT)
    assert found.posterior["x"].shape == (2, 20)
    assert "Computing log_likelihood failed" in caplog.text


def test_axis_names_that_can_not_be(caplog):
    """ArviZ refuses two axes of one name."""
    with pm.Model() as model:
        pm.Normal("x", shape=(2, 2))
    found = sample(model=model, idata_kwargs={"dims": {"x": ["a", "a"]}}, compute_convergence_checks=False, **SHORT)
    assert found.posterior["x"].dims == ("chain", "draw", "x_dim_0", "x_dim_1")
    assert "Naming axes by idata_kwargs failed" in caplog.text


def test_a_deterministic_that_raises(caplog):
    @wrap_py([pt.dscalar], [pt.dscalar])
    def never(x):
        raise ValueError("not here")

    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Deterministic("never", never(x))
    with pytest.warns(pjl.GraphBreakWarning):
        found = sample(model=model, compute_convergence_checks=False, **SHORT)
    assert list(found.posterior.data_vars) == ["x"]
    assert "Computing the Deterministics failed (ValueError: not here). The draws are kept." in caplog.text
