"""Sample inputs for the Ops of linear algebra."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
from op_row import Row
from pytensor.tensor import linalg
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.linalg.solvers.tridiagonal import LUFactorTridiagonal, tridiagonal_lu_factor, tridiagonal_lu_solve

SQUARE = np.cos(np.arange(9.0)).reshape(3, 3) + 3 * np.eye(3)
POSITIVE = SQUARE @ SQUARE.T
TALL = np.sin(np.arange(12.0) ** 1.5).reshape(4, 3)
LOWER = np.linalg.cholesky(POSITIVE)
VECTOR = np.array([1.0, -2.0, 0.5])
BATCH = np.stack([POSITIVE, 2 * POSITIVE])
EMPTY = np.zeros((0, 0))


def symmetric(x):
    """Return a symmetric matrix, of which each decomposition may read the triangle that it likes."""
    return (x + x.mT) / 2


def schur_up_to_signs(x):
    """Return the matrix from its Schur form and vectors, and the sizes in these: loops in place of LAPACK may find vectors of other signs."""
    t, z = linalg.schur(x)
    return z @ t @ z.mT, pt.abs(t), pt.abs(z)


ROWS = [
    Row("Cholesky", lambda x: linalg.cholesky(symmetric(x)), (POSITIVE,), ((EMPTY,),), lengths="n,n"),
    Row("Blockwise", lambda x: Blockwise(linalg.Cholesky(lower=True))(symmetric(x)), (BATCH,), lengths="b,n,n"),
    Row("LU", linalg.lu, (SQUARE,), ((EMPTY,),), gradient=False, lengths="m,n"),
    Row("LUFactor", lambda x: linalg.lu_factor(x)[0], (SQUARE,), lengths="n,n"),
    Row("PivotToPermutations", lambda x: linalg.pivot_to_permutation(linalg.lu_factor(x)[1]), (SQUARE,), lengths="n,n"),
    Row("QR", lambda x: linalg.qr(x), (TALL,), gradient=False, where=("a >= b",), refused="a,b"),
    Row("SVD", lambda x: linalg.svd(x, compute_uv=False), (TALL,)),
    Row(
        "Eig",
        lambda x: linalg.eig(symmetric(x))[0],
        (np.diag([1.0, 3.0, 7.0]),),
        gradient=False,
        flip=False,
        lengths="n,n",
    ),
    Row("Eigh", lambda x: linalg.eigh(symmetric(x))[0], (SQUARE,), lengths="n,n"),
    Row("Eigvalsh", lambda x: linalg.eigvalsh(symmetric(x)), (SQUARE,), lengths="n,n"),
    Row("Schur", schur_up_to_signs, (SQUARE,), gradient=False, lengths="n,n"),
    Row("Det", linalg.det, (SQUARE,), ((EMPTY,),), lengths="n,n"),
    Row("SLogDet", linalg.SLogDet(), (SQUARE,), gradient=False, lengths="n,n"),
    Row("Expm", linalg.expm, (SQUARE,), lengths="n,n"),
    Row("MatrixInverse", linalg.inv, (SQUARE,), lengths="n,n"),
    Row("MatrixPinv", linalg.pinv, (TALL,)),
    Row(
        "TensorInv",
        lambda x: linalg.tensorinv(pt.reshape(x, (3, 3, 1)), ind=1),
        (SQUARE,),
        gradient=False,
        lengths="3,3",
    ),
    Row("TensorSolve", linalg.tensorsolve, (SQUARE, VECTOR), gradient=False, lengths="n,n;n"),
    Row("Solve", linalg.solve, (SQUARE, VECTOR), lengths="n,n;n"),
    Row(
        "Solve symmetric",
        lambda x, y: linalg.solve(symmetric(x), y, assume_a="sym"),
        (POSITIVE, TALL.T.copy()),
        lengths="n,n;n,k",
    ),
    Row(
        "SolveTriangular",
        lambda x, y: linalg.solve_triangular(x, y, lower=True),
        (LOWER, VECTOR),
        flip=False,
        lengths="n,n;n",
    ),
    Row(
        "CholeskySolve",
        lambda x, y: linalg.cho_solve((x, True), y),
        (LOWER, VECTOR),
        flip=False,
        gradient=False,
        lengths="n,n;n",
    ),
    Row(
        "LUFactorTridiagonal",
        lambda x: LUFactorTridiagonal()(x[1:], x + 4, x[:-1])[:3],
        (VECTOR,),
        ((TALL[:, 0],),),
        gradient=False,
    ),
    Row(
        "SolveLUFactorTridiagonal",
        lambda x, y: tridiagonal_lu_solve(tridiagonal_lu_factor(x), y, b_ndim=1),
        (SQUARE, VECTOR),
        ((TALL @ TALL.T + 3 * np.eye(4), TALL[:, 0]),),
        gradient=False,
        lengths="n,n;n",
    ),
    Row(
        "Lstsq",
        lambda x, y: linalg.lstsq(x, y, 1e-10)[0],
        (TALL, TALL[:, :2].copy()),
        gradient=False,
        single=False,
        lengths="m,n;m,k",
    ),
    Row("SolveSylvester", linalg.solve_sylvester, (SQUARE, POSITIVE, SQUARE), gradient=False, lengths="m,m;n,n;m,n"),
    Row(
        "SolveBilinearDiscreteLyapunov",
        lambda x, y: linalg.solve_discrete_lyapunov(x / 9, y),
        (SQUARE, POSITIVE),
        gradient=False,
        lengths="n,n;n,n",
    ),
    Row("KroneckerProduct", linalg.kron, (SQUARE, TALL)),
    Row("BlockDiagonal", linalg.block_diag, (SQUARE, TALL), ((SQUARE, EMPTY),), lengths="m,n;j,k"),
]
