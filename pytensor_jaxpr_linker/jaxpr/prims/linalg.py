"""Products, Fourier transforms, factorizations and solvers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jax import lax
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base.jax_compat import LinearSolveTuple, bcsr_product, geqp3_p, geqrf_p
from pytensor_jaxpr_linker.graph.static_values import smaller
from pytensor_jaxpr_linker.jaxpr.builder import INT32, Atom, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.prims.arithmetic import complex_dtype, part_dtype, real_dtype


def dot_general(
    b: JaxprBuilder,
    x: Atom,
    y: Atom,
    contract: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
) -> Atom:
    """Assemble the product of `x` and `y`, summed over the axes `contract`, axes `batch` in parallel and first."""
    (xc, yc), (xb, yb) = (tuple(map(tuple, pair)) for pair in (contract, batch))
    shape = (
        *(x.aval.shape[i] for i in xb),
        *(n for i, n in enumerate(x.aval.shape) if i not in xc + xb),
        *(n for i, n in enumerate(y.aval.shape) if i not in yc + yb),
    )
    params = {"dimension_numbers": ((xc, yc), (xb, yb)), "precision": None}
    params |= {"preferred_element_type": x.aval.dtype, "out_sharding": None}
    return b.bind(p.dot_general_p, (x, y), shape, x.aval.dtype, params)


def bcsr_dot_general(b: JaxprBuilder, data: Atom, indices: Atom, indptr: Atom, y: Atom, shape: tuple[int, int]) -> Atom:
    """Assemble the product of a CSR matrix of a shape, its indices in bounds, with a dense matrix."""
    primitive, info = bcsr_product()
    params = {
        "dimension_numbers": (((1,), (0,)), ((), ())),
        "preferred_element_type": None,
        "lhs_spinfo": info(shape=shape, indices_sorted=False, unique_indices=False),
    }
    return b.bind(primitive, (data, indices, indptr, y), (shape[0], y.aval.shape[1]), y.aval.dtype, params)


def fft(b: JaxprBuilder, x: Atom, kind: lax.FftType, lengths: Sequence[int]) -> Atom:
    """Assemble the Fourier transform of the last axes; a real one has ``n // 2 + 1`` elements along the last axis."""
    lengths, shape = tuple(lengths), list(x.aval.shape)
    dtype = x.aval.dtype
    if kind == lax.FftType.RFFT:
        shape[-1], dtype = lengths[-1] // 2 + 1, complex_dtype(dtype)
    elif kind == lax.FftType.IRFFT:
        shape[-1], dtype = lengths[-1], part_dtype(dtype)
    return b.bind(p.fft_p, (x,), tuple(shape), dtype, {"fft_type": kind, "fft_lengths": lengths})


def cholesky(b: JaxprBuilder, x: Atom) -> Atom:
    """Assemble the lower Cholesky factor of the last two axes; NaN where `x` is not positive definite.

    Elements above the diagonal are arbitrary: `jax.lax.linalg.cholesky` sets them to zero by a select.
    """
    return b.bind(p.cholesky_p, (x,), x.aval.shape, x.aval.dtype, {})


def triangular_solve(
    b: JaxprBuilder,
    a: Atom,
    x: Atom,
    lower: bool,
    transpose_a: bool = False,
    unit_diagonal: bool = False,
    left_side: bool = True,
    conjugate_a: bool = False,
) -> Atom:
    """Assemble the solution of ``a @ y = x``, or ``y @ a = x``, for a triangular `a` (``a.T`` with `transpose_a`)."""
    params = {"left_side": left_side, "lower": lower, "transpose_a": transpose_a}
    params |= {"conjugate_a": conjugate_a and a.aval.dtype.kind == "c", "unit_diagonal": unit_diagonal}
    return b.bind(p.triangular_solve_p, (a, x), x.aval.shape, x.aval.dtype, params)


def tridiagonal_solve(b: JaxprBuilder, lower: Atom, main: Atom, upper: Atom, x: Atom) -> Atom:
    """Assemble the solution of a tridiagonal system; ``lower[0]`` and ``upper[-1]`` are not part of the matrix."""
    params = {"perturb_singular": False}
    return b.bind(p.tridiagonal_solve_p, (lower, main, upper, x), x.aval.shape, x.aval.dtype, params)


def linear_solve(
    b: JaxprBuilder,
    operator: Sequence[Atom],
    factors: Sequence[Atom],
    x: Atom,
    product: Callable[..., Atom],
    solve: Callable[..., Atom],
) -> Atom:
    """Assemble the solution y of ``A y = x``, whose derivative follows from the equation and not from how it is solved.

    `product` and `solve` emit ``A y`` of ``(b, *operator, y)`` and y of ``(b, *factors, x)``; both take `transposed`,
    which means the same of the transpose of A.
    """
    jaxprs = []
    for atoms, emit in ((operator, product), (factors, solve)):
        for transposed in (False, True):
            body, operands = b.sub_jaxpr([atom.aval for atom in (*atoms, x)])
            jaxprs.append(body.build([emit(body, *operands, transposed=transposed)]))
    lengths = LinearSolveTuple(len(operator), len(operator), len(factors), len(factors))
    params = {"const_lengths": lengths, "jaxprs": LinearSolveTuple(*jaxprs)}
    return b.bind(p.linear_solve_p, (*operator, *operator, *factors, *factors, x), x.aval.shape, x.aval.dtype, params)


