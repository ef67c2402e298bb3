"""Drops the term through the maximum, which is zero, from gradients of sums of exponentials.

PyTensor computes ``logsumexp(x)`` as ``log(sum(exp(x - m))) + m`` with the maximum `m`, on which the result does not depend. Its pullback
follows `m` all the same: each element is compared with it, and selects a difference that is 0 but for rounding.
"""

from __future__ import annotations

from typing import Any

from pytensor.compile.builders import OpFromGraph
from pytensor.gradient import grad
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FrozenFunctionGraph, FunctionGraph
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.scalar.basic import Maximum, Sub, Switch
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Max, exp
from pytensor.tensor.special import LogAddExp, LogSumExp, Softmax

#: The names of the rewrites.
FIXED_MAXIMA, PLAIN_RATIOS = "jaxpr_fixed_maxima", "jaxpr_plain_ratios"


@node_rewriter([OpFromGraph])
def fix_maxima(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace PyTensor's own pullback of ``logsumexp`` or ``logaddexp`` by the same with the maximum held fixed."""
    for v in node.inputs:
        of = v.owner
        if of is None or type(of.op) not in (LogSumExp, LogAddExp) or node.inputs[:-1] != [*of.inputs, v]:
            continue
        cotangent = node.inputs[-1]
        found = of.op.pullback(of.inputs, of.outputs, [cotangent])
        if all(g.owner is not None and g.owner.op == node.op for g in found):
            return pullback_at_fixed_maxima(of, cotangent)
    return None


def pullback_at_fixed_maxima(node: Apply, cotangent: Variable) -> list[Variable]:
    """Return the cotangents of a node's inputs, by its inner graph, in which maxima are taken for constants."""
    inner = node.op.fgraph.unfreeze()
    maxima = [v.out for v in inner.apply_nodes if is_maximum(v.op)]
    of_inner = cotangent.type()
    known = dict(zip(inner.outputs, [of_inner], strict=True))
    found: Any = grad(None, inner.inputs, known_grads=known, consider_constant=maxima)
    pullback = FrozenFunctionGraph.from_io([*inner.inputs, of_inner], found)
    return pullback.bind([*node.inputs, cotangent])  # `clone_replace` would copy all that they are computed from


def is_maximum(op: object) -> bool:
    """Return whether an Op returns the maximum along axes or of several arrays."""
    return isinstance(op, Max) or isinstance(getattr(op, "scalar_op", None), Maximum)


@node_rewriter([Softmax])
def undo_softmax(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Undo what PyTensor makes of ``exp(z) / sum(exp(z))`` if `z` has its maximum subtracted already.

    That is the gradient of ``logsumexp``, which has a value where `Softmax` has none: of no elements, and beside an infinite one.
    """
    (z,) = node.inputs
    if not is_below_maximum(z):
        return None
    e: Any = exp(z)
    return [e / e.sum(axis=node.op.axis, keepdims=True)]


def is_below_maximum(z: Variable) -> bool:
    """Return whether a variable is ``x - m`` as ``logsumexp`` computes it: `m` is the maximum of `x`, or 0 where that is infinite."""
    match z.owner_op_and_inputs:
        case Elemwise(Sub()), x, shift:
            pass
        case _:
            return False
    match shift.owner_op_and_inputs:
        case Elemwise(Switch()), _, _, top:
            pass
        case _:
            return False
    match top.owner_op_and_inputs:
        case DimShuffle(), kept:
            top = kept
    return top.owner is not None and isinstance(top.owner.op, Max) and top.owner.op.initial and top.owner.inputs == [x]
