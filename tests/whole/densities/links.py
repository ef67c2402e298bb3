"""Links and transforms of unconstrained values: as PyTensor graphs, and as numbers of mpmath written from their definitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytensor.tensor as pt
from mpmath import mp, mpf


class Share(NamedTuple):
    """A number between 0 and 1 and what is left to 1: neither loses digits where the other is tiny."""

    p: Any
    q: Any


class Link(NamedTuple):
    """A function of an unconstrained value `a`: how a row writes it, its graph, and its value."""

    name: str
    graph: Callable[[Any], Any]
    value: Callable[[Any], Any]


def sigmoid(u: Any) -> Share:
    return Share(1 / (1 + mp.exp(-u)), 1 / (1 + mp.exp(u)))


def upper_tail(u: Any) -> Any:
    """Return the normal probability above a number: by its asymptotic series, where mpmath's own function would take its square for an int."""
    if u < -200:
        return 1 - upper_tail(-u)
    if u < 200:
        return mp.erfc(u / mp.sqrt(2)) / 2
    term, total, k = mpf(1), mpf(1), 0
    while abs(term) > mp.eps and k < u * u / 2 - 1:
        k += 1
        term *= -(2 * k - 1) / (u * u)
        total += term
    return mp.exp(-u * u / 2) / (u * mp.sqrt(2 * mp.pi)) * total


def normal_cdf(u: Any) -> Share:
    return Share(upper_tail(-u), upper_tail(u))


IDENTITY = Link("a", lambda a: a, lambda u: u)
#: The links of each kind of parameter.
LINKS = {
    "real": [IDENTITY],
    "positive": [
        Link("exp(a)", pt.exp, mp.exp),
        Link("softplus(a)", pt.softplus, lambda u: mp.log1p(mp.exp(u))),
    ],
    "unit": [
        Link("invlogit(a)", pt.sigmoid, sigmoid),
        Link("invprobit(a)", lambda a: 0.5 * pt.erfc(-a / pt.sqrt(2.0)), normal_cdf),
        Link(
            "1 - exp(-exp(a))",
            lambda a: 1 - pt.exp(-pt.exp(a)),
            lambda u: Share(-mp.expm1(-mp.exp(u)), mp.exp(-mp.exp(u))),
        ),
    ],
}


class Parameter(NamedTuple):
    """A parameter of a distribution: which links lead to it, and the value that it has where it is fixed."""

    kind: str
    value: float

    @property
    def number(self) -> Any:
        """The fixed value, as densities take it."""
        return Share(mpf(self.value), 1 - mpf(self.value)) if self.kind == "unit" else mpf(self.value)


def real(value: float) -> Parameter:
    return Parameter("real", value)


def positive(value: float) -> Parameter:
    return Parameter("positive", value)


def unit(value: float) -> Parameter:
    return Parameter("unit", value)


def fixed(value: Any) -> Parameter:
    """A parameter that no row differentiates by."""
    return Parameter("fixed", value)


LINKS["fixed"] = []

#: From the unconstrained value to the constrained one, and the terms of the log of the slope.
type Transform = Callable[[Any], tuple[Any, list[Any]]]


def log_transform(u: Any) -> tuple[Any, list[Any]]:
    return mp.exp(u), [u]


def interval(lower: float, upper: float) -> Transform:
    """An interval with two ends."""

    def transform(u: Any) -> tuple[Any, list[Any]]:
        share, width = sigmoid(u), mpf(upper) - mpf(lower)
        return mpf(lower) + width * share.p, [mp.log(width), mp.log(share.p), mp.log(share.q)]

    return transform


def above(lower: float) -> Transform:
    return lambda u: (mpf(lower) + mp.exp(u), [u])


def no_transform(u: Any) -> tuple[Any, list[Any]]:
    return u, []
