"""The driver of passes that replace equations one by one: such a pass is a pattern and a replacement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from pytensor_jaxpr_linker.base.passes import Pass, When
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, live_equations, with_operands

#: Returns whether an equation may be replaced.
type Pattern = Callable[[Any, JaxprBuilder], bool]

#: Emits what replaces an equation with one result, the equation of the result last. Returns None if the equation stays.
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
    """Return the equations with those of a pattern replaced, and without what is dead then; the same list if all stay.

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
