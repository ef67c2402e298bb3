"""Matrices that are put together of others."""

from __future__ import annotations

from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.linalg.constructors import BlockDiagonal
from pytensor.tensor.linalg.products import KroneckerProduct

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.scalar import convert, number
from pytensor_jaxpr_linker.jaxpr import prims


@emits(BlockDiagonal, batched=True)
def emit_BlockDiagonal(op, node, b, *xs):
    """Pad the blocks with zeros to the full number of columns, and join them."""
    lead, width, left, rows = len(xs[0].aval.shape) - 2, sum(x.aval.shape[-1] for x in xs), 0, []
    for x in xs:
        x = convert(b, x, node.outputs[0].type.dtype)
        right = width - left - x.aval.shape[-1]
        rows.append(prims.pad(b, x, number(b, x, 0), [(0, 0, 0)] * (lead + 1) + [(left, right, 0)]))
        left += x.aval.shape[-1]
    return prims.concatenate(b, rows, lead)


@emits(KroneckerProduct, batched=True)
def emit_KroneckerProduct(op, node, b, *xs):
    """The products of all pairs of elements: the axes of the factors take turns, then each pair becomes one."""
    lead = node.op.batch_ndim(node) if isinstance(node.op, Blockwise) else 0
    batch, ndim = xs[0].aval.shape[:lead], max(len(x.aval.shape) for x in xs) - lead
    lengths = [(*[1] * (ndim + lead - len(x.aval.shape)), *x.aval.shape[lead:]) for x in xs]
    paired = list(zip(*lengths, strict=True))
    shape = (*batch, *(n for pair in paired for n in pair))
    factors = []
    for i, x in enumerate(xs):
        x, first = convert(b, x, node.outputs[0].type.dtype), ndim + lead - len(x.aval.shape)
        dims = [*range(lead), *(lead + 2 * axis + i for axis in range(first, ndim))]
        factors.append(prims.broadcast_in_dim(b, x, shape, dims))
    return prims.reshape(b, prims.mul(b, *factors), (*batch, *(m * n for m, n in paired)))
