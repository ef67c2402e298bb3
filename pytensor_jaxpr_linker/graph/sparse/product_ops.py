"""Ops for products of sparse matrices, one for each form in which the entries may be known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.tensor.type import TensorType


class ListDot(Op):
    """The product of a matrix, given by a list of entries in any order, with a dense vector or matrix.

    An entry whose row is past the last is left out.
    """

    __props__ = ()

    def make_node(self, *inputs: Variable) -> Apply:
        """Take data, rows and columns of entries, the dense array, and the number of rows."""
        y = inputs[3]
        return Apply(self, list(inputs), [TensorType(y.type.dtype, (None, *y.type.shape[1:]))()])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Add row by row."""
        data, rows, cols, y, n = inputs
        inside = rows < n
        result = np.zeros((int(n), *y.shape[1:]), y.dtype)
        data = data[inside].reshape(-1, *(1,) * (y.ndim - 1))
        np.add.at(result, rows[inside], data * y[cols[inside]])
        outputs[0][0] = result


class CompressedDot(Op):
    """The product of a CSR matrix with a dense matrix. Indices and index pointers must be in bounds."""

    __props__ = ()

    def make_node(self, *inputs: Variable) -> Apply:
        """Take data, indices and index pointers, and the dense matrix."""
        _, _, indptr, y = inputs
        n = indptr.type.shape[0]
        return Apply(self, list(inputs), [TensorType(y.type.dtype, (None if n is None else n - 1, y.type.shape[1]))()])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Leave it to SciPy."""
        from scipy.sparse import csr_matrix

        data, indices, indptr, y = inputs
        outputs[0][0] = csr_matrix((data, indices, indptr), (len(indptr) - 1, len(y))) @ y


class PaddedDot(Op):
    """The product of a matrix, whose rows are padded to one length (the ELLPACK format), with a vector.

    ``sum(data[k] * x[cols[k]] for k in range(width))``, for arrays of shape ``(width, rows)``. Padding has a column past
    the last one of the matrix, and counts as zero.
    """

    __props__ = ()

    def make_node(self, *inputs: Variable) -> Apply:
        """Take columns, the vector, and either data of the same shape, or a vector of data and for each place its position."""
        cols, x = inputs[:2]
        return Apply(self, list(inputs), [TensorType(x.type.dtype, (cols.type.shape[1],))()])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Multiply and sum. Padding is left out, also where it would meet an infinite number."""
        cols, x, data, *slots = inputs
        inside = cols < len(x)
        terms = np.zeros(cols.shape, x.dtype)
        terms[inside] = x[cols[inside]] * (data[slots[0][inside]] if slots else data[inside])
        outputs[0][0] = terms.sum(0, dtype=x.dtype)


class SampledDot(Op):
    """``sum(x[rows] * y[cols], axis=1)``: elements of the product of `x` and the transpose of `y`."""

    __props__ = ()

    def make_node(self, *inputs: Variable) -> Apply:
        """Take two matrices of one dtype and two index vectors of one length."""
        x, _, rows, _ = inputs
        return Apply(self, list(inputs), [TensorType(x.type.dtype, rows.type.shape)()])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Take rows, multiply and sum."""
        x, y, rows, cols = inputs
        outputs[0][0] = (x[rows] * y[cols]).sum(1, dtype=x.dtype)
