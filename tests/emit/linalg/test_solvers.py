"""Solutions of linear systems, inverses, determinants, least squares and Sylvester's equation."""

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import FULLGRAPH, compare, compare_error, compare_grad
from pytensor.tensor import linalg
from pytensor.tensor.blockwise import Blockwise

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base.options import for_platforms

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

RNG = np.random.default_rng(6)
A = RNG.normal(size=(2, 3, 3)) + 3 * np.eye(3)
PD = A @ A.swapaxes(1, 2)
BAND = np.triu(np.tril(A, 1), -1)
Y = RNG.normal(size=(2, 3, 2))
TALL = RNG.normal(size=(2, 4, 3))
MATRICES = {"gen": A, "sym": A, "her": A, "pos": PD, "tridiagonal": BAND, "banded": BAND}
SINGULAR = np.ones((2, 2))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_solve_by_what_is_assumed(dtype):
    """A batch of each kind; only one triangle of a matrix that is said to be symmetric is read."""
    inputs = {kind: pt.tensor(kind, dtype=dtype, shape=(None,) * 3) for kind in MATRICES}
    y = pt.tensor("y", dtype=dtype, shape=(None,) * 3)
    outputs = [
        linalg.solve(a, y, assume_a=kind, lower=lower, b_ndim=2)
        for kind, a in inputs.items()
        for lower in (False, True)
    ]
    values = [v.astype(dtype) for v in (*MATRICES.values(), Y)]
    compare([*inputs.values(), y], outputs, values, rtol=1e-9 if dtype == "float64" else 1e-4)


@pytest.mark.parametrize("kind", ["gen", "sym", "tridiagonal"])
def test_gradient_of_solve(kind):
    """It is by all elements, as PyTensor has it, whatever is assumed."""
    a, y = pt.dtensor3("a"), pt.dtensor3("y")
    value = MATRICES[kind] + MATRICES[kind].swapaxes(1, 2)
    compare_grad([a, y], linalg.solve(a, y, assume_a=kind, b_ndim=2), [value, Y])


def test_gradient_of_a_positive_definite_solution():
    a, y = pt.dmatrix("a"), pt.dmatrix("y")
    solution = linalg.solve(a @ a.T, y, assume_a="pos")  # a rewrite factors it, and a factor is of one triangle
    compare_grad([a, y], solution, [A[0], Y[0]])


def test_a_solution_and_its_gradient_share_factors():
    a, y = pt.dmatrix("a"), pt.dmatrix("y")
    cost = (linalg.solve(a, y) ** 2).sum()
    values = [A[0], Y[0]]
    outputs = [cost, *pytensor.grad(cost, [a, y]), linalg.det(a)]
    compare([a, y], outputs, values, rtol=1e-9)
    jaxpr = pjl.make_jaxpr(pytensor.function([a, y], outputs, mode="JAXPR"), *values)
    assert sum(eqn.primitive.name == "lu" for eqn in jaxpr.eqns) == 1


def test_forms_of_the_right_hand_side():
    a, y = pt.dtensor3("a"), pt.dmatrix("y")
    transposed = linalg.solve(a, y, transposed=True, b_ndim=2)
    compare([a, y], transposed, [A, Y[0]], rtol=1e-9)
    compare([a, y], linalg.solve(a, y, b_ndim=1), [A, Y[:, :, 0]], rtol=1e-9)
    compare([a, y], linalg.solve(a, y, b_ndim=2), [np.empty((2, 0, 0)), np.empty((0, 2))])


@pytest.mark.parametrize("kind", ["gen", "sym", "pos", "tridiagonal"])
def test_solve_singular_is_nan(kind):
    a, y = pt.dmatrix("a"), pt.dmatrix("y")
    compare([a, y], linalg.solve(a, y, assume_a=kind), [SINGULAR, np.eye(2)])


def test_a_tridiagonal_solution_that_is_not_finite_is_nan_on_gpus():
    """Their library does not say that a matrix is singular; of a batch, the other solutions are kept."""
    a, y = pt.dtensor3("a"), pt.dtensor3("y")
    values = [np.stack([np.eye(2) * 2.0**-1000, np.eye(2)]), np.array([[[2.0**1000], [1.0]]] * 2)]
    solution = linalg.solve(a, y, assume_a="tridiagonal", b_ndim=2)
    with jax.enable_x64(True):
        found = pjl.as_jax_function([a, y], solution)(*values)
        with for_platforms(["cuda"]):
            on_gpu = pjl.as_jax_function([a, y], solution)(*values)
    np.testing.assert_array_equal(found, [[[np.inf], [2.0**1000]], [[2.0**1000], [1]]])
    np.testing.assert_array_equal(on_gpu, [[[np.nan], [np.nan]], [[2.0**1000], [1]]])


