"""The Sylvester equation, to which PyTensor reduces the Lyapunov equations."""

from __future__ import annotations

import numpy as np
from pytensor.tensor.linalg.solvers.linear_control import SolveSylvester

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.linalg.decomposition import finite_schur
from pytensor_jaxpr_linker.emit.linalg.factors import triangular_solution
from pytensor_jaxpr_linker.emit.linalg.matrices import adjoint, identity_matrices, matmul, swap
from pytensor_jaxpr_linker.emit.scalar import number, numpy_astype
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder


@emits(SolveSylvester, batched=True)
def emit_SolveSylvester(op, node, b, x, y, q):
    """Solve ``x @ z + z @ y = q`` by complex Schur forms, which are triangular for real matrices, too.

    The method is Bartels and Stewart's (Commun. ACM 15, 1972).
    """
    x, y, q = (numpy_astype(b, v, node.outputs[0].type.dtype) for v in (x, y, q))
    dtype = np.result_type(q.aval.dtype, np.complex64)
    if 0 in q.aval.shape:
        return q
    matrices = [numpy_astype(b, prims.stop_gradient(b, v), dtype) for v in (x, y)]  # a Schur form has no derivative
    factors = [factor for v in matrices for factor in finite_schur(b, v)]
    return prims.linear_solve(b, [x, y], factors, q, sylvester_product, solve)


def sylvester_product(b: JaxprBuilder, x: Atom, y: Atom, z: Atom, transposed: bool) -> Atom:
    """Emit ``x @ z + z @ y``, or the same of the transposes of `x` and `y`."""
    x, y = (swap(b, v) if transposed else v for v in (x, y))
    return prims.add(b, matmul(b, x, z), matmul(b, z, y))


def solve(b: JaxprBuilder, r: Atom, u: Atom, s: Atom, v: Atom, q: Atom, transposed: bool) -> Atom:
    """Emit the solution from the Schur forms `r`, `s` and vectors `u`, `v` of both matrices.

    The transposed equation's solution is the transpose of that of ``y @ z + z @ x = q.T``.
    """
    if transposed:
        return swap(b, solve(b, s, v, r, u, swap(b, q), transposed=False))
    inner = matmul(b, matmul(b, adjoint(b, u), numpy_astype(b, q, u.aval.dtype)), v)
    z = matmul(b, matmul(b, u, solve_triangular(b, r, s, inner)), adjoint(b, v))
    return numpy_astype(b, z, q.aval.dtype)


def solve_triangular(b: JaxprBuilder, r: Atom, s: Atom, q: Atom) -> Atom:
    """Emit the solution of ``r @ z + z @ s = q`` for upper triangular matrices, column by column."""
    *batch, _, n = q.aval.shape
    lead = len(batch)

    def by_column(x: Atom) -> Atom:
        columns = prims.transpose(b, x, [lead + 1, *range(lead + 1)])
        return prims.broadcast_in_dim(b, columns, (*columns.aval.shape, 1), range(lead + 2))

    unit = identity_matrices(b, (n, n), q.aval.dtype)
    rows = [by_column(q), by_column(s), unit]
    body, (r_, z, q_, s_, unit_) = b.sub_jaxpr(
        [r.aval, q.aval, *(b.aval(row.aval.shape[1:], row.aval.dtype) for row in rows)]
    )
    shift = prims.reduce_sum(body, prims.mul(body, s_, along_axis(body, unit_, s_.aval.shape, lead)), (lead, lead + 1))
    shift = prims.broadcast_in_dim(body, shift, r.aval.shape, range(lead))
    shifted = prims.add(body, r_, prims.mul(body, shift, identity_matrices(body, r.aval.shape, r.aval.dtype)))
    left = prims.sub(body, q_, matmul(body, z, s_))  # the columns of z from this one on are still zero
    column = triangular_solution(body, shifted, left, lower=False)
    column = prims.broadcast_in_dim(body, column, q.aval.shape, range(lead + 2))
    z = prims.add(body, z, prims.mul(body, column, along_axis(body, unit_, q.aval.shape, lead + 1)))
    zeros = prims.broadcast_to(b, number(b, q, 0), q.aval.shape)
    return prims.scan(b, body.build([z]), [r], [zeros], rows, n)[0]


def along_axis(b: JaxprBuilder, x: Atom, shape: tuple[int, ...], axis: int) -> Atom:
    """Emit a vector along one axis of a shape."""
    return prims.broadcast_in_dim(b, x, shape, [axis])
