"""Rows of distributions that are made of others: censored, truncated, mixed, ordered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from densities import textbook as book
from densities.links import fixed, normal_cdf, positive, real, sigmoid, unit
from densities.row import Row, rows_of
from densities.textbook import INF, Number, Terms
from mpmath import mp, mpf


def log_tail(x: Number, mu: Number, sigma: Number) -> Number:
    return mp.log(normal_cdf((x - mu) / sigma).q)


def log_head(x: Number, mu: Number, sigma: Number) -> Number:
    return mp.log(normal_cdf((x - mu) / sigma).p)


def censored(density: Any, head: Any, tail: Any, lower: float | None, upper: float | None) -> Callable[..., Terms]:
    """Return the density of values that are cut to bounds, from the logs of the probabilities below and above them."""

    def terms(x: Number, **parameters: Number) -> Terms:
        if lower is not None and x <= lower:
            return head(mpf(lower), **parameters)
        if upper is not None and x >= upper:
            return tail(mpf(upper), **parameters)
        return density(x, **parameters)

    return terms


def censor(inner: Any, lower: float | None, upper: float | None) -> Callable[..., Any]:
    def make(name: str, observed: Any, **parameters: Any) -> Any:
        return pm.Censored(name, inner.dist(**parameters), lower=lower, upper=upper, observed=observed)

    return make


def truncate(inner: Any, lower: Any, upper: Any) -> Callable[..., Any]:
    def make(name: str, **parameters: Any) -> Any:
        given = {k: parameters.pop(k) for k in ("observed", "shape") if k in parameters}
        return pm.Truncated(name, inner.dist(**parameters), lower=lower, upper=upper, **given)

    return make


def between(density: Any, mass: Any, lower: Any, upper: Any) -> Callable[..., Terms]:
    """Return the density of values that are only seen between bounds; `mass` is the log of the probability there."""

    def terms(x: Number, **parameters: Number) -> Terms:
        return [*density(x, **parameters), *book.minus(mass(**parameters))] if lower <= x <= upper else [-INF]

    return terms


def truncated_normal_share(low: Number, high: Number, mu: Number, sigma: Number) -> Number:
    return book.log_cdf_between((low - mu) / sigma, (high - mu) / sigma)


def log_below(x: Number) -> Number:
    """Return ``log(1 - exp(-x))``; mpmath's exponential would not end where that is zero."""
    return mp.log(-mp.expm1(-x)) if x < 1e6 else mpf(0)


#: The bounds of the truncated normal distribution that is censored, and where it is censored.
OUTER, INNER = (mpf(-2.25), mpf(3.0)), (-1.25, 1.5)


def head_of_truncated(x: Number, mu: Number, sigma: Number, lower: Number, upper: Number) -> Terms:
    whole = truncated_normal_share(lower, upper, mu, sigma)
    return [truncated_normal_share(lower, x, mu, sigma), -whole]


def tail_of_truncated(x: Number, mu: Number, sigma: Number, lower: Number, upper: Number) -> Terms:
    whole = truncated_normal_share(lower, upper, mu, sigma)
    return [truncated_normal_share(x, upper, mu, sigma), -whole]


