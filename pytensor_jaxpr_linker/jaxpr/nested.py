"""Jaxprs inside a Jaxpr: bodies of loops and branches, their captured variables, and the rows that loops read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.extend.core as jex
import numpy as np
from jax.extend.core import primitives

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder


def nested(
    b: JaxprBuilder, read: Sequence[Atom], given: Sequence[Atom]
) -> tuple[JaxprBuilder, list[Atom], list[Atom], list[Atom]]:
    """Return a builder for an inner Jaxpr, its atoms for `read`, its inputs for `given`, and the captured variables.

    The inner Jaxpr takes the captured variables (of `read`) first, then one input for each of `given`.
    """
    passed: list[Atom] = list(dict.fromkeys(x for x in read if isinstance(x, jex.Var)))
    child, atoms = b.sub_jaxpr([x.aval for x in (*passed, *given)])
    inner = dict(zip(passed, atoms, strict=False))
    return child, [inner[x] if isinstance(x, jex.Var) else x for x in read], atoms[len(passed) :], passed


def fixed_value(operand: Any) -> np.ndarray | None:
    """Return the value of a static operand or of a literal, or None."""
    if isinstance(operand, np.ndarray | np.generic):
        return np.asarray(operand)
    return np.asarray(operand.val) if isinstance(operand, jex.Literal) else None


def any_of(b: JaxprBuilder, mask: Atom) -> Atom:
    """Emit whether any element is true."""
    return prims.reduce_or(b, mask, range(len(mask.aval.shape))) if mask.aval.shape else mask


def row_range(b: JaxprBuilder, x: Atom, start: int, stop: int) -> Atom:
    """Return the rows of an array from `start` up to `stop`."""
    shape = x.aval.shape
    return prims.slice_(b, x, [start, *[0] * (len(shape) - 1)], [stop, *shape[1:]], [1] * len(shape))


def row_of(b: JaxprBuilder, x: Atom, i: int) -> Atom:
    """Return one row of an array."""
    return prims.reshape(b, row_range(b, x, i, i + 1), x.aval.shape[1:])


def as_rows(b: JaxprBuilder, row: Atom) -> Atom:
    """Return a row as an array of one row."""
    return prims.reshape(b, row, (1, *row.aval.shape))


def join(b: JaxprBuilder, parts: Sequence[Atom]) -> Atom:
    """Return arrays one behind the other."""
    return prims.concatenate(b, parts, 0)


def last_rows(b: JaxprBuilder, x: Atom, count: int) -> Atom:
    """Return the last rows of an array."""
    return row_range(b, x, x.aval.shape[0] - count, x.aval.shape[0])


def is_backwards(b: JaxprBuilder, rows: Sequence[Atom]) -> bool:
    """Return whether a loop should run backwards: most elements that it reads are reversed, as in gradients."""
    flipped = [x for x in rows if (eqn := b.definition(x, primitives.rev_p)) and eqn.params["dimensions"] == (0,)]
    return sum(row_size(x) for x in flipped) > sum(map(row_size, rows)) / 2


def row_size(x: Atom) -> int:
    """Return the number of elements of a row; symbolic dimensions count as one."""
    return math.prod(n for n in x.aval.shape[1:] if isinstance(n, int))
