"""Derivatives of branches that a `select` does not take: zero, where the rules of JAX give NaN.

A branch that is not taken has the cotangent 0, and 0 times an infinite slope is NaN: the gradient of ``switch(x > 0,
log(x), 0)`` at 0. The remedy that JAX's documentation gives, a second `where` around the operand of the branch ("double
where"), needs an operand at which the slope is finite, and computes it in each call. Here the operands of the branch
stay as they are and get a derivative instead: the identity whose tangent is zero where the branch is not taken. There,
zero replaces whatever the branch's derivative gives. Programs that nobody differentiates do the same as before.

Which equations belong to a branch is their control dependence (Ferrante, Ottenstein and Warren 1987, "The program
dependence graph and its use in optimization"). One pass backwards finds it: a value is read under the conditions that
all its readers share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax.extend.core as jex
import numpy as np
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base.interpreter import identity
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, is_variable
from pytensor_jaxpr_linker.jaxpr.traits import Trait, having

#: Primitives that preserve conditions on single elements. The `custom_jvp_call` of this package (special functions,
#: guards) does.
PASSING_ON = having(Trait.ELEMENTWISE) | {p.custom_jvp_call_p}
#: Primitives whose derivatives give no NaN, for any operands and for real ones.
BOUNDED, BOUNDED_IF_REAL = having(Trait.BOUNDED_SLOPE), having(Trait.BOUNDED_REAL_SLOPE)


class Condition(NamedTuple):
    """A `select` takes the operand for `holds`; `choice` is a boolean scalar, or has the shape of the operands."""

    choice: Atom
    holds: bool


#: A disjunction of distinct conditions, in the order in which they are found: equal graphs become equal programs.
type Alternatives = tuple[Condition, ...]

#: A conjunction of disjunctions, which holds where a value is read.
type Conditions = tuple[Alternatives, ...]

#: The most alternatives of one condition, and the most conditions, that are followed. The others count as always true.
MOST_ALTERNATIVES = 4

#: The largest depth of guards whose conditions need guards themselves.
DEEPEST_GUARD = 50


def guard_branches(eqns: list[Any], b: JaxprBuilder) -> list[Any]:
    """Put guards on the operands of branches. Only derivatives differ."""
    position = {v: i for i, eqn in enumerate(eqns) for v in eqn.outvars}
    order = guarded_order(eqns, position, list(entered_conditions(eqns, position, b.outputs)))
    made: dict[tuple[Alternatives, Atom], Atom] = {}
    b.restart()
    for eqn, guards in order:
        if any(guards):
            b.at_names_of(eqn)
            eqn = eqn.replace(invars=[guard_operand(b, x, g, made) for x, g in zip(eqn.invars, guards, strict=True)])
        b.eqns.append(eqn)
    return b.eqns


def entered_conditions(
    eqns: Sequence[Any], position: Mapping[Atom, int], outputs: Iterable[Atom]
) -> Iterator[list[Conditions]]:
    """Yield the conditions that begin to hold at each operand of each equation, where slopes may be infinite."""
    inside: dict[int, Conditions] = {}  # literals have no hash
    for i, (eqn, under, is_steep) in enumerate(zip(eqns, *analyze_branches(eqns, outputs), strict=True)):
        passed = tuple(found for found in passed_on(eqn, under) if not is_circular(found, i, eqns, position))
        inside |= dict.fromkeys(map(identity, eqn.outvars), passed)
        yield [
            without(passed, inside.get(identity(x), ())) if is_steep and is_differentiable(x) else ()
            for x in eqn.invars
        ]


def is_circular(found: Alternatives, place: int, eqns: Sequence[Any], position: Mapping[Atom, int]) -> bool:
    """Return whether one of several alternatives is computed from an equation's result, and so is known too late."""
    return len(found) > 1 and place in computed_by(found, eqns, position, lambda i: i < place)


def computed_by(
    found: Alternatives, eqns: Sequence[Any], position: Mapping[Atom, int], stops: Callable[[int], bool]
) -> set[int]:
    """Return the places of equations that alternatives depend on; the search ends where `stops(place)`."""
    seen: set[int] = set()
    stack: list[Atom] = [c.choice for c in found]
    while stack:
        x = stack.pop()
        i = position.get(x, -1) if is_variable(x) else -1
        if i >= 0 and i not in seen and not stops(i):
            seen.add(i)
            stack += eqns[i].invars
    return seen


