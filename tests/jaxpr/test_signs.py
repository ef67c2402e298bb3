"""Values that are proved to be never negative."""

from __future__ import annotations

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import compare, compare_grad
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.core import jaxpr_as_fun

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker import JaxprBuilder, prims
from pytensor_jaxpr_linker.jaxpr.signs import is_never_negative, is_never_positive

FLOAT = np.dtype("float64")
SPECIAL = np.array([-np.inf, -2.5, -1.0, -1e-300, -0.0, 0.0, 1e-300, 0.5, 1.0, 3.0, np.inf, np.nan])

UNARY = [
    *(prims.abs_, prims.exp, prims.log, prims.log1p, prims.neg, prims.sqrt, prims.square, prims.logistic, prims.floor),
    *(prims.ceil, prims.expm1, prims.erf, prims.erfc, prims.tanh, prims.cosh, prims.sin),
    *(lambda b, x, y=y: prims.integer_pow(b, x, y) for y in (2, 3, -2)),
    lambda b, x: prims.broadcast_to(b, prims.reduce_sum(b, x, (0,)), x.aval.shape),
    lambda b, x: prims.broadcast_to(b, prims.reduce_max(b, x, (0,)), x.aval.shape),
    lambda b, x: prims.rev(b, x, (0,)),
    lambda b, x: prims.cumsum(b, x, 0),
    lambda b, x: prims.convert(b, prims.ge(b, x, b.constant(0.0)), FLOAT),
    lambda b, x: prims.mul(b, x, prims.sign(b, x)),
    lambda b, x: prims.sub(b, x, prims.broadcast_to(b, prims.reduce_max(b, x, (0,)), x.aval.shape)),
    lambda b, x: prims.sub(b, x, prims.max_(b, prims.neg(b, x), x)),
]
BINARY = [prims.add, prims.sub, prims.mul, prims.div, prims.max_, prims.min_, prims.pow_, prims.rem]
NUMBERS = [-0.0, 0.0, 2.0, -3.0, np.nan]


@st.composite
def programs(draw):
    """Return a builder and the atoms of a random program of one vector."""
    b = JaxprBuilder()
    atoms = [b.input((SPECIAL.size,), FLOAT), b.constant(np.abs(np.arange(SPECIAL.size) - 3.0))]
    for _ in range(draw(st.integers(1, 12))):
        first = draw(st.sampled_from(atoms))
        if draw(st.booleans()):
            atoms.append(draw(st.sampled_from(UNARY))(b, first))
        else:
            other = draw(st.one_of(st.sampled_from(atoms), st.sampled_from(NUMBERS).map(b.constant)))
            operands = draw(st.permutations([first, other]))
            atoms.append(draw(st.sampled_from(BINARY))(b, *operands))
    choice = prims.lt(b, atoms[-1], b.constant(0.0))
    atoms.append(prims.select(b, choice, draw(st.sampled_from(atoms)), draw(st.sampled_from(atoms))))
    return b, atoms


@settings(max_examples=300, deadline=None)
@given(programs())
def test_what_is_proved_is_true(program):
    b, atoms = program
    proved = [x for x in atoms if is_never_negative(b, x)]
    with jax.enable_x64(True), np.errstate(all="ignore"):
        values = jaxpr_as_fun(b.build(proved))(SPECIAL)
        below = jaxpr_as_fun(b.build([x for x in atoms if is_never_positive(b, x)]))(SPECIAL)
    for value in map(np.asarray, values):
        assert not np.any(np.signbit(value) & ~np.isnan(value)), value
    for value in map(np.asarray, below):
        assert not np.any(value > 0), value


