"""Gradients at special values and of sums of exponentials: PyTensor's numbers."""

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import compare, compare_error
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import optdb
from pytensor.graph import FunctionGraph
from pytensor.tensor.special import LogSumExp

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.frontend.added_rewrites import FIXED_MAXIMA

pytestmark = pytest.mark.usefixtures("x64")


# -- special values ----------------------------------------------------------------------------------------------------

#: Functions of one argument whose gradients are finite where their value is, at the points below.
SPECIAL = {
    "log-sigmoid": lambda x: pt.log(pt.sigmoid(x)),
    "log-one-minus-sigmoid": lambda x: pt.log(1 - pt.sigmoid(x)),
    "softplus": pt.softplus,
    "log-one-plus-exp": lambda x: pt.log(1 + pt.exp(x)),
    "log1mexp": pt.log1mexp,
    "logsumexp": lambda x: pt.logaddexp(x, -x),
    "abs": abs,
    "maximum": lambda x: pt.maximum(x, -x) + pt.maximum(2.0, x) + pt.minimum(x, -x) + pt.minimum(x, 2.0),
    "clip": lambda x: pt.clip(x, -2.0, 2.0),
    "sqr": lambda x: x**2 + pt.sqr(x) + x**3 + x**0.5 * 0,
    "floor-division": lambda x: x // 2.0 + pt.floor(x) + pt.sign(x),
    "modulo": lambda x: x % 2.0,
    "i0": pt.i0,
    "psi": lambda x: pt.psi(pt.maximum(x, 0.1)),  # JAX's derivative is wrong below -8
    "xlogy": lambda x: pt.special.xlogy(x, 3.0) + pt.special.xlog1py(x, 3.0),
    **{
        str(f): f
        for f in (
            *(pt.ceil, pt.round, pt.trunc, pt.neg, pt.exp, pt.exp2, pt.expm1, pt.log, pt.log2, pt.log10, pt.log1p),
            *(pt.sqrt, pt.sin, pt.cos, pt.tan, pt.arcsin, pt.arccos, pt.arctan, pt.sinh, pt.cosh, pt.tanh, pt.arcsinh),
            *(pt.arccosh, pt.arctanh, pt.erf, pt.erfc, pt.erfinv, pt.gammaln, pt.sigmoid, pt.reciprocal),
        )
    },
}
POINTS = np.array([0.0, 1e-300, 1e-10, 0.3, 1.0, 2.0, 17.0, 36.7, 745.2, 820.0, 1e8, 1e200])
POINTS = np.concatenate([POINTS, -POINTS])


@pytest.mark.parametrize("gradient", ["pytensor", "jax"])
def test_gradients_at_special_values(gradient):
    x = pt.dvector("x")
    costs = [f(x) for f in SPECIAL.values()]
    fn = pjl.as_jax_function([x], costs, gradient=gradient)
    values = fn(POINTS)
    gradients = jax.jit(lambda x: [jax.grad(lambda x, i=i: fn(x)[i].sum())(x) for i in range(len(costs))])(POINTS)
    expected = pytensor.function([x], [pytensor.grad(c.sum(), x) for c in costs], mode="JAXPR")(POINTS)
    for name, value, got, want in zip(SPECIAL, values, gradients, expected, strict=True):
        where = np.isfinite(value) if gradient == "jax" else np.full(POINTS.shape, True)
        np.testing.assert_allclose(got[where], want[where], rtol=1e-7, atol=1e-15, err_msg=name)


def test_branch_that_is_not_taken():
    x = pt.dvector("x")
    branches = [pt.log(x), pt.sqrt(x), 1 / x, x**0.3, pt.log(pt.log(x + 1)), pt.exp(-x)]
    cost = sum(pt.switch(x > 0, branch, x).sum() for branch in branches)
    fn = pjl.as_jax_function([x], cost)
    got = jax.grad(fn)(np.array([0.0, -1.0, -2e3, 2.0]))
    np.testing.assert_array_equal(got[:3], 6)
    assert np.isfinite(got[3])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of NumPy, in the reference
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_of_exponentials_have_no_gradient_through_their_maximum(dtype):
    """Ties, infinite elements and empty rows included; compared with PyTensor's pullback, which goes through it."""
    x = pt.matrix("x", dtype=dtype)
    costs = [
        pt.logsumexp(x, axis=1) @ pt.arange(4).astype(dtype),
        pt.logsumexp(x),
        (pt.logaddexp(x, x.T, 2.0) ** 2).sum(),
        (pt.logsumexp(x, axis=0, keepdims=True) * x).sum(),
    ]
    gradients = [pytensor.grad(c, x) for c in costs]
    hessian_product = pytensor.grad((gradients[0] * pt.sin(x)).sum(), x)
    finite = np.array([[1, 1, 0, -3], [800, 800, 800, 800], [-900, 1, 2, 3], [0, 0, 0, -1e4]], dtype)
    infinite = np.array([[1, -np.inf, 0, -3], [-np.inf] * 4, [np.inf, 1, 2, 3], [0, np.nan, 0, 0]], dtype)
    rtol = 1e-5 if dtype == "float32" else 1e-9
    compare([x], [*gradients, hessian_product], [finite], rtol, 1e-6)
    compare([x], gradients[:3], [infinite], rtol, 1e-6)  # where the cotangent is infinite too, PyTensor's term is NaN
    f = pytensor.function([x], gradients, mode="JAXPR")
    ops = {type(node.op) for node in f.maker.fgraph.apply_nodes}
    assert LogSumExp in ops  # as a rule knows it
    assert OpFromGraph not in ops  # PyTensor's pullback


