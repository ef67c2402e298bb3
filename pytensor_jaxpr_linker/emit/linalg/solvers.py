"""Solutions of linear systems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.tensor.linalg.solvers.general import Solve
from pytensor.tensor.linalg.solvers.psd import CholeskySolve
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.by_platform import ON_CPU, emit_one_of
from pytensor_jaxpr_linker.emit.linalg.decomposition import is_singular
from pytensor_jaxpr_linker.emit.linalg.factors import cholesky_factors, lu_factors, triangular_solution
from pytensor_jaxpr_linker.emit.linalg.matrices import (
    adjoint,
    finite_matrices,
    inverse_permutation,
    matmul,
    permute_rows,
    superdiagonal,
    swap,
    symmetric,
    where_matrices,
    without_transpose,
)
from pytensor_jaxpr_linker.emit.scalar import number, numpy_astype
from pytensor_jaxpr_linker.emit.tensor_basic import diagonal
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder


def solve_operands(op: Any, node: Apply, b: JaxprBuilder, a: Atom, y: Atom) -> tuple[Atom, Atom]:
    """Return the operands in the solution's dtype, `y` as a matrix; ValueError if `a` is not square or the numbers of rows differ."""
    a, y = (numpy_astype(b, x, node.outputs[0].type.dtype) for x in (a, y))
    if op.b_ndim == 1:
        y = prims.broadcast_in_dim(b, y, (*y.aval.shape, 1), range(len(y.aval.shape)))
    shape, rows = a.aval.shape[-2:], y.aval.shape[-2]
    if shape[0] != shape[1]:
        raise ValueError(f"expected square matrix, got the shape {shape}")
    if shape[0] != rows:
        raise ValueError(f"shapes of a {shape} and b {y.aval.shape[-2:]} are incompatible")
    return a, y


def as_right_hand_side(op: Any, b: JaxprBuilder, x: Atom) -> Atom:
    """Emit a solution with as many axes as the right-hand side had."""
    return prims.squeeze(b, x, [len(x.aval.shape) - 1] if op.b_ndim == 1 else [])


@emits(SolveTriangular, batched=True)
def emit_SolveTriangular(op, node, b, a, y):
    """Solve ``a @ x = y``; all NaN if the diagonal has a zero."""
    a, y = solve_operands(op, node, b, a, y)
    if 0 in y.aval.shape:
        return as_right_hand_side(op, b, y)
    a, transposed = without_transpose(b, a)
    how = {"lower": op.lower != transposed, "unit_diagonal": op.unit_diagonal}
    rows, sideways = without_transpose(b, y)
    if sideways:  # x.T @ a.T = y.T
        x = swap(b, triangular_solution(b, a, rows, left_side=False, transpose_a=not transposed, **how))
    else:
        x = triangular_solution(b, a, y, transpose_a=transposed, **how)
    if not op.unit_diagonal:
        x = prims.select(b, is_singular(b, a, x.aval.shape), number(b, x, np.nan), x)
    return as_right_hand_side(op, b, x)


@emits(CholeskySolve, batched=True)
def emit_CholeskySolve(op, node, b, a, y):
    """Solve ``c @ c.conj().T @ x = y`` for a factor `c`: two triangular solutions."""
    a, y = solve_operands(op, node, b, a, y)
    if 0 in y.aval.shape:
        return as_right_hand_side(op, b, y)
    for is_adjoint in (not op.lower, op.lower):
        y = triangular_solution(b, a, y, op.lower, transpose_a=is_adjoint, conjugate_a=is_adjoint)
    return as_right_hand_side(op, b, y)


class Factored(NamedTuple):
    """The factors of a system, ``solve(b, *factors, y, transposed=...)``, and where it has no solution."""

    factors: tuple[Atom, ...]
    solve: Callable[..., Atom]
    failed: Atom | None = None


def factor_general(b: JaxprBuilder, a: Atom, shape: tuple[int, ...]) -> Factored:
    """Factor by LU; equal factors are one equation, so a solution and its gradient share them."""
    factors, _, permutation = lu_factors(b, a)
    return Factored((factors, permutation), lu_solve, is_singular(b, factors, shape))


