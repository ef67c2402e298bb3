"""Animals that were never seen: posteriordb's models of captures, surveys and occupancy, with discrete states summed out."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from posteriors.models import model


def log_likelihood(distribution, y):
    """Return the logarithms of the probabilities of data."""
    return pm.logp(distribution, y)


def captured(omega, seen: np.ndarray, each) -> None:
    """Add the density of histories, of which the unseen may be of animals that do not exist.

    `each` has the log probability of the history of each animal, given that it exists; `omega` is the probability of that.
    """
    exists = pt.log(omega) + each
    pm.Potential("y", pt.sum(pt.where(seen, exists, pt.logaddexp(exists, pt.log1p(-omega)))))


@model
def M0_model(data):
    """Captures with one probability of detection."""
    omega, p = pm.Uniform("omega", 0, 1), pm.Uniform("p", 0, 1)
    counts = data["y"].sum(axis=1)
    captured(omega, counts > 0, log_likelihood(pm.Binomial.dist(data["T"], p), counts))


@model
def Mb_model(data):
    """Captures that change with the last one."""
    omega, p, c = (pm.Uniform(name, 0, 1) for name in ("omega", "p", "c"))
    y = data["y"]
    before = np.concatenate([np.zeros_like(y[:, :1]), y[:, :-1]], axis=1)
    each = log_likelihood(pm.Bernoulli.dist((1 - before) * p + before * c), y).sum(axis=1)
    captured(omega, y.sum(axis=1) > 0, each)


@model
def Mh_model(data):
    """Captures with a probability of detection of each animal."""
    omega, mean, sigma = pm.Uniform("omega", 0, 1), pm.Uniform("mean_p", 0, 1), pm.Uniform("sigma", 0, 5)
    logit = pm.math.logit(mean) + sigma * pm.Normal("eps_raw", shape=int(data["M"]))
    captured(omega, data["y"] > 0, log_likelihood(pm.Binomial.dist(data["T"], logit_p=logit), data["y"]))


@model
def Mt_model(data):
    """Captures with a probability of detection of each occasion."""
    omega, p = pm.Uniform("omega", 0, 1), pm.Uniform("p", 0, 1, shape=int(data["T"]))
    captured(omega, data["y"].sum(axis=1) > 0, log_likelihood(pm.Bernoulli.dist(p), data["y"]).sum(axis=1))


def heterogeneous(data, largest: float, more):
    """Add captures whose probability depends on occasion and animal, and on `more`."""
    omega, mean = pm.Uniform("omega", 0, 1), pm.Uniform("mean_p", 0, 1, shape=int(data["T"]))
    effect = pm.Uniform("sigma", 0, largest) * pm.Normal("eps_raw", shape=int(data["M"]))
    logit = pm.math.logit(mean) + effect[:, None] + more
    each = log_likelihood(pm.Bernoulli.dist(logit_p=logit), data["y"]).sum(axis=1)
    captured(omega, data["y"].sum(axis=1) > 0, each)


@model
def Mth_model(data):
    """Captures that depend on occasion and animal."""
    heterogeneous(data, 5, 0)


@model
def Mtbh_model(data):
    """Captures that depend on occasion, animal and the last capture."""
    y = data["y"]
    before = np.concatenate([np.zeros_like(y[:, :1]), y[:, :-1]], axis=1)
    heterogeneous(data, 3, pm.Normal("gamma", 0, 10) * before)


@model
def Survey_model(data):
    """How many were asked, if some returned a survey: the number is summed out."""
    theta, largest = pm.Uniform("theta", 0, 1), int(data["nmax"])
    asked = np.arange(data["k"].max(), largest + 1)
    each = log_likelihood(
        pm.Binomial.dist(asked[:, None], theta), np.broadcast_to(data["k"], (len(asked), len(data["k"])))
    )
    pm.Potential("k", pm.math.logsumexp(each.sum(axis=1)))


@model
def multi_occupancy(data):
    """Species at sites, of which some were never seen."""
    alpha, beta = pm.Cauchy("alpha", 0, 2.5), pm.Cauchy("beta", 0, 2.5)
    omega = pm.Beta("Omega", 2, 2)
    rho, sigma = pm.Uniform("rho_uv", -1, 1), pm.HalfCauchy("sigma_uv", 2.5, shape=2)
    pm.Potential("prior", pm.logp(pm.Beta.dist(2, 2), (rho + 1) / 2))
    size, seen, visits = int(data["S"]), int(data["n"]), data["K"]
    u, v = pm.Flat("uv1", shape=size), pm.Flat("uv2", shape=size)
    covariance = pt.outer(sigma, sigma) * pt.stack([pt.stack([1.0, rho]), pt.stack([rho, 1.0])])
    pm.Potential("uv", pm.logp(pm.MvNormal.dist(np.zeros(2), covariance), pt.stack([u, v], axis=1)).sum())
    occupied, empty = pm.math.log(pm.math.sigmoid(u + alpha)), pm.math.log(pm.math.sigmoid(-u - alpha))

    def at_sites(x, which):
        detected = log_likelihood(pm.Binomial.dist(visits, logit_p=(v + beta)[which, None]), x)
        present = occupied[which, None] + detected
        return pt.where(x > 0, present, pt.logaddexp(present, empty[which, None]))

    known, unknown = slice(None, seen), slice(seen, None)
    pm.Potential("X", seen * pt.log(omega) + at_sites(data["X"], known).sum())
    never = int(data["J"]) * at_sites(np.zeros((size - seen, 1), int), unknown)[:, 0]
    pm.Potential("never", pt.logaddexp(pt.log1p(-omega), pt.log(omega) + never).sum())
