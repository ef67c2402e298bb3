"""Products that add over the rows of a large matrix, block by block (`jaxpr/optimize/products.py`)."""

from __future__ import annotations

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import pytensor_jaxpr_linker as pjl

#: The shape of a matrix that is large enough for blocks, of 512 rows each.
LARGE = (16384, 128)


def products(fn, *args):
    """Return the shapes of the products in a Jaxpr."""
    return [eqn.outvars[0].aval.shape for eqn in pjl.make_jaxpr(fn, *args).eqns if eqn.primitive.name == "dot_general"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("product", [lambda x, r: x.T @ r, lambda x, r: r @ x, lambda x, r: (r[None] @ x)[0]])
def test_values(product, dtype):
    x, r = pt.matrix("x", dtype=dtype), pt.vector("r", dtype=dtype)
    rng = np.random.default_rng(1)
    args = rng.normal(size=LARGE).astype(dtype), rng.normal(size=LARGE[0]).astype(dtype)
    f = pytensor.function([x, r], product(x, r), mode="JAXPR")
    want = args[0].astype("float64").T @ args[1].astype("float64")
    got = f(*args)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, want, atol=1e-10 if dtype == "float64" else 0.01)
    ((blocks, *_),) = products(f, *args)
    assert blocks > 1


@pytest.mark.parametrize(
    ("shape", "blocks"),
    [
        ((1_000_000, 50), 625),  # of 80,000 numbers, more than XLA needs to use several cores
        ((2**5 * 6007, 20), 32),  # of 6,007 rows: as few as 3,277 are enough
        ((1031 * 40009, 16), 40009),  # of 1,031 rows: larger ones don't stay in a cache
    ],
)
def test_block_sizes(shape, blocks):
    x, r = pt.dmatrix("x"), pt.dvector("r")
    fn = pjl.as_jax_function([x, r], x.T @ r)
    args = (jax.ShapeDtypeStruct(shape, "float64"), jax.ShapeDtypeStruct(shape[:1], "float64"))
    assert [found[0] for found in products(fn, *args)] == [blocks]


@pytest.mark.parametrize(
    "shape",
    [
        (1024, 128),  # 1 MB
        (2**20 + 7, 16),  # a prime number of rows
        (2**20, 4),  # few columns
        (500, 8000),  # long rows
        (2, 600_000),  # rows of more than a block
    ],
)
def test_products_that_stay(shape):
    x, r = pt.dmatrix("x"), pt.dvector("r")
    f = pytensor.function([x, r], x.T @ r, mode="JAXPR")
    args = np.ones(shape), np.arange(float(shape[0]))
    assert [np.prod(found) for found in products(f, *args)] == [shape[1]]
    np.testing.assert_allclose(f(*args), args[1].sum())


def test_transformations():
    x, r = pt.dmatrix("x"), pt.dvector("r")
    fn = pjl.as_jax_function([x, r], x.T @ r, gradient="jax")
    rng = np.random.default_rng(2)
    values, r_values = rng.normal(size=LARGE), rng.normal(size=(3, LARGE[0]))
    with jax.enable_x64(True):
        batched = jax.jit(jax.vmap(fn, (None, 0)))(values, r_values)
        slopes = jax.grad(lambda r: fn(values, r).sum())(r_values[0])
    np.testing.assert_allclose(batched, r_values @ values, atol=1e-10)
    np.testing.assert_allclose(slopes, values.sum(1), atol=1e-10)


def test_not_finite_values():
    x, r = pt.dmatrix("x"), pt.dvector("r")
    f = pytensor.function([x, r], x.T @ r, mode="JAXPR")
    values, ones = np.ones(LARGE), np.ones(LARGE[0])
    values[5, 3], values[9000, 7] = np.nan, np.inf
    got = f(values, ones)
    assert np.isnan(got[3]) and got[7] == np.inf and np.isfinite(np.delete(got, [3, 7])).all()
