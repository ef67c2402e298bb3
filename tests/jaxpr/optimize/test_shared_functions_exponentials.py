"""Sigmoids and softplus of one array from one exponential (`jaxpr/optimize/shared_functions.py`)."""

from __future__ import annotations

from collections import Counter

import jax
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pytensor_jaxpr_linker as pjl

#: What a Bernoulli variable and its gradient compute of a logit.
PAIRS = {
    "softplus and sigmoid": lambda x: [pt.softplus(x), pt.sigmoid(x)],
    "sigmoid and softplus": lambda x: [pt.sigmoid(x), pt.softplus(x)],
    "softplus of the negation": lambda x: [pt.softplus(-x), pt.sigmoid(x)],
    "both sigmoids": lambda x: [pt.sigmoid(x), pt.sigmoid(-x)],
    "all three": lambda x: [pt.sigmoid(-x), pt.softplus(x), pt.sigmoid(x)],
}
SPECIAL = [0.0, -0.0, 1e-320, 1e-9, 0.5, 36.0, 37.0, 709.0, 710.0, 745.0, 1e300, np.inf]


def counts(fn, *args):
    """Return how often each primitive is in a Jaxpr."""
    return Counter(eqn.primitive.name for eqn in pjl.make_jaxpr(fn, *args).eqns)


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 8)])
def test_values(pair, dtype, shape):
    x = pt.tensor("x", dtype=dtype, shape=(None,) * len(shape))
    f, reference = (pytensor.function([x], pair(x), mode=mode) for mode in ("JAXPR", "FAST_COMPILE"))
    values = [*SPECIAL, *(-a for a in SPECIAL)]
    with np.errstate(over="ignore"):
        arg = np.resize(values, shape).astype(dtype)
    for got, want in zip(f(arg), reference(arg), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got, want, rtol=4 * np.finfo(dtype).eps, atol=np.finfo(dtype).tiny)
    found = counts(f, arg)
    assert (found["exp"], found["div"], found["logistic"]) == (1, 1, 0)


@pytest.fixture(scope="module")
def modes():
    """The function of a number in mode JAXPR, and in FAST_COMPILE."""
    x = pt.dscalar("x")
    return [pytensor.function([x], PAIRS["all three"](x), mode=mode) for mode in ("JAXPR", "FAST_COMPILE")]


@given(value=st.floats(width=64))
def test_any_number(modes, value):
    f, reference = modes
    for got, want in zip(f(value), reference(value), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-15, atol=np.finfo("float64").tiny)


@pytest.mark.parametrize("order", [1, -1])
def test_an_exponential_that_is_a_result(order):
    x = pt.dvector("x")
    outputs = [pt.exp(pt.minimum(x, -x)), pt.sigmoid(x), pt.softplus(x)][::order]
    f, reference = (pytensor.function([x], outputs, mode=mode) for mode in ("JAXPR", "FAST_COMPILE"))
    arg = np.array([-1.0, 0.0, 3.0])
    for got, want in zip(f(arg), reference(arg), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-15)
    assert counts(f, arg)["logistic"] == 0


def test_sigmoids_of_broadcast_arrays():
    x = pt.dvector("x")
    outputs = [pt.sigmoid(x), pt.sigmoid((-x)[:, None]), pt.sigmoid(pt.broadcast_to(x[None], (4, x.shape[0])))]
    f, reference = (pytensor.function([x], outputs, mode=mode) for mode in ("JAXPR", "FAST_COMPILE"))
    arg = np.array([-1.0, 0.0, 3.0])
    for got, want in zip(f(arg), reference(arg), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-15)
    assert (counts(f, arg)["exp"], counts(f, arg)["logistic"]) == (1, 0)


def test_a_column_and_its_vector():
    x = pt.matrix("x", shape=(None, 1), dtype="float64")
    vector = x[:, 0]
    outputs = [pt.softplus(vector), pt.sigmoid(x), pt.sigmoid(-x), pt.softplus(-x)]
    f, reference = (pytensor.function([x], outputs, mode=mode) for mode in ("JAXPR", "FAST_COMPILE"))
    arg = np.array([[-1.0], [0.0], [3.0], [800.0]])
    for got, want in zip(f(arg), reference(arg), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-15, atol=1e-300)
    found = counts(f, arg)
    assert (found["exp"], found["div"], found["logistic"]) == (1, 1, 0)


def test_no_equation_is_dead():
    x = pt.dvector("x")
    eqns = pjl.make_jaxpr(pjl.as_jax_function([x], PAIRS["all three"](x)), np.ones(3)).jaxpr
    read = {v for eqn in eqns.eqns for v in eqn.invars if not hasattr(v, "val")} | set(eqns.outvars)
    assert all(read.intersection(eqn.outvars) for eqn in eqns.eqns)


def test_sigmoids_that_stay():
    x, y = pt.dvector("x"), pt.dvector("y")
    f = pytensor.function([x, y], [pt.sigmoid(x), pt.sigmoid(y), pt.exp(x), pt.softplus(x + y)], mode="JAXPR")
    assert counts(f, np.ones(3), np.ones(3))["logistic"] == 2


