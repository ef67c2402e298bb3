"""Draws of each sampler against the reference posterior of eight schools, not centered."""

from __future__ import annotations

import arviz as az
import numpy as np
import pymc as pm
import pytest

from pytensor_jaxpr_linker.pymc import sample

#: Mean and its Monte Carlo standard error of the reference draws of posteriordb (`eight_schools`, Stan developers, BSD-3-Clause).
REFERENCE = {
    "theta": np.array(
        [
            (6.1505, 0.0557), (4.9396, 0.0462), (3.9059, 0.0542), (4.796, 0.0475),
            (3.6144, 0.0461), (4.0511, 0.0485), (6.3172, 0.0499), (4.884, 0.0543),
        ]
    ),
    "mu": np.array((4.4105, 0.033)),
    "tau": np.array((3.6021, 0.0319)),
}  # fmt: skip
SAMPLERS = ["nutpie", "numpyro", "blackjax", "pymc"]
QUIET = {"chains": 4, "random_seed": 7, "progressbar": False, "compute_convergence_checks": False}


@pytest.fixture(scope="module")
def schools():
    effects = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    errors = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        theta = pm.Deterministic("theta", mu + tau * pm.Normal("offset", dims="school"), dims="school")
        pm.Normal("effect", theta, errors, observed=effects, dims="school")
    return model


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_posterior_is_the_reference(schools, sampler):
    pytest.importorskip(sampler)
    more = {"quiet": True, "cores": 1} if sampler == "pymc" else {}
    found = sample(2000, model=schools, sampler=sampler, target_accept=0.95, **QUIET, **more)
    summary = {name: (az.mcse(found)[name], az.rhat(found)[name]) for name in REFERENCE}
    for name, reference in REFERENCE.items():
        mean = found.posterior[name].mean(("chain", "draw")).to_numpy()
        mcse, rhat = (x.to_numpy() for x in summary[name])
        away = np.abs(mean - reference[..., 0]) / np.hypot(mcse, reference[..., 1])
        assert away.max() < 4, name
        assert rhat.max() < 1.01, name


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_same_seed_same_draws(schools, sampler):
    pytest.importorskip(sampler)
    more = {"quiet": True, "cores": 1} if sampler == "pymc" else {}
    runs = [sample(20, tune=20, model=schools, sampler=sampler, **QUIET | {"chains": 2}, **more) for _ in range(2)]
    for name in ("mu", "theta"):
        np.testing.assert_array_equal(*[run.posterior[name] for run in runs])
    other = sample(20, tune=20, model=schools, sampler=sampler, **QUIET | {"chains": 2, "random_seed": 8}, **more)
    assert not np.array_equal(runs[0].posterior["mu"], other.posterior["mu"])
