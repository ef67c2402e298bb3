"""Decompositions: LU, QR, SVD, eigenvalues, Schur forms."""

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import FULLGRAPH, compare, compare_error, compare_grad
from pytensor.tensor import linalg
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.linalg.solvers.lstsq import lstsq

import pytensor_jaxpr_linker as pjl

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

RNG = np.random.default_rng(5)
A = RNG.normal(size=(2, 3, 3)) + 2 * np.eye(3)
PD = A @ A.swapaxes(1, 2)
TALL = RNG.normal(size=(2, 4, 3))


def qr(x, mode, pivoting=False):
    """Return all outputs of a QR decomposition."""
    outputs = Blockwise(linalg.QR(mode=mode, pivoting=pivoting))(x)
    return outputs if isinstance(outputs, list) else [outputs]


def every_decomposition(square, positive, tall):
    """Return the outputs of all decompositions, in all forms."""
    outputs = [
        *linalg.lu(square),
        *linalg.lu(square, p_indices=True),
        *linalg.lu(square, permute_l=True),
        *linalg.lu_factor(square),
        *linalg.svd(tall, full_matrices=False),
        *linalg.svd(tall),
        linalg.svd(tall, compute_uv=False),
        *linalg.eigh(positive, driver="evd"),
        linalg.eigvalsh(positive),
        linalg.eigvalsh(positive, lower=False),
        linalg.eig(square)[0],
        *linalg.schur(square),
        *linalg.schur(square, output="complex"),
    ]
    for mode in ("full", "economic", "r", "raw"):
        for pivoting in (False, True):
            outputs += qr(tall, mode, pivoting) + qr(tall.mT, mode, pivoting)
    return outputs


@pytest.mark.parametrize("ndim", [2, 3], ids=["matrix", "batch"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_are_those_of_lapack(dtype, ndim):
    """Signs too: nothing but reconstructions that agree would leave them open."""
    inputs = [pt.tensor(name, dtype=dtype, shape=(None,) * ndim) for name in ("square", "positive", "tall")]
    values = [(v if ndim == 3 else v[0]).astype(dtype) for v in (A, PD, TALL)]
    tolerance = 1e-9 if dtype == "float64" else 1e-4
    outputs = every_decomposition(*inputs)
    f = pytensor.function(inputs, outputs, mode=FULLGRAPH)
    reference = pytensor.function(inputs, outputs, mode="FAST_COMPILE")
    for variable, got, want in zip(outputs, f(*values), reference(*values), strict=True):
        assert got.dtype == want.dtype == variable.type.dtype
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, err_msg=str(variable.owner))


def test_reconstructions():
    square, positive, tall = pt.dmatrix("square"), pt.dmatrix("positive"), pt.dmatrix("tall")
    q, r, p = linalg.qr(tall, pivoting=True)
    u, s, vt = linalg.svd(tall, full_matrices=False)
    w, v = linalg.eigh(positive)
    wx, vx = linalg.eig(square)
    t, z = linalg.schur(square)
    P, L, U = linalg.lu(square)
    rows, _, _ = linalg.lu(square, p_indices=True)
    g, h = linalg.eigh(square + square.T, positive)
    errors = [
        q @ r - tall[:, p],
        (u * s) @ vt - tall,
        (v * w) @ v.T - positive,
        abs(square @ vx - vx * wx),
        z @ t @ z.T - square,
        P @ L @ U - square,
        (L @ U)[rows] - square,
        (square + square.T) @ h - positive @ h * g,
        h.T @ positive @ h - np.eye(3),
    ]
    f = pytensor.function([square, positive, tall], errors, mode=FULLGRAPH)
    for error in f(A[0], PD[0], TALL[0]):
        np.testing.assert_allclose(error, 0, atol=1e-10)


@pytest.mark.parametrize("lower", [True, False], ids=["lower", "upper"])
def test_generalized_eigenvalues(lower):
    """One triangle of each matrix is read."""
    x, y = pt.dtensor3("x"), pt.dtensor3("y")
    outputs = [*linalg.eigh(x, y, lower=lower), linalg.eigvalsh(x, y, lower=lower)]
    triangle = np.tril if lower else np.triu
    compare([x, y], outputs, [A, triangle(PD)], rtol=1e-8)
    compare_grad([x, y], outputs[0], [A, triangle(PD)])


def test_complex_matrices():
    z = pt.zmatrix("z")
    value = A[0] + 1j * A[1]
    hermitian = z @ z.conj().T
    outputs = [
        *linalg.lu(z, p_indices=True),
        *linalg.svd(z),
        linalg.eigvalsh(hermitian),
        *linalg.eig(z),
        *linalg.schur(z),
        linalg.cholesky(hermitian),
        linalg.cholesky(hermitian, lower=False),
        *linalg.qr(z, mode="economic")[1:],
    ]
    compare([z], outputs, [value], rtol=1e-8)


def test_integers():
    x = pt.lmatrix("x")
    value = np.array([[4, 1], [1, 3]])
    compare([x], [*linalg.lu(x), *linalg.qr(x), *linalg.svd(x), linalg.eigvalsh(x), *linalg.eig(x)], [value], rtol=1e-8)


@pytest.mark.filterwarnings("ignore:.*invalid value")
def test_empty_matrices():
    x = pt.dmatrix("x")
    outputs = [
        *linalg.lu(x),
        *linalg.lu_factor(x),
        *linalg.svd(x),
        *linalg.eigh(x),
        linalg.eigvalsh(x),
        *linalg.eig(x),
        *linalg.schur(x),
    ]
    compare([x], outputs, [np.empty((0, 0))])
    f = pytensor.function([x], linalg.qr(x), mode=FULLGRAPH)
    assert [v.shape for v in f(np.empty((0, 2)))] == [(0, 0), (0, 2)]


NAN = np.full((2, 2), np.nan)
RECTANGLE = np.ones((2, 3))


@pytest.mark.parametrize(
    ("decompose", "value", "match"),
    [
        (linalg.lu, NAN, "infs or NaNs"),
        (linalg.svd, NAN, "did not converge"),
        (linalg.eigh, NAN, "infs or NaNs"),
        (linalg.eigh, RECTANGLE, "square"),
        (linalg.eigvalsh, NAN, "infs or NaNs"),
        (linalg.eig, NAN, "infs or NaNs"),
        (linalg.eig, RECTANGLE, "square"),
        (lambda x: linalg.eigh(x, -x), np.eye(2), "not positive definite"),
    ],
    ids=["lu", "svd", "eigh", "eigh-square", "eigvalsh", "eig", "eig-square", "generalized"],
)
def test_what_has_no_decomposition(decompose, value, match):
    x = pt.dmatrix("x")
    outputs = decompose(x)
    compare_error([x], outputs[0] if isinstance(outputs, list) else outputs, [value], match)


def test_eigenvalues_of_what_is_not_finite_are_nan_without_checks():
    x = pt.dtensor3("x")
    fn = pjl.as_jax_function([x], pt.linalg.eig(x)[0])
    with jax.enable_x64(True):
        found = np.asarray(fn(np.stack([np.full((3, 3), np.inf), np.eye(3)])))
    assert np.isnan(found[0]).all() and (found[1] == 1).all()


def test_failures_that_are_nan():
    x, y = pt.dtensor3("x"), pt.dtensor3("y")
    compare([x], linalg.lu_factor(x), [np.stack([A[0], np.ones((3, 3))])], rtol=1e-9)
    compare([y], linalg.schur(y), [np.stack([A[0], np.full((3, 3), np.inf)])], rtol=1e-9)


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: pt.concatenate([linalg.lu(x)[1], linalg.lu(x)[2]]),
        lambda x: linalg.lu_factor(x)[0],
        lambda x: pt.concatenate([linalg.eigh(x, driver="evd")[1], linalg.eigvalsh(x)[None]]),
        lambda x: linalg.svd(x, compute_uv=False),
        lambda x: linalg.svd(x[:, :2], full_matrices=False)[0] @ linalg.svd(x[:, :2], full_matrices=False)[2],
    ],
    ids=["lu", "lu_factor", "eigh", "singular values", "singular vectors"],
)
def test_gradients(compute):
    x = pt.dmatrix("x")
    compare_grad([x], compute(x), [A[0]])


