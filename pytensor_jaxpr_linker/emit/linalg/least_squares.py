"""Pseudo-inverses and least squares, by singular values."""

from __future__ import annotations

import numpy as np
from pytensor.tensor.linalg.dtype_utils import linalg_output_dtype
from pytensor.tensor.linalg.inverse import MatrixPinv

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.linalg.decompositions import check_converged
from pytensor_jaxpr_linker.emit.linalg.matrices import adjoint, matmul, symmetric
from pytensor_jaxpr_linker.emit.scalar import convert, number
from pytensor_jaxpr_linker.graph.lanes.ops import LstsqParts
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder

#: Singular values up to this fraction of the largest count as zero, as for `numpy.linalg.pinv`.
CUTOFF = 1e-15


@emits(MatrixPinv, batched=True)
def emit_MatrixPinv(op, node, b, x):
    """The pseudo-inverse by singular values, or by the eigenvalues of one triangle of a Hermitian matrix."""
    x = convert(b, x, node.outputs[0].type.dtype)
    if 0 in x.aval.shape:
        *batch, m, n = x.aval.shape
        return prims.broadcast_to(b, number(b, x, 0), (*batch, n, m))
    if op.hermitian:
        left, s = prims.eigh(b, symmetric(b, x, lower=True), True)
        return matmul(
            b, scaled_columns(b, left, reciprocal(b, s, is_large(b, s, number(b, s, CUTOFF)))), adjoint(b, left)
        )
    s, left, right = prims.svd(b, x, False, True)
    check_converged(b, s, node)
    return matmul(
        b,
        scaled_columns(b, adjoint(b, right), reciprocal(b, s, is_large(b, s, number(b, s, CUTOFF)))),
        adjoint(b, left),
    )


def reciprocal(b: JaxprBuilder, s: Atom, kept: Atom) -> Atom:
    """Emit ``1 / s`` where it is kept, and else zero."""
    ones = prims.broadcast_to(b, number(b, s, 1), s.aval.shape)
    inverted = prims.div(b, ones, prims.select(b, kept, s, ones))
    return prims.select(b, kept, inverted, number(b, s, 0))


def is_large(b: JaxprBuilder, s: Atom, fraction: Atom) -> Atom:
    """Emit where the magnitudes in the last axis exceed a fraction of the largest."""
    size, axis = prims.stop_gradient(b, prims.abs_(b, s)), len(s.aval.shape) - 1
    cutoff = prims.mul(b, prims.reduce_max(b, size, (axis,)), fraction)
    return prims.gt(b, size, prims.broadcast_in_dim(b, cutoff, s.aval.shape, range(axis)))


def scaled_columns(b: JaxprBuilder, x: Atom, s: Atom) -> Atom:
    """Emit a matrix whose columns are multiplied with the elements of `s`."""
    shape, n = x.aval.shape, len(s.aval.shape)
    return prims.mul(b, x, prims.broadcast_in_dim(b, convert(b, s, x.aval.dtype), shape, [*range(n - 1), n]))


@emits(LstsqParts)
def emit_LstsqParts(op, node, b, x, y, rcond):
    """The solution of least norm, the residuals, the rank, the singular values, and which residuals are returned."""
    (m, n), (rows, k) = x.aval.shape, y.aval.shape
    if m != rows:
        raise np.linalg.LinAlgError("Incompatible dimensions")
    x, y = (convert(b, v, linalg_output_dtype(x.aval.dtype, y.aval.dtype)) for v in (x, y))
    s, left, right = prims.svd(b, x, False, True)
    check_converged(b, s, node, " in Linear Least Squares")
    rcond, rank, kept = convert(b, rcond, s.aval.dtype), b.constant(0, "int32"), prims.eq(b, s, s)
    if min(m, n):
        inside = prims.and_(b, prims.gt(b, rcond, number(b, s, 0)), prims.lt(b, rcond, number(b, s, 1)))
        rcond = prims.select(b, inside, rcond, number(b, s, np.finfo(s.aval.dtype).eps / 2))  # as LAPACK's gelsd
        kept = is_large(b, s, rcond)
        rank = prims.reduce_sum(b, prims.convert(b, kept, "int32"), (0,))
    solution = matmul(b, scaled_columns(b, adjoint(b, right), reciprocal(b, s, kept)), matmul(b, adjoint(b, left), y))
    residuals = prims.reduce_sum(b, prims.square(b, prims.sub(b, y, matmul(b, x, solution))), (0,))
    returned = prims.and_(b, prims.eq(b, rank, number(b, rank, n)), b.constant(m > n))
    solution, residuals, s = (convert(b, v, "float64") for v in (solution, residuals, s))
    return solution, residuals, rank, s, prims.broadcast_to(b, returned, (k,))
