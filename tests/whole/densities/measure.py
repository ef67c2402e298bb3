"""Errors of log densities and their gradients, in units in the last place of the largest term of the sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from densities.row import ELSEWHERE, GRID, Row
from mpmath import mp, mpf

#: How many digits mpmath works with, below 10 and from there on: what is as small as ``exp(-36**2 / 2)`` has to keep digits beside 1 and beside a step.
DIGITS, DIGITS_FAR = 200, 450
#: The distance of the two values whose difference is the derivative.
STEP = mpf(10) ** -50


class Reference(NamedTuple):
    """Values at the grid: the log density and its largest term, the gradient by each element and its largest term."""

    density: np.ndarray
    largest: np.ndarray
    gradient: np.ndarray
    slopes: np.ndarray


def rounded(x: Any) -> float:
    """Return the float64 nearest to a number of mpmath, infinite where it overflows."""
    return float(mp.re(x))


def largest(terms: Sequence[Any]) -> Any:
    return max((abs(t) for t in terms), default=mpf(0))


def at_point(row: Row, point: Sequence[float]) -> tuple[float, float, list[float], list[float]]:
    """Return the density, its largest term, and the derivative by each element with its largest term."""
    exact = [mpf(x) for x in point]
    terms = row.terms(*exact)
    density = sum(terms, mpf(0))
    gradient, slopes = [], []
    for i in range(len(exact)):
        if not mp.isfinite(density):
            gradient.append(np.nan), slopes.append(np.nan)
            continue
        up, down = ([*exact[:i], exact[i] + sign * STEP, *exact[i + 1 :]] for sign in (1, -1))
        changes = [(a - b) / (2 * STEP) for a, b in zip(row.terms(*up), row.terms(*down), strict=True)]
        gradient.append(rounded(sum(changes, mpf(0))))
        slopes.append(rounded(largest(changes)))
    return rounded(density), rounded(largest(terms)), gradient, slopes


def reference(row: Row, grid: Sequence[float] = GRID) -> Reference:
    """Compute the values of a row with mpmath."""
    points = []
    for u in grid:
        with mp.workdps(DIGITS if abs(u) < 10 else DIGITS_FAR):
            points.append(at_point(row, [u, *(row.others or ())]))
    return Reference(*(np.array(column, "float64") for column in zip(*points, strict=True)))


class Found(NamedTuple):
    """What an engine gives at the points of a row."""

    density: np.ndarray
    gradient: np.ndarray


class Part(NamedTuple):
    """A row inside of a model: where its values lie in the flat vector, and where it and the others stand."""

    row: Row
    start: int
    point: list[float]


def model_of(rows: Sequence[Row], vector: bool) -> tuple[pm.Model, list[Part]]:
    """Return one model of all rows: one compilation for all of them. With `vector`, rows of one number become vectors of two."""
    points, start, parts = [], 0, []
    with pm.Model() as model:
        for i, row in enumerate(rows):
            shape = (2,) if vector and row.others is None else ()
            row.build(f"r{i}", shape)
            others = row.others if row.others is not None else (ELSEWHERE,) * len(shape)
            points.append([ELSEWHERE, *others])
            parts.append(Part(row, start, points[-1]))
            start += len(points[-1])
    return model, parts


def positions(parts: Sequence[Part], grid: Sequence[float]) -> np.ndarray:
    """Return the flat vectors at which one row after the other goes through the grid, all others standing still."""
    still = [x for part in parts for x in part.point]
    flat = np.tile(np.array(still), (len(parts), len(grid), 1))
    for i, part in enumerate(parts):
        flat[i, :, part.start] = grid
    return flat


class Truth(NamedTuple):
    """The right values of a row at its grid inside of a model: of the whole density, and of the gradient by the row's elements."""

    density: np.ndarray
    largest: np.ndarray
    gradient: np.ndarray
    slopes: np.ndarray


def truths(parts: Sequence[Part], references: Sequence[Reference], grid: Sequence[float]) -> list[Truth]:
    """Return what is right where one row after the other goes through the grid."""
    middle = GRID.index(ELSEWHERE)
    index = [GRID.index(x) for x in grid]
    alone = [ref.density[middle] for ref in references]
    most = [ref.largest[middle] for ref in references]
    copies = [len(part.point) if part.row.others is None else 1 for part in parts]
    found = []
    for i, ref in enumerate(references):
        rest = sum(n * x for n, x in zip(copies, alone, strict=True)) - alone[i]
        scale = max([*most[:i], *most[i + 1 :], *[most[i]] * (copies[i] - 1)], default=0.0)
        found.append(
            Truth(
                ref.density[index] + rest, np.maximum(ref.largest[index], scale), ref.gradient[index], ref.slopes[index]
            )
        )
    return found


def errors(got: np.ndarray, want: np.ndarray, scale: np.ndarray, dtype: str = "float64") -> np.ndarray:
    """Return errors in units in the last place of the scale: infinite where they should be finite or infinite and are not.

    NaN where nothing is compared: `want` is NaN. What is below the smallest normal number counts as zero, as XLA has it.
    """
    limits = np.finfo(dtype)
    with np.errstate(all="ignore"):
        want, scale = (x.astype(dtype).astype("float64") for x in (want, scale))
        unit = np.spacing(np.maximum(scale, limits.tiny / limits.eps).astype(dtype)).astype("float64")
        off = np.abs(got - want) / unit
    off = np.where(np.isfinite(got) & np.isfinite(want), off, np.where(got == want, 0.0, np.inf))
    return np.where(np.isnan(want), np.nan, off)


def row_errors(part: Part, truth: Truth, found: Found, dtype: str = "float64") -> tuple[np.ndarray, np.ndarray]:
    """Return the errors of the density and of the gradient at each point of the grid.

    The gradient counts where the density is finite, and where no gradient of a term overflows.
    """
    limit = np.finfo(dtype).max
    density = np.where(truth.largest > limit, np.where(np.isinf(truth.density), truth.density, np.nan), truth.density)
    size = truth.gradient.shape[1]
    finite = (np.abs(truth.density) <= limit) & (truth.largest <= limit)
    gradient = np.where(finite[:, None] & (truth.slopes <= limit), truth.gradient, np.nan)
    off = errors(found.gradient[:, part.start : part.start + size], gradient, truth.slopes, dtype)
    worst = np.where(np.isnan(off).all(axis=1), np.nan, np.max(np.where(np.isnan(off), -np.inf, off), axis=1))
    return errors(found.density, density, truth.largest, dtype), worst
