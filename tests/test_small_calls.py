"""Parts of a program that XLA's CPU compiler emits as one function."""

from __future__ import annotations

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from jax import lax
from test_prims import ROWS, assembled

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.jaxpr.optimize import small_calls
from pytensor_jaxpr_linker.jaxpr.optimize.small_calls import call_in_parts, is_small, split_small
from pytensor_jaxpr_linker.run.cpu_client import own_device

ATTRIBUTE = 'xla_cpu_small_call="true"'
SMALL_ROWS = [r for r in ROWS if all(map(is_small, assembled(r).eqns))]


def on_own_client(fn):
    """Return a function jitted for the package's CPU client."""
    return jax.jit(fn, in_shardings=jax.sharding.SingleDeviceSharding(own_device()))


def parts_of(f, *values) -> list[tuple[int, bool]]:
    """Return how many equations each part of a function's Jaxpr has, and whether it is one function."""
    return [(len(part.jaxpr.eqns), part.is_small) for part in split_small(pjl.make_jaxpr(f, *values))]


@pytest.fixture
def every_size(monkeypatch):
    monkeypatch.setattr(small_calls, "LEAST_EQUATIONS", 1)


@pytest.mark.usefixtures("every_size")
@pytest.mark.parametrize("row", SMALL_ROWS, ids=[r.name for r in SMALL_ROWS])
def test_each_primitive_in_one_function(row):
    """The compiler's process would end at a primitive that its emitter lacks, so each one is compiled here."""
    with jax.enable_x64(True):
        closed = assembled(row)
        plain = on_own_client(lambda *xs: jax_compat.call_jaxpr(closed, *xs))
        parts = on_own_client(lambda *xs: call_in_parts(closed, xs))
        if closed.eqns:
            assert ATTRIBUTE in parts.lower(*row.operands).compile().as_text()
        for got, want in zip(parts(*row.operands), plain(*row.operands), strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            eps = np.finfo(want.dtype).eps if want.dtype.kind in "fc" else 0
            np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=4 * eps, atol=0)


def test_primitives_that_stay_alone():
    alone = {r.name for r in ROWS} - {r.name for r in SMALL_ROWS}
    assert {"sort", "scatter", "scatter_add", "fft", "dot_general", "cholesky", "triangular_solve", "svd"} <= alone
    assert alone.isdisjoint({"add", "exp", "reduce_sum", "gather", "scan", "while_loop", "cond", "cumsum", "select"})


def test_equations_between_others_are_one_part():
    x, i = pt.dvector("x"), np.arange(20) % 3
    y = pt.exp(x) * 2 + 1
    sums = pt.inc_subtensor(pt.log1p(x)[:3][i], pt.sin(y))  # a scatter
    outputs = [(pt.exp(sums) * x[:3] - 1).sum(), pt.cos(y).sum(), pt.sort(y)[0] * 3]
    f = pytensor.function([x], outputs, mode="JAXPR")
    value = np.linspace(0.1, 2, 20)
    assert [small for _, small in parts_of(f, value)] == [True, False, True]
    for got, want in zip(f(value), pytensor.function([x], outputs, mode="FAST_COMPILE")(value), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-13)


def test_large_arrays_stay_outside():
    x = pt.dvector("x")
    f = pytensor.function([x], [pt.exp(x) * 2 + pt.sin(x) - 3, (pt.cos(x[:4]) * 2 + 1).sum()], mode="JAXPR")
    assert [small for _, small in parts_of(f, np.ones(100))] == [True]
    large = np.ones(small_calls.MOST_BYTES // 8 + 1)
    parts = parts_of(f, large)
    assert not parts[0][1] and sum(n for n, _ in parts) == sum(n for n, _ in parts_of(f, np.ones(100)))
    np.testing.assert_allclose(f(large)[0], np.exp(1) * 2 + np.sin(1) - 3)


@pytest.mark.parametrize("steps", [3, 5000])
def test_loops_over_small_arrays_are_small(steps):
    x = pt.dvector("x")
    rows = pytensor.scan(
        lambda u, c: pt.tanh(c * 0.9 + u), sequences=[x], outputs_info=[pt.zeros(())], return_updates=False
    )
    f = pytensor.function([x], rows[-1], mode="JAXPR")
    value = np.linspace(-1, 1, steps)
    assert any(small for _, small in parts_of(f, value))
    state = 0.0
    for u in value:
        state = np.tanh(state * 0.9 + u)
    np.testing.assert_allclose(f(value), state, rtol=1e-12)


def test_programs_of_jax_have_no_such_calls():
    x = pt.dvector("x")
    fn = pjl.as_jax_function([x], pt.exp(x).sum() * pt.sin(x).sum() + 1)
    with jax.enable_x64(True):
        assert "small_call" not in jax.jit(fn).lower(np.ones(3)).as_text()
        assert "small_call" not in jax.jit(jax.grad(fn)).lower(np.ones(3)).as_text()


def test_results_that_are_inputs_literals_or_the_same():
    x = pt.dvector("x")
    y = pt.exp(x) * pt.sin(x) + pt.cos(x) * 2
    f = pytensor.function([x], [x, y, y, pt.constant(2.0), y.sum()], mode="JAXPR")
    value = np.arange(3.0)
    want = np.exp(value) * np.sin(value) + np.cos(value) * 2
    for got, expected in zip(f(value), [value, want, want, 2.0, want.sum()], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-14)


@pytest.mark.usefixtures("every_size")
def test_an_equation_of_an_unknown_primitive_stays_alone():
    with jax.enable_x64(True):
        closed = jax.make_jaxpr(lambda v: lax.top_k(v * 2, 2)[0] + 1)(np.arange(4.0))
        assert [part.is_small for part in split_small(closed)] == [True, False, True]
        (got,) = on_own_client(lambda v: call_in_parts(closed, [v]))(np.arange(4.0))
        np.testing.assert_array_equal(got, [7.0, 5.0])
