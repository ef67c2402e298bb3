"""Pseudo-inverses and least squares, by singular values."""

from __future__ import annotations

from pytensor.tensor.linalg.inverse import MatrixPinv

from pytensor_jaxpr_linker import prims
from pytensor_jaxpr_linker.builder import Atom, JaxprBuilder
from pytensor_jaxpr_linker.emit.blockwise import core_rule
from pytensor_jaxpr_linker.emit.decompositions import check_converged
from pytensor_jaxpr_linker.emit.matrices import adjoint, matmul, symmetric
from pytensor_jaxpr_linker.emit.scalar import convert, number

#: Singular values up to this fraction of the largest count as zero, as for `numpy.linalg.pinv`.
CUTOFF = 1e-15


@core_rule(MatrixPinv)
def emit_MatrixPinv(op, node, b, x):
    """The pseudo-inverse by singular values, or by the eigenvalues of one triangle of a Hermitian matrix."""
    x = convert(b, x, node.outputs[0].type.dtype)
    if 0 in x.aval.shape:
        *batch, m, n = x.aval.shape
        return prims.broadcast_to(b, number(b, x, 0), (*batch, n, m))
    if op.hermitian:
        left, s = prims.eigh(b, symmetric(b, x, lower=True), True)
        return matmul(b, scaled_columns(b, left, reciprocal(b, s)), adjoint(b, left))
    s, left, right = prims.svd(b, x, False, True)
    check_converged(b, s, node)
    return matmul(b, scaled_columns(b, adjoint(b, right), reciprocal(b, s)), adjoint(b, left))


def reciprocal(b: JaxprBuilder, s: Atom) -> Atom:
    """Emit ``1 / s``, and zero for what counts as zero beside the largest magnitude in the last axis."""
    size, axis = prims.abs_(b, s), len(s.aval.shape) - 1
    largest = prims.reduce_max(b, prims.stop_gradient(b, size), (axis,))
    cutoff = prims.mul(b, largest, number(b, s, CUTOFF))
    kept = prims.gt(b, size, prims.broadcast_in_dim(b, cutoff, s.aval.shape, range(axis)))
    safe = prims.select(b, kept, s, number(b, s, 1))
    return prims.select(
        b, kept, prims.div(b, prims.broadcast_to(b, number(b, s, 1), s.aval.shape), safe), number(b, s, 0)
    )


def scaled_columns(b: JaxprBuilder, x: Atom, s: Atom) -> Atom:
    """Emit a matrix whose columns are multiplied with the elements of `s`."""
    shape, n = x.aval.shape, len(s.aval.shape)
    return prims.mul(b, x, prims.broadcast_in_dim(b, convert(b, s, x.aval.dtype), shape, [*range(n - 1), n]))
