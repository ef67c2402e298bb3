"""Models whose log densities are sums over observations, of any number of them."""

import numpy as np
import pymc as pm


def regression(n, observed="data"):
    """A logistic regression; what is observed may be `pymc.Data` or an array."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(n, 5)), rng.integers(0, 2, n)
    with pm.Model(coords={"obs": range(n), "feature": range(5)}) as model:
        design = pm.Data("x", x, dims=("obs", "feature"))
        slope, intercept = pm.Normal("slope", 0, 1, dims="feature"), pm.Normal("intercept", 0, 1)
        given = pm.Data("given", y, dims="obs") if observed == "data" else y
        pm.Bernoulli("y", logit_p=intercept + design @ slope, observed=given, dims="obs")
    return model


def hierarchical(n, groups=20):
    rng = np.random.default_rng(1)
    with pm.Model(coords={"obs": range(n), "group": range(groups)}) as model:
        group, x = (
            pm.Data("group_of", rng.integers(0, groups, n), dims="obs"),
            pm.Data("x", rng.normal(size=n), dims="obs"),
        )
        mean, scale, noise = pm.Normal("mean", 0, 1), pm.HalfNormal("scale", 1), pm.HalfNormal("noise", 1)
        effect, slope = pm.Normal("effect", 0, 1, dims="group"), pm.Normal("slope", 0, 1)
        pm.Normal("y", (mean + scale * effect)[group] + slope * x, noise, observed=rng.normal(size=n), dims="obs")
    return model


def smooth(n):
    """A Gaussian process in Hilbert space (HSGP)."""
    rng = np.random.default_rng(2)
    x = np.sort(rng.uniform(-1, 1, n))[:, None]
    with pm.Model(coords={"obs": range(n), "one": [0]}) as model:
        where = pm.Data("where", x, dims=("obs", "one"))
        length, height, noise = pm.InverseGamma("length", 5, 5), pm.HalfNormal("height", 1), pm.HalfNormal("noise", 1)
        process = pm.gp.HSGP(m=[20], L=[1.5], cov_func=height**2 * pm.gp.cov.ExpQuad(1, length))
        basis, spectrum = process.prior_linearized(where)
        weights = pm.Normal("weights", 0, 1, size=20)
        pm.Normal("y", basis @ (weights * spectrum), noise, observed=np.sin(4 * x[:, 0]), dims="obs")
    return model


MODELS = {"regression": regression, "hierarchical": hierarchical, "smooth": smooth}
