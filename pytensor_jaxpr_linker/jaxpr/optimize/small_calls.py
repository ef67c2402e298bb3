"""Parts of a program that XLA's CPU compiler emits as one function each.

That compiler makes a kernel of each fusion. A program of small arrays spends its time between kernels: 50 ns for each, twenty to a hundred
in the log density of a model. A call with the attribute ``xla_cpu_small_call`` is one kernel, and compiles in half the time. XLA sets it for
small loops (``small_while_loop_hoisting_pass.cc``); its developers plan it for other small regions (S. Talts, "SmallRegionHoistingPass",
2026). A compiler that does not know the attribute ignores it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base.jax_compat import make_jaxpr_object
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, is_variable, with_operands
from pytensor_jaxpr_linker.jaxpr.optimize.small_parts import Part, split_small
from pytensor_jaxpr_linker.jaxpr.optimize.xla_options import CallProgram, is_reduction
from pytensor_jaxpr_linker.jaxpr.traits import TRAITS, Trait

#: What makes XLA's CPU compiler emit a call as one function. Its inliner would dissolve the call before.
ATTRIBUTES = {"inlineable": "false", "xla_cpu_small_call": "true"}
#: To reduce so many elements in the loop that computes them takes longer than to write them to memory.
LONG = 64


def with_small_calls(
    program: CallProgram, into_first: bool, split: Callable[[list[Any]], Sequence[Part]] = split_small
) -> CallProgram:
    """Put the small parts of a program into calls, one function each. A witness of these calls is a further result.

    XLA's emitter ends the process at a parameter of such a call that nothing reads. Simplifications of the call's body may remove all
    readers of a parameter, and if an operand is a constant, XLA moves it into the body. Therefore

    - a call also returns a witness: how many of the first elements of all its operands, with the witness of the call before, are not
      zero. XLA can't remove a term from a sum that the program returns;
    - the program's constants are constants of the call, and a barrier stands before all its operands: XLA takes none for a constant.

    With `into_first` the witness is the last element of the first result, a vector, since each result of a program takes 0.7 µs.
    """
    closed, parts = program.jaxpr, split(program.jaxpr.eqns)
    jaxpr = closed.jaxpr
    later, read_later = set(filter(is_variable, jaxpr.outvars)), []
    for part in reversed(parts):
        read_later.append(later)
        later = later.union(*(filter(is_variable, eqn.invars) for eqn in part.eqns))
    constants = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    b = JaxprBuilder("program")
    replaced: dict[Any, Atom] = {}
    witness: Atom | None = b.constant(np.float64(0))
    first = jaxpr.outvars[0] if into_first else None
    for part, later in zip(parts, reversed(read_later), strict=True):
        eqns = [with_operands(eqn, replaced) for eqn in part.eqns]
        results = [var for eqn in eqns for var in eqn.outvars if var in later]
        if part.is_small:
            ends = part is parts[-1] and first in results and jaxpr.outvars.count(first) == 1
            called = small_call(b, eqns, results, witness, constants, first if ends else None)
            witness = None if ends else called.pop()
            replaced |= zip(results, called, strict=True)
        else:
            b.eqns += eqns
            if part.is_apart:
                replaced |= zip(results, prims.barrier(b, results), strict=True)
    outvars = [replaced.get(x, x) if is_variable(x) else x for x in jaxpr.outvars]
    if not into_first:
        outvars.append(witness)
    elif witness is not None:
        outvars[0] = with_last(b, outvars[0], witness)
    made = make_jaxpr_object(jaxpr.constvars, jaxpr.invars, outvars, b.eqns, closed.consts, "program")
    return program._replace(jaxpr=made)


def small_call(
    b: JaxprBuilder,
    eqns: Sequence[Any],
    results: Sequence[Atom],
    witness: Atom,
    constants: Mapping[Atom, Any],
    first: Atom | None,
) -> list[Atom]:
    """Emit the call of some equations as one function; return those of their variables that are `results`, and the call's witness.

    Parameters
    ----------
    witness
        That of the call before, or zero.
    constants
        The values of variables that are constants of the program.
    first
        The one of the results, a vector, whose last element the call's witness is to be, or None: then it is a further result. XLA compiles a
        kernel outside of a call in 7 ms more than the same in the call.
    """
    made = {var for eqn in eqns for var in eqn.outvars}
    read = dict.fromkeys(filter(is_variable, [*(x for eqn in eqns for x in eqn.invars), witness]))
    known, operands = [x for x in read if x in constants], [x for x in read if x not in made and x not in constants]
    body = JaxprBuilder("small_call")
    body.eqns += materialized(eqns)
    own = read_first(body, operands)
    outvars = [*results, own] if first is None else [with_last(body, x, own) if x is first else x for x in results]
    values = [constants[x] for x in known]
    closed = make_jaxpr_object(known, operands, outvars, body.eqns, values, "small_call")
    return prims.metadata_call(b, closed, prims.barrier(b, operands), ATTRIBUTES)


def with_last(b: JaxprBuilder, vector: Atom, number: Atom) -> Atom:
    """Emit a vector with a number as one more element."""
    last = prims.reshape(b, prims.convert(b, number, vector.aval.dtype), (1,))
    return prims.concatenate(b, [vector, last], 0)


def materialized(eqns: Sequence[Any]) -> list[Any]:
    """Return equations with a barrier before each long reduction of elements that take long to compute.

    XLA would compute them inside the loop of the reduction, one by one; in a loop of their own it vectorizes them.
    """
    costly: set[Any] = set()
    result = []
    for eqn in eqns:
        for x in costly.intersection(filter(is_variable, eqn.invars)) if is_reduction(eqn) else ():
            if math.prod(x.aval.shape) >= LONG:
                b = JaxprBuilder("barrier")
                eqn = with_operands(eqn, dict(zip([x], prims.barrier(b, [x]), strict=True)))
                result += b.eqns
        result.append(eqn)
        if is_costly(eqn, costly):
            costly.update(eqn.outvars)
    return result


def is_costly(eqn: Any, costly: set[Any]) -> bool:
    """Return whether it takes long to compute an element of an equation's results from what is in memory; `costly` are such operands."""
    traits = TRAITS[eqn.primitive]
    if Trait.CHEAP in traits:
        return not costly.isdisjoint(filter(is_variable, eqn.invars))
    return Trait.ELEMENTWISE in traits or eqn.primitive in (p.custom_jvp_call_p, p.closed_call_p)


def read_first(b: JaxprBuilder, operands: Sequence[Atom]) -> Atom:
    """Emit how many of the first elements of arrays are not zero, as float64: finite whatever they are, for `jax_debug_nans`."""
    total = b.constant(np.float64(0))
    for x in operands:
        shape, dtype = x.aval.shape, x.aval.dtype
        first = prims.reshape(b, prims.slice_(b, x, [0] * len(shape), [1] * len(shape), [1] * len(shape)), ())
        is_other = prims.ne(b, first, b.constant(np.zeros((), dtype)))
        total = prims.add(b, total, prims.convert(b, is_other, np.dtype("float64")))
    return total
