"""What a row of the table is: a part of a model with one unconstrained value, and the terms of its log density."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from densities.links import LINKS, Parameter, Transform
from mpmath import mpf

#: The unconstrained values: from the middle to where ``exp`` overflows.
GRID = [0.0, *(sign * x for x in (0.5, 2, 10, 30, 36, 38, 40, 60, 100, 700, 720, 800) for sign in (1.0, -1.0))]
#: Where the other values of a model are; see `GRID`.
ELSEWHERE = 0.5
#: The same in float32.
SINGLE_GRID = [0.0, *(sign * x for x in (0.5, 2, 10, 30, 40, 100) for sign in (1.0, -1.0))]
#: How many units in the last place of the largest term a density and its gradient may be off, unless the row has a reason.
BOUND = 64.0

type Terms = Callable[..., list[Any]]


class Row(NamedTuple):
    """A log density of one unconstrained value, or of a vector of them, of which the first one varies.

    Attributes
    ----------
    distribution
        The class of PyMC, by which the table is ordered.
    name
        What varies, as a user writes it.
    build
        Adds variables to the model of the context, and returns the free random variable. It takes a name, and the shape of a vector of
        independent values where the row is for one number.
    terms
        The additive terms of the log density, as numbers of mpmath, from the unconstrained values.
    others
        The values after the first one; None if the row is for one number, and so for a vector of independent ones.
    """

    distribution: str
    name: str
    build: Callable[[str, tuple[int, ...]], Any]
    terms: Terms
    others: tuple[float, ...] | None = None

    @property
    def id(self) -> str:
        return f"{self.distribution}: {self.name}"


def written(parameters: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in parameters.items())


def number_of(value: Any) -> Any:
    """Return an observed value, exactly."""
    return mpf(value) if isinstance(value, float) else value


def likelihood(
    make: Any, distribution: str, parameters: dict[str, Parameter], name: str, link: Any, observed: Any, terms: Terms
) -> Row:
    """Return the row of an observed value, of which a link leads to one parameter."""

    def build(label: str, shape: tuple[int, ...]) -> Any:
        free = pm.Flat(f"{label}_a", shape=shape)
        given = {**{k: v.value for k, v in parameters.items()}, name: link.graph(free)}
        y = np.full(shape, observed) if shape else np.asarray(observed)
        make(f"{label}_y", **given, observed=y.astype(pm.pytensorf.floatX(y).dtype) if y.dtype.kind == "f" else y)
        return free

    def row_terms(u: Any) -> list[Any]:
        return terms(number_of(observed), **{**numbers(parameters), name: link.value(u)})

    shown = {**{k: v.value for k, v in parameters.items()}, name: link.name}
    return Row(distribution, f"{written(shown)}; y = {observed}", build, row_terms)


def numbers(parameters: dict[str, Parameter]) -> dict[str, Any]:
    return {k: v.number for k, v in parameters.items()}


def prior(make: Any, distribution: str, parameters: dict[str, Parameter], transform: Transform, terms: Terms) -> Row:
    """Return the row of a free variable, whose unconstrained value varies."""

    def build(label: str, shape: tuple[int, ...]) -> Any:
        return make(f"{label}_x", **{k: v.value for k, v in parameters.items()}, shape=shape)

    def row_terms(u: Any) -> list[Any]:
        x, slope = transform(u)
        return [*terms(x, **numbers(parameters)), *slope]

    return Row(distribution, f"{written({k: v.value for k, v in parameters.items()})}; free", build, row_terms)


def rows_of(
    make: Any,
    terms: Terms,
    observed: Sequence[Any],
    transform: Transform | None = None,
    distribution: str = "",
    **parameters: Parameter,
) -> list[Row]:
    """Return the rows of a distribution in one parametrization: each parameter by each of its links, and as a free variable."""
    distribution = distribution or make.__name__
    rows = [
        likelihood(make, distribution, parameters, name, link, y, terms)
        for name, parameter in parameters.items()
        for link in LINKS[parameter.kind]
        for y in observed
    ]
    return rows + ([prior(make, distribution, parameters, transform, terms)] if transform else [])
