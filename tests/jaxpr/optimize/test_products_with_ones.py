"""Sums of matrices as products with ones (`jaxpr/optimize/products.py`)."""

from __future__ import annotations

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import compare

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base.options import for_platforms

AXES = [0, 1, None]


def primitives(fn, *args) -> list[str]:
    return [eqn.primitive.name for eqn in pjl.make_jaxpr(fn, *args).eqns]


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("float64", (60, 60)), ("float64", (129, 8)), ("float64", (8, 512)), ("float32", (60, 60)), ("float32", (8, 257))],
)
def test_values(axis, shape, dtype):
    x = pt.matrix("x", dtype=dtype)
    y = pt.exp(x).sum(axis)
    values = np.linspace(-2, 1, np.prod(shape)).reshape(shape).astype(dtype)
    compare([x], [y, pt.grad((y**2).sum(), x)], [values], rtol=1e-4 if dtype == "float32" else 1e-12)
    names = primitives(pytensor.function([x], y, mode="JAXPR"), values)
    assert "reduce_sum" not in names and names.count("dot_general") == (2 if axis is None else 1)
    for odd in (np.inf, -np.inf, np.nan):
        values[5, 3] = odd
        compare([x], [x.sum(axis)], [values], rtol=1e-4 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("float64", (128, 8)),  # fits into a small call
        ("float64", (512, 7)),  # short rows
        ("float64", (8, 513)),  # the library is faster
        ("float64", (0, 60)),
        ("int64", (60, 60)),
        ("complex128", (60, 60)),
        ("float64", (10, 20, 20)),
        ("float64", (3600,)),
    ],
)
def test_sums_that_stay(shape, dtype):
    x = pt.tensor("x", dtype=dtype, shape=(None,) * len(shape))
    f = pytensor.function([x], x.sum(0), mode="JAXPR")
    values = np.ones(shape, dtype)
    assert "dot_general" not in primitives(f, values)
    np.testing.assert_array_equal(f(values), values.sum(0))


def test_other_platforms():
    """On a GPU a product would be a kernel of its own, which reads what a sum computes on the way."""
    x = pt.dmatrix("x")
    with for_platforms(["cuda"]):
        assert "reduce_sum" in primitives(pytensor.function([x], x.sum(0), mode="JAXPR"), np.ones((60, 60)))


def test_lengths_that_are_symbols(tmp_path):
    x = pt.dmatrix("x")
    fn = pjl.export([x], pt.exp(x).sum(1), path=tmp_path / "sum.jaxpr", dims={"x": "n, 60"}, platforms=["cpu"])
    np.testing.assert_allclose(fn(np.zeros((30, 60))), np.full(30, 60.0))


@pytest.mark.parametrize("gradient", ["pytensor", "jax"])
@pytest.mark.parametrize("axis", AXES)
def test_transformations(gradient, axis):
    x = pt.dmatrix("x")
    fn = pjl.as_jax_function([x], (x**3).sum(axis), gradient=gradient)
    values = np.random.default_rng(1).normal(size=(3, 60, 50))
    with jax.enable_x64(True):
        batched = jax.jit(jax.vmap(fn))(values)
        slopes = jax.vmap(jax.grad(lambda v: (fn(v) ** 2).sum()))(values)
    each = (values**3).sum(tuple(range(1, 3)) if axis is None else axis + 1, keepdims=True)
    np.testing.assert_allclose(np.reshape(batched, np.shape(each)), each)
    np.testing.assert_allclose(slopes, 6 * values**2 * each)
