"""Products of matrices with outer products and diagonal matrices (`graph/outer_products.py`)."""

from __future__ import annotations

import jax
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import compare, compare_error
from hypothesis import given, settings
from hypothesis import strategies as st
from pytensor.compile.mode import Mode, get_mode
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.math import Dot

import pytensor_jaxpr_linker as pjl

N = 6
RNG = np.random.default_rng(3)
ROOT = RNG.normal(size=(N, N))
COVARIANCE = ROOT @ ROOT.T + np.eye(N)
VECTOR = RNG.normal(size=N)
LOWER = np.tri(N)


def products_of_matrices(f):
    """Count the products of two matrices in the graph that a function runs."""
    return sum(
        isinstance(node.op, Dot) and not any(True in v.type.broadcastable for v in node.inputs)
        for node in f.vm.runner.graph.nodes
    )


def check(inputs, outputs, values, left, rtol=1e-9):
    """Compare results with FAST_COMPILE's, and check how many products of matrices are left."""
    compare(inputs, outputs, values, rtol=rtol)
    assert products_of_matrices(pytensor.function(inputs, outputs, mode="JAXPR", on_unused_input="ignore")) == left


# -- gradients of Cholesky factors -------------------------------------------------------------------------------------


def log_density(covariance, y, lower=True):
    """Return the log density of a normal distribution, but for a constant."""
    factor = pt.linalg.cholesky(covariance, lower=lower)
    white = pt.linalg.solve_triangular(factor, y, lower=lower, trans=0 if lower else "T")
    return -0.5 * (white**2).sum() - pt.log(pt.diagonal(factor)).sum()


USES = {
    "a log density": log_density,
    "an upper factor": lambda covariance, y: log_density(covariance, y, lower=False),
    "a factor times a vector": lambda covariance, y: pt.sin(pt.linalg.cholesky(covariance) @ y).sum(),
    "a solution": lambda covariance, y: pt.sin(
        pt.linalg.solve_triangular(pt.linalg.cholesky(covariance), y, lower=True)
    ).sum(),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("use", USES)
def test_a_gradient_multiplies_no_two_matrices(use, dtype):
    x, y = pt.matrix("x", dtype=dtype, shape=(N, N)), pt.vector("y", dtype=dtype, shape=(N,))
    value = USES[use](x, y)
    values = [COVARIANCE.astype(dtype), VECTOR.astype(dtype)]
    rtol = 1e-3 if dtype == "float32" else 1e-9
    check([x, y], [value, *pytensor.grad(value, [x, y])], values, left=0, rtol=rtol)


def test_the_gradient_for_a_matrix_that_is_not_positive_definite():
    x, y = pt.matrix("x", shape=(N, N)), pt.vector("y", shape=(N,))
    check([x, y], pytensor.grad(log_density(x, y), x), [-COVARIANCE, VECTOR], left=0)


@pytest.mark.parametrize(
    "distribution",
    [
        lambda k, y: pm.MvNormal("y", np.zeros(N), cov=k, observed=y),
        lambda k, y: pm.MvStudentT("y", nu=4, mu=np.zeros(N), scale=k, observed=y),
    ],
)
def test_models_of_one_vector(distribution):
    x = np.linspace(0.0, 3.0, N)
    with pm.Model() as model:
        length, noise = pm.HalfNormal("length"), pm.HalfNormal("noise")
        distribution(pt.exp(-(((x[:, None] - x) / length) ** 2)) + (noise**2 + 1e-6) * pt.eye(N), VECTOR)
    density = model.logp()
    inputs = model.value_vars
    check(inputs, [density, *pytensor.grad(density, inputs)], [np.asarray(0.3), np.asarray(-0.2)], left=0)


def test_two_right_hand_sides_are_no_outer_product():
    x, y = pt.matrix("x", shape=(N, N)), pt.matrix("y", shape=(N, 2))
    white = pt.linalg.solve_triangular(pt.linalg.cholesky(x), y, lower=True)
    check([x, y], pytensor.grad((white**2).sum(), x), [COVARIANCE, RNG.normal(size=(N, 2))], left=2)


def test_second_derivatives_and_vmap():
    x, y = pt.matrix("x", shape=(N, N)), pt.vector("y", shape=(N,))
    gradient = pytensor.grad(log_density(x, y), x)
    compare([x, y], pytensor.grad((gradient * ROOT).sum(), y), [COVARIANCE, VECTOR])
    with jax.enable_x64(True):
        f = pjl.as_jax_function([x, y], [gradient])
        (batched,) = jax.vmap(f, in_axes=(None, 0))(COVARIANCE, np.stack([VECTOR, 2 * VECTOR]))
    reference = pytensor.function([x, y], gradient, mode="FAST_COMPILE")
    for got, factor in zip(batched, [1, 2], strict=True):
        np.testing.assert_allclose(got, reference(COVARIANCE, factor * VECTOR), rtol=1e-9)


# -- products by themselves --------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(0, 4),
    shape=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    terms=st.lists(st.sampled_from(["outer", "scaled", "negative", "diagonal"]), min_size=1, max_size=4),
    dtype=st.sampled_from(["float32", "float64"]),
    is_static=st.booleans(),
)
def test_sums_of_outer_products(rows, shape, terms, dtype, is_static):
    if "diagonal" in terms:
        shape = (shape[0], shape[0])
    a = pt.matrix("a", dtype=dtype, shape=(rows, shape[0]) if is_static else (None, None))
    u, v = (pt.vector(n, dtype=dtype, shape=(k,) if is_static else (None,)) for n, k in zip("uv", shape, strict=True))
    made = {
        "outer": lambda: u[:, None] * v,
        "scaled": lambda: u[:, None] * v * v * 2.5 * u[:, None],
        "negative": lambda: -(u[:, None] * v[None]),
        "diagonal": lambda: pt.diag(u),
    }
    total = sum(made[term]() for term in terms)
    product = a @ total
    values = [RNG.normal(size=k).astype(dtype) for k in ((rows, shape[0]), *shape)]
    compare([a, u, v], [product, pt.diagonal(product)], values, rtol=1e-4 if dtype == "float32" else 1e-9, atol=1e-5)


