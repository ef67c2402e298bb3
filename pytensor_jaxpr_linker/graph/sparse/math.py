"""Lowerings of the Ops of `pytensor.sparse.math`, and of the Ops that PyTensor's rewrites make from them."""

from __future__ import annotations

from dataclasses import replace

import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.scalar.basic import upcast

from pytensor_jaxpr_linker.graph.sparse.lowering import SparseOperands, is_sparse, lowers
from pytensor_jaxpr_linker.graph.sparse.matrix import (
    Matrix,
    Tensor,
    axis_length,
    compressed_index,
    dense,
    elements,
    expect_equal,
    expect_length,
    fold,
    joined_blocks,
    of_dense,
    sorted_places,
    sum_at,
    take_at,
)
from pytensor_jaxpr_linker.graph.sparse.pairs import constant_product
from pytensor_jaxpr_linker.graph.sparse.products import column_product, product, sampled_product

# -- products ----------------------------------------------------------------------------------------------------------


def any_product(known: SparseOperands, x: Tensor, y: Tensor, dtype: str) -> Tensor:
    """Return the dense product of two matrices of which at least one is sparse."""
    if not is_sparse(x):
        return column_product(known.variable(x), known.matrix(y), dtype)
    if is_sparse(y) and (found := constant_product(known.matrix(x), known.matrix(y), dtype, "csr")) is not None:
        return dense(found)
    return product(known.matrix(x), dense(known.matrix(y)) if is_sparse(y) else known.variable(y), dtype)


@lowers("math.Dot")
def dot(known: SparseOperands, node: Apply) -> Tensor:
    """Return a dense product."""
    return any_product(known, node.inputs[0], node.inputs[1], node.outputs[0].type.dtype)


@lowers("math.StructuredDot")
def structured_dot(known: SparseOperands, node: Apply) -> Tensor | Matrix | None:
    """Return a dense product, or a sparse one if the places of all entries are constants."""
    return sparse_dot(known, node) if is_sparse(node.outputs[0]) else dot(known, node)


def sparse_dot(known: SparseOperands, node: Apply) -> Matrix | None:
    """Return the sparse product of two sparse matrices, if the places of their entries are constants."""
    type = node.outputs[0].type
    x, y = map(known.matrix, node.inputs)
    return constant_product(x, y, type.dtype, type.format)


@lowers("math.TrueDot")
def true_dot(known: SparseOperands, node: Apply) -> Matrix | None:
    """Return the product with a dense matrix, whose zeros are no entries, or with a sparse one, if places are constants."""
    x, y = node.inputs
    if is_sparse(y):
        return sparse_dot(known, node)
    return of_dense(any_product(known, x, y, node.outputs[0].type.dtype), node.outputs[0].type.format)


@lowers("math.Usmm")
def usmm(known: SparseOperands, node: Apply) -> Tensor:
    """Return ``alpha * x @ y + z``."""
    alpha, x, y, z = node.inputs
    dtype = node.outputs[0].type.dtype
    alpha, z = known.variable(alpha), known.variable(z)
    scaled = pt.reshape(alpha, ()) * any_product(known, x, y, dtype)
    return pt.cast(scaled + z, dtype)


@lowers("math.StructuredDotGradCSC", "math.StructuredDotGradCSR")
def structured_dot_grad(known: SparseOperands, node: Apply) -> Tensor | None:
    """Return elements of the product of the gradient and the transpose of the other factor, at the places of entries."""
    dtype = node.outputs[0].type.dtype
    indices, indptr = map(known.variable, node.inputs[:2])
    along = compressed_index(indptr, indices)
    rows, cols = (along, indices) if type(node.op).__name__ == "StructuredDotGradCSR" else (indices, along)
    if all(map(is_sparse, node.inputs[2:])):
        y, g = map(known.matrix, node.inputs[2:])
        found = constant_product(g, y.transposed, dtype, "csr")
        return None if found is None else elements(found, rows, cols)
    if any(map(is_sparse, node.inputs)):
        return None
    y, g = map(known.variable, node.inputs[2:])
    return pt.cast(sampled_product(g, y, rows, cols, dtype), dtype)


