"""Lowerings of the Ops of `pytensor.sparse.basic` and `pytensor.sparse.linalg` to Ops on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytensor.tensor as pt
from pytensor.compile.ops import DeepCopyOp, ViewOp
from pytensor.graph.basic import Apply, Constant
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.shape import Shape, Shape_i

from pytensor_jaxpr_linker.graph.lanes.ops import SliceBounds
from pytensor_jaxpr_linker.graph.sparse.lowering import Lowering, SparseOperands, is_properties, lowers
from pytensor_jaxpr_linker.graph.sparse.matrix import (
    Matrix,
    Tensor,
    arranged,
    axis_length,
    compressed,
    compressed_index,
    constant_length,
    dense,
    elements,
    expect_equal,
    expect_length,
    fold,
    joined_blocks,
    of_dense,
    place_of,
    sum_at,
    take_at,
)
from pytensor_jaxpr_linker.graph.sparse.products import constant_rows, reordered

# -- arrays and matrices -----------------------------------------------------------------------------------------------

#: The lowerings that are one expression, by the name or the class of the Op, with their notes in docs/ops.md.
ONE_EXPRESSION: dict[str | type, tuple[str, Lowering]] = {
    DeepCopyOp: ("Do nothing: the outputs of the graph are copies.", lambda node, x: x),
    Shape: ("Return the lengths of the axes.", lambda node, x: pt.stack(x.shape)),
    Shape_i: ("Return the length of an axis.", lambda node, x: x.shape[node.op.i]),
    ViewOp: ("Do nothing.", lambda node, x: x),
    "basic.Cast": ("Cast the numbers.", lambda node, x: x.cast(node.op.out_type)),
    "basic.DenseFromSparse": ("Sum entries at their places.", lambda node, x: dense(x)),
    "basic.EnsureSortedIndices": (
        "Sort the entries of each row (column) of a CSR (CSC) matrix.",
        lambda node, x: x if x.pattern is None else arranged(x),  # else the host sorts them
    ),
    "basic.Remove0": ("Note that zeros are left out.", lambda node, x: replace(x, drops_zeros=True, is_list=False)),
    "basic.SparseFromDense": (
        "Take all elements as entries, except zeros.",
        lambda node, x: of_dense(x, node.op.format),
    ),
    "basic.Transpose": ("Exchange rows and columns, and the format.", lambda node, x: x.transposed),
}
for op, (note, lowering) in ONE_EXPRESSION.items():
    lowering.__doc__ = note
    lowers(op)(lowering)


@lowers("basic.CSM", with_operands=False)
def csm(known: SparseOperands, node: Apply) -> Matrix:
    """Take the arrays as they are. Entries behind the last pointer, which SciPy leaves out, are an error."""
    data = known.variable(node.inputs[0])
    if (x := whole_of(node.inputs[1:], 1)) is not None:
        same = known.exact(x)
        return same.with_data(expect_length(data, 0, axis_length(same.data, 0), LENGTHS_DIFFER))
    indices, indptr, shape = map(known.variable, node.inputs[1:])
    data = expect_length(data, 0, axis_length(indices, 0), LENGTHS_DIFFER)
    lengths = [fold(pt.cast(shape[i], "int64")) for i in (0, 1)]
    along, across = lengths if node.op.format == "csr" else lengths[::-1]
    data = expect_equal(data, axis_length(indptr, 0), fold(along + 1), "the index pointers do not fit the shape")
    count = fold(pt.cast(indptr[-1], "int64"))
    data = expect_equal(data, count, axis_length(indices, 0), "the last index pointer must be the number of entries")
    type = node.outputs[0].type
    return compressed(type.format, type.shape, data, indices, indptr, across)


LENGTHS_DIFFER = "data must have as many elements as indices"


@lowers("basic.ConstructSparseFromList")
def construct_sparse_from_list(node: Apply, shape: Tensor, values: Tensor, rows: Tensor) -> Matrix:
    """Put each column of the values into the same column of the matrix, at the rows of the list."""
    values = expect_length(values, 0, axis_length(rows, 0), "values must have as many rows as the list", AssertionError)
    n, m = axis_length(values, 0), axis_length(values, 1)
    indptr = pt.arange(m + 1, dtype="int32") * pt.cast(n, "int32")
    indices = pt.tile(pt.cast(rows, "int32"), m)
    data = pt.cast(values.T.ravel(), node.outputs[0].type.dtype)
    type = node.outputs[0].type
    result = compressed(type.format, type.shape, data, indices, indptr, pt.cast(shape[0], "int64"))
    return replace(result, shape=(result.shape[0], pt.cast(shape[1], "int64")))


#: The shape of a matrix that declares none.
UNKNOWN = (None, None)


@lowers("basic.CSMGrad", with_operands=False)
def csm_grad(known: SparseOperands, node: Apply) -> Tensor:
    """Return the elements of the gradient at the places of the matrix's entries."""
    indices, indptr, shape = map(known.variable, node.inputs[1:4])
    if (gradient := whole_of(node.inputs[4:])) is None:
        # Rewrites have taken the matrix away. Its format says nothing about how entries meet.
        g_data, g_indices, g_indptr = map(known.variable, node.inputs[4:7])
        g = compressed("csr", UNKNOWN, g_data, g_indices, g_indptr, pt.max(shape).astype("int64"))
    else:
        g = known.matrix(gradient)
    x = compressed(g.format, UNKNOWN, g.data, indices, indptr, g.shape[g.format == "csr"])
    # Of several entries at one place, each has the derivative of one: PyTensor's Op sums them here.
    found = g.data if g.has_places_of(x) else elements(g, x.rows, x.cols)
    return pt.cast(found, node.outputs[0].type.dtype)