@pytest.mark.parametrize("shapes", [((2, 3), (2, 2)), ((2, 2), (3, 2))], ids=["rectangle", "rows"])
def test_solve_bad_shapes(shapes):
    a, y = pt.dmatrix("a"), pt.dmatrix("y")
    compare_error([a, y], linalg.solve(a, y), [np.ones(shape) for shape in shapes])


def test_complex_systems():
    z, y = pt.zmatrix("z"), pt.zmatrix("y")
    hermitian = z @ z.conj().T
    outputs = [
        linalg.solve(z, y),
        linalg.solve(hermitian, y, assume_a="her"),
        linalg.inv(z),
        linalg.det(z),
        linalg.pinv(z),
        linalg.expm(z),
        linalg.solve_sylvester(z, hermitian, y),
    ]
    compare([z, y], outputs, [A[0] + 1j * A[1], PD[0] + 1j * PD[1]], rtol=1e-8)


# -- inverses, determinants, and more ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_of_matrices(dtype):
    a, p, t = (pt.tensor(name, dtype=dtype, shape=(None,) * 3) for name in "apt")
    outputs = [
        linalg.inv(a),
        linalg.det(a),
        *Blockwise(linalg.SLogDet())(a),
        *Blockwise(linalg.SLogDet())(-a),
        linalg.pinv(t),
        linalg.pinv(t.mT),
        linalg.pinv(p, hermitian=True),
        linalg.block_diag(a, t, p),
        linalg.tensorinv(a[0], 1),
    ]
    values = [v.astype(dtype) for v in (A, PD, TALL)]
    compare([a, p, t], outputs, values, *((1e-9,) if dtype == "float64" else (1e-3, 1e-4)))


@pytest.mark.parametrize(
    "compute",
    [linalg.inv, linalg.det, lambda x: linalg.slogdet(x)[1], lambda x: linalg.pinv(x[..., :2]), linalg.expm],
    ids=["inv", "det", "slogdet", "pinv", "expm"],
)
def test_gradients(compute):
    x = pt.dtensor3("x")
    compare_grad([x], compute(x), [A])


def test_singular_matrices():
    x, y = pt.dmatrix("x"), pt.dmatrix("y")
    for output in (linalg.inv(x), linalg.tensorinv(x, 1)):
        compare_error([x], output, [SINGULAR], "Singular matrix")
    compare_error([x, y], linalg.tensorsolve(x[None], y[:1]), [SINGULAR, SINGULAR], "Singular matrix")
    compare([x], [linalg.det(x), *linalg.slogdet(x), linalg.pinv(x)], [SINGULAR], rtol=1e-9)


def test_one_singular_matrix_of_a_batch():
    x = pt.dtensor3("x")
    compare_error([x], linalg.inv(x), [np.stack([np.eye(2), SINGULAR])], "Singular matrix")


@pytest.mark.parametrize(
    "compute",
    [linalg.inv, linalg.det, linalg.expm, lambda x: linalg.tensorinv(x, 1)],
    ids=["inv", "det", "expm", "tensorinv"],
)
def test_matrices_that_are_not_square(compute):
    x = pt.dmatrix("x")
    compare_error([x], compute(x), [np.ones((2, 3))])


def test_empty_matrices():
    x = pt.dmatrix("x")
    outputs = [linalg.inv(x), linalg.det(x), *linalg.slogdet(x), linalg.pinv(x), linalg.expm(x), linalg.solve(x, x)]
    compare([x], outputs, [np.empty((0, 0))])


def test_tensor_equations():
    a, y = pt.dtensor4("a"), pt.dmatrix("y")
    outputs = [linalg.tensorinv(a), linalg.tensorsolve(a, y), linalg.tensorsolve(a, y, axes=(0, 1))]
    compare([a, y], outputs, [RNG.normal(size=(2, 3, 3, 2)), RNG.normal(size=(2, 3))], rtol=1e-8)


