"""Determinants, by the LU decomposition."""

from __future__ import annotations

from pytensor.tensor.linalg.summary import Det, SLogDet

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.linalg.factors import lu_factors
from pytensor_jaxpr_linker.emit.linalg.matrices import check_square
from pytensor_jaxpr_linker.emit.scalar import numpy_astype
from pytensor_jaxpr_linker.emit.tensor_basic import diagonal
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder


def lu_diagonal(b: JaxprBuilder, x: Atom) -> tuple[Atom, Atom]:
    """Emit the diagonal of U, and whether the number of row exchanges was odd."""
    factors, pivots, _ = lu_factors(b, x)
    axis = len(pivots.aval.shape) - 1
    exchanged = prims.ne(b, pivots, prims.iota(b, "int32", pivots.aval.shape, axis))
    return diagonal(b, factors), prims.reduce_xor(b, exchanged, (axis,))


def negated_if(b: JaxprBuilder, odd: Atom, x: Atom) -> Atom:
    """Emit ``-x`` where `odd` holds, else `x`."""
    return prims.select(b, odd, prims.neg(b, x), x)


@emits(Det, batched=True)
def emit_Det(op, node, b, x):
    """The product of the diagonal of U, with the sign of the row exchanges."""
    check_square(*x.aval.shape)
    x = numpy_astype(b, x, node.outputs[0].type.dtype)
    elements, odd = lu_diagonal(b, x)
    return negated_if(b, odd, prims.reduce_prod(b, elements, (len(elements.aval.shape) - 1,)))


@emits(SLogDet, batched=True)
def emit_SLogDet(op, node, b, x):
    """The sign of the determinant, and the logarithm of its magnitude: -inf where it is zero."""
    check_square(*x.aval.shape)
    elements, odd = lu_diagonal(b, numpy_astype(b, x, node.outputs[0].type.dtype))
    axis, size = len(elements.aval.shape) - 1, prims.abs_(b, elements)
    sign = prims.reduce_prod(b, prims.sign(b, elements), (axis,))
    return negated_if(b, odd, sign), prims.reduce_sum(b, prims.log(b, size), (axis,))
