"""Sums of many numbers: scalars leave them, and neighbours of one group are added before they meet their group.

Both apply to ``reduce_sum``, and to ``scatter_add`` into a vector at known indices, by which the gradient of an effect adds the rows of
each group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, live_equations
from pytensor_jaxpr_linker.jaxpr.optimize.factors import TERMS, Factors
from pytensor_jaxpr_linker.jaxpr.optimize.sums_by_group import MANY_ADDED, WRITE, add_to_groups


def simplify_sums(eqns: list[Any], b: JaxprBuilder, outputs: Sequence[Atom]) -> list[Any]:
    """Rewrite the sums of many numbers."""
    if not any(map(is_sum_of_many, eqns)):
        return eqns
    factors = Factors(eqns, b, outputs)
    changed, result = False, []
    for eqn in eqns:
        if is_sum_of_many(eqn):
            b.restart()  # nothing is shared with other sums, so the last equation defines the result
            b.at_names_of(eqn)
            if REWRITES[eqn.primitive](factors, eqn) is not None:
                *new, eqn = b.ending_in(eqn.outvars)
                result += new
                changed = True
        result.append(eqn)
    b.eqns = live_equations(result, outputs)[0] if changed else eqns
    return b.eqns


def is_sum_of_many(eqn: Any) -> bool:
    """Tell whether an equation adds many numbers, and how many is known."""
    if eqn.primitive not in REWRITES:
        return False
    shape = eqn.invars[-1].aval.shape
    return all(type(n) is int for n in shape) and math.prod(shape) >= MANY_ADDED


def sum_of_terms(factors: Factors, eqn: Any) -> Atom | None:
    """Emit the sum of an array by that of a simpler array, or return None.

    Terms leave the sum if no element of the simpler array is negative: then its sum has the relative precision of its elements.
    """
    b, (x,), axes = factors.b, eqn.invars, eqn.params["axes"]
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


def sum_of_groups(factors: Factors, eqn: Any) -> Atom | None:
    """Emit a vector with many rows added to its elements, or return None."""
    if factors.b.is_inner or eqn.params["dimension_numbers"] != WRITE:
        return None
    x, indices, rows = eqn.invars
    return add_to_groups(factors.b, x, indices, rows, factors.split, factors.plans)


REWRITES: dict[Any, Callable[[Factors, Any], Atom | None]] = {
    p.reduce_sum_p: sum_of_terms,
    p.scatter_add_p: sum_of_groups,
}
