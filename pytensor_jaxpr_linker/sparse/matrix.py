"""A sparse matrix as variables of a graph: its entries, and how they are arranged in memory if that is known. Uses no JAX."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import graph_inputs
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.shape import Shape_i

from pytensor_jaxpr_linker.sized_ops import apply
from pytensor_jaxpr_linker.sparse.ops import Assemble, CheckLength, Compress, CompressedIndex, SumAt, TakeApart, TakeAt
from pytensor_jaxpr_linker.static import StaticValues

if TYPE_CHECKING:
    from pytensor.sparse.type import SparseTensorType


@dataclass(frozen=True)
class Matrix:
    """The entries of a sparse matrix: a list of coordinates ("COO"), in which several entries may be at one place.

    Sums, products with dense arrays and conversions are the same in whatever order the entries are, whether entries at one
    place are summed, and whether zeros are among them. So Ops whose result has places that depend on numbers need no size that
    depends on numbers, as long as what follows is of that kind: the host puts such a matrix in order when it leaves the graph.

    Attributes
    ----------
    format
        "csr" or "csc".
    data, rows, cols
        Vectors with an element for each entry. One whose row is past the last is left out.
    shape
        The lengths of the axes.
    pattern
        The indices and index pointers, if the entries are arranged by them.
    drops_zeros
        Whether entries that are zero are no entries.
    whole
        The same matrix as a dense array, if there is one.
    """

    format: str
    data: Variable
    rows: Variable
    cols: Variable
    shape: tuple[Variable, Variable]
    pattern: tuple[Variable, Variable] | None = None
    drops_zeros: bool = False
    whole: Variable | None = None

    @property
    def dtype(self) -> str:
        """The dtype of the entries."""
        return self.data.type.dtype

    @property
    def is_exact(self) -> bool:
        """Whether the arrays are those that PyTensor would have."""
        return self.pattern is not None and not self.drops_zeros

    @property
    def transposed(self) -> Matrix:
        """The transpose, in the other format."""
        return replace(
            self,
            format={"csr": "csc", "csc": "csr"}[self.format],
            rows=self.cols,
            cols=self.rows,
            shape=self.shape[::-1],
            whole=None if self.whole is None else self.whole.T,  # type: ignore[attr-defined]
        )

    def with_data(self, data: Variable, drops_zeros: bool | None = None) -> Matrix:
        """Return a matrix with other numbers at the same places."""
        return replace(
            self, data=data, whole=None, drops_zeros=self.drops_zeros if drops_zeros is None else drops_zeros
        )

    def cast(self, dtype: str) -> Matrix:
        """Return the matrix in another dtype."""
        if dtype == self.dtype:
            return self
        whole = None if self.whole is None else pt.cast(self.whole, dtype)
        return replace(self, data=fold(pt.cast(self.data, dtype)), whole=whole)

    def has_places_of(self, other: Matrix) -> bool:
        """Tell whether entry `k` of both matrices is at the same place."""
        if self.pattern is None or other.pattern is None or self.format != other.format:
            return self.rows is other.rows and self.cols is other.cols
        return all(map(is_same, self.pattern, other.pattern))


# -- from PyTensor's variables and to them -----------------------------------------------------------------------------


def compressed(
    type: SparseTensorType, data: Variable, indices: Variable, indptr: Variable, other_length: Variable
) -> Matrix:
    """Return the matrix of a CSR or CSC matrix's arrays and the length of the axis that is not compressed."""
    axes = [(compressed_index(indptr, indices), fold(length(indptr, 0) - 1)), (indices, other_length)]  # type: ignore[operator]
    (rows, n), (cols, m) = axes if type.format == "csr" else axes[::-1]
    shape = tuple(known if k is None else number(k) for k, known in zip(type.shape, (n, m), strict=True))
    return Matrix(type.format, data, rows, cols, shape, (indices, indptr))  # type: ignore[arg-type]


def compressed_index(indptr: Variable, indices: Variable) -> Variable:
    """Return for each entry its place along the compressed axis."""
    return fold(apply(CompressedIndex(), indptr, indices))


def taken_apart(x: Variable) -> Matrix:
    """Return the matrix of a sparse variable, whose arrays the host takes; a constant's are constants."""
    if isinstance(x, Constant):
        x_type = x.type.clone(shape=x.data.shape)
        return compressed(x_type, *map(fold, TakeApart().make_node(x).outputs))  # type: ignore[arg-type]
    return compressed(x.type, *TakeApart().make_node(x).outputs)  # type: ignore[arg-type]


