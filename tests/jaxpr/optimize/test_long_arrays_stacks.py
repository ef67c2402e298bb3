"""Stacks of a few columns, computed column by column (`jaxpr/optimize/long_arrays.py`)."""

from __future__ import annotations

import jax
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base.options import for_platforms
from pytensor_jaxpr_linker.jaxpr.optimize import long_arrays

ROWS = 6
RNG = np.random.default_rng(3)
X, Y, FULL, COLUMN, ROW = (RNG.normal(size=s) for s in ((ROWS,), (ROWS,), (ROWS, 2), (ROWS, 1), (1, 2)))
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 2.0])


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(long_arrays, "LEAST_ROWS", ROWS)


def primitives(fn, *args):
    """Return the primitives of a Jaxpr, in order."""
    return [eqn.primitive.name for eqn in pjl.make_jaxpr(fn, *args).eqns]


def logsumexp(s, axis=-1):
    """The usual formula, as PyMC's mixtures have it."""
    top = s.max(axis=axis, keepdims=True)
    return pt.log(pt.exp(s - top).sum(axis=axis)) + top.squeeze(axis)


#: What is computed of a stack, and whether its columns are put together.
READS = {
    "elementwise and a sum": (lambda s: pt.exp(s).sum(axis=1), False),
    "logsumexp": (logsumexp, False),
    "maximum": (lambda s: (2 * s).max(axis=1), False),
    "minimum": (lambda s: pt.cos(s).min(axis=1), False),
    "product": (lambda s: s.prod(axis=1), False),
    "all": (lambda s: (s > 0).all(axis=1), False),
    "any": (lambda s: (s > 0).any(axis=1), False),
    "mean": (lambda s: s.mean(axis=1), False),
    "a sum of all": (lambda s: pt.exp(s).sum(), False),
    "a column": (lambda s: pt.exp(s)[:, 1:2], False),
    "a vector": (lambda s: pt.exp(s)[:, 0], False),
    "a row vector": (lambda s: (s + ROW).sum(axis=1), False),
    "a column vector": (lambda s: (s * COLUMN).sum(axis=1), False),
    "a matrix": (lambda s: (s - FULL).sum(axis=1), False),
    "a condition": (lambda s: pt.switch(s > 0, s, 0.5 * s).sum(axis=1), False),
    "another dtype": (lambda s: pt.cast(s > 0, "int64").sum(axis=1), False),
    "two stacks": (lambda s: (s * pt.stack([s[:, 1], s[:, 0]], axis=1)).sum(axis=1), False),
    "the whole": (lambda s: pt.exp(s), True),
    "the whole and a sum": (lambda s: pt.concatenate([pt.exp(s), pt.exp(s).sum(axis=1, keepdims=True)], axis=1), True),
    "a product of matrices": (lambda s: pt.exp(s).T @ s, True),
    "a sum over rows": (lambda s: pt.exp(s).sum(axis=0), True),
    "an index": (lambda s: pt.exp(s)[[1, 0, 3]], True),
    "a cumulative sum": (lambda s: pt.cumsum(pt.exp(s), axis=1), True),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values(read, dtype):
    of_stack, is_whole = read
    x, y = (pt.vector(n, dtype=dtype) for n in "xy")
    with pytensor.config.change_flags(floatX=dtype):
        output = of_stack(pt.stack([x, y], axis=1))
    f, reference = (pytensor.function([x, y], output, mode=mode) for mode in ("JAXPR", "FAST_COMPILE"))
    for args in ([X.astype(dtype), Y.astype(dtype)], [SPECIAL.astype(dtype), Y.astype(dtype)]):
        with np.errstate(all="ignore"):
            want = reference(*args)
        found = f(*args)
        assert (found.dtype, found.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(found, want, rtol=16 * np.finfo(dtype).eps, atol=np.finfo(dtype).eps)
    assert ("concatenate" in primitives(f, *args)) == is_whole


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_axes_of_an_array(axis):
    x, y, z = (pt.dmatrix(n) for n in "xyz")
    stack = pt.stack([x, y, x - y], axis=axis)
    outputs = [logsumexp(stack, axis), (stack * pt.expand_dims(z, axis)).sum(axis=axis), (stack**2).sum()]
    args = [RNG.normal(size=(3, 4)) for _ in range(3)]
    f, reference = (pytensor.function([x, y, z], outputs, mode=mode) for mode in ("JAXPR", "FAST_COMPILE"))
    for got, want in zip(f(*args), reference(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-13)
    assert "concatenate" not in primitives(f, *args)


def test_what_stays():
    x, y = pt.dvector("x"), pt.dvector("y")
    short, many = pt.exp(pt.stack([x, y], axis=1)).sum(axis=1), pt.exp(pt.stack([x, y, x, y, x], axis=1)).sum(axis=1)
    args = [X[:-1], Y[:-1]]
    assert "concatenate" in primitives(pytensor.function([x, y], short, mode="JAXPR"), *args)
    assert "concatenate" in primitives(pytensor.function([x, y], many, mode="JAXPR"), X, Y)
    with for_platforms(["cuda"]):
        assert "concatenate" in primitives(pjl.as_jax_function([x, y], short, gradient="pytensor"), X, Y)


@pytest.mark.parametrize("gradient", ["jax", "pytensor"])
def test_derivatives_and_batches(gradient):
    x, y = pt.dvector("x"), pt.dvector("y")
    cost = logsumexp(pt.stack([x, y**2], axis=1)).sum()
    want = pytensor.function([x, y], pytensor.grad(cost, [x, y]), mode="FAST_COMPILE")(X, Y)
    fn = jax.grad(pjl.as_jax_function([x, y], cost, gradient=gradient), argnums=(0, 1))
    with jax.enable_x64(True):
        found, batched = fn(X, Y), jax.vmap(fn)(np.stack([X, X]), np.stack([Y, Y]))
    for got, both, expected in zip(found, batched, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-13)
        np.testing.assert_allclose(both, [got, got], rtol=1e-15)


def test_no_equation_is_dead():
    x, y = pt.dvector("x"), pt.dvector("y")
    output = pt.exp(pt.stack([x, y], axis=1) + ROW)[:, 0]
    jaxpr = pjl.make_jaxpr(pjl.as_jax_function([x, y], output, gradient="pytensor"), X, Y)
    read = {v for eqn in jaxpr.eqns for v in eqn.invars if not hasattr(v, "val")} | set(jaxpr.jaxpr.outvars)
    assert all(read.intersection(eqn.outvars) for eqn in jaxpr.eqns)


def make_mixture(n, rng):
    slope = pm.Normal("slope")
    location = pt.stack([slope * rng.normal(size=n), slope + rng.normal(size=n)], axis=-1)
    pm.NormalMixture("y", w=[0.3, 0.7], mu=location, sigma=1.5, observed=rng.normal(size=n))


def make_zero_inflated(n, rng):
    rate = pt.exp(pm.Normal("slope") * rng.normal(size=n))
    pm.ZeroInflatedPoisson("y", psi=0.8, mu=rate, observed=rng.poisson(1.0, n))


@pytest.mark.parametrize("make", [make_mixture, make_zero_inflated])
def test_a_model(make):
    with pm.Model() as model:
        make(40, np.random.default_rng(2))
    inputs, outputs = model.value_vars, [model.logp(), model.dlogp()]
    f, reference = (pytensor.function(inputs, outputs, mode=mode) for mode in ("JAXPR", "FAST_COMPILE"))
    for got, want in zip(f(0.3), reference(0.3), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    sizes = {v.aval.shape for eqn in pjl.make_jaxpr(f, np.array(0.3)).eqns for v in eqn.outvars}
    assert (40,) in sizes and (40, 2) not in sizes