CENSORED = [
    *rows_of(
        censor(pm.Normal, *INNER),
        censored(book.normal, lambda *x, **p: [log_head(*x, **p)], lambda *x, **p: [log_tail(*x, **p)], *INNER),
        [-1.25, 0.25, 1.5],
        distribution="Censored(Normal)",
        mu=real(0.375),
        sigma=positive(1.5),
    ),
    *rows_of(
        censor(pm.TruncatedNormal, *INNER),
        censored(book.truncated_normal, head_of_truncated, tail_of_truncated, *INNER),
        [-1.25, 0.25, 1.5],
        distribution="Censored(TruncatedNormal)",
        mu=real(0.375),
        sigma=positive(1.5),
        lower=fixed(-2.25),
        upper=fixed(3.0),
    ),
    *rows_of(
        censor(pm.Exponential, None, 2.5),
        censored(book.exponential, None, lambda x, lam: [-lam * x], None, 2.5),
        [0.75, 2.5],
        distribution="Censored(Exponential)",
        lam=positive(0.75),
    ),
    *rows_of(
        censor(pm.Weibull, None, 2.5),
        censored(book.weibull, None, lambda x, alpha, beta: [-((x / beta) ** alpha)], None, 2.5),
        [0.75, 2.5],
        distribution="Censored(Weibull)",
        alpha=positive(2.5),
        beta=positive(1.5),
    ),
    *rows_of(
        censor(pm.Logistic, *INNER),
        censored(
            book.logistic,
            lambda x, mu, s: [-mp.log1p(mp.exp(-(x - mu) / s))],
            lambda x, mu, s: [-mp.log1p(mp.exp((x - mu) / s))],
            *INNER,
        ),
        [-1.25, 1.5],
        distribution="Censored(Logistic)",
        mu=real(0.375),
        s=positive(1.5),
    ),
]

TRUNCATED = [
    *rows_of(
        truncate(pm.Exponential, 0.5, 3.0),
        between(
            book.exponential,
            lambda lam: [-lam / 2, mp.log(-mp.expm1(-lam * mpf(2.5)))],
            0.5,
            3.0,
        ),
        [1.25],
        distribution="Truncated(Exponential)",
        lam=positive(0.75),
    ),
    *rows_of(
        truncate(pm.Normal, -0.75, 2.5),
        lambda x, mu, sigma: book.truncated_normal(x, mu, sigma, mpf(-0.75), mpf(2.5)),
        [0.25],
        distribution="Truncated(Normal)",
        mu=real(0.375),
        sigma=positive(1.5),
    ),
    *rows_of(
        truncate(pm.Weibull, None, 2.5),
        lambda x, alpha, beta: [*book.weibull(x, alpha, beta), -log_below((mpf(2.5) / beta) ** alpha)],
        [1.25],
        distribution="Truncated(Weibull)",
        alpha=positive(2.5),
        beta=positive(1.5),
    ),
    *rows_of(
        truncate(pm.Logistic, 0.5, None),
        lambda x, mu, s: [*book.logistic(x, mu, s), mp.log1p(mp.exp((mpf(0.5) - mu) / s))],
        [1.25],
        distribution="Truncated(Logistic)",
        mu=real(0.375),
        s=positive(1.5),
    ),
    *rows_of(
        truncate(pm.Poisson, 1, None),
        lambda x, mu: [*book.poisson(x, mu), -mp.log(-mp.expm1(-mu))],
        [1, 3],
        distribution="Truncated(Poisson)",
        mu=positive(2.5),
    ),
    *rows_of(
        truncate(pm.Geometric, None, 3),
        lambda x, p: [*book.geometric(x, p), -mp.log(p.p * (1 + p.q + p.q**2))],
        [1, 3],
        distribution="Truncated(Geometric)",
        p=unit(0.375),
    ),
]


def two_weights(w: Any) -> Any:
    return pt.stack([w, 1 - w], axis=-1)


def normal_mixture(name: str, w: Any, mu: Any, sigma: Any, **given: Any) -> Any:
    other = np.asarray(-1.25, pm.pytensorf.floatX(0.0).dtype)
    components = [pm.Normal.dist(mu, sigma), pm.Normal.dist(other, sigma)]
    return pm.Mixture(name, two_weights(w), components, **given)


def count_mixture(name: str, w: Any, mu: Any, **given: Any) -> Any:
    return pm.Mixture(name, two_weights(w), [pm.Poisson.dist(mu), pm.DiracDelta.dist(0)], **given)


MIXTURES = [
    *rows_of(
        normal_mixture,
        lambda x, w, mu, sigma: book.mixed([w.p, w.q], [book.normal(x, mu, sigma), book.normal(x, mpf(-1.25), sigma)]),
        [0.75],
        distribution="Mixture(Normal)",
        w=unit(0.375),
        mu=real(0.375),
        sigma=positive(1.5),
    ),
    *rows_of(
        count_mixture,
        lambda x, w, mu: book.mixed([w.p], [book.poisson(x, mu)]) if x else [mp.log(w.p * mp.exp(-mu) + w.q)],
        [0, 3],
        distribution="Mixture(Poisson, DiracDelta)",
        w=unit(0.375),
        mu=positive(2.5),
    ),
]

