"""Which equations of a program run together as one function, see `small_calls`: the parts of its Jaxpr."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import batched, chain, groupby
from math import ceil, inf, prod
from typing import Any, NamedTuple

import numpy as np
from jax import lax
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.base.platforms import usable_cores
from pytensor_jaxpr_linker.jaxpr.builder import is_variable
from pytensor_jaxpr_linker.jaxpr.traits import TRAITS, Trait, having

#: Equations on larger arrays stay outside: XLA vectorizes their kernels better, and runs them in threads.
MOST_BYTES = 2**13
#: A call of fewer equations costs more than it saves: its operands and results pass through memory. With 4, `latent_gp` took 47.0 instead of 44.9 µs.
LEAST_EQUATIONS = 12
#: LLVM's time grows faster than the length of a function: more equations than these are several calls.
MOST_EQUATIONS = 256
#: XLA makes few kernels of elementwise equations, whose loops LLVM vectorizes. In more equations than these it takes longer: 2,000 on vectors of 100 compiled in
#: 0.6 of the time of functions, and ran in 0.8; with 128 or 256 in 0.85, and all in one kernel took three times as long to compile.
MOST_IN_KERNEL = 64
#: XLA runs a kernel in two threads from so many operations on; an expensive one counts twice (`parallel_task_assignment.cc`). 2,000 equations on vectors of 100 are one kernel then, and
#: take 0.65 of the time on two cores; they compile in 2.4 s instead of 0.5, as long as if XLA chose the kernels. More equations than these would take too long.
WORK_FOR_THREADS, MOST_IN_THREADS = 200_000, 2048
#: What XLA counts as one operation for each element.
COUNTED_ONCE = having(Trait.CHEAP) | {p.div_p, p.rem_p}
#: Kernels of single numbers have no vectors, and for more results there are more kernels: a recursion of 300 scalar equations with its derivative took twice as long as
#: in functions, a sum of forty terms with its derivative 1.4 times as long.
LEAST_IN_KERNEL, MOST_RESULTS = 8, 4


class Part(NamedTuple):
    """Equations of a Jaxpr that can run one after the other, whether they are one function, and whether XLA is to keep them apart from later ones."""

    eqns: list[Any]
    is_small: bool
    is_apart: bool = False


def split_small(eqns: Sequence[Any]) -> list[Part]:
    """Return the parts of a list of equations, in an order in which they can run.

    The small equations between the same other equations are one part: those before which as many others have to run.
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
    parts, reads = [], reads_in(eqns)
    for level, is_other in sorted(groups):
        group = groups[level, is_other]
        parts += [Part(group, False)] if is_other else small_parts(group, reads)
    return parts


def small_parts(eqns: list[Any], reads: Counter[Any]) -> list[Part]:
    """Return small equations as parts that are not too long for one function or kernel; `reads` is how often the program reads each variable."""
    if len(eqns) <= MOST_EQUATIONS:
        return [Part(eqns, is_worth_it(eqns))]

    def are_kernels(piece: Sequence[Any]) -> bool:
        inside = reads_in(piece)  # what no equation reads is a result of the program
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
    """Return how many elementwise equations are one kernel: as many as XLA needs to run it in two threads, if it can, else `MOST_IN_KERNEL`."""
    work = sum(prod(eqn.outvars[0].aval.shape) * (1 if eqn.primitive in COUNTED_ONCE else 2) for eqn in eqns)
    count = work // WORK_FOR_THREADS
    if not count or usable_cores() < 2 or len(eqns) > MOST_IN_THREADS * count:
        return MOST_IN_KERNEL
    return ceil(len(eqns) / count)


def reads_in(eqns: Iterable[Any]) -> Counter[Any]:
    """Return how often equations read each variable."""
    return Counter(x for eqn in eqns for x in eqn.invars if is_variable(x))


def in_order_of_use(eqns: Sequence[Any]) -> list[Any]:
    """Return equations in an order in which each comes soon before those that read it: few values pass from one call to the next.

    Of the operands of an equation the one with the longest chain of equations before it comes first (Sethi and Ullman 1970).
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
    most = inf if Trait.CONTROL_FLOW in traits else MOST_BYTES
    if Trait.ALONE in traits or not all(is_array_up_to(most, atom.aval) for atom in (*eqn.invars, *eqn.outvars)):
        return False
    return all(fits_small_call(inner) for jaxpr in jax_compat.inner_jaxprs(eqn) for inner in jaxpr.eqns)


def is_array_up_to(most: float, aval: Any) -> bool:
    """Return whether an array has at most so many bytes, and is not empty: the emitter gives an empty one no memory."""
    size = prod(aval.shape)
    return isinstance(aval.dtype, np.dtype) and type(size) is int and 0 < size * aval.dtype.itemsize <= most


def is_long_arithmetic(eqns: Iterable[Any]) -> bool:
    """Return whether XLA can compute equations in loops over the elements of their results, several elements at a time."""
    return all(
        (Trait.ELEMENTWISE in TRAITS[eqn.primitive] or eqn.primitive is p.broadcast_in_dim_p)
        and all(prod(x.aval.shape) >= LEAST_IN_KERNEL for x in eqn.outvars)
        for eqn in eqns
    )


def is_worth_it(eqns: Sequence[Any]) -> bool:
    """Return whether equations are enough for a call of their own."""
    return len(eqns) >= LEAST_EQUATIONS or any(Trait.CONTROL_FLOW in TRAITS[eqn.primitive] for eqn in eqns)