@lowers("math.SamplingDot")
def sampling_dot(known: SparseOperands, node: Apply) -> Matrix:
    """Multiply for each entry the rows of both factors."""
    x, y = map(known.variable, node.inputs[:2])
    p = known.matrix(node.inputs[2])
    x = expect_length(x, 0, p.shape[0], SHAPES_DIFFER)
    y = expect_length(y, 0, p.shape[1], SHAPES_DIFFER)
    return p.with_data(pt.cast(p.data * sampled_product(x, y, p.rows, p.cols, p.dtype), p.dtype))


# -- sums --------------------------------------------------------------------------------------------------------------


def entries(x: Matrix) -> Tensor:
    """Return the numbers of the entries, zeros for those that are left out."""
    if x.pattern is not None:
        return x.data
    return pt.switch(pt.lt(x.rows, x.shape[0]), x.data, pt.zeros((), dtype=x.dtype))


@lowers("math.SpSum")
def sp_sum(known: SparseOperands, node: Apply) -> Tensor:
    """Sum all entries, or those of each column or row."""
    x, axis = known.matrix(node.inputs[0]), node.op.axis
    if x.whole is not None:
        return pt.sum(x.whole, axis=axis, dtype=x.dtype)
    if axis is None:
        return pt.sum(entries(x), dtype=x.dtype)
    return sum_at(x.data, ((x.cols, x.rows)[axis],), (x.shape[1 - axis],))


@lowers("math.AddSparseSparse")
def add_sparse_sparse(known: SparseOperands, node: Apply) -> Matrix:
    """Take the entries of both: those at one place are summed where it matters."""
    dtype, format = node.outputs[0].type.dtype, node.outputs[0].type.format
    x, y = (known.matrix(v).cast(dtype) for v in node.inputs)
    if x.has_places_of(y):
        return replace(x.with_data(x.data + y.data, drops_zeros=True), format=format)
    both = joined_blocks([x, y], format, x.shape)
    return replace(both, data=same_shapes(both.data, x, y), drops_zeros=True, is_list=False)


SHAPES_DIFFER = "inconsistent shapes"


@lowers("math.AddSparseSparseData")
def add_sparse_sparse_data(known: SparseOperands, node: Apply) -> Matrix:
    """Add the numbers of entries that are at the same places."""
    x, y = (known.exact(v) for v in node.inputs)
    return x.with_data(x.data + y.data)


@lowers("math.AddSparseDense")
def add_sparse_dense(known: SparseOperands, node: Apply) -> Tensor:
    """Return a dense sum."""
    x, y = known.matrix(node.inputs[0]), known.variable(node.inputs[1])
    return pt.cast(dense(x) + same_shape(y, x, ValueError), node.outputs[0].type.dtype)


@lowers("math.StructuredAddSparseDenseVector")
def structured_add(known: SparseOperands, node: Apply) -> Matrix:
    """Add to each entry that is not zero the number of its column."""
    x, y = known.matrix(node.inputs[0]), known.variable(node.inputs[1])
    y = expect_length(y, 0, x.shape[1], "the vector does not fit the matrix", AssertionError)
    added = take_at(y, x.cols) * pt.neq(x.data, 0)
    return x.with_data(x.data + pt.cast(added, x.dtype), drops_zeros=True)


# -- elementwise -------------------------------------------------------------------------------------------------------


@lowers("math.MultiplySparseDense")
def multiply_sparse_dense(known: SparseOperands, node: Apply) -> Matrix:
    """Multiply each entry by the element at its place."""
    x, y = known.matrix(node.inputs[0]), known.variable(node.inputs[1])
    factors = y if y.type.ndim == 0 else take_at(same_shape(y, x, AssertionError), x.rows, x.cols)
    return x.with_data(pt.cast(x.data * factors, node.outputs[0].type.dtype))