def of_dense(x: Variable, format: str) -> Matrix:
    """Return the matrix of a dense array: every place has an entry, those that are zero to be dropped."""
    n, m = length(x, 0), length(x, 1)
    place = pt.arange(n * m, dtype="int64")
    rows, cols = ((part).astype("int32") for part in (place // m, place % m))
    return Matrix(format, x.ravel(), rows, cols, (n, m), drops_zeros=True, whole=x)  # type: ignore[attr-defined]


def assembled(x: Matrix, type: SparseTensorType) -> Variable:
    """Return the matrix as a sparse variable that the host makes."""
    if x.whole is not None:
        return apply(Compress(type), x.whole)
    places = x.pattern or (x.rows, x.cols)
    op = Assemble(type, x.pattern is not None, x.drops_zeros)
    return apply(op, x.data, *places, *x.shape)


# -- numbers -----------------------------------------------------------------------------------------------------------


def number(value: int) -> Constant:
    """Return a length as a constant."""
    return pt.constant(value, dtype="int64", ndim=0)


def length(x: Variable, axis: int) -> Variable:
    """Return the length of an axis."""
    known = x.type.shape[axis]
    return apply(Shape_i(axis), x) if known is None else number(known)


def fold(x: Variable) -> Variable:
    """Return the constant that a variable is if it follows from constants, else the variable."""
    if isinstance(x, Constant) or not all(isinstance(v, Constant) for v in graph_inputs([x])):
        return x
    return pt.constant(StaticValues({}, lambda v: v.data.shape)(x), dtype=x.type.dtype)


def is_same(x: Variable, y: Variable) -> bool:
    """Tell whether two variables are one, or constants of one value."""
    return x is y or (isinstance(x, Constant) and isinstance(y, Constant) and x.equals(y))


def expect_equal(x: Variable, n: Variable, m: Variable, message: str, error: type[Exception] = ValueError) -> Variable:
    """Return `x`, having said that two numbers must be equal."""
    return x if is_same(n, m) else CheckAndRaise(error, message)(x, pt.eq(n, m))  # type: ignore[return-value]


def expect_length(x: Variable, axis: int, n: Variable, message: str, error: type[Exception] = ValueError) -> Variable:
    """Return `x`, having said that one of its axes must be of length `n`."""
    known = x.type.shape[axis]
    if known is not None and isinstance(n, Constant) and known == n.data:
        return x
    return apply(CheckLength(axis, error, message), x, n)


# -- what is computed with entries -------------------------------------------------------------------------------------


def take_at(x: Variable, *indices: Variable) -> Variable:
    """Return the elements of an array at places along its first axes."""
    return apply(TakeAt(), x, *indices)


def sum_at(x: Variable, indices: tuple[Variable, ...], lengths: tuple[Variable, ...]) -> Variable:
    """Return an array of the sums of the elements that belong to each place."""
    return apply(SumAt(len(indices)), x, *indices, *lengths)


def dense(x: Matrix) -> Variable:
    """Return the matrix as a dense array."""
    return sum_at(x.data, (x.rows, x.cols), x.shape) if x.whole is None else x.whole


def product(x: Matrix, y: Variable, dtype: str) -> Variable:
    """Return the product with a dense vector or matrix: rows of `y`, scaled and summed by the rows of the entries."""
    y = expect_length(pt.cast(y, dtype), 0, x.shape[1], "dimension mismatch")
    x = x.cast(dtype)
    if x.whole is not None:
        return pt.dot(x.whole, y)
    data = x.data if y.type.ndim == 1 else x.data.dimshuffle(0, "x")  # type: ignore[attr-defined]
    return sum_at(data * take_at(y, x.cols), (x.rows,), x.shape[:1])


def column_product(y: Variable, x: Matrix, dtype: str) -> Variable:
    """Return the product of a dense vector or matrix with a sparse matrix."""
    result = product(x.transposed, y.T, dtype)  # type: ignore[attr-defined]
    return result.T  # type: ignore[attr-defined]


def elements(x: Matrix, rows: Variable, cols: Variable) -> Variable:
    """Return the elements of a matrix at places, found among its sorted entries by halving."""
    if x.whole is not None:
        return take_at(x.whole, rows, cols)

    def key(i: Variable, j: Variable) -> Variable:
        return fold(pt.cast(i, "int64") * x.shape[1] + j)

    places = key(x.rows, x.cols)
    order = fold(pt.argsort(places, kind="stable"))
    places = fold(take_at(places, order))
    first = fold(pt.searchsorted(places, places))  # of the entries at the same place
    sums = sum_at(take_at(x.data, order), (first,), (length(x.data, 0),))
    wanted = key(rows, cols)
    found = pt.searchsorted(places, wanted)
    is_entry = pt.eq(take_at(places, found), wanted)
    return pt.switch(is_entry, take_at(sums, found), pt.zeros((), dtype=x.dtype))
