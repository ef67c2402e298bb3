"""PyMC models of posteriors of answers to items, of words in documents, and of a few others."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from scipy.integrate import DOP853

from posteriors.models import model


def sum_to_zero(name, size):
    """Return elements of sum 0 that are normal(0, 3) each; all but the last are the parameter of that name."""
    free = pm.Normal(name, 0, 3, shape=size - 1)
    last = -free.sum()
    pm.Potential(f"{name}_last", pm.logp(pm.Normal.dist(0, 3), last))
    return pt.concatenate([free, last[None]])


def abilities(data):
    """Return the abilities of persons, a regression on their covariates.

    All columns but the first are centered and divided by two standard deviations. Stan's program means to divide columns
    of two values by their range, but its count of such values never gets there.
    """
    w = data["W"].astype("float64")
    w[:, 1:] = (w[:, 1:] - w[:, 1:].mean(axis=0)) / (2 * w[:, 1:].std(axis=0, ddof=1))
    lambda_adj = pm.StudentT("lambda_adj", nu=3, mu=0, sigma=1, shape=int(data["K"]))
    return pm.Normal("theta", w @ lambda_adj, 1)


@model(name="2pl_latent_reg_irt")
def two_parameters_latent_regression(data):
    """Answers by discrimination and difficulty of items, with a regression of abilities."""
    items = int(data["I"])
    ii, jj = data["ii"] - 1, data["jj"] - 1
    alpha = pm.LogNormal("alpha", 1, 1, shape=items)
    beta = sum_to_zero("beta_free", items)
    theta = abilities(data)
    pm.Bernoulli("y", logit_p=alpha[ii] * theta[jj] - beta[ii], observed=data["y"])


@model
def gpcm_latent_reg_irt(data):
    """Partial credit: each item has its own number of steps, and each step its difficulty."""
    items, y = int(data["I"]), data["y"]
    ii, jj = data["ii"] - 1, data["jj"] - 1
    steps = np.zeros(items, int)
    np.maximum.at(steps, ii, y)
    alpha = pm.LogNormal("alpha", 1, 1, shape=items)
    beta = sum_to_zero("beta_free", int(steps.sum()))
    theta = abilities(data)

    categories = np.arange(steps.max() + 1)
    possible = categories <= steps[:, None]
    total = pt.concatenate([pt.zeros(1), pt.cumsum(beta)])
    first = np.cumsum(steps) - steps
    last = np.where(possible, first[:, None] + categories, 0)
    difficulty = total[last] - total[first][:, None]
    credit = categories * (theta[jj] * alpha[ii])[:, None] - difficulty[ii]
    credit = pt.where(possible[ii], credit, -np.inf)
    chosen = credit[np.arange(len(y)), y] - pm.math.logsumexp(credit, axis=1, keepdims=False)
    pm.Potential("y", chosen.sum())


@model
def grsm_latent_reg_irt(data):
    """A rating scale: all items share the steps, and each has its difficulty."""
    items, y = int(data["I"]), data["y"]
    ii, jj = data["ii"] - 1, data["jj"] - 1
    alpha = pm.LogNormal("alpha", 1, 1, shape=items)
    beta, kappa = sum_to_zero("beta_free", items), sum_to_zero("kappa_free", int(y.max()))
    theta = abilities(data)
    categories = np.arange(y.max() + 1)
    steps = pt.concatenate([pt.zeros(1), pt.cumsum(kappa)])
    credit = categories * (theta[jj] * alpha[ii] - beta[ii])[:, None] - steps
    pm.Categorical("y", logit_p=credit, observed=y)


@model
def hier_2pl(data):
    """Answers by discrimination and difficulty of items, which are correlated."""
    items = int(data["I"])
    ii, jj = data["ii"] - 1, data["jj"] - 1
    theta = pm.Normal("theta", shape=int(data["J"]))
    mu = pm.Normal("mu", 0, [1, 5])
    _, correlation, deviations = pm.LKJCholeskyCov(
        "L_Sigma", n=2, eta=4, sd_dist=pm.Exponential.dist(0.1), compute_corr=True
    )
    tau = pm.Deterministic("tau", deviations)
    rho = correlation[1, 0]
    rest = pt.sqrt(1 - rho**2)
    pm.Deterministic("L_Omega", pt.stacklists([[pt.ones(()), pt.zeros(())], [rho, rest]]))
    xi1 = pm.Normal("xi1", mu[0], tau[0], shape=items)
    xi2 = pm.Normal("xi2", mu[1] + rho * tau[1] * (xi1 - mu[0]) / tau[0], tau[1] * rest, shape=items)
    pm.Bernoulli("y", logit_p=pt.exp(xi1)[ii] * (theta[jj] - xi2[ii]), observed=data["y"])


@model
def irt_2pl(data):
    """Answers by discrimination and difficulty of items, each with a scale of its own.

    Stan's Bernoulli leaves out terms below exp(-20), which PyMC keeps: their gradients differ by 1e-10 where logits are
    large, as at PyMC's own initial point.
    """
    items, persons = data["y"].shape
    theta = pm.Normal("theta", 0, pm.HalfCauchy("sigma_theta", 2), shape=persons)
    a = pm.LogNormal("a", 0, pm.HalfCauchy("sigma_a", 2), shape=items, initval=np.ones(items))
    b = pm.Normal("b", pm.Normal("mu_b", 0, 5), pm.HalfCauchy("sigma_b", 2), shape=items)
    pm.Bernoulli("y", logit_p=a[:, None] * (theta - b[:, None]), observed=data["y"])


@model
def lsat_model(data):
    """Answers to five questions of a test, stored as patterns with cumulative counts; starts as does `irt_2pl`."""
    answers = np.repeat(data["response"], np.diff(data["culm"], prepend=0), axis=0)
    alpha = pm.Normal("alpha", 0, 100, shape=int(data["T"]))
    theta = pm.Normal("theta", shape=int(data["N"]))
    beta = pm.HalfNormal("beta", 100, initval=1)
    pm.Bernoulli("r", logit_p=beta * theta[:, None] - alpha, observed=answers)


@model
def bones_model(data):
    """Skeletal age by grades of bones, each between two known cut points.

    A difference of logistic functions of theta is their product (one of them reflected) times a constant, which is left
    out.
    """
    theta = pm.Normal("theta", 0, 36, shape=int(data["nChild"]))
    grade, count = data["grade"], len(data["ncat"])
    cuts = np.full((count, 6), np.inf)
    cuts[:, 0] = -np.inf
    cuts[:, 1:5] = np.where(np.arange(1, 5) < data["ncat"][:, None], data["gamma"], np.inf)
    child, indicator = np.nonzero(grade != -1)
    grade, delta = grade[child, indicator], data["delta"][indicator]
    above = delta * (theta[child] - cuts[indicator, grade - 1])
    below = delta * (cuts[indicator, grade] - theta[child])
    pm.Potential("grade", -(pt.softplus(-above) + pt.softplus(-below)).sum())


def topics(data, alpha, beta):
    """Add topics of documents: words of each topic, topics of each document, and the topic of each word summed out."""
    theta = pm.Dirichlet("theta", alpha, shape=(int(data["M"]), len(alpha)))
    phi = pm.Dirichlet("phi", beta, shape=(len(alpha), int(data["V"])))
    pairs = np.stack([data["doc"], data["w"]]) - 1
    (doc, w), counts = np.unique(pairs, axis=1, return_counts=True)
    pm.Potential("w", (counts * pt.log((theta @ phi)[doc, w])).sum())


@model(name="ldaK2")
def two_topics(data):
    """Two topics of documents."""
    topics(data, np.ones(2), np.ones(int(data["V"])))


@model(name="ldaK5")
def five_topics(data):
    """Five topics of documents, with priors in the data."""
    topics(data, data["alpha"], data["beta"])


@model(name="nn_rbm1bJ10")
def network(data):
    """A network of one hidden layer of 10 units that tells digits; the scores of the first one are 1."""
    x, hidden, classes = data["x"], 10, int(data["K"])
    inputs = x.shape[1]
    # nu / 2, nu * s0^2 / 2 of the scales' priors, where nu = 0.5 and s0 = 0.05 / (units below)^2
    sigma2_alpha = pm.InverseGamma("sigma2_alpha", 0.25, 0.25 * (0.05 / inputs**2) ** 2)
    sigma2_beta = pm.InverseGamma("sigma2_beta", 0.25, 0.25 * (0.05 / hidden**2) ** 2)
    alpha = pm.Normal("alpha", 0, pt.sqrt(sigma2_alpha), shape=(inputs, hidden))
    beta = pm.Normal("beta", 0, pt.sqrt(sigma2_beta), shape=(hidden, classes - 1))
    alpha1, beta1 = pm.Normal("alpha1", shape=hidden), pm.Normal("beta1", shape=classes - 1)
    scores = pt.tanh(alpha1 + x @ alpha) @ beta + beta1
    pm.Categorical("y", logit_p=pt.concatenate([np.ones((len(x), 1)), scores], axis=1), observed=data["y"] - 1)


def integrate(derivative, start, parameters, step, count):
    """Return the solution after each of `count` equal steps of Dormand and Prince's method of order 8."""

    def advance(z, *parameters):
        slopes = []
        for row in DOP853.A:
            inner = sum((float(a) * slope for a, slope in zip(row, slopes, strict=False) if a), pt.zeros_like(z))
            slopes.append(derivative(z + step * inner, *parameters))
        return z + step * sum(float(b) * slope for b, slope in zip(DOP853.B, slopes, strict=True) if b)

    return pytensor.scan(advance, [], start, parameters, n_steps=count, return_updates=False)


