"""Twelve models whose prior draws are exact, each with observed data ``y`` that a run replaces.

A variable with a transform to an order would not do: its forward draws are not those of the density that is sampled.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm

POINTS = np.linspace(-1, 1, 12)


def normal(y):
    mu, sigma = pm.Normal("mu", 0, 2), pm.HalfNormal("sigma", 1)
    pm.Normal("y", mu, sigma, observed=y)


def hierarchical_centered(y):
    mu, tau = pm.Normal("mu", 0, 1), pm.LogNormal("tau", 0, 0.3)
    theta = pm.Normal("theta", mu, tau, shape=6)
    pm.Normal("y", theta, 0.7, observed=y)


def hierarchical(y):
    mu, tau = pm.Normal("mu", 0, 1), pm.HalfNormal("tau", 1)
    z = pm.Normal("z", shape=6)
    pm.Normal("y", mu + tau * z, 1.0, observed=y)


def mixture(y):
    w, distance = pm.Beta("w", 2, 2), pm.LogNormal("distance", 0.7, 0.3)
    parts = [pm.Normal.dist(-distance, 1), pm.Normal.dist(distance, 1)]
    pm.Mixture("y", pm.math.stack([w, 1 - w]), parts, observed=y)


def heteroscedastic(y):
    a, b, c = pm.Normal("a"), pm.Normal("b"), pm.Normal("c", 0, 0.5)
    pm.Normal("y", a + b * POINTS, pm.math.exp(c * POINTS), observed=y)


def ordinal(y):
    slope, first, gap = pm.Normal("slope"), pm.Normal("first"), pm.Exponential("gap", 1)
    pm.OrderedLogistic("y", slope * POINTS, pm.math.stack([first, first + gap]), observed=y)


def autoregression(y):
    rho, sigma = pm.Uniform("rho", -0.9, 0.9), pm.HalfNormal("sigma", 1)
    pm.AR("y", rho[None], sigma, init_dist=pm.Normal.dist(0, 1), constant=False, observed=y)


def gaussian_process(y):
    length, scale = pm.LogNormal("length", -0.5, 0.5), pm.HalfNormal("scale", 1)
    covariance = scale**2 * pm.gp.cov.ExpQuad(1, length)
    pm.gp.Marginal(cov_func=covariance).marginal_likelihood("y", POINTS[:, None], y, sigma=0.3)


def logistic(y):
    x = np.stack([np.ones(12), POINTS, POINTS**2 - 0.4], axis=1)
    beta = pm.Normal("beta", 0, 1.5, shape=3)
    pm.Bernoulli("y", logit_p=x @ beta, observed=y)


def negative_binomial(y):
    level, slope, alpha = pm.Normal("level", 1, 0.5), pm.Normal("slope"), pm.Gamma("alpha", 3, 1)
    pm.NegativeBinomial("y", mu=pm.math.exp(level + slope * POINTS), alpha=alpha, observed=y)


def correlated(y):
    mu, r = pm.Normal("mu", shape=2), pm.Uniform("r", -1, 1)
    covariance = pm.math.stack([pm.math.stack([1.0, r]), pm.math.stack([r, 1.0])])
    pm.MvNormal("y", mu, covariance, observed=y)


def funnel(y):
    """Neal's funnel, which the data does not touch: no sampler here reaches its neck."""
    v = pm.Normal("v", 0, 3)
    pm.Normal("x", 0, pm.math.exp(v / 2), shape=9)
    pm.Normal("y", 0, 1, observed=y)


#: How much data each has.
MODELS: dict[Callable, tuple[int, ...]] = {
    normal: (5,),
    hierarchical_centered: (6,),
    hierarchical: (6,),
    mixture: (12,),
    heteroscedastic: (12,),
    ordinal: (12,),
    autoregression: (15,),
    gaussian_process: (12,),
    logistic: (12,),
    negative_binomial: (12,),
    correlated: (8, 2),
    funnel: (1,),
}
BY_NAME = {f.__name__: f for f in MODELS}
DISCRETE = {"ordinal", "logistic", "negative_binomial"}


def build(name: str) -> pm.Model:
    """Return a model, with its data as the shared variable ``data``."""
    shape = MODELS[BY_NAME[name]]
    with pm.Model() as model:
        BY_NAME[name](pm.Data("data", np.zeros(shape, "int64" if name in DISCRETE else "float64")))
    return model


def exact_draws(model: pm.Model, count: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return draws of the prior by variable, with `count` as their first axis, and data of each."""
    variables = [*model.free_RVs, model["y"]]
    *found, data = pm.draw(variables, draws=count, random_seed=seed)
    return {v.name: x for v, x in zip(model.free_RVs, found, strict=True)}, data
