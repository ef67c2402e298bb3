"""The sigmoids of an array and of its negation, and its softplus, from one exponential.

The log density of a Bernoulli variable has ``softplus(x)``, and its gradient has ``sigmoid(x)`` and ``sigmoid(-x)``. XLA computes an exponential for each of
them. All three follow from ``exp(-|x|)``, which never overflows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, is_variable, live_equations
from pytensor_jaxpr_linker.jaxpr.optimize.barriers import count_readers
from pytensor_jaxpr_linker.jaxpr.optimize.equations import replace_equations

#: The bytes of the largest array. XLA keeps an exponential in memory that several kernels share. Arrays of 8 MB are new memory in each call, which costs more than that saves:
#: 1,000,000 numbers take 1.3 times as long on one core, 300,000 take 0.7. Two sigmoids that are each read once share theirs at any length: one kernel reads both.
MOST_SHARED = 2**22

#: What is computed before a broadcast.
BEFORE_BROADCASTS = {
    p.abs_p: prims.abs_,
    p.exp_p: prims.exp,
    p.log1p_p: prims.log1p,
    p.logistic_p: prims.logistic,
    p.neg_p: prims.neg,
}


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
    """Return equations that compute functions before they broadcast, as the softplus and the sigmoid of an array, and what these are made of.

    PyMC's gradient adds an axis to ``-x`` before it takes the sigmoid; or `x` is a column, of which the log density takes a vector. A column is a broadcast of its vector.
    """
    smaller: dict[Atom, tuple[Atom, Sequence[int]]] = {}
    result: list[Any] = []
    for eqn in squeezed_early(eqns):
        emit = BEFORE_BROADCASTS.get(eqn.primitive)
        if emit is not None and is_variable(eqn.invars[0]) and eqn.invars[0] in smaller:
            x, dimensions = smaller[eqn.invars[0]]
            b.restart(eqn)
            prims.broadcast_in_dim(b, emit(b, x), eqn.outvars[0].aval.shape, dimensions)
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
    """Yield equations in an order in which each vector of a column comes before what else reads the column."""
    squeezes: dict[Atom, list[Any]] = {}
    for eqn in eqns:
        if eqn.primitive is p.squeeze_p:
            squeezes.setdefault(eqn.invars[0], []).append(eqn)
    made = {x for eqn in eqns for x in eqn.outvars}
    waiting = [eqn for x in squeezes if x not in made for eqn in squeezes[x]]
    for eqn in [*waiting, *(eqn for eqn in eqns if eqn.primitive is not p.squeeze_p)]:
        stack = [eqn]
        while stack:
            yield (first := stack.pop())
            stack += [squeeze for x in first.outvars for squeeze in squeezes.get(x, ())]


def exponential_argument(eqn: Any, defined: Mapping[Atom, Any], read_once: Container[Atom]) -> Atom | None:
    """Return `x` if an equation is ``sigmoid(x)``, ``sigmoid(-x)`` or ``exp(-|x|)`` and may share an exponential, else None.

    Parameters
    ----------
    defined
        The equations of negations and absolute values, by their results.
    read_once
        The variables that one equation reads, once, and that are no results.
    """
    if eqn.primitive not in (p.logistic_p, p.exp_p):
        return None
    (operand,) = eqn.invars
    is_read_once = eqn.primitive is p.logistic_p and eqn.outvars[0] in read_once
    if not is_variable(operand) or not (is_read_once or may_share(operand.aval)):
        return None
    inner = defined.get(operand)
    if eqn.primitive is p.logistic_p:
        return inner.invars[0] if inner is not None and inner.primitive is p.neg_p else operand
    size = defined.get(inner.invars[0]) if inner is not None and inner.primitive is p.neg_p else None
    return size.invars[0] if size is not None and size.primitive is p.abs_p else None


def may_share(aval: Any) -> bool:
    """Return whether an array of a known shape has at most `MOST_SHARED`."""
    return all(type(n) is int for n in aval.shape) and aval.size * aval.dtype.itemsize <= MOST_SHARED


def sigmoids(b: JaxprBuilder, exponential: Atom) -> tuple[Atom, Atom]:
    """Emit the sigmoids of ``|x|`` and ``-|x|`` from ``exp(-|x|)``."""
    one = b.constant(1, exponential.aval.dtype)
    larger = prims.div(b, one, prims.add(b, exponential, one))
    return larger, prims.mul(b, exponential, larger)