def test_long_arrays_stay():
    x = pt.dvector("x")
    f = pytensor.function([x], [pt.sigmoid(x).sum(), pt.softplus(x).sum()], mode="JAXPR")
    assert [counts(f, np.ones(n))["logistic"] for n in (2**19, 2**19 + 1)] == [0, 1]


@pytest.mark.parametrize("length", [2**19, 2**19 + 1])
def test_two_long_sigmoids_that_are_read_once(length):
    x = pt.dvector("x")
    f, reference = (
        pytensor.function([x], (3 * pt.sigmoid(x) - 2 * pt.sigmoid(-x)).sum(), mode=mode)
        for mode in ("JAXPR", "FAST_COMPILE")
    )
    arg = np.resize([*SPECIAL, *(-a for a in SPECIAL)], length)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(f(arg), reference(arg), rtol=1e-12)
    assert (counts(f, arg)["exp"], counts(f, arg)["logistic"]) == (1, 0)


def test_long_sigmoids_that_are_results_stay():
    x = pt.dvector("x")
    f = pytensor.function([x], [pt.sigmoid(x), pt.sigmoid(-x)], mode="JAXPR")
    assert [counts(f, np.ones(n))["logistic"] for n in (2**19, 2**19 + 1)] == [0, 2]


BOUNDS = {
    "at most one": (lambda p: p <= 1.0, True),
    "at least zero": (lambda p: p >= 0.0, True),
    "both bounds": (lambda p: pt.and_(p <= 1.0, p >= 0.0), True),
    "wider bounds": (lambda p: pt.and_(p <= 2.5, p >= -np.inf), True),
    "a bound within": (lambda p: p <= 0.5, False),
    "some bounds within": (lambda p: p >= np.array([0.0, 0.1, -1.0, 0.0]), False),
    "below one": (lambda p: p < 1.0, False),
    "NaN": (lambda p: p <= np.nan, False),
}


@pytest.mark.parametrize(("check", "is_simpler"), BOUNDS.values(), ids=BOUNDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(4,), (3, 4), (0, 4)])
def test_bounds_of_a_sigmoid(check, is_simpler, dtype, shape):
    """Whether it is within bounds that it never leaves, its argument tells: it is, unless that is NaN."""
    x = pt.tensor("x", dtype=dtype, shape=(None,) * len(shape))
    f, reference = (pytensor.function([x], check(pt.sigmoid(x)), mode=mode) for mode in ("JAXPR", "FAST_COMPILE"))
    for values in ([np.nan, np.inf, -np.inf, 0.0], [-1e30, 1e30, 40.0, -0.0]):
        arg = np.resize(values, shape).astype(dtype)
        got, want = f(arg), reference(arg)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_array_equal(got, want)
    assert (counts(f, arg)["logistic"] == 0) is is_simpler


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_a_sigmoid_and_an_array_of_bounds(shape):
    x = pt.tensor("x", dtype="float64", shape=(None,) * len(shape))
    f = pytensor.function([x], pt.sigmoid(x) <= np.array([1.0, 2.0, np.inf]), mode="JAXPR")
    np.testing.assert_array_equal(f(np.full(shape, 5.0)), np.ones(shape or 3, bool))
    np.testing.assert_array_equal(f(np.full(shape, np.nan)), np.zeros(shape or 3, bool))


@pytest.mark.parametrize("gradient", ["jax", "pytensor"])
def test_derivatives_at_zero(gradient):
    x = pt.dvector("x")
    fn = pjl.as_jax_function([x], sum(y.sum() for y in PAIRS["all three"](x)), gradient=gradient)
    values = np.array([0.0, -0.0, 2.0])
    sigmoid = 1 / (1 + np.exp(-values))
    with jax.enable_x64(True):
        slopes = jax.grad(fn)(values)
        batched = jax.jit(jax.vmap(jax.grad(fn)))(np.stack([values, values]))
        curvatures = jax.jacrev(jax.grad(fn))(values)
    np.testing.assert_allclose(slopes, sigmoid, rtol=1e-14)
    np.testing.assert_allclose(batched, [sigmoid, sigmoid], rtol=1e-14)
    np.testing.assert_allclose(curvatures, np.diag(sigmoid * (1 - sigmoid)), rtol=1e-14, atol=1e-16)


def test_a_model():
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        slopes = pm.Normal("slopes", shape=3)
        pm.Bernoulli("y", logit_p=rng.normal(size=(40, 3)) @ slopes, observed=rng.random(40) < 0.5)
    found = []
    for mode in ("JAXPR", "FAST_COMPILE"):
        f = model.logp_dlogp_function(ravel_inputs=True, mode=mode)
        f.set_extra_values({})
        found.append(f(np.array([0.3, -2.0, 1.0])))
        if mode == "JAXPR":
            used = Counter(eqn.primitive.name for eqn in pjl.stages(f._pytensor_function).jaxpr[0].eqns)
            assert (used["exp"], used["logistic"]) == (1, 0)
    for got, want in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-13)