def test_kronecker_products():
    a, y = pt.dmatrix("a"), pt.dmatrix("y")
    compare([a, y], linalg.kron(a, y), [A[0], Y[0]])
    twice = pt.stack([a, 2 * a])
    of_matrices = pt.vectorize(linalg.kron, signature="(a,b),(c,d)->(e,f)")(twice, y)
    of_vectors = pt.vectorize(linalg.kron, signature="(a),(c,d)->(e,f)")(twice[:, 0], y)
    f = pytensor.function([a, y], [of_matrices, of_vectors], mode=FULLGRAPH)
    for got, factor in zip(f(A[0], Y[0]), (A[0], A[0, 0]), strict=True):
        np.testing.assert_allclose(got, np.stack([np.kron(factor, Y[0]), np.kron(2 * factor, Y[0])]))


# -- least squares -----------------------------------------------------------------------------------------------------

DEFICIENT = np.ones((4, 3)) + np.eye(4, 3) * [0, 0, 1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_least_squares(dtype):
    """One program, whatever the rank, as long as the residuals are not asked for."""
    x, y = (pt.tensor(name, dtype=dtype, shape=(None, None)) for name in "xy")
    solution, _, rank, s = linalg.lstsq(x, y, np.float64(1e-6))
    f = pytensor.function([x, y], [solution, rank, s], mode=FULLGRAPH)
    reference = pytensor.function([x, y], [solution, rank, s], mode="FAST_COMPILE")
    for value in (TALL[0], TALL[0].T, DEFICIENT):
        values = [v.astype(dtype) for v in (value, RNG.normal(size=(len(value), 2)))]
        for got, want in zip(f(*values), reference(*values), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9 if dtype == "float64" else 1e-4, atol=1e-6)
    assert f(np.ones((3, 0), dtype), np.ones((3, 2), dtype))[0].shape == (0, 2)
    with pytest.raises(np.linalg.LinAlgError, match="did not converge in Linear Least Squares"):
        f(np.full((3, 2), np.nan, dtype), np.ones((3, 2), dtype))
    with pytest.raises(np.linalg.LinAlgError, match="Incompatible dimensions"):
        f(np.ones((3, 2), dtype), np.ones((4, 2), dtype))


def test_how_many_residuals_there_are_depends_on_the_rank():
    x, y = pt.dmatrix("x"), pt.dmatrix("y")
    residuals = linalg.lstsq(x, y, np.float64(1))[1]  # LAPACK takes its own limit unless it is between 0 and 1
    with pytest.warns(pjl.GraphBreakWarning):
        f = pytensor.function([x, y], residuals * 2, mode="JAXPR")
    reference = pytensor.function([x, y], residuals * 2, mode="FAST_COMPILE")
    for value in (TALL[0], TALL[0].T, DEFICIENT):
        values = [value, RNG.normal(size=(len(value), 2))]
        np.testing.assert_allclose(f(*values), reference(*values), rtol=1e-8)


# -- the exponential ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_expm_of_small_and_large_norms(dtype):
    """The matrices of a batch are squared as often as each needs."""
    x = pt.tensor("x", dtype=dtype, shape=(None,) * 3)
    skew = A[0] - A[0].T
    value = np.stack([0 * skew, 1e-3 * A[0], A[0], 40 * skew, -20 * PD[0]]).astype(dtype)
    tolerance = 1e-10 if dtype == "float64" else 1e-3
    compare([x], linalg.expm(x), [value], rtol=tolerance, atol=tolerance)


def test_expm_of_what_has_none():
    x = pt.dtensor3("x")
    compare([x], linalg.expm(x), [np.stack([np.full((2, 2), np.nan), np.full((2, 2), np.inf), np.eye(2)])])


# -- Sylvester's and Lyapunov's equations ------------------------------------------------------------------------------


def test_sylvester():
    a, y, q = pt.dtensor3("a"), pt.dmatrix("y"), pt.dmatrix("q")
    solution = linalg.solve_sylvester(a, y, q)
    compare([a, y, q], solution, [A, PD[0, :2, :2], Y[0]], rtol=1e-8)
    f = pytensor.function([a, y, q], solution, mode=FULLGRAPH)
    assert f(A, np.empty((0, 0)), np.empty((3, 0))).shape == (2, 3, 0)  # where PyTensor's own fails
    compare_grad([a, y, q], solution, [A, PD[0, :2, :2], Y[0]])


def test_lyapunov():
    a, q = pt.dmatrix("a"), pt.dmatrix("q")
    outputs = [
        linalg.solve_continuous_lyapunov(a, q),
        linalg.solve_discrete_lyapunov(a, q),
        linalg.solve_discrete_lyapunov(a, q, method="direct"),
    ]
    f = pytensor.function([a, q], outputs, mode=FULLGRAPH)
    reference = pytensor.function([a, q], outputs, mode="FAST_COMPILE")
    for got, want in zip(f(A[0] / 6, PD[0]), reference(A[0] / 6, PD[0]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-8)


def test_riccati_runs_partly_on_the_host():
    a, y, q, r = (pt.dmatrix(name) for name in "ayqr")
    values = [A[0], Y[0], PD[0], PD[0, :2, :2]]
    with pytest.warns(pjl.GraphBreakWarning, match="QZ"):
        compare([a, y, q, r], linalg.solve_discrete_are(a, y, q, r), values, rtol=1e-7)


# -- tridiagonal factors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tridiagonal_factors(dtype):
    """The first matrix takes exchanges of rows."""
    a, y = (pt.tensor(name, dtype=dtype, shape=(None,) * 3) for name in "ay")
    matrices = np.triu(np.tril(RNG.normal(size=(2, 5, 5)), 1), -1) + np.eye(5) * [[[0]], [[4]]]
    values = [v.astype(dtype) for v in (matrices, RNG.normal(size=(2, 5, 2)))]
    factors = linalg.tridiagonal_lu_factor(a)
    outputs = [*factors]
    for transposed in (False, True):
        outputs += [
            linalg.tridiagonal_lu_solve(factors, y, b_ndim=2, transposed=transposed),
            linalg.tridiagonal_lu_solve(factors, y[..., 0], b_ndim=1, transposed=transposed),
        ]
    tolerance = 1e-9 if dtype == "float64" else 1e-4
    *_, pivots, _, _, _, _ = compare([a, y], outputs, values, rtol=tolerance, atol=tolerance)
    assert (pivots[0] != np.arange(1, 6)).any()


# -- matrices of one element -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_matrices_of_one_element(dtype):
    """They need no call of LAPACK."""
    a, y = pt.tensor("a", dtype=dtype, shape=(2, 1, 1)), pt.tensor("y", dtype=dtype, shape=(2, 1, 3))
    outputs = [
        *(linalg.solve(a, y, assume_a=kind, b_ndim=2) for kind in ("gen", "pos", "sym")),
        *(
            linalg.solve_triangular(a, y, trans=trans, unit_diagonal=unit, b_ndim=2)
            for trans, unit in ((0, 0), ("C", 0), (1, 1))
        ),
        linalg.cho_solve((a, True), y, b_ndim=2),
        linalg.inv(a),
        linalg.cholesky(a),
        linalg.det(a),
        *linalg.slogdet(a),
        *(linalg.lu(a) if dtype != "complex128" else ()),  # PyTensor's own has another dtype than it declares
    ]
    values = [np.array([2.5, 0.3]).reshape(2, 1, 1).astype(dtype), np.arange(6.0).reshape(2, 1, 3).astype(dtype)]
    compare([a, y], outputs, values, rtol=1e-5 if dtype == "float32" else 1e-12)
    f = pytensor.function([a, y], outputs, mode="JAXPR")
    lapack = ("lu", "triangular_solve") if dtype == "complex128" else ("lu", "triangular_solve", "cholesky")
    text = str(pjl.make_jaxpr(f, *values))
    assert not [name for name in lapack if f"= {name}" in text]


@pytest.mark.parametrize("value", [4.0, 0.0, -1.0, np.inf])
def test_one_element_without_solution_or_factor(value):
    a, y = pt.tensor("a", dtype="float64", shape=(1, 1)), pt.tensor("y", dtype="float64", shape=(1,))
    outputs = [linalg.solve(a, y), linalg.det(a), linalg.slogdet(a)[1], linalg.cholesky(a, on_error="nan")]
    compare([a, y], outputs, [np.full((1, 1), value), np.ones(1)])


def test_errors_of_one_element():
    a = pt.tensor("a", dtype="float64", shape=(1, 1))
    compare_error([a], linalg.inv(a), [np.zeros((1, 1))])


@pytest.mark.parametrize("function", [linalg.inv, linalg.det, lambda a: linalg.slogdet(a)[1], linalg.cholesky])
def test_gradient_of_one_element(function):
    a = pt.tensor("a", dtype="float64", shape=(1, 1))
    compare_grad([a], function(a), [np.full((1, 1), 1.7)])
