"""Positions of maxima, and products."""

from __future__ import annotations

from math import prod

import numpy as np
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.math import Argmax, Dot, MulWithoutZeros

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.scalar import emits_scalar, number, numpy_astype
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom


@emits(Argmax)
def emit_Argmax(op, node, b, x):
    """The first position of the maximum, in row-major order of the reduced axes."""
    ndim = len(x.aval.shape)
    axes = tuple(range(ndim)) if op.axis is None else op.axis
    kept = [i for i in range(ndim) if i not in axes]
    x = prims.transpose(b, x, [*kept, *axes])
    lead, last = x.aval.shape[: len(kept)], x.aval.shape[len(kept) :]
    if 0 in last:
        raise ValueError("attempt to get argmax of an empty sequence")
    if x.aval.dtype.kind == "b":
        x = numpy_astype(b, x, "int8")
    return prims.argmax(b, prims.reshape(b, x, (*lead, prod(last))), len(kept), "int64")


@emits(Dot, BatchedDot, batched=True)
def emit_Dot(op, node, b, x, y):
    """The product of matrices, or of stacks of them that have equal leading axes."""
    dtype = np.dtype(node.outputs[0].type.dtype)
    check_aligned(x, y)
    x, y = (numpy_astype(b, v, dtype) for v in (x, y))
    if dtype.kind == "b":
        x, y = (prims.convert(b, v, "int32") for v in (x, y))
    lead = len(x.aval.shape) - 2
    batch = tuple(range(lead))
    return numpy_astype(b, prims.dot_general(b, x, y, ((lead + 1,), (lead,)), (batch, batch)), dtype)


def check_aligned(x: Atom, y: Atom) -> None:
    """Compare the lengths of a product of matrices.

    Raises
    ------
    TypeError
        If shared lengths differ, as `BatchedDot` raises.
    ValueError
        If contracted lengths differ.
    """
    (*batch, rows, n), (*other, m, columns) = x.aval.shape, y.aval.shape
    if batch != other:
        raise TypeError(f"The operands must have the same size in axis 0, but have sizes [{batch[0]}, {other[0]}].")
    if n != m:
        raise ValueError(f"shapes ({rows},{n}) and ({m},{columns}) not aligned: {n} (dim 1) != {m} (dim 0)")


@emits_scalar(MulWithoutZeros)
def mul_without_zeros(b, x, y):
    """The product in which a zero counts as one."""
    zero = number(b, x, 0)
    product = prims.select(b, prims.eq(b, y, zero), x, prims.mul(b, x, y))
    return prims.select(b, prims.eq(b, x, zero), y, product)
