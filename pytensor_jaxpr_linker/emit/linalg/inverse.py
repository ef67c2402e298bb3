"""Inverses of matrices, by the LU decomposition, and pseudo-inverses, by singular values."""

from __future__ import annotations

import math

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.tensor.linalg.inverse import MatrixInverse, MatrixPinv, TensorInv

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.linalg.decomposition import check_converged
from pytensor_jaxpr_linker.emit.linalg.matrices import (
    adjoint,
    any_true,
    check_square,
    identity_matrices,
    matmul,
    symmetric,
    without_transpose,
)
from pytensor_jaxpr_linker.emit.linalg.solvers import factor_general, solve_factored
from pytensor_jaxpr_linker.emit.scalar import number, numpy_astype
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder


def singular() -> Exception:
    """Return NumPy's error about a matrix without an inverse."""
    return np.linalg.LinAlgError("Singular matrix")


def checked_solution(node: Apply, b: JaxprBuilder, a: Atom, y: Atom) -> Atom:
    """Emit the solution of ``a @ x = y``; a singular `a` is an error."""
    if 0 in y.aval.shape:
        return y
    a, transposed = without_transpose(b, a)
    factored = factor_general(b, a, y.aval.shape)
    b.check(prims.not_(b, any_true(b, factored.failed)), singular, node)
    return solve_factored(b, a, y, factored, transposed)


@emits(MatrixInverse, batched=True)
def emit_MatrixInverse(op, node, b, x):
    """Solve for the identity; a singular matrix is an error."""
    check_square(*x.aval.shape)
    x = numpy_astype(b, x, node.outputs[0].type.dtype)
    return checked_solution(node, b, x, identity_matrices(b, x.aval.shape, x.aval.dtype))


@emits(TensorInv)
def emit_TensorInv(op, node, b, x):
    """The inverse of the matrix whose rows are the first axes of `x` and whose columns are the others."""
    shape = x.aval.shape
    rows, columns = math.prod(shape[: op.ind]), math.prod(shape[op.ind :])
    check_square(rows, columns)
    x = numpy_astype(b, x, node.outputs[0].type.dtype)
    inverse = checked_solution(
        node, b, prims.reshape(b, x, (rows, columns)), identity_matrices(b, (rows, columns), x.aval.dtype)
    )
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
        left, s = prims.eigh(b, symmetric(b, x, lower=True), True)
        return matmul(
            b, scaled_columns(b, left, reciprocal_where(b, s, is_large(b, s, number(b, s, CUTOFF)))), adjoint(b, left)
        )
    s, left, right = prims.svd(b, x, False, True)
    check_converged(b, s, node)
    return matmul(
        b,
        scaled_columns(b, adjoint(b, right), reciprocal_where(b, s, is_large(b, s, number(b, s, CUTOFF)))),
        adjoint(b, left),
    )


def reciprocal_where(b: JaxprBuilder, s: Atom, kept: Atom) -> Atom:
    """Emit ``1 / s`` where it is kept, and else zero."""
    ones = prims.broadcast_to(b, number(b, s, 1), s.aval.shape)
    inverted = prims.div(b, ones, prims.select(b, kept, s, ones))
    return prims.select(b, kept, inverted, number(b, s, 0))


def is_large(b: JaxprBuilder, s: Atom, fraction: Atom) -> Atom:
    """Emit where magnitudes in the last axis exceed a fraction of the largest."""
    size, axis = prims.stop_gradient(b, prims.abs_(b, s)), len(s.aval.shape) - 1
    cutoff = prims.mul(b, prims.reduce_max(b, size, (axis,)), fraction)
    return prims.gt(b, size, prims.broadcast_in_dim(b, cutoff, s.aval.shape, range(axis)))


def scaled_columns(b: JaxprBuilder, x: Atom, s: Atom) -> Atom:
    """Emit a matrix whose columns are multiplied with the elements of `s`."""
    shape, n = x.aval.shape, len(s.aval.shape)
    return prims.mul(b, x, prims.broadcast_in_dim(b, numpy_astype(b, s, x.aval.dtype), shape, [*range(n - 1), n]))
