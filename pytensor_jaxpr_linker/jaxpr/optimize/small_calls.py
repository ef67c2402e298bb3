"""Parts of a program that XLA's CPU compiler emits as one function each.

That compiler makes a kernel of each fusion, and a program of small arrays spends its time between kernels: 50 ns for each, twenty to a hundred in
the log density of a model. A call with the attribute ``xla_cpu_small_call`` is one kernel, and compiles in half the time. XLA sets it for
small loops (``small_while_loop_hoisting_pass.cc``); its developers plan it for other small regions, with the limits that are used here
(S. Talts, "SmallRegionHoistingPass", 2026). A compiler that does not know the attribute ignores it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
from jax.experimental.xla_metadata import set_xla_metadata

from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.jaxpr.builder import is_variable
from pytensor_jaxpr_linker.jaxpr.traits import TRAITS, Trait

#: Equations on larger arrays stay outside: XLA vectorizes their kernels better, and runs them in threads.
MOST_BYTES = 2**13
#: A call of fewer equations gains nothing.
LEAST_EQUATIONS = 4
#: What makes XLA's CPU compiler emit a call as one function. Its inliner would dissolve the call before.
ATTRIBUTES = {"inlineable": "false", "xla_cpu_small_call": "true"}


class Part(NamedTuple):
    """Equations of a Jaxpr that run together: a Jaxpr from the variables that they read to those that others read."""

    jaxpr: Any
    inputs: list[Any]
    outputs: list[Any]
    is_small: bool


def is_small(eqn: Any) -> bool:
    """Tell whether an equation may be part of one function: a loop or a branch if all equations inside it may."""
    traits = TRAITS.get(eqn.primitive, Trait.ALONE)
    if Trait.ALONE in traits:
        return False
    if Trait.CONTROL_FLOW not in traits and not all(is_small_aval(atom.aval) for atom in (*eqn.invars, *eqn.outvars)):
        return False
    return all(is_small(inner) for jaxpr in jax_compat.inner_jaxprs(eqn) for inner in jaxpr.eqns)


def is_small_aval(aval: Any) -> bool:
    """Tell whether an array is small."""
    return math.prod(aval.shape) * aval.dtype.itemsize <= MOST_BYTES


def split_small(closed: Any) -> list[Part]:
    """Return the parts of a closed Jaxpr in an order in which they can run.

    All small equations between the same other equations are one part: those before which as many others have to run.
    """
    jaxpr = closed.jaxpr
    depth: dict[Any, int] = {}
    groups: dict[tuple[int, bool], list[Any]] = {}
    for eqn in jaxpr.eqns:
        small = is_small(eqn)
        level = max((depth.get(x, 0) for x in eqn.invars if is_variable(x)), default=0)
        groups.setdefault((level, not small), []).append(eqn)
        depth.update(dict.fromkeys(eqn.outvars, level if small else level + 1))
    ordered = [(groups[key], not key[1]) for key in sorted(groups)]
    reads = [{x for eqn in eqns for x in eqn.invars if is_variable(x)} for eqns, _ in ordered]
    parts = []
    for i, (eqns, small) in enumerate(ordered):
        later = set(filter(is_variable, jaxpr.outvars)).union(*reads[i + 1 :])
        made = [var for eqn in eqns for var in eqn.outvars]
        inputs = list(dict.fromkeys(x for eqn in eqns for x in eqn.invars if is_variable(x) and x not in set(made)))
        outputs = [var for var in made if var in later]
        parts.append(Part(part_jaxpr(eqns, inputs, outputs), inputs, outputs, small and is_worth_it(eqns)))
    return parts


def is_worth_it(eqns: Sequence[Any]) -> bool:
    """Tell whether equations are enough for a call of their own."""
    return len(eqns) >= LEAST_EQUATIONS or any(Trait.CONTROL_FLOW in TRAITS[eqn.primitive] for eqn in eqns)


def part_jaxpr(eqns: list[Any], inputs: list[Any], outputs: list[Any]) -> Any:
    """Return the closed Jaxpr of some equations."""
    return jax_compat.make_jaxpr_object([], inputs, outputs, eqns, [], "part", [""] * len(inputs))


def call_in_parts(closed: Any, args: Iterable[Any]) -> list[Any]:
    """Bind the parts of a closed Jaxpr to tracers, the small ones as calls that are one function."""
    jaxpr = closed.jaxpr
    env = dict(zip(jaxpr.constvars, closed.consts, strict=True)) | dict(zip(jaxpr.invars, args, strict=True))
    for part in split_small(closed):
        given = [env[x] for x in part.inputs]
        if part.is_small:
            with set_xla_metadata(**ATTRIBUTES):
                results = jax.jit(lambda *xs, inner=part.jaxpr: jax_compat.call_jaxpr(inner, *xs))(*given)
        else:
            results = jax_compat.call_jaxpr(part.jaxpr, *given)
        env.update(zip(part.outputs, results, strict=True))
    return [env[x] if is_variable(x) else jax.numpy.asarray(x.val, x.aval.dtype) for x in jaxpr.outvars]
