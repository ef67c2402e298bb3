"""Choices between results of one function (`jaxpr/optimize/shared_functions.py`)."""

from __future__ import annotations

import jax
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pytensor_jaxpr_linker as pjl

C = np.array([[True, False, True], [False, False, True]])
X = np.array([[0.5, -2.0, np.nan], [0.0, np.inf, 3.0]])
Y = np.array([[1.5, -0.0, 4.0], [-np.inf, 0.25, 7.0]])


def primitives(fn, *args):
    """Return the primitives of a Jaxpr, in order."""
    return [eqn.primitive.name for eqn in pjl.make_jaxpr(fn, *args).eqns]


#: What is chosen, and how often the Jaxpr has a primitive of it.
CHOICES = {
    "one function": (lambda c, x, y: pt.switch(c, pt.exp(x), pt.exp(y)), "exp", 1),
    "functions of functions": (lambda c, x, y: pt.switch(c, pt.cos(pt.exp(x)), pt.cos(pt.exp(y))), "exp", 1),
    "a common operand": (lambda c, x, y: pt.switch(c, pt.cosh(x) / (x * y), pt.sinh(y) / (x * y)), "div", 1),
    "a common operand, exchanged": (lambda c, x, y: pt.switch(c, pt.cosh(x) * y, y * pt.sinh(x)), "mul", 1),
    "a common first operand": (lambda c, x, y: pt.switch(c, y / pt.cosh(x), y / pt.sinh(y)), "div", 1),
    "a choice of choices": (
        lambda c, x, y: pt.switch(c, pt.exp(x), pt.switch(x > 0, pt.exp(y), pt.exp(x + y))),
        "exp",
        1,
    ),
    "a scalar condition": (lambda c, x, y: pt.switch(c[0, 0], pt.exp(x), pt.exp(y)), "exp", 1),
    "other operands": (lambda c, x, y: pt.switch(c, pt.cosh(x) / y, pt.sinh(y) / x), "div", 2),
    "other functions": (lambda c, x, y: pt.switch(c, pt.exp(x), pt.cosh(y)), "exp", 1),
    "another reader": (lambda c, x, y: pt.switch(c, pt.exp(x), pt.exp(y)) + pt.exp(y).sum(), "exp", 2),
    "a number": (lambda c, x, y: pt.switch(c, pt.exp(x), pt.exp(y[0, 0])), "exp", 2),
    "another dtype": (lambda c, x, y: pt.switch(c, pt.cast(x > 0, "float64"), pt.cast(c * 3, "float64")) * y, "gt", 1),
}


@pytest.mark.parametrize("chosen", CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values(chosen, dtype):
    make, name, count = chosen
    c, (x, y) = pt.bmatrix("c"), (pt.matrix(n, dtype=dtype) for n in "xy")
    with pytensor.config.change_flags(floatX=dtype):
        output = make(c, x, y)
    args = [C.astype("int8"), X.astype(dtype), Y.astype(dtype)]
    f, reference = (pytensor.function([c, x, y], output, mode=mode) for mode in ("JAXPR", "FAST_COMPILE"))
    with np.errstate(all="ignore"):
        want = reference(*args)
    found = f(*args)
    assert (found.dtype, found.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(found, want, rtol=4 * np.finfo(dtype).eps)
    assert primitives(f, *args).count(name) == count


def test_no_equation_is_dead():
    c, x, y = pt.bmatrix("c"), pt.dmatrix("x"), pt.dmatrix("y")
    output = pt.switch(c, pt.log(pt.exp(x) + 1), pt.log(pt.exp(y) + 1))
    jaxpr = pjl.make_jaxpr(pjl.as_jax_function([c, x, y], output, gradient="pytensor"), C.astype("int8"), X, Y)
    read = {v for eqn in jaxpr.eqns for v in eqn.invars if not hasattr(v, "val")} | set(jaxpr.jaxpr.outvars)
    assert all(read.intersection(eqn.outvars) for eqn in jaxpr.eqns)


@pytest.mark.parametrize("gradient", ["jax", "pytensor"])
def test_derivatives_and_batches(gradient):
    c, x, y = pt.bvector("c"), pt.dvector("x"), pt.dvector("y")
    cost = pt.switch(c, pt.log(x) * y, pt.log(y) * y).sum()
    args = [np.array([1, 0, 1], "int8"), np.array([0.5, -1.0, 2.0]), np.array([1.0, 3.0, 2.0])]
    with np.errstate(all="ignore"):
        want = pytensor.function([c, x, y], pytensor.grad(cost, [x, y]), mode="FAST_COMPILE")(*args)
    fn = jax.grad(pjl.as_jax_function([c, x, y], cost, gradient=gradient), argnums=(1, 2))
    with jax.enable_x64(True):
        found = fn(*args)
        batched = jax.vmap(fn)(*(np.stack([a, a]) for a in args))
    for got, both, expected in zip(found, batched, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-14)
        np.testing.assert_array_equal(both, [got, got])


def test_a_logistic_regression_takes_one_logarithm_for_each_row():
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        slopes = pm.Normal("slopes", shape=3)
        pm.Bernoulli("y", logit_p=rng.normal(size=(40, 3)) @ slopes, observed=rng.random(40) < 0.5)
    point = {"slopes": np.array([0.3, -2.0, 1.0])}
    f, reference = (model.compile_logp(mode=mode) for mode in ("JAXPR", "FAST_COMPILE"))
    np.testing.assert_allclose(f(point), reference(point), rtol=1e-14)
    inputs = model.continuous_value_vars
    names = primitives(pytensor.function(inputs, model.logp(), mode="JAXPR"), point["slopes"])
    assert (names.count("log1p"), names.count("exp")) == (1, 1)
