"""Solutions of linear systems, of the Sylvester equation and of tensor equations, and least squares."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import NamedTuple

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.tensor.linalg.dtype_utils import linalg_output_dtype
from pytensor.tensor.linalg.solvers.general import Solve
from pytensor.tensor.linalg.solvers.linear_control import SolveSylvester
from pytensor.tensor.linalg.solvers.lstsq import TensorSolve
from pytensor.tensor.linalg.solvers.psd import CholeskySolve
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.conditional import ON_CPU, emit_one_of
from pytensor_jaxpr_linker.emit.linalg import matrices
from pytensor_jaxpr_linker.emit.linalg.decomposition import check_converged, finite_schur, is_singular
from pytensor_jaxpr_linker.emit.scalar import number, numpy_astype
from pytensor_jaxpr_linker.emit.shape import is_less
from pytensor_jaxpr_linker.emit.tensor_basic import diagonal
from pytensor_jaxpr_linker.graph.lanes.ops import LstsqParts
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.nested import any_of


def solves_systems(solve: Callable[..., Atom]) -> Callable[..., Atom]:
    """Make a rule of ``solve(op, b, a, y)``, for operands in the solution's dtype: square matrices, and `y` not empty.

    The rule raises a ValueError if `a` is not square or the numbers of rows differ. A vector comes as a matrix.
    """

    @wraps(solve)
    def rule(op, node, b, a, y):
        a, y = (numpy_astype(b, x, node.outputs[0].type.dtype) for x in (a, y))
        if op.b_ndim == 1:
            y = prims.broadcast_in_dim(b, y, (*y.aval.shape, 1), range(len(y.aval.shape)))
        shape, rows = a.aval.shape[-2:], y.aval.shape[-2]
        if shape[0] != shape[1]:
            raise ValueError(f"expected square matrix, got the shape {shape}")
        if shape[0] != rows:
            raise ValueError(f"shapes of a {shape} and b {y.aval.shape[-2:]} are incompatible")
        x = y if 0 in y.aval.shape else solve(op, b, a, y)
        return prims.squeeze(b, x, [len(x.aval.shape) - 1] if op.b_ndim == 1 else [])

    return rule


@emits(SolveTriangular, batched=True)
@solves_systems
def emit_SolveTriangular(op, b, a, y):
    """Solve ``a @ x = y``; all NaN if the diagonal has a zero."""
    a, transposed = matrices.without_transpose(b, a)
    how = {"lower": op.lower != transposed, "unit_diagonal": op.unit_diagonal}
    rows, sideways = matrices.without_transpose(b, y)
    if sideways:  # x.T @ a.T = y.T
        x = matrices.triangular_solution(b, a, rows, left_side=False, transpose_a=not transposed, **how)
        x = matrices.swap(b, x)
    else:
        x = matrices.triangular_solution(b, a, y, transpose_a=transposed, **how)
    if not op.unit_diagonal:
        x = prims.select(b, is_singular(b, a, x.aval.shape), number(b, x, np.nan), x)
    return x


@emits(CholeskySolve, batched=True)
@solves_systems
def emit_CholeskySolve(op, b, a, y):
    """Solve ``c @ c.conj().T @ x = y`` for a factor `c`: two triangular solutions."""
    for is_adjoint in (not op.lower, op.lower):
        y = matrices.triangular_solution(b, a, y, op.lower, transpose_a=is_adjoint, conjugate_a=is_adjoint)
    return y


class Factored(NamedTuple):
    """The factors of a system, ``solve(b, *factors, y, transposed=...)``, and where it has no solution."""

    factors: tuple[Atom, ...]
    solve: Callable[..., Atom]
    failed: Atom | None = None


def factor_general(b: JaxprBuilder, a: Atom, shape: tuple[int, ...]) -> Factored:
    """Factor by LU; equal factors are one equation, so a solution and its gradient share them."""
    factors, _, permutation = matrices.lu_factors(b, a)
    return Factored((factors, permutation), lu_solve, is_singular(b, factors, shape))


def lu_solve(b: JaxprBuilder, factors: Atom, permutation: Atom, y: Atom, transposed: bool) -> Atom:
    """Emit the solution by LU factors of the matrix, or of its transpose."""
    if transposed:
        y = matrices.triangular_solution(b, factors, y, lower=False, transpose_a=True)
        y = matrices.triangular_solution(b, factors, y, lower=True, transpose_a=True, unit_diagonal=True)
        return matrices.permute_rows(b, y, matrices.inverse_permutation(b, permutation))
    y = matrices.permute_rows(b, y, permutation)
    y = matrices.triangular_solution(b, factors, y, lower=True, unit_diagonal=True)
    return matrices.triangular_solution(b, factors, y, lower=False)


def factor_positive(b: JaxprBuilder, a: Atom, lower: bool) -> Factored:
    """Factor by Cholesky, of one triangle; the factor is NaN unless the matrix is positive definite."""
    return Factored((matrices.cholesky_factors(b, a if lower else matrices.adjoint(b, a)),), cholesky_solve)


def cholesky_solve(b: JaxprBuilder, factor: Atom, y: Atom, transposed: bool) -> Atom:
    """Emit the solution by a lower Cholesky factor; the transpose of a Hermitian matrix is its conjugate."""
    y = matrices.triangular_solution(b, factor, y, lower=True, conjugate_a=transposed)
    return matrices.triangular_solution(b, factor, y, lower=True, transpose_a=True, conjugate_a=not transposed)


def factor_tridiagonal(b: JaxprBuilder, a: Atom) -> Factored:
    """Take the three diagonals; the solution is NaN if the matrix is singular."""
    return Factored((diagonal(b, matrices.swap(b, a), 1), diagonal(b, a), diagonal(b, a, 1)), solve_by_diagonals)


def solve_by_diagonals(b: JaxprBuilder, low: Atom, main: Atom, high: Atom, y: Atom, transposed: bool) -> Atom:
    """Emit the solution by the diagonals of a matrix, or of its transpose."""
    low, high = (high, low) if transposed else (low, high)
    zero, others = number(b, y, 0), [(0, 0, 0)] * (len(low.aval.shape) - 1)
    low = prims.pad(b, low, zero, [*others, (1, 0, 0)])
    high = prims.pad(b, high, zero, [*others, (0, 1, 0)])
    x = prims.tridiagonal_solve(b, low, main, high, y)

    def nan_unless_finite(b: JaxprBuilder, x: Atom) -> list[Atom]:
        return [matrices.where_matrices(b, matrices.finite_matrices(b, x), x, np.nan)]

    # The library of a GPU does not say whether a matrix is singular.
    return emit_one_of(b, ON_CPU, lambda b, x: [x], nan_unless_finite, [x])[0]


def solve_factored(b: JaxprBuilder, a: Atom, y: Atom, factored: Factored, transposed: bool = False) -> Atom:
    """Emit the solution of ``a @ x = y``, or of ``a.T @ x = y``, NaN where there is none.

    The derivative is with respect to all elements of `a`, as in PyTensor, and reuses the factors.
    """

    def product(b: JaxprBuilder, a: Atom, x: Atom, transposed: bool) -> Atom:
        return matrices.matmul(b, matrices.swap(b, a) if transposed else a, x)

    def flipped(emit: Callable[..., Atom]) -> Callable[..., Atom]:
        return lambda b, *atoms, transposed: emit(b, *atoms, transposed=not transposed)

    emitted = [flipped(emit) if transposed else emit for emit in (product, factored.solve)]
    x = prims.linear_solve(b, [a], factored.factors, y, *emitted)
    return x if factored.failed is None else prims.select(b, factored.failed, number(b, x, np.nan), x)


@emits(Solve, batched=True)
@solves_systems
def emit_Solve(op, b, a, y):
    """Solve ``a @ x = y`` by the factors that suit the declared structure of `a`; all NaN if there is no solution."""
    if op.assume_a == "pos":
        return solve_factored(b, a, y, factor_positive(b, a, op.lower))
    if op.assume_a == "tridiagonal":
        return solve_factored(b, a, y, factor_tridiagonal(b, a))
    if op.assume_a in ("sym", "her"):
        whole = matrices.symmetric(b, a, op.lower, op.assume_a == "her")
        return solve_factored(b, a, y, factor_general(b, whole, y.aval.shape))
    a, transposed = matrices.without_transpose(b, a)
    return solve_factored(b, a, y, factor_general(b, a, y.aval.shape), transposed)


# -- the Sylvester equation --------------------------------------------------------------------------------------------


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
    x, y = (matrices.swap(b, v) if transposed else v for v in (x, y))
    return prims.add(b, matrices.matmul(b, x, z), matrices.matmul(b, z, y))


def solve(b: JaxprBuilder, r: Atom, u: Atom, s: Atom, v: Atom, q: Atom, transposed: bool) -> Atom:
    """Emit the solution from the Schur forms `r`, `s` and vectors `u`, `v` of both matrices.

    The solution of the transposed equation is the transpose of the solution of ``y @ z + z @ x = q.T``.
    """
    if transposed:
        return matrices.swap(b, solve(b, s, v, r, u, matrices.swap(b, q), transposed=False))
    inner = matrices.matmul(b, matrices.matmul(b, matrices.adjoint(b, u), numpy_astype(b, q, u.aval.dtype)), v)
    z = matrices.matmul(b, matrices.matmul(b, u, solve_triangular(b, r, s, inner)), matrices.adjoint(b, v))
    return numpy_astype(b, z, q.aval.dtype)


def solve_triangular(b: JaxprBuilder, r: Atom, s: Atom, q: Atom) -> Atom:
    """Emit the solution of ``r @ z + z @ s = q`` for upper triangular matrices, column by column."""
    *batch, _, n = q.aval.shape
    lead = len(batch)

    def by_column(x: Atom) -> Atom:
        columns = prims.transpose(b, x, [lead + 1, *range(lead + 1)])
        return prims.broadcast_in_dim(b, columns, (*columns.aval.shape, 1), range(lead + 2))

    unit = matrices.identity_matrices(b, (n, n), q.aval.dtype)
    rows = [by_column(q), by_column(s), unit]
    avals = [r.aval, q.aval, *(b.aval(row.aval.shape[1:], row.aval.dtype) for row in rows)]
    body, (r_, z, q_, s_, unit_) = b.sub_jaxpr(avals)
    shift = prims.mul(body, s_, prims.broadcast_in_dim(body, unit_, s_.aval.shape, [lead]))
    shift = prims.reduce_sum(body, shift, (lead, lead + 1))
    shift = prims.broadcast_in_dim(body, shift, r.aval.shape, range(lead))
    shifted = prims.add(body, r_, prims.mul(body, shift, matrices.identity_matrices(body, r.aval.shape, r.aval.dtype)))
    left = prims.sub(body, q_, matrices.matmul(body, z, s_))  # the columns of z from this one on are still zero
    column = matrices.triangular_solution(body, shifted, left, lower=False)
    column = prims.broadcast_in_dim(body, column, q.aval.shape, range(lead + 2))
    z = prims.add(body, z, prims.mul(body, column, prims.broadcast_in_dim(body, unit_, q.aval.shape, [lead + 1])))
    zeros = prims.broadcast_to(b, number(b, q, 0), q.aval.shape)
    return prims.scan(b, body.build([z]), [r], [zeros], rows, n)[0]


def checked_solution(node: Apply, b: JaxprBuilder, a: Atom, y: Atom) -> Atom:
    """Emit the solution of ``a @ x = y``; a singular `a` is an error."""
    if 0 in y.aval.shape:
        return y
    a, transposed = matrices.without_transpose(b, a)
    factored = factor_general(b, a, y.aval.shape)
    b.check(prims.not_(b, any_of(b, factored.failed)), lambda: np.linalg.LinAlgError("Singular matrix"), node)
    return solve_factored(b, a, y, factored, transposed)


# -- least squares, and tensor equations -------------------------------------------------------------------------------


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
    inverted = scaled_columns(b, matrices.adjoint(b, right), reciprocal_where(b, s, kept))
    solution = matrices.matmul(b, inverted, matrices.matmul(b, matrices.adjoint(b, left), y))
    residuals = prims.reduce_sum(b, prims.square(b, prims.sub(b, y, matrices.matmul(b, x, solution))), (0,))
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
    matrices.check_square(size, math.prod(shape))
    x = checked_solution(node, b, prims.reshape(b, a, (size, size)), prims.reshape(b, y, (size, 1)))
    return prims.reshape(b, x, shape)


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