PRODUCTS = {
    "a column and a row": (lambda a, u, v: a @ (u[:, None] * v), 0),
    "a diagonal matrix": (lambda a, u, v: a @ pt.diag(u), 0),
    "a difference": (lambda a, u, v: a @ (pt.diag(u) - u[:, None] * v), 0),
    "another diagonal": (lambda a, u, v: a @ (pt.diag(u[1:], 1) + u[:, None] * v), 1),
    "a sum with a column": (lambda a, u, v: a @ (u[:, None] * v + u[:, None]), 1),
    "a function of an outer product": (lambda a, u, v: a @ pt.exp(u[:, None] * v), 1),
    "a triangle times a full matrix": (lambda a, u, v: a @ (u[:, None] * v * LOWER), 1),
    "a triangle of which all is read": (lambda a, u, v: pt.linalg.cholesky(a).T @ (u[:, None] * v * LOWER), 1),
    "a triangle of which the lower part is read": (
        lambda a, u, v: (pt.linalg.cholesky(a).T @ (u[:, None] * v * LOWER)) * LOWER,
        0,
    ),
    "no triangle of ones": (
        lambda a, u, v: (pt.linalg.cholesky(a).T @ (u[:, None] * v * (LOWER + np.eye(N)))) * LOWER,
        1,
    ),
    "the other triangle": (lambda a, u, v: (pt.linalg.cholesky(a).T @ (u[:, None] * v * LOWER.T)) * LOWER, 1),
    "a lower factor": (lambda a, u, v: (pt.linalg.cholesky(a) @ (u[:, None] * v * LOWER)) * LOWER, 1),
}


@pytest.mark.parametrize("product", PRODUCTS)
def test_which_products_are_replaced(product):
    make, left = PRODUCTS[product]
    a, u, v = pt.matrix("a", shape=(N, N)), pt.vector("u", shape=(N,)), pt.vector("v", shape=(N,))
    check([a, u, v], make(a, u, v), [COVARIANCE, VECTOR, VECTOR[::-1].copy()], left)


