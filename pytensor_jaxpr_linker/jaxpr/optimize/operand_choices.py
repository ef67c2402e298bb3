"""Choices between two results of one function become choices of its operand: ``where(c, f(x), f(y))`` is ``f(where(c, x, y))``, to the last bit.

So `f` is computed once for each element. The log density of a Bernoulli variable chooses between the softplus of a logit and of its negation, which differ in one
cheap term. And XLA's library for sums takes functions along with a sum, but no choices.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, is_variable
from pytensor_jaxpr_linker.jaxpr.optimize.barriers import count_readers
from pytensor_jaxpr_linker.jaxpr.optimize.equations import replace_equations
from pytensor_jaxpr_linker.jaxpr.traits import TRAITS, Trait


def is_choice(eqn: Any, b: JaxprBuilder) -> bool:
    """Return whether an equation is a choice between arrays."""
    return eqn.primitive is p.select_n_p


def choose_operands(eqns: list[Any], b: JaxprBuilder) -> list[Any]:
    """Rewrite choices between results that nothing else reads."""
    readers = count_readers(eqns)
    readers.update(filter(is_variable, b.outputs))
    read_once = {x: eqn for eqn in eqns for x in eqn.outvars if readers[x] == 1 and Trait.ELEMENTWISE in traits_of(eqn)}
    return replace_equations(eqns, b, is_choice, partial(choice_of_operands, read_once))


def traits_of(eqn: Any) -> Trait:
    """Return what is known of the primitive of an equation."""
    return TRAITS.get(eqn.primitive, Trait(0))


def choice_of_operands(read_once: dict[Atom, Any], b: JaxprBuilder, choice: Any) -> Atom | None:
    """Emit a choice of operands and the functions of it; None if the alternatives have no function in common.

    `read_once` has the equations of results with one reader, by their results. It gets the new ones.
    """
    condition, *alternatives = choice.invars
    functions: list[tuple[Any, int]] = []
    while found := common_function(*map(read_once.get, filter(is_variable, alternatives))):
        *function, alternatives = found
        functions.append((function[0], function[1]))
    if not functions:
        return None
    on_false, on_true = alternatives
    x = prims.select(b, condition, on_true, on_false)
    for eqn, position in reversed(functions):
        b.at_names_of(eqn)
        operands = [x if i == position else other for i, other in enumerate(eqn.invars)]
        (x,) = b.bind_many(eqn.primitive, operands, [var.aval for var in eqn.outvars], eqn.params)
    read_once.update((new, eqn) for eqn in b.eqns for new in eqn.outvars)
    read_once[choice.outvars[0]] = b.eqns[-1]
    return x


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
