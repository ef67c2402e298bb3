"""Loop distribution: equations that read no carry are computed for all steps at once, before the loop.

See Allen and Kennedy, Optimizing Compilers for Modern Architectures, 2001, section 5.2. PyTensor's gradient of a loop computes
each forward step again, from states that are known by then, so most of its body is no recurrence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax.extend.core as jex

from pytensor_jaxpr_linker.jaxpr.builder import Atom, Shape, live_equations
from pytensor_jaxpr_linker.jaxpr.traits import Trait, having

#: Shorter loops are left alone: computing costs less than storing, or, if they call LAPACK, not much more.
LEAST_STEPS, LEAST_STEPS_WITH_CALLS = 32, 4

#: The most elements that are stored for all steps.
MOST_ELEMENTS = 2**23

#: Distribution pays where calls leave the loop: one call for each step becomes one for all. XLA fuses other equations, which then only
#: cost memory traffic: of the gradients of 1,000 and 10,000 steps, a Kalman filter's takes 0.7 times as long, one of RK4 1.05 times.
CALLS = having(Trait.LIBRARY_CALL)

CHEAP, CONTROL_FLOW, LAYOUT = having(Trait.CHEAP), having(Trait.CONTROL_FLOW), having(Trait.LAYOUT)


class Distribution(NamedTuple):
    """The equations of a body, divided."""

    crossing: list[jex.Var]  #: values that are computed before the loop, and that its steps read
    kept: list[jex.JaxprEqn]  #: the equations of the steps
    has_calls: bool  #: whether library calls leave the loop


def distribute(
    eqns: Sequence[jex.JaxprEqn], results: Sequence[Atom], carry: Iterable[jex.Var], steps: int
) -> Distribution | None:
    """Divide a body into the equations that depend on `carry`, its inputs from earlier steps, and the others, if that pays."""
    if type(steps) is not int or steps < LEAST_STEPS_WITH_CALLS:
        return None
    eqns, _ = live_equations(eqns, results)
    recurrent: set[Atom] = set(carry)
    moved: set[Atom] = set()
    is_dear = has_calls = False
    kept = []
    for eqn in eqns:
        reads = [x for x in eqn.invars if type(x) is jex.Var]
        if eqn.effects or eqn.primitive in CONTROL_FLOW or not recurrent.isdisjoint(reads):
            recurrent.update(eqn.outvars)
            kept.append(eqn)
        elif eqn.primitive in LAYOUT:
            kept.append(eqn)
        else:
            moved.update(eqn.outvars)
            is_dear |= eqn.primitive not in CHEAP
            has_calls |= eqn.primitive in CALLS
    if not is_dear or (steps < LEAST_STEPS and not has_calls):
        return None
    kept, used = live_equations(kept, results)
    crossing = [var for eqn in eqns for var in eqn.outvars if var in moved and var in used]
    shapes: list[Shape] = [var.aval.shape for var in crossing]  # type: ignore[attr-defined]
    if not crossing or not all(isinstance(n, int) for shape in shapes for n in shape):
        return None
    if steps * sum(map(math.prod, shapes)) > MOST_ELEMENTS:
        return None
    return Distribution(crossing, kept, has_calls)
