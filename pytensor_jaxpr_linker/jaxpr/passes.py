"""Jaxpr passes: the conditions under which they run, and the driver of passes that replace equations one by one.

A pass of the second kind is a pattern and a replacement. Emission rules ask for conditions, too: ``CPU(b)``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from pytensor_jaxpr_linker.base.jax_compat import target_platforms
from pytensor_jaxpr_linker.base.passes import Pass, When
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, is_variable, live_equations, with_operands


def CPU(_: Any) -> bool:
    """Programs are lowered for CPUs alone, so measurements on CPUs apply."""
    return set(target_platforms()) == {"cpu"}


def ALSO_CPU(_: Any) -> bool:
    """CPUs are among the platforms that programs are lowered for."""
    return "cpu" in target_platforms()


def OUTERMOST(b: JaxprBuilder) -> bool:
    """The Jaxpr is not inside another one, as the body of a loop, branch or function."""
    return not b.is_inner


def PLAIN(b: JaxprBuilder) -> bool:
    """JAX does not differentiate the Jaxpr."""
    return not b.differentiable


def DIFFERENTIATED(b: JaxprBuilder) -> bool:
    """JAX differentiates the Jaxpr."""
    return b.differentiable


def UNTRANSFORMED(b: JaxprBuilder) -> bool:
    """JAX does not transform the Jaxpr, nor divide its arrays over devices."""
    return not b.for_jax


def count_readers(eqns: Iterable[Any], outputs: Sequence[Atom] = ()) -> Counter[Atom]:
    """Return how often equations read each variable, and `outputs` have it."""
    return Counter(x for atoms in (outputs, *(eqn.invars for eqn in eqns)) for x in atoms if is_variable(x))


#: Returns whether an equation may be replaced.
type Pattern = Callable[[Any, JaxprBuilder], bool]

#: Emits the replacement of an equation with one result, the equation of the result last. Returns None if the equation
#: stays.
type Replace = Callable[[JaxprBuilder, Any], Atom | None]


def equation_pass(name: str, of: Pattern, replace: Replace, when: Sequence[When] = ()) -> Pass:
    """Return a pass that replaces the equations of a pattern."""
    return Pass(name, partial(replace_equations, of=of, replace=replace), of, when)


def replace_equations(
    eqns: list[Any],
    b: JaxprBuilder,
    of: Pattern,
    replace: Replace,
    renamed: Mapping[Atom, Atom] = MappingProxyType({}),
) -> list[Any]:
    """Return equations with the equations of a pattern replaced, and without dead code; the same list if all stay.

    Later equations read the values of `renamed`, which `replace` may extend, in place of its keys.
    """
    result: list[Any] = []
    changed = False
    for eqn in eqns:
        if of(eqn, b):
            b.restart(eqn)
            if replace(b, eqn) is not None:
                result += b.ending_in(eqn.outvars)
                changed = True
                continue
        result.append(with_operands(eqn, renamed) if renamed else eqn)
    return live_equations(result, b.outputs)[0] if changed or renamed else eqns
