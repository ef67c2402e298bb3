"""Twenty-three PyMC models as people write them, on simulated data of moderate size: what tests, `calls.py` and `samplers.py` share.

Each function returns a new model. Seeds are fixed, so the data are the same everywhere, and parameters are near those that
the data were simulated with. Nothing here names a backend.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.transforms import ordered

MODELS: dict[str, Callable[[], pm.Model]] = {}


def model(make: Callable[[], pm.Model]) -> Callable[[], pm.Model]:
    """Add a function that makes a model to `MODELS`, under its name."""
    MODELS[make.__name__] = make
    return make


@model
def eight_schools() -> pm.Model:
    """Treatment effects of eight schools, non-centred."""
    effect = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    error = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    with pm.Model(coords={"school": range(8)}) as m:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        z = pm.Normal("z", dims="school")
        theta = pm.Deterministic("theta", mu + tau * z, dims="school")
        pm.Normal("y", theta, error, observed=effect, dims="school")
    return m


@model
def hierarchical() -> pm.Model:
    """Radon-like: 919 houses in 85 counties, intercept and slope by county, a covariate of the county."""
    rng = np.random.default_rng(1)
    county = np.sort(rng.integers(0, 85, 919))
    floor, uranium = rng.integers(0, 2, 919), rng.standard_normal(85)
    intercept, slope = 1.5 + 0.7 * uranium + 0.2 * rng.standard_normal(85), -0.6 + 0.3 * rng.standard_normal(85)
    y = intercept[county] + slope[county] * floor + 0.7 * rng.standard_normal(919)
    with pm.Model(coords={"county": range(85)}) as m:
        gamma, mu = pm.Normal("gamma", 0, 5, shape=2), pm.Normal("mu", 0, 5)
        tau, sigma = pm.HalfNormal("tau", 1, shape=2), pm.HalfNormal("sigma", 1)
        za, zb = pm.Normal("za", dims="county"), pm.Normal("zb", dims="county")
        a = pm.Deterministic("a", gamma[0] + gamma[1] * uranium + tau[0] * za, dims="county")
        b = pm.Deterministic("b", mu + tau[1] * zb, dims="county")
        pm.Normal("y", a[county] + b[county] * floor, sigma, observed=y)
    return m


@model
def logistic() -> pm.Model:
    """Logistic regression, 1,000 rows by 10 columns, data as `pm.Data`."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((1000, 10))
    y = rng.random(1000) < 1 / (1 + np.exp(-(0.3 + x @ np.linspace(-1, 1, 10))))
    with pm.Model(coords={"column": range(10)}) as m:
        columns = pm.Data("x", x)
        intercept, beta = pm.Normal("intercept", 0, 2), pm.Normal("beta", 0, 1, dims="column")
        pm.Bernoulli("y", logit_p=intercept + columns @ beta, observed=y.astype("int64"))
    return m


@model
def poisson() -> pm.Model:
    """Poisson regression with exposure and an effect of each of 40 groups."""
    rng = np.random.default_rng(3)
    x, group, exposure = rng.standard_normal(400), np.arange(400) % 40, rng.uniform(0.5, 2.0, 400)
    y = rng.poisson(exposure * np.exp(0.5 + 0.4 * x + 0.5 * rng.standard_normal(40)[group]))
    with pm.Model() as m:
        intercept, slope = pm.Normal("intercept", 0, 2), pm.Normal("slope", 0, 1)
        tau, z = pm.HalfNormal("tau", 1), pm.Normal("z", shape=40)
        pm.Poisson("y", exposure * pt.exp(intercept + slope * x + tau * z[group]), observed=y)
    return m


