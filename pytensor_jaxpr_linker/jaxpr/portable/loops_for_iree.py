"""Loops and branches in a form that IREE's compiler gets through.

Two faults of IREE 3.13 are avoided. It crashes, or complains about "region branch points", on a loop that carries a value which the body does not
read. So here the condition is part of the body, the loop carries its outcome, and each step may keep the old value of what it does not read: it
never does, but the compiler can't know. And it can't order what is between several loops ("circular dependency") unless a barrier is before each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax.extend.core import Var

from pytensor_jaxpr_linker.base.jax_compat import scan_counts
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.nested import nested
from pytensor_jaxpr_linker.jaxpr.portable.arrays import Array


def while_with_outcome(params: Mapping[str, Any], *operands: Array) -> list[Array]:
    """A loop that carries whether it goes on."""
    b, atoms = operands[0].b, behind_barrier(operands)
    tests, count = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    of_test, of_body, carry = atoms[:tests], atoms[tests:count], atoms[count:]
    (going,) = b.inline(params["cond_jaxpr"], [*of_test, *carry])
    initial = [going, b.constant(np.int32(0)), *carry]
    body, read, (still, i, *old), passed = nested(b, [*of_test, *of_body], initial)
    new = body.inline(params["body_jaxpr"], [*read[tests:], *old])
    new = kept_before_zero(body, i, old, new)
    (more,) = body.inline(params["cond_jaxpr"], [*read[:tests], *new])
    step = body.build([prims.and_(body, still, more), next_number(body, i), *new])
    condition, (goes_on, *_) = b.sub_jaxpr([x.aval for x in initial])
    results = prims.while_loop(b, condition.build([goes_on]), [], step, passed, initial)[2:]
    return [Array(b, x) for x in results]


def counted_scan(params: Mapping[str, Any], *operands: Array) -> list[Array]:
    """A loop of known length that counts its steps."""
    b, atoms = operands[0].b, behind_barrier(operands)
    count, carried = scan_counts(params)
    consts, carry, xs = atoms[:count], atoms[count : count + carried], atoms[count + carried :]
    initial = [b.constant(np.int32(0)), *carry]
    rows = [b.aval(x.aval.shape[1:], x.aval.dtype) for x in xs]
    body, inputs = b.sub_jaxpr([x.aval for x in (*consts, *initial)] + rows)
    i, old = inputs[count], inputs[count + 1 : count + 1 + carried]
    found = body.inline(params["jaxpr"], [*inputs[:count], *old, *inputs[count + 1 + carried :]])
    new = kept_before_zero(body, i, old, found[:carried])
    done = body.build([next_number(body, i), *new, *found[carried:]])
    how = params["length"], params["unroll"], params["reverse"]
    return [Array(b, x) for x in prims.scan(b, done, consts, initial, xs, *how)[1:]]


def branches_behind_barrier(params: Mapping[str, Any], *operands: Array) -> list[Array]:
    """Branches of what a barrier hands on."""
    b, (index, *atoms) = operands[0].b, behind_barrier(operands)
    avals = params["branches"][0].out_avals
    return [Array(b, x) for x in prims.cond(b, index, params["branches"], atoms, avals)]


def behind_barrier(operands: Sequence[Array]) -> list[Atom]:
    """Return operands that pass a barrier; literals need none."""
    b = operands[0].b
    passed = list(dict.fromkeys(x.atom for x in operands if isinstance(x.atom, Var)))
    after = dict(zip(passed, prims.barrier(b, passed), strict=True))
    return [after[x.atom] if isinstance(x.atom, Var) else x.atom for x in operands]


def kept_before_zero(b: JaxprBuilder, i: Atom, old: Sequence[Atom], new: Sequence[Atom]) -> list[Atom]:
    """Return new values; those that replace what no equation reads are the old ones as long as the number of the step is less than 0."""
    read = {x for eqn in b.eqns for x in eqn.invars if isinstance(x, Var)}
    is_early = prims.lt(b, i, b.constant(np.int32(0)))
    return [y if x in read or x is y else prims.select(b, is_early, x, y) for x, y in zip(old, new, strict=True)]


def next_number(b: JaxprBuilder, i: Atom) -> Atom:
    """Return the number of the next step."""
    return prims.add(b, i, b.constant(np.int32(1)))
