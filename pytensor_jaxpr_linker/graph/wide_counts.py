"""The pass that computes cumulative sums and products of masks and small integers in 64 bits, as NumPy does.

PyTensor declares the operand's dtype for them, in which they wrap around or are all true, but its Python implementation hands on the array
that NumPy returns. So does this pass: from then on a variable has two forms, a wide one, which the function returns and which Ops read
that take arrays of any dtype, and one of the declared dtype, which all other Ops read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.ops import DeepCopyOp, TypeCastingOp
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import AbstractFunctionGraph
from pytensor.tensor.basic import Alloc, ScalarFromTensor, Split, TensorFromScalar
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp, Repeat, SearchsortedOp, Unique
from pytensor.tensor.math import Argmax, Dot
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.sort import ArgSortOp, SortOp
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor, IncSubtensor, Subtensor

from pytensor_jaxpr_linker.base.array_types import is_tensor
from pytensor_jaxpr_linker.base.pytensor_compat import IfElse, LazyIfElse
from pytensor_jaxpr_linker.base.rules import Table
from pytensor_jaxpr_linker.graph.walk import FindRule, Graph, Operands, Rewrite, made_for, rewritten, toposort


def wide_counts(graph: Graph, find_rule: FindRule) -> Graph:
    """Give cumulative sums and products the dtypes that NumPy gives them."""
    graph = rewritten(graph, find_rule, EAGER)
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
    """Return the choice between counts of both branches of a `LazyIfElse`, whose own outputs have the declared dtypes."""
    branches = (node.op.true_branch.fgraph, node.op.false_branch.fgraph)
    if not any(map(may_be_wide, node.outputs)) or not any(map(has_counts, branches)):
        return None
    condition, *operands = known.node(node).inputs
    values = [v for branch in branches for v in branch.bind(dict(zip(branch.inputs, operands, strict=True)))]
    return IfElse(len(node.outputs)).make_node(condition, *values).outputs


EAGER: Table[Rewrite] = Table({LazyIfElse: both_branches})


def has_counts(fgraph: AbstractFunctionGraph) -> bool:
    """Return whether a graph has cumulative sums or products that NumPy makes wide."""
    return any(isinstance(node.op, CumOp) and may_be_wide(node.inputs[0]) for node in fgraph.apply_nodes)


def declared_outputs(graph: Graph, declared: Sequence[Variable]) -> Graph:
    """Return an inner graph with outputs of the dtypes that `declared` have: loops and branches keep them in arrays of these."""
    if all(map(has_dtype, graph.outputs, declared)):
        return graph
    pairs = zip(graph.outputs, declared, strict=True)
    outputs = [new if has_dtype(new, old) else pt.cast(new, old.type.dtype) for new, old in pairs]
    return Graph(graph.inputs, outputs, toposort(outputs, graph.inputs))


def has_dtype(variable: Variable, other: Variable) -> bool:
    """Return whether a variable has the dtype of another one, or both have none."""
    return getattr(variable.type, "dtype", None) == getattr(other.type, "dtype", None)


def of_wide(node: Apply, operands: Sequence[Variable]) -> Sequence[Variable] | None:
    """Return the outputs of a node for operands of which some are wide, or None if it reads those of the declared dtypes."""
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
    """Return what reduces wide numbers in the accumulator's dtype."""
    (x,), (old,) = operands, node.outputs
    return [pt.cast(node.op(pt.cast(x, node.op.acc_dtype or old.type.dtype)), old.type.dtype)]


def chosen_counts(node: Apply, operands: Sequence[Variable]) -> Sequence[Variable]:
    """Return the choice between two lists of values; of two values, one of which is wide, both are."""
    condition, *values = operands
    count = len(node.outputs)
    dtypes = [np.promote_types(a.type.dtype, b.type.dtype).name for a, b in zip(values, values[count:], strict=False)]
    return node.op.make_node(condition, *map(pt.cast, values, 2 * dtypes)).outputs


def any_dtype(node: Apply, operands: Sequence[Variable]) -> Sequence[Variable]:
    """Return the outputs for operands of any dtype."""
    return node.op.make_node(*operands).outputs


#: How Ops read wide numbers, by class; `any_dtype` where the arrays that an Op makes have its operand's dtype. Other Ops, such as those to which
#: the numbers are lengths, read them where that makes no other dtype.
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
