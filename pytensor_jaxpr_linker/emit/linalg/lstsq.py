"""Least squares, by singular values, and solutions of tensor equations."""

from __future__ import annotations

import math

import numpy as np
from pytensor.tensor.linalg.dtype_utils import linalg_output_dtype
from pytensor.tensor.linalg.solvers.lstsq import TensorSolve

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.lengths import is_less
from pytensor_jaxpr_linker.emit.linalg.decomposition import check_converged
from pytensor_jaxpr_linker.emit.linalg.inverse import checked_solution, is_large, reciprocal_where, scaled_columns
from pytensor_jaxpr_linker.emit.linalg.matrices import adjoint, check_square, matmul
from pytensor_jaxpr_linker.emit.scalar import number, numpy_astype
from pytensor_jaxpr_linker.graph.lanes.ops import LstsqParts
from pytensor_jaxpr_linker.jaxpr import prims


@emits(LstsqParts)
def emit_LstsqParts(op, node, b, x, y, rcond):
    """The solution of least norm, the residuals, the rank, the singular values, and which residuals are returned."""
    (m, n), (rows, k) = x.aval.shape, y.aval.shape
    if m != rows:
        raise np.linalg.LinAlgError("Incompatible dimensions")
    x, y = (numpy_astype(b, v, linalg_output_dtype(x.aval.dtype, y.aval.dtype)) for v in (x, y))
    s, left, right = prims.svd(b, x, False, True)
    check_converged(b, s, node, " in Linear Least Squares")
    rcond, rank, kept = numpy_astype(b, rcond, s.aval.dtype), b.constant(0, "int32"), prims.eq(b, s, s)
    if 0 not in (m, n):
        inside = prims.and_(b, prims.gt(b, rcond, number(b, s, 0)), prims.lt(b, rcond, number(b, s, 1)))
        rcond = prims.select(b, inside, rcond, number(b, s, np.finfo(s.aval.dtype).eps / 2))  # as LAPACK's gelsd
        kept = is_large(b, s, rcond)
        rank = prims.reduce_sum(b, prims.convert(b, kept, "int32"), (0,))
    solution = matmul(
        b, scaled_columns(b, adjoint(b, right), reciprocal_where(b, s, kept)), matmul(b, adjoint(b, left), y)
    )
    residuals = prims.reduce_sum(b, prims.square(b, prims.sub(b, y, matmul(b, x, solution))), (0,))
    returned = prims.and_(b, prims.eq(b, rank, number(b, rank, n)), is_less(b, n, m))
    solution, residuals, s = (numpy_astype(b, v, "float64") for v in (solution, residuals, s))
    return solution, residuals, rank, s, prims.broadcast_to(b, returned, (k,))


@emits(TensorSolve)
def emit_TensorSolve(op, node, b, a, y):
    """Solve with the matrix whose rows are the axes of `y` and whose columns are the others of `a`."""
    a, y = (numpy_astype(b, x, node.outputs[0].type.dtype) for x in (a, y))
    if op.axes is not None:
        last = [axis % len(a.aval.shape) for axis in op.axes]
        a = prims.transpose(b, a, [i for i in range(len(a.aval.shape)) if i not in last] + last)
    shape, size = a.aval.shape[len(y.aval.shape) :], math.prod(y.aval.shape)
    check_square(size, math.prod(shape))
    x = checked_solution(node, b, prims.reshape(b, a, (size, size)), prims.reshape(b, y, (size, 1)))
    return prims.reshape(b, x, shape)
