"""Series of posteriordb: hidden Markov models, epidemics, losses, trends, a state space model."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.transforms import Chain, log, ordered

from posteriors.models import model

positive_ordered = Chain([log, ordered])


def forward(first, emissions, transitions):
    """Return the log likelihood of a hidden Markov model.

    Parameters
    ----------
    first
        Log probabilities of the states and of the first observation, shape (states,).
    emissions
        Log densities of the later observations, shape (steps, states).
    transitions
        Log probabilities of the states to come by the last ones, shape (states, states) or (steps, states, states).
    """

    def step(emitted, *rest):
        last, transition = rest if transitions.ndim == 2 else rest[::-1]
        return pm.math.logsumexp(last[:, None] + transition, axis=0, keepdims=False) + emitted

    varying = transitions.ndim == 3
    states = pytensor.scan(
        step,
        [emissions, transitions] if varying else [emissions],
        first,
        [] if varying else [transitions],
        return_updates=False,
    )
    return pm.math.logsumexp(states[-1])


def drives(data, transform, emitted) -> None:
    """Add drives to the basket, or none, from speed and distance; `emitted` has the density of each state."""
    size = int(data["K"])
    theta = pt.stack([pm.Dirichlet(f"theta{k + 1}", data["alpha"][k]) for k in range(size)])
    u, v = data["u"][:, None], data["v"][:, None]
    phi, weight = (pm.Normal(name, [0, 3], 1, transform=transform, initval=[0.5, 3]) for name in ("phi", "lambda"))
    emissions = emitted("tau", phi, u) + emitted("rho", weight, v)
    pm.Potential("y", forward(emissions[0], emissions[1:], pt.log(theta)))


@model
def hmm_drive_0(data):
    """A hidden Markov model with exponential observations."""
    drives(data, positive_ordered, lambda scale, rate, x: pm.logp(pm.Exponential.dist(rate), x))


@model
def hmm_drive_1(data):
    """A hidden Markov model with normal observations of known errors."""
    drives(data, ordered, lambda scale, mean, x: pm.logp(pm.Normal.dist(mean, data[scale]), x))


@model
def hmm_gaussian(data):
    """A hidden Markov model with normal observations; the first one has the densities of all states, as in Stan's program."""
    size, y = int(data["K"]), data["y"]
    start, moves = pm.Dirichlet("pi1", np.ones(size)), pm.Dirichlet("A", np.ones((size, size)))
    mu = pm.Flat("mu", shape=size, transform=ordered, initval=np.linspace(y.min(), y.max(), size))
    emissions = pm.logp(pm.Normal.dist(mu, pm.HalfFlat("sigma", shape=size)), y[:, None])
    pm.Potential("y", forward(pt.log(start) + emissions[0].sum(), emissions[1:], pt.log(moves)))


@model
def iohmm_reg(data):
    """A hidden Markov model whose transitions and means are regressions; a transition depends on the last state alone."""
    size, u, y = int(data["K"]), data["u"], data["y"]
    start = pm.Dirichlet("pi1", np.ones(size))
    w, b = (pm.Normal(name, 0, 5, shape=(size, u.shape[1])) for name in ("w", "b"))
    emissions = pm.logp(pm.Normal.dist(u @ b.T, pm.HalfNormal("sigma", 3, shape=size)), y[:, None])
    moves = pt.special.log_softmax(u[1:] @ w.T, axis=1)[:, :, None]
    pm.Potential("y", forward(pt.log(start) + emissions[0], emissions[1:], moves))


def delays(weights: np.ndarray) -> np.ndarray:
    """Return the matrix that adds up, for each day, what earlier days bring after delays of one day and more."""
    days = len(weights)
    lag = np.arange(days)[:, None] - np.arange(days)
    return np.where(lag > 0, weights[np.maximum(lag - 1, 0)], 0)