def guarded_order(
    eqns: Sequence[Any], position: Mapping[Atom, int], entered: Sequence[list[Conditions]]
) -> list[tuple[Any, list[Conditions]]]:
    """Return equations, and guards of their operands, in an order that computes each condition before the guards.

    A guard is left out if its condition depends on the guarded value, directly or through other guards.
    """
    placed: set[int] = set()
    active: set[int] = set()
    order: list[tuple[Any, list[Conditions]]] = []

    def place(i: int) -> None:
        """Put an equation next, behind the conditions of its guards."""
        if i not in placed:
            active.add(i)
            guards = [tuple(filter(may_guard, conditions)) for conditions in entered[i]]
            active.remove(i)
            placed.add(i)
            order.append((eqns[i], guards))

    def may_guard(found: Alternatives) -> bool:
        """Place the equations that a condition depends on, and return whether that is possible."""
        needed = computed_by(found, eqns, position, placed.__contains__)
        if not needed.isdisjoint(active) or len(active) > DEEPEST_GUARD:
            return False
        for i in sorted(needed):
            place(i)
        return True

    for i in range(len(eqns)):
        place(i)
    return order


def analyze_branches(eqns: Sequence[Any], outputs: Iterable[Atom]) -> tuple[list[Conditions], list[bool]]:
    """Return the conditions under which results are read, and whether slopes up to there may be infinite."""
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
    return ((Condition(choice, position == 2),),) if is_variable(choice) and choice.aval.dtype == bool else ()


def passed_on(eqn: Any, under: Conditions) -> Conditions:
    """Return the conditions on the result of an equation that are conditions on its operands as well."""
    shape = eqn.outvars[0].aval.shape
    is_elementwise = eqn.primitive in PASSING_ON and all(x.aval.shape in ((), shape) for x in eqn.invars)
    return under if is_elementwise else scalars_of(under)


def scalars_of(conditions: Conditions) -> Conditions:
    """Return the conditions that decide on whole arrays."""
    return tuple(found for found in conditions if not any(c.choice.aval.shape for c in found))


def common(left: Conditions, right: Conditions) -> Conditions:
    """Merge the conditions of two readers: for each pair of conditions, one of both holds."""
    if left is right:
        return left
    pairs = [(*one, *(c for c in other if c not in one)) for one in left for other in right]
    found = [pair for pair in pairs if len(pair) <= MOST_ALTERNATIVES and not is_always_true(pair)]
    distinct = list({frozenset(alternatives): alternatives for alternatives in found}.values())
    strongest = [a for a in distinct if not follows(a, [other for other in distinct if other is not a])]
    return tuple(strongest[:MOST_ALTERNATIVES])


def is_always_true(alternatives: Alternatives) -> bool:
    """Return whether the alternatives contain a condition and its opposite."""
    return any(c._replace(holds=not c.holds) in alternatives for c in alternatives)


def follows(alternatives: Alternatives, others: Iterable[Alternatives]) -> bool:
    """Return whether alternatives follow from one of the others."""
    return any(set(other) <= set(alternatives) for other in others)


def without(conditions: Conditions, others: Conditions) -> Conditions:
    """Return the conditions that do not follow from the others."""
    return tuple(found for found in conditions if not follows(found, others))


def is_unbounded(eqn: Any) -> bool:
    """Return whether an equation may have an infinite slope."""
    if eqn.primitive is p.mul_p:
        return not any(type(x) is jex.Literal and np.isfinite(x.val) for x in eqn.invars)
    if eqn.primitive in BOUNDED_IF_REAL:
        return eqn.invars[0].aval.dtype.kind == "c"
    return eqn.primitive not in BOUNDED


def is_differentiable(x: Atom) -> bool:
    """Return whether an atom may have a tangent."""
    return is_variable(x) and x.aval.dtype.kind in "fcV"


def guard_operand(
    b: JaxprBuilder, x: Atom, conditions: Conditions, made: dict[tuple[Alternatives, Atom], Atom]
) -> Atom:
    """Return an operand with a guard for each of the conditions; `made` caches guards."""
    for alternatives in conditions:
        condition = any_alternative(b, alternatives)
        if condition.choice.aval.shape:
            x = prims.broadcast_to(b, x, condition.choice.aval.shape)  # before its cotangents are summed
        if (alternatives, x) not in made:
            made[alternatives, x] = guard(b, condition, x)
        x = made[alternatives, x]
    return x


def any_alternative(b: JaxprBuilder, alternatives: Alternatives) -> Condition:
    """Emit the condition that one of the alternatives holds."""
    if len(alternatives) == 1:
        return alternatives[0]
    shape = max((c.choice.aval.shape for c in alternatives), key=len)
    held = [c.choice if c.holds else prims.not_(b, c.choice) for c in alternatives]
    return Condition(reduce(lambda x, y: prims.or_(b, x, y), [prims.broadcast_to(b, x, shape) for x in held]), True)


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