@model
def sir(data):
    """An epidemic spread by bacteria in water: a differential equation, by steps of half a day of order 8.

    Stan's program asks its solver for errors of 1e-6 only; with errors of 1e-12 both gradients agree to 1e-9.
    """
    beta = pm.HalfCauchy("beta", 2.5, initval=1)
    gamma = pm.HalfCauchy("gamma", 1, initval=0.2)
    xi = pm.HalfCauchy("xi", 25, initval=10)
    delta = pm.HalfCauchy("delta", 1, initval=0.35)

    def derivative(y, beta, gamma, xi, delta):
        infected = beta * y[3] / (y[3] + 1_000_000) * y[0]
        recovered = gamma * y[1]
        return pt.stack([-infected, infected - recovered, recovered, xi * y[1] - delta * y[3]])

    step = 0.5
    index = np.rint(data["t"] / step).astype(int) - 1
    start = pt.constant(data["y0"].astype("float64"))
    y = integrate(derivative, start, [beta, gamma, xi, delta], step, int(index[-1]) + 1)[index]
    susceptible = pt.concatenate([start[:1], y[:, 0]])
    pm.Poisson("stoi_hat", susceptible[:-1] - susceptible[1:], observed=data["stoi_hat"])
    pm.LogNormal("B_hat", pt.log(y[:, 3]), 0.15, observed=data["B_hat"])


