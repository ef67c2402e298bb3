"""Optimization barriers behind small results that many equations read, and behind those that XLA's library misreads (`library_forms`).

XLA's fusion computes a small result again in every kernel that reads it. In a model of many scalar variables all gradients
read the same sums: without barriers, compile time grows with the square of their number.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax.extend.core as jex

from pytensor_jaxpr_linker.base.jax_compat import optimization_barrier_p
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape, with_operands
from pytensor_jaxpr_linker.jaxpr.optimize.library_forms import misread_results

#: Results of at most this many elements that at least this many operands read get a barrier.
SMALL_RESULT, MANY_READERS = 16, 8


def add_barriers(eqns: list[Any], b: JaxprBuilder, outputs: Sequence[Atom]) -> list[Any]:
    """Put a barrier behind each small result with many readers, but in inner Jaxprs, and behind what XLA's library misreads."""
    readers = {} if b.is_inner else count_readers(eqns)
    crowded = {var for var, count in readers.items() if count >= MANY_READERS and is_small(var.aval.shape)}
    crowded |= misread_results(eqns, b)
    if not crowded:
        return eqns
    shielded: dict[Atom, Atom] = {}
    result = []
    for eqn in eqns:
        result.append(with_operands(eqn, shielded))
        for var in eqn.outvars:
            if var in crowded:
                shielded[var] = jex.Var(var.aval)
                how = (optimization_barrier_p, {}, jex.no_effects, eqn.source_info, eqn.ctx)  # type: ignore[var-annotated]
                result.append(jex.new_jaxpr_eqn([var], [shielded[var]], *how))
    return result


def count_readers(eqns: Sequence[Any]) -> Counter[Atom]:
    """Return how often equations read each variable."""
    return Counter([x for eqn in eqns for x in eqn.invars if type(x) is jex.Var])


def is_small(shape: Shape) -> bool:
    """Tell whether a shape has few elements; one with a symbolic dimension may have any number."""
    return all(isinstance(n, int) for n in shape) and math.prod(shape) <= SMALL_RESULT
