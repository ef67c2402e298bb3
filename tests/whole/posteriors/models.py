"""PyMC models of posteriors that have reference draws in posteriordb; each takes the data of `reference.json`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.transforms import Chain, log, ordered

#: By the names of Stan's models.
MODELS: dict[str, Callable[[Any], pm.Model]] = {}


def model(define: Callable[[Any], None] | None = None, *, name: str | None = None) -> Callable[..., Any]:
    """Add a function that defines the variables of a model to `MODELS`: by its own name, or by `name`."""
    if define is None:
        return lambda define: model(define, name=name)

    def make(data: Any) -> pm.Model:
        with pm.Model() as made:
            define(data)
        return made

    MODELS[name or define.__name__] = make
    return define


@model
def arK(data):
    """An autoregression of order 5."""
    y, order = data["y"], int(data["K"])
    alpha, beta = pm.Normal("alpha", 0, 10), pm.Normal("beta", 0, 10, shape=order)
    sigma = pm.HalfCauchy("sigma", 2.5)
    lags = np.stack([y[order - k : len(y) - k] for k in range(1, order + 1)], axis=1)
    pm.Normal("y", alpha + lags @ beta, sigma, observed=y[order:])


@model
def arma11(data):
    """An autoregression whose errors are a moving average: a loop over the errors."""
    y = data["y"]
    mu, phi, theta = pm.Normal("mu", 0, 10), pm.Normal("phi", 0, 2), pm.Normal("theta", 0, 2)
    sigma = pm.HalfCauchy("sigma", 2.5)

    def error(now, before, last, mu, phi, theta):
        return now - (mu + phi * before + theta * last)

    first = y[0] - (mu + phi * mu)
    errors = pytensor.scan(
        error, [pt.constant(y[1:]), pt.constant(y[:-1])], first, [mu, phi, theta], return_updates=False
    )
    pm.Potential("y", pm.logp(pm.Normal.dist(0, sigma), pt.concatenate([first[None], errors])).sum())


@model
def garch11(data):
    """Volatility that depends on the last one: a loop, and a parameter whose bound is another parameter."""
    y = data["y"]
    mu, alpha0 = pm.Flat("mu"), pm.HalfFlat("alpha0")
    alpha1 = pm.Uniform("alpha1", 0, 1)
    beta1 = pm.Uniform("beta1", 0, 1 - alpha1)
    pm.Potential("flat", pt.log(1 - alpha1))  # Stan's beta1 has no density

    def volatility(before, last, mu, alpha0, alpha1, beta1):
        return pt.sqrt(alpha0 + alpha1 * (before - mu) ** 2 + beta1 * last**2)

    first = pt.constant(data["sigma1"])
    sigma = pytensor.scan(volatility, [pt.constant(y[:-1])], first, [mu, alpha0, alpha1, beta1], return_updates=False)
    pm.Normal("y", mu, pt.concatenate([first[None], sigma]), observed=y)


def squared_exponential(x, alpha, rho):
    """Return the covariance of a Gaussian process at the points `x`."""
    return alpha**2 * pt.exp(-((x[:, None] - x) ** 2) / (2 * rho**2))


@model
def gp_regr(data):
    """A Gaussian process with noise."""
    x = data["x"]
    rho, alpha, sigma = pm.Gamma("rho", 25, 4), pm.HalfNormal("alpha", 2), pm.HalfNormal("sigma", 1)
    covariance = squared_exponential(x, alpha, rho) + sigma * np.eye(len(x))
    pm.MvNormal("y", np.zeros(len(x)), covariance, observed=data["y"])


@model
def gp_pois_regr(data):
    """Counts whose logarithmic rate is a Gaussian process."""
    x = data["x"]
    rho, alpha = pm.Gamma("rho", 25, 4), pm.HalfNormal("alpha", 2)
    f_tilde = pm.Normal("f_tilde", shape=len(x))
    covariance = squared_exponential(x, alpha, rho) + 1e-10 * np.eye(len(x))
    f = pm.Deterministic("f", pt.linalg.cholesky(covariance) @ f_tilde)
    pm.Poisson("k", pt.exp(f), observed=data["k"].astype(int))


@model
def hmm_example(data):
    """A hidden Markov model of two states, by the forward algorithm."""
    theta1, theta2 = pm.Dirichlet("theta1", [1, 1]), pm.Dirichlet("theta2", [1, 1])
    mu = pm.Normal("mu", [3, 10], 1, transform=Chain([log, ordered]), initval=[3, 10])  # positive and ordered
    emitted = pm.logp(pm.Normal.dist(mu, 1), data["y"][:, None])
    transitions = pt.log(pt.stack([theta1, theta2]))

    def forward(emitted, last, transitions):
        return pm.math.logsumexp(last[:, None] + transitions, axis=0, keepdims=False) + emitted

    states = pytensor.scan(forward, [emitted[1:]], emitted[0], [transitions], return_updates=False)
    pm.Potential("y", pm.math.logsumexp(states[-1]))


def runge_kutta(derivative, start, parameters, step, count):
    """Return the solution after each of `count` steps of the classical Runge-Kutta method, without the start."""

    def advance(i, z, *parameters):
        time = i * step
        k1 = derivative(time, z, *parameters)
        k2 = derivative(time + step / 2, z + step / 2 * k1, *parameters)
        k3 = derivative(time + step / 2, z + step / 2 * k2, *parameters)
        k4 = derivative(time + step, z + step * k3, *parameters)
        return z + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    return pytensor.scan(advance, [pt.arange(count)], start, parameters, return_updates=False)


@model
def lotka_volterra(data):
    """Hare and lynx: a differential equation."""
    theta = pm.TruncatedNormal(
        "theta", [1, 0.05, 1, 0.05], [0.5, 0.05, 0.5, 0.05], lower=0, initval=[0.5, 0.03, 0.8, 0.03]
    )
    z_init = pm.LogNormal("z_init", np.log(10), 1, shape=2, initval=[30, 5])
    sigma = pm.LogNormal("sigma", -1, 1, shape=2)

    def derivative(time, z, theta):
        return pt.stack([(theta[0] - theta[1] * z[1]) * z[0], (theta[3] * z[0] - theta[2]) * z[1]])

    steps = 20  # a year
    z = runge_kutta(derivative, z_init, [theta], 1 / steps, steps * int(data["N"]))[steps - 1 :: steps]
    pm.LogNormal("y_init", pt.log(z_init), sigma, observed=data["y_init"])
    pm.LogNormal("y", pt.log(z), sigma, observed=data["y"])


@model
def kidscore_interaction(data):
    """A regression with an interaction, of predictors that are not centered."""
    high_school, iq = data["mom_hs"], data["mom_iq"]
    beta, sigma = pm.Flat("beta", shape=4), pm.HalfCauchy("sigma", 2.5)
    columns = np.stack([np.ones_like(iq), high_school, iq, high_school * iq], axis=1)
    pm.Normal("kid_score", columns @ beta, sigma, observed=data["kid_score"])


@model
def kilpisjarvi(data):
    """A line through temperatures, by years that are not centered: a correlation of -1 in all digits but three."""
    alpha = pm.Normal("alpha", data["pmualpha"], data["psalpha"])
    beta = pm.Normal("beta", data["pmubeta"], data["psbeta"])
    pm.Normal("y", alpha + beta * data["x"], pm.HalfFlat("sigma"), observed=data["y"])


@model
def low_dim_gauss_mix(data):
    """A mixture of two normal distributions in order."""
    mu = pm.Normal("mu", 0, 2, shape=2, transform=ordered, initval=[-1, 1])
    sigma, theta = pm.HalfNormal("sigma", 2, shape=2), pm.Beta("theta", 5, 5)
    pm.NormalMixture("y", pt.stack([theta, 1 - theta]), mu, sigma, observed=data["y"])


@model
def logmesquite(data):
    """A regression on the logarithms of measures."""
    measures = ("diam1", "diam2", "canopy_height", "total_height", "density")
    columns = [np.ones(46), *(np.log(data[name]) for name in measures), data["group"]]
    beta = pm.Flat("beta", shape=7)
    pm.Normal("weight", np.stack(columns, axis=1) @ beta, pm.HalfFlat("sigma"), observed=np.log(data["weight"]))


@model
def one_comp_mm_elim_abs(data):
    """One compartment with Michaelis-Menten elimination: a differential equation that depends on time."""
    k_a, K_m, V_m = (pm.HalfCauchy(name, 1) for name in ("k_a", "K_m", "V_m"))
    sigma = pm.HalfCauchy("sigma", 1)
    total, volume, times = float(data["D"]), float(data["V"]), data["times"]

    def derivative(time, c, k_a, K_m, V_m):
        return pt.exp(-k_a * time) * total * k_a / volume - V_m / volume * c / (K_m + c)

    step = 0.025
    index = np.rint(times / step).astype(int) - 1
    c = runge_kutta(derivative, pt.zeros(()), [k_a, K_m, V_m], step, int(index[-1]) + 1)[index]
    pm.LogNormal("C_hat", pt.log(c), sigma, observed=data["C_hat"])


@model
def blr(data):
    """A linear regression."""
    beta, sigma = pm.Normal("beta", 0, 10, shape=5), pm.HalfNormal("sigma", 10)
    pm.Normal("y", data["X"] @ beta, sigma, observed=data["y"])


@model
def logearn_interaction(data):
    """A regression of 1,192 rows with an interaction, of predictors that are not centered."""
    height, male = data["height"], data["male"]
    beta = pm.Flat("beta", shape=4)
    columns = np.stack([np.ones_like(height), height, male, height * male], axis=1)
    pm.Normal("earn", columns @ beta, pm.HalfFlat("sigma"), observed=np.log(data["earn"]))
