"""Regressions of posteriordb: linear, logistic, of counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from posteriors.models import model

log = np.log


def linear(name: str, response: Callable[[Any], Any], columns: Callable[[Any], tuple], cauchy: bool = False) -> None:
    """Add a linear regression with an intercept, and with flat priors but for a half-Cauchy one of the error if asked for."""

    @model(name=name)
    def define(data):
        y, x = response(data), columns(data)
        beta = pm.Flat("beta", shape=len(x) + 1)
        sigma = pm.HalfCauchy("sigma", 2.5) if cauchy else pm.HalfFlat("sigma")
        pm.Normal("y", np.stack([np.ones(len(y)), *x], axis=1) @ beta, sigma, observed=y)


def logistic(name: str, response: str, columns: Callable[[Any], tuple]) -> None:
    """Add a logistic regression with flat priors."""

    @model(name=name)
    def define(data):
        x = np.stack(columns(data), axis=1)
        alpha, beta = pm.Flat("alpha"), pm.Flat("beta", shape=x.shape[1])
        pm.Bernoulli("y", logit_p=alpha + x @ beta, observed=data[response])


def centered(x: np.ndarray) -> np.ndarray:
    """Return numbers minus their mean."""
    return x - x.mean()


def standardized(x: np.ndarray) -> np.ndarray:
    """Return numbers of mean 0 and of standard deviation 1."""
    return centered(x) / x.std(ddof=1)


def with_product(a: np.ndarray, b: np.ndarray, *more: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return two columns, others, and the product of the two."""
    return (a, b, *more, a * b)


