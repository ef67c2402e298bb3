"""Graphs as the analysis wants them: without Ops that only wrap others. Uses no JAX."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import NamedTuple

from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import DeepCopyOp, TypeCastingOp
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import AbstractFunctionGraph, FrozenFunctionGraph, FunctionGraph
from pytensor.scalar.basic import ScalarOp
from pytensor.scan.op import Scan
from pytensor.tensor.basic import ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import Elemwise

from pytensor_jaxpr_linker.base.gc_pause import gc_paused
from pytensor_jaxpr_linker.base.pytensor_compat import IfElse, LazyIfElse
from pytensor_jaxpr_linker.base.rules import Rule
from pytensor_jaxpr_linker.graph.counted_loops import with_counts
from pytensor_jaxpr_linker.graph.decompose import with_simpler_ops
from pytensor_jaxpr_linker.graph.facts import SHAPE_READERS
from pytensor_jaxpr_linker.graph.lanes.with_lanes import with_known_sizes
from pytensor_jaxpr_linker.graph.rewire import rewired

#: Ops that compute a number of numbers, at no cost.
ARITHMETIC = (DeepCopyOp, Elemwise, ScalarFromTensor, ScalarOp, TensorFromScalar, TypeCastingOp)


class Graph(NamedTuple):
    """Inputs, outputs, and nodes in topological order."""

    inputs: list[Variable]
    outputs: list[Variable]
    nodes: list[Apply]


@gc_paused()
def inline(fgraph: AbstractFunctionGraph, find_rule: Callable[[Apply], Rule | None]) -> Graph:
    """Return a graph in which each `OpFromGraph` without a rule is its inner graph, and few sizes depend on values."""

    def is_inlined(node: Apply) -> bool:
        return isinstance(node.op, OpFromGraph) and find_rule(node) is None

    inputs, outputs = list(fgraph.inputs), list(fgraph.outputs)
    if isinstance(fgraph, FrozenFunctionGraph):  # its nodes can't be copied one by one
        outputs = fgraph.bind(inputs)
    is_ordered = isinstance(fgraph, FunctionGraph) and fgraph.orderings()
    nodes = list(fgraph.toposort()) if is_ordered else toposort(outputs, inputs)
    outputs, nodes = inlined(inputs, outputs, nodes, is_inlined)
    # PyTensor imports it, and SciPy's sparse matrices, when it is first used.
    if "pytensor.sparse.math" in sys.modules and (lower := sparse_lowering()) is not None:
        outputs, nodes = lower(inputs, outputs, nodes)
    outputs, nodes = with_simpler_ops(inputs, outputs, nodes)
    if has_op(nodes, LazyIfElse):
        outputs, nodes = with_eager_numbers(inputs, outputs, nodes)
    if has_op(nodes, Scan):
        outputs, nodes = with_counts(inputs, outputs, nodes, find_rule)
    sized = with_known_sizes(inputs, outputs, nodes, find_rule)
    if sized is not outputs:
        outputs, nodes = sized, toposort(sized, inputs)
    return Graph(inputs, outputs, nodes)


@cache
def sparse_lowering() -> Callable | None:
    """Return the pass that replaces sparse matrices by arrays.

    None for a PyTensor, such as 3.3.0, that has other names for the Ops: there they run on the host.
    """
    if not hasattr(sys.modules["pytensor.sparse.math"], "AddSparseDense"):
        return None
    from pytensor_jaxpr_linker.graph.sparse import basic, lowering, math  # noqa: F401

    return lowering.with_arrays_for_sparse


def inlined(
    inputs: list[Variable], outputs: list[Variable], nodes: list[Apply], is_inlined: Callable[[Apply], bool]
) -> tuple[list[Variable], list[Apply]]:
    """Return outputs and nodes of a graph in which each `OpFromGraph` that `is_inlined` is its inner graph."""
    while has_op(nodes, OpFromGraph) and any(map(is_inlined, nodes)):
        # `bind` copies: the graph that the user's other functions share is left as it is.
        replaced: dict[Variable, Variable] = {}
        for node in nodes:
            if is_inlined(node):
                operands = [replaced.get(v, v) for v in node.inputs]
                results = node.op.fgraph.bind(dict(zip(node.op.fgraph.inputs, operands, strict=True)))
                for result, output in zip(results, node.outputs, strict=True):
                    if result.name is None and result.owner is not None:
                        result.name = output.name
            elif (copied := rewired(node, replaced)) is node:
                continue
            else:
                results = copied.outputs
            replaced.update(zip(node.outputs, results, strict=True))
        outputs = [replaced.get(v, v) for v in outputs]
        nodes = toposort(outputs, inputs)
    return outputs, nodes


def toposort(outputs: Iterable[Variable], inputs: Iterable[Variable]) -> list[Apply]:
    """Return the nodes between inputs and outputs, each behind those that it reads, as `pytensor.graph.traversal.toposort` does.

    It takes half of the time: ordering was a tenth of all that is done to get from a large graph to a Jaxpr.
    """
    computed, nodes, stack = set(inputs), [], list(outputs)
    while stack:
        variable = stack[-1]
        node = variable.owner
        if node is None or variable in computed:
            stack.pop()
        elif missing := [v for v in node.inputs if v not in computed and v.owner is not None]:
            stack += missing
        else:
            nodes.append(node)
            computed.update(node.outputs)
            stack.pop()
    return nodes


def has_op(nodes: Sequence[Apply], op_type: type) -> bool:
    """Tell whether a node has an Op of a class."""
    return any(issubclass(found, op_type) for found in {type(node.op) for node in nodes})


def with_eager_numbers(
    inputs: list[Variable], outputs: list[Variable], nodes: list[Apply]
) -> tuple[list[Variable], list[Apply]]:
    """Return outputs and nodes of a graph in which no `LazyIfElse` computes an integer that follows by arithmetic.

    Such integers are the lengths of what an `IfElse` returns, mostly. Computed before the choice, `facts` sees when they are
    known.
    """
    replaced: dict[Variable, Variable] = {}
    for node in nodes:
        copied = rewired(node, replaced)
        if copied is not node:
            replaced.update(zip(node.outputs, copied.outputs, strict=True))
        if isinstance(node.op, LazyIfElse):
            branches = (node.op.true_branch.fgraph, node.op.false_branch.fgraph)
            for i, output in enumerate(node.outputs):
                if getattr(output.type, "ndim", None) == 0 and all(
                    is_arithmetic(branch.outputs[i]) for branch in branches
                ):
                    condition, *operands = copied.inputs
                    pair = [branch.bind(dict(zip(branch.inputs, operands, strict=True)))[i] for branch in branches]
                    replaced[output] = IfElse(1)(condition, *pair)  # type: ignore[assignment]
    if not replaced:
        return outputs, nodes
    outputs = [replaced.get(v, v) for v in outputs]
    return outputs, toposort(outputs, inputs)


def is_arithmetic(variable: Variable) -> bool:
    """Tell whether a variable is an integer that follows from shapes and other integers by arithmetic."""
    integer = getattr(variable.type, "dtype", "").startswith(("int", "uint", "bool"))
    if not integer or variable.type.ndim != 0:
        return False
    node = variable.owner
    if node is None or isinstance(node.op, SHAPE_READERS):
        return True
    return isinstance(node.op, ARITHMETIC) and all(map(is_arithmetic, node.inputs))
