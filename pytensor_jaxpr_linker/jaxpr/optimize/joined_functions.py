"""One special function of several small arrays, as one call on all their elements.

The log density of a Dirichlet-multinomial has `gammaln` of five arrays, and each is 170 equations: XLA compiles its body for each shape, and a body for a single number
has no vectors. So arrays for which a function can be computed at the same time are concatenated before, and the results are slices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, ElementwiseFunction, JaxprBuilder, is_variable
from pytensor_jaxpr_linker.jaxpr.optimize.small_parts import MOST_BYTES, is_array_up_to
from pytensor_jaxpr_linker.jaxpr.signs import is_never_negative


def join_functions(eqns: list[Any], b: JaxprBuilder) -> list[Any]:
    """Compute each special function of several small arrays in one call."""
    levels, groups = levels_and_groups(eqns, b)
    joined = {id(eqn): members for group in groups.values() for members in in_small_arrays(group) for eqn in members}
    if not any(len(members) > 1 for members in joined.values()):
        return eqns
    result: list[Any] = []
    for eqn in sorted(eqns, key=lambda eqn: (levels[id(eqn)], id(eqn) in joined)):
        members = joined.get(id(eqn), [eqn])
        if len(members) == 1:
            result.append(eqn)
        elif eqn is members[0]:
            result += joined_call(b, members, b.functions[id(eqn.params["call_jaxpr"])])
    return result


def levels_and_groups(eqns: Sequence[Any], b: JaxprBuilder) -> tuple[dict[int, int], dict[tuple, list[Any]]]:
    """Return how many calls of functions come one after the other before each equation, by its id, and the calls that can be joined.

    No call of a group needs another of the same level. So all calls of a level can come after all other equations of this level.
    """
    depth: dict[Atom, int] = {}
    levels: dict[int, int] = {}
    groups: dict[tuple, list[Any]] = defaultdict(list)
    for eqn in eqns:
        level = levels[id(eqn)] = max((depth.get(x, 0) for x in eqn.invars if is_variable(x)), default=0)
        is_call = may_join(eqn, b)
        depth.update(dict.fromkeys(eqn.outvars, level + is_call))
        if is_call:
            operands = [(x.aval.dtype, is_never_negative(b, x)) for x in eqn.invars]
            groups[level, b.functions[id(eqn.params["call_jaxpr"])].key, *operands].append(eqn)
    return levels, groups


def may_join(eqn: Any, b: JaxprBuilder) -> bool:
    """Return whether an equation computes a special function of small arrays of one shape."""
    if eqn.primitive is not p.custom_jvp_call_p or id(eqn.params["call_jaxpr"]) not in b.functions:
        return False
    (result,) = eqn.outvars
    return is_array_up_to(MOST_BYTES, result.aval) and all(x.aval.shape == result.aval.shape for x in eqn.invars)


def in_small_arrays(group: Sequence[Any]) -> list[list[Any]]:
    """Divide calls so that all results of a part fit into one small array, the largest first."""
    parts: list[list[Any]] = []
    left: list[int] = []
    for eqn in sorted(group, key=lambda eqn: -eqn.outvars[0].aval.size):
        aval = eqn.outvars[0].aval
        size = aval.size * aval.dtype.itemsize
        place = next((i for i, free in enumerate(left) if size <= free), len(parts))
        if place == len(parts):
            parts.append([])
            left.append(MOST_BYTES)
        parts[place].append(eqn)
        left[place] -= size
    return parts


def joined_call(b: JaxprBuilder, members: Sequence[Any], function: ElementwiseFunction) -> list[Any]:
    """Return the equations of one call for several. XLA computes neither operands nor results where they are read, element by element."""
    b.restart(members[0])
    operands = []
    for position, first in enumerate(members[0].invars):
        flat = [prims.reshape(b, eqn.invars[position], (eqn.outvars[0].aval.size,)) for eqn in members]
        (whole,) = prims.barrier(b, [prims.concatenate(b, flat, 0)])
        if is_never_negative(b, first):
            b.never_negative.add(whole)
        operands.append(whole)
    (results,) = prims.barrier(b, [function.emit(b, *operands)])
    eqns = b.eqns
    ends = accumulate((eqn.outvars[0].aval.size for eqn in members), initial=0)
    for eqn, (start, stop) in zip(members, pairwise(ends), strict=True):
        b.restart(eqn)
        prims.reshape(b, prims.slice_(b, results, (start,), (stop,), (1,)), eqn.outvars[0].aval.shape)
        eqns += b.ending_in(eqn.outvars)
    return eqns
