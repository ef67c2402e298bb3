"""Passes that replace Ops by simpler ones, which have rules and analyses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import DeepCopyOp, TypeCastingOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import AbstractFunctionGraph
from pytensor.scalar.basic import ScalarOp
from pytensor.tensor.basic import Alloc, ScalarFromTensor, Split, TensorFromScalar
from pytensor.tensor.blas.blas_c import CGemv
from pytensor.tensor.blas.gemm import Dot22, Dot22Scalar, Gemm
from pytensor.tensor.blas.gemv import Gemv
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp, Repeat, SearchsortedOp, Unique
from pytensor.tensor.math import Argmax, Dot
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.shape import Reshape, Shape_i, SpecifyShape
from pytensor.tensor.sort import ArgSortOp, SortOp
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor, IncSubtensor, Subtensor

from pytensor_jaxpr_linker.base.array_types import is_tensor
from pytensor_jaxpr_linker.base.pytensor_compat import IfElse, LazyIfElse
from pytensor_jaxpr_linker.base.rules import Table
from pytensor_jaxpr_linker.graph.facts import SHAPE_READERS
from pytensor_jaxpr_linker.graph.lanes.ops import RepeatCounts, only_output
from pytensor_jaxpr_linker.graph.walk import FindRule, Graph, Operands, Rewrite, made_for, rewritten, toposort

# -- inner graphs ------------------------------------------------------------------------------------------------------


def inline(graph: Graph, find_rule: FindRule) -> Graph:
    """Replace each `OpFromGraph` without a rule, at any depth."""
    return rewritten(graph, find_rule, INNER_GRAPHS)


def inner_graph(known: Operands, node: Apply) -> list[Variable] | None:
    """Return the outputs of the inner graph on the operands of the node."""
    if known.find_rule(node) is not None:
        return None
    inner, operands = node.op.fgraph, [known.variable(v) for v in node.inputs]
    # `bind` copies: the user's other functions may share the graph.
    results = made_for(node, operands, lambda: inner.bind(dict(zip(inner.inputs, operands, strict=True))))
    if any(isinstance(found.op, OpFromGraph) for found in inner.apply_nodes):
        return inline(Graph(operands, results, toposort(results, operands)), known.find_rule).outputs
    return results


INNER_GRAPHS: Table[Rewrite] = Table({OpFromGraph: inner_graph})


# -- Ops in terms of others --------------------------------------------------------------------------------------------

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
    """Take the element for each place of the result, so that a program depends on the result's length only."""
    axis, (x, repeats) = node.op.axis, node.inputs
    if isinstance(repeats, Constant):
        return None
    counts = only_output(RepeatCounts(), repeats, only_output(Shape_i(axis), x))
    origin = pt.searchsorted(pt.cumsum(counts), pt.arange(pt.sum(counts)), side="right")
    return [pt.take(x, origin, axis=axis)]


# Rewrites for the C backend make the Ops of BLAS. Mode JAXPR leaves these rewrites out, but a graph may contain the
# Ops.


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


# -- numbers that both branches of a conditional compute ---------------------------------------------------------------

#: Ops that compute numbers from numbers at no cost.
ARITHMETIC = (DeepCopyOp, Elemwise, ScalarFromTensor, ScalarOp, TensorFromScalar, TypeCastingOp)


def choice_of_numbers(known: Operands, node: Apply) -> list[Variable]:
    """Return the outputs of a `LazyIfElse`, with an `IfElse` for integers that both branches compute by arithmetic.

    Most are lengths of the conditional's arrays. The analysis then sees when each of them is known.
    """
    copied = known.node(node)
    condition, *operands = copied.inputs
    branches = (node.op.true_branch.fgraph, node.op.false_branch.fgraph)
    results = list(copied.outputs)
    for i, output in enumerate(node.outputs):
        if getattr(output.type, "ndim", None) == 0 and all(is_arithmetic(branch.outputs[i]) for branch in branches):
            pair = [branch.bind(dict(zip(branch.inputs, operands, strict=True)))[i] for branch in branches]
            results[i] = IfElse(1)(condition, *pair)  # type: ignore[assignment]
    return results