def whole_of(parts: Sequence[Tensor], first: int = 0) -> Tensor | None:
    """Return the sparse variable whose properties, from number `first` on, are `parts`; or None."""
    owner = parts[0].owner
    if is_properties(owner) and list(parts) == owner.outputs[first:]:
        return owner.inputs[0]
    return None


# -- matrices of the same entries --------------------------------------------------------------------------------------


@lowers("basic.ColScaleCSC", "basic.RowScaleCSC")
def scale(node: Apply, x: Matrix, s: Tensor) -> Matrix:
    """Multiply each entry by the number of its column (row)."""
    is_col = type(node.op).__name__ == "ColScaleCSC"
    s = expect_length(s, 0, x.shape[is_col], "the factors do not fit the matrix", AssertionError)
    return x.with_data(pt.cast(x.data * take_at(s, x.cols if is_col else x.rows), node.outputs[0].type.dtype))


# -- parts of a matrix -------------------------------------------------------------------------------------------------


@lowers("basic.Diag")
def diag(node: Apply, x: Matrix) -> Tensor:
    """Sum the entries that are on the diagonal by row."""
    data = pt.switch(pt.eq(x.rows, x.cols), x.data, pt.zeros((), dtype=x.dtype))
    result = sum_at(data, (x.rows,), x.shape[:1])
    return expect_length(result, 0, x.shape[1], "Diag only apply on square matrix")


@lowers("basic.GetItemScalar")
def get_item_scalar(node: Apply, x: Matrix, *place: Tensor) -> Tensor:
    """Sum the entries at a place."""
    i, j = map(position, place, x.shape)
    return pt.sum(pt.switch(pt.eq(x.rows, i) & pt.eq(x.cols, j), x.data, pt.zeros((), dtype=x.dtype)), dtype=x.dtype)


@lowers("basic.GetItem2Lists")
def get_item_2lists(node: Apply, x: Matrix, *places: Tensor) -> Tensor:
    """Find the elements among the sorted entries."""
    return pt.cast(elements(x, *map(position, places, x.shape)), node.outputs[0].type.dtype)


@lowers("basic.GetItem2ListsGrad")
def get_item_2lists_grad(node: Apply, x: Matrix, rows: Tensor, cols: Tensor, g: Tensor) -> Matrix:
    """Return a matrix of the elements of the gradient; of several at one place the last counts."""
    i, j = map(position, (rows, cols), x.shape)
    return scattered(node, x, pt.switch(is_last(place_of(i, j, x.shape[1])), g, 0), i, j)


@lowers("basic.GetItemList")
def get_item_list(node: Apply, x: Matrix, rows: Tensor) -> Matrix | None:
    """Take the entries of the listed rows, row by row. Their number must be known."""
    if (places := constant_rows(x)) is None:
        return None
    i = fold(position(rows, x.shape[0]))
    starts, stops = (fold(take_at(pt.constant(v), i)) for v in (places.indptr[:-1], places.indptr[1:]))
    ends = fold(pt.cumsum(stops - starts))
    pointers = fold(pt.concatenate([[0], ends]).astype("int32"))
    entries = fold(pt.arange(pointers[-1]))
    rows = compressed_index(pointers, entries)
    found = fold(entries - take_at(pointers, rows) + take_at(starts, rows))
    data, cols = reordered(x.data, places.order), pt.constant(places.cols)
    shape = axis_length(i, 0), x.shape[1]
    return Matrix(x.format, take_at(data, found), rows, fold(take_at(cols, found)), shape, is_list=True)


@lowers("basic.GetItemListGrad")
def get_item_list_grad(node: Apply, x: Matrix, rows: Tensor, g: Matrix) -> Matrix:
    """Move the rows of the gradient to their places. The last row for a place counts; the others leave zeros."""
    i = position(rows, x.shape[0])
    rows = pt.switch(pt.lt(g.rows, g.shape[0]), take_at(i, g.rows), NOWHERE)
    return scattered(node, x, pt.switch(take_at(is_last(i), g.rows), g.data, 0), rows, g.cols)


def scattered(node: Apply, x: Matrix, data: Tensor, rows: Tensor, cols: Tensor) -> Matrix:
    """Return a matrix like `x` with other entries. Several of them may be at one place."""
    rows, cols = (fold(pt.cast(v, "int32")) for v in (rows, cols))
    return Matrix(x.format, pt.cast(data, node.outputs[0].type.dtype), rows, cols, x.shape)


