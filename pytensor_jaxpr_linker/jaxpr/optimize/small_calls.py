"""Parts of a program that XLA's CPU compiler emits as one function each.

That compiler makes a kernel of each fusion. A program of small arrays spends its time between kernels: 50 ns for each,
twenty to a hundred in the log density of a model. A call with the attribute ``xla_cpu_small_call`` is one kernel, and
compiles in half the time. XLA sets it for small loops (``small_while_loop_hoisting_pass.cc``); its developers plan it
for other small regions (S. Talts, "SmallRegionHoistingPass", 2026). A compiler that does not know the attribute ignores
it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import batched, chain, groupby
from typing import Any, NamedTuple

import numpy as np
from jax import lax
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base.interpreter import usable_cores
from pytensor_jaxpr_linker.base.jax_compat import inner_jaxprs, make_jaxpr_object
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, is_variable, with_operands
from pytensor_jaxpr_linker.jaxpr.optimize.xla_options import CallProgram, is_reduction
from pytensor_jaxpr_linker.jaxpr.passes import count_readers
from pytensor_jaxpr_linker.jaxpr.traits import TRAITS, Trait, having

#: Equations on larger arrays stay outside: XLA vectorizes their kernels better, and runs them in threads.
MOST_BYTES = 2**13
#: A call of fewer equations costs more than it saves: its operands and results pass through memory. With 4, `latent_gp`
#: took 47.0 instead of 44.9 µs.
LEAST_EQUATIONS = 12
#: LLVM's time grows faster than the length of a function: more equations than these are several calls.
MOST_EQUATIONS = 256
#: XLA makes few kernels of elementwise equations, whose loops LLVM vectorizes. In more equations than these it takes
#: longer: 2,000 on vectors of 100 compiled in 0.6 of the time of functions, and ran in 0.8; with 128 or 256 in 0.85,
#: and all in one kernel took three times as long to compile.
MOST_IN_KERNEL = 64
#: XLA runs a kernel in two threads from this number of operations on; an expensive one counts twice
#: (`parallel_task_assignment.cc`). 2,000 equations on vectors of 100 are one kernel then, and take 0.65 of the time on
#: two cores; they compile in 2.4 s instead of 0.5, as long as if XLA chose the kernels. More equations than these would
#: take too long.
WORK_FOR_THREADS, MOST_IN_THREADS = 200_000, 2048
#: What XLA counts as one operation for each element.
COUNTED_ONCE = having(Trait.CHEAP) | {p.div_p, p.rem_p}
#: Kernels of single numbers have no vectors, and for more results there are more kernels: a recursion of 300 scalar
#: equations with its derivative took twice as long as in functions, a sum of forty terms with its derivative 1.4 times
#: as long.
LEAST_IN_KERNEL, MOST_RESULTS = 8, 4


class Part(NamedTuple):
    """Equations of a Jaxpr that can run one after the other."""

    eqns: list[Any]
    is_small: bool  #: whether they are one function
    is_apart: bool = False  #: whether XLA keeps them apart from later equations


def split_small(eqns: Sequence[Any]) -> list[Part]:
    """Return the parts of a list of equations, in an order in which they can run.

    The small equations between the same other equations are one part: the same number of others run before them.
    """
    # XLA's FFT fails at an operand in another layout, which a call may give.
    if any(eqn.primitive is lax.fft_p for eqn in eqns):
        return [Part([*eqns], False)]
    depth: dict[Any, int] = {}
    groups: dict[tuple[int, bool], list[Any]] = {}
    for eqn in eqns:
        is_other = not fits_small_call(eqn)
        level = max((depth.get(x, 0) for x in eqn.invars if is_variable(x)), default=0)
        groups.setdefault((level, is_other), []).append(eqn)
        depth.update(dict.fromkeys(eqn.outvars, level + is_other))
    parts, reads = [], count_readers(eqns)
    for level, is_other in sorted(groups):
        group = groups[level, is_other]
        parts += [Part(group, False)] if is_other else small_parts(group, reads)
    return parts


def small_parts(eqns: list[Any], reads: Counter[Any]) -> list[Part]:
    """Return parts that are not too long for one function or kernel; `reads` counts the reads of each variable."""
    if len(eqns) <= MOST_EQUATIONS:
        return [Part(eqns, is_worth_it(eqns))]

    def are_kernels(piece: Sequence[Any]) -> bool:
        inside = count_readers(piece)  # unread variables are results of the program
        results = sum(inside[x] < max(reads[x], 1) for eqn in piece for x in eqn.outvars)
        return results <= MOST_RESULTS and is_long_arithmetic(piece)

    parts = []
    for kernels, pieces in groupby(batched(in_order_of_use(eqns), MOST_IN_KERNEL), are_kernels):
        together = [*chain.from_iterable(pieces)]
        if kernels:
            longer = [*batched(together, length_for_threads(together))]
            shorter = batched(together, MOST_IN_KERNEL)
            parts += [
                Part([*piece], False, is_apart=True) for piece in (longer if all(map(are_kernels, longer)) else shorter)
            ]
        else:
            parts += [Part([*piece], is_worth_it(piece)) for piece in batched(together, MOST_EQUATIONS)]
    return parts


def length_for_threads(eqns: Sequence[Any]) -> int:
    """Return how many elementwise equations are one kernel in two threads; `MOST_IN_KERNEL` if that can't be."""
    work = sum(math.prod(eqn.outvars[0].aval.shape) * (1 if eqn.primitive in COUNTED_ONCE else 2) for eqn in eqns)
    count = work // WORK_FOR_THREADS
    if not count or usable_cores() < 2 or len(eqns) > MOST_IN_THREADS * count:
        return MOST_IN_KERNEL
    return math.ceil(len(eqns) / count)


