"""The simulated data of `long_models.py` and `stan_programs.py`."""

import numpy as np


def logistic_50k() -> dict:
    """50,000 rows by 30 columns."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((50_000, 30))
    y = rng.random(50_000) < 1 / (1 + np.exp(-(0.3 + x @ np.linspace(-1, 1, 30))))
    return {"x": x, "y": y.astype("int64")}


def gp_300() -> dict:
    """300 points of a noisy sine."""
    rng = np.random.default_rng(2)
    x = np.sort(rng.uniform(0, 10, 300))
    return {"x": x, "y": np.sin(x) + 0.3 * rng.standard_normal(300)}


def volatility_2000() -> dict:
    """2,000 returns whose log volatility is a random walk."""
    rng = np.random.default_rng(3)
    return {"y": np.exp(0.05 * np.cumsum(rng.standard_normal(2_000))) * rng.standard_normal(2_000)}


def groups_2000() -> dict:
    """200,000 rows of 2,000 groups."""
    rng = np.random.default_rng(4)
    group, x = np.repeat(np.arange(2_000), 100), rng.standard_normal(200_000)
    y = 1 + 0.5 * rng.standard_normal(2_000)[group] + 0.3 * x + rng.standard_normal(200_000)
    return {"group": group, "x": x, "y": y}
