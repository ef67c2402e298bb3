"""Decompositions of matrices: on CPUs by LAPACK, so signs and phases are PyTensor's, except for `Eigh`'s default."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.linalg.decomposition.eigen import Eig, Eigh, Eigvalsh
from pytensor.tensor.linalg.decomposition.lu import LU, LUFactor, PivotToPermutations
from pytensor.tensor.linalg.decomposition.qr import QR
from pytensor.tensor.linalg.decomposition.schur import Schur
from pytensor.tensor.linalg.decomposition.svd import SVD

from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.base.options import kind_of
from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.blockwise import core_op
from pytensor_jaxpr_linker.emit.conditional import ON_CPU, ON_CPU_AND_GPU, emit_by_platform
from pytensor_jaxpr_linker.emit.linalg import matrices
from pytensor_jaxpr_linker.emit.scalar import all_true, number, numpy_astype
from pytensor_jaxpr_linker.emit.tensor_basic import diagonal, slice_axis
from pytensor_jaxpr_linker.graph.static_values import smaller
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder


def refuse_eig(node: Apply) -> str | None:
    """Return why no platform that the program is lowered for has the primitive; the lowering names one of several."""
    targets = jax_compat.target_platforms()
    if any(kind_of(target) in ("cpu", "gpu") for target in targets):
        return None
    return f"JAX has no such decomposition for the platform {' and '.join(targets)}"


def check_finite(b: JaxprBuilder, x: Atom, error: Exception, node: Apply) -> None:
    """Emit a run-time check that all elements of `x` are finite."""
    if x.aval.dtype.kind == "c":
        x = prims.add(b, prims.real(b, x), prims.imag(b, x))
    b.check(all_true(b, prims.is_finite(b, x)), lambda: error, node)


NOT_FINITE = ValueError("array must not contain infs or NaNs")
NOT_POSITIVE_DEFINITE = (
    "B is not positive definite. The factorization of B could not be completed and no eigenvalues or eigenvectors were"
    " computed."
)


@emits(Cholesky, batched=True)
def emit_Cholesky(op, node, b, x):
    """The triangular factor, from the triangle that `lower` names; all NaN if `x` is not positive definite.

    The primitive reads one triangle, and its derivative is with respect to that triangle, as in PyTensor.
    """
    x = numpy_astype(b, x, node.outputs[0].type.dtype)
    shape = x.aval.shape
    if 0 in shape[-2:]:
        return prims.broadcast_to(b, number(b, x, 0), shape)
    if shape[-1] != shape[-2]:
        raise ValueError(f"Input array is expected to be square but has the shape: {shape[-2:]}.")
    factor = matrices.cholesky_factors(b, x if op.lower else matrices.adjoint(b, x))
    first = prims.slice_(b, factor, [0] * len(shape), (*shape[:-2], 1, 1), [1] * len(shape))
    first = prims.broadcast_to(b, first, shape)
    kept = prims.or_(b, matrices.below(b, shape), prims.ne(b, first, first))
    factor = prims.select(b, kept, factor, number(b, x, 0))
    return factor if op.lower else matrices.adjoint(b, factor)


@emits(LU, batched=True)
def emit_LU(op, node, b, x):
    """``P @ L @ U``: P as a matrix, as the rows of L that it takes, or multiplied with L."""
    x = numpy_astype(b, x, node.outputs[-1].type.dtype)
    check_finite(b, x, NOT_FINITE, node)
    *batch, m, n = x.aval.shape
    lead, k = len(batch), smaller(m, n)
    factors, _, permutation = matrices.lu_factors(b, x)
    lower = slice_axis(b, factors, lead + 1, 0, k)
    lower = prims.add(b, matrices.tril(b, lower, -1), matrices.identity_matrices(b, lower.aval.shape, x.aval.dtype))
    upper = matrices.triu(b, slice_axis(b, factors, lead, 0, k))
    rows = matrices.inverse_permutation(b, permutation)
    if op.permute_l:
        return matrices.permute_rows(b, lower, rows), upper
    if op.p_indices:
        return rows, lower, upper
    unit = matrices.identity_matrices(b, (*batch, m, m), node.outputs[0].type.dtype)
    return matrices.permute_rows(b, unit, rows), lower, upper


@emits(LUFactor, batched=True)
def emit_LUFactor(op, node, b, x):
    """L below U in one matrix, all NaN if `x` is singular, and the row exchanges."""
    factors, pivots, _ = matrices.lu_factors(b, x)
    return prims.select(b, is_singular(b, factors, x.aval.shape), number(b, x, np.nan), factors), pivots


def is_singular(b: JaxprBuilder, factors: Atom, shape: tuple[int, ...]) -> Atom:
    """Emit whether the diagonals of triangular matrices have a zero, broadcast to a shape with the same batch axes."""
    batch = len(factors.aval.shape) - 2
    zero = prims.reduce_or(b, prims.eq(b, diagonal(b, factors), number(b, factors, 0)), (batch,))
    return prims.broadcast_in_dim(b, zero, shape, range(batch))


@emits(PivotToPermutations, batched=True)
def emit_PivotToPermutations(op, node, b, pivots):
    """The permutation that a sequence of row exchanges is, or with ``inverse=False`` the inverse of that."""
    permutation = prims.lu_pivots_to_permutation(b, numpy_astype(b, pivots, "int32"))
    return numpy_astype(b, permutation if op.inverse else matrices.inverse_permutation(b, permutation), "int64")


@emits(QR, batched=True)
def emit_QR(op, node, b, x):
    """Q and R; R alone, padded to the shape of `x`; or LAPACK's reflectors and factors."""
    x = numpy_astype(b, x, node.outputs[0].type.dtype)
    if op.mode == "raw":
        return raw_qr(op, b, x)
    q, r, *columns = qr_results(b, x, op.mode == "full", op.pivoting)
    if op.mode != "r":
        return q, r, *columns
    *batch, m, n = x.aval.shape
    r = prims.pad(b, r, number(b, x, 0), [(0, 0, 0)] * len(batch) + [(0, m - smaller(m, n), 0), (0, 0, 0)])
    return (r, *columns) if columns else r


