"""The Ops on arrays that replace sparse Ops, and the Ops that bring a matrix into a region and out of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.type import Type
from pytensor.tensor.type import TensorType, ivector, lscalar

from pytensor_jaxpr_linker.graph.lanes.ops import ArrayOp

if TYPE_CHECKING:  # PyTensor imports SciPy's sparse matrices only when they are used
    from pytensor.sparse.type import SparseTensorType

# -- between the host and a region -------------------------------------------------------------------------------------


class TakeApart(ArrayOp):
    """The data, the indices, the index pointers and the length of the compressed axis of a sparse matrix."""

    def types(self, x: Any) -> Sequence[Type]:
        """Take a matrix in CSR or CSC format."""
        length = x.type.shape[x.type.format == "csc"]
        pointers = TensorType("int32", (None if length is None else length + 1,))
        return [TensorType(x.type.dtype, (None,)), ivector, pointers, lscalar]

    def compute(self, x: Any) -> Sequence[np.ndarray]:
        """Return views, without the elements behind the last pointer."""
        count = x.indptr[-1]
        indices, pointers = np.asarray(x.indices[:count], "int32"), np.asarray(x.indptr, "int32")
        return [np.asarray(x.data[:count]), indices, pointers, np.asarray(x.shape[x.format == "csr"], "int64")]


class EntryAxis(ArrayOp):
    """The place of each entry of a sparse matrix along the compressed axis, on the host: the device would scatter."""

    def types(self, x: Variable) -> Sequence[Type]:
        """Take a matrix in CSR or CSC format."""
        return [ivector]

    def compute(self, x: Any) -> Sequence[np.ndarray]:
        """Repeat each place as often as it has entries."""
        counts = np.diff(x.indptr)
        return [np.repeat(np.arange(len(counts), dtype="int32"), counts)]


class Assemble(ArrayOp):
    """A sparse matrix, put together from its data, its indices and index pointers, and its shape.

    Without `is_compressed` it is put together from the row and the column of each entry instead. Then an entry outside
    of the matrix is left out, and entries at the same place are summed. With `drops_zeros`, entries that are zero are
    left out.
    """

    __props__ = ("type", "is_compressed", "drops_zeros")

    def __init__(self, type: SparseTensorType, is_compressed: bool, drops_zeros: bool):
        self.type, self.is_compressed, self.drops_zeros = type, is_compressed, drops_zeros

    def types(self, data: Variable, first: Variable, second: Variable, n: Variable, m: Variable) -> Sequence[Type]:
        """Take data, indices and pointers or rows and columns, and the lengths of the axes."""
        return [self.type]

    def compute(self, data: Any, first: Any, second: Any, n: Any, m: Any) -> Sequence[Any]:
        """Copy: the arrays may belong to another matrix, or be read-only."""
        make, shape = self.type.format_cls[self.type.format], (int(n), int(m))
        if self.is_compressed:
            matrix = make((data, first, second), shape, copy=True)
        else:
            inside = (first < n) & (second < m)
            matrix = make((data[inside], (first[inside], second[inside])), shape)
            matrix.sum_duplicates()
        if self.drops_zeros:
            matrix.eliminate_zeros()
        return [matrix]


class Compress(ArrayOp):
    """A sparse matrix of the elements of a dense one that are not zero."""

    __props__ = ("type",)

    def __init__(self, type: SparseTensorType):
        self.type = type

    def types(self, x: Variable) -> Sequence[Type]:
        """Take a dense matrix."""
        return [self.type]

    def compute(self, x: np.ndarray) -> Sequence[Any]:
        """Find them."""
        return [self.type.format_cls[self.type.format](x)]


def is_transfer(node: Apply) -> bool:
    """Return whether a node only brings a matrix to the device or back, without a graph break.

    It is a break where the host has to find the entries of a matrix, and the program goes on with their arrays.
    """
    if isinstance(node.op, TakeApart):
        owner = node.inputs[0].owner
        return owner is None or not isinstance(owner.op, Assemble | Compress)
    return isinstance(node.op, Assemble | Compress | EntryAxis)


# -- on arrays ---------------------------------------------------------------------------------------------------------


class CompressedIndex(ArrayOp):
    """The row (column) of each entry of a CSR (CSC) matrix, from the index pointers."""

    def types(self, indptr: Variable, entries: Any) -> Sequence[Type]:
        """Take the pointers and a vector that has an element for each entry."""
        return [TensorType("int32", entries.type.shape)]

    def compute(self, indptr: np.ndarray, entries: np.ndarray) -> Sequence[np.ndarray]:
        """Count the pointers up to each entry. An element behind the last pointer gets a row past the last."""
        return [np.searchsorted(indptr[1:], np.arange(len(entries)), side="right").astype("int32")]


class TakeAt(ArrayOp):
    """``x[i, j, ...]`` for index vectors of the leading axes, clipped to their lengths. If an axis is empty, zeros."""

    def types(self, x: Any, *indices: Variable) -> Sequence[Type]:
        """Take an array and index vectors of one length."""
        return [TensorType(x.type.dtype, (None, *x.type.shape[len(indices) :]))]

    def compute(self, x: np.ndarray, *indices: np.ndarray) -> Sequence[np.ndarray]:
        """Take the elements."""
        if 0 in x.shape:
            return [np.zeros((len(indices[0]), *x.shape[len(indices) :]), x.dtype)]
        return [x[tuple(np.minimum(i, n - 1) for i, n in zip(indices, x.shape, strict=False))]]


class SumAt(ArrayOp):
    """An array of sums: `count` index vectors say where each element is added; elements outside are left out."""

    __props__ = ("count",)

    def __init__(self, count: int):
        self.count = count

    def types(self, x: Any, *indices_and_lengths: Variable) -> Sequence[Type]:
        """Take the elements, an index vector for each new axis, and its length. These replace the first axis."""
        return [TensorType(x.type.dtype, (*(None,) * self.count, *x.type.shape[1:]))]

    def compute(self, x: np.ndarray, *indices_and_lengths: np.ndarray) -> Sequence[np.ndarray]:
        """Sum."""
        indices, lengths = indices_and_lengths[: self.count], list(map(int, indices_and_lengths[self.count :]))
        inside = np.logical_and.reduce([i < n for i, n in zip(indices, lengths, strict=True)])
        result = np.zeros((*lengths, *x.shape[1:]), x.dtype)
        np.add.at(result, tuple(i[inside] for i in indices), x[inside])
        return [result]


class CheckLength(ArrayOp):
    """`x`, after a check that one of its axes has a given length."""

    __props__ = ("axis", "error", "message")

    def __init__(self, axis: int, error: type[Exception], message: str):
        self.axis, self.error, self.message = axis, error, message

    def types(self, x: Any, length: Variable) -> Sequence[Type]:
        """Take an array and a length."""
        return [x.type]

    def compute(self, x: np.ndarray, length: Any) -> Sequence[np.ndarray]:
        """Compare."""
        self.check(x.shape, length)
        return [x]

    def check(self, shape: Sequence[int], length: int) -> None:
        """Raise the error if the axis of an array has another length."""
        if shape[self.axis] != length:
            raise self.error(f"{self.message}: an axis of length {shape[self.axis]} should have length {length}")


# -- products ----------------------------------------------------------------------------------------------------------


class ListDot(ArrayOp):
    """The product of entries, listed in any order, with a dense array; a row past the last means no entry."""

    def types(self, data: Variable, rows: Variable, cols: Variable, y: Any, n: Variable) -> Sequence[Type]:
        """Take data, rows and columns of entries, the dense array, and the number of rows."""
        return [TensorType(y.type.dtype, (None, *y.type.shape[1:]))]

    def compute(self, data: Any, rows: Any, cols: Any, y: np.ndarray, n: Any) -> Sequence[np.ndarray]:
        """Add row by row."""
        inside = rows < n
        result = np.zeros((int(n), *y.shape[1:]), y.dtype)
        data = data[inside].reshape(-1, *(1,) * (y.ndim - 1))
        np.add.at(result, rows[inside], data * y[cols[inside]])
        return [result]


class CompressedDot(ArrayOp):
    """The product of a CSR matrix with a dense matrix. Indices and index pointers must be in bounds."""

    def types(self, data: Variable, indices: Variable, indptr: Any, y: Any) -> Sequence[Type]:
        """Take data, indices and index pointers, and the dense matrix."""
        n = indptr.type.shape[0]
        return [TensorType(y.type.dtype, (None if n is None else n - 1, y.type.shape[1]))]

    def compute(self, data: Any, indices: Any, indptr: Any, y: np.ndarray) -> Sequence[np.ndarray]:
        """Leave it to SciPy."""
        from scipy.sparse import csr_matrix

        return [csr_matrix((data, indices, indptr), (len(indptr) - 1, len(y))) @ y]


class PaddedDot(ArrayOp):
    """The product of a matrix, whose rows are padded to one length (the ELLPACK format), with a vector.

    ``sum(data[k] * x[cols[k]] for k in range(width))``, for arrays of shape ``(width, rows)``. Padding has a column
    past the last one of the matrix, and counts as zero.
    """

    def types(self, cols: Any, x: Any, data: Variable, *slots: Variable) -> Sequence[Type]:
        """Take columns, the vector, and data of the same shape, or a vector of data and the position of each place."""
        return [TensorType(x.type.dtype, (cols.type.shape[1],))]

    def compute(self, cols: np.ndarray, x: np.ndarray, data: np.ndarray, *slots: np.ndarray) -> Sequence[np.ndarray]:
        """Multiply and sum. Padding is left out, also where it would meet an infinite number."""
        inside = cols < len(x)
        terms = np.zeros(cols.shape, x.dtype)
        terms[inside] = x[cols[inside]] * (data[slots[0][inside]] if slots else data[inside])
        return [terms.sum(0, dtype=x.dtype)]


class SampledDot(ArrayOp):
    """``sum(x[rows] * y[cols], axis=1)``: elements of the product of `x` and the transpose of `y`."""

    def types(self, x: Any, y: Variable, rows: Any, cols: Variable) -> Sequence[Type]:
        """Take two matrices of one dtype and two index vectors of one length."""
        return [TensorType(x.type.dtype, rows.type.shape)]

    def compute(self, x: np.ndarray, y: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> Sequence[np.ndarray]:
        """Take rows, multiply and sum."""
        return [(x[rows] * y[cols]).sum(1, dtype=x.dtype)]
