"""Products of sparse matrices: chooses the fastest form for the known facts about the entries.

With a dense matrix, a product of a CSR matrix is one call of Eigen's on the CPU. With a vector, a scatter takes 4 ns an
entry on the CPU, and a row's sum of gathered elements waits for each addition, but adding *columns* of entries, one of
each row, takes half a nanosecond. So where the places of entries are constants, rows are padded to one length
(ELLPACK), and the entries that do not fit are scattered: the HYB format of Bell and Garland, *Implementing sparse
matrix-vector multiplication on throughput-oriented processors* (SC 2009).

The product of two sparse matrices is sparse. If the places of the entries are constants, NumPy finds once which entries
meet, and the places of their products. Otherwise the host multiplies: SciPy finds the places while it multiplies, in
less time than the device would take to count, sort and merge them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant
from pytensor.scalar.basic import upcast

from pytensor_jaxpr_linker.graph.lanes.ops import only_output
from pytensor_jaxpr_linker.graph.sparse.matrix import (
    Format,
    Matrix,
    Tensor,
    axis_length,
    constant_length,
    expect_length,
    fold,
    sum_at,
    take_at,
)
from pytensor_jaxpr_linker.graph.sparse.ops import CompressedDot, ListDot, PaddedDot, SampledDot

#: The dtypes for which there is a product of Eigen's.
COMPILED_DTYPES = frozenset(("int32", "int64", "float32", "float64", "complex64", "complex128"))

#: The time to scatter an entry, and to begin to scatter, in units of adding an entry of a padded row. Measured on a
#: CPU.
SCATTER_COST, SCATTER_START = 8, 20_000

#: Longer rows are padded to a multiple of this: a loop adds this many columns at once.
COLUMNS_AT_ONCE = 8


def product(x: Matrix, y: Tensor, dtype: str) -> Tensor:
    """Return the product with a dense vector or matrix."""
    y = expect_length(pt.cast(y, dtype), 0, x.shape[1], "dimension mismatch")
    x = x.cast(dtype)
    if x.whole is not None:
        return pt.dot(x.whole, y)
    if y.type.ndim == 2 and y.type.shape[1] == 1:
        return product(x, y[:, 0], dtype).dimshuffle(0, "x")
    rows = constant_rows(x)
    if y.type.ndim == 1 and rows is not None:
        return padded_product(x, rows, y)
    if y.type.ndim == 2 and dtype in COMPILED_DTYPES:
        if rows is not None:
            parts = reordered(x.data, rows.order), rows.cols, rows.indptr
            return only_output(CompressedDot(), *map(pt.as_tensor, parts), y)
        if x.pattern is not None and x.format == "csr":
            # The arrays of the caller may be out of bounds, and Eigen reads there.
            indices, indptr = x.pattern
            indices = pt.clip(indices, 0, pt.cast(x.shape[1] - 1, "int32"))
            indptr = pt.clip(indptr, 0, pt.cast(axis_length(indices, 0), "int32"))
            return only_output(CompressedDot(), x.data, indices, indptr, y)
    return only_output(ListDot(), x.data, x.rows, x.cols, y, x.shape[0])


def sampled_product(x: Tensor, y: Tensor, rows: Tensor, cols: Tensor, dtype: str) -> Tensor:
    """Return elements of the product of `x` and the transpose of `y`."""
    dtype = upcast(x.type.dtype, y.type.dtype, dtype)
    return only_output(SampledDot(), pt.cast(x, dtype), pt.cast(y, dtype), rows, cols)


# -- entries at constant places ----------------------------------------------------------------------------------------


class ConstantRows(NamedTuple):
    """The places of a matrix's entries, which are constants, row by row."""

    order: np.ndarray  #: the positions of the entries of the matrix, without the ones that are left out
    rows: np.ndarray
    cols: np.ndarray
    indptr: np.ndarray
    columns: int  #: the number of columns of the matrix


def constant_rows(x: Matrix) -> ConstantRows | None:
    """Return the places of a matrix's entries row by row, if they are constants and in bounds."""
    if not all(isinstance(v, Constant) for v in (x.rows, x.cols, *x.shape)):
        return None
    rows, cols, n, m = x.rows.data, x.cols.data, int(x.shape[0].data), int(x.shape[1].data)
    (order,) = np.nonzero(rows < n)
    order = order[np.argsort(rows[order], kind="stable")].astype("int32")
    rows, cols = rows[order].astype("int32"), cols[order].astype("int32")
    if len(order) and (rows[0] < 0 or cols.min() < 0 or cols.max() >= m):
        return None
    indptr = np.searchsorted(rows, np.arange(n + 1)).astype("int32")
    return ConstantRows(order, rows, cols, indptr, m)


