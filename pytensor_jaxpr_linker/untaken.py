"""Derivatives of branches that a `select` does not take: zero, where the rules of JAX give NaN.

A branch that is not taken has the cotangent 0, and 0 times an infinite slope is NaN: the gradient of ``switch(x > 0, log(x), 0)`` at 0.
The remedy that JAX's documentation gives, a second `where` around the operand of the branch ("double where"), needs an operand
at which the slope is finite, and computes it in each call. Here the operands of the branch stay as they are and get a
derivative instead: the identity whose tangent is zero where the branch is not taken. Whatever comes out of the branch
backwards, it is replaced by zero there. Programs that nobody differentiates do the same as before.

Which equations belong to a branch is their control dependence (Ferrante, Ottenstein and Warren 1987, "The program dependence graph
and its use in optimization"), found in one pass backwards: the conditions under which a value is read are those that all
of its readers share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax.extend.core as jex
import numpy as np
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker import prims
from pytensor_jaxpr_linker.builder import Atom, JaxprBuilder, is_variable
from pytensor_jaxpr_linker.identity import identity


def primitives(names: str) -> frozenset[jex.Primitive]:
    """Return the primitives of these names."""
    return frozenset(getattr(p, f"{name}_p") for name in names.split())


#: Primitives that compute each element of the result from the elements at the same place.
ELEMENTWISE = primitives(
    "abs acos acosh add asin asinh atan atan2 atanh bessel_i0e bessel_i1e clamp complex conj convert_element_type copy cos cosh"
    " custom_jvp_call digamma div erf erf_inv erfc exp exp2 expm1 igamma igammac imag integer_pow lgamma log log1p logistic max"
    " min mul neg polygamma pow real regularized_incomplete_beta rem rsqrt select_n sign sin sinh sqrt square sub tan tanh zeta"
)
#: Primitives whose derivative is finite whatever their operands are: where a branch has no others, no NaN comes out of it.
BOUNDED = primitives(
    "abs add asinh atan broadcast_in_dim clamp complex concatenate conj convert_element_type copy cos dynamic_slice erf erfc"
    " gather imag logistic max min neg pad real reduce_sum reshape rev select_n sign sin slice squeeze sub tanh transpose"
)


class Condition(NamedTuple):
    """That a `select` takes the operand for `holds`.

    `choice` is a boolean scalar, or has the shape of what is chosen.
    """

    choice: Atom
    holds: bool


#: Without repetition; in the order in which they are found, so that equal graphs become equal programs.
type Conditions = tuple[Condition, ...]


def with_guards(b: JaxprBuilder, eqns: Sequence[Any], outputs: Iterable[Atom]) -> list[Any]:
    """Return the equations of a builder with guards on what enters branches; only derivatives differ.

    Parameters
    ----------
    b
        The builder, which gets the equations of the guards.
    eqns
        Its equations, in order.
    outputs
        What of them is read outside.
    """
    if not any(eqn.primitive is p.select_n_p for eqn in eqns):
        return list(eqns)
    entered = dict(zip(map(identity, eqns), entered_conditions(eqns, outputs), strict=True))
    made: dict[tuple[Condition, Atom], Atom] = {}
    b.restart()
    for eqn in in_order(eqns, lambda eqn: [c.choice for conditions in entered[identity(eqn)] for c in conditions]):
        guards = entered[identity(eqn)]
        if any(guards):
            b.at_names_of(eqn)
            eqn = eqn.replace(invars=[guard_operand(b, x, g, made) for x, g in zip(eqn.invars, guards, strict=True)])
        b.eqns.append(eqn)
    return b.eqns


def entered_conditions(eqns: Sequence[Any], outputs: Iterable[Atom]) -> Iterator[list[Conditions]]:
    """Yield for each operand of each equation the conditions that hold from there on, where slopes may be infinite."""
    inside: dict[int, Conditions] = {}  # literals have no hash
    for eqn, under, is_steep in zip(eqns, *analyze_branches(eqns, outputs), strict=True):
        passed = passed_on(eqn, under)
        inside |= dict.fromkeys(map(identity, eqn.outvars), passed)
        yield [
            without(passed, inside.get(identity(x), ())) if is_steep and is_differentiable(x) else ()
            for x in eqn.invars
        ]


def in_order(eqns: Sequence[Any], also_read: Callable[[Any], Iterable[Atom]]) -> Iterator[Any]:
    """Yield equations in their order, but those first that compute what another one also reads."""
    definitions = {v: eqn for eqn in eqns for v in eqn.outvars}
    placed: set[int] = set()
    for eqn in eqns:
        stack = [eqn]
        while stack:
            read = [*(x for x in stack[-1].invars if is_variable(x)), *also_read(stack[-1])]
            missing = [definitions[v] for v in read if v in definitions and identity(definitions[v]) not in placed]
            if missing and identity(stack[-1]) not in placed:
                stack += missing[::-1]
                continue
            done = stack.pop()
            if identity(done) not in placed:
                placed.add(identity(done))
                yield done


def analyze_branches(eqns: Sequence[Any], outputs: Iterable[Atom]) -> tuple[list[Conditions], list[bool]]:
    """Return under which conditions the result of each equation is read, and whether a slope up to there may be infinite."""
    read: dict[Atom, Conditions] = {v: () for v in outputs if is_variable(v)}
    below: set[Atom] = set()
    conditions: list[Conditions] = []
    steep: list[bool] = []
    for eqn in reversed(eqns):
        under = reduce(common, [read[v] for v in eqn.outvars if v in read])
        is_steep = is_unbounded(eqn) or (bool(under) and not below.isdisjoint(eqn.outvars))
        conditions.append(under)
        steep.append(is_steep)
        passed, is_choice = passed_on(eqn, under), eqn.primitive is p.select_n_p
        for i, x in enumerate(eqn.invars):
            if is_variable(x):
                through = passed if x.aval.shape == eqn.outvars[0].aval.shape else scalars_of(passed)
                if is_choice and i:
                    through = (*through, *without(choice_of(eqn, i), through))
                read[x] = common(read[x], through) if x in read else through
                if is_steep:
                    below.add(x)
    return conditions[::-1], steep[::-1]


def choice_of(eqn: Any, position: int) -> Conditions:
    """Return the condition under which a `select` takes the operand at a position."""
    choice = eqn.invars[0]
    return (Condition(choice, position == 2),) if is_variable(choice) and choice.aval.dtype == bool else ()


def passed_on(eqn: Any, under: Conditions) -> Conditions:
    """Return the conditions on the result of an equation that are conditions on its operands as well."""
    shape = eqn.outvars[0].aval.shape
    is_elementwise = eqn.primitive in ELEMENTWISE and all(x.aval.shape in ((), shape) for x in eqn.invars)
    return under if is_elementwise else scalars_of(under)


def scalars_of(conditions: Conditions) -> Conditions:
    """Return those conditions that decide on whole arrays."""
    return tuple(c for c in conditions if not c.choice.aval.shape)


def common(left: Conditions, right: Conditions) -> Conditions:
    """Return the conditions that are among both."""
    return left if left is right else tuple(c for c in left if c in right)


def without(conditions: Conditions, others: Conditions) -> Conditions:
    """Return the conditions that are not among the others."""
    return tuple(c for c in conditions if c not in others)


def is_unbounded(eqn: Any) -> bool:
    """Tell whether an equation may have an infinite slope."""
    if eqn.primitive is p.mul_p:
        return not any(type(x) is jex.Literal and np.isfinite(x.val) for x in eqn.invars)
    return eqn.primitive not in BOUNDED


def is_differentiable(x: Atom) -> bool:
    """Tell whether an atom may have a tangent."""
    return is_variable(x) and x.aval.dtype.kind in "fcV"


def guard_operand(b: JaxprBuilder, x: Atom, conditions: Conditions, made: dict[tuple[Condition, Atom], Atom]) -> Atom:
    """Return an operand of an elementwise equation with a guard for each of the conditions, one of those `made` if it is there."""
    for condition in conditions:
        if condition.choice.aval.shape:
            x = prims.broadcast_to(b, x, condition.choice.aval.shape)  # before its cotangents are summed
        if (condition, x) not in made:
            made[condition, x] = guard(b, condition, x)
        x = made[condition, x]
    return x


def guard(b: JaxprBuilder, condition: Condition, x: Atom) -> Atom:
    """Assemble the identity of `x` whose derivative is zero where the condition does not hold."""
    inner, (_, result) = b.sub_jaxpr([condition.choice.aval, x.aval])

    def differentiate(
        child: JaxprBuilder, primals: Sequence[Atom], tangents: Sequence[Atom | None]
    ) -> tuple[list[Atom], list[Atom]]:
        choice, primal = primals
        slope = tangents[1]
        zero = child.constant(0, primal.aval.dtype)
        cases = (slope, zero) if condition.holds else (zero, slope)
        # Guarded once more, for the derivative of the derivative.
        guarded = guard(child, condition._replace(choice=choice), primal)
        return [guarded], [prims.select(child, choice, *cases)]

    return prims.custom_jvp_call(b, inner.build([result]), differentiate, [condition.choice, x])[0]
