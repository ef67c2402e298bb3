"""The loops that the benchmark compares: time series and filters by `pytensor.scan` and by `jax.lax.scan`.

Each is one number (a log-density, or the distance of a trajectory from data) as a function of a few parameters, forward or
with its gradient by all parameters, for a series of a given length. Data is a constant of the program in all versions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from models import LOG_2PI, PROBLEMS, Problem, chain, with_gradient

LENGTHS = (10, 100, 1000, 10_000)
KINDS = ("forward", "gradient")


def loss(inputs: Sequence[Any], output: Any, values: Sequence[Any], hand: Callable, kind: str) -> Problem:
    """Make a problem of a number and, if `kind` is gradient, its derivative by each input."""
    values = [np.asarray(v, "float64") for v in values]
    if kind == "gradient":
        outputs = [output, *pytensor.grad(output, list(inputs))]
        return Problem(list(inputs), outputs, values, with_gradient(hand), pymc=False)
    return Problem(list(inputs), [output], values, lambda *args: [hand(*args)], pymc=False)


def states(**steps: Any) -> Any:
    """Return what a PyTensor scan gives, without its updates, which are empty here."""
    return pytensor.scan(**steps, strict=True, return_updates=False)


def ar(length: int, kind: str) -> Problem:
    """An autoregressive process of order 2 with unobserved innovations: `x[t] = c + a x[t-1] + b x[t-2] + s e[t]`."""
    rng = np.random.default_rng(1)
    noise, y = rng.standard_normal(length), rng.standard_normal(length)
    c, a, b, s = inputs = [pt.dscalar(name) for name in "cabs"]
    x = states(
        fn=lambda e, before, last, c, a, b, s: c + a * last + b * before + s * e,
        sequences=[pt.constant(noise)],
        outputs_info=[{"initial": pt.zeros(2), "taps": [-2, -1]}],
        non_sequences=[c, a, b, s],
    )
    x.name = "x"

    def hand(c, a, b, s):
        import jax.numpy as jnp
        from jax import lax

        def step(carry, e):
            before, last = carry
            new = c + a * last + b * before + s * e
            return (last, new), new

        _, x = lax.scan(step, (0.0, 0.0), noise)
        return -0.5 * jnp.sum((x - y) ** 2)

    return loss(inputs, -0.5 * ((x - y) ** 2).sum(), [0.1, 0.5, -0.2, 0.7], hand, kind)


def garch(length: int, kind: str) -> Problem:
    """Log-density of returns whose variance is GARCH(1, 1)."""
    r = np.random.default_rng(2).standard_normal(length)
    inputs = [pt.dscalar(name) for name in ("mu", "omega", "alpha", "beta")]
    mu = inputs[0]
    variance = states(
        fn=lambda r, v, mu, omega, alpha, beta: omega + alpha * (r - mu) ** 2 + beta * v,
        sequences=[pt.constant(r)],
        outputs_info=[pt.ones(())],
        non_sequences=inputs,
    )
    logp = -0.5 * (pt.log(variance) + (r - mu) ** 2 / variance + LOG_2PI).sum()

    def hand(mu, omega, alpha, beta):
        import jax.numpy as jnp
        from jax import lax

        def step(v, r):
            v = omega + alpha * (r - mu) ** 2 + beta * v
            return v, v

        _, variance = lax.scan(step, 1.0, r)
        return -0.5 * jnp.sum(jnp.log(variance) + (r - mu) ** 2 / variance + LOG_2PI)

    return loss(inputs, logp, [0.1, 0.2, 0.15, 0.7], hand, kind)


def hmm(length: int, kind: str) -> Problem:
    """Forward algorithm of a hidden Markov model with four states and normal emissions, in logarithms."""
    rng = np.random.default_rng(3)
    y = rng.standard_normal(length)
    logits, mu = inputs = [pt.dmatrix("logits", shape=(4, 4)), pt.dvector("mu", shape=(4,))]
    log_p = pt.special.log_softmax(logits, axis=1)
    emission = -0.5 * (y[:, None] - mu) ** 2 - 0.5 * LOG_2PI
    alpha = states(
        fn=lambda e, alpha, log_p: pt.logsumexp(alpha[:, None] + log_p, axis=0) + e,
        sequences=[emission],
        outputs_info=[pt.full(4, -np.log(4.0))],
        non_sequences=[log_p],
    )

    def hand(logits, mu):
        import jax
        import jax.numpy as jnp
        from jax import lax

        log_p = jax.nn.log_softmax(logits, axis=1)
        emission = -0.5 * (y[:, None] - mu) ** 2 - 0.5 * LOG_2PI

        def step(alpha, e):
            return jax.nn.logsumexp(alpha[:, None] + log_p, axis=0) + e, None

        alpha, _ = lax.scan(step, jnp.full(4, -jnp.log(4.0)), emission)
        return jax.nn.logsumexp(alpha)

    return loss(inputs, pt.logsumexp(alpha[-1]), [rng.standard_normal((4, 4)), np.arange(4) - 1.5], hand, kind)


def rk4(length: int, kind: str) -> Problem:
    """Predator and prey by the classical Runge-Kutta method, compared with data."""
    data = 1.0 + 0.1 * np.random.default_rng(4).standard_normal((length, 2))
    h = 0.01

    def rate(y, p, stack):
        return stack([p[0] * y[0] - p[1] * y[0] * y[1], p[2] * y[0] * y[1] - p[3] * y[1]])

    def advance(y, p, stack):
        k1 = rate(y, p, stack)
        k2 = rate(y + h / 2 * k1, p, stack)
        k3 = rate(y + h / 2 * k2, p, stack)
        k4 = rate(y + h * k3, p, stack)
        return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    start, parameters = inputs = [pt.dvector("start", shape=(2,)), pt.dvector("parameters", shape=(4,))]
    y = states(
        fn=lambda y, p: advance(y, p, pt.stack),
        outputs_info=[start],
        non_sequences=[parameters],
        n_steps=length,
    )

    def hand(start, parameters):
        import jax.numpy as jnp
        from jax import lax

        def step(y, _):
            y = advance(y, parameters, jnp.stack)
            return y, y

        _, y = lax.scan(step, start, length=length)
        return jnp.sum((y - data) ** 2)

    return loss(inputs, ((y - data) ** 2).sum(), [[1.0, 0.5], [1.0, 0.8, 0.5, 0.6]], hand, kind)


def kalman(length: int, kind: str) -> Problem:
    """Log-likelihood of a Kalman filter with four states and two observations a step."""
    rng = np.random.default_rng(5)
    data = rng.standard_normal((length, 2))
    observe = rng.standard_normal((2, 4))

    def update(y, m, p, a, q, r, namespace, solve, slogdet):
        m, p = a @ m, a @ p @ a.T + q * namespace.eye(4)
        error, s = y - observe @ m, observe @ p @ observe.T + r * namespace.eye(2)
        gain = solve(s, observe @ p).T
        logp = -0.5 * (error @ solve(s, error) + slogdet(s)[1] + 2 * LOG_2PI)
        return m + gain @ error, p - gain @ observe @ p, logp

    inputs = [pt.dmatrix("a", shape=(4, 4)), pt.dscalar("q"), pt.dscalar("r")]
    *_, logp = states(
        fn=lambda y, m, p, a, q, r: update(y, m, p, a, q, r, pt, pt.linalg.solve, pt.linalg.slogdet),
        sequences=[pt.constant(data)],
        outputs_info=[pt.zeros(4), pt.eye(4), None],
        non_sequences=inputs,
    )

    def hand(a, q, r):
        import jax.numpy as jnp
        from jax import lax

        def step(carry, y):
            m, p, logp = update(y, *carry, a, q, r, jnp, jnp.linalg.solve, jnp.linalg.slogdet)
            return (m, p), logp

        _, logp = lax.scan(step, (jnp.zeros(4), jnp.eye(4)), data)
        return jnp.sum(logp)

    transition = 0.7 * np.eye(4) + 0.1 * rng.standard_normal((4, 4))
    return loss(inputs, logp.sum(), [transition, 0.3, 0.5], hand, kind)


SCANS: dict[str, Callable[[int, str], Problem]] = {
    "AR(2)": ar,
    "GARCH(1, 1)": garch,
    "HMM forward": hmm,
    "ODE by RK4": rk4,
    "Kalman filter": kalman,
}


def make_problem(subject: str) -> Problem:
    """Make a problem like ``radon``, a chain like ``chain/8`` or a loop like ``GARCH(1, 1)/gradient/1000``."""
    name, *rest = subject.split("/")
    if name == "chain":
        return chain(int(rest[0]))
    return SCANS[name](int(rest[1]), rest[0]) if rest else PROBLEMS[name]()