def qr_results(b: JaxprBuilder, x: Atom, full_matrices: bool, pivoting: bool) -> list[Atom]:
    """Emit Q and R, and with `pivoting`, which JAX lacks on TPUs, the positions of the columns."""
    if not pivoting:
        return prims.qr(b, x, full_matrices)
    return emit_by_platform(b, lambda b, x: prims.qr(b, x, full_matrices, True), [x], ON_CPU_AND_GPU)


def raw_qr(op: QR, b: JaxprBuilder, x: Atom) -> list[Atom]:
    """Emit the reflectors, their factors, R, and with pivoting the positions of the columns."""
    *batch, m, n = x.aval.shape
    columns = []
    if op.pivoting:
        free = prims.broadcast_to(b, b.constant(0, "int32"), (*batch, n))
        packed, position, factors = emit_by_platform(b, prims.geqp3, [x, free], ON_CPU_AND_GPU)
        columns = [prims.sub(b, position, b.constant(1, "int32"))]
    else:
        packed, factors = emit_by_platform(b, prims.geqrf, [x], ON_CPU_AND_GPU)
    return [packed, factors, matrices.triu(b, slice_axis(b, packed, len(batch), 0, smaller(m, n))), *columns]


@emits(SVD, batched=True)
def emit_SVD(op, node, b, x):
    """U, the singular values and V transposed, or the singular values alone."""
    x = numpy_astype(b, x, node.outputs[0].type.dtype) if x.aval.dtype.kind != "c" else x
    s, *uv = prims.svd(b, x, op.full_matrices, op.compute_uv)
    check_converged(b, s, node)
    return (uv[0], s, uv[1]) if uv else s


def check_converged(b: JaxprBuilder, s: Atom, node: Apply, where: str = "") -> None:
    """Emit NumPy's check that the algorithm converged: then no singular value is NaN."""
    b.check(all_true(b, prims.eq(b, s, s)), lambda: np.linalg.LinAlgError(f"SVD did not converge{where}"), node)


def refuse_complex_vectors(node: Apply) -> str | None:
    is_complex = any(v.type.dtype.startswith("complex") for v in node.inputs)
    return "PyTensor declares its complex eigenvectors real" if is_complex else None


