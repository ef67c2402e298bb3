"""Simulation-based calibration: the ranks of prior draws among the draws of the posterior of their data (Talts et al., 2018)."""

from __future__ import annotations

import time
import warnings
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from arviz_stats.ecdf_utils import get_pointwise_confidence_band, simulate_confidence_bands
from calibration.models import build, exact_draws

import pytensor_jaxpr_linker.pymc as jaxpr_pymc

#: How many draws a rank is among: those of a chain, thinned to be nearly independent.
DRAWS, THINNING = 63, 8
CHAIN = {"draws": DRAWS * THINNING, "thinning": THINNING, "tune": 500, "chains": 1}
SAMPLERS: dict[str, dict[str, Any]] = {
    "NUTS": {"sampler": "blackjax", **CHAIN},
    "adjusted MCLMC": {"sampler": "mclmc", "adjusted": True, **CHAIN},
    "ChEES": {"sampler": "chees", **CHAIN, "draws": 16 * THINNING, "chains": 4},
    "nutpie": {"sampler": "nutpie", **CHAIN},
    "SMC": {"draws": 400, "chains": 1},
    "MCLMC": {"sampler": "mclmc", **CHAIN},
}
#: With this probability all ranks of an exact sampler, of all its quantities, are within the bands.
PROBABILITY = 0.999
#: Elements of a vector: more would say the same.
MOST_ELEMENTS = 3


@cache
def bands(count: int, probability: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return points and the simultaneous bands there of the distribution function of `count` uniform numbers."""
    points = np.arange(1, count) / count
    level = simulate_confidence_bands(count, 1, points, probability, 10_000, np.random.default_rng(1))
    return points, *get_pointwise_confidence_band(level, count, points)


class Calibration(NamedTuple):
    """The ranks of a sampler in a model."""

    quantities: list[str]
    positions: np.ndarray
    """Of each prior draw among the posterior's, from 0 to 1, uniform for an exact sampler. Shape (replications, quantities)."""
    diverging: float
    """The share of replications with a divergence."""
    seconds: float

    def outside(self) -> list[str]:
        """Return the quantities whose positions leave the simultaneous bands of a uniform sample."""
        points, lower, upper = bands(len(self.positions), 1 - (1 - PROBABILITY) / len(self.quantities))
        shares = (self.positions <= points[:, None, None]).mean(axis=1)
        is_outside = (shares < lower[:, None]) | (shares > upper[:, None])
        return [name for name, found in zip(self.quantities, is_outside.any(axis=0), strict=True) if found]


def calibrate(name: str, sampler: str, replications: int, seed: int = 1) -> Calibration:
    """Return the ranks of `replications` prior draws; all replications run the programs of the first."""
    model = build(name)
    priors, data = exact_draws(model, replications, seed)
    compiled = jaxpr_pymc.compile(model)
    rng = np.random.default_rng(seed)
    positions, diverging, began = [], 0, time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(replications):
            quiet = {"random_seed": seed * 1_000_000 + i, "progressbar": False, "compute_convergence_checks": False}
            if sampler == "SMC":
                pm.set_data({"data": data[i]}, model=model)
                found = jaxpr_pymc.sample_smc(model=model, **SAMPLERS[sampler], **quiet)
            else:
                found = compiled.with_data(data=data[i]).sample(**SAMPLERS[sampler], **quiet, quiet=True)
                diverging += bool(found.sample_stats["diverging"].any())
            row, quantities = [], []
            for variable, values in priors.items():
                draws = found.posterior[variable].to_numpy()
                draws = draws.reshape(-1, *draws.shape[2:])
                if sampler == "SMC":
                    draws = draws[rng.choice(len(draws), DRAWS, replace=False)]
                flat, truth = draws.reshape(len(draws), -1), np.reshape(values[i], -1)
                for k in range(min(truth.size, MOST_ELEMENTS)):
                    below, same = np.sum(flat[:, k] < truth[k]), np.sum(flat[:, k] == truth[k])
                    row.append((below + rng.uniform(0, same + 1)) / (len(flat) + 1))
                    quantities.append(variable if truth.size == 1 else f"{variable}[{k}]")
            positions.append(row)
    return Calibration(quantities, np.array(positions), diverging / replications, time.perf_counter() - began)