NUMBERS_OF_BRANCHES: Table[Rewrite] = Table({LazyIfElse: choice_of_numbers})


def is_arithmetic(variable: Variable) -> bool:
    """Return whether a variable is an integer that follows from shapes and other integers by arithmetic."""
    integer = getattr(variable.type, "dtype", "").startswith(("int", "uint", "bool"))
    if not integer or variable.type.ndim != 0:
        return False
    node = variable.owner
    if node is None or isinstance(node.op, SHAPE_READERS):
        return True
    return isinstance(node.op, ARITHMETIC) and all(map(is_arithmetic, node.inputs))


# -- counts in 64 bits -------------------------------------------------------------------------------------------------

# PyTensor declares the operand's dtype for cumulative sums and products of masks and small integers. In this dtype they
# wrap around or are all true, but PyTensor's Python implementation hands on the array of 64 bits that NumPy returns. So
# does this pass: from then on a variable has two forms. The function returns the wide one, and Ops read it that take
# arrays of any dtype. All other Ops read the one of the declared dtype.


def wide_counts(graph: Graph, find_rule: FindRule) -> Graph:
    """Give cumulative sums and products the dtypes that NumPy gives them."""
    graph = rewritten(graph, find_rule, COUNTS_OF_BRANCHES)
    if CumOp not in graph.op_types:
        return graph
    known, wide = Operands(graph, find_rule), dict[Variable, Variable]()
    for node in graph.nodes:
        operands = [wide.get(v, known.variable(v)) for v in node.inputs]
        results: Sequence[Variable] = known.node(node).outputs
        if isinstance(node.op, CumOp) or not wide.keys().isdisjoint(node.inputs):
            results = made_for(node, operands, lambda: of_wide(node, operands) or results)  # noqa: B023
        for old, new in zip(node.outputs, results, strict=True):
            if not has_dtype(new, old):
                wide[old], new = new, pt.cast(new, old.type.dtype)
            known.define(old, new)
    outputs = [wide.get(v, known.variable(v)) for v in graph.outputs]
    return Graph(graph.inputs, outputs, toposort(outputs, graph.inputs)) if wide else graph


def both_branches(known: Operands, node: Apply) -> Sequence[Variable] | None:
    """Return the choice between counts of both branches of a `LazyIfElse`, whose outputs have declared dtypes."""
    branches = (node.op.true_branch.fgraph, node.op.false_branch.fgraph)
    if not any(map(may_be_wide, node.outputs)) or not any(map(has_counts, branches)):
        return None
    condition, *operands = known.node(node).inputs
    values = [v for branch in branches for v in branch.bind(dict(zip(branch.inputs, operands, strict=True)))]
    return IfElse(len(node.outputs)).make_node(condition, *values).outputs


COUNTS_OF_BRANCHES: Table[Rewrite] = Table({LazyIfElse: both_branches})


def has_counts(fgraph: AbstractFunctionGraph) -> bool:
    """Return whether a graph has cumulative sums or products that NumPy makes wide."""
    return any(isinstance(node.op, CumOp) and may_be_wide(node.inputs[0]) for node in fgraph.apply_nodes)


def declared_outputs(graph: Graph, declared: Sequence[Variable]) -> Graph:
    """Return an inner graph with outputs of the dtypes of `declared`: loops and branches keep arrays of these."""
    if all(map(has_dtype, graph.outputs, declared)):
        return graph
    pairs = zip(graph.outputs, declared, strict=True)
    outputs = [new if has_dtype(new, old) else pt.cast(new, old.type.dtype) for new, old in pairs]
    return Graph(graph.inputs, outputs, toposort(outputs, graph.inputs))