def lu(b: JaxprBuilder, x: Atom) -> list[Atom]:
    """Assemble the LU factors in one matrix, the row exchanges, and the permutation that they are (int32, from 0)."""
    *batch, m, n = x.aval.shape
    avals = (x.aval, b.aval((*batch, smaller(m, n)), INT32), b.aval((*batch, m), INT32))
    return list(b.bind_many(p.lu_p, (x,), avals, {}))


def lu_pivots_to_permutation(b: JaxprBuilder, pivots: Atom) -> Atom:
    """Assemble the permutation of as many rows as there are exchanges `pivots` (int32)."""
    params = {"permutation_size": pivots.aval.shape[-1]}
    return b.bind(lax.linalg.lu_pivots_to_permutation_p, (pivots,), pivots.aval.shape, INT32, params)


def qr(b: JaxprBuilder, x: Atom, full_matrices: bool, pivoting: bool = False) -> list[Atom]:
    """Assemble Q and R, and with `pivoting` the positions of the columns (int32)."""
    *batch, m, n = x.aval.shape
    k = m if full_matrices else smaller(m, n)
    avals = [b.aval((*batch, m, k), x.aval.dtype), b.aval((*batch, k, n), x.aval.dtype)]
    avals += [b.aval((*batch, n), INT32)] * pivoting
    params = {"pivoting": pivoting, "full_matrices": full_matrices, "use_magma": None}
    return list(b.bind_many(p.qr_p, (x,), avals, params))


def geqrf(b: JaxprBuilder, x: Atom) -> list[Atom]:
    """Assemble LAPACK's form of a QR decomposition: R above reflectors, and their factors."""
    *batch, m, n = x.aval.shape
    return list(b.bind_many(geqrf_p, (x,), (x.aval, b.aval((*batch, smaller(m, n)), x.aval.dtype)), {}))


def geqp3(b: JaxprBuilder, x: Atom, columns: Atom) -> list[Atom]:
    """Assemble `geqrf` with pivoting; columns whose int32 is 0 may move. The positions come second, from 1."""
    *batch, m, n = x.aval.shape
    avals = (x.aval, columns.aval, b.aval((*batch, smaller(m, n)), x.aval.dtype))
    return list(b.bind_many(geqp3_p, (x, columns), avals, {"use_magma": None}))


def svd(b: JaxprBuilder, x: Atom, full_matrices: bool, compute_uv: bool) -> list[Atom]:
    """Assemble the singular values, and with `compute_uv` the matrices on their left and right."""
    *batch, m, n = x.aval.shape
    k = smaller(m, n)
    avals = [b.aval((*batch, k), real_dtype(x.aval.dtype))]
    if compute_uv:
        left, right = (m, n) if full_matrices else (k, k)
        avals += [b.aval((*batch, m, left), x.aval.dtype), b.aval((*batch, right, n), x.aval.dtype)]
    params = {"full_matrices": full_matrices, "compute_uv": compute_uv, "subset_by_index": None, "algorithm": None}
    return list(b.bind_many(p.svd_p, (x,), avals, params))


def eigh(b: JaxprBuilder, x: Atom, lower: bool) -> list[Atom]:
    """Assemble eigenvectors and ascending eigenvalues of a Hermitian matrix; one triangle is read."""
    avals = (x.aval, b.aval(x.aval.shape[:-1], real_dtype(x.aval.dtype)))
    params = {"lower": lower, "sort_eigenvalues": True, "subset_by_index": None, "algorithm": None}
    return list(b.bind_many(p.eigh_p, (x,), avals, params))


def eig(b: JaxprBuilder, x: Atom) -> list[Atom]:
    """Assemble eigenvalues and right eigenvectors, both complex."""
    dtype = np.result_type(x.aval.dtype, np.complex64)
    params: dict[str, bool | None] = {"compute_left_eigenvectors": False, "compute_right_eigenvectors": True}
    params |= {"enable_eigvec_derivs": False, "implementation": None}
    return list(b.bind_many(p.eig_p, (x,), (b.aval(x.aval.shape[:-1], dtype), b.aval(x.aval.shape, dtype)), params))


def schur(b: JaxprBuilder, x: Atom) -> list[Atom]:
    """Assemble the Schur form and the Schur vectors."""
    params = {"compute_schur_vectors": True, "sort_eig_vals": False, "select_callable": None}
    return list(b.bind_many(p.schur_p, (x,), (x.aval, x.aval), params))
