"""The dense Ops that sparse ones are lowered to, and products of sparse matrices with dense arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jax import lax

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.shape import as_lengths
from pytensor_jaxpr_linker.graph.sparse import ops
from pytensor_jaxpr_linker.graph.sparse.products import COLUMNS_AT_ONCE
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.jaxpr.nested import row_of, row_range


@emits(ops.CompressedIndex)
def emit_CompressedIndex(op, node, b, indptr, entries):
    """Count pointers."""
    return rows_of_entries(b, indptr, entries)


def rows_of_entries(b: JaxprBuilder, indptr: Atom, entries: Atom) -> Atom:
    """Count at each entry the pointers that end there: their running sum is how many rows end at or before it."""
    (n,) = entries.aval.shape
    if n == 0 or indptr.aval.shape[0] == 1:
        return prims.broadcast_to(b, b.constant(np.int32(0)), (n,))
    (m,) = indptr.aval.shape
    ends = row_range(b, indptr, 1, m)
    zeros = prims.broadcast_to(b, b.constant(np.int32(0)), (n,))
    ones = prims.broadcast_to(b, b.constant(np.int32(1)), (m - 1,))
    return prims.cumsum(b, scatter_entries(b, zeros, ones, ends), 0)


def places(b: JaxprBuilder, indices: Sequence[Atom]) -> Atom:
    """Emit index vectors as the columns of the matrix that gathers and scatters take."""
    columns = [prims.reshape(b, prims.convert(b, i, "int32"), (*i.aval.shape, 1)) for i in indices]
    return prims.concatenate(b, columns, 1) if len(columns) > 1 else columns[0]


@emits(ops.TakeAt)
def emit_TakeAt(op, node, b, x, *indices):
    """Gather."""
    return gather_at(b, x, *indices)


def gather_at(b: JaxprBuilder, x: Atom, *indices: Atom) -> Atom:
    """Gather windows of the axes that are not indexed."""
    count, shape = len(indices), x.aval.shape
    result = (*indices[0].aval.shape, *shape[count:])
    if 0 in shape or 0 in result:
        return prims.broadcast_to(b, b.constant(0, x.aval.dtype), result)
    indexed = tuple(range(count))
    dims = lax.GatherDimensionNumbers(tuple(range(1, len(result))), indexed, indexed)
    sizes = (*(1,) * count, *shape[count:])
    return prims.gather(b, x, places(b, indices), dims, sizes, result, lax.GatherScatterMode.CLIP)


@emits(ops.SumAt, static=lambda node: range(1 + node.op.count, len(node.inputs)))
def emit_SumAt(op, node, b, x, *operands):
    """Scatter into zeros."""
    indices, lengths = operands[: op.count], as_lengths(operands[op.count :])
    zeros = prims.broadcast_to(b, b.constant(0, x.aval.dtype), (*lengths, *x.aval.shape[1:]))
    return scatter_entries(b, zeros, x, *indices)


def scatter_entries(b: JaxprBuilder, total: Atom, x: Atom, *indices: Atom) -> Atom:
    """Add elements to `total` by a scatter that drops positions out of bounds."""
    if 0 in x.aval.shape or 0 in total.aval.shape:
        return total
    indexed = tuple(range(len(indices)))
    dims = lax.ScatterDimensionNumbers(tuple(range(1, len(x.aval.shape))), indexed, indexed)
    return prims.scatter_add(b, total, places(b, indices), x, dims)


@emits(ops.CheckLength, static=(1,))
def emit_CheckLength(op, node, b, x, length):
    """Compare while building."""
    op.check(x.aval.shape, length.item())
    return x


# -- products ----------------------------------------------------------------------------------------------------------


#: Products of more bytes than this are scattered as they are made, `CHUNK` entries at a time.
LARGE_PRODUCT = 2**24
ENTRIES_AT_ONCE = 1024

#: Columns that Eigen's product takes at once; a single column takes as long.
COLUMNS = 4


@emits(ops.ListDot, static=(4,))
def emit_ListDot(op, node, b, data, rows, cols, y, n):
    """Multiply for each entry a row, and sum the products by the rows of the entries."""
    return list_dot(b, data, rows, cols, y, n.item())


def list_dot(b: JaxprBuilder, data: Atom, rows: Atom, cols: Atom, y: Atom, n: int) -> Atom:
    """Emit a scatter of all products, or a loop if they are large: then new memory takes longer than products."""
    shape = (*data.aval.shape, *y.aval.shape[1:])
    zeros = prims.broadcast_to(b, b.constant(0, y.aval.dtype), (n, *shape[1:]))
    if len(shape) == 1 or not has_known_shape(shape) or shape[0] * shape[1] * y.aval.dtype.itemsize <= LARGE_PRODUCT:
        return add_entries(b, zeros, (data, rows, cols), y)
    count = -(-shape[0] // ENTRIES_AT_ONCE)
    fill = (b.constant(0, data.aval.dtype), b.constant(n, rows.aval.dtype), b.constant(0, cols.aval.dtype))
    padded = [
        prims.reshape(b, prims.pad(b, v, value, [(0, count * ENTRIES_AT_ONCE - shape[0], 0)]), (count, ENTRIES_AT_ONCE))
        for v, value in zip((data, rows, cols), fill, strict=True)
    ]
    avals = [y.aval, zeros.aval, *(b.aval((ENTRIES_AT_ONCE,), v.aval.dtype) for v in padded)]
    body, (factor, total, *entries) = b.sub_jaxpr(avals)
    jaxpr = body.build([add_entries(body, total, entries, factor)])
    return prims.scan(b, jaxpr, [y], [zeros], padded, count)[0]


def add_entries(b: JaxprBuilder, total: Atom, entries: Sequence[Atom], y: Atom) -> Atom:
    """Emit the sum of `total` and the products of entries (data, rows, columns) with rows of `y`."""
    data, rows, cols = entries
    taken = gather_at(b, y, cols)
    factors = prims.broadcast_in_dim(b, data, taken.aval.shape, (0,))
    return scatter_entries(b, total, prims.mul(b, factors, taken), rows)


@emits(ops.CompressedDot)
def emit_CompressedDot(op, node, b, data, indices, indptr, y):
    """Call the one primitive that JAX has for it, with columns of zeros that make their number a multiple."""
    n, (m, k) = indptr.aval.shape[0] - 1, y.aval.shape
    if not has_known_shape((n, m, k, *data.aval.shape)) or 0 in (n, m, k, *data.aval.shape):
        return list_dot(b, data, rows_of_entries(b, indptr, data), indices, y, n)
    wide = prims.pad(b, y, b.constant(0, y.aval.dtype), [(0, 0, 0), (0, -k % COLUMNS, 0)]) if k % COLUMNS else y
    found = prims.bcsr_dot_general(b, data, indices, indptr, wide, (n, m))
    return prims.slice_(b, found, (0, 0), (n, k), (1, 1)) if k % COLUMNS else found


@emits(ops.PaddedDot)
def emit_PaddedDot(op, node, b, cols, x, data, *slots):
    """Add columns; the column past the last, and the entry past the last, are zero."""
    zeros, x = prims.broadcast_to(b, b.constant(0, x.aval.dtype), cols.aval.shape[1:]), with_zero(b, x)
    if slots:
        return sum_of_rows(b, zeros, [cols, *slots], [x, with_zero(b, data)], gathered_term)
    return sum_of_rows(b, zeros, [cols, data], [x], lambda b, cols, row, x: prims.mul(b, row, gather_at(b, x, cols)))


def gathered_term(b: JaxprBuilder, cols: Atom, slots: Atom, x: Atom, data: Atom) -> Atom:
    """Emit the products of a column of entries, whose numbers are gathered."""
    return prims.mul(b, gather_at(b, data, slots), gather_at(b, x, cols))


def with_zero(b: JaxprBuilder, x: Atom) -> Atom:
    """Emit a vector with a zero behind it."""
    return prims.pad(b, x, b.constant(0, x.aval.dtype), [(0, 1, 0)])


@emits(ops.SampledDot)
def emit_SampledDot(op, node, b, x, y, rows, cols):
    """Add the products of one column of both factors after the other."""
    if not has_known_shape(x.aval.shape[1:]):
        return prims.reduce_sum(b, prims.mul(b, gather_at(b, x, rows), gather_at(b, y, cols)), (1,))
    zeros = prims.broadcast_to(b, b.constant(0, x.aval.dtype), rows.aval.shape)
    columns = [prims.transpose(b, v, (1, 0)) for v in (x, y)]
    return sum_of_rows(b, zeros, columns, [rows, cols], sampled_term)


def sampled_term(b: JaxprBuilder, x: Atom, y: Atom, rows: Atom, cols: Atom) -> Atom:
    """Emit the products of elements of two columns."""
    return prims.mul(b, gather_at(b, x, rows), gather_at(b, y, cols))


def sum_of_rows(
    b: JaxprBuilder, total: Atom, arrays: Sequence[Atom], shared: Sequence[Atom], term: Callable[..., Atom]
) -> Atom:
    """Emit `total` plus ``term(b, *row, *shared)`` for each of the rows of arrays.

    A kernel adds a block of rows, element by element. XLA's CPU compiler would run a reduction one dependent term after
    another, and materialize all terms first if they are many.
    """
    count = arrays[0].aval.shape[0]
    blocks = count // COLUMNS_AT_ONCE if count > 2 * COLUMNS_AT_ONCE else 0
    if blocks:
        heads = [row_range(b, x, 0, blocks * COLUMNS_AT_ONCE) for x in arrays]
        stacked = [prims.reshape(b, x, (blocks, COLUMNS_AT_ONCE, *x.aval.shape[1:])) for x in heads]
        slices = [b.aval(x.aval.shape[1:], x.aval.dtype) for x in stacked]
        body, atoms = b.sub_jaxpr([*(x.aval for x in (*shared, total)), *slices])
        same, carry, *xs = atoms[: len(shared)], *atoms[len(shared) :]
        jaxpr = body.build([add_rows(body, carry, xs, same, term, range(COLUMNS_AT_ONCE))])
        (total,) = prims.scan(b, jaxpr, shared, [total], stacked, blocks)
    return add_rows(b, total, arrays, shared, term, range(blocks * COLUMNS_AT_ONCE, count))


def add_rows(
    b: JaxprBuilder, total: Atom, arrays: Sequence[Atom], shared: Sequence[Atom], term: Callable[..., Atom], rows: range
) -> Atom:
    """Emit `total` plus the terms of some rows."""
    for i in rows:
        total = prims.add(b, total, term(b, *(row_of(b, x, i) for x in arrays), *shared))
    return total


def has_known_shape(shape: Shape) -> bool:
    return all(isinstance(n, int) for n in shape)