def canopy(data: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the logarithms of volume, area and shape of a bush's canopy."""
    area = data["diam1"] * data["diam2"]
    return log(area * data["canopy_height"]), log(area), log(data["diam1"] / data["diam2"])


ELECTIONS = ("real_ideo", "race_adj", "educ1", "gender", "income")
linear(
    "nes",
    lambda d: d["partyid7"],
    lambda d: (
        d["real_ideo"],
        d["race_adj"],
        *(d["age_discrete"] == age for age in (2, 3, 4)),
        *(d[k] for k in ELECTIONS[2:]),
    ),
)
logistic("nes_logit_model", "vote", lambda d: (d["income"],))

for suffix, transform in {
    "c": lambda d: with_product(centered(d["mom_hs"]), centered(d["mom_iq"])),
    "c2": lambda d: with_product(d["mom_hs"] - 0.5, d["mom_iq"] - 100),
    "z": lambda d: with_product(standardized(d["mom_hs"]) / 2, standardized(d["mom_iq"]) / 2),
}.items():
    linear(f"kidscore_interaction_{suffix}", lambda d: d["kid_score"], transform)
linear("kidscore_mom_work", lambda d: d["kid_score"], lambda d: tuple(d["mom_work"] == kind for kind in (2, 3, 4)))
linear("kidscore_momhs", lambda d: d["kid_score"], lambda d: (d["mom_hs"],), cauchy=True)
linear("kidscore_momiq", lambda d: d["kid_score"], lambda d: (d["mom_iq"],), cauchy=True)
linear("kidscore_momhsiq", lambda d: d["kid_score"], lambda d: (d["mom_hs"], d["mom_iq"]), cauchy=True)

linear("earn_height", lambda d: d["earn"], lambda d: (d["height"],))
linear("log10earn_height", lambda d: np.log10(d["earn"]), lambda d: (d["height"],))
linear("logearn_height", lambda d: log(d["earn"]), lambda d: (d["height"],))
linear("logearn_height_male", lambda d: log(d["earn"]), lambda d: (d["height"], d["male"]))
linear("logearn_logheight_male", lambda d: log(d["earn"]), lambda d: (log(d["height"]), d["male"]))
linear("logearn_interaction_z", lambda d: log(d["earn"]), lambda d: with_product(standardized(d["height"]), d["male"]))

linear("logmesquite_logvolume", lambda d: log(d["weight"]), lambda d: canopy(d)[:1])
linear("logmesquite_logva", lambda d: log(d["weight"]), lambda d: (*canopy(d)[:2], d["group"]))
linear("logmesquite_logvash", lambda d: log(d["weight"]), lambda d: (*canopy(d), log(d["total_height"]), d["group"]))
linear(
    "logmesquite_logvas",
    lambda d: log(d["weight"]),
    lambda d: (*canopy(d), log(d["total_height"]), log(d["density"]), d["group"]),
)
BUSH = ("diam1", "diam2", "canopy_height", "total_height", "density", "group")
linear("mesquite", lambda d: d["weight"], lambda d: tuple(d[name] for name in BUSH))
linear("sesame_one_pred_a", lambda d: d["watched"], lambda d: (d["encouraged"],))

logistic("wells_dist100_model", "switched", lambda d: (d["dist"] / 100,))
logistic("wells_dist100ars_model", "switched", lambda d: (d["dist"] / 100, d["arsenic"]))
logistic("wells_interaction_model", "switched", lambda d: with_product(d["dist"] / 100, d["arsenic"]))
logistic(
    "wells_interaction_c_model", "switched", lambda d: with_product(centered(d["dist"]) / 100, centered(d["arsenic"]))
)
logistic("wells_dae_model", "switched", lambda d: (d["dist"] / 100, d["arsenic"], d["educ"] / 4))


def wells(data: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the centered distance, in 100 m, and the centered concentration of arsenic."""
    return centered(data["dist"]) / 100, centered(data["arsenic"])


def all_pairs(*columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return columns and the products of all pairs of them."""
    return (*columns, *(a * b for i, a in enumerate(columns) for b in columns[i + 1 :]))


logistic("wells_dae_c_model", "switched", lambda d: (*with_product(*wells(d)), d["educ"] / 4))
logistic("wells_daae_c_model", "switched", lambda d: (*with_product(*wells(d)), d["assoc"], d["educ"] / 4))
logistic("wells_dae_inter_model", "switched", lambda d: all_pairs(*wells(d), centered(d["educ"]) / 4))


@model
def wells_dist(data):
    """A logistic regression on a distance in meters."""
    beta = pm.Flat("beta", shape=2)
    pm.Bernoulli("switched", logit_p=beta[0] + beta[1] * data["dist"], observed=data["switched"])


@model
def diamonds(data):
    """A regression with centered predictors and weak priors."""
    x = data["X"][:, 1:] - data["X"][:, 1:].mean(axis=0)
    b, intercept = pm.Normal("b", 0, 1, shape=x.shape[1]), pm.StudentT("Intercept", 3, mu=8, sigma=10)
    sigma = pm.HalfStudentT("sigma", nu=3, sigma=10)
    pm.Normal("Y", intercept + x @ b, sigma, observed=data["Y"])


@model
def logistic_regression_rhs(data):
    """A logistic regression with the regularized horseshoe as prior."""
    size = int(data["d"])
    beta0, z = pm.Normal("beta0", 0, data["scale_icept"]), pm.Normal("z", shape=size)
    tau = pm.HalfStudentT("tau", nu=data["nu_global"], sigma=data["scale_global"] * 2)
    local = pm.HalfStudentT("lambda", nu=data["nu_local"], sigma=1, shape=size)
    caux = pm.InverseGamma("caux", 0.5 * data["slab_df"], 0.5 * data["slab_df"])
    slab = data["slab_scale"] ** 2 * caux
    beta = pm.Deterministic("beta", z * tau * local * pt.sqrt(slab / (slab + tau**2 * local**2)))
    pm.Bernoulli("y", logit_p=beta0 + data["x"] @ beta, observed=data["y"])


def rates(name: str, parameters: dict[str, tuple[str, ...]]) -> None:
    """Add binomial counts: the suffixes of the counts that have each parameter, of a uniform prior, as their rate."""

    @model(name=name)
    def define(data):
        for parameter, suffixes in parameters.items():
            theta = pm.Beta(parameter, 1, 1)
            for suffix in suffixes:
                pm.Binomial(f"k{suffix}", data[f"n{suffix}"], theta, observed=data[f"k{suffix}"])


rates("Rate_1_model", {"theta": ("",)})
rates("Rate_2_model", {"theta1": ("1",), "theta2": ("2",)})
rates("Rate_3_model", {"theta": ("1", "2")})
rates("Rate_4_model", {"theta": ("",), "thetaprior": ()})
rates("Rate_5_model", {"theta": ("1", "2")})


@model
def GLM_Binomial_model(data):
    """Binomial counts with a quadratic trend."""
    alpha, beta1, beta2 = (pm.Normal(name, 0, 100) for name in ("alpha", "beta1", "beta2"))
    year = data["year"]
    pm.Binomial("C", data["N"], logit_p=alpha + beta1 * year + beta2 * year**2, observed=data["C"])


@model
def GLM_Poisson_model(data):
    """Counts with a cubic trend, and uniform priors."""
    alpha = pm.Uniform("alpha", -20, 20)
    beta = [pm.Uniform(f"beta{i}", -10, 10) for i in (1, 2, 3)]
    trend = sum(b * data["year"] ** power for power, b in enumerate(beta, 1))
    pm.Poisson("C", pt.exp(alpha + trend), observed=data["C"])


@model
def dugongs_model(data):
    """Lengths of sea cows by their ages: a curve that levels off."""
    alpha, beta = pm.Normal("alpha", 0, 1000), pm.Normal("beta", 0, 1000)
    rate, tau = pm.Uniform("lambda", 0.5, 1), pm.Gamma("tau", 1e-4, 1e-4)
    pm.Normal("Y", alpha - beta * rate ** data["x"], tau=tau, observed=data["Y"])
