"""Radon in houses, by counties: posteriordb's fourteen models of it."""

from __future__ import annotations

from typing import Any

import pymc as pm

from posteriors.models import model


def county_effect(name: str, data: Any, centered: bool) -> Any:
    """Return each house's coefficient, which varies between counties about a mean of its own."""
    mean, spread = pm.Normal(f"mu_{name}", 0, 10), pm.HalfNormal(f"sigma_{name}", 1)
    size = int(data["J"])
    if centered:
        effect = pm.Normal(name, mean, spread, shape=size)
    else:
        effect = pm.Deterministic(name, mean + spread * pm.Normal(f"{name}_raw", shape=size))
    return effect[data["county_idx"] - 1]


def radon(name: str, intercept: str, slope: str | None, uranium: bool = False) -> None:
    """Add a model: intercept and slope of the floor are "one", "county", or vary "centered" or "noncentered"."""

    def coefficient(variable: str, kind: str, data: Any) -> Any:
        if kind == "one":
            return pm.Normal(variable, 0, 10)
        if kind == "county":
            return pm.Normal(variable, 0, 10, shape=int(data["J"]))[data["county_idx"] - 1]
        return county_effect(variable, data, kind == "centered")

    @model(name=f"radon_{name}")
    def define(data):
        mean = coefficient("alpha", intercept, data)
        if uranium:
            beta = pm.Normal("beta", 0, 10, shape=2)
            mean = mean + data["log_uppm"] * beta[0] + data["floor_measure"] * beta[1]
        elif slope:
            mean = mean + coefficient("beta", slope, data) * data["floor_measure"]
        pm.Normal("log_radon", mean, pm.HalfNormal("sigma_y", 1), observed=data["log_radon"])


radon("pooled", "one", "one")
radon("county_intercept", "county", "one")
for kind in ("centered", "noncentered"):
    radon(f"partially_pooled_{kind}", kind, None)
    radon(f"hierarchical_intercept_{kind}", kind, None, uranium=True)
    radon(f"variable_intercept_{kind}", kind, "one")
    radon(f"variable_slope_{kind}", "one", kind)
    radon(f"variable_intercept_slope_{kind}", kind, kind)


@model
def radon_county(data):
    """County means with uniform priors of the standard deviations."""
    mean = pm.Normal("mu_a", 0, 1)
    between, within = pm.Uniform("sigma_a", 0, 100), pm.Uniform("sigma_y", 0, 100)
    a = pm.Normal("a", mean, between, shape=int(data["J"]))
    pm.Normal("y", a[data["county"] - 1], within, observed=data["y"])
