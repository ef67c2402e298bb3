"""The pass that replaces Ops by simpler ones, which have rules and analyses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.blas.blas_c import CGemv
from pytensor.tensor.blas.gemm import Dot22, Dot22Scalar, Gemm
from pytensor.tensor.blas.gemv import Gemv
from pytensor.tensor.extra_ops import Repeat, Unique
from pytensor.tensor.shape import Shape_i

from pytensor_jaxpr_linker.base.rules import Table
from pytensor_jaxpr_linker.graph.lanes.ops import RepeatCounts, only_output
from pytensor_jaxpr_linker.graph.walk import FindRule, Graph, Operands, Rewrite, made_for, rewritten

#: Gives the outputs of a node in terms of its inputs, or None if this one is not decomposed.
type Decomposition = Callable[[Apply], Sequence[Variable] | None]

DECOMPOSITIONS: Table[Rewrite] = Table()


def decomposes(*op_types: type) -> Callable[[Decomposition], Decomposition]:
    """Register the decorated function for Ops."""

    def register(simpler: Decomposition) -> Decomposition:
        @wraps(simpler)
        def rewrite(known: Operands, node: Apply) -> Sequence[Variable]:
            copied = known.node(node)
            return made_for(node, copied.inputs, lambda: simpler(copied) or copied.outputs)

        for op_type in op_types:
            DECOMPOSITIONS[op_type] = rewrite
        return simpler

    return register


def decompose(graph: Graph, find_rule: FindRule) -> Graph:
    """Replace the Ops that have a decomposition."""
    return rewritten(graph, find_rule, DECOMPOSITIONS)


@decomposes(Unique)
def unique(node: Apply) -> list[Variable] | None:
    """Sort; the first of each run of equal elements stays, selected by a mask, and NaN equals NaN (`numpy.unique`)."""
    op, (x,) = node.op, node.inputs
    if (op.axis is not None and x.type.ndim > 1) or x.type.dtype.startswith("complex"):
        return None
    x = pt.flatten(x)
    order = pt.argsort(x, kind="stable")
    ordered, place = x[order], pt.arange(x.shape[0])
    is_first = pt.eq(pt.searchsorted(ordered, ordered), place)
    results = [ordered[is_first]]
    if op.return_index:
        results.append(order[is_first])
    if op.return_inverse:
        results.append(pt.zeros_like(order)[order].set(pt.cumsum(is_first.astype("int64")) - 1))
    if op.return_counts:
        results.append((pt.searchsorted(ordered, ordered, side="right") - place)[is_first])
    return results


@decomposes(Repeat)
def repeat(node: Apply) -> list[Variable] | None:
    """Take the element that each place of the result comes from, so that a program depends on the result's length only."""
    axis, (x, repeats) = node.op.axis, node.inputs
    if isinstance(repeats, Constant):
        return None
    counts = only_output(RepeatCounts(), repeats, only_output(Shape_i(axis), x))
    origin = pt.searchsorted(pt.cumsum(counts), pt.arange(pt.sum(counts)), side="right")
    return [pt.take(x, origin, axis=axis)]


# Rewrites for the C backend make the Ops of BLAS. Mode JAXPR leaves these rewrites out, but a graph may contain the Ops.


@decomposes(Dot22, Dot22Scalar)
def dot22(node: Apply) -> list[Variable]:
    """The product of two matrices, and perhaps a number."""
    x, y, *factor = node.inputs
    return [pt.mul(pt.dot(x, y), *factor)]


@decomposes(Gemm, Gemv, CGemv)
def scaled_sum_with_product(node: Apply) -> list[Variable]:
    """``beta * z + alpha * x @ y``; where `beta` is 0, `z` is not read."""
    z, alpha, x, y, beta = node.inputs
    return [pt.switch(pt.eq(beta, 0), 0, pt.mul(beta, z)) + pt.mul(alpha, pt.dot(x, y))]
