"""The problems that the benchmark compares: each as a PyTensor graph and as hand-written JAX.

A `Problem` gives inputs, outputs and example values for PyTensor, and a JAX function of the same values that returns the
same list of outputs. Five problems are PyMC models whose outputs are the log-density and its gradient by every free
value; the last is a long chain of elementwise operations. Data is a constant of the program in all versions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import log, pi
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

RADON_CSV = Path(__file__).parents[1] / "examples" / "data" / "radon_all.csv"
CHAIN_SIZE = 100
LOG_2PI = log(2 * pi)


@dataclass(frozen=True)
class Problem:
    """One function, written twice.

    Attributes
    ----------
    inputs, outputs
        The PyTensor graph.
    values
        Example values of the inputs, as NumPy arrays of the inputs' dtypes.
    hand
        The same function of JAX arrays, not jitted.
    pymc
        Whether to compile with `pymc.compile`, which adds PyMC's own rewrites, as a user of PyMC would.
    """

    inputs: list[Any]
    outputs: list[Any]
    values: list[np.ndarray]
    hand: Callable
    pymc: bool = True

    def compile(self, mode) -> Callable:
        """Compile the PyTensor graph in `mode`, the way a user does."""
        if not self.pymc:
            return pytensor.function(self.inputs, self.outputs, mode=mode)
        import pymc

        return pymc.compile(self.inputs, self.outputs, mode=mode)


def from_model(model, logp) -> Problem:
    """Make the problem "log-density and gradient" from a PyMC model and its log-density in JAX.

    Parameters
    ----------
    model
        A PyMC model.
    logp
        Function of the model's value variables, in the order of `model.value_vars`.

    Returns
    -------
    Problem
    """
    inputs = list(model.value_vars)
    density = model.logp()
    outputs = [density, *pytensor.grad(density, inputs)]
    start, rng = model.initial_point(), np.random.default_rng(1)
    values = [np.asarray(start[v.name] + 0.1 * rng.standard_normal(np.shape(start[v.name])), v.dtype) for v in inputs]
    return Problem(inputs, outputs, values, with_gradient(logp))


def with_gradient(hand: Callable) -> Callable:
    """Return a JAX function of a number and its derivative by each argument."""

    def number_and_gradient(*args):
        import jax

        value, grads = jax.value_and_grad(hand, argnums=tuple(range(len(args))))(*args)
        return [value, *grads]

    return number_and_gradient


def normal(x, mu, sigma):
    """Log-density of a normal in JAX, summed."""
    import jax.numpy as jnp

    return jnp.sum(-0.5 * ((x - mu) / sigma) ** 2 - jnp.log(sigma) - 0.5 * LOG_2PI)


def half_normal(log_x, sigma):
    """Log-density of a half-normal in JAX, of the logarithm of its variable."""
    import jax.numpy as jnp

    return log(2) + normal(jnp.exp(log_x), 0.0, sigma) + log_x


def half_cauchy(log_x, beta):
    """Log-density of a half-Cauchy in JAX, of the logarithm of its variable."""
    import jax.numpy as jnp

    return log(2 / (pi * beta)) - jnp.log1p((jnp.exp(log_x) / beta) ** 2) + log_x


def radon() -> Problem:
    """Hierarchical regression: intercept and slope by county, 12,573 houses of which those of unknown floor are left out."""
    import jax.numpy as jnp
    import pymc as pm

    county, floor, y, uranium = np.loadtxt(RADON_CSV, delimiter=",", skiprows=1, unpack=True)
    known = floor != 9
    _, first, county = np.unique(county[known], return_index=True, return_inverse=True)
    above, y, uranium = np.minimum(floor[known], 1.0), y[known], uranium[known][first]
    n = len(uranium)

    with pm.Model() as model:
        gamma = pm.Normal("gamma", 0.0, 5.0, shape=2)
        slope = pm.Normal("slope", 0.0, 5.0)
        tau = pm.HalfNormal("tau", 1.0, shape=2)
        sigma = pm.HalfNormal("sigma", 1.0)
        za = pm.Normal("za", 0.0, 1.0, shape=n)
        zb = pm.Normal("zb", 0.0, 1.0, shape=n)
        a = gamma[0] + gamma[1] * uranium + tau[0] * za
        b = slope + tau[1] * zb
        pm.Normal("y", a[county] + b[county] * above, sigma, observed=y)

    def logp(gamma, slope, log_tau, log_sigma, za, zb):
        tau, sigma = jnp.exp(log_tau), jnp.exp(log_sigma)
        a = gamma[0] + gamma[1] * uranium + tau[0] * za
        b = slope + tau[1] * zb
        prior = normal(gamma, 0.0, 5.0) + normal(slope, 0.0, 5.0) + normal(za, 0.0, 1.0) + normal(zb, 0.0, 1.0)
        prior += jnp.sum(half_normal_each(log_tau, 1.0)) + half_normal(log_sigma, 1.0)
        return prior + normal(y, a[county] + b[county] * above, sigma)

    return from_model(model, logp)


def half_normal_each(log_x, sigma):
    """Log-density of independent half-normals in JAX, one an element."""
    import jax.numpy as jnp

    return log(2) - 0.5 * (jnp.exp(log_x) / sigma) ** 2 - log(sigma) - 0.5 * LOG_2PI + log_x


def eight_schools() -> Problem:
    """Treatment effects of eight schools, non-centred."""
    import jax.numpy as jnp
    import pymc as pm

    effect = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    stderr = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 5.0)
        tau = pm.HalfCauchy("tau", 5.0)
        z = pm.Normal("z", 0.0, 1.0, shape=8)
        pm.Normal("y", mu + tau * z, stderr, observed=effect)

    def logp(mu, log_tau, z):
        prior = normal(mu, 0.0, 5.0) + half_cauchy(log_tau, 5.0) + normal(z, 0.0, 1.0)
        return prior + normal(effect, mu + jnp.exp(log_tau) * z, stderr)

    return from_model(model, logp)


def logistic() -> Problem:
    """Logistic regression, 10,000 rows by 50 columns."""
    import jax
    import jax.numpy as jnp
    import pymc as pm

    rng = np.random.default_rng(2)
    x = rng.standard_normal((10_000, 50))
    y = rng.binomial(1, 1 / (1 + np.exp(-x @ rng.normal(0.0, 0.3, 50))))

    with pm.Model() as model:
        alpha = pm.Normal("alpha", 0.0, 2.0)
        beta = pm.Normal("beta", 0.0, 1.0, shape=50)
        pm.Bernoulli("y", logit_p=alpha + pt.dot(x, beta), observed=y)

    def logp(alpha, beta):
        eta = alpha + x @ beta
        likelihood = jnp.sum(jax.nn.log_sigmoid(jnp.where(y == 1, eta, -eta)))
        return normal(alpha, 0.0, 2.0) + normal(beta, 0.0, 1.0) + likelihood

    return from_model(model, logp)


def negbin() -> Problem:
    """Negative binomial regression with a log link, 2,000 rows by 5 columns."""
    import jax.numpy as jnp
    import pymc as pm
    from jax.scipy.special import gammaln

    rng = np.random.default_rng(3)
    x = rng.standard_normal((2000, 5))
    y = rng.poisson(np.exp(0.5 + x @ rng.normal(0.0, 0.3, 5)) * rng.gamma(2.0, 0.5, 2000))

    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0.0, 2.0)
        beta = pm.Normal("beta", 0.0, 1.0, shape=5)
        alpha = pm.HalfNormal("alpha", 3.0)
        pm.NegativeBinomial("y", mu=pt.exp(intercept + pt.dot(x, beta)), alpha=alpha, observed=y)

    def logp(intercept, beta, log_alpha):
        alpha = jnp.exp(log_alpha)
        mu = jnp.exp(intercept + x @ beta)
        p = alpha / (mu + alpha)
        count = gammaln(y + alpha) - gammaln(alpha) - gammaln(y + 1.0)
        likelihood = jnp.sum(count + alpha * jnp.log(p) + y * jnp.log1p(-p))
        prior = normal(intercept, 0.0, 2.0) + normal(beta, 0.0, 1.0) + half_normal(log_alpha, 3.0)
        return prior + likelihood

    return from_model(model, logp)


def marginal_gp() -> Problem:
    """Gaussian process with squared exponential covariance and noise, integrated out, 80 points."""
    import jax.numpy as jnp
    import pymc as pm
    from jax.scipy.linalg import solve_triangular

    rng = np.random.default_rng(4)
    n = 80
    x = np.sort(rng.uniform(0.0, 10.0, n))
    y = np.sin(x) + 0.2 * rng.standard_normal(n)

    with pm.Model() as model:
        length = pm.HalfNormal("length", 2.0)
        eta = pm.HalfNormal("eta", 2.0)
        sigma = pm.HalfNormal("sigma", 1.0)
        gp = pm.gp.Marginal(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=length))
        gp.marginal_likelihood("y", X=x[:, None], y=y, sigma=sigma, jitter=1e-6)

    squared = (x[:, None] - x[None, :]) ** 2

    def logp(log_length, log_eta, log_sigma):
        length, eta, sigma = jnp.exp(log_length), jnp.exp(log_eta), jnp.exp(log_sigma)
        noise = (sigma**2 + 1e-6) * jnp.eye(n)
        cov = eta**2 * jnp.exp(-0.5 * squared / length**2) + noise
        chol = jnp.linalg.cholesky(cov, symmetrize_input=False)
        white = solve_triangular(chol, y, lower=True)
        likelihood = -0.5 * jnp.sum(white**2) - jnp.sum(jnp.log(jnp.diagonal(chol))) - 0.5 * n * LOG_2PI
        prior = half_normal(log_length, 2.0) + half_normal(log_eta, 2.0) + half_normal(log_sigma, 1.0)
        return prior + likelihood

    return from_model(model, logp)


def chain(nodes: int = 2000) -> Problem:
    """`nodes` elementwise operations in a row on a vector of 100, chosen so that no rewrite removes one."""
    import jax.numpy as jnp

    def steps(x, y, namespace):
        for _ in range(nodes // 4):
            x = namespace.sin(x) + y
            x = namespace.tanh(x) * y
        return x

    x, y = pt.vector("x", shape=(CHAIN_SIZE,)), pt.vector("y", shape=(CHAIN_SIZE,))
    rng = np.random.default_rng(5)
    values = [rng.standard_normal(CHAIN_SIZE), rng.uniform(0.5, 1.5, CHAIN_SIZE)]
    return Problem([x, y], [steps(x, y, pt)], values, lambda x, y: [steps(x, y, jnp)], pymc=False)


def small() -> Problem:
    """Three inputs, two outputs and hardly any work: what is left is dispatch."""
    x, y, s = pt.vector("x", shape=(10,)), pt.vector("y", shape=(10,)), pt.scalar("s")
    values = [np.linspace(0.0, 1.0, 10), np.linspace(1.0, 2.0, 10), np.asarray(0.5)]
    return Problem([x, y, s], [x * y + s, x - y], values, lambda x, y, s: [x * y + s, x - y], pymc=False)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "eight_schools": eight_schools,
    "radon": radon,
    "logistic_10k_50": logistic,
    "negbin_glm": negbin,
    "marginal_gp": marginal_gp,
    "chain_2000": partial(chain, 2000),
}
