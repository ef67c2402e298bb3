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
from pytensor_jaxpr_linker.graph.sparse.products import constant_product, product, sampled_product

# -- products ----------------------------------------------------------------------------------------------------------


def any_product(x: Matrix | Tensor, y: Matrix | Tensor, dtype: str) -> Tensor:
    """Return the dense product of two matrices, at least one of them sparse."""
    if not isinstance(x, Matrix):
        return product(y.transposed, x.T, dtype).T
    if not isinstance(y, Matrix):
        return product(x, y, dtype)
    found = constant_product(x, y, dtype, "csr")
    return product(x, dense(y), dtype) if found is None else dense(found)


@lowers("math.Dot")
def dot(node: Apply, x: Matrix | Tensor, y: Matrix | Tensor) -> Tensor:
    """Return a dense product."""
    return any_product(x, y, node.outputs[0].type.dtype)


@lowers("math.StructuredDot")
def structured_dot(node: Apply, x: Matrix | Tensor, y: Matrix | Tensor) -> Tensor | Matrix | None:
    """Return a dense product, or a sparse one if the places of all entries are constants."""
    type = node.outputs[0].type
    return constant_product(x, y, type.dtype, type.format) if is_sparse(node.outputs[0]) else dot(node, x, y)


@lowers("math.TrueDot")
def true_dot(node: Apply, x: Matrix, y: Matrix | Tensor) -> Matrix | None:
    """Return the product with a dense matrix, without zeros, or with a sparse one if all places are constants."""
    type = node.outputs[0].type
    if isinstance(y, Matrix):
        return constant_product(x, y, type.dtype, type.format)
    return of_dense(any_product(x, y, type.dtype), type.format)


@lowers("math.Usmm")
def usmm(node: Apply, alpha: Tensor, x: Matrix | Tensor, y: Matrix | Tensor, z: Tensor) -> Tensor:
    """Return ``alpha * x @ y + z``."""
    dtype = node.outputs[0].type.dtype
    return pt.cast(pt.reshape(alpha, ()) * any_product(x, y, dtype) + z, dtype)


@lowers("math.StructuredDotGradCSC", "math.StructuredDotGradCSR")
def structured_dot_grad(
    node: Apply, indices: Tensor, indptr: Tensor, y: Matrix | Tensor, g: Matrix | Tensor
) -> Tensor | None:
    """Return the product of the gradient and the transpose of the other factor, at the places of entries."""
    dtype = node.outputs[0].type.dtype
    along = compressed_index(indptr, indices)
    rows, cols = (along, indices) if type(node.op).__name__ == "StructuredDotGradCSR" else (indices, along)
    if isinstance(y, Matrix) and isinstance(g, Matrix):
        found = constant_product(g, y.transposed, dtype, "csr")
        return None if found is None else elements(found, rows, cols)
    if isinstance(y, Matrix) or isinstance(g, Matrix):
        return None
    return pt.cast(sampled_product(g, y, rows, cols, dtype), dtype)


@lowers("math.SamplingDot")
def sampling_dot(node: Apply, x: Tensor, y: Tensor, p: Matrix) -> Matrix:
    """Multiply for each entry the rows of both factors."""
    x = expect_length(x, 0, p.shape[0], SHAPES_DIFFER)
    y = expect_length(y, 0, p.shape[1], SHAPES_DIFFER)
    return p.with_data(pt.cast(p.data * sampled_product(x, y, p.rows, p.cols, p.dtype), p.dtype))


# -- sums --------------------------------------------------------------------------------------------------------------


def entries(x: Matrix) -> Tensor:
    """Return the numbers of the entries, and zeros for the entries that are left out."""
    if x.pattern is not None:
        return x.data
    return pt.switch(pt.lt(x.rows, x.shape[0]), x.data, pt.zeros((), dtype=x.dtype))


@lowers("math.SpSum")
def sp_sum(node: Apply, x: Matrix) -> Tensor:
    """Sum all entries, or the entries of each column or row."""
    axis = node.op.axis
    if x.whole is not None:
        return pt.sum(x.whole, axis=axis, dtype=x.dtype)
    if axis is None:
        return pt.sum(entries(x), dtype=x.dtype)
    return sum_at(x.data, ((x.cols, x.rows)[axis],), (x.shape[1 - axis],))


