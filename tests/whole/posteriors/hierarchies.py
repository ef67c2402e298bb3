"""Hierarchical models of posteriordb: elections, pilots, rats, seeds, hospitals, schools, dogs."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from posteriors.models import model


@model
def election88_full(data):
    """Votes by age, education, state and region."""
    beta = pm.Normal("beta", 0, 100, shape=5)
    black, female = data["black"], data["female"]
    mean = beta[0] + beta[1] * black + beta[2] * female + beta[4] * female * black + beta[3] * data["v_prev_full"]
    for name, group in zip("abcde", ("age", "edu", "age_edu", "state", "region_full"), strict=True):
        spread = pm.Uniform(f"sigma_{name}", 0, 100)
        mean = mean + pm.Normal(name, 0, spread, shape=int(data[f"n_{group}"]))[data[group] - 1]
    pm.Bernoulli("y", logit_p=mean, observed=data["y"])


@model
def pilots(data):
    """Success of pilots by group and by scenario."""
    mean = 0
    for name, group, size in (("a", "group_id", "n_groups"), ("b", "scenario_id", "n_scenarios")):
        center, spread = pm.Normal(f"mu_{name}", 0, 1), pm.Uniform(f"sigma_{name}", 0, 100)
        mean = mean + pm.Normal(name, 10 * center, spread, shape=int(data[size]))[data[group] - 1]
    pm.Normal("y", mean, pm.Uniform("sigma_y", 0, 100), observed=data["y"])


@model
def rats_model(data):
    """Weights of rats over time, a line for each, with flat priors of the standard deviations."""
    rat, size = data["rat"] - 1, int(data["N"])
    alpha, beta = (
        pm.Normal(name, pm.Normal(f"mu_{name}", 0, 100), pm.HalfFlat(f"sigma_{name}"), shape=size)
        for name in ("alpha", "beta")
    )
    mean = alpha[rat] + beta[rat] * (data["x"] - data["xbar"])
    pm.Normal("y", mean, pm.HalfFlat("sigma_y"), observed=data["y"])


def germination(data, priors: float, effect):
    """Add counts of seeds that germinate, by kind of seed and of extract, with an effect of each plate."""
    names = ("alpha0", "alpha1", "alpha2", "alpha12")
    alpha0, alpha1, alpha2, alpha12 = (pm.Normal(name, 0, priors) for name in names)
    x1, x2 = data["x1"], data["x2"]
    logit = alpha0 + alpha1 * x1 + alpha2 * x2 + alpha12 * x1 * x2 + effect
    pm.Binomial("n", data["N"], logit_p=logit, observed=data["n"])


@model
def seeds_model(data):
    """Germination of seeds, with the priors of BUGS."""
    tau = pm.Gamma("tau", 1e-3, 1e-3)
    germination(data, 1000, pm.Normal("b", 0, tau=tau, shape=int(data["I"])))


@model
def seeds_stanified_model(data):
    """Germination of seeds, with weak priors."""
    germination(data, 1, pm.Normal("b", 0, pm.HalfCauchy("sigma", 1), shape=int(data["I"])))


@model
def seeds_centered_model(data):
    """Germination of seeds, with effects that sum to zero."""
    c = pm.Normal("c", 0, pm.HalfCauchy("sigma", 1), shape=int(data["I"]))
    germination(data, 1, c - c.mean())


@model
def surgical_model(data):
    """Deaths after operations in hospitals, with the priors of BUGS."""
    mu, variance = pm.Normal("mu", 0, 1000), pm.InverseGamma("sigmasq", 1e-3, 1e-3)
    b = pm.Normal("b", mu, pt.sqrt(variance), shape=int(data["N"]))
    pm.Binomial("r", data["n"], logit_p=b, observed=data["r"])


@model
def eight_schools_centered(data):
    """Effects of coaching in eight schools, as they are."""
    mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
    pm.Normal("y", pm.Normal("theta", mu, tau, shape=int(data["J"])), data["sigma"], observed=data["y"])


@model
def eight_schools_noncentered(data):
    """Effects of coaching in eight schools, in units of their standard deviation."""
    mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
    theta = pm.Deterministic("theta", pm.Normal("theta_trans", shape=int(data["J"])) * tau + mu)
    pm.Normal("y", theta, data["sigma"], observed=data["y"])


def earlier_trials(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how many shocks a dog had before each trial, and how many it avoided."""
    shocks = np.cumsum(y, axis=1) - y
    return shocks, np.arange(y.shape[1]) - shocks


@model
def dogs(data):
    """Dogs that learn to avoid shocks: a logistic regression on what went before."""
    shocks, avoided = earlier_trials(data["y"])
    beta = pm.Normal("beta", 0, 100, shape=3)
    pm.Bernoulli("y", logit_p=beta[0] + beta[1] * avoided + beta[2] * shocks, observed=data["y"])


@model
def dogs_log(data):
    """Dogs that learn to avoid shocks: coefficients of one sign each, not transformed."""
    shocks, avoided = earlier_trials(data["y"])
    beta = pm.Uniform("beta", [-100, 0], [0, 100], shape=2, default_transform=None, initval=[-2, 2])
    pm.Bernoulli("y", logit_p=beta[0] * avoided + beta[1] * shocks, observed=data["y"])


@model
def dogs_hierarchical(data):
    """Dogs that learn to avoid shocks: each trial lowers the probability of the next shock by a factor."""
    shocks, avoided = earlier_trials(data["y"])
    a, b = pm.Uniform("a", 0, 1), pm.Uniform("b", 0, 1)
    pm.Bernoulli("y", a**shocks * b**avoided, observed=data["y"])


@model
def dogs_nonhierarchical(data):
    """Dogs that learn to avoid shocks, with factors of each dog that are correlated."""
    shocks, avoided = earlier_trials(data["y"])
    center = pm.Logistic("mu_logit_ab", 0, 1, shape=2)
    spread = pm.HalfNormal("sigma_logit_ab", 1, shape=2)
    factor = pm.LKJCorr("L_logit_ab", n=2, eta=2)
    z = pm.Normal("z", shape=(int(data["n_dogs"]), 2))
    rates = pm.math.sigmoid(center + z @ (spread[:, None] * factor))
    pm.Bernoulli("y", rates[:, :1] ** shocks * rates[:, 1:] ** avoided, observed=data["y"])