def reordered(data: Tensor, order: np.ndarray) -> Tensor:
    """Return the elements of a vector in another order."""
    if data.type.shape[0] == len(order) and np.array_equal(order, np.arange(len(order))):
        return data
    return fold(take_at(data, pt.constant(order)))


def padded_product(x: Matrix, places: ConstantRows, y: Tensor) -> Tensor:
    """Return the product with a vector: padded rows, and a list of the entries that are too many for them."""
    width = padded_width(np.diff(places.indptr))
    rank = np.arange(len(places.rows)) - places.indptr[places.rows]  # of an entry in its row
    fits = rank < width
    parts: list[Tensor] = []
    if width:
        shape = width, len(places.indptr) - 1
        cols, slots = np.full(shape, places.columns, "int32"), np.full(shape, len(x.rows.data), "int32")
        cols[rank[fits], places.rows[fits]] = places.cols[fits]
        slots[rank[fits], places.rows[fits]] = places.order[fits]
        if isinstance(x.data, Constant):
            data = np.append(x.data.data, np.zeros(1, x.dtype))[slots]
            parts.append(only_output(PaddedDot(), pt.constant(cols), y, pt.constant(data)))
        else:
            parts.append(only_output(PaddedDot(), pt.constant(cols), y, x.data, pt.constant(slots)))
    if not width or not fits.all():
        rest = reordered(x.data, places.order[~fits]), places.rows[~fits], places.cols[~fits]
        parts.append(only_output(ListDot(), *map(pt.as_tensor, rest), y, x.shape[0]))
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def padded_width(counts: np.ndarray) -> int:
    """Return the length to pad rows to: one more column costs an addition a row, and saves a scatter a longer row."""
    if not counts.any():
        return 0
    longest = int(counts.max())
    width = int(np.quantile(counts, 1 - 1 / SCATTER_COST, method="higher"))
    width = -(-width // COLUMNS_AT_ONCE) * COLUMNS_AT_ONCE if width > 2 * COLUMNS_AT_ONCE else width
    scattered = SCATTER_START + SCATTER_COST * int(np.maximum(counts - width, 0).sum())
    if len(counts) * (longest - width) > scattered:
        return width
    return -(-longest // COLUMNS_AT_ONCE) * COLUMNS_AT_ONCE if longest > 2 * COLUMNS_AT_ONCE else longest


# -- two sparse matrices -----------------------------------------------------------------------------------------------

#: With more pairs of entries the host multiplies: their places would fill the program's memory.
MANY_PAIRS = 2**24


def constant_product(x: Matrix, y: Matrix, dtype: str, format: Format) -> Matrix | None:
    """Return the product, or None if places are not constants. As in SciPy, sums that are zero are left out."""
    left, right = constant_rows(x), constant_rows(y)
    if left is None or right is None or left.columns != len(right.indptr) - 1:
        return None
    counts = np.diff(right.indptr)[left.cols]
    if counts.sum() > MANY_PAIRS:
        return None
    first, second = pairs(left, right, counts)
    n, m = len(left.indptr) - 1, right.columns
    axes = left.rows[first].astype("int64"), right.cols[second].astype("int64")
    along, across, lengths = (*axes, (n, m)) if format == "csr" else (*axes[::-1], (m, n))
    places, inverse = np.unique(along * lengths[1] + across, return_inverse=True)
    factors = (reordered(v.cast(dtype).data, order) for v, order in ((x, left.order[first]), (y, right.order[second])))
    data = sum_at(pt.mul(*factors), (pt.constant(inverse.astype("int32")),), (constant_length(len(places)),))
    along, across = (part.astype("int32") for part in np.divmod(places, max(lengths[1], 1)))
    indptr = np.searchsorted(along, np.arange(lengths[0] + 1)).astype("int32")
    pattern = pt.constant(across), pt.constant(indptr)
    rows, cols = map(pt.constant, (along, across) if format == "csr" else (across, along))
    return Matrix(format, data, rows, cols, (constant_length(n), constant_length(m)), pattern, drops_zeros=True)


def pairs(left: ConstantRows, right: ConstantRows, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the entries that meet: each left entry meets `counts` entries, a row of the right."""
    first = np.repeat(np.arange(len(counts)), counts)
    starts = right.indptr[left.cols] - np.cumsum(counts) + counts
    return first, np.arange(len(first)) + np.repeat(starts, counts)
