"""Logarithms of long arrays as arithmetic (`jaxpr/optimize/long_arrays.py`)."""

from __future__ import annotations

from decimal import Decimal, localcontext

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base.options import for_platforms
from pytensor_jaxpr_linker.jaxpr.optimize import long_arrays

RNG = np.random.default_rng(0)
NUMBERS = {
    "log": np.concatenate(
        [
            np.exp(RNG.uniform(-700, 700, 300)),
            RNG.uniform(0.5, 2, 500),
            1 + RNG.normal(size=200) * 1e-4,
            1 + RNG.normal(size=200) * 1e-14,
            [1.0, 2.3e-308, 1.7e308, np.sqrt(0.5), np.sqrt(2)],
        ]
    ),
    "log1p": np.concatenate(
        [
            np.exp(RNG.uniform(-40, 700, 300)),
            RNG.normal(size=200) * 1e-5,
            -RNG.uniform(0, 1, 500),
            -1 + np.exp(-RNG.uniform(0, 36, 100)),
            RNG.uniform(0, 1, 300),
        ]
    ),
}
OPS = {"log": pt.log, "log1p": pt.log1p}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1.0, -2.0]


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(long_arrays, "LEAST", 8)
    monkeypatch.setattr(long_arrays, "LEAST_INSIDE", 8)


def logarithms(fn, *args):
    """Return how many logarithms a Jaxpr has."""
    return sum(eqn.primitive.name in OPS for eqn in pjl.make_jaxpr(fn, *args).eqns)


@pytest.mark.parametrize("name", OPS)
def test_error_in_units_of_the_last_place(name):
    x = pt.dvector("x")
    f = pytensor.function([x], OPS[name](x), mode="JAXPR")
    found = f(NUMBERS[name])
    assert found.dtype == "float64" and logarithms(f, NUMBERS[name]) == 0
    with localcontext(prec=60):
        exact = [(Decimal(float(v)) + (name == "log1p")).ln() for v in NUMBERS[name]]
        errors = [
            abs(Decimal(float(got)) - want) / Decimal(float(np.spacing(abs(float(want)))))
            for got, want in zip(found, exact, strict=True)
        ]
    assert max(errors) < (0.8 if name == "log" else 2.5)


@pytest.mark.parametrize("shape", [(8,), (2, 4), (2, 2, 3)])
@pytest.mark.parametrize("name", OPS)
def test_special_values(name, shape):
    x = pt.tensor("x", dtype="float64", shape=(None,) * len(shape))
    arg = np.resize(SPECIAL, shape)
    f, reference = (pytensor.function([x], OPS[name](x), mode=mode) for mode in ("JAXPR", "FAST_COMPILE"))
    with np.errstate(all="ignore"):
        want = reference(arg)
    found = f(arg)
    assert found.shape == shape and logarithms(f, arg) == 0
    np.testing.assert_array_equal(found, want)
    is_zero = want == 0
    np.testing.assert_array_equal(np.signbit(found[is_zero]), np.signbit(want[is_zero]))


@pytest.fixture(scope="module")
def modes():
    """Both functions of a vector, in mode JAXPR and in FAST_COMPILE."""
    x = pt.dvector("x")
    return [pytensor.function([x], [pt.log(x), pt.log1p(x)], mode=mode) for mode in ("JAXPR", "FAST_COMPILE")]


@given(value=st.floats(width=64, allow_subnormal=False))  # XLA takes subnormals for zeros
def test_any_number(modes, value):
    arg = np.full(8, value)
    with np.errstate(all="ignore"):
        found, want = (f(arg) for f in modes)
    np.testing.assert_allclose(found, want, rtol=1e-15, atol=np.finfo("float64").tiny)


#: Readers of the logarithm of a vector `x`, and how many logarithms stay, as only one sum reads them.
READERS = {
    "one sum": (lambda x, y: pt.log(x).sum(), 1),
    "a sum of arithmetic": (lambda x, y: (y * pt.log(x) - pt.log1p(x) / y).sum(), 2),
    "a sum that reads it twice": (lambda x, y: (pt.log(x) * y + pt.exp(pt.log(x) / y)).sum(), 1),
    "a product of vectors": (lambda x, y: pt.dot(pt.log(x), y), 1),
    "two sums": (lambda x, y: (y * pt.log(x)).sum() * pt.exp(y - pt.log(x)).sum(), 0),
    "a choice": (lambda x, y: pt.switch(y > 1, pt.log(x), 0.0).sum(), 0),
    "a sum and the result": (lambda x, y: pt.log(x) + pt.log(x).sum(), 0),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_what_stays(read):
    make, stay = read
    x, y = pt.dvector("x"), pt.dvector("y")
    args = [np.linspace(0.5, 3, 12), np.linspace(0.2, 2, 12)]
    f, reference = (
        pytensor.function([x, y], make(x, y), mode=mode, on_unused_input="ignore") for mode in ("JAXPR", "FAST_COMPILE")
    )
    np.testing.assert_allclose(f(*args), reference(*args), rtol=1e-13)
    assert logarithms(f, *args) == stay


def test_short_arrays_other_dtypes_and_platforms_stay():
    x, z = pt.dvector("x"), pt.fvector("z")
    fn = pjl.as_jax_function([x], pt.log(x), gradient="pytensor")
    assert logarithms(fn, np.ones(7)) == 1 and logarithms(fn, np.ones(8)) == 0
    assert logarithms(fn, np.ones(2**19)) == 0 and logarithms(fn, np.ones(2**19 + 1)) == 1
    assert logarithms(pytensor.function([z], pt.log(z), mode="JAXPR"), np.ones(8, "float32")) == 1
    with jax.enable_x64(True):
        assert " log " in str(jax.make_jaxpr(pjl.as_jax_function([x], pt.log(x), gradient="jax"))(np.ones(8)))
    with for_platforms(["cuda"]):
        assert logarithms(pjl.as_jax_function([x], pt.log(x), gradient="pytensor"), np.ones(8)) == 1


@pytest.mark.parametrize("gradient", ["jax", "pytensor"])
def test_derivatives_and_batches(gradient):
    x, y = pt.dvector("x"), pt.dvector("y")
    cost = (pt.switch(y > 1, pt.log(x), pt.log1p(y)) ** 2).sum()
    args = [np.linspace(0.5, 3, 12), np.linspace(0.2, 2, 12)]
    want = pytensor.function([x, y], pytensor.grad(cost, [x, y]), mode="FAST_COMPILE")(*args)
    fn = jax.grad(pjl.as_jax_function([x, y], cost, gradient=gradient), argnums=(0, 1))
    with jax.enable_x64(True):
        found, batched = fn(*args), jax.vmap(fn)(*(np.stack([a, a]) for a in args))
    for got, both, expected in zip(found, batched, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-13)
        np.testing.assert_allclose(both, [got, got], rtol=1e-15)


def test_special_functions_inside():
    x = pt.dvector("x")
    arg = np.linspace(0.1, 30, 50)
    outputs = [pt.gammaln(x), pt.digamma(x)]
    f, reference = (pytensor.function([x], outputs, mode=mode) for mode in ("JAXPR", "FAST_COMPILE"))
    for got, want in zip(f(arg), reference(arg), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-15)
    assert " log " not in str(pjl.make_jaxpr(f, arg))