@model
def soil_incubation(data):
    """Carbon of soil in two pools that feed each other: a linear differential equation, by its exact solution.

    Stan's program asks its solver for errors of 1e-6 only; with errors of 1e-12 both gradients agree to 1e-11.
    """
    k1, k2, alpha21, alpha12 = (pm.HalfNormal(name, 1) for name in ("k1", "k2", "alpha21", "alpha12"))
    gamma, sigma = pm.Beta("gamma", 10, 1), pm.HalfCauchy("sigma", 1)
    total, time = float(data["totalC_t0"]), data["ts"] - data["t0"]

    # The eigenvalues are middle + half and middle - half, and they are real.
    middle = -(k1 + k2) / 2
    half = pt.sqrt((k1 - k2) ** 2 / 4 + alpha12 * alpha21 * k1 * k2)
    slow, fast = pt.exp((middle + half) * time), pt.exp((middle - half) * time)
    pools = total * gamma, total * (1 - gamma)
    slope = k1 * (alpha21 - 1) * pools[0] + k2 * (alpha12 - 1) * pools[1]
    carbon = (slow + fast) / 2 * total + (slow - fast) / (2 * half) * (slope - middle * total)
    pm.Normal("eCO2mean", total - carbon, sigma, observed=data["eCO2mean"])
