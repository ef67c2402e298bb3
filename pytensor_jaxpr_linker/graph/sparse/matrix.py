"""A sparse matrix as variables of a graph: its entries, and how they are arranged in memory if that is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pytensor.tensor as pt
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import graph_inputs
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.shape import Shape_i

from pytensor_jaxpr_linker.graph.lanes.ops import only_output
from pytensor_jaxpr_linker.graph.sparse import ops
from pytensor_jaxpr_linker.graph.static_values import StaticValues

if TYPE_CHECKING:
    from pytensor.sparse.type import SparseTensorType

type Format = Literal["csr", "csc"]

#: An array's variable. PyTensor's annotations do not say that these have arithmetic.
type Tensor = Any


@dataclass(frozen=True)
class Matrix:
    """The entries of a sparse matrix: a list of coordinates ("COO"), in which several entries may be at one place.

    Sums, products with dense arrays and conversions depend neither on the order of the entries, nor on whether entries
    at one place are summed, nor on zeros among them. So while only these follow, an Op needs no size that depends on
    numbers, even if the places of its result do. The host puts such a matrix in order when it leaves the graph.

    `data`, `rows` and `cols` are vectors with an element for each entry. An entry whose row is past the last is left
    out.
    """

    format: Format
    data: Tensor
    rows: Tensor
    cols: Tensor
    shape: tuple[Tensor, Tensor]  #: the lengths of the axes
    pattern: tuple[Tensor, Tensor] | None = None  #: the indices and index pointers, if the entries are arranged by them
    drops_zeros: bool = False  #: whether entries that are zero are left out
    is_list: bool = False  #: whether each element of the vectors is an entry, and no two are at one place
    whole: Tensor | None = None  #: the same matrix as a dense array, if there is one

    @property
    def dtype(self) -> str:
        """The dtype of the entries."""
        return self.data.type.dtype

    @property
    def is_exact(self) -> bool:
        """Whether PyTensor would have the same arrays."""
        return self.pattern is not None and not self.drops_zeros

    @property
    def transposed(self) -> Matrix:
        """The transpose, in the other format."""
        return replace(
            self,
            format="csc" if self.format == "csr" else "csr",
            rows=self.cols,
            cols=self.rows,
            shape=self.shape[::-1],
            whole=None if self.whole is None else self.whole.T,
        )

    def with_data(self, data: Tensor, drops_zeros: bool | None = None) -> Matrix:
        """Return a matrix with other numbers at the same places."""
        drops_zeros = self.drops_zeros if drops_zeros is None else drops_zeros
        return replace(self, data=data, whole=None, drops_zeros=drops_zeros)

    def cast(self, dtype: str) -> Matrix:
        """Return the matrix in another dtype; as in SciPy, a complex number becomes a real one by its real part."""
        if dtype == self.dtype:
            return self
        data, whole = self.data, self.whole
        if self.dtype.startswith("complex") and not dtype.startswith("complex"):
            data, whole = pt.real(data), None if whole is None else pt.real(whole)
        return replace(self, data=fold(pt.cast(data, dtype)), whole=None if whole is None else pt.cast(whole, dtype))

    def has_places_of(self, other: Matrix) -> bool:
        """Return whether entry `k` of both matrices is at the same place."""
        if self.pattern is None or other.pattern is None or self.format != other.format:
            return self.rows is other.rows and self.cols is other.cols
        return all(map(is_same, self.pattern, other.pattern))


# -- from PyTensor's variables and to them -----------------------------------------------------------------------------


def compressed(
    format: Format,
    shape: Sequence[int | None],
    data: Tensor,
    indices: Tensor,
    indptr: Tensor,
    other_length: Tensor,
    along: Tensor | None = None,
) -> Matrix:
    """Return the matrix of a CSR or CSC matrix's arrays and the length of the axis that is not compressed."""
    along = compressed_index(indptr, indices) if along is None else along
    axes = [(along, fold(axis_length(indptr, 0) - 1)), (indices, other_length)]
    (rows, n), (cols, m) = axes if format == "csr" else axes[::-1]
    n, m = (known if k is None else constant_length(k) for k, known in zip(shape, (n, m), strict=True))
    return Matrix(format, data, rows, cols, (n, m), (indices, indptr))


def compressed_index(indptr: Tensor, indices: Tensor) -> Tensor:
    """Return for each entry its place along the compressed axis."""
    return fold(only_output(ops.CompressedIndex(), indptr, indices))


def taken_apart(x: Tensor) -> Matrix:
    """Return the matrix of a sparse variable. The host takes it apart; the arrays of a constant are constants."""
    shape = x.data.shape if isinstance(x, Constant) else x.type.shape
    parts = [*ops.TakeApart().make_node(x).outputs, only_output(ops.EntryAxis(), x)]
    return compressed(x.type.format, shape, *map(fold, parts))