@emits(Eigh, refuse=refuse_complex_vectors, batched=True)
def emit_Eigh(op, node, b, x, y=None):
    """Eigenvalues and eigenvectors of a symmetric matrix, or of a pair of them."""
    dtype = node.outputs[0].type.dtype
    return symmetric_eigen(op.lower, node, b, *(numpy_astype(b, v, dtype) for v in (x, y) if v is not None))


@emits(Eigvalsh, batched=True)
def emit_Eigvalsh(op, node, b, *xs):
    """Eigenvalues of a Hermitian matrix, or of a pair of them."""
    dtype = np.result_type(node.outputs[0].type.dtype, *(x.aval.dtype for x in xs if x.aval.dtype.kind == "c"))
    return symmetric_eigen(op.lower, node, b, *(numpy_astype(b, x, dtype) for x in xs))[0]


def symmetric_eigen(lower: bool, node: Apply, b: JaxprBuilder, x: Atom, y: Atom | None = None) -> tuple[Atom, Atom]:
    """Emit the eigenvalues and eigenvectors of `x`, or of the problem ``x @ v = w * y @ v`` as LAPACK's ``sygvd`` does.

    One triangle is mirrored, so the derivative is with respect to that triangle, as in PyTensor.
    """
    for matrix in (x,) if y is None else (x, y):
        if matrix.aval.shape[-1] != matrix.aval.shape[-2]:
            raise ValueError(f"expected square matrix, got the shape {matrix.aval.shape[-2:]}")
        check_finite(b, matrix, NOT_FINITE, node)
    x = matrices.symmetric(b, x, lower)
    if y is None:
        vectors, values = prims.eigh(b, x, lower)
        return values, vectors
    factor = matrices.cholesky_factors(b, matrices.symmetric(b, y, lower))
    pivots = diagonal(b, factor)
    b.check(all_true(b, prims.eq(b, pivots, pivots)), lambda: np.linalg.LinAlgError(NOT_POSITIVE_DEFINITE), node)
    x = matrices.triangular_solution(b, factor, x, lower=True)
    x = matrices.triangular_solution(b, factor, x, lower=True, left_side=False, transpose_a=True, conjugate_a=True)
    vectors, values = prims.eigh(b, matrices.symmetric(b, x, lower), lower)
    return values, matrices.triangular_solution(b, factor, vectors, lower=True, transpose_a=True, conjugate_a=True)


@emits(Eig, refuse=refuse_eig, batched=True)
def emit_Eig(op, node, b, x):
    """Eigenvalues and right eigenvectors of any square matrix, complex."""
    matrices.check_square(*x.aval.shape)
    dtype = np.dtype(node.outputs[0].type.dtype)
    x = numpy_astype(b, x, dtype if x.aval.dtype.kind == "c" else prims.part_dtype(dtype))
    check_finite(b, x, np.linalg.LinAlgError("Array must not contain infs or NaNs"), node)
    return of_finite(b, prims.eig, x)


def of_finite(b: JaxprBuilder, decompose: Callable[..., Sequence[Atom]], x: Atom) -> list[Atom]:
    """Emit a decomposition, NaN where `x` is not finite: LAPACK may iterate forever there, and a GPU's library fail."""
    finite = matrices.finite_matrices(b, x)
    results = decompose(b, matrices.where_matrices(b, finite, x, 0))
    return [matrices.where_matrices(b, finite, y, np.nan) for y in results]


def refuse_schur(node: Apply) -> str | None:
    return None if core_op(node).sort is None else "JAX has no Schur decomposition with sorted eigenvalues"


@emits(Schur, refuse=refuse_schur, batched=True)
def emit_Schur(op, node, b, x):
    """The Schur form and its vectors; NaN unless `x` is finite."""
    return finite_schur(b, numpy_astype(b, x, node.outputs[0].type.dtype))


def finite_schur(b: JaxprBuilder, x: Atom) -> list[Atom]:
    """Emit the Schur form and vectors, NaN where `x` is not finite; off CPUs loops find them, to some n eps."""
    return of_finite(b, lambda b, x: emit_by_platform(b, prims.schur, [x], ON_CPU), x)
