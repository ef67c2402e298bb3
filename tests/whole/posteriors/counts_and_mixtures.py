"""Counts of birds and accidents, and mixtures of normal distributions, of posteriordb."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from posteriors.models import model


@model
def GLMM1_model(data):
    """Counts of birds with an effect of each site."""
    mean, spread = pm.Normal("mu_alpha", 0, 10), pm.Uniform("sd_alpha", 0, 5)
    alpha = pm.Normal("alpha", mean, spread, shape=int(data["nsite"]))
    pm.Poisson("obs", pt.exp(alpha[data["obssite"] - 1]), observed=data["obs"])


@model
def GLMM_Poisson_model(data):
    """Counts with a cubic trend and an effect of each year."""
    alpha = pm.Uniform("alpha", -20, 20)
    beta = [pm.Uniform("beta1", -10, 10), pm.Uniform("beta2", -10, 20), pm.Uniform("beta3", -10, 10)]
    # Stan's declaration allows what the prior, uniform from -10 to 10, does not.
    pm.Potential("prior", pt.switch(beta[1] > 10, -np.inf, 0))
    eps = pm.Normal("eps", 0, pm.Uniform("sigma", 0, 5), shape=int(data["n"]))
    trend = sum(b * data["year"] ** power for power, b in enumerate(beta, 1))
    pm.Poisson("C", pt.exp(alpha + trend + eps), observed=data["C"])


@model
def bym2_offset_only(data):
    """Counts by areas: independent effects and effects that neighbours share."""
    size, first, second = int(data["N"]), data["node1"] - 1, data["node2"] - 1
    beta0, sigma, rho = pm.Normal("beta0", 0, 1), pm.HalfNormal("sigma", 1), pm.Beta("rho", 0.5, 0.5)
    theta, phi = pm.Normal("theta", 0, 1, shape=size), pm.Flat("phi", shape=size)
    pm.Potential("neighbours", -0.5 * pt.sum((phi[first] - phi[second]) ** 2))
    pm.Potential("centered", pm.logp(pm.Normal.dist(0, 0.001 * size), phi.sum()))
    effect = pt.sqrt(1 - rho) * theta + pt.sqrt(rho / data["scaling_factor"]) * phi
    pm.Poisson("y", pt.exp(np.log(data["E"]) + beta0 + effect * sigma), observed=data["y"])


@model
def low_dim_gauss_mix_collapse(data):
    """Two normal distributions whose order is free."""
    mu, sigma = pm.Normal("mu", 0, 2, shape=2), pm.HalfNormal("sigma", 2, shape=2)
    theta = pm.Beta("theta", 5, 5)
    pm.NormalMixture("y", pt.stack([theta, 1 - theta]), mu, sigma, observed=data["y"])


@model
def normal_mixture(data):
    """Two normal distributions of variance 1 whose order is free."""
    theta, mu = pm.Uniform("theta", 0, 1), pm.Normal("mu", 0, 10, shape=2)
    pm.NormalMixture("y", pt.stack([theta, 1 - theta]), mu, 1, observed=data["y"])


@model
def normal_mixture_k(data):
    """Several normal distributions whose order is free."""
    size = int(data["K"])
    theta, mu = pm.Dirichlet("theta", np.ones(size)), pm.Normal("mu", 0, 10, shape=size)
    pm.NormalMixture("y", theta, mu, pm.Uniform("sigma", 0, 10, shape=size), observed=data["y"])