def of_dense(x: Tensor, format: Format) -> Matrix:
    """Return the matrix of a dense array: every place has an entry, and zeros are to be dropped."""
    n, m = axis_length(x, 0), axis_length(x, 1)
    place = pt.arange(n * m, dtype="int64")
    rows, cols = (part.astype("int32") for part in (place // m, place % m))
    return Matrix(format, x.ravel(), rows, cols, (n, m), drops_zeros=True, whole=x)


def arranged(x: Matrix) -> Matrix:
    """Return a matrix with its entries sorted, and the indices and index pointers that they then have."""
    along, across = (x.rows, x.cols) if x.format == "csr" else (x.cols, x.rows)
    n, m = x.shape if x.format == "csr" else x.shape[::-1]
    order = fold(pt.argsort(place_of(along, across, m), kind="stable"))
    data, rows, cols, indices = (fold(take_at(v, order)) for v in (x.data, x.rows, x.cols, across))
    pattern = x.pattern and (indices, x.pattern[1])
    if pattern is None:
        counts = sum_at(pt.ones_like(along), (along,), (n,))
        pattern = indices, fold(pt.concatenate([[0], pt.cumsum(counts)]).astype("int32"))
    return replace(x, data=data, rows=rows, cols=cols, pattern=pattern)


def joined_blocks(blocks: list[Matrix], format: Format, shape: tuple[Tensor, Tensor]) -> Matrix:
    """Return a matrix of the entries of all blocks."""
    data, rows, cols = (fold(pt.concatenate([getattr(x, part) for x in blocks])) for part in ("data", "rows", "cols"))
    drops_zeros, is_list = any(x.drops_zeros for x in blocks), all(x.is_exact or x.is_list for x in blocks)
    return Matrix(format, data, rows, cols, shape, None, drops_zeros, is_list)


def place_of(i: Tensor, j: Tensor, m: Tensor) -> Tensor:
    """Return numbers that sort places row by row, for rows of length `m`."""
    return fold(pt.cast(i, "int64") * m + j)


def assembled(x: Matrix, type: SparseTensorType) -> Tensor:
    """Return the matrix as a sparse variable that the host makes."""
    if x.whole is not None:
        return only_output(ops.Compress(type), x.whole)
    places = x.pattern or (x.rows, x.cols)
    op = ops.Assemble(type, x.pattern is not None, x.drops_zeros)
    return only_output(op, x.data, *places, *x.shape)


# -- numbers -----------------------------------------------------------------------------------------------------------


def constant_length(value: int) -> Constant:
    """Return a length as a constant."""
    return pt.constant(value, dtype="int64", ndim=0)


def axis_length(x: Tensor, axis: int) -> Tensor:
    """Return the length of an axis."""
    known = x.type.shape[axis]
    return only_output(Shape_i(axis), x) if known is None else constant_length(known)


def fold(x: Tensor) -> Tensor:
    """Return a variable, evaluated if it follows from constants."""
    if isinstance(x, Constant) or not all(isinstance(v, Constant) for v in graph_inputs([x])):
        return x
    constants = StaticValues({}, lambda constant: constant.data.shape)  # type: ignore[attr-defined]
    return pt.constant(constants(x), dtype=x.type.dtype)


def is_same(x: Tensor, y: Tensor) -> bool:
    """Return whether two variables are one, or constants of one value."""
    return x is y or (isinstance(x, Constant) and isinstance(y, Constant) and x.equals(y))


def expect_equal(x: Tensor, n: Tensor, m: Tensor, message: str, error: type[Exception] = ValueError) -> Tensor:
    """Return `x`, after a check that two numbers are equal."""
    return x if is_same(n, m) else CheckAndRaise(error, message)(x, pt.eq(n, m))


def expect_length(x: Tensor, axis: int, n: Tensor, message: str, error: type[Exception] = ValueError) -> Tensor:
    """Return `x`, after a check that one of its axes is of length `n`."""
    known = x.type.shape[axis]
    if known is not None and isinstance(n, Constant) and known == n.data:
        return x
    return only_output(ops.CheckLength(axis, error, message), x, n)


# -- arrays of entries -------------------------------------------------------------------------------------------------


def take_at(x: Tensor, *indices: Tensor) -> Tensor:
    """Return the elements of an array at places along its first axes."""
    return only_output(ops.TakeAt(), x, *indices)


def sum_at(x: Tensor, indices: tuple[Tensor, ...], lengths: tuple[Tensor, ...]) -> Tensor:
    """Return an array of the sums of the elements that belong to each place."""
    return only_output(ops.SumAt(len(indices)), x, *indices, *lengths)


def dense(x: Matrix) -> Tensor:
    """Return the matrix as a dense array."""
    return sum_at(x.data, (x.rows, x.cols), x.shape) if x.whole is None else x.whole


def elements(x: Matrix, rows: Tensor, cols: Tensor) -> Tensor:
    """Return the elements of a matrix at places, found among its sorted entries by halving."""
    if x.whole is not None:
        return take_at(x.whole, rows, cols)
    order, first, _ = sorted_places(x)
    places = fold(take_at(place_of(x.rows, x.cols, x.shape[1]), order))
    sums = sum_at(take_at(x.data, order), (first,), (axis_length(x.data, 0),))
    wanted = place_of(rows, cols, x.shape[1])
    found = pt.searchsorted(places, wanted)
    is_entry = pt.eq(take_at(places, found), wanted)
    return pt.switch(is_entry, take_at(sums, found), pt.zeros((), dtype=x.dtype))


def sorted_places(x: Matrix) -> tuple[Tensor, Tensor, Tensor]:
    """Return the order of entries by place; then, for each in it, the first entry there, and whether it is that."""
    places = place_of(x.rows, x.cols, x.shape[1])
    order = fold(pt.argsort(places, kind="stable"))
    places = fold(take_at(places, order))
    first = fold(pt.searchsorted(places, places))
    return order, first, fold(pt.eq(first, pt.arange(axis_length(places, 0))))