@pytest.mark.parametrize("mode", ["full", "economic", "r"])
def test_gradient_of_qr(mode):
    """PyTensor 3.3.7 has none that runs: ``Q.T @ Q`` is constant, ``R.T @ R`` is ``x.T @ x``."""
    x = pt.dmatrix("x")
    *q, r = qr(x, mode)
    outputs = [(v.T @ v)[:2].sum() for v in (*q, r)]
    with jax.enable_x64(True):
        fn = pjl.as_jax_function([x], [*outputs, (x.T @ x)[:2].sum()], gradient="jax")
        jacobian = jax.jacobian(fn)(A[0])
        np.testing.assert_allclose(jacobian[-2], jacobian[-1], atol=1e-9)
        if q:
            np.testing.assert_allclose(jacobian[0], 0, atol=1e-9)


@pytest.mark.parametrize("inverse", [True, False])
def test_pivots_to_permutation(inverse):
    pivots = pt.ivector("pivots")
    op = linalg.PivotToPermutations(inverse=inverse)
    compare([pivots], op(pivots), [np.array([2, 2, 3, 3], "int32")])


def test_what_runs_on_the_host():
    x = pt.dmatrix("x")
    with pytest.warns(pjl.GraphBreakWarning, match="sorted eigenvalues"):
        compare([x], linalg.schur(x, sort="lhp"), [A[0]], rtol=1e-9)
    with pytest.warns(pjl.GraphBreakWarning, match="QZ"):
        compare([x], linalg.qz(x, x.T), [A[0]], rtol=1e-9)


def test_platforms_without_a_decomposition(monkeypatch):
    x = pt.dmatrix("x")
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    with pytest.raises(pjl.GraphBreakError, match="no such decomposition for the platform tpu"):
        pytensor.function([x], linalg.eig(x), mode=FULLGRAPH)(A[0])


def test_what_pytensor_declares_to_be_another_type_runs_there():
    """Complex eigenvectors (declared real), solutions of complex numbers (real) and of vectors (a matrix)."""
    z, v = pt.zmatrix("z"), pt.dvector("v")
    value = A[0] + 1j * A[1]
    with pytest.warns(pjl.GraphBreakWarning, match="declares its complex eigenvectors real"):
        f = pytensor.function([z], linalg.eigh(z), mode="JAXPR")
    values, vectors = f(value @ value.conj().T)
    assert vectors.dtype == "complex128"
    np.testing.assert_allclose((vectors * values) @ vectors.conj().T, value @ value.conj().T, rtol=1e-10)
    with pytest.warns(pjl.GraphBreakWarning):
        f = pytensor.function([z, v], [lstsq(z, z, 0.0)[0], lstsq(z.real, v, 0.0)[0]], mode="JAXPR")
    same, solution = f(value, np.ones(3))
    np.testing.assert_allclose(same, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(solution, np.linalg.solve(A[0], np.ones(3)), rtol=1e-10)
