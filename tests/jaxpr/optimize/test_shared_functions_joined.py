"""One special function of several small arrays as one call (`jaxpr/optimize/shared_functions.py`)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import compare
from hypothesis import given, settings
from hypothesis import strategies as st

import pytensor_jaxpr_linker as pjl

FUNCTIONS = {"gammaln": pt.gammaln, "digamma": pt.digamma, "erfcx": pt.erfcx}


def joined(f, *args):
    """Return the shapes of the results of special functions in the Jaxpr of a function, sorted."""
    eqns = pjl.make_jaxpr(f, *args).eqns
    return sorted(eqn.outvars[0].aval.shape for eqn in eqns if eqn.primitive.name == "custom_jvp_call")


def jaxpr_mode(inputs, outputs):
    return pytensor.function(inputs, outputs, mode="JAXPR")


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arrays_of_all_shapes(function, dtype):
    shapes = [(), (5,), (4, 5), (1, 1), (0, 3), (1,)]
    inputs = [pt.tensor(f"x{i}", dtype=dtype, shape=(None,) * len(shape)) for i, shape in enumerate(shapes)]
    outputs = [function(x) for x in inputs]
    rng = np.random.default_rng(1)
    args = [rng.normal(1, 3, shape).astype(dtype) for shape in shapes]
    compare(inputs, outputs, args, rtol=16 * np.finfo(dtype).eps, atol=np.finfo(dtype).eps)
    assert joined(jaxpr_mode(inputs, outputs), *args) == [(0, 3), (28,)]


def test_no_call_that_needs_another_joins_it():
    x, y = pt.dvectors("xy")
    outer = pt.gammaln(pt.gammaln(x) + 5)
    outputs = [outer, pt.gammaln(y)]
    args = [np.arange(3.0, 8), np.arange(1.0, 4)]
    compare([x, y], outputs, args)
    assert joined(jaxpr_mode([x, y], outputs), *args) == [(5,), (8,)]


def test_no_two_joined_calls_need_each_other():
    x, y = pt.dvectors("xy")
    # gammaln of y needs digamma of y, and digamma of x needs gammaln of x: joining both pairs would be a circle.
    outputs = [pt.digamma(pt.gammaln(x) + 5), pt.gammaln(pt.digamma(y) + 5)]
    args = [np.arange(3.0, 8), np.arange(1.0, 4)]
    compare([x, y], outputs, args)
    assert joined(jaxpr_mode([x, y], outputs), *args) == [(3,), (3,), (5,), (5,)]


def test_arguments_that_are_never_negative_keep_the_shorter_formula():
    x, y, z = pt.dvectors("xyz")
    outputs = [pt.gammaln(pt.exp(x)), pt.gammaln(y), pt.gammaln(pt.exp(z)), pt.gammaln(-pt.exp(z))]
    args = [np.linspace(-1, 1, n) for n in (3, 4, 5)]
    compare([x, y, z], outputs, args)
    assert joined(jaxpr_mode([x, y, z], outputs), *args) == [(8,), (9,)]


def test_dtypes_are_apart():
    x, y = pt.fvector("x"), pt.dvector("y")
    outputs = [pt.gammaln(x), pt.gammaln(y)]
    args = [np.ones(3, "float32"), np.ones(4)]
    compare([x, y], outputs, args)
    assert joined(jaxpr_mode([x, y], outputs), *args) == [(3,), (4,)]


def test_orders_of_other_dtypes_are_apart():
    orders = [pt.vector(name, dtype=dtype) for name, dtype in (("m", "int8"), ("n", "int64"), ("k", "int64"))]
    inputs = pt.dvectors("xyz")
    outputs = [pt.polygamma(n, x) for n, x in zip(orders, inputs, strict=True)]
    args = [np.arange(n) % 4 for n in (2, 3, 4)], [np.linspace(0.5, 3, n) for n in (2, 3, 4)]
    args = [*(x.astype(v.type.dtype) for x, v in zip(args[0], orders, strict=True)), *args[1]]
    compare([*orders, *inputs], outputs, args)
    assert joined(jaxpr_mode([*orders, *inputs], outputs), *args) == [(2,), (7,)]


def test_no_more_than_one_small_array():
    inputs = pt.dvectors("abcd")
    outputs = [pt.gammaln(x) for x in inputs]
    args = [np.linspace(0.5, 3, n) for n in (1024, 600, 500, 400)]
    compare(inputs, outputs, args)
    assert joined(jaxpr_mode(inputs, outputs), *args) == [(500,), (1000,), (1024,)]


def test_inside_a_loop():
    x, y = pt.dvectors("xy")

    def step(a, b):
        return pt.gammaln(a) + b, pt.gammaln(b[:2]).sum() + b

    outputs = pytensor.scan(step, outputs_info=[x, y], n_steps=3, return_updates=False)
    compare([x, y], outputs, [np.arange(3.0, 7), np.arange(4.0, 8)])


@pytest.mark.parametrize("gradient", ["jax", "pytensor"])
def test_programs_that_jax_transforms_stay(gradient):
    """Their arrays may be divided over devices, which would have to exchange them."""
    x, y = pt.dvectors("xy")
    fn = pjl.as_jax_function([x, y], pt.gammaln(x).sum() + pt.gammaln(y).sum(), gradient=gradient)
    with jax.enable_x64(True):
        args = jnp.arange(1.0, 4), jnp.arange(1.0, 6)
        closed = jax.make_jaxpr(fn)(*args)
        slope = jax.grad(fn)(*args)
    assert "concatenate" not in str(closed)
    f = pytensor.function([x], pt.digamma(x), mode="FAST_COMPILE")
    np.testing.assert_allclose(slope, f(np.asarray(args[0])), rtol=1e-12)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_graph(data):
    """Functions of any two earlier values, of any shapes, in any order."""
    shapes = [(), (3,), (2, 3)]
    inputs = [pt.tensor(f"x{i}", dtype="float64", shape=shape) for i, shape in enumerate(shapes)]
    values = list(inputs)
    for _ in range(data.draw(st.integers(2, 8))):
        function = data.draw(st.sampled_from([pt.gammaln, pt.digamma]))
        one, other = (data.draw(st.sampled_from(values)) for _ in range(2))
        values.append(function(3 + pt.abs(one) + 0.1 * pt.cos(other)))
    args = [np.random.default_rng(2).normal(size=shape) for shape in shapes]
    compare(inputs, values[3:], args, rtol=1e-10)