def lu_solve(b: JaxprBuilder, factors: Atom, permutation: Atom, y: Atom, transposed: bool) -> Atom:
    """Emit the solution by LU factors of the matrix, or of its transpose."""
    if transposed:
        y = triangular_solution(b, factors, y, lower=False, transpose_a=True)
        y = triangular_solution(b, factors, y, lower=True, transpose_a=True, unit_diagonal=True)
        return permute_rows(b, y, inverse_permutation(b, permutation))
    y = permute_rows(b, y, permutation)
    y = triangular_solution(b, factors, y, lower=True, unit_diagonal=True)
    return triangular_solution(b, factors, y, lower=False)


def factor_positive(b: JaxprBuilder, a: Atom, lower: bool) -> Factored:
    """Factor by Cholesky, of one triangle; the factor is NaN unless the matrix is positive definite."""
    return Factored((cholesky_factors(b, a if lower else adjoint(b, a)),), cholesky_solve)


def cholesky_solve(b: JaxprBuilder, factor: Atom, y: Atom, transposed: bool) -> Atom:
    """Emit the solution by a lower Cholesky factor; the transpose of a Hermitian matrix is its conjugate."""
    y = triangular_solution(b, factor, y, lower=True, conjugate_a=transposed)
    return triangular_solution(b, factor, y, lower=True, transpose_a=True, conjugate_a=not transposed)


def factor_tridiagonal(b: JaxprBuilder, a: Atom) -> Factored:
    """Take the three diagonals; the solution is NaN if the matrix is singular."""
    return Factored((superdiagonal(b, swap(b, a)), diagonal(b, a), superdiagonal(b, a)), solve_by_diagonals)


def solve_by_diagonals(b: JaxprBuilder, low: Atom, main: Atom, high: Atom, y: Atom, transposed: bool) -> Atom:
    """Emit the solution by the diagonals of a matrix, or of its transpose."""
    low, high = (high, low) if transposed else (low, high)
    zero, others = number(b, y, 0), [(0, 0, 0)] * (len(low.aval.shape) - 1)
    low = prims.pad(b, low, zero, [*others, (1, 0, 0)])
    high = prims.pad(b, high, zero, [*others, (0, 1, 0)])
    x = prims.tridiagonal_solve(b, low, main, high, y)
    return emit_one_of(b, ON_CPU, lambda b, x: [x], nan_unless_finite, [x])[0]


def nan_unless_finite(b: JaxprBuilder, x: Atom) -> list[Atom]:
    """Emit solutions, all NaN where not all are finite. The library of a GPU does not say whether a tridiagonal matrix is singular."""
    return [where_matrices(b, finite_matrices(b, x), x, np.nan)]


def solve_factored(b: JaxprBuilder, a: Atom, y: Atom, factored: Factored, transposed: bool = False) -> Atom:
    """Emit the solution of ``a @ x = y``, or of ``a.T @ x = y``, NaN where there is none.

    The derivative is with respect to all elements of `a`, as in PyTensor, and reuses the factors.
    """

    def product(b: JaxprBuilder, a: Atom, x: Atom, transposed: bool) -> Atom:
        return matmul(b, swap(b, a) if transposed else a, x)

    def flipped(emit: Callable[..., Atom]) -> Callable[..., Atom]:
        return lambda b, *atoms, transposed: emit(b, *atoms, transposed=not transposed)

    emitted = [flipped(emit) if transposed else emit for emit in (product, factored.solve)]
    x = prims.linear_solve(b, [a], factored.factors, y, *emitted)
    return x if factored.failed is None else prims.select(b, factored.failed, number(b, x, np.nan), x)


@emits(Solve, batched=True)
def emit_Solve(op, node, b, a, y):
    """Solve ``a @ x = y`` by the factors that suit the declared structure of `a`; all NaN if there is no solution."""
    a, y = solve_operands(op, node, b, a, y)
    if 0 in y.aval.shape:
        return as_right_hand_side(op, b, y)
    transposed = False
    if op.assume_a == "pos":
        factored = factor_positive(b, a, op.lower)
    elif op.assume_a == "tridiagonal":
        factored = factor_tridiagonal(b, a)
    elif op.assume_a in ("sym", "her"):
        factored = factor_general(b, symmetric(b, a, op.lower, op.assume_a == "her"), y.aval.shape)
    else:
        a, transposed = without_transpose(b, a)
        factored = factor_general(b, a, y.aval.shape)
    return as_right_hand_side(op, b, solve_factored(b, a, y, factored, transposed))