def in_order_of_use(eqns: Sequence[Any]) -> list[Any]:
    """Return equations in an order in which each comes soon before its readers.

    So few values pass from one call to the next.

    Of the operands of an equation the one with the longest chain of equations before it comes first (Sethi and Ullman
    1970).
    """
    makers = {var: eqn for eqn in eqns for var in eqn.outvars}
    operands = {id(eqn): [makers[x] for x in eqn.invars if is_variable(x) and x in makers] for eqn in eqns}
    height: dict[int, int] = {}
    for eqn in eqns:
        height[id(eqn)] = 1 + max((height[id(maker)] for maker in operands[id(eqn)]), default=0)
    ordered: dict[int, Any] = {}
    for last in reversed(eqns):
        waiting = [last]
        while waiting:
            eqn = waiting[-1]
            missing = [maker for maker in operands[id(eqn)] if id(maker) not in ordered]
            if missing:
                waiting += sorted(missing, key=lambda maker: height[id(maker)])
            else:
                ordered.setdefault(id(waiting.pop()), eqn)
    return [*ordered.values()]


def fits_small_call(eqn: Any) -> bool:
    """Return whether an equation may be part of one function: a loop or a branch if all equations inside it may."""
    traits = TRAITS.get(eqn.primitive, Trait.ALONE)
    most = math.inf if Trait.CONTROL_FLOW in traits else MOST_BYTES
    if Trait.ALONE in traits or not all(is_array_up_to(most, atom.aval) for atom in (*eqn.invars, *eqn.outvars)):
        return False
    return all(fits_small_call(inner) for jaxpr in inner_jaxprs(eqn) for inner in jaxpr.eqns)


def is_array_up_to(most: float, aval: Any) -> bool:
    """Return whether an array has at most `most` bytes, and is not empty: the emitter gives an empty one no memory."""
    size = math.prod(aval.shape)
    return isinstance(aval.dtype, np.dtype) and type(size) is int and 0 < size * aval.dtype.itemsize <= most


def is_long_arithmetic(eqns: Iterable[Any]) -> bool:
    """Return whether XLA can vectorize equations, in loops over the elements of their results."""
    return all(
        (Trait.ELEMENTWISE in TRAITS[eqn.primitive] or eqn.primitive is p.broadcast_in_dim_p)
        and all(math.prod(x.aval.shape) >= LEAST_IN_KERNEL for x in eqn.outvars)
        for eqn in eqns
    )


def is_worth_it(eqns: Sequence[Any]) -> bool:
    """Return whether equations are enough for a call of their own."""
    return len(eqns) >= LEAST_EQUATIONS or any(Trait.CONTROL_FLOW in TRAITS[eqn.primitive] for eqn in eqns)


#: What makes XLA's CPU compiler emit a call as one function. Its inliner would dissolve the call before.
ATTRIBUTES = {"inlineable": "false", "xla_cpu_small_call": "true"}
#: From this number of elements on, it is faster to write them to memory than to reduce them in the loop that computes
#: them.
LONG = 64


def with_small_calls(
    program: CallProgram, into_first: bool, split: Callable[[list[Any]], Sequence[Part]] = split_small
) -> CallProgram:
    """Put the small parts of a program into calls, one function each. A witness of these calls is a further result.

    XLA's emitter ends the process at a parameter of such a call that nothing reads. Simplifications of the call's body
    may remove all readers of a parameter, and if an operand is a constant, XLA moves it into the body. Therefore

    - a call also returns a witness: how many of the first elements of all its operands, with the witness of the call
    before, are not
      zero. XLA can't remove a term from a sum that the program returns;
    - the program's constants are constants of the call, and a barrier stands before all its operands: XLA takes none
    for a constant.

    With `into_first` the witness is the last element of the first result, a vector, since each result of a program
    takes 0.7 µs.
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
    """Emit the call of some equations as one function; return their `results`, and the call's witness.

    Parameters
    ----------
    witness
        The witness of the call before, or zero.
    constants
        The values of variables that are constants of the program.
    first
        The one of the results, a vector, whose last element the call's witness is to be, or None: then it is a further
        result. XLA compiles a kernel outside of a call in 7 ms more than the same in the call.
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
    """Return whether it takes long to compute an element of the results from memory; `costly` are such operands."""
    traits = TRAITS[eqn.primitive]
    if Trait.CHEAP in traits:
        return not costly.isdisjoint(filter(is_variable, eqn.invars))
    return Trait.ELEMENTWISE in traits or eqn.primitive in (p.custom_jvp_call_p, p.closed_call_p)


def read_first(b: JaxprBuilder, operands: Sequence[Atom]) -> Atom:
    """Emit the number of arrays whose first element is not zero, as float64: finite, for `jax_debug_nans`."""
    total = b.constant(np.float64(0))
    for x in operands:
        shape, dtype = x.aval.shape, x.aval.dtype
        first = prims.reshape(b, prims.slice_(b, x, [0] * len(shape), [1] * len(shape), [1] * len(shape)), ())
        is_other = prims.ne(b, first, b.constant(np.zeros((), dtype)))
        total = prims.add(b, total, prims.convert(b, is_other, np.dtype("float64")))
    return total