def is_last(places: Tensor) -> Tensor:
    """Return for each place whether it is the last of its value."""
    order = fold(pt.argsort(places, kind="stable"))
    places = take_at(places, order)
    differs = pt.concatenate([pt.neq(places[1:], places[:-1]), pt.ones_like(places[:1], dtype="bool")])
    return fold(take_at(differs, pt.argsort(order)))


def position(i: Tensor, n: Tensor) -> Tensor:
    """Return indices counted from the start, checked."""
    i = pt.cast(i, "int64")
    i = pt.switch(i < 0, i + n, i)
    return CheckAndRaise(IndexError, "index out of bounds")(i, pt.all(pt.ge(i, 0) & (i < n)))


@lowers("basic.GetItem2d")
def get_item_2d(node: Apply, x: Matrix, *slices: Tensor) -> Matrix | None:
    """Move the entries of a block to its corner, the others past the last row and column."""
    steps = [1 if v.data is None else int(v.data) for v in node.inputs[3::3] if isinstance(v, Constant)]
    if len(steps) < 2 or min(steps) < 1:
        return None
    moved, lengths = [], []
    inside: Tensor = pt.ones_like(x.rows, dtype="bool")
    for places, n, start, stop, step in zip((x.rows, x.cols), x.shape, slices[::3], slices[1::3], steps, strict=True):
        first, count = bounds_of_slice(start, stop, n)
        place = pt.cast(places, "int64") - first
        inside = inside & pt.ge(place, 0) & (place < count)
        if step > 1:
            inside, place, count = inside & pt.eq(place % step, 0), place // step, fold((count + step - 1) // step)
        moved.append(place)
        lengths.append(count)
    rows = pt.switch(inside, moved[0], lengths[0])
    cols = pt.switch(inside, moved[1], lengths[1])
    rows, cols = (fold(pt.cast(v, "int32")) for v in (rows, cols))
    return replace(x, rows=rows, cols=cols, shape=(lengths[0], lengths[1]), pattern=None, is_list=False, whole=None)


def bounds_of_slice(start: Tensor, stop: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first position of a slice, and how long it is."""
    whole = [isinstance(v, Constant) and v.data is None for v in (start, stop)]
    if all(whole):
        return constant_length(0), n
    first = constant_length(0) if whole[0] else pt.cast(start, "int64")
    last = n if whole[1] else pt.cast(stop, "int64")
    found, count = SliceBounds().make_node(first, last, n).outputs
    return fold(found), fold(count)


# -- matrices of several -----------------------------------------------------------------------------------------------


@lowers("basic.HStack", "basic.VStack")
def stacked_matrices(node: Apply, *blocks: Matrix) -> Matrix:
    """Shift the columns (rows) of each block by the number of columns (rows) before it."""
    axis, result = int(type(node.op).__name__ == "HStack"), node.outputs[0].type
    across = blocks[0].shape[1 - axis]
    placed, zero = [], constant_length(0)
    offset = zero
    for x in (block.cast(result.dtype) for block in blocks):
        data = expect_equal(x.data, x.shape[1 - axis], across, "blocks have incompatible dimensions")
        row, col = (zero, offset) if axis else (offset, zero)
        placed.append(shifted(replace(x, data=data), row, col))
        offset = fold(offset + x.shape[axis])
    return joined_blocks(placed, result.format, (across, offset) if axis else (offset, across))


@lowers("linalg.SparseBlockDiagonal")
def block_diagonal(node: Apply, *blocks: Matrix | Tensor) -> Matrix:
    """Put blocks after one another along both axes. Zeros of dense blocks are left out."""
    type = node.outputs[0].type
    placed, row, col = [], constant_length(0), constant_length(0)
    for block in blocks:
        x = block if isinstance(block, Matrix) else without_zeros(of_dense(block, type.format))
        placed.append(shifted(x.cast(type.dtype), row, col))
        row, col = fold(row + x.shape[0]), fold(col + x.shape[1])
    return joined_blocks(placed, type.format, (row, col))


def without_zeros(x: Matrix) -> Matrix:
    """Return a matrix without the entries that are zero. Each place must have one entry."""
    rows = pt.switch(pt.neq(x.data, 0), x.rows, x.shape[0])
    return replace(x, rows=rows, drops_zeros=False, is_list=False, whole=None)


def shifted(x: Matrix, row: Tensor, col: Tensor) -> Matrix:
    """Return a matrix with its entries moved by `row` and `col`. Entries that are left out stay out."""
    inside = pt.lt(x.rows, x.shape[0])
    rows, cols = (
        fold(pt.cast(pt.switch(inside, v + by, NOWHERE), "int32")) for v, by in ((x.rows, row), (x.cols, col))
    )
    return replace(x, rows=rows, cols=cols)


#: A row, or column, that no matrix has.
NOWHERE = pt.constant(2**31 - 1, dtype="int64")
