"""Rows whose log density is written inside of a loop, step by step as one would first write it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from densities import textbook as book
from densities.multivariate import gaussian
from densities.row import Row
from densities.series import Y5, garch, numbers
from densities.textbook import Number, Terms
from mpmath import matrix, mp, mpf

#: Observations near a state, between states, and so far from both that the probability of each underflows.
NEAR = np.array([0.5, -1.25, 0.75, 2.5, -0.25])
FAR = np.array([0.5, -60.0, 75.0, 2.5, 1000.0])


def potential_row(family: str, name: str, density: Callable[[Any], Any], terms: Callable[[Number], Terms]) -> Row:
    """Return the row of a log density of one number, which is a potential of the model."""

    def build(label: str, shape: tuple[int, ...]) -> Any:
        free = pm.Flat(f"{label}_a", shape=1)
        pm.Potential(f"{label}_p", density(free[0]))
        return free

    return Row(family, name, build, terms, ())


def scan(step: Callable[..., Any], sequences: Sequence[Any], first: Any, others: Sequence[Any] = ()) -> Any:
    return pytensor.scan(
        step, sequences=list(sequences), outputs_info=first, non_sequences=list(others), return_updates=False
    )


def constant(x: Any) -> Any:
    return pt.constant(pm.floatX(np.asarray(x)))


def log_normal_density(y: Any, mu: Any, sigma: Any) -> Any:
    return -(((y - mu) / sigma) ** 2) / 2 - pt.log(sigma) - np.log(2 * np.pi) / 2


# A hidden Markov model of two states


def forward(y: np.ndarray, means: Any, stay: Any, sigma: Any = 1.5) -> Any:
    """Return the log likelihood by the forward algorithm, whose step is ``log(sum(exp(...)))``."""
    move = pt.log(pt.stack([pt.stack([stay, 1 - stay]), pt.stack([1 - stay, stay])]))
    data = constant(y)

    def step(now: Any, before: Any, move: Any, means: Any) -> Any:
        return pt.log(pt.sum(pt.exp(before[:, None] + move), axis=0)) + log_normal_density(now, means, sigma)

    first = np.log(0.5) + log_normal_density(data[0], means, sigma)
    alphas = scan(step, [data[1:]], first, [move, means])
    return pt.log(pt.sum(pt.exp(alphas[-1])))


def all_paths(y: list[Number], means: list[Number], stay: Number, change: Number) -> Terms:
    """Return the log of the sum over all paths of states."""
    total, emissions = mpf(0), [[mp.exp(sum(book.normal(v, m, mpf(1.5)))) for m in means] for v in y]
    for path in product((0, 1), repeat=len(y)):
        moves = (stay if a == b else change for a, b in pairwise(path))
        total += mp.fprod([mpf(1) / 2, *moves, *(e[s] for e, s in zip(emissions, path, strict=True))])
    return [mp.log(total)]


def markov_rows(label: str, y: np.ndarray) -> list[Row]:
    exact = numbers(y)
    quarter = mpf(1) / 4
    return [
        potential_row(
            "Loop: hidden Markov",
            f"a mean of two is a, {label}",
            lambda a: forward(y, pt.stack([a, constant(-1.25)]), constant(0.75)),
            lambda u: all_paths(exact, [u, mpf(-1.25)], 3 * quarter, quarter),
        ),
        potential_row(
            "Loop: hidden Markov",
            f"P(stay) = invlogit(a), {label}",
            lambda a: forward(y, constant([0.375, -1.25]), pt.sigmoid(a)),
            lambda u: all_paths(exact, [mpf(0.375), mpf(-1.25)], 1 / (1 + mp.exp(-u)), 1 / (1 + mp.exp(u))),
        ),
    ]


# A local level model by the Kalman filter


def kalman(y: np.ndarray, level: Any, noise: Any) -> Any:
    """Return the log likelihood of a random walk with variance `level`, seen with variance `noise`; it starts at N(0, 1)."""

    def step(now: Any, mean: Any, variance: Any, level: Any, noise: Any) -> Any:
        total = variance + noise
        gain = variance / total
        density = -((now - mean) ** 2) / total / 2 - pt.log(total) / 2 - np.log(2 * np.pi) / 2
        return mean + gain * (now - mean), variance * (1 - gain) + level, density

    start = [constant(0.0), constant(1.0), None]
    return scan(step, [constant(y)], start, [level, noise])[2].sum()


def local_level(y: list[Number], level: Number, noise: Number) -> Terms:
    """Return the density of the whole series as one normal vector."""
    n = len(y)
    cov = matrix(n, n)
    for i in range(n):
        for j in range(n):
            cov[i, j] = 1 + min(i, j) * level + (noise if i == j else 0)
    return gaussian(y, cov)


# GARCH(1, 1) and ordinary differential equations


def garch_loop(y: np.ndarray, omega: Any, alpha: Any, beta: Any) -> Any:
    """Return the log likelihood with the variance as the state of the loop."""

    def step(before: Any, now: Any, variance: Any, omega: Any, alpha: Any, beta: Any) -> Any:
        after = omega + alpha * before**2 + beta * variance
        return after, log_normal_density(now, 0.0, pt.sqrt(after))

    data, first = constant(y), constant(0.5625)
    densities = scan(step, [data[:-1], data[1:]], [first, None], [omega, alpha, beta])[1]
    return densities.sum() + log_normal_density(data[0], 0.0, pt.sqrt(first))


def growth(y: np.ndarray, rate: Any, capacity: Any) -> Any:
    """Return the log likelihood of Euler steps of logistic growth, seen with normal noise."""
    data = constant(y)

    def step(x: Any, rate: Any, capacity: Any) -> Any:
        return x + 0.25 * rate * x * (1 - x / capacity)

    states = pytensor.scan(
        step, outputs_info=constant(0.5), non_sequences=[rate, capacity], n_steps=len(y), return_updates=False
    )
    return log_normal_density(data, states, 1.5).sum()


def growth_terms(y: list[Number], rate: Number, capacity: Number) -> Terms:
    x, terms = mpf(0.5), []
    for v in y:
        x += rate * x * (1 - x / capacity) / 4
        terms += book.normal(v, x, mpf(1.5))
    return terms


def decay(y: np.ndarray, rate: Any) -> Any:
    """Return the log likelihood of implicit Euler steps of exponential decay, of which the logarithm is seen with noise."""
    data = constant(y)

    def step(x: Any, rate: Any) -> Any:
        return x / (1 + 0.25 * rate)

    states = pytensor.scan(step, outputs_info=constant(4.0), non_sequences=[rate], n_steps=len(y), return_updates=False)
    return log_normal_density(data, pt.log(states), 1.5).sum()


def decay_terms(y: list[Number], rate: Number) -> Terms:
    logs = [mp.log(4) - (i + 1) * mp.log1p(rate / 4) for i in range(len(y))]
    return [t for v, x in zip(y, logs, strict=True) for t in book.normal(v, x, mpf(1.5))]


# Steps that lose digits as they are written


WEIGHTS = np.array([0.5, 1.0, 2.0])


def summed(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the sum of a function of ``weight * a`` over a loop."""
    return lambda a: scan(lambda w, total, a: total + function(w * a), [constant(WEIGHTS)], constant(0.0), [a])[-1]


