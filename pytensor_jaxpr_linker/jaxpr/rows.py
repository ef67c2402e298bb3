"""Rows of arrays: what a loop reads and writes in each step."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jax.extend.core import primitives

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder


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
    """Return whether most elements that a loop reads are reversed, as in PyTensor's gradients: then it should run backwards."""
    flipped = [x for x in rows if (eqn := b.definition(x, primitives.rev_p)) and eqn.params["dimensions"] == (0,)]
    return sum(row_size(x) for x in flipped) > sum(map(row_size, rows)) / 2


def row_size(x: Atom) -> int:
    """Return the number of elements of a row; symbolic dimensions count as one."""
    return math.prod(n for n in x.aval.shape[1:] if isinstance(n, int))
