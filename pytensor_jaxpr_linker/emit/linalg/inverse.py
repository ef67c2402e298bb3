"""Inverses and determinants of matrices, by the LU decomposition, and pseudo-inverses, by singular values."""

from __future__ import annotations

import math

from pytensor.tensor.linalg.inverse import MatrixInverse, MatrixPinv, TensorInv
from pytensor.tensor.linalg.summary import Det, SLogDet

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.linalg import matrices
from pytensor_jaxpr_linker.emit.linalg.decomposition import check_converged
from pytensor_jaxpr_linker.emit.linalg.solvers import checked_solution, is_large, reciprocal_where, scaled_columns
from pytensor_jaxpr_linker.emit.scalar import number, numpy_astype
from pytensor_jaxpr_linker.emit.tensor_basic import diagonal
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder


@emits(MatrixInverse, batched=True)
def emit_MatrixInverse(op, node, b, x):
    """Solve for the identity; a singular matrix is an error."""
    matrices.check_square(*x.aval.shape)
    x = numpy_astype(b, x, node.outputs[0].type.dtype)
    return checked_solution(node, b, x, matrices.identity_matrices(b, x.aval.shape, x.aval.dtype))


@emits(TensorInv)
def emit_TensorInv(op, node, b, x):
    """The inverse of the matrix whose rows are the first axes of `x` and whose columns are the others."""
    shape = x.aval.shape
    rows, columns = math.prod(shape[: op.ind]), math.prod(shape[op.ind :])
    matrices.check_square(rows, columns)
    x = numpy_astype(b, x, node.outputs[0].type.dtype)
    unit = matrices.identity_matrices(b, (rows, columns), x.aval.dtype)
    inverse = checked_solution(node, b, prims.reshape(b, x, (rows, columns)), unit)
    return prims.reshape(b, inverse, (*shape[op.ind :], *shape[: op.ind]))


#: Singular values up to this fraction of the largest count as zero, as for `numpy.linalg.pinv`.
CUTOFF = 1e-15


@emits(MatrixPinv, batched=True)
def emit_MatrixPinv(op, node, b, x):
    """The pseudo-inverse by singular values, or by the eigenvalues of one triangle of a Hermitian matrix."""
    x = numpy_astype(b, x, node.outputs[0].type.dtype)
    if 0 in x.aval.shape:
        *batch, m, n = x.aval.shape
        return prims.broadcast_to(b, number(b, x, 0), (*batch, n, m))
    if op.hermitian:
        left, s = prims.eigh(b, matrices.symmetric(b, x, lower=True), True)
        columns = left
    else:
        s, left, right = prims.svd(b, x, False, True)
        check_converged(b, s, node)
        columns = matrices.adjoint(b, right)
    inverted = reciprocal_where(b, s, is_large(b, s, number(b, s, CUTOFF)))
    return matrices.matmul(b, scaled_columns(b, columns, inverted), matrices.adjoint(b, left))


# -- determinants ------------------------------------------------------------------------------------------------------


def lu_diagonal(b: JaxprBuilder, x: Atom) -> tuple[Atom, Atom]:
    """Emit the diagonal of U, and whether the number of row exchanges was odd."""
    factors, pivots, _ = matrices.lu_factors(b, x)
    axis = len(pivots.aval.shape) - 1
    exchanged = prims.ne(b, pivots, prims.iota(b, "int32", pivots.aval.shape, axis))
    return diagonal(b, factors), prims.reduce_xor(b, exchanged, (axis,))


def negated_if(b: JaxprBuilder, odd: Atom, x: Atom) -> Atom:
    """Emit ``-x`` where `odd` holds, else `x`."""
    return prims.select(b, odd, prims.neg(b, x), x)


@emits(Det, batched=True)
def emit_Det(op, node, b, x):
    """The product of the diagonal of U, with the sign of the row exchanges."""
    matrices.check_square(*x.aval.shape)
    x = numpy_astype(b, x, node.outputs[0].type.dtype)
    elements, odd = lu_diagonal(b, x)
    return negated_if(b, odd, prims.reduce_prod(b, elements, (len(elements.aval.shape) - 1,)))


@emits(SLogDet, batched=True)
def emit_SLogDet(op, node, b, x):
    """The sign of the determinant, and the logarithm of its magnitude: -inf where it is zero."""
    matrices.check_square(*x.aval.shape)
    elements, odd = lu_diagonal(b, numpy_astype(b, x, node.outputs[0].type.dtype))
    axis, size = len(elements.aval.shape) - 1, prims.abs_(b, elements)
    sign = prims.reduce_prod(b, prims.sign(b, elements), (axis,))
    return negated_if(b, odd, sign), prims.reduce_sum(b, prims.log(b, size), (axis,))
