"""PyMC's ways to a compiled function, with mode JAXPR."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

import pytensor_jaxpr_linker  # noqa: F401  (registers mode JAXPR)


@pytest.fixture(scope="module")
def schools():
    """Return the eight schools model, which mutable data and a random effect make a good sample of PyMC's graphs."""
    effects = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    errors = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    with pm.Model(coords={"school": range(8)}) as model:
        observed = pm.Data("observed", effects, dims="school")
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        theta = pm.Normal("theta", mu, tau, dims="school")
        pm.Normal("y", theta, errors, observed=observed, dims="school")
    return model


@pytest.mark.parametrize("method", ["compile_logp", "compile_dlogp"])
def test_model_functions_agree_with_the_default_mode(schools, method):
    point = schools.initial_point()
    expected = getattr(schools, method)(mode="FAST_COMPILE")(point)
    np.testing.assert_allclose(getattr(schools, method)(mode="JAXPR")(point), expected, rtol=1e-10)


def test_raveled_value_and_gradient(schools):
    """PyMC's own samplers call this: one raveled vector in, log density and gradient out."""
    functions = [schools.logp_dlogp_function(ravel_inputs=True, mode=mode) for mode in ("JAXPR", "FAST_COMPILE")]
    for f in functions:
        f.set_extra_values({})
    point = np.linspace(-1, 1, 10)
    (logp, gradient), (expected_logp, expected_gradient) = (f._pytensor_function(point) for f in functions)
    np.testing.assert_allclose(logp, expected_logp, rtol=1e-10)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-10)


def test_prior_draws_follow_the_seed():
    with pm.Model():
        mu = pm.Normal("mu", 3, 2, size=5)
        x = pm.Uniform("x", mu, mu + 1)
    draws = [pm.draw(x, draws=200, mode="JAXPR", random_seed=seed) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])
    assert abs(draws[0].mean() - 3.5) < 0.5
