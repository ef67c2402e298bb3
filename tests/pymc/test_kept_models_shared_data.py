"""Shared variables of a model without names, or with equal ones: every function reads the values that they have now."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytest
from scipy import stats

from pytensor_jaxpr_linker.pymc import constrain, export_sampler, logdensity, sample, sample_smc
from pytensor_jaxpr_linker.pymc.functions.graph import data_names

SHORT = {"draws": 300, "tune": 300, "chains": 1, "random_seed": 1, "quiet": True, "compute_convergence_checks": False}
X = np.random.default_rng(0).normal(size=50)


def regression(names):
    """Return a model of 1.5 X, and its two shared variables; one of them gives a shape."""
    x, one = (pytensor.shared(value, name=name) for name, value in zip(names, (X, np.ones(50)), strict=True))
    with pm.Model() as model:
        slope, level = pm.Normal("slope", 0, 10), pm.Normal("level")
        pm.Deterministic("sums", slope * x.sum() + level * one.sum())
        pm.Normal("y", slope * x + level * one - level, 0.1, observed=1.5 * X, shape=x.shape)
    return model, x, one


@pytest.mark.parametrize(("names", "sampler"), [((None, None), "blackjax"), (("x", "x"), "nutpie")], ids=str)
def test_a_second_call_sees_new_values(names, sampler):
    pytest.importorskip(sampler)
    model, x, _ = regression(names)

    def slope():
        return float(sample(model=model, sampler=sampler, **SHORT).posterior["slope"].mean())

    first = slope()
    x.set_value(2 * X)
    np.testing.assert_allclose([first, slope()], [1.5, 0.75], atol=0.02)


@pytest.mark.parametrize("names", [(None, None), ("x", "x"), ("x_2", None)], ids=str)
def test_functions_take_each_variable(names):
    """By a name of its own, the same in all functions of the model."""
    model, x, one = regression(names)
    f, point = logdensity(model), {"slope": 0.5, "level": 2.0}
    x.set_value(3 * X)
    one.set_value(np.full(50, 2.0))
    want = stats.norm(0, 10).logpdf(0.5) + stats.norm.logpdf(2.0)
    mean = 0.5 * 3 * X + 2.0 * 2.0 - 2.0
    np.testing.assert_allclose(f(point), want + stats.norm(mean, 0.1).logpdf(1.5 * X).sum(), rtol=1e-9)
    np.testing.assert_allclose(constrain(model)(point)["sums"], 0.5 * (3 * X).sum() + 2.0 * 100, rtol=1e-9)
    assert len(f.data) == 2
    (name,) = [name for name, value in f.data.items() if np.array_equal(value, 3 * X)]
    assert data_names(model, [x])[x] == name
    given = stats.norm(2.0 * 2.0 - 2.0, 0.1).logpdf(1.5 * X).sum()
    np.testing.assert_allclose(f(point, {name: 0 * X}), want + given, rtol=1e-9)


def test_terms_of_prior_and_likelihood_with_one_name():
    """`sample_smc` gives each its own: the posterior of x ~ N(4, 1), y ~ N(x, 1), y = 6 has the mean 5."""
    pytest.importorskip("blackjax")
    center, y = pytensor.shared(4.0, name="value"), pytensor.shared(6.0, name="value")
    with pm.Model() as model:
        x = pm.Normal("x", center)
        pm.Normal("y", x, 1, observed=y)
    arguments = {"chains": 1, "random_seed": 1, "progressbar": False, "compute_convergence_checks": False}
    first = float(sample_smc(300, model=model, **arguments).posterior["x"].mean())
    center.set_value(0.0)
    second = float(sample_smc(300, model=model, **arguments).posterior["x"].mean())
    np.testing.assert_allclose([first, second], [5.0, 3.0], atol=0.3)


def test_an_exported_sampler_has_an_argument_for_each(tmp_path):
    pytest.importorskip("blackjax")
    model, _, _ = regression(("x", "x"))
    exported = export_sampler(model, path=tmp_path / "sampler.jaxpr", draws=5, tune=5, batched=False)
    assert {"x", "x_2"} <= set(str(exported).split())
