"""Cholesky factors, triangular solutions and `Blockwise`."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import compare, compare_error, compare_grad, tensor_like

import pytensor_jaxpr_linker as pjl

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

RNG = np.random.default_rng(3)
A = RNG.normal(size=(2, 3, 3)) + 3 * np.eye(3)
PD = A @ A.swapaxes(1, 2)
Y = RNG.normal(size=(2, 3, 2))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("lower", [True, False], ids=["lower", "upper"])
def test_cholesky(lower, dtype):
    value = PD[0].astype(dtype)
    x = tensor_like(value, "x")
    compare([x], pt.linalg.cholesky(x, lower=lower), [value], rtol=1e-5 if dtype == "float32" else 1e-10)


@pytest.mark.parametrize("lower", [True, False], ids=["lower", "upper"])
def test_cholesky_reads_one_triangle(lower):
    value = np.tril(PD[0], -1) * 5 + np.triu(PD[0]) if not lower else np.tril(PD[0]) + np.triu(PD[0], 1) * 5
    x = tensor_like(value, "x")
    compare([x], pt.linalg.cholesky(x, lower=lower), [value], rtol=1e-10)
    compare_grad([x], pt.linalg.cholesky(x, lower=lower), [value])


@pytest.mark.parametrize("lower", [True, False], ids=["lower", "upper"])
def test_cholesky_batched(lower):
    x = tensor_like(PD, "x")
    compare([x], pt.linalg.cholesky(x, lower=lower), [PD], rtol=1e-10)
    compare_grad([x], pt.linalg.cholesky(x, lower=lower), [PD])


@pytest.mark.parametrize("lower", [True, False], ids=["lower", "upper"])
def test_cholesky_of_no_positive_definite_matrix_is_nan(lower):
    value = np.stack([PD[0], -PD[1]])
    x = tensor_like(value, "x")
    compare([x], pt.linalg.cholesky(x, lower=lower), [value], rtol=1e-10)


def test_cholesky_that_raises():
    x = pt.dmatrix("x")
    with pytest.warns(FutureWarning, match="on_raise"):
        factor = pt.linalg.cholesky(x, on_error="raise")
    compare([x], factor, [PD[0]], rtol=1e-10)
    compare_error([x], factor, [-PD[0]], "Matrix is not positive definite")


def test_cholesky_of_integers_and_of_nothing():
    x = pt.lmatrix("x")
    compare([x], pt.linalg.cholesky(x), [np.array([[4, 2], [2, 5]])])
    compare([x], pt.linalg.cholesky(x), [np.empty((0, 0), "int64")])


def test_cholesky_of_a_rectangle():
    x = pt.dmatrix("x")
    compare_error([x], pt.linalg.cholesky(x), [np.ones((2, 3))], "expected to be square")


OPTIONS = [{"lower": True}, {"lower": False}, {"lower": True, "trans": 1}, {"unit_diagonal": True}]


@pytest.mark.parametrize("b_ndim", [1, 2], ids=["vector", "matrix"])
@pytest.mark.parametrize("options", OPTIONS, ids=["lower", "upper", "transposed", "unit_diagonal"])
def test_solve_triangular(options, b_ndim):
    values = [A[0], Y[0] if b_ndim == 2 else Y[0, :, 0]]
    a, y = tensor_like(values[0], "a"), tensor_like(values[1], "y")
    solution = pt.linalg.solve_triangular(a, y, b_ndim=b_ndim, **options)
    compare([a, y], solution, values, rtol=1e-10)
    compare_grad([a, y], solution, values)


@pytest.mark.parametrize("options", OPTIONS, ids=["lower", "upper", "transposed", "unit_diagonal"])
@pytest.mark.parametrize("sides", ["matrix", "right-hand side", "both"])
def test_solve_triangular_of_transposes_copies_nothing(options, sides):
    a, y = pt.dmatrix("a"), pt.dmatrix("y")
    left = a.T if sides != "right-hand side" else a
    right = y.T if sides != "matrix" else y
    values = [A[0], np.ascontiguousarray(Y[0].T) if sides != "matrix" else Y[0]]
    solution = pt.linalg.solve_triangular(left, right, b_ndim=2, **options)
    compare([a, y], solution, values, rtol=1e-10)
    compare_grad([a, y], solution, values)
    jaxpr = pjl.make_jaxpr(pytensor.function([a, y], solution, mode="JAXPR"), *values)
    solves = [i for i, eqn in enumerate(jaxpr.eqns) if eqn.primitive.name == "triangular_solve"]
    assert not any(eqn.primitive.name == "transpose" for eqn in jaxpr.eqns[: solves[0]])


@pytest.mark.parametrize("options", OPTIONS, ids=["lower", "upper", "transposed", "unit_diagonal"])
def test_solve_triangular_batched(options):
    a, y = pt.dtensor3("a"), pt.dmatrix("y")
    solution = pt.linalg.solve_triangular(a, y, b_ndim=2, **options)
    compare([a, y], solution, [A, Y[0]], rtol=1e-10)
    compare_grad([a, y], solution, [A, Y[0]])


def test_solve_triangular_batch_of_vectors():
    a, y = pt.dmatrix("a"), pt.dmatrix("y")
    compare([a, y], pt.linalg.solve_triangular(a, y, b_ndim=1, lower=True), [A[0], Y[:, :, 0]], rtol=1e-10)


def test_solve_triangular_singular_is_nan():
    value = A.copy()
    value[1, 2, 2] = 0
    a, y = pt.dtensor3("a"), pt.dtensor3("y")
    solutions = [pt.linalg.solve_triangular(a, y, lower=True, unit_diagonal=unit) for unit in (True, False)]
    compare([a, y], solutions, [value, Y], rtol=1e-10)


def test_solve_triangular_dtypes():
    a, y = pt.fmatrix("a"), pt.lvector("y")
    values = [A[0].astype("float32"), np.array([1, 2, 3])]
    compare([a, y], pt.linalg.solve_triangular(a, y, lower=True), values, rtol=1e-6)


@pytest.mark.parametrize(
    ("shapes", "match"),
    [(((2, 3), (3,)), "expected square matrix"), (((3, 3), (2,)), "incompatible")],
    ids=["rectangle", "rows"],
)
def test_solve_triangular_bad_shapes(shapes, match):
    a, y = pt.dmatrix("a"), pt.dvector("y")
    compare_error([a, y], pt.linalg.solve_triangular(a, y), [np.ones(shape) for shape in shapes], match)


@pytest.mark.parametrize("lower", [True, False], ids=["lower", "upper"])
def test_cho_solve(lower):
    a, y = pt.dtensor3("a"), pt.dtensor3("y")
    solution = pt.linalg.cho_solve((a, lower), y)
    compare([a, y], solution, [A, Y], rtol=1e-10)
    # PyTensor's gradient reads the other triangle too, which has to be zero.
    compare_grad([a, y], solution, [np.tril(A) if lower else np.triu(A), Y])


def test_gaussian_log_density():
    """Factor, solve, reduce: the gradient through all of them."""
    cov, y = pt.dmatrix("cov"), pt.dvector("y")
    factor = pt.linalg.cholesky(cov)
    whitened = pt.linalg.solve_triangular(factor, y, lower=True)
    density = -0.5 * (whitened**2).sum() - pt.log(pt.diagonal(factor)).sum()
    compare([cov, y], density, [PD[0], Y[0, :, 0]], rtol=1e-10)
    compare_grad([cov, y], density, [PD[0], Y[0, :, 0]])


def test_batches_that_differ():
    a, y = pt.dtensor3("a"), pt.dtensor3("y")
    solution = pt.linalg.solve_triangular(a, y)
    compare_error([a, y], solution, [A, Y[:1]], "Runtime broadcasting not allowed")
    compare_error([a, y], solution, [A, np.ones((3, 3, 2))])


def test_other_core_ops_run_on_the_host():
    x = pt.dtensor3("x")
    with pytest.warns(pjl.GraphBreakWarning, match="no emission rule is registered for the core Op QZ"):
        compare([x], pt.linalg.qz(x, x)[0] * 2, [A], rtol=1e-10)


def test_vectorized_sort():
    x = pt.dmatrix("x")
    functions = [pt.sort, lambda row: pt.argsort(row, kind="stable"), lambda row: pt.cumsum(pt.sort(row))]
    outputs = [pt.vectorize(f, signature="(n)->(n)")(x) for f in functions]
    compare([x], outputs, [A[0]])