@lowers("math.AddSparseSparse")
def add_sparse_sparse(node: Apply, x: Matrix, y: Matrix) -> Matrix:
    """Take the entries of both. Entries at one place are summed where it matters."""
    dtype, format = node.outputs[0].type.dtype, node.outputs[0].type.format
    x, y = x.cast(dtype), y.cast(dtype)
    if x.has_places_of(y):
        return replace(x.with_data(x.data + y.data, drops_zeros=True), format=format)
    both = joined_blocks([x, y], format, x.shape)
    return replace(both, data=same_shapes(both.data, x, y), drops_zeros=True, is_list=False)


SHAPES_DIFFER = "inconsistent shapes"


@lowers("math.AddSparseSparseData", with_operands=False)
def add_sparse_sparse_data(known: SparseOperands, node: Apply) -> Matrix:
    """Add the numbers of entries that are at the same places."""
    x, y = (known.exact(v) for v in node.inputs)
    return x.with_data(x.data + y.data)


@lowers("math.AddSparseDense")
def add_sparse_dense(node: Apply, x: Matrix, y: Tensor) -> Tensor:
    """Return a dense sum."""
    return pt.cast(dense(x) + same_shape(y, x, ValueError), node.outputs[0].type.dtype)


@lowers("math.StructuredAddSparseDenseVector")
def structured_add(node: Apply, x: Matrix, y: Tensor) -> Matrix:
    """Add to each entry that is not zero the number of its column."""
    y = expect_length(y, 0, x.shape[1], "the vector does not fit the matrix", AssertionError)
    added = take_at(y, x.cols) * pt.neq(x.data, 0)
    return x.with_data(x.data + pt.cast(added, x.dtype), drops_zeros=True)


# -- elementwise -------------------------------------------------------------------------------------------------------


@lowers("math.MultiplySparseDense")
def multiply_sparse_dense(node: Apply, x: Matrix, y: Tensor) -> Matrix:
    """Multiply each entry by the element at its place."""
    factors = y if y.type.ndim == 0 else take_at(same_shape(y, x, AssertionError), x.rows, x.cols)
    return x.with_data(pt.cast(x.data * factors, node.outputs[0].type.dtype))


@lowers("math.MultiplySparseDenseVector")
def multiply_sparse_dense_vector(node: Apply, x: Matrix, y: Tensor) -> Matrix:
    """Multiply each entry by the number of its column. Entries stay, as in PyTensor's C code for it."""
    y = expect_length(y, 0, x.shape[1], "the vector does not fit the matrix", AssertionError)
    return x.with_data(x.data * take_at(y, x.cols))


@lowers("math.MultiplySparseSparse")
def multiply_sparse_sparse(node: Apply, x: Matrix, y: Matrix) -> Matrix:
    """Multiply each entry of the first by the element of the second that is at its place."""
    dtype = node.outputs[0].type.dtype
    x, y = x.cast(dtype), y.cast(dtype)
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
def compare(node: Apply, x: Matrix, y: Tensor) -> Tensor:
    """Compare as dense arrays, as the result is one."""
    return pt.cast(compared(node, dense(x), same_shape(y, x, AssertionError)), "uint8")


@lowers("math.EqualSparseSparse", "math.LessEqualSparseSparse", "math.GreaterEqualSparseSparse")
def compare_all(node: Apply, x: Matrix, y: Matrix) -> Matrix:
    """Compare as dense arrays: where neither matrix has an entry, the result is true."""
    result = compared(node, dense(x), same_shape(dense(y), x, AssertionError))
    return of_dense(pt.cast(result, "uint8"), node.outputs[0].type.format)


@lowers("math.NotEqualSparseSparse", "math.LessThanSparseSparse", "math.GreaterThanSparseSparse")
def compare_entries(node: Apply, x: Matrix, y: Matrix) -> Matrix:
    """Compare at each place at which a matrix has an entry, once."""
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
