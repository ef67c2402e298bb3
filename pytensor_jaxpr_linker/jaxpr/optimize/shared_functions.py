"""Functions that are computed once for several results.

- ``where(c, f(x), f(y))`` becomes ``f(where(c, x, y))``, to the last bit. The log density of a Bernoulli variable
chooses
  between the softplus of a logit and of its negation, which differ in one cheap term. And XLA's library for sums takes
  functions along with a sum, but no choices.
- The sigmoids of an array and of its negation, and its softplus, share one exponential. The log density of a Bernoulli
  variable has ``softplus(x)``, and its gradient has ``sigmoid(x)`` and ``sigmoid(-x)``. XLA computes an exponential for
  each. All three follow from ``exp(-|x|)``, which never overflows.
- A special function of several small arrays is one call on all their elements. The log density of a
  Dirichlet-multinomial has `gammaln` of five arrays, and each is 170 equations: XLA compiles its body for each shape,
  and a body for a single number has no vectors. So arrays whose functions can be computed at the same time are
  concatenated, and the results are slices.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import COMMUTATIVE, Atom, JaxprBuilder, is_variable, live_equations
from pytensor_jaxpr_linker.jaxpr.optimize.small_calls import MOST_BYTES, is_array_up_to
from pytensor_jaxpr_linker.jaxpr.passes import count_readers, replace_equations
from pytensor_jaxpr_linker.jaxpr.signs import is_never_negative
from pytensor_jaxpr_linker.jaxpr.traits import ELEMENTWISE_PRIMITIVES


def is_choice(eqn: Any, b: JaxprBuilder) -> bool:
    """Return whether an equation is a choice between arrays."""
    return eqn.primitive is p.select_n_p


def choose_operands(eqns: list[Any], b: JaxprBuilder) -> list[Any]:
    """Rewrite choices between results that nothing else reads."""
    readers = count_readers(eqns, b.outputs)
    read_once = {
        x: eqn for eqn in eqns for x in eqn.outvars if readers[x] == 1 and eqn.primitive in ELEMENTWISE_PRIMITIVES
    }
    return replace_equations(eqns, b, is_choice, partial(choice_of_operands, read_once))


def choice_of_operands(read_once: dict[Atom, Any], b: JaxprBuilder, choice: Any) -> Atom | None:
    """Emit a choice of operands and the functions of it; None if the alternatives have no function in common.

    `read_once` has the equations of results with one reader, by their results, and gets the new ones.
    """
    condition, *alternatives = choice.invars
    functions: list[tuple[Any, int]] = []
    while found := common_function(*map(read_once.get, filter(is_variable, alternatives))):
        eqn, position, alternatives = found
        functions.append((eqn, position))
    if not functions:
        return None
    on_false, on_true = alternatives
    x = prims.select(b, condition, on_true, on_false)
    for eqn, position in reversed(functions):
        b.at_names_of(eqn)
        operands = [x if i == position else other for i, other in enumerate(eqn.invars)]
        (x,) = b.bind_many(eqn.primitive, operands, [var.aval for var in eqn.outvars], eqn.params)
    read_once.update((new, eqn) for eqn in b.eqns for new in eqn.outvars)
    read_once[choice.outvars[0]] = b.eqns[-1]
    return x


def common_function(*alternatives: Any) -> tuple[Any, int, list[Atom]] | None:
    """Return one of two equations, the position of their only different operand, and that operand of each; or None."""
    if len(alternatives) != 2 or None in alternatives:
        return None
    first, second = alternatives
    if first.primitive is not second.primitive or first.params != second.params:
        return None
    orders = [second.invars, second.invars[::-1]] if first.primitive in COMMUTATIVE else [second.invars]
    for operands in orders:
        differing = [i for i, (x, y) in enumerate(zip(first.invars, operands, strict=True)) if x is not y]
        if len(differing) == 1:
            i = differing[0]
            x, y = first.invars[i], operands[i]
            if x.aval.shape == y.aval.shape == first.outvars[0].aval.shape and x.aval.dtype == y.aval.dtype:
                return first, i, [x, y]
    return None


#: The bytes of the largest array that shares an exponential.
#:
#: XLA keeps an exponential in memory that several kernels share. Arrays of 8 MB are new memory in each call, which
#: costs more than it saves: 1,000,000 numbers take 1.3 times as long on one core, 300,000 take 0.7. Two sigmoids that
#: are each read once share theirs at any length: one kernel reads both.
MOST_SHARED = 2**22

#: Functions that are computed before a broadcast.
BEFORE_BROADCASTS = frozenset({p.abs_p, p.exp_p, p.log1p_p, p.logistic_p, p.neg_p})


def is_sigmoid(eqn: Any, b: JaxprBuilder) -> bool:
    """Return whether an equation is a sigmoid."""
    return eqn.primitive is p.logistic_p


def share_exponentials(eqns: list[Any], b: JaxprBuilder) -> list[Any]:
    """Rewrite sigmoids that can share their exponential."""
    eqns = before_broadcasts(eqns, b)
    defined = {eqn.outvars[0]: eqn for eqn in eqns if eqn.primitive in (p.neg_p, p.abs_p)}
    read_once = {x for x, count in count_readers(eqns).items() if count == 1}.difference(filter(is_variable, b.outputs))
    arguments = {eqn.outvars[0]: exponential_argument(eqn, defined, read_once) for eqn in eqns if eqn.outvars}
    counts = Counter(x for x in arguments.values() if x is not None)
    exponentials: dict[Atom, Atom] = {}
    pairs: dict[Atom, tuple[Atom, Atom]] = {}
    renamed: dict[Atom, Atom] = {}

    def shares(eqn: Any, b: JaxprBuilder) -> bool:
        return bool(eqn.outvars) and counts[arguments[eqn.outvars[0]]] > 1

    def replace(b: JaxprBuilder, eqn: Any) -> Atom | None:
        (out,) = eqn.outvars
        x: Atom = arguments[out]
        if eqn.primitive is p.exp_p:
            renamed[out] = exponentials.setdefault(x, out)
            return None
        if x not in exponentials:
            exponentials[x] = prims.exp(b, prims.neg(b, prims.abs_(b, x)))
        if x not in pairs:
            pairs[x] = sigmoids(b, exponentials[x])
        compare = prims.ge if eqn.invars[0] is x else prims.le
        return prims.select(b, compare(b, x, b.constant(0, out.aval.dtype)), *pairs[x])

    return live_equations(replace_equations(eqns, b, shares, replace, renamed), b.outputs)[0]


def before_broadcasts(eqns: Sequence[Any], b: JaxprBuilder) -> list[Any]:
    """Return equations that compute the functions of a softplus or a sigmoid before they broadcast.

    PyMC's gradient adds an axis to ``-x`` before it takes the sigmoid; or `x` is a column, and the log density reads
    its vector. A column is a broadcast of its vector.
    """
    smaller: dict[Atom, tuple[Atom, Sequence[int]]] = {}
    result: list[Any] = []
    for eqn in squeezed_early(eqns):
        if eqn.primitive in BEFORE_BROADCASTS and is_variable(eqn.invars[0]) and eqn.invars[0] in smaller:
            x, dimensions = smaller[eqn.invars[0]]
            b.restart(eqn)
            result_aval = eqn.outvars[0].aval
            value = b.bind(eqn.primitive, (x,), x.aval.shape, result_aval.dtype, eqn.params)
            prims.broadcast_in_dim(b, value, result_aval.shape, dimensions)
            *before, eqn = b.ending_in(eqn.outvars)
            result += before
        if eqn.primitive is p.broadcast_in_dim_p:
            smaller[eqn.outvars[0]] = eqn.invars[0], eqn.params["broadcast_dimensions"]
        elif eqn.primitive is p.squeeze_p:
            kept = [i for i in range(len(eqn.invars[0].aval.shape)) if i not in eqn.params["dimensions"]]
            smaller.setdefault(eqn.invars[0], (eqn.outvars[0], kept))
        result.append(eqn)
    return result


def squeezed_early(eqns: Sequence[Any]) -> Iterator[Any]:
    """Yield equations in an order in which each vector of a column comes before all other readers of the column."""
    squeezes: dict[Atom, list[Any]] = defaultdict(list)
    for eqn in eqns:
        if eqn.primitive is p.squeeze_p:
            squeezes[eqn.invars[0]].append(eqn)
    made = {x for eqn in eqns for x in eqn.outvars}
    waiting = [eqn for x in squeezes if x not in made for eqn in squeezes[x]]
    for eqn in [*waiting, *(eqn for eqn in eqns if eqn.primitive is not p.squeeze_p)]:
        stack = [eqn]
        while stack:
            yield (first := stack.pop())
            stack += [squeeze for x in first.outvars for squeeze in squeezes.get(x, ())]


def exponential_argument(eqn: Any, defined: Mapping[Atom, Any], read_once: Container[Atom]) -> Atom | None:
    """Return `x` of a ``sigmoid(x)``, ``sigmoid(-x)`` or ``exp(-|x|)`` that may share an exponential, else None.

    Parameters
    ----------
    defined
        The equations of negations and absolute values, by their results.
    read_once
        The variables that one equation reads, once, and that the Jaxpr does not return.
    """
    if eqn.primitive not in (p.logistic_p, p.exp_p):
        return None
    (operand,), is_sigmoid = eqn.invars, eqn.primitive is p.logistic_p
    if not is_variable(operand) or not ((is_sigmoid and eqn.outvars[0] in read_once) or may_share(operand.aval)):
        return None
    inner = defined.get(operand)
    negated = inner.invars[0] if inner is not None and inner.primitive is p.neg_p else None
    if is_sigmoid:
        return operand if negated is None else negated
    size = defined.get(negated)
    return size.invars[0] if size is not None and size.primitive is p.abs_p else None


def may_share(aval: Any) -> bool:
    """Return whether the shape of an array is known, and it has at most `MOST_SHARED` bytes."""
    return all(type(n) is int for n in aval.shape) and aval.size * aval.dtype.itemsize <= MOST_SHARED


def sigmoids(b: JaxprBuilder, exponential: Atom) -> tuple[Atom, Atom]:
    """Emit the sigmoids of ``|x|`` and ``-|x|`` from ``exp(-|x|)``."""
    one = b.constant(1, exponential.aval.dtype)
    larger = prims.div(b, one, prims.add(b, exponential, one))
    return larger, prims.mul(b, exponential, larger)


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
            result += joined_call(b, members)
    return result


def levels_and_groups(eqns: Sequence[Any], b: JaxprBuilder) -> tuple[dict[int, int], dict[tuple, list[Any]]]:
    """Return the levels of equations, by their ids, and groups of calls that can be joined.

    The level of an equation is the number of calls of functions that come one after the other before it. No call of a
    group needs another of the same level. So all calls of a level can come after all other equations of this level.
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


def joined_call(b: JaxprBuilder, members: Sequence[Any]) -> list[Any]:
    """Return the equations of one call for several, between barriers: XLA fuses it with no reader."""
    b.restart(members[0])
    operands = []
    for position, first in enumerate(members[0].invars):
        flat = [prims.reshape(b, eqn.invars[position], (eqn.outvars[0].aval.size,)) for eqn in members]
        (whole,) = prims.barrier(b, [prims.concatenate(b, flat, 0)])
        if is_never_negative(b, first):
            b.never_negative.add(whole)
        operands.append(whole)
    (results,) = prims.barrier(b, [b.functions[id(members[0].params["call_jaxpr"])].emit(b, *operands)])
    eqns = b.eqns
    ends = accumulate((eqn.outvars[0].aval.size for eqn in members), initial=0)
    for eqn, (start, stop) in zip(members, pairwise(ends), strict=True):
        b.restart(eqn)
        prims.reshape(b, prims.slice_(b, results, (start,), (stop,), (1,)), eqn.outvars[0].aval.shape)
        eqns += b.ending_in(eqn.outvars)
    return eqns
