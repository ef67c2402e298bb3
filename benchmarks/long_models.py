"""PyMC models where the time is in the draws, on simulated data: compiling counts little there."""

from __future__ import annotations

from collections.abc import Callable

import long_data
import pymc as pm
import pytensor.tensor as pt


def logistic_50k() -> pm.Model:
    """Logistic regression, 50,000 rows by 30 columns."""
    data = long_data.logistic_50k()
    with pm.Model() as m:
        intercept, beta = pm.Normal("intercept", 0, 2), pm.Normal("beta", 0, 1, shape=30)
        pm.Bernoulli("y", logit_p=intercept + data["x"] @ beta, observed=data["y"])
    return m


def gp_300() -> pm.Model:
    """Gaussian process of 300 points, marginal likelihood."""
    data = long_data.gp_300()
    with pm.Model() as m:
        length, scale = pm.InverseGamma("length", 5, 5), pm.HalfNormal("scale", 1)
        gp = pm.gp.Marginal(cov_func=scale**2 * pm.gp.cov.ExpQuad(1, ls=length))
        gp.marginal_likelihood("y", data["x"][:, None], data["y"], sigma=pm.HalfNormal("sigma", 1))
    return m


def volatility_2000() -> pm.Model:
    """Stochastic volatility, a random walk of 2,000 steps, non-centred."""
    data = long_data.volatility_2000()
    with pm.Model() as m:
        step = pm.Exponential("step", 20)
        walk = pm.Deterministic("walk", step * pt.cumsum(pm.Normal("z", shape=2_000)))
        pm.StudentT("y", nu=pm.Exponential("nu", 0.1), sigma=pt.exp(walk), observed=data["y"])
    return m


def groups_2000() -> pm.Model:
    """Intercepts of 2,000 groups, 200,000 rows."""
    data = long_data.groups_2000()
    with pm.Model() as m:
        mu, tau, slope = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 1), pm.Normal("slope", 0, 1)
        effect = pm.Normal("effect", mu, tau, shape=2_000)
        pm.Normal("y", effect[data["group"]] + slope * data["x"], pm.HalfNormal("sigma", 1), observed=data["y"])
    return m


MODELS: dict[str, Callable[[], pm.Model]] = {
    make.__name__: make for make in (logistic_50k, gp_300, volatility_2000, groups_2000)
}