def terms_of(function: Callable[[Number], Number]) -> Callable[[Number], Terms]:
    return lambda u: [function(mpf(w) * u) for w in WEIGHTS]


def accumulate_logs(a: Any) -> Any:
    return scan(lambda w, s, a: pt.log(pt.exp(s) + pt.exp(w * a)), [constant(WEIGHTS)], constant(0.25), [a])[-1]


NAIVE = {
    "log(1 - exp(-exp(a)))": (
        lambda x: pt.log(1 - pt.exp(-pt.exp(x))),
        lambda x: mp.log(-mp.expm1(-mp.exp(x))),
    ),
    "log(invlogit(a))": (lambda x: pt.log(pt.sigmoid(x)), lambda x: -mp.log1p(mp.exp(-x))),
    "log(1 - invlogit(a))": (lambda x: pt.log(1 - pt.sigmoid(x)), lambda x: -mp.log1p(mp.exp(x))),
    "log(1 + exp(a))": (lambda x: pt.log(1 + pt.exp(x)), lambda x: mp.log1p(mp.exp(x))),
}
LOOPS = [
    *markov_rows("observations near", NEAR),
    *markov_rows("observations far away", FAR),
    *(
        potential_row("Loop: linear Gaussian state space", name, partial(call, NEAR), partial(terms, Y5))
        for name, call, terms in (
            (
                "variance of the level exp(a)",
                lambda y, a: kalman(y, pt.exp(a), constant(0.75)),
                lambda y, u: local_level(y, mp.exp(u), mpf(0.75)),
            ),
            (
                "variance of the noise exp(a)",
                lambda y, a: kalman(y, constant(0.5), pt.exp(a)),
                lambda y, u: local_level(y, mpf(0.5), mp.exp(u)),
            ),
        )
    ),
    *(
        potential_row("Loop: GARCH(1, 1)", name, partial(call, NEAR), partial(terms, Y5))
        for name, call, terms in (
            (
                "omega=exp(a)",
                lambda y, a: garch_loop(y, pt.exp(a), constant(0.25), constant(0.5)),
                lambda y, u: garch(y, mp.exp(u), mpf(0.25), mpf(0.5), mpf(0.75)),
            ),
            (
                "alpha=invlogit(a), beta=1 - invlogit(a)",
                lambda y, a: garch_loop(y, constant(0.5), pt.sigmoid(a), 1 - pt.sigmoid(a)),
                lambda y, u: garch(y, mpf(0.5), 1 / (1 + mp.exp(-u)), 1 / (1 + mp.exp(u)), mpf(0.75)),
            ),
        )
    ),
    potential_row(
        "Loop: steps of an ODE",
        "logistic growth, rate exp(a), capacity 8",
        lambda a: growth(NEAR, pt.exp(a), constant(8.0)),
        lambda u: growth_terms(Y5, mp.exp(u), mpf(8)),
    ),
    potential_row(
        "Loop: steps of an ODE",
        "logistic growth, rate 0.5, capacity exp(a)",
        lambda a: growth(NEAR, constant(0.5), pt.exp(a)),
        lambda u: growth_terms(Y5, mpf(0.5), mp.exp(u)),
    ),
    potential_row(
        "Loop: steps of an ODE",
        "decay, rate exp(a), log of the state",
        lambda a: decay(NEAR, pt.exp(a)),
        lambda u: decay_terms(Y5, mp.exp(u)),
    ),
    *(
        potential_row("Loop: steps that lose digits", name, summed(graph), terms_of(value))
        for name, (graph, value) in NAIVE.items()
    ),
    potential_row(
        "Loop: steps that lose digits",
        "s = log(exp(s) + exp(w a))",
        accumulate_logs,
        lambda u: [mp.log(mp.exp(mpf(0.25)) + sum(mp.exp(mpf(w) * u) for w in WEIGHTS))],
    ),
    *(
        potential_row("Potential", name, lambda a, graph=graph: graph(a), lambda u, value=value: [value(u)])
        for name, (graph, value) in NAIVE.items()
    ),
]
