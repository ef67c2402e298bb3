"""The dense Ops that sparse ones are lowered to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jax import lax

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.lengths import as_lengths
from pytensor_jaxpr_linker.graph.sparse.ops import CheckLength, CompressedIndex, SumAt, TakeAt
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder


@emits(CompressedIndex)
def emit_CompressedIndex(op, node, b, indptr, entries):
    """Count pointers."""
    return rows_of_entries(b, indptr, entries)


def rows_of_entries(b: JaxprBuilder, indptr: Atom, entries: Atom) -> Atom:
    """Count at each entry the pointers that end there: their running sum is how many rows end at or before it."""
    (n,) = entries.aval.shape
    if n == 0 or indptr.aval.shape[0] == 1:
        return prims.broadcast_to(b, b.constant(np.int32(0)), (n,))
    (m,) = indptr.aval.shape
    ends = prims.slice_(b, indptr, (1,), (m,), (1,))
    zeros = prims.broadcast_to(b, b.constant(np.int32(0)), (n,))
    ones = prims.broadcast_to(b, b.constant(np.int32(1)), (m - 1,))
    return prims.cumsum(b, scatter_entries(b, zeros, ones, ends), 0)


def places(b: JaxprBuilder, indices: Sequence[Atom]) -> Atom:
    """Emit index vectors as the columns of the matrix that gathers and scatters take."""
    columns = [prims.reshape(b, prims.convert(b, i, "int32"), (*i.aval.shape, 1)) for i in indices]
    return prims.concatenate(b, columns, 1) if len(columns) > 1 else columns[0]


@emits(TakeAt)
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


@emits(SumAt, static=lambda node: range(1 + node.op.count, len(node.inputs)))
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


@emits(CheckLength, static=(1,))
def emit_CheckLength(op, node, b, x, length):
    """Compare while building."""
    op.check(x.aval.shape, length.item())
    return x
