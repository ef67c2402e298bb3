"""The Ops on arrays that replace sparse Ops, and the two Ops that bring a matrix into a region and out of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.tensor.type import TensorType, lscalar

if TYPE_CHECKING:  # PyTensor imports SciPy's sparse matrices only when they are used
    from pytensor.sparse.type import SparseTensorType

# -- between the host and a region -------------------------------------------------------------------------------------


class TakeApart(Op):
    """The data, the indices, the index pointers and the length of the compressed axis of a sparse matrix."""

    __props__ = ()

    def make_node(self, *inputs: Variable) -> Apply:
        """Take a matrix in CSR or CSC format."""
        (x,) = inputs
        length = x.type.shape[x.type.format == "csc"]
        parts = [TensorType(x.type.dtype, (None,)), TensorType("int32", (None,))]
        pointers = TensorType("int32", (None if length is None else length + 1,))
        return Apply(self, [x], [*(part() for part in parts), pointers(), lscalar()])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Return views; what lies behind the last pointer is no entry."""
        (x,) = inputs
        count = x.indptr[-1]
        outputs[0][0] = np.asarray(x.data[:count])
        outputs[1][0] = np.asarray(x.indices[:count], "int32")
        outputs[2][0] = np.asarray(x.indptr, "int32")
        outputs[3][0] = np.asarray(x.shape[x.format == "csr"], "int64")


class EntryAxis(Op):
    """The place of each entry of a sparse matrix along the compressed axis. The host copies it; the device would scatter."""

    __props__ = ()

    def make_node(self, *inputs: Variable) -> Apply:
        """Take a matrix in CSR or CSC format."""
        (x,) = inputs
        return Apply(self, [x], [TensorType("int32", (None,))()])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Repeat each place as often as it has entries."""
        counts = np.diff(inputs[0].indptr)
        outputs[0][0] = np.repeat(np.arange(len(counts), dtype="int32"), counts)


class Assemble(Op):
    """A sparse matrix, put together from its data, its indices and index pointers, and its shape.

    Without `is_compressed` it is put together from the row and the column of each entry instead. Then an entry outside of the
    matrix is left out, and entries at the same place are summed. With `drops_zeros`, entries that are zero are left out.
    """

    __props__ = ("type", "is_compressed", "drops_zeros")

    def __init__(self, type: SparseTensorType, is_compressed: bool, drops_zeros: bool):
        self.type, self.is_compressed, self.drops_zeros = type, is_compressed, drops_zeros

    def make_node(self, *inputs: Variable) -> Apply:
        """Take data, indices and pointers or rows and columns, and the lengths of the axes."""
        return Apply(self, list(inputs), [self.type()])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Copy: the arrays may be those of another matrix, or read-only."""
        data, first, second, *lengths = inputs
        n, m = map(int, lengths)
        if self.is_compressed:
            matrix = self.type.format_cls[self.type.format]((data, first, second), (n, m), copy=True)
        else:
            inside = (first < n) & (second < m)
            entries = (data[inside], (first[inside], second[inside]))
            matrix = self.type.format_cls[self.type.format](entries, (n, m))
            matrix.sum_duplicates()
        if self.drops_zeros:
            matrix.eliminate_zeros()
        outputs[0][0] = matrix


class Compress(Op):
    """A sparse matrix of the elements of a dense one that are not zero."""

    __props__ = ("type",)

    def __init__(self, type: SparseTensorType):
        self.type = type

    def make_node(self, *inputs: Variable) -> Apply:
        """Take a dense matrix."""
        (x,) = inputs
        return Apply(self, [x], [self.type()])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Find them."""
        outputs[0][0] = self.type.format_cls[self.type.format](inputs[0])


def is_transfer(node: Apply) -> bool:
    """Return whether a node only brings a matrix to the device or back, which is no graph break.

    It is one where the host has to find the entries of a matrix, and the program goes on with their arrays.
    """
    if isinstance(node.op, TakeApart):
        owner = node.inputs[0].owner
        return owner is None or not isinstance(owner.op, Assemble | Compress)
    return isinstance(node.op, Assemble | Compress | EntryAxis)


# -- on arrays ---------------------------------------------------------------------------------------------------------


class CompressedIndex(Op):
    """The row (column) of each entry of a CSR (CSC) matrix, from the index pointers."""

    __props__ = ()

    def make_node(self, *inputs: Variable) -> Apply:
        """Take the pointers and a vector that has an element for each entry."""
        indptr, entries = inputs
        return Apply(self, [indptr, entries], [TensorType("int32", entries.type.shape)()])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Count the pointers up to each entry; what lies behind the last one belongs to a row that there is not."""
        indptr, entries = inputs
        outputs[0][0] = np.searchsorted(indptr[1:], np.arange(len(entries)), side="right").astype("int32")


class TakeAt(Op):
    """``x[i, j, ...]`` for index vectors of the leading axes, clipped to their lengths. If an axis is empty, zeros."""

    __props__ = ()

    def make_node(self, *inputs: Variable) -> Apply:
        """Take an array and index vectors of one length."""
        x, *indices = inputs
        return Apply(self, [x, *indices], [TensorType(x.type.dtype, (None, *x.type.shape[len(indices) :]))()])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Take the elements."""
        x, *indices = inputs
        if 0 in x.shape:
            outputs[0][0] = np.zeros((len(indices[0]), *x.shape[len(indices) :]), x.dtype)
        else:
            outputs[0][0] = x[tuple(np.minimum(i, n - 1) for i, n in zip(indices, x.shape, strict=False))]


class SumAt(Op):
    """An array of sums: `count` index vectors say to which place of it each element is added.

    An element whose place is outside of the array is left out.
    """

    __props__ = ("count",)

    def __init__(self, count: int):
        self.count = count

    def make_node(self, *inputs: Variable) -> Apply:
        """Take the elements, then an index vector for each new axis, then the length of each. They replace the first axis."""
        x = inputs[0]
        shape = (*(None,) * self.count, *x.type.shape[1:])
        return Apply(self, list(inputs), [TensorType(x.type.dtype, shape)()])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Sum."""
        x, indices, lengths = inputs[0], inputs[1 : 1 + self.count], list(map(int, inputs[1 + self.count :]))
        inside = np.logical_and.reduce([i < n for i, n in zip(indices, lengths, strict=True)])
        result = np.zeros((*lengths, *x.shape[1:]), x.dtype)
        np.add.at(result, tuple(i[inside] for i in indices), x[inside])
        outputs[0][0] = result


class CheckLength(Op):
    """`x`, after a check that one of its axes has a given length."""

    __props__ = ("axis", "error", "message")

    def __init__(self, axis: int, error: type[Exception], message: str):
        self.axis, self.error, self.message = axis, error, message

    def make_node(self, *inputs: Variable) -> Apply:
        """Take an array and a length."""
        x, length = inputs
        return Apply(self, [x, length], [x.type()])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Compare."""
        x, length = inputs
        self.check(x.shape, length)
        outputs[0][0] = x

    def check(self, shape: Sequence[int], length: int) -> None:
        """Raise the error if the axis of an array has another length."""
        if shape[self.axis] != length:
            raise self.error(f"{self.message}: an axis of length {shape[self.axis]} should have length {length}")
