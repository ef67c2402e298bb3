"""Rows of distributions of time series, of which some loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from densities import textbook as book
from densities.multivariate import ADJACENT, COV, exact, free_row, gaussian, observed_row, student
from densities.textbook import Number, Terms
from mpmath import mp, mpf

SERIES_Y = np.array([0.5, -1.25, 0.75, 2.5, -0.25])


def numbers(x: Any) -> list[Number]:
    return [mpf(float(v)) for v in x]


def steps_of(y: list[Number], drift: Number, sigma: Number, start: tuple[Number, Number]) -> Terms:
    """Return the density of a random walk: its start is normal, and so are its steps."""
    steps = [t for a, b in itertools.pairwise(y) for t in book.normal(b - a, drift, sigma)]
    return [*book.normal(y[0], *start), *steps]


def autoregression(y: list[Number], rho: Number, sigma: Number) -> Terms:
    steps = [t for a, b in itertools.pairwise(y) for t in book.normal(b, rho * a, sigma)]
    return [*book.normal(y[0], mpf(0), mpf(1.5)), *steps]


def garch(y: list[Number], omega: Number, alpha: Number, beta: Number, first: Number) -> Terms:
    variance, terms = first**2, []
    for before, now in zip([None, *y], y, strict=False):
        if before is not None:
            variance = omega + alpha * before**2 + beta * variance
        terms += book.normal(now, mpf(0), mp.sqrt(variance))
    return terms


def walk(name: str, **given: Any) -> Any:
    return pm.GaussianRandomWalk(name, init_dist=pm.Normal.dist(0.25, 1.5), **given)


def vector_walk(name: str, a: Any) -> Any:
    y = pm.floatX(np.stack([SERIES_Y[:3], SERIES_Y[2:]], axis=-1))
    start = pm.MvNormal.dist(np.zeros(2), np.eye(2))
    return pm.MvGaussianRandomWalk(name, mu=a, cov=pm.floatX(COV), init_dist=start, observed=y)


def vector_walk_terms(
    u: list[Number], density: Callable[[list[Number]], Terms] = lambda x: gaussian(x, exact(COV))
) -> Terms:
    rows = [numbers(x) for x in zip(SERIES_Y[:3], SERIES_Y[2:], strict=True)]
    terms = gaussian(rows[0], exact(np.eye(2)))
    for a, b in itertools.pairwise(rows):
        terms += density([y - x - m for x, y, m in zip(a, b, u, strict=True)])
    return terms


def student_walk(name: str, a: Any) -> Any:
    y = pm.floatX(np.stack([SERIES_Y[:3], SERIES_Y[2:]], axis=-1))
    start = pm.MvNormal.dist(np.zeros(2), np.eye(2))
    return pm.MvStudentTRandomWalk(name, nu=4.5, mu=a, scale=pm.floatX(COV), init_dist=start, observed=y)


def student_walk_terms(u: list[Number]) -> Terms:
    return vector_walk_terms(u, lambda x: student(x, mpf(4.5), exact(COV)))


def euler_maruyama(name: str, a: Any) -> Any:
    y = pm.floatX(SERIES_Y)
    start = pm.Normal.dist(0.0, 1.5)
    return pm.EulerMaruyama(name, 0.25, lambda x, th: (-th * x, 1.5), [pt.exp(a[0])], init_dist=start, observed=y)


def euler_maruyama_terms(u: list[Number]) -> Terms:
    y, theta, dt = numbers(SERIES_Y), mp.exp(u[0]), mpf(0.25)
    steps = [t for a, b in itertools.pairwise(y) for t in book.normal(b, a - dt * theta * a, mp.sqrt(dt) * mpf(1.5))]
    return [*book.normal(y[0], mpf(0), mpf(1.5)), *steps]


def intrinsic(v: list[Number]) -> Terms:
    """ICAR: squared differences of neighbours, and a sum of N numbers with a standard deviation of N / 1000."""
    squares = [-((v[0] - v[1]) ** 2) / (2 * mpf(1.5) ** 2), -((v[1] - v[2]) ** 2) / (2 * mpf(1.5) ** 2)]
    return [*squares, *book.normal(sum(v), mpf(0), 3 * mpf(0.001))]


Y5 = numbers(SERIES_Y)
HALF = mpf(1) / 2
SERIES = [
    observed_row(
        "GaussianRandomWalk",
        "mu=a, sigma=1.5; y of 5",
        lambda name, a: walk(name, mu=a[0], sigma=1.5, observed=pm.floatX(SERIES_Y)),
        lambda u: steps_of(Y5, u[0], mpf(1.5), (mpf(0.25), mpf(1.5))),
    ),
    observed_row(
        "GaussianRandomWalk",
        "mu=0.25, sigma=exp(a); y of 5",
        lambda name, a: walk(name, mu=0.25, sigma=pt.exp(a[0]), observed=pm.floatX(SERIES_Y)),
        lambda u: steps_of(Y5, mpf(0.25), mp.exp(u[0]), (mpf(0.25), mpf(1.5))),
    ),
    free_row(
        "GaussianRandomWalk",
        "mu=0.25, sigma=1.5, steps=2",
        lambda name: walk(name, mu=0.25, sigma=1.5, steps=2),
        lambda v: steps_of(v, mpf(0.25), mpf(1.5), (mpf(0.25), mpf(1.5))),
        0.25,
        -0.5,
    ),
    observed_row("MvGaussianRandomWalk", "mu=a, cov; y of 3 x 2", vector_walk, vector_walk_terms, 0.25),
    observed_row("MvStudentTRandomWalk", "nu=4.5, mu=a, scale; y of 3 x 2", student_walk, student_walk_terms, 0.25),
    *(
        observed_row(
            "AR",
            f"rho={rho}, sigma={sigma}; y of 5",
            lambda name, a, make=make: pm.AR(
                name,
                rho=make(a[0])[0],
                sigma=make(a[0])[1],
                init_dist=pm.Normal.dist(0.0, 1.5, shape=(1,)),
                observed=pm.floatX(SERIES_Y),
            ),
            terms,
        )
        for rho, sigma, make, terms in (
            ("a", 1.5, lambda a: (pt.stack([a]), 1.5), lambda u: autoregression(Y5, u[0], mpf(1.5))),
            ("0.5", "exp(a)", lambda a: ([0.5], pt.exp(a)), lambda u: autoregression(Y5, HALF, mp.exp(u[0]))),
        )
    ),
    observed_row(
        "GARCH11",
        "omega=exp(a), alpha_1=0.25, beta_1=0.5, initial_vol=0.75; y of 5",
        lambda name, a: pm.GARCH11(
            name, omega=pt.exp(a[0]), alpha_1=0.25, beta_1=0.5, initial_vol=0.75, observed=pm.floatX(SERIES_Y)
        ),
        lambda u: garch(Y5, mp.exp(u[0]), HALF / 2, HALF, mpf(0.75)),
    ),
    observed_row(
        "GARCH11",
        "omega=0.5, alpha_1=invlogit(a), beta_1=1 - invlogit(a), initial_vol=0.75; y of 5",
        lambda name, a: pm.GARCH11(
            name,
            omega=0.5,
            alpha_1=pt.sigmoid(a[0]),
            beta_1=1 - pt.sigmoid(a[0]),
            initial_vol=0.75,
            observed=pm.floatX(SERIES_Y),
        ),
        lambda u: garch(Y5, HALF, 1 / (1 + mp.exp(-u[0])), 1 / (1 + mp.exp(u[0])), mpf(0.75)),
    ),
    observed_row("EulerMaruyama", "dt=0.25, drift -exp(a) x, noise 1.5; y of 5", euler_maruyama, euler_maruyama_terms),
    free_row("ICAR", "W, sigma=1.5", lambda name: pm.ICAR(name, W=ADJACENT, sigma=1.5), intrinsic, 0.25, -0.5),
]
