"""Answers to tests, grades of bones, words of documents, digits, and two differential equations, of posteriordb."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from posteriors.models import model, runge_kutta


def standardized(w: np.ndarray) -> np.ndarray:
    """Return covariates, the first of which is an intercept, centered and divided by two standard deviations."""
    scaled = (w - w.mean(axis=0)) / (2 * w.std(axis=0, ddof=1) + (np.ptp(w, axis=0) == 0))
    scaled[:, 0] = w[:, 0]
    return scaled


def sum_to_zero(name: str, size: int):
    """Return numbers of which the last is minus the sum of the others, each with a normal prior of deviation 3."""
    free = pm.Flat(f"{name}_free", shape=size - 1)
    full = pm.Deterministic(name, pt.concatenate([free, -free.sum(keepdims=True)]))
    pm.Potential(f"{name}_prior", pm.logp(pm.Normal.dist(0, 3), full).sum())
    return full


def persons(data):
    """Return discrimination by item, and ability by person, which a regression on covariates explains."""
    alpha = pm.LogNormal("alpha", 1, 1, shape=int(data["I"]))
    slopes = pm.StudentT("lambda_adj", nu=3, mu=0, sigma=1, shape=int(data["K"]))
    theta = pm.Normal("theta", standardized(data["W"]) @ slopes, 1, shape=int(data["J"]))
    return alpha[data["ii"] - 1] * theta[data["jj"] - 1]


@model(name="2pl_latent_reg_irt")
def two_parameters(data):
    """The two-parameter logistic model with a latent regression."""
    strength = persons(data)
    pm.Bernoulli("y", logit_p=strength - sum_to_zero("beta", int(data["I"]))[data["ii"] - 1], observed=data["y"])


def ordered_answers(data, strength, steps, allowed: np.ndarray) -> None:
    """Add answers in ordered categories: adjacent ones differ by ability minus a step."""
    logits = pt.concatenate([pt.zeros((len(data["y"]), 1)), pt.cumsum(strength[:, None] - steps, axis=1)], axis=1)
    logits = pt.where(allowed, logits, -np.inf)
    chosen = logits[np.arange(len(data["y"])), data["y"]]
    pm.Potential("y", pt.sum(chosen - pm.math.logsumexp(logits, axis=1, keepdims=False)))


@model
def gpcm_latent_reg_irt(data):
    """The generalized partial credit model with a latent regression."""
    item, y = data["ii"] - 1, data["y"]
    most = np.array([y[item == i].max() for i in range(int(data["I"]))])
    first, step = np.cumsum(most) - most, np.arange(most.max())
    strength, beta = persons(data), sum_to_zero("beta", int(most.sum()))
    places = np.minimum(first[:, None] + step, most.sum() - 1)[item]
    allowed = np.arange(most.max() + 1) <= most[item][:, None]
    ordered_answers(data, strength, beta[places], allowed)


@model
def grsm_latent_reg_irt(data):
    """The generalized rating scale model with a latent regression."""
    strength, item = persons(data), data["ii"] - 1
    beta, kappa = sum_to_zero("beta", int(data["I"])), sum_to_zero("kappa", int(data["y"].max()))
    ordered_answers(data, strength, beta[item][:, None] + kappa, np.array(True))


@model
def hier_2pl(data):
    """The two-parameter logistic model with correlated parameters of items."""
    items = int(data["I"])
    theta, xi = pm.Normal("theta", shape=int(data["J"])), [pm.Flat(f"xi{i}", shape=items) for i in (1, 2)]
    mu, tau = pm.Normal("mu", 0, [1, 5]), pm.Exponential("tau", 0.1, shape=2)
    factor = tau[:, None] * pm.LKJCorr("L_Omega", n=2, eta=4)
    pm.Potential("xi", pm.logp(pm.MvNormal.dist(mu, chol=factor), pt.stack(xi, axis=1)).sum())
    alpha, item = pt.exp(xi[0]), data["ii"] - 1
    pm.Bernoulli("y", logit_p=alpha[item] * (theta[data["jj"] - 1] - xi[1][item]), observed=data["y"])


@model
def irt_2pl(data):
    """The two-parameter logistic model with hierarchical priors."""
    items = int(data["I"])
    theta = pm.Normal("theta", 0, pm.HalfCauchy("sigma_theta", 2), shape=int(data["J"]))
    a = pm.LogNormal("a", 0, pm.HalfCauchy("sigma_a", 2), shape=items)
    b = pm.Normal("b", pm.Normal("mu_b", 0, 5), pm.HalfCauchy("sigma_b", 2), shape=items)
    pm.Bernoulli("y", logit_p=a[:, None] * (theta - b[:, None]), observed=data["y"])


@model
def lsat_model(data):
    """The Rasch model of answers to five questions."""
    alpha = pm.Normal("alpha", 0, 100, shape=int(data["T"]))
    theta, beta = pm.Normal("theta", shape=int(data["N"])), pm.HalfNormal("beta", 100)
    answers = np.repeat(data["response"], np.diff(data["culm"], prepend=0), axis=0)
    pm.Bernoulli("r", logit_p=beta * theta[:, None] - alpha, observed=answers)


@model
def bones_model(data):
    """Ages of skeletons from grades of their bones, some of them missing."""
    theta = pm.Normal("theta", 0, 36, shape=int(data["nChild"]))
    child, bone = np.nonzero(data["grade"] != -1)
    grade, categories = data["grade"][child, bone], data["ncat"][bone]
    above = [
        pm.math.sigmoid(data["delta"][bone] * (theta[child] - data["gamma"][bone, np.clip(step - 1, 0, 3)]))
        for step in (grade - 1, grade)
    ]
    lower, upper = pt.where(grade == 1, 1, above[0]), pt.where(grade == categories, 0, above[1])
    pm.Potential("grade", pt.log(lower - upper).sum())


def topics(data, alpha: np.ndarray, beta: np.ndarray) -> None:
    """Add words of documents, each of a topic that is summed out."""
    theta = pm.Dirichlet("theta", np.broadcast_to(alpha, (int(data["M"]), len(alpha))))
    phi = pm.Dirichlet("phi", np.broadcast_to(beta, (len(alpha), int(data["V"]))))
    each = pt.log(theta)[data["doc"] - 1] + pt.log(phi).T[data["w"] - 1]
    pm.Potential("w", pm.math.logsumexp(each, axis=1).sum())


@model
def ldaK2(data):
    """Two topics of words, with uniform priors."""
    topics(data, np.ones(2), np.ones(int(data["V"])))


@model
def ldaK5(data):
    """Five topics of words."""
    topics(data, data["alpha"], data["beta"])


def digits(data, hidden: int) -> None:
    """Add classes of pictures by a neural network of one hidden layer."""
    x, classes = data["x"], int(data["K"])
    scales = []
    for name, size in (("sigma2_alpha", x.shape[1]), ("sigma2_beta", hidden)):
        scales.append(pt.sqrt(pm.InverseGamma(name, 0.25, 0.25 * (0.05 / size**2) ** 2)))
    alpha = pm.Normal("alpha", 0, scales[0], shape=(x.shape[1], hidden))
    beta = pm.Normal("beta", 0, scales[1], shape=(hidden, classes - 1))
    alpha1, beta1 = pm.Normal("alpha1", shape=hidden), pm.Normal("beta1", shape=classes - 1)
    layer = pt.tanh(alpha1 + x @ alpha)
    logits = pt.concatenate([pt.ones((len(x), 1)), beta1 + layer @ beta], axis=1)
    pm.Categorical("y", logit_p=logits, observed=data["y"] - 1)


@model
def nn_rbm1bJ10(data):
    """Digits by a network of ten hidden units."""
    digits(data, 10)


@model
def nn_rbm1bJ100(data):
    """Digits by a network of a hundred hidden units."""
    digits(data, 100)


#: Steps of the Runge-Kutta method between two days.
STEPS = 16


@model
def sir(data):
    """An epidemic of cholera: an ordinary differential equation, by Runge-Kutta steps of a sixteenth of a day."""
    beta, gamma = pm.HalfCauchy("beta", 2.5), pm.HalfCauchy("gamma", 1)
    xi, delta = pm.HalfCauchy("xi", 25), pm.HalfCauchy("delta", 1)

    def derivative(time, y, beta, gamma, xi, delta):
        infected = beta * y[3] / (y[3] + 1e6) * y[0]
        healed = gamma * y[1]
        return pt.stack([-infected, infected - healed, healed, xi * y[1] - delta * y[3]])

    days = len(data["t"])
    np.testing.assert_array_equal(data["t"], np.arange(1, days + 1))
    states = runge_kutta(derivative, data["y0"], [beta, gamma, xi, delta], 1 / STEPS, days * STEPS)[STEPS - 1 :: STEPS]
    susceptible = pt.concatenate([data["y0"][:1], states[:, 0]])
    pm.Poisson("stoi_hat", susceptible[:-1] - susceptible[1:], observed=data["stoi_hat"])
    pm.LogNormal("B_hat", pt.log(states[:, 3]), 0.15, observed=data["B_hat"])


@model
def soil_incubation(data):
    """Carbon in two pools of soil: a linear differential equation, by its closed form."""
    k1, k2, alpha21, alpha12 = (pm.HalfNormal(name, 1) for name in ("k1", "k2", "alpha21", "alpha12"))
    gamma, sigma = pm.Beta("gamma", 10, 1), pm.HalfCauchy("sigma", 1)
    total, time = data["totalC_t0"], data["ts"] - data["t0"]
    mean, root = -(k1 + k2) / 2, pt.sqrt((k1 - k2) ** 2 / 4 + alpha12 * alpha21 * k1 * k2)
    slow, fast = pt.exp((mean + root) * time), pt.exp((mean - root) * time)
    even, odd = (slow + fast) / 2, (slow - fast) / (2 * root)
    start = gamma * total, (1 - gamma) * total
    change = -k1 * start[0] + alpha12 * k2 * start[1] + alpha21 * k1 * start[0] - k2 * start[1]
    left = even * total + odd * (change - mean * total)
    pm.Normal("eCO2mean", total - left, sigma, observed=data["eCO2mean"])
