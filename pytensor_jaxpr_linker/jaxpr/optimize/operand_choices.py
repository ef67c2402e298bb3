"""Choices between two results of one function become choices of its operand: ``where(c, f(x), f(y))`` is ``f(where(c, x, y))``, to the last bit.

So `f` is computed once for each element. The log density of a Bernoulli variable chooses between the softplus of a logit and of its negation, which differ in one
cheap term. And XLA's library for sums takes functions along with a sum, but no choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, is_variable, live_equations
from pytensor_jaxpr_linker.jaxpr.optimize.barriers import count_readers
from pytensor_jaxpr_linker.jaxpr.traits import TRAITS, Trait


def choose_operands(eqns: list[Any], b: JaxprBuilder, outputs: Sequence[Atom]) -> list[Any]:
    """Rewrite choices between results that nothing else reads, in programs that JAX does not differentiate."""
    if b.differentiable or not any(eqn.primitive is p.select_n_p for eqn in eqns):
        return eqns
    readers = count_readers(eqns)
    readers.update(filter(is_variable, outputs))
    read_once = {x: eqn for eqn in eqns for x in eqn.outvars if readers[x] == 1 and Trait.ELEMENTWISE in traits_of(eqn)}
    result: list[Any] = []
    for eqn in eqns:
        moved = operand_choice(b, eqn, read_once) if eqn.primitive is p.select_n_p else []
        read_once.update((x, new) for new in moved for x in new.outvars)
        result += moved or [eqn]
    return result if len(result) == len(eqns) else live_equations(result, outputs)[0]


def traits_of(eqn: Any) -> Trait:
    """Return what is known of the primitive of an equation."""
    return TRAITS.get(eqn.primitive, Trait(0))


def operand_choice(b: JaxprBuilder, choice: Any, read_once: Mapping[Atom, Any]) -> list[Any]:
    """Return equations that choose operands and compute functions of them, or none if the alternatives of a choice have no function in common."""
    condition, *alternatives = choice.invars
    functions: list[tuple[Any, int]] = []
    while found := common_function(*map(read_once.get, filter(is_variable, alternatives))):
        *function, alternatives = found
        functions.append((function[0], function[1]))
    if not functions:
        return []
    b.restart()
    b.at_names_of(choice)
    on_false, on_true = alternatives
    x = prims.select(b, condition, on_true, on_false)
    for eqn, position in reversed(functions):
        b.at_names_of(eqn)
        operands = [x if i == position else other for i, other in enumerate(eqn.invars)]
        (x,) = b.bind_many(eqn.primitive, operands, [var.aval for var in eqn.outvars], eqn.params)
    return b.ending_in(choice.outvars)


def common_function(*alternatives: Any) -> tuple[Any, int, list[Atom]] | None:
    """Return one of two equations, the position of the only operand in which they differ, and that operand of each; or None."""
    if len(alternatives) != 2 or None in alternatives:
        return None
    first, second = alternatives
    if first.primitive is not second.primitive or first.params != second.params:
        return None
    orders = [second.invars, second.invars[::-1]] if Trait.COMMUTATIVE in traits_of(first) else [second.invars]
    for operands in orders:
        differing = [i for i, (x, y) in enumerate(zip(first.invars, operands, strict=True)) if x is not y]
        if len(differing) == 1:
            i = differing[0]
            x, y = first.invars[i], operands[i]
            if x.aval.shape == y.aval.shape == first.outvars[0].aval.shape and x.aval.dtype == y.aval.dtype:
                return first, i, [x, y]
    return None
