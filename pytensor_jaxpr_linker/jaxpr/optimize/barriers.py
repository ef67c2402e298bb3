"""Optimization barriers behind small results that many equations read.

XLA's fusion computes a small result again in every kernel that reads it. In a model of many scalar variables all gradients
read the same sums: without barriers, compile time grows with the square of their number.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Sequence
from typing import Any

import jax.extend.core as jex

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape, with_operands

#: Results of at most this many elements that at least this many operands read get a barrier.
SMALL_RESULT, MANY_READERS = 16, 8


def add_barriers(eqns: list[Any], b: JaxprBuilder) -> list[Any]:
    """Put a barrier behind each small result with many readers."""
    crowded = {var for var, count in count_readers(eqns).items() if count >= MANY_READERS and is_small(var.aval.shape)}
    return with_barriers(eqns, b, crowded)


def with_barriers(eqns: list[Any], b: JaxprBuilder, results: Container[Atom]) -> list[Any]:
    """Put barriers behind some results; the same list if no equation has such."""
    if not any(var in results for eqn in eqns for var in eqn.outvars):
        return eqns
    shielded: dict[Atom, Atom] = {}
    found: list[Any] = []
    for eqn in eqns:
        b.restart(eqn)
        shielded |= {var: prims.barrier(b, [var])[0] for var in eqn.outvars if var in results}
        found += [with_operands(eqn, shielded), *b.eqns]
    return found


def count_readers(eqns: Sequence[Any]) -> Counter[Atom]:
    """Return how often equations read each variable."""
    return Counter([x for eqn in eqns for x in eqn.invars if type(x) is jex.Var])


def is_small(shape: Shape) -> bool:
    """Return whether a shape has few elements; one with a symbolic dimension may have any number."""
    return all(isinstance(n, int) for n in shape) and math.prod(shape) <= SMALL_RESULT