def has_dtype(variable: Variable, other: Variable) -> bool:
    """Return whether a variable has the dtype of another one, or both have none."""
    return getattr(variable.type, "dtype", None) == getattr(other.type, "dtype", None)


def of_wide(node: Apply, operands: Sequence[Variable]) -> Sequence[Variable] | None:
    """Return the outputs of a node with wide operands, or None if it reads operands of the declared dtypes."""
    make = READERS.of(type(node.op))
    try:
        results = (make or any_dtype)(node, operands)
    except (TypeError, ValueError, NotImplementedError):  # the Op does not take these dtypes together
        return None
    return results if make or all(map(has_dtype, results, node.outputs)) else None


def cumulated_counts(node: Apply, operands: Sequence[Variable]) -> Sequence[Variable]:
    """Return cumulative sums or products of integers in 64 bits."""
    (x,) = operands
    return [node.op(pt.cast(x, wide_dtype(x.type.dtype)))]


@cache
def wide_dtype(dtype: str) -> str:
    """Return the dtype of NumPy's cumulative sums of a dtype."""
    return np.cumsum(np.zeros(0, dtype)).dtype.name


def may_be_wide(variable: Variable) -> bool:
    """Return whether an update may have stored counts of another dtype in a shared variable than it declares."""
    if not is_tensor(variable.type):
        return False
    dtype = variable.type.dtype
    return dtype.startswith(("bool", "int", "uint")) and wide_dtype(dtype) != dtype


def elementwise_counts(node: Apply, operands: Sequence[Variable]) -> Sequence[Variable]:
    """Return the results of wide numbers in the declared dtypes, as `Elemwise.perform` does."""
    results = Elemwise(node.op.scalar_op).make_node(*operands).outputs
    return [pt.cast(new, old.type.dtype) for new, old in zip(results, node.outputs, strict=True)]


def reduced_counts(node: Apply, operands: Sequence[Variable]) -> Sequence[Variable]:
    """Return the reduction of wide numbers in the accumulator's dtype."""
    (x,), (old,) = operands, node.outputs
    return [pt.cast(node.op(pt.cast(x, node.op.acc_dtype or old.type.dtype)), old.type.dtype)]


def chosen_counts(node: Apply, operands: Sequence[Variable]) -> Sequence[Variable]:
    """Return the choice between two lists of values. Where one of two values is wide, both are made wide."""
    condition, *values = operands
    count = len(node.outputs)
    dtypes = [np.promote_types(a.type.dtype, b.type.dtype).name for a, b in zip(values, values[count:], strict=False)]
    return node.op.make_node(condition, *map(pt.cast, values, 2 * dtypes)).outputs


def any_dtype(node: Apply, operands: Sequence[Variable]) -> Sequence[Variable]:
    """Return the outputs for operands of any dtype."""
    return node.op.make_node(*operands).outputs


#: How Ops read wide numbers, by class; `any_dtype` where the arrays that an Op makes have its operand's dtype. Other
#: Ops, for example with lengths as operands, read them where that makes no other dtype.
READERS: Table[Callable[[Apply, Sequence[Variable]], Sequence[Variable]]] = Table(
    {
        CAReduce: reduced_counts,
        CumOp: cumulated_counts,
        Elemwise: elementwise_counts,
        IfElse: chosen_counts,
        **dict.fromkeys(
            (AdvancedIncSubtensor, AdvancedSubtensor, Alloc, Argmax, ArgSortOp, DeepCopyOp, DimShuffle, Dot), any_dtype
        ),
        **dict.fromkeys(
            (IncSubtensor, JoinDims, Repeat, Reshape, ScalarFromTensor, SearchsortedOp, SortOp, SpecifyShape), any_dtype
        ),
        **dict.fromkeys((Split, SplitDims, Subtensor, TensorFromScalar, TypeCastingOp, Unique), any_dtype),
    }
)