#: A function of a square matrix, and whether it is proved that no element is above zero.
BELOW = {
    "columns": (lambda x: x - x.max(axis=0), True),
    "rows": (lambda x: x - x.max(axis=1)[:, None], True),
    "all": (lambda x: x - x.max(), True),
    "rows in place of columns": (lambda x: x - x.max(axis=0)[:, None], False),
    "columns in place of rows": (lambda x: x - x.max(axis=1), False),
    "transposed": (lambda x: x.T - x.max(axis=0), False),
    "larger of two": (lambda x: x - pt.maximum(x.T, x), True),
    "larger of others": (lambda x: x - pt.maximum(x.T, 1.0), False),
    "smaller of two": (lambda x: x - pt.minimum(x, x.T), False),
    "one of two": (lambda x: x - pt.switch(x.sum() > 0, x, x.T), False),
    "not where it is infinite": (lambda x: x - pt.switch(x > 0, x.max(axis=0), 0.0), False),
    "size": (lambda x: -abs(x) / 3, True),
    "square": (lambda x: -(x**2) / 2, True),
    "itself": (lambda x: x, False),
}


@pytest.mark.parametrize("make, is_proved", BELOW.values(), ids=BELOW)
def test_exponentials_that_cannot_overflow(make, is_proved):
    """XLA's library computes them; others get a barrier before a sum."""
    x = pt.dmatrix("x")
    f = pytensor.function([x], pt.exp(make(x)).sum(), mode="JAXPR")
    value = np.random.default_rng(1).normal(size=(70, 70))
    np.testing.assert_allclose(f(value), np.exp(make(x).eval({x: value})).sum(), rtol=1e-12)
    assert ("optimization_barrier" in str(pjl.make_jaxpr(f, value))) == (not is_proved)


def proves(make) -> bool:
    """Return whether the value that `make` computes from a vector is proved to be never negative."""
    b = JaxprBuilder()
    return is_never_negative(b, make(b, b.input((3,), FLOAT)))


def test_what_models_compute_is_proved():
    assert proves(lambda b, x: prims.add(b, prims.exp(b, x), b.constant(np.arange(3.0))))
    assert proves(lambda b, x: prims.div(b, prims.exp(b, x), prims.reduce_sum(b, prims.exp(b, x), (0,))))
    assert proves(lambda b, x: prims.max_(b, x, b.constant(1e-9)))
    for make in (
        lambda b, x: x,
        lambda b, x: prims.sub(b, prims.exp(b, x), b.constant(1.0)),
        lambda b, x: prims.max_(b, x, b.constant(0.0)),  # may be -0.0
        lambda b, x: b.constant(np.array([1.0, -0.0, 2])),
        lambda b, x: prims.integer_pow(b, x, 3),
    ):
        assert not proves(make)


def count(f, *values) -> int:
    """Return how many equations the program of a function has."""
    return len(str(pjl.make_jaxpr(f, *values)).splitlines())


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("function", [pt.gammaln, pt.psi, pt.gamma, pt.tri_gamma])
def test_special_functions_need_no_branch_for_negative_arguments(function, dtype):
    x = pt.vector("x", dtype=dtype)
    values = np.array([-800, -3, -0.5, 0, 0.7, 2, 30, np.inf, -np.inf, np.nan], dtype)
    with np.errstate(all="ignore"):
        compare([x], function(pt.exp(x)), [values], rtol=1e-5 if dtype == "float32" else 1e-10)
    of_any, of_positive = (pytensor.function([x], function(v), mode="JAXPR") for v in (x, pt.exp(x)))
    assert count(of_positive, values) < 0.85 * count(of_any, values)


@pytest.mark.parametrize("function", [pt.gammaln, pt.psi])
def test_derivatives_of_special_functions_of_positive_arguments(function):
    x = pt.dvector("x")
    compare_grad([x], function(pt.exp(x) + 0.1), [np.array([-1.0, 0.3, 2])])


@pytest.mark.parametrize("shape", [(40, 5), (4, 1), (3, 2, 2), (2, 100), (0, 3)])
def test_special_functions_of_short_rows(shape):
    """They are computed along one axis, which XLA turns into vectors."""
    x = pt.tensor("x", dtype="float64", shape=(None,) * len(shape))
    values = np.random.default_rng(1).standard_normal(shape) * 3
    outputs = [pt.gammaln(x).sum(axis=0), pt.psi(pt.exp(x)), pt.betainc(2.0, pt.exp(x), 0.3)]
    compare([x], outputs, [values])
    if values.size:
        compare_grad([x], pt.gammaln(pt.exp(x)).sum(axis=0), [values])