CUTPOINTS = np.array([-1.25, 0.75])


def ordered_share(low: Any, high: Any, cdf: Callable[[Any], Any]) -> Number:
    """Return the probability between two cutpoints of a symmetric distribution; None is none."""
    if high is None:
        return cdf(low).q
    if low is None:
        return cdf(high).p
    return cdf(high).p - cdf(low).p if low < 0 else cdf(low).q - cdf(high).q


def ordered_terms(y: int, cutpoints: list[Number], eta: Number, cdf: Callable[[Any], Any]) -> Terms:
    ends = [None, *(c - eta for c in cutpoints), None]
    return [mp.log(ordered_share(ends[y], ends[y + 1], cdf))]


def ordered_logistic(y: int, eta: Number) -> Terms:
    return ordered_terms(y, [mpf(c) for c in CUTPOINTS], eta, sigmoid)


def ordered_multinomial(y: Any, eta: Number) -> Terms:
    """Counts of 2, 4 and 1."""
    choose = [book.gammaln(mpf(8)), *(-book.gammaln(mpf(n + 1)) for n in (2, 4, 1))]
    return [*choose, *(n * t for i, n in enumerate((2, 4, 1)) for t in ordered_logistic(i, eta))]


def ordered_probit(y: int, eta: Number, sigma: Number) -> Terms:
    return ordered_terms(y, [mpf(c) / sigma for c in CUTPOINTS], eta / sigma, normal_cdf)


def free_cutpoints(cls: Any, cdf: Callable[[Any], Any], y: int) -> Row:
    """Return the row of ordered cutpoints, whose first one and whose logarithmic distance are the unconstrained values."""

    def build(label: str, shape: tuple[int, ...]) -> Any:
        transform = pm.distributions.transforms.ordered
        start = np.array([-1.0, 1.0], dtype=pytensor.config.floatX)
        c = pm.Normal(f"{label}_c", 0, 8, shape=2, transform=transform, initval=start)
        cls(f"{label}_y", eta=0.25, cutpoints=c, observed=y, compute_p=False)
        return c

    def terms(first: Number, distance: Number) -> Terms:
        c = [first, first + mp.exp(distance)]
        prior = [t for x in c for t in book.normal(x, mpf(0), mpf(8))]
        return [*prior, distance, *ordered_terms(y, c, mpf(0.25), cdf)]

    return Row(cls.__name__, f"cutpoints free and ordered; y = {y}", build, terms, (0.75,))


ORDERED = [
    *rows_of(
        lambda name, eta, observed: pm.OrderedLogistic(name, eta, CUTPOINTS, compute_p=False, observed=observed),
        ordered_logistic,
        [0, 1, 2],
        distribution="OrderedLogistic",
        eta=real(0.375),
    ),
    *rows_of(
        lambda name, eta, sigma, observed: pm.OrderedProbit(
            name, eta, CUTPOINTS, sigma, compute_p=False, observed=observed
        ),
        ordered_probit,
        [0, 1, 2],
        distribution="OrderedProbit",
        eta=real(0.375),
        sigma=positive(1.5),
    ),
    *rows_of(
        lambda name, eta, observed: pm.OrderedMultinomial(
            name, eta, CUTPOINTS, 7, compute_p=False, observed=np.array([2, 4, 1])
        ),
        ordered_multinomial,
        ["[2, 4, 1]"],
        distribution="OrderedMultinomial",
        eta=real(0.375),
    ),
    free_cutpoints(pm.OrderedLogistic, sigmoid, 1),
    free_cutpoints(pm.OrderedProbit, normal_cdf, 1),
]

COMPOSED = [*CENSORED, *TRUNCATED, *MIXTURES, *ORDERED]