@model
def negative_binomial() -> pm.Model:
    """Negative binomial regression, 500 rows by 4 columns."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((500, 4))
    mu = np.exp(1 + x @ np.array([0.3, -0.2, 0.1, 0.0]))
    y = rng.negative_binomial(2.0, 2.0 / (2.0 + mu))
    with pm.Model() as m:
        intercept, beta = pm.Normal("intercept", 0, 2), pm.Normal("beta", 0, 1, shape=4)
        alpha = pm.Exponential("alpha", 0.5)
        pm.NegativeBinomial("y", mu=pt.exp(intercept + x @ beta), alpha=alpha, observed=y)
    return m


@model
def mixture() -> pm.Model:
    """Mixture of three normals with ordered means, 300 points."""
    rng = np.random.default_rng(5)
    y = rng.choice([-3.0, 0.0, 4.0], p=[0.3, 0.5, 0.2], size=300) + 0.7 * rng.standard_normal(300)
    with pm.Model() as m:
        w = pm.Dirichlet("w", np.full(3, 2.0))
        mu = pm.Normal("mu", 0, 5, shape=3, transform=ordered, initval=[-2.0, 0.0, 2.0])
        sigma = pm.HalfNormal("sigma", 1, shape=3)
        pm.NormalMixture("y", w, mu, sigma, observed=y)
    return m


@model
def ordinal() -> pm.Model:
    """Ordered logistic regression with five categories, 400 rows."""
    rng = np.random.default_rng(6)
    x = rng.standard_normal((400, 2))
    y = np.digitize(x @ np.array([1.0, -0.5]) + rng.logistic(size=400), [-2.0, -0.5, 0.5, 2.0])
    with pm.Model() as m:
        beta = pm.Normal("beta", 0, 1, shape=2)
        cuts = pm.Normal("cuts", 0, 3, shape=4, transform=ordered, initval=[-2.0, -1.0, 1.0, 2.0])
        pm.OrderedLogistic("y", eta=x @ beta, cutpoints=cuts, observed=y)
    return m


@model
def autoregression() -> pm.Model:
    """AR(2) with a constant, 200 steps."""
    rng = np.random.default_rng(7)
    y = np.zeros(200)
    for t in range(2, 200):
        y[t] = 0.5 + 0.6 * y[t - 1] - 0.3 * y[t - 2] + rng.standard_normal()
    with pm.Model() as m:
        rho, sigma = pm.Normal("rho", 0, 0.5, shape=3), pm.HalfNormal("sigma", 1)
        pm.AR("y", rho, sigma, constant=True, init_dist=pm.Normal.dist(0, 2, shape=2), observed=y)
    return m


@model
def garch() -> pm.Model:
    """GARCH(1, 1) by a scan, 300 returns; the bound of one parameter is another."""
    rng = np.random.default_rng(8)
    r, v = np.zeros(300), 1.0
    for t in range(300):
        r[t] = np.sqrt(v) * rng.standard_normal()
        v = 0.2 + 0.2 * r[t] ** 2 + 0.6 * v
    with pm.Model() as m:
        mu, omega = pm.Normal("mu", 0, 1), pm.HalfNormal("omega", 1)
        alpha = pm.Uniform("alpha", 0, 1)
        beta = pm.Uniform("beta", 0, 1 - alpha)
        rest = pytensor.scan(
            lambda last, v, mu, omega, alpha, beta: omega + alpha * (last - mu) ** 2 + beta * v,
            sequences=[pt.constant(r[:-1])],
            outputs_info=[pt.ones(())],
            non_sequences=[mu, omega, alpha, beta],
            strict=True,
            return_updates=False,
        )
        variance = pt.concatenate([pt.ones(1), rest])
        pm.Normal("r", mu, pt.sqrt(variance), observed=r)
    return m


@model
def latent_gp() -> pm.Model:
    """Latent Gaussian process under counts, 40 points."""
    rng = np.random.default_rng(9)
    x = np.linspace(0, 10, 40)
    y = rng.poisson(np.exp(1 + np.sin(x)))
    with pm.Model() as m:
        length, eta = pm.InverseGamma("length", 5, 5), pm.HalfNormal("eta", 1)
        mean = pm.gp.mean.Constant(pm.Normal("level", 0, 1))
        gp = pm.gp.Latent(mean_func=mean, cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=length))
        pm.Poisson("y", pt.exp(gp.prior("f", X=x[:, None], jitter=1e-6)), observed=y)
    return m


@model
def marginal_gp() -> pm.Model:
    """Gaussian process with a Matérn covariance and noise, integrated out, 60 points."""
    rng = np.random.default_rng(10)
    x = np.sort(rng.uniform(0, 10, 60))
    y = np.sin(x) + 0.2 * rng.standard_normal(60)
    with pm.Model() as m:
        length, eta, sigma = pm.Gamma("length", 2, 1), pm.HalfNormal("eta", 2), pm.HalfNormal("sigma", 1)
        gp = pm.gp.Marginal(cov_func=eta**2 * pm.gp.cov.Matern52(1, ls=length))
        gp.marginal_likelihood("y", X=x[:, None], y=y, sigma=sigma, jitter=1e-6)
    return m


@model
def hsgp() -> pm.Model:
    """Gaussian process by 25 basis functions of its Hilbert space, 300 points."""
    rng = np.random.default_rng(11)
    x = np.linspace(-5, 5, 300)
    y = np.sin(x) + 0.3 * rng.standard_normal(300)
    with pm.Model() as m:
        length, eta, sigma = pm.Gamma("length", 3, 2), pm.HalfNormal("eta", 1), pm.HalfNormal("sigma", 1)
        gp = pm.gp.HSGP(m=[25], c=1.5, cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=length))
        pm.Normal("y", gp.prior("f", X=x[:, None]), sigma, observed=y)
    return m


@model
def lkj() -> pm.Model:
    """Correlated intercepts and slopes of 30 groups, their covariance by its Cholesky factor."""
    rng = np.random.default_rng(12)
    group, x = np.arange(300) % 30, rng.standard_normal(300)
    effects = rng.multivariate_normal([1.0, -0.5], [[0.5, 0.2], [0.2, 0.3]], size=30)
    y = effects[group, 0] + effects[group, 1] * x + 0.5 * rng.standard_normal(300)
    with pm.Model() as m:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0, shape=2))
        mean, z = pm.Normal("mean", 0, 2, shape=2), pm.Normal("z", shape=(30, 2))
        effect = pm.Deterministic("effect", mean + z @ chol.T)
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", effect[group, 0] + effect[group, 1] * x, sigma, observed=y)
    return m


@model
def censored() -> pm.Model:
    """Weibull times to an event, of which those after 2 are censored, 300 rows."""
    rng = np.random.default_rng(13)
    x = rng.standard_normal(300)
    times = np.minimum(np.exp(0.3 + 0.5 * x) * rng.weibull(1.5, 300), 2.0)
    with pm.Model() as m:
        intercept, slope = pm.Normal("intercept", 0, 1), pm.Normal("slope", 0, 1)
        alpha = pm.HalfNormal("alpha", 2)
        times_of = pm.Weibull.dist(alpha=alpha, beta=pt.exp(intercept + slope * x))
        pm.Censored("time", times_of, lower=None, upper=2.0, observed=times)
    return m


@model
def truncated() -> pm.Model:
    """Regression of an outcome that is seen only between 0 and 5, 300 rows."""
    rng = np.random.default_rng(14)
    x = rng.standard_normal(600)
    y = 1 + 1.5 * x + rng.standard_normal(600)
    seen = np.flatnonzero((y > 0) & (y < 5))[:300]
    with pm.Model() as m:
        intercept, slope = pm.Normal("intercept", 0, 2), pm.Normal("slope", 0, 2)
        sigma = pm.HalfNormal("sigma", 2)
        outcome = pm.Normal.dist(intercept + slope * x[seen], sigma)
        pm.Truncated("y", outcome, lower=0, upper=5, observed=y[seen])
    return m


@model
def dirichlet_multinomial() -> pm.Model:
    """Overdispersed counts of five kinds in 40 samples."""
    rng = np.random.default_rng(15)
    shares = rng.dirichlet(20 * np.array([0.4, 0.25, 0.2, 0.1, 0.05]), size=40)
    y = np.array([rng.multinomial(50, p) for p in shares])
    with pm.Model() as m:
        share = pm.Dirichlet("share", np.ones(5))
        concentration = pm.LogNormal("concentration", 2, 1)
        pm.DirichletMultinomial("y", n=50, a=share * concentration, observed=y)
    return m


@model
def zero_inflated() -> pm.Model:
    """Counts with extra zeros whose share depends on a covariate, 400 rows."""
    rng = np.random.default_rng(16)
    x = rng.standard_normal(400)
    y = rng.poisson(np.exp(1 + 0.5 * x)) * (rng.random(400) < 0.7)
    with pm.Model() as m:
        a, b = pm.Normal("a", 0, 2, shape=2), pm.Normal("b", 0, 1, shape=2)
        psi = pm.math.invlogit(a[0] + b[0] * x)
        pm.ZeroInflatedPoisson("y", psi=psi, mu=pt.exp(a[1] + b[1] * x), observed=y)
    return m


def runge_kutta(y, p, stack, h=0.1):
    """One step of the classical Runge-Kutta method of order 4 for prey and predators."""

    def rate(y):
        return stack([p[0] * y[0] - p[1] * y[0] * y[1], p[2] * y[0] * y[1] - p[3] * y[1]])

    k1 = rate(y)
    k2 = rate(y + h / 2 * k1)
    k3 = rate(y + h / 2 * k2)
    k4 = rate(y + h * k3)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


@model
def ode() -> pm.Model:
    """Predator and prey by 100 Runge-Kutta steps in a scan, observed with multiplicative noise at every fifth."""
    truth, orbit = np.array([1.0, 0.8, 0.5, 0.6]), [np.array([1.0, 0.5])]
    for _ in range(100):
        orbit.append(runge_kutta(orbit[-1], truth, np.stack))
    y = np.array(orbit[5::5]) * np.exp(0.1 * np.random.default_rng(17).standard_normal((20, 2)))
    with pm.Model() as m:
        p = pm.LogNormal("p", np.log(truth), 0.3, shape=4)
        start = pm.LogNormal("start", np.log([1.0, 0.5]), 0.3, shape=2)
        sigma = pm.HalfNormal("sigma", 0.5)
        states = pytensor.scan(
            lambda y, p: runge_kutta(y, p, pt.stack),
            outputs_info=[start],
            non_sequences=[p],
            n_steps=100,
            strict=True,
            return_updates=False,
        )
        pm.LogNormal("y", pt.log(states[4::5]), sigma, observed=y)
    return m


@model
def hidden_markov() -> pm.Model:
    """Hidden Markov model with three states and normal emissions, 150 steps of the forward algorithm in a scan."""
    rng = np.random.default_rng(18)
    states = np.repeat(rng.integers(0, 3, 30), 5)
    y = np.array([-2.0, 0.0, 2.0])[states] + 0.5 * rng.standard_normal(150)
    with pm.Model() as m:
        transition = pm.Dirichlet("transition", np.ones((3, 3)) + 3 * np.eye(3), shape=(3, 3))
        mu = pm.Normal("mu", 0, 3, shape=3, transform=ordered, initval=[-1.0, 0.0, 1.0])
        sigma = pm.HalfNormal("sigma", 1)
        emission = pm.logp(pm.Normal.dist(mu, sigma), y[:, None])
        alpha = pytensor.scan(
            lambda e, alpha, log_p: pt.logsumexp(alpha[:, None] + log_p, axis=0) + e,
            sequences=[emission[1:]],
            outputs_info=[emission[0] - np.log(3)],
            non_sequences=[pt.log(transition)],
            strict=True,
            return_updates=False,
        )
        pm.Potential("likelihood", pt.logsumexp(alpha[-1]))
    return m


@model
def state_space() -> pm.Model:
    """Local linear trend, 100 steps of a Kalman filter with two states in a scan."""
    rng = np.random.default_rng(19)
    slope = np.cumsum(0.05 * rng.standard_normal(100))
    y = np.cumsum(slope + 0.2 * rng.standard_normal(100)) + 0.5 * rng.standard_normal(100)
    move, see = np.array([[1.0, 1.0], [0.0, 1.0]]), np.array([[1.0, 0.0]])

    def step(y, mean, cov, noise, sigma):
        mean, cov = move @ mean, move @ cov @ move.T + noise
        error, spread = y - see @ mean, see @ cov @ see.T + sigma**2 * pt.eye(1)
        gain = pt.linalg.solve(spread, see @ cov).T
        logp = -0.5 * (error @ pt.linalg.solve(spread, error) + pt.linalg.slogdet(spread)[1] + np.log(2 * np.pi))
        return mean + gain @ error, cov - gain @ see @ cov, logp

    with pm.Model() as m:
        tau, sigma = pm.HalfNormal("tau", 0.5, shape=2), pm.HalfNormal("sigma", 1)
        *_, logp = pytensor.scan(
            step,
            sequences=[pt.constant(y[:, None])],
            outputs_info=[pt.zeros(2), 10 * pt.eye(2), None],
            non_sequences=[pt.diag(tau**2), sigma],
            strict=True,
            return_updates=False,
        )
        pm.Potential("likelihood", logp.sum())
    return m


@model
def missing() -> pm.Model:
    """Regression with missing values in a covariate and in the outcome, both imputed, 150 rows."""
    rng = np.random.default_rng(20)
    x = rng.normal(1.0, 0.8, 150)
    y = 0.5 + 1.2 * x + 0.4 * rng.standard_normal(150)
    x[rng.random(150) < 0.1], y[rng.random(150) < 0.1] = np.nan, np.nan
    with pm.Model() as m:
        mu, spread = pm.Normal("mu", 0, 2), pm.HalfNormal("spread", 1)
        covariate = pm.Normal("x", mu, spread, observed=np.ma.masked_invalid(x))
        intercept, slope, sigma = pm.Normal("intercept", 0, 2), pm.Normal("slope", 0, 2), pm.HalfNormal("sigma", 1)
        pm.Normal("y", intercept + slope * covariate, sigma, observed=np.ma.masked_invalid(y))
    return m


@model
def interpolated() -> pm.Model:
    """Regression whose priors are posteriors of an earlier study, as interpolated densities, 100 rows."""
    rng = np.random.default_rng(21)
    x = rng.standard_normal(100)
    y = 0.4 + 0.9 * x + 0.5 * rng.standard_normal(100)
    grid = np.linspace(-3, 4, 60)
    with pm.Model() as m:
        intercept = pm.Interpolated("intercept", grid, np.exp(-0.5 * (grid - 0.3) ** 2))
        slope = pm.Interpolated("slope", grid, np.exp(-2 * np.abs(grid - 1)))
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", intercept + slope * x, sigma, observed=y)
    return m


@model
def hurdle() -> pm.Model:
    """Positive amounts behind a hurdle of zeros, 300 rows."""
    rng = np.random.default_rng(22)
    x = rng.standard_normal(300)
    y = rng.gamma(2.0, np.exp(0.5 + 0.4 * x) / 2.0) * (rng.random(300) < 0.6)
    with pm.Model() as m:
        psi, alpha = pm.Beta("psi", 2, 2), pm.HalfNormal("alpha", 3)
        intercept, slope = pm.Normal("intercept", 0, 1), pm.Normal("slope", 0, 1)
        pm.HurdleGamma("y", psi=psi, alpha=alpha, beta=alpha / pt.exp(intercept + slope * x), observed=y)
    return m