READ = {
    "the diagonal": (pt.diagonal, 0),
    "the diagonal above": (lambda product: pt.diagonal(product, 1), 1),
    "the diagonal of the transpose": (lambda product: pt.diagonal(product.T), 0),
    "the lower triangle": (lambda product: product * LOWER, 0),
    "the upper triangle": (lambda product: product * LOWER.T, 1),
    "the lower triangle of the transpose": (lambda product: product.T * LOWER, 1),
    "the upper triangle of the transpose": (lambda product: product.T * LOWER.T, 0),
    "the lower triangle and a row": (lambda product: (product * LOWER) + product[0], 1),
}


FORMS = {
    "a product": lambda u, v: pt.mul(u[:, None], v[None], LOWER),
    "a product of a product": lambda u, v: pt.mul(pt.mul(u[:, None], v[None]), LOWER),
    "a product of matrices": lambda u, v: pt.mul(pt.dot(u[:, None], v[None]), LOWER),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("what", READ)
def test_which_triangle_is_read(what, form):
    read, left = READ[what]
    a, u, v = pt.matrix("a", shape=(N, N)), pt.vector("u", shape=(N,)), pt.vector("v", shape=(N,))
    output = read(pt.dot(Cholesky()(a).T, FORMS[form](u, v)))
    values = [COVARIANCE, VECTOR, VECTOR[::-1].copy()]
    f = pytensor.function([a, u, v], output, mode=Mode(get_mode("JAXPR").linker, None))
    reference = pytensor.function([a, u, v], output, mode="FAST_COMPILE")
    np.testing.assert_allclose(f(*values), reference(*values), rtol=1e-9, atol=1e-12)
    assert products_of_matrices(f) == left


def test_the_whole_product_is_no_triangle():
    a, u, v = pt.matrix("a", shape=(N, N)), pt.vector("u", shape=(N,)), pt.vector("v", shape=(N,))
    product = pt.linalg.cholesky(a).T @ (u[:, None] * v * LOWER)
    check([a, u, v], [product, product * LOWER], [COVARIANCE, VECTOR, VECTOR[::-1].copy()], left=1)


def test_what_overflows_above_the_diagonal_is_not_read():
    a, u, v = pt.matrix("a", shape=(N, N)), pt.vector("u", shape=(N,)), pt.vector("v", shape=(N,))
    make, _ = PRODUCTS["a triangle of which the lower part is read"]
    column, row = 1e160 / 10.0 ** np.arange(0, 300, 50), 10.0 ** np.arange(0, 300, 50)
    with np.errstate(over="ignore"):
        expected = np.tril(np.outer(column, row))
    f = pytensor.function([a, u, v], make(a, u, v), mode="JAXPR")
    np.testing.assert_allclose(f(np.eye(N), column, row), expected)


def test_products_of_integers_stay():
    a, u = pt.lmatrix("a"), pt.lvector("u")
    check([a, u], a @ (u[:, None] * u), [np.arange(9).reshape(3, 3), np.array([1, -2, 2**40])], left=1)


@pytest.mark.parametrize("lengths", [(2, 3, 3), (1, 3, 3), (3, 1, 3), (3, 2, 3)])
def test_lengths_that_do_not_match(lengths):
    a, u, v, w = pt.matrix("a"), pt.vector("u"), pt.vector("v"), pt.vector("w")
    values = [np.ones((2, 3)), *map(np.ones, lengths)]
    compare_error([a, u, v, w], a @ (u[:, None] * v + pt.diag(w)), values)


def test_a_replaced_product_keeps_its_name_and_line():
    a, u, v = pt.matrix("a"), pt.vector("u"), pt.vector("v")
    product = a @ (u[:, None] * v)
    product.name = "projected"
    f = pytensor.function([a, u, v], product, mode="JAXPR")
    assert [output.name for output in f.vm.runner.graph.outputs] == ["projected"]
    with pytest.raises(ValueError, match="test_outer_products"):
        f(np.ones((2, 3)), np.ones(2), np.ones(4))