@lowers("math.MultiplySparseDenseVector")
def multiply_sparse_dense_vector(known: SparseOperands, node: Apply) -> Matrix:
    """Multiply each entry by the number of its column. Entries stay, as in PyTensor's C code for it."""
    x, y = known.matrix(node.inputs[0]), known.variable(node.inputs[1])
    y = expect_length(y, 0, x.shape[1], "the vector does not fit the matrix", AssertionError)
    return x.with_data(x.data * take_at(y, x.cols))


@lowers("math.MultiplySparseSparse")
def multiply_sparse_sparse(known: SparseOperands, node: Apply) -> Matrix:
    """Multiply each entry of the first by the element of the second that is at its place."""
    dtype = node.outputs[0].type.dtype
    x, y = (known.matrix(v).cast(dtype) for v in node.inputs)
    factors = y.data if x.has_places_of(y) else elements(y, x.rows, x.cols)
    return x.with_data(x.data * factors, drops_zeros=True)


COMPARISONS = {
    "Equal": pt.eq,
    "GreaterEqual": pt.ge,
    "GreaterThan": pt.gt,
    "LessEqual": pt.le,
    "LessThan": pt.lt,
    "NotEqual": pt.neq,
}


def compared(node: Apply, x: Tensor, y: Tensor) -> Tensor:
    """Compare dense arrays as an Op does, which is named after the comparison: "EqualSparseDense"."""
    return COMPARISONS[type(node.op).__name__.partition("Sparse")[0]](x, y)


@lowers(*(f"math.{name}SparseDense" for name in COMPARISONS))
def compare(known: SparseOperands, node: Apply) -> Tensor:
    """Compare as dense arrays, as the result is one."""
    x, y = known.matrix(node.inputs[0]), known.variable(node.inputs[1])
    return pt.cast(compared(node, dense(x), same_shape(y, x, AssertionError)), "uint8")


@lowers("math.EqualSparseSparse", "math.LessEqualSparseSparse", "math.GreaterEqualSparseSparse")
def compare_all(known: SparseOperands, node: Apply) -> Matrix:
    """Compare as dense arrays: where neither matrix has an entry, the result is true."""
    x, y = map(known.matrix, node.inputs)
    result = compared(node, dense(x), same_shape(dense(y), x, AssertionError))
    return of_dense(pt.cast(result, "uint8"), node.outputs[0].type.format)


@lowers("math.NotEqualSparseSparse", "math.LessThanSparseSparse", "math.GreaterThanSparseSparse")
def compare_entries(known: SparseOperands, node: Apply) -> Matrix:
    """Compare at each place at which a matrix has an entry, once."""
    x, y = map(known.matrix, node.inputs)
    dtype = upcast(x.dtype, y.dtype)
    none_of_x, none_of_y = (pt.zeros_like(v.data, dtype=dtype) for v in (x, y))
    both = joined_blocks([x.cast(dtype), y.cast(dtype)], node.outputs[0].type.format, x.shape)
    order, first, is_first = sorted_places(both)
    pair = pt.concatenate([x.cast(dtype).data, none_of_y]), pt.concatenate([none_of_x, y.cast(dtype).data])
    sums = (sum_at(take_at(data, order), (first,), (axis_length(data, 0),)) for data in pair)
    data = pt.cast(compared(node, *sums) & is_first, "uint8")
    data = same_shapes(data, x, y)
    rows, cols = (fold(take_at(v, order)) for v in (both.rows, both.cols))
    return replace(both, data=data, rows=rows, cols=cols, drops_zeros=True, is_list=False)


def same_shapes(data: Tensor, x: Matrix, y: Matrix) -> Tensor:
    """Return the numbers of a result, after a check that two sparse matrices have the same shape."""
    for n, m in zip(x.shape, y.shape, strict=True):
        data = expect_equal(data, n, m, SHAPES_DIFFER, AssertionError)
    return data


def same_shape(y: Tensor, x: Matrix, error: type[Exception]) -> Tensor:
    """Return a dense matrix, after a check that it has the shape of a sparse one."""
    for axis, n in enumerate(x.shape):
        y = expect_length(y, axis, n, SHAPES_DIFFER, error)
    return y
