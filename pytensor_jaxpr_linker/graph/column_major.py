"""The passes that lay matrices of many rows in column-major order, where only products with vectors read them.

XLA's CPU compiler computes the product of a matrix and a vector with eight rows of the matrix at a time. If these are long, a processor reads eight streams of numbers, and
adds vectors of them: a product of 1,000,000 x 50 numbers takes 14 ms on one core, where the same in row-major order takes 25 to 28, and 5 columns of 10,000 rows half as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.link.basic import Container
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Shape, Shape_i

from pytensor_jaxpr_linker.base.array_types import array_key, copy_matrix, in_memory_order
from pytensor_jaxpr_linker.graph.made_constants import shared
from pytensor_jaxpr_linker.graph.walk import (
    FindRule,
    Graph,
    Readers,
    is_transpose,
    made_for,
    readers_of,
    with_other_operands,
)

#: Matrices of fewer bytes take the same time in either order.
LEAST_BYTES = 2**18
#: A matrix has long columns if they have so many times the numbers of a row. A square one takes the same time in either order.
LONG_COLUMNS = 8
#: A constant in another order is a copy: more bytes than these stay as they are.
MOST_COPIED_BYTES = 2**30


def is_large_matrix(value: Any) -> bool:
    """Return whether a value is a matrix of real numbers of at least `LEAST_BYTES`."""
    return isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype.kind == "f" and value.nbytes >= LEAST_BYTES


def gains(value: Any) -> bool:
    """Return whether products of a matrix with vectors are faster in column-major order than in row-major order."""
    return is_large_matrix(value) and len(value) >= LONG_COLUMNS * value.shape[1] and value.shape[1] > 1


# -- which matrices ------------------------------------------------------------------------------------------------------


def is_only_multiplied(matrix: Variable, graph: Graph, readers: Readers) -> bool:
    """Return whether what reads a matrix are its products, or those of its transpose, with vectors; its shape may be read as well."""
    found = list(readers_through_transposes(matrix, graph, readers))
    others = [node for node, read in found if node is None or not is_product_with_vector(node, read)]
    return len(others) < len(found) and all(
        node is not None and isinstance(node.op, Shape | Shape_i) for node in others
    )


def readers_through_transposes(
    matrix: Variable, graph: Graph, readers: Readers
) -> Iterator[tuple[Apply | None, Variable]]:
    """Yield each reader of a matrix, or of its transposes, and which of these it reads. The reader of an output is None."""
    if matrix in graph.outputs:
        yield None, matrix
    for node in readers.get(matrix, ()):
        if is_transpose(node):
            yield from readers_through_transposes(node.outputs[0], graph, readers)
        else:
            yield node, matrix


def is_product_with_vector(node: Apply, matrix: Variable) -> bool:
    """Return whether a node multiplies a matrix and a single column, or a single row and a matrix."""
    if not isinstance(node.op, Dot):
        return False
    x, y = node.inputs
    return (x is matrix and y.type.broadcastable[-1:] == (True,)) or (
        y is matrix and x.type.broadcastable[:1] == (True,)
    )


# -- constants -----------------------------------------------------------------------------------------------------------


def reads_gaining_constant(node: Apply, find_rule: FindRule) -> bool:
    """Return whether a node reads a constant matrix of many rows, or a view of one."""
    matrices = [v.data for v in node.inputs if isinstance(v, Constant) and is_large_matrix(v.data)]
    return any(gains(in_memory_order(matrix)[0]) for matrix in matrices)


def lay_constants(graph: Graph, find_rule: FindRule) -> Graph:
    """Lay the constant matrices of a graph in column-major order that gain by it."""
    readers = readers_of(graph)
    # PyTensor folds the transpose of a constant into a second constant: both are views of one array.
    views: dict[tuple, list[Constant]] = {}
    for variable in readers:
        if isinstance(variable, Constant) and is_large_matrix(variable.data):
            views.setdefault(array_key(in_memory_order(variable.data)[0]), []).append(variable)
    found = [
        constants
        for constants in views.values()
        if gains(base := in_memory_order(constants[0].data)[0])
        and base.nbytes <= MOST_COPIED_BYTES
        and all(is_only_multiplied(v, graph, readers) for v in constants)
    ]
    if not found:
        return graph
    replaced: dict[Variable, Variable] = {
        old: new for constants in found for old, new in in_column_major_order(constants)
    }
    return with_other_operands(graph, find_rule, lambda _: replaced)


def in_column_major_order(constants: Sequence[Constant]) -> Iterator[tuple[Constant, Constant]]:
    """Yield constants that are views of one array, and the same as views of one in column-major order."""
    base, _ = in_memory_order(constants[0].data)
    made = np.empty(base.shape[::-1], base.dtype)
    copy_matrix(made, base.T)
    made = shared(("column-major", *array_key(base)), made)
    for constant in constants:
        _, order = in_memory_order(constant.data)
        yield constant, type(constant)(constant.type, made.T.transpose(np.argsort(order)), name=constant.name)


# -- inputs --------------------------------------------------------------------------------------------------------------


def lay_inputs(graph: Graph, find_rule: FindRule, candidates: Sequence[int]) -> Graph:
    """Let a graph take the transposes of shared variables instead, if only products with vectors read them.

    The transpose of a matrix in column-major order is an array in row-major order, which is what XLA takes.

    Parameters
    ----------
    candidates
        The positions of the shared variables that may lie in column-major order.
    """
    readers = readers_of(graph)
    found = [i for i in candidates if is_only_multiplied(graph.inputs[i], graph, readers)]
    if not found:
        return graph
    inputs = [*graph.inputs]
    replaced = {}
    for i in found:
        old = inputs[i]
        new = inputs[i] = transpose_of(old)
        (replaced[old],) = made_for(readers[old][0], [new], new.transpose().owner.outputs.copy)
        replaced[old].name = old.name
    return with_other_operands(graph._replace(inputs=inputs), find_rule, lambda _: replaced)


def transpose_of(shared: Any) -> Any:
    """Return a shared variable that stands for the transpose of one. It holds no value: the function that takes it looks into the other one."""
    type_ = shared.type.clone(shape=shared.type.shape[::-1])
    container = Container(type_, [None])
    return type(shared)(type=type_, value=None, strict=None, container=container, name=f"{shared.name or 'matrix'}.T")
