"""The pass that multiplies a matrix by a vector instead of by an outer product: ``A @ (u @ v.T)`` is ``(A @ u) @ v.T``.

PyTensor's gradient of a Cholesky factor ``L`` computes ``L.T @ G`` and reads its lower triangle (I. Murray,
Differentiation of the Cholesky decomposition, 2016). Where ``L`` solves a system with one right-hand side, ``G`` is
``tril(u @ v.T) + diag(d)``. As ``L.T`` is upper triangular, `tril` makes no difference to the lower triangle of the
product, which then takes n^2 operations instead of n^3. The two triangular systems of the gradient take n^3 each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import chain
from math import prod
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scalar.basic import Add, Mul, Neg, Sub
from pytensor.tensor.basic import AllocDiag, ExtractDiag
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.math import Dot

from pytensor_jaxpr_linker.base.rules import Table
from pytensor_jaxpr_linker.graph.walk import Graph, Operands, Rewrite, is_transpose, made_for

#: Which axes of a matrix have length 1, by its type.
NEITHER, LAST, FIRST, BOTH = (False, False), (False, True), (True, False), (True, True)


class Summand(NamedTuple):
    """One matrix of a sum: an outer product, or a diagonal matrix."""

    columns: Sequence[Variable]  #: the factors of the column of an outer product; a diagonal matrix has none
    rows: Sequence[Variable]  #: the factors of its row, or the diagonal
    scale: float
    is_triangular: bool  #: whether the outer product stands for its lower triangle

    @property
    def factors(self) -> list[Variable]:
        """The variables that the summand is made of."""
        return [*self.columns, *self.rows]


def product_with_outer(known: Operands, node: Apply) -> list[Variable] | None:
    """Return the product of a matrix with a sum of outer products and diagonal matrices, or None for other products."""
    matrix, other = node.inputs
    dtype = node.outputs[0].type.dtype
    if not dtype.startswith("float") or matrix.type.dtype != dtype or matrix.type.ndim != 2:
        return None
    found = list(summands_of(other, 1.0))
    summands = [summand for summand in found if summand is not None]
    if len(summands) < len(found) or any(v.type.dtype != dtype for summand in summands for v in summand.factors):
        return None
    is_lower = any(summand.is_triangular for summand in summands)
    if is_lower and not (is_upper_triangular(matrix) and reads_only(node.outputs[0], "lower", known.graph)):
        return None
    left = known.variable(matrix)
    summands = [
        summand._replace(columns=[*map(known.variable, summand.columns)], rows=[*map(known.variable, summand.rows)])
        for summand in summands
    ]
    operands = [left, *chain(*(summand.factors for summand in summands))]
    product, *diagonal = made_for(node, operands, lambda: product_and_diagonal(left, summands, is_lower))
    if diagonal:
        known.noted[node.outputs[0]] = diagonal[0]
    return [product]


def product_and_diagonal(matrix: Variable, summands: Sequence[Summand], is_lower: bool) -> list[Variable]:
    """Return the product of a matrix with a sum, or its lower triangle; and its diagonal if it must be square."""
    pairs: list[tuple[Any, Any]] = [
        (
            pt.dot(matrix, pt.mul(*summand.columns)) if summand.columns else matrix,
            pt.mul(*summand.rows, np.asarray(summand.scale, matrix.type.dtype)),
        )
        for summand in summands
    ]
    product: Any = reduce(pt.add, (left * row for left, row in pairs))
    if is_lower:
        product = with_zeros_above(product)
    rows, columns = product.type.shape
    if rows is None or rows != columns:
        return [product]
    diagonals = (left[:, 0] * row[0] if left is not matrix else pt.diagonal(matrix) * row for left, row in pairs)
    return [product, reduce(pt.add, diagonals)]


def with_zeros_above(matrix: Variable) -> Variable:
    """Return a square matrix with zeros above the diagonal. It chooses them, for zero times infinity is NaN."""
    place = pt.arange(matrix.type.shape[1])
    return pt.switch(place[:, None] >= place, matrix, np.zeros((), matrix.type.dtype))


def diagonal_of_product(known: Operands, node: Apply) -> list[Variable] | None:
    """Return the diagonal of a product that was replaced, for which XLA need not compute the product once more."""
    diagonal = known.noted.get(node.inputs[0])
    return None if diagonal is None or node.op.offset else [diagonal]


#: They multiply matrices by the columns of outer products, and the result by their rows.
OUTER_PRODUCTS: Table[Rewrite] = Table({Dot: product_with_outer, ExtractDiag: diagonal_of_product})


# -- which matrices are sums of outer products -------------------------------------------------------------------------


def summands_of(matrix: Variable, scale: float) -> Iterator[Summand | None]:
    """Yield the summands of a matrix times a number, and None for one that is neither an outer product nor diagonal."""
    node = matrix.owner
    if node is None or matrix.type.broadcastable != NEITHER:
        yield None
    elif isinstance(node.op, AllocDiag) and node.op.offset == 0 and node.inputs[0].type.ndim == 1:
        yield Summand([], node.inputs, scale, is_triangular=False)
    elif applies(node, Add):
        for addend in node.inputs:
            yield from summands_of(addend, scale)
    elif applies(node, Sub):
        yield from summands_of(node.inputs[0], scale)
        yield from summands_of(node.inputs[1], -scale)
    elif applies(node, Neg):
        yield from summands_of(node.inputs[0], -scale)
    else:
        yield outer_product(matrix, scale)


def outer_product(matrix: Variable, scale: float) -> Summand | None:
    """Return a matrix as a summand if its factors are columns, rows, numbers, and lower triangular constants."""
    factors = list(factors_of(matrix))
    columns = [v for v in factors if v.type.broadcastable == LAST]
    rows = [v for v in factors if v.type.broadcastable in (FIRST, BOTH)]
    others = [v for v in factors if v.type.broadcastable == NEITHER]
    masks = [factor_of_mask(v) for v in others]
    if not columns or not any(v.type.broadcastable == FIRST for v in rows) or None in masks:
        return None
    # The product that replaces this one does not compare the lengths of the mask and the factors.
    lengths = {v.type.shape[0] for v in columns} | {v.type.shape[1] for v in rows if v.type.broadcastable == FIRST}
    if masks and None in lengths:
        return None
    return Summand(columns, rows, scale * prod(mask for mask in masks if mask is not None), is_triangular=bool(masks))


def factors_of(matrix: Variable) -> Iterator[Variable]:
    """Yield the factors of an elementwise product, and the column and row of a product of these."""
    node = matrix.owner
    is_matrix = node is not None and matrix.type.broadcastable == NEITHER
    if is_matrix and applies(node, Mul):
        for factor in node.inputs:
            yield from factors_of(factor)
    elif is_matrix and isinstance(node.op, Dot) and node.inputs[0].type.broadcastable == LAST:
        yield from node.inputs
    else:
        yield matrix


def factor_of_mask(matrix: Variable) -> float | None:
    """Return the number on and below the diagonal of a constant with zeros above it; None for other matrices."""
    if not isinstance(matrix, Constant) or matrix.data.shape[0] != matrix.data.shape[1] or matrix.data.size == 0:
        return None
    factor = matrix.data[0, 0]
    return float(factor) if np.array_equal(matrix.data, np.where(np.tri(len(matrix.data)), factor, 0)) else None


def applies(node: Apply, scalar_type: type) -> bool:
    """Return whether a node applies a scalar Op of a class elementwise."""
    return isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, scalar_type)


# -- triangles ---------------------------------------------------------------------------------------------------------


def is_upper_triangular(matrix: Variable) -> bool:
    """Return whether a matrix is an upper Cholesky factor, or the transpose of a lower one."""
    node, is_lower = matrix.owner, False
    if node is not None and is_transpose(node):
        node, is_lower = node.inputs[0].owner, True
    return node is not None and isinstance(node.op, Cholesky) and node.op.lower is is_lower


def reads_only(matrix: Variable, triangle: str, graph: Graph) -> bool:
    """Return whether all readers of a matrix read one triangle of it, "lower" or "upper", and its diagonal."""
    return matrix not in graph.outputs and all(
        reads_triangle(node, triangle, graph) for node in graph.readers.get(matrix, ())
    )


def reads_triangle(node: Apply, triangle: str, graph: Graph) -> bool:
    """Return whether a node reads one triangle: the diagonal, or a product with zeros in the other triangle."""
    if isinstance(node.op, ExtractDiag):
        return node.op.offset == 0
    if is_transpose(node):
        return reads_only(node.outputs[0], "upper" if triangle == "lower" else "lower", graph)
    return applies(node, Mul) and any(is_zero_outside(triangle, v) for v in node.inputs)


def is_zero_outside(triangle: str, matrix: Variable) -> bool:
    """Return whether a matrix is a constant that is zero outside a triangle and the diagonal."""
    if not isinstance(matrix, Constant) or matrix.type.broadcastable != NEITHER:
        return False
    outside = np.triu(matrix.data, 1) if triangle == "lower" else np.tril(matrix.data, -1)
    return not outside.any()
