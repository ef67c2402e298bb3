"""Gaussian processes of posteriordb, and splines: crashes of motorcycles, elections, a grid."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.transforms import Interval

from posteriors.models import model, squared_exponential


def acceleration(data, smooth) -> None:
    """Add accelerations whose mean and logarithmic deviation are an intercept and `smooth` of a suffix.

    Scales are floats: of integers, PyMC computes the precision in single precision.
    """
    mean = pm.StudentT("Intercept", nu=3, mu=-13, sigma=36.0) + smooth("")
    scale = pm.StudentT("Intercept_sigma", nu=3, mu=0, sigma=10.0) + smooth("_sigma")
    pm.Normal("Y", mean, pt.exp(scale), observed=data["Y"])


@model
def accel_gp(data):
    """Acceleration in a crash, by approximate Gaussian processes of mean and deviation."""

    def smooth(suffix):
        functions, frequencies = data[f"Xgp{suffix}_1"], data[f"slambda{suffix}_1"]
        scale = pm.HalfStudentT(f"sdgp{suffix}_1", nu=3, sigma=36.0)
        length = pm.InverseGamma(f"lscale{suffix}_1", 1.124909, 0.0177)
        power = scale * pt.sqrt(np.sqrt(2 * np.pi) * length) * pt.exp(-0.25 * length**2 * (frequencies**2).sum(axis=1))
        return functions @ (power * pm.Normal(f"zgp{suffix}_1", shape=functions.shape[1]))

    acceleration(data, smooth)


@model
def accel_splines(data):
    """Acceleration in a crash, by splines of mean and deviation."""

    def smooth(suffix):
        line, bends = data[f"Xs{suffix}"], data[f"Zs{suffix}_1_1"]
        scale = pm.HalfStudentT(f"sds{suffix}_1_1", nu=3, sigma=36.0)
        z = pm.Normal(f"zs{suffix}_1_1", shape=bends.shape[1])
        return line @ pm.Flat(f"bs{suffix}", shape=line.shape[1]) + bends @ (scale * z)

    acceleration(data, smooth)


@model
def hierarchical_gp(data):
    """Shares of votes by state and year: processes of regions and of states, on two scales of time each."""
    years, states, regions = (int(data[name]) for name in ("N_years", "N_states", "N_regions"))
    total, shares = pm.Gamma("tot_var", 3, 3), pm.Dirichlet("prop_var", np.full(17, 2.0))
    scale = pt.sqrt(17 * shares * total)
    year = scale[0] * pm.Normal("year_std", shape=int(data["N_years_obs"]))
    region = scale[1] * pm.Normal("region_std", shape=regions)
    state = scale[2:12][data["state_region_ind"] - 1] * pm.Normal("state_std", shape=states)
    when, where = data["year_ind"] - 1, {"region": data["region_ind"] - 1, "state": data["state_ind"] - 1}
    mean = pm.Normal("mu", 0.5, 0.5) + year[when] + state[where["state"]] + region[where["region"]]
    for place, (kind, size) in enumerate({"region": regions, "state": states}.items()):
        long, short = (pm.Weibull(f"length_GP_{kind}_{name}", 30, end) for name, end in (("long", 8), ("short", 3)))
        time = np.arange(1.0, years + 1)
        covariance = squared_exponential(time, scale[12 + place], long) + squared_exponential(
            time, scale[14 + place], short
        )
        process = pt.linalg.cholesky(covariance + 1e-6 * np.eye(years)) @ pm.Normal(
            f"GP_{kind}_std", shape=(years, size)
        )
        mean = mean + process[when, where[kind]]
    pm.Normal("y", mean, scale[16], observed=data["y"])


@model
def kronecker_gp(data):
    """A process on a grid whose covariance is a Kronecker product, here by the Cholesky factor of the whole covariance."""
    time, y = data["x1"], data["y"]
    variance, width = pm.LogNormal("var1", 0, 1), pm.HalfCauchy("bw1", 2.5)
    noise = pm.LogNormal("sigma1", 0, 1, default_transform=Interval(1e-5, None))
    factor = pm.LKJCorr("L", n=y.shape[0], eta=2)
    along = variance * pt.exp(-width * (time[:, None] - time) ** 2) + 1e-5 * np.eye(len(time))
    covariance = pt.linalg.kron(factor @ factor.T, along) + noise * np.eye(y.size)
    pm.Potential("y", pm.logp(pm.MvNormal.dist(np.zeros(y.size), covariance), y.ravel()))
