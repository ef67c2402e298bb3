"""PyMC models of posteriors with states that nobody saw: animals never caught, surveys never counted, species absent.

Stan's programs sum such states out, and so do these models.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from posteriors.models import model


def log_sigmoid(x):
    """Return the logarithm of the logistic function."""
    return -pt.softplus(-x)


def binomial_logit(successes, trials, logit):
    """Return the log probability of successes, by the logit of one success, without the binomial coefficient."""
    return successes * logit - trials * pt.softplus(logit)


def captures(name, omega, histories, seen):
    """Add the density of individuals that belong to the population with probability `omega`.

    `histories` are the log probabilities of what was seen of each one if it belongs; those `seen` do belong.
    """
    present = pt.log(omega) + histories
    pm.Potential(name, present[seen].sum() + pt.logaddexp(present[~seen], pt.log1p(-omega)).sum())


def previous(y):
    """Return 1 where the individual was caught on the occasion before; no occasion comes before the first."""
    return np.concatenate([np.zeros_like(y[:, :1]), y[:, :-1]], axis=1)


@model(name="M0_model")
def constant_capture(data):
    """Capture and recapture with one probability of detection."""
    counts = data["y"].sum(axis=1)
    omega, p = pm.Uniform("omega", 0, 1), pm.Uniform("p", 0, 1)
    pm.ZeroInflatedBinomial("y", psi=omega, n=int(data["T"]), p=p, observed=counts)


@model(name="Mb_model")
def capture_by_behaviour(data):
    """Capture and recapture with another probability right after a capture."""
    y = data["y"]
    omega, p, c = pm.Uniform("omega", 0, 1), pm.Uniform("p", 0, 1), pm.Uniform("c", 0, 1)
    caught = pm.logp(pm.Bernoulli.dist(pt.where(previous(y) == 1, c, p)), y)
    captures("y", omega, caught.sum(axis=1), y.any(axis=1))


@model(name="Mh_model")
def capture_by_individual(data):
    """Capture and recapture with a probability of each individual, not centered."""
    y, size = data["y"], int(data["M"])
    omega, mean_p = pm.Uniform("omega", 0, 1), pm.Uniform("mean_p", 0, 1)
    sigma, eps_raw = pm.Uniform("sigma", 0, 5), pm.Normal("eps_raw", shape=size)
    eps = pm.math.logit(mean_p) + sigma * eps_raw
    captures("y", omega, binomial_logit(y, int(data["T"]), eps), y > 0)


@model(name="Mt_model")
def capture_by_occasion(data):
    """Capture and recapture with a probability of each occasion."""
    y = data["y"]
    omega, p = pm.Uniform("omega", 0, 1), pm.Uniform("p", 0, 1, shape=int(data["T"]))
    captures("y", omega, pm.logp(pm.Bernoulli.dist(p), y).sum(axis=1), y.any(axis=1))


@model(name="Mtbh_model")
def capture_by_all(data):
    """Capture and recapture with effects of the occasion, of the capture before, and of the individual."""
    y = data["y"]
    omega, mean_p = pm.Uniform("omega", 0, 1), pm.Uniform("mean_p", 0, 1, shape=int(data["T"]))
    gamma, sigma = pm.Normal("gamma", 0, 10), pm.Uniform("sigma", 0, 3)
    eps_raw = pm.Normal("eps_raw", shape=int(data["M"]))
    logit_p = pm.math.logit(mean_p) + sigma * eps_raw[:, None] + gamma * previous(y)
    captures("y", omega, binomial_logit(y, 1, logit_p).sum(axis=1), y.any(axis=1))


@model(name="Mth_model")
def capture_by_occasion_and_individual(data):
    """Capture and recapture with effects of the occasion and of the individual."""
    y = data["y"]
    omega, mean_p = pm.Uniform("omega", 0, 1), pm.Uniform("mean_p", 0, 1, shape=int(data["T"]))
    sigma, eps_raw = pm.Uniform("sigma", 0, 5), pm.Normal("eps_raw", shape=int(data["M"]))
    logit_p = pm.math.logit(mean_p) + sigma * eps_raw[:, None]
    captures("y", omega, binomial_logit(y, 1, logit_p).sum(axis=1), y.any(axis=1))


@model(name="Survey_model")
def survey(data):
    """Returns of surveys of a size that is unknown: a sum over all sizes."""
    k = data["k"]
    theta = pm.Uniform("theta", 0, 1)
    sizes = np.arange(k.max(), int(data["nmax"]) + 1)
    returned = pm.logp(pm.Binomial.dist(sizes[:, None], theta), k).sum(axis=1)
    pm.Potential("k", pm.math.logsumexp(returned, axis=0, keepdims=False))


@model
def multi_occupancy(data):
    """Species at sites, with those that no visit found: occupancy and detection are correlated over species."""
    x, n, s = data["X"], int(data["n"]), int(data["S"])
    sites, visits = int(data["J"]), int(data["K"])
    alpha, beta = pm.Cauchy("alpha", 0, 2.5), pm.Cauchy("beta", 0, 2.5)
    omega = pm.Beta("Omega", 2, 2)
    rho = pm.Uniform("rho_uv", -1, 1)
    pm.Potential("rho_prior", pm.logp(pm.Beta.dist(2, 2), (rho + 1) / 2))
    sigma = pm.HalfCauchy("sigma_uv", 2.5, shape=2)
    uv1 = pm.Normal("uv1", 0, sigma[0], shape=s)
    uv2 = pm.Normal("uv2", rho * sigma[1] / sigma[0] * uv1, sigma[1] * pt.sqrt(1 - rho**2), shape=s)
    logit_psi, logit_theta = uv1 + alpha, uv2 + beta

    missed = pt.logaddexp(log_sigmoid(logit_psi) + binomial_logit(0, visits, logit_theta), log_sigmoid(-logit_psi))
    found = log_sigmoid(logit_psi[:n, None]) + binomial_logit(x, visits, logit_theta[:n, None])
    observed = pt.where(x > 0, found, missed[:n, None]).sum() + n * pt.log(omega)
    hidden = pt.logaddexp(pt.log1p(-omega), pt.log(omega) + sites * missed[n:]).sum()
    pm.Potential("X", observed + hidden)
