"""Sums of many numbers, which scalars leave: their factors and terms."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.optimize.equations import replace_equations
from pytensor_jaxpr_linker.jaxpr.optimize.factors import TERMS, Factors
from pytensor_jaxpr_linker.jaxpr.optimize.sums_by_group import MANY_ADDED


def simplify_sums(eqns: list[Any], b: JaxprBuilder) -> list[Any]:
    """Rewrite the sums of many numbers."""
    return replace_equations(eqns, b, is_sum_of_many, partial(sum_of_terms, Factors(eqns, b)))


def is_sum_of_many(eqn: Any, b: JaxprBuilder) -> bool:
    """Return whether an equation adds many numbers, and how many is known."""
    if eqn.primitive is not p.reduce_sum_p:
        return False
    shape = eqn.invars[0].aval.shape
    return all(type(n) is int for n in shape) and math.prod(shape) >= MANY_ADDED


def sum_of_terms(factors: Factors, b: JaxprBuilder, eqn: Any) -> Atom | None:
    """Emit the sum of an array by that of a simpler array, or return None.

    Terms leave the sum if no element of the simpler array is negative: then its sum has the relative precision of its elements.
    """
    (x,), axes = eqn.invars, eqn.params["axes"]
    array, terms = factors.split_terms(x)
    numbers = factors.split(array)
    if (terms and not factors.is_not_negative(numbers.array)) or not (terms or numbers.factors):
        return None
    total = numbers.scale(b, prims.reduce_sum(b, numbers.array, axes))
    count = b.constant(math.prod(x.aval.shape[axis] for axis in axes), x.aval.dtype)
    for term in reversed(terms):
        pair = [total if y.aval.shape else prims.mul(b, count, y) for y in term.invars]
        total = TERMS[term.primitive](b, *pair)
    return total
