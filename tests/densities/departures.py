"""Where our log densities or gradients are wrong though the truth is finite, and why. Nowhere else may they be."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from densities.row import Row


class Departure(NamedTuple):
    """Rows, by a regular expression that their whole id matches, the unconstrained values where they are wrong, and the reason."""

    rows: str
    where: Callable[[float], bool]
    reason: str
    precisions: tuple[str, ...] = ("float64", "float32")


KNOWN: list[Departure] = []


def departure(row: Row, u: float, dtype: str = "float64") -> Departure | None:
    """Return why a row may be wrong at an unconstrained value; None if it must be right."""
    for known in KNOWN:
        if dtype in known.precisions and re.fullmatch(known.rows, row.id) and known.where(u):
            return known
    return None
