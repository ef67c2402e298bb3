"""Lengths of axes in rules: integers, or symbolic dimensions of `jax.export`, which the program knows at run time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from jax.errors import InconclusiveDimensionOperation
from pytensor.graph.basic import Apply

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder


def as_lengths(values: Iterable[Any]) -> list[Any]:
    """Return a static vector, or several static numbers, as lengths."""
    return [np.asarray(n).item() for n in values]


def is_less(b: JaxprBuilder, m: Any, n: Any) -> Atom:
    """Emit whether a length is less than another one: a constant if JAX can decide it."""
    try:
        return b.constant(bool(m < n))
    except InconclusiveDimensionOperation:
        return prims.lt(b, b.constant(m, "int64"), b.constant(n, "int64"))


def position_dtype(n: Any) -> str:
    """Return the shortest signed integer type for positions in an axis, of 64 bits if JAX can't decide that 32 suffice."""
    try:
        return "int32" if n < 2**31 else "int64"
    except InconclusiveDimensionOperation:
        return "int64"


def check_length(b: JaxprBuilder, node: Apply, n: Any, least: int, error: Exception) -> None:
    """Raise an error if a length is less than `least`, or have it raised at run time if JAX can't decide it."""
    too_small = is_less(b, n, least)
    if (value := b.known(too_small)) is None:
        b.check(prims.not_(b, too_small), lambda: error, node)
    elif value:
        raise error