def epidemic(data):
    """Deaths by COVID-19 in several countries: a renewal equation whose rate depends on interventions."""
    countries, known, days = (int(data[name]) for name in ("M", "N0", "N2"))
    tau, phi = pm.Exponential("tau", 0.03), pm.HalfNormal("phi", 5)
    y, kappa = pm.Exponential("y", 1 / tau, shape=countries), pm.HalfNormal("kappa", 0.5)
    mu = pm.HalfFlat("mu", shape=countries)
    pm.Potential("mu_prior", pm.logp(pm.Normal.dist(3.28, kappa), mu).sum())
    alpha = pm.Gamma("alpha_hier", 0.1667, 1, shape=int(data["P"])) - np.log(1.05) / 6
    noise = pm.HalfFlat("ifr_noise", shape=countries)
    pm.Potential("noise_prior", pm.logp(pm.Normal.dist(1, 0.1), noise).sum())
    rate = mu * pt.exp(-(data["X"] @ alpha)).T
    begun = pt.concatenate([pt.ones((known, 1)) * y, pt.zeros((days - known, countries))])

    def day(i, rate, serial, infections, total, population):
        total = total + infections[i - 1]
        today = (population - total) / population * rate * (serial @ infections)
        return pt.set_subtensor(infections[i], today), total

    later = [pt.arange(known, days), rate[known:], pt.constant(delays(data["SI"])[known:])]
    history = pytensor.scan(day, later, [begun, (known - 1) * y], [pt.constant(data["pop"])], return_updates=False)[0]
    infections = history[-1]
    weights = np.stack([delays(data["f"][:, m]) for m in range(countries)])
    deaths = noise * pt.matvec(weights, infections.T).T
    deaths = pt.concatenate([1e-15 * infections[:1], deaths[1:]])
    place = np.arange(days)[:, None]
    used = (place >= data["EpidemicStart"] - 1) & (place < data["N"])
    pm.NegativeBinomial("deaths", mu=deaths[used.nonzero()], alpha=phi, observed=data["deaths"][used])


for version in ("covid19imperial_v2", "covid19imperial_v3"):
    model(epidemic, name=version)


@model
def losscurve_sislob(data):
    """Losses of insurance that grow to their final value along a curve."""
    cohort, premium, time = data["cohort_id"] - 1, data["premium"], data["t_value"]
    omega, theta = pm.LogNormal("omega", 0, 0.5), pm.LogNormal("theta", 0, 0.5)
    mean, spread = pm.Normal("mu_LR", 0, 0.5), pm.LogNormal("sd_LR", 0, 0.5)
    ratio = pm.LogNormal("LR", mean, spread, shape=len(premium))
    if data["growthmodel_id"] == 1:
        growth = -pt.expm1(-((time / theta) ** omega))
    else:
        growth = time**omega / (time**omega + theta**omega)
    error = pm.LogNormal("loss_sd", 0, 0.7) * premium[cohort]
    pm.Normal("loss", (ratio * premium)[cohort] * growth[data["t_idx"] - 1], error, observed=data["loss"])


@model
def prophet(data):
    """Downloads of a package: a trend whose slope changes, with seasons."""
    if data["trend_indicator"]:
        raise NotImplementedError("a logistic trend")
    t, changes, x = data["t"], data["t_change"], data["X"]
    after = (t[:, None] >= changes).astype(float)
    k, m = pm.Normal("k", 0, 5), pm.Normal("m", 0, 5)
    delta = pm.Laplace("delta", 0, data["tau"], shape=len(changes))
    beta, sigma = pm.Normal("beta", 0, data["sigmas"]), pm.HalfNormal("sigma_obs", 0.5)
    trend = (k + after @ delta) * t + m - after @ (changes * delta)
    mean = trend * (1 + x @ (beta * data["s_m"])) + x @ (beta * data["s_a"])
    pm.Normal("y", mean, sigma, observed=data["y"])


@model
def state_space_stochastic_level_stochastic_seasonal(data):
    """Drivers killed in the United Kingdom: a level and a season that change, with bounds of the level."""
    y, size = data["y"], int(data["n"])
    mean, spread = y.mean(), y.std(ddof=1)
    mu = pm.Uniform("mu", mean - 3 * spread, mean + 3 * spread, shape=size)
    seasonal = pm.Flat("seasonal", shape=size)
    beta, weight = pm.Flat("beta"), pm.Flat("lambda")
    sigma = pm.StudentT("sigma", nu=4, mu=0, sigma=1, shape=3, transform=positive_ordered, initval=[0.5, 1, 1.5])
    year = sum(seasonal[lag : size - 11 + lag] for lag in range(12))
    pm.Potential("season", pm.logp(pm.Normal.dist(0, sigma[0]), year).sum())
    pm.Potential("level", pm.logp(pm.Normal.dist(0, sigma[1]), mu[1:] - mu[:-1]).sum())
    pm.Normal("y", mu + beta * data["x"] + weight * data["w"] + seasonal, sigma[2], observed=y)
