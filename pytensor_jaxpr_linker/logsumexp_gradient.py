"""Gradients of sums of exponentials without the term through the maximum, which is zero. Uses no JAX.

PyTensor computes ``logsumexp(x)`` as ``log(sum(exp(x - m))) + m`` with the maximum `m`, on which the result does not depend. Its pullback
follows `m` all the same: each element is compared with it, and selects a difference that is 0 but for rounding.
"""

from __future__ import annotations

from typing import Any

from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import optdb
from pytensor.gradient import grad
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.scalar.basic import Maximum
from pytensor.tensor.math import Max
from pytensor.tensor.special import LogAddExp, LogSumExp

#: The name of the rewrite.
FIXED_MAXIMA = "jaxpr_fixed_maxima"


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
    known = dict(zip(inner.outputs, [cotangent], strict=True))
    found: Any = grad(None, inner.inputs, known_grads=known, consider_constant=maxima)
    return clone_replace(found, dict(zip(inner.inputs, node.inputs, strict=True)), rebuild_strict=False)


def is_maximum(op: object) -> bool:
    """Tell whether an Op returns the maximum along axes or of several arrays."""
    return isinstance(op, Max) or isinstance(getattr(op, "scalar_op", None), Maximum)


if FIXED_MAXIMA not in optdb:  # a reloaded module registers once
    optdb.register(FIXED_MAXIMA, dfs_rewriter(fix_maxima), position=-0.02)  # before `inline_ofg_expansion`
