"""Matrices in the last two axes of arrays: their parts, products, factors and triangular systems.

A matrix of one element is factored without LAPACK: a filter of one observation at a time has such a matrix in each
step, where the calls took most of the time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import primitives

from pytensor_jaxpr_linker.emit.scalar import number
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape


def swap(b: JaxprBuilder, x: Atom) -> Atom:
    """Emit the transpose of the last two axes."""
    n = len(x.aval.shape)
    return prims.transpose(b, x, [*range(n - 2), n - 1, n - 2])


def adjoint(b: JaxprBuilder, x: Atom) -> Atom:
    """Emit the conjugate transpose."""
    x = swap(b, x)
    return prims.conj(b, x) if x.aval.dtype.kind == "c" else x


def matmul(b: JaxprBuilder, x: Atom, y: Atom) -> Atom:
    """Emit the product of matrices."""
    lead = len(x.aval.shape) - 2
    batch = tuple(range(lead))
    return prims.dot_general(b, x, y, ((lead + 1,), (lead,)), (batch, batch))


def without_transpose(b: JaxprBuilder, a: Atom) -> tuple[Atom, bool]:
    """Return a matrix whose transpose `a` is, and True; or `a` and False. A solver reads it without moving memory."""
    eqn = b.definition(a, primitives.transpose_p)
    n = len(a.aval.shape)
    swaps = eqn is not None and tuple(eqn.params["permutation"]) == (*range(n - 2), n - 1, n - 2)
    return (eqn.invars[0], True) if swaps else (a, False)


def below(b: JaxprBuilder, shape: Shape, diagonal: int = 0) -> Atom:
    """Emit where column - row is at most `diagonal`: the lower triangle, for 0."""
    row, column = (prims.iota(b, "int32", shape, len(shape) - i) for i in (2, 1))
    return prims.ge(b, row, prims.sub(b, column, b.constant(diagonal, "int32")) if diagonal else column)


def tril(b: JaxprBuilder, x: Atom, diagonal: int = 0) -> Atom:
    """Emit `x` with zeros where column - row exceeds `diagonal`."""
    return prims.select(b, below(b, x.aval.shape, diagonal), x, number(b, x, 0))


def triu(b: JaxprBuilder, x: Atom) -> Atom:
    """Emit `x` with zeros below the diagonal."""
    return prims.select(b, below(b, x.aval.shape, -1), number(b, x, 0), x)


def identity_matrices(b: JaxprBuilder, shape: Shape, dtype: Any) -> Atom:
    """Emit ones on the diagonals of matrices, and zeros."""
    row, column = (prims.iota(b, "int32", shape, len(shape) - i) for i in (2, 1))
    return prims.convert(b, prims.eq(b, row, column), dtype)


def symmetric(b: JaxprBuilder, x: Atom, lower: bool, hermitian: bool = True) -> Atom:
    """Emit the symmetric matrix with one triangle of `x`; the other one is its conjugate if `hermitian`."""
    other = adjoint(b, x) if hermitian else swap(b, x)
    return prims.select(b, below(b, x.aval.shape, 0 if lower else -1), *((x, other) if lower else (other, x)))


def permute_rows(b: JaxprBuilder, x: Atom, permutation: Atom) -> Atom:
    """Emit the rows of matrices at the positions `permutation`, which are in bounds."""
    *batch, count, columns = x.aval.shape
    if count == 1 and permutation.aval.shape[-1] == 1:
        return x
    lead, axes = len(batch), tuple(range(len(batch)))
    dims = lax.GatherDimensionNumbers((lead + 1,), (lead,), (lead,), axes, axes)
    rows = permutation.aval.shape
    indices = prims.broadcast_in_dim(b, permutation, (*rows, 1), range(lead + 1))
    return prims.gather(b, x, indices, dims, (*[1] * lead, 1, columns), (*rows, columns))


def inverse_permutation(b: JaxprBuilder, permutation: Atom) -> Atom:
    """Emit the inverse of a permutation by comparing all pairs: cheaper than a sort, and than the factors."""
    *batch, n = permutation.aval.shape
    lead, shape = len(batch), (*batch, n, n)
    wanted, position = (prims.iota(b, permutation.aval.dtype, shape, lead + i) for i in (0, 1))
    found = prims.eq(b, wanted, prims.broadcast_in_dim(b, permutation, shape, [*range(lead), lead + 1]))
    return prims.reduce_sum(b, prims.select(b, found, position, number(b, position, 0)), (lead + 1,))


def finite_matrices(b: JaxprBuilder, x: Atom) -> Atom:
    """Emit for each matrix of a batch whether all of its elements are finite."""
    batch = len(x.aval.shape) - 2
    return prims.reduce_and(b, prims.is_finite(b, prims.abs_(b, x)), (batch, batch + 1))


def where_matrices(b: JaxprBuilder, holds: Atom, x: Atom, otherwise: float) -> Atom:
    """Emit an array, with one number in place of each matrix of the batch for which `holds` is false."""
    holds = prims.broadcast_in_dim(b, holds, x.aval.shape, range(len(holds.aval.shape)))
    return prims.select(b, holds, x, number(b, x, otherwise))


def check_square(*shape: int) -> None:
    """Raise NumPy's LinAlgError if the lengths of the last two axes differ."""
    if shape[-1] != shape[-2]:
        raise np.linalg.LinAlgError("Last 2 dimensions of the array must be square")


# -- factors and triangular systems ------------------------------------------------------------------------------------


def has_one_element(x: Atom) -> bool:
    return x.aval.shape[-2:] == (1, 1)


def lu_factors(b: JaxprBuilder, x: Atom) -> list[Atom]:
    """Emit the LU factors in one matrix, the row exchanges, and the permutation that they are (int32, from 0)."""
    if not has_one_element(x):
        return prims.lu(b, x)
    none = prims.broadcast_to(b, b.constant(np.int32(0)), x.aval.shape[:-1])
    return [x, none, none]


def cholesky_factors(b: JaxprBuilder, x: Atom) -> Atom:
    """Emit the lower Cholesky factor, NaN where `x` is not positive definite; ignore elements above the diagonal."""
    if not has_one_element(x) or x.aval.dtype.kind == "c":
        return prims.cholesky(b, x)
    return prims.select(b, prims.gt(b, x, number(b, x, 0)), prims.sqrt(b, x), number(b, x, np.nan))


def triangular_solution(b: JaxprBuilder, a: Atom, x: Atom, lower: bool, **how: Any) -> Atom:
    """Emit the solution of ``a @ y = x`` for a triangular `a`; `how` as `prims.triangular_solve` takes it."""
    if not has_one_element(a):
        return prims.triangular_solve(b, a, x, lower, **how)
    if how.get("unit_diagonal"):
        return x
    is_conjugate = how.get("conjugate_a") and a.aval.dtype.kind == "c"
    return prims.div(b, x, prims.broadcast_to(b, prims.conj(b, a) if is_conjugate else a, x.aval.shape))
