"""Loops over arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import INT32
from pytensor_jaxpr_linker.jaxpr.nested import nested
from pytensor_jaxpr_linker.jaxpr.portable.arrays import Array

#: Takes the number of the step, the carry, and what the loop reads; returns the next carry.
type LoopStep = Callable[[Array, Sequence[Array], Sequence[Array]], Sequence[Array]]


def for_each(count: int, step: LoopStep, carry: Sequence[Array], read: Sequence[Array] = ()) -> list[Array]:
    """Return the carry after steps 0, 1, ..., ``count - 1``."""
    b = carry[0].b
    if not count:
        return list(carry)
    start = b.constant(np.int32(0))
    body, inner, (i, *old), passed = nested(b, [x.atom for x in read], [start, *[x.atom for x in carry]])
    new = step(Array(body, i), [Array(body, x) for x in old], [Array(body, x) for x in inner])
    following = prims.add(body, i, body.constant(np.int32(1)))
    done = body.build([following, *[x.atom for x in new]])
    return [Array(b, x) for x in prims.scan(b, done, passed, [start, *[x.atom for x in carry]], [], count)[1:]]


def repeat_while(
    going: Array, limit: int, step: LoopStep, carry: Sequence[Array], read: Sequence[Array] = ()
) -> list[Array]:
    """Return the carry after steps as long as the first of what a step returns, a boolean scalar, is true, and at most `limit` of them.

    `going` says whether there is a first step. Returns the carry without the boolean.
    """
    b = going.b
    initial = [b.constant(np.int32(0)), going.atom, *[x.atom for x in carry]]
    body, inner, (i, was_going, *old), passed = nested(b, [x.atom for x in read], initial)
    more, *new = step(Array(body, i), [Array(body, x) for x in old], [Array(body, x) for x in inner])
    following = prims.add(body, i, body.constant(np.int32(1)))
    # IREE's compiler mixes up the carry of a loop if the body reads a part of it nowhere.
    still = prims.and_(body, was_going, more.atom)
    done = body.build([following, still, *[x.atom for x in new]])
    condition, atoms = b.sub_jaxpr([x.aval for x in initial])
    below = prims.lt(condition, atoms[0], condition.constant(np.asarray(limit, INT32)))
    goes_on = condition.build([prims.and_(condition, atoms[1], below)])
    return [Array(b, x) for x in prims.while_loop(b, goes_on, [], done, passed, initial)[2:]]
