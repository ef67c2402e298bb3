"""Factors of matrices and triangular systems, without LAPACK for matrices of one element.

A filter of one observation at a time has such a matrix in each step, where the calls took most of the time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pytensor_jaxpr_linker.emit.scalar import number
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder


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
