"""Barriers behind computed floats at steps: comparisons, and other operations whose results jump.

XLA computes an operand again in each loop that reads it. Its CPU compiler contracts products and sums to fused
multiply-adds, and not in the same way in each loop. So a float that is a rounding error may be above zero in one loop
and below zero in another one, and terms that should cancel do not. PyMC's kernels, for example, clip squared distances
at zero, and on the diagonal of a matrix these are rounding errors. A float behind a barrier is computed once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base.jax_compat import optimization_barrier_p
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, is_variable
from pytensor_jaxpr_linker.jaxpr.optimize.barriers import MOVING, with_barriers
from pytensor_jaxpr_linker.jaxpr.traits import ELEMENTWISE_PRIMITIVES, Trait, having

#: Primitives whose results jump where a float passes a number, and primitives whose derivatives jump.
JUMPING = {p.eq_p, p.ne_p, p.ge_p, p.gt_p, p.le_p, p.lt_p, p.floor_p, p.ceil_p, p.round_p, p.sign_p, p.rem_p}
BENT = {p.max_p, p.min_p, p.clamp_p, p.abs_p}
#: Primitives that round nothing: their results differ between loops only where their operands do.
EXACT = MOVING | BENT | {p.neg_p, p.select_n_p, p.stop_gradient_p, p.concatenate_p, p.pad_p, p.gather_p}
#: Primitives that add, so a product may be contracted with them.
ADDING = {p.add_p, p.sub_p, p.reduce_sum_p, p.closed_call_p, p.custom_jvp_call_p}
#: Primitives that XLA computes once, whatever reads them.
ONCE = having(Trait.KERNEL | Trait.LIBRARY_CALL | Trait.ALONE | Trait.CONTROL_FLOW) | {optimization_barrier_p}


def is_jump(eqn: Any, b: JaxprBuilder) -> bool:
    """Return whether the result of an equation, or JAX's derivative of it, jumps where a float operand does not."""
    if eqn.primitive is p.convert_element_type_p:
        return eqn.outvars[0].aval.dtype.kind in "biu" and eqn.invars[0].aval.dtype.kind == "f"
    return (eqn.primitive in JUMPING or (eqn.primitive in BENT and b.differentiable)) and is_float(eqn.invars[0])


def is_float(x: Atom) -> bool:
    """Return whether an array has real or complex floats."""
    return x.aval.dtype.kind in "fc"


def decide_once(eqns: list[Any], b: JaxprBuilder) -> list[Any]:
    """Put a barrier behind each contracted float that steps read for several readers."""
    contracted = contracted_floats(eqns)
    steps = [(eqn, x) for eqn in eqns if is_jump(eqn, b) for x in filter(is_variable, eqn.invars) if x in contracted]
    if not steps:
        return eqns
    readers = find_readers(eqns, b.outputs)
    found: dict[Any, set[Any]] = defaultdict(set)
    for eqn, x in steps:
        found[x] |= readers[eqn.outvars[0]]
        if eqn.primitive in BENT:
            found[x].add(eqn.outvars[0])  # JAX's derivative reads it once more
    return with_barriers(eqns, b, {x for x, keys in found.items() if len(keys) > 1})


def contracted_floats(eqns: Iterable[Any]) -> set[Any]:
    """Return the variables that contain a sum of terms that XLA computes in the same loop."""
    rounded: set[Any] = set()
    contracted: set[Any] = set()
    for eqn in eqns:
        if eqn.primitive in ONCE or not any(map(is_float, eqn.outvars)):
            continue
        operands = {x for x in eqn.invars if is_variable(x)}
        if not operands.isdisjoint(contracted) or (eqn.primitive in ADDING and not operands.isdisjoint(rounded)):
            contracted.update(eqn.outvars)
        if eqn.primitive not in EXACT or not operands.isdisjoint(rounded):
            rounded.update(eqn.outvars)
    return contracted


def find_readers(eqns: Sequence[Any], outputs: Iterable[Atom]) -> dict[Any, set[Any]]:
    """Return what reads each variable in a loop of its own, up to two of them.

    These are results of the Jaxpr, and equations that are not elementwise. An elementwise equation and its reader are
    one loop. A broadcast, transposed, or otherwise moved array is read at other places of the loop.
    """
    found: dict[Any, set[Any]] = defaultdict(set)
    for x in filter(is_variable, outputs):
        found[x].add(x)
    for eqn in reversed(eqns):
        keys: Iterable[Any] = set().union(*(found[x] for x in eqn.outvars))
        if eqn.primitive in MOVING and eqn.primitive is not p.convert_element_type_p:
            keys = {hash((id(eqn), key)) for key in keys}
        elif eqn.primitive not in ELEMENTWISE_PRIMITIVES:
            keys = {id(eqn)}
        for x in filter(is_variable, eqn.invars):
            for key in keys:
                if len(found[x]) < 2:
                    found[x].add(key)
    return found