def test_pullbacks_of_sums_of_exponentials_share_the_graph_before_them():
    """Each replacement adds its own nodes: a copy of what it is computed from would double the graph at each level."""
    x, depth = pt.dvector("x"), 6
    y = x
    for i in range(depth):
        y = pt.logsumexp(pt.outer(y, y + i), axis=1)
    fgraph = FunctionGraph([x], [pytensor.grad(y.sum(), x)], clone=True)
    before = len(fgraph.apply_nodes)
    optdb[FIXED_MAXIMA].apply(fgraph)
    assert not any(type(node.op) is OpFromGraph for node in fgraph.apply_nodes)
    assert len(fgraph.apply_nodes) < before + 20 * depth


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("axis", [0, 1, None])
def test_gradient_of_a_sum_of_no_exponentials(shape, axis):
    """PyTensor makes a `Softmax` of it, which would raise, where the cotangent is 1."""
    x = pt.dmatrix("x")
    costs = [pt.logsumexp(x, axis=axis).sum(), (pt.logsumexp(x, axis=axis, keepdims=True) * 2).sum()]
    costs.append(pt.logaddexp(x, 1.0).sum())
    for cost in costs:
        (want,) = compare([x], [pytensor.grad(cost, x)], [np.zeros(shape)])
        for how in ("pytensor", "jax"):
            fn = pjl.as_jax_function([x], cost, gradient=how)
            assert jax.grad(fn)(np.zeros(shape)).shape == want.shape


def test_gradient_of_a_sum_with_an_infinite_exponential():
    x = pt.dvector("x")
    compare([x], pytensor.grad(pt.logsumexp(x), x), [np.array([np.inf, 1.0, -np.inf])])


def test_softmax_of_the_users_own_raises_without_elements():
    x = pt.dvector("x")
    compare_error([x], pt.special.softmax(x - x.max(initial=-np.inf)), [np.zeros(0)], match="zero-size array")


def test_sum_of_exponentials_of_integers():
    x, n = pt.dvector("x"), pt.lvector("n")
    compare([x, n], pytensor.grad(pt.logaddexp(n, x, 2).sum(), x), [np.array([1.0, -2.0]), np.array([0, 3])])


def test_a_pullback_of_the_users_own_is_not_that_of_logsumexp():
    x = pt.dvector("x")
    total = pt.logsumexp(x)
    a, b, g = pt.dvector(), pt.dscalar(), pt.dscalar()
    mine = OpFromGraph([a, b, g], [a * b * g])(x, total, pt.constant(2.0, dtype="float64"))
    compare([x], mine, [np.arange(3.0)])


def test_the_gradient_of_what_eigenvectors_give_a_matrix_alone():
    """Eigenvalues of a smooth covariance differ by rounding errors: PyTensor's gradient is noise as large as itself."""
    points, y = np.linspace(0, 1, 30), np.random.default_rng(0).normal(size=30)
    length = pt.dscalar("length")
    values, vectors = pt.linalg.eigh(pt.exp(-((points[:, None] - points) ** 2) / (2 * length**2)))
    density = -0.5 * ((vectors.T @ y) ** 2 / (values + 0.01)).sum() - 0.5 * pt.log(values + 0.01).sum()
    found = pytensor.function([length], pt.grad(density, length), mode="JAXPR")(0.5)
    distances = (points[:, None] - points) ** 2
    kernel = np.exp(-distances / (2 * 0.5**2))
    weights = np.linalg.solve(kernel + 0.01 * np.eye(30), y)
    change = kernel * distances / 0.5**3
    expected = 0.5 * weights @ change @ weights - 0.5 * np.trace(np.linalg.solve(kernel + 0.01 * np.eye(30), change))
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    by_pytensor = pytensor.function([length], pt.grad(density, length), mode="FAST_COMPILE")(0.5)
    assert abs(by_pytensor - expected) > 1e-6 * abs(expected)  # else the rewrite can go


def test_a_use_of_eigenvectors_that_is_not_a_pullback_stays():
    x = pt.dmatrix("x")
    values, vectors = pt.linalg.eigh(x)
    ratios = pt.switch(pt.eye(3, dtype="bool"), 0.0, 1.0 / (values[:, None] - values).T)
    a = np.array([[2.0, 1, 0], [1, 3, 1], [0, 1, 5]])
    function = pytensor.function([x], [values, vectors, ratios * (vectors.T @ x)], mode="JAXPR")
    w, v, found = function(a)
    with np.errstate(divide="ignore"):
        expected = np.where(np.eye(3), 0, 1 / (w - w[:, None])) * (v.T @ a)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
