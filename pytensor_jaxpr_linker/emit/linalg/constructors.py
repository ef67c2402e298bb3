"""Matrices that are put together of others."""

from __future__ import annotations

from pytensor.tensor.linalg.constructors import BlockDiagonal

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.scalar import number, numpy_astype
from pytensor_jaxpr_linker.jaxpr import prims


@emits(BlockDiagonal, batched=True)
def emit_BlockDiagonal(op, node, b, *xs):
    """Pad the blocks with zeros to the full number of columns, and join them."""
    lead, width, left, rows = len(xs[0].aval.shape) - 2, sum(x.aval.shape[-1] for x in xs), 0, []
    for x in xs:
        x = numpy_astype(b, x, node.outputs[0].type.dtype)
        right = width - left - x.aval.shape[-1]
        rows.append(prims.pad(b, x, number(b, x, 0), [(0, 0, 0)] * (lead + 1) + [(left, right, 0)]))
        left += x.aval.shape[-1]
    return prims.concatenate(b, rows, lead)
