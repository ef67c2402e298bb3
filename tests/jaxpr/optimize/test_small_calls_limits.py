"""What stays outside of small calls, and programs that fail."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import compare
from jax import lax
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.jaxpr.optimize import small_calls
from pytensor_jaxpr_linker.jaxpr.optimize.small_calls import (
    split_small,
)
from pytensor_jaxpr_linker.jaxpr.optimize.xla_options import options_of_call
from pytensor_jaxpr_linker.run import specialization
from tests.jaxpr.optimize.test_small_calls import in_calls, on_own_client, parts_of, passes_left_out


@pytest.fixture
def every_size(monkeypatch):
    monkeypatch.setattr(small_calls, "LEAST_EQUATIONS", 1)


TWO_STEPS, COPIES, LIBRARY = "tree_reduction_rewriter", "flatten-call-graph", "xla_cpu_experimental_ynn_fusion_type"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("shape", [(40,), (3, 5), (1,), (2000,)])
def test_sums_share_one_computation(dtype, shape):
    x = pt.tensor("x", dtype=dtype, shape=(None,) * len(shape))
    y, sums = x, []
    for _ in range(4):
        sums.append(pt.exp(y).sum())
        y = y * 0.5 + 1e-3 * sums[-1].astype(dtype)
    values = np.linspace(-1, 1, np.prod(shape)).reshape(shape).astype(dtype)
    compare([x], sums, [values], rtol=1e-5 if dtype == "float32" else 1e-12)
    f = pytensor.function([x], sums, mode="JAXPR")
    closed = in_calls(pjl.make_jaxpr(f, values))
    with jax.enable_x64(True):
        text = on_own_client(closed).lower(values).compile(options_of_call(closed)).as_text()
    computations = re.findall(r" reduce\(.*to_apply=(%[\w.]+)", text)
    assert len(computations) == 4 * (values.size > 1) and len(set(computations)) <= 1


@pytest.mark.usefixtures("every_size")
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 4), (5000,)])
def test_all_and_any_share_the_computation_of_sums(shape):
    x = pt.tensor("x", dtype="float64", shape=(None,) * len(shape))
    outputs = [(x > 0).all(), (x > 0).any(), x.sum(), pt.switch((x < 9).all(), x.sum(), 0.0)]
    for values in (np.ones(shape), -np.ones(shape), np.arange(np.prod(shape)).reshape(shape) - 0.5):
        compare([x], outputs, [values])
    f = pytensor.function([x], outputs, mode="JAXPR")
    closed = in_calls(pjl.make_jaxpr(f, np.ones(shape)))
    with jax.enable_x64(True):
        text = on_own_client(closed).lower(np.ones(shape)).compile(options_of_call(closed)).as_text()
    computations = set(re.findall(r" reduce\(.*to_apply=(%[\w.]+)", text))
    assert len(computations) <= 1 or np.prod(shape) == 5000


def test_sums_of_what_is_not_finite():
    x = pt.dvector("x")
    outputs = [x.sum(), (x * x).sum(), pt.log(x).sum()]
    for values in ([1.0, np.inf, 2], [np.inf, -np.inf, 0], [np.nan, 1, 2], [0.0, 0, 0]):
        with np.errstate(all="ignore"):
            compare([x], outputs, [np.array(values)])


def test_sums_beside_loops_and_functions_of_jax():
    """XLA needs its pass that copies functions for loops, and for functions that equal equations share."""
    x = pt.dvector("x")
    loop = pytensor.scan(lambda u, c: pt.tanh(c + u), sequences=[x], outputs_info=[pt.zeros(())], return_updates=False)
    sums = [pt.exp(x).sum(), (x * x).sum()]
    for others in ([loop[-1]], [pt.cumsum(x), pt.cumsum(pt.exp(x))], [pt.argmax(x), pt.argmax(-x)]):
        f = pytensor.function([x], [*sums, *others], mode="JAXPR")
        closed = in_calls(pjl.make_jaxpr(f, np.ones(12)))
        assert COPIES not in passes_left_out(options_of_call(closed))
        compare([x], [*sums, *others], [np.linspace(0, 1, 12)])


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
    compare([x], [x, y, y, pt.constant(2.0), y.sum()], [np.arange(3.0)])


def test_the_witness_is_finite():
    """`jax_debug_nans` looks at each result of a program."""
    x, y = pt.dvector("x"), pt.dvector("y")
    f = pytensor.function([x, y], [pt.isnan(x) + pt.isinf(y) * 2, pt.isnan(y).sum() * 2 + 1], mode="JAXPR")
    with jax.debug_nans(True), jax.debug_infs(True):
        got = f(np.array([np.nan, np.inf]), np.array([np.inf, -np.inf]))
    np.testing.assert_array_equal(got[0], [3, 2])
    assert got[1] == 1


@pytest.mark.usefixtures("every_size")
def test_what_the_compiler_has_no_form_of(monkeypatch):
    """A sort in a small call is an error of XLA's compiler: then the program has no small calls."""
    monkeypatch.setitem(small_calls.TRAITS, lax.sort_p, small_calls.Trait(0))
    x, rng = pt.dvector("x"), pytensor.shared(np.random.default_rng(1))
    outputs = [pt.sort(x) * 2 + pt.exp(x).sum(), pt.cos(x) + 1]
    f = pytensor.function([x], outputs, mode="JAXPR")
    value = np.array([2.0, 3.0, 1.0])
    assert [small for _, small in parts_of(f, value)] == [True]
    compare([x], outputs, [value])
    _, normal = pt.random.normal(0, 1, size=3, rng=rng, return_next_rng=True)
    draws = [pt.sort(normal) + x]
    g = pytensor.function([x], draws, mode="JAXPR")
    for _ in range(2):
        drawn = g(value)[0] - value
        assert np.all(np.diff(drawn) >= 0)


@pytest.mark.usefixtures("every_size")
def test_an_equation_of_an_unknown_primitive_stays_alone():
    with jax.enable_x64(True):
        closed = jax.make_jaxpr(lambda v: lax.top_k(v * 2, 2)[0] + 1)(np.arange(4.0))
        assert [part.is_small for part in split_small(closed.eqns)] == [True, False, True]
        got, _ = on_own_client(in_calls(closed))(np.arange(4.0))
        np.testing.assert_array_equal(got, [7.0, 5.0])


class Failing(Op):
    """An Op whose JAX function calls back to the host, which fails."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        raise NotImplementedError


def test_a_program_that_fails_runs_once():
    """A JaxRuntimeError of a call does not mean that XLA's compiler lacks small calls.

    To call the program again would repeat its effects.
    """
    from pytensor.link.jax.dispatch import jax_funcify  # sets JAX's precision for the process, which a fixture restores

    calls = []

    def called(x):
        calls.append(x)
        raise RuntimeError("out of everything")

    @jax_funcify.register(Failing)
    def jax_failing(op, **kwargs):
        return lambda x: jax.pure_callback(called, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    x, n = pt.dvector("x"), pt.iscalar("n")
    many = sum((pt.exp(x * k) for k in range(1, 20)), start=Failing()(x))
    f = pytensor.function(
        [x, n], [many, pt.zeros(n)], mode="JAXPR"
    )  # a known length: the program is called without packing
    with pytest.raises(jax.errors.JaxRuntimeError, match="out of everything"):
        f(np.ones(3), 2)
    assert len(calls) == 1


def test_a_program_that_the_compiler_refuses_with_small_calls_is_compiled_without(monkeypatch):
    x, n = pt.dvector("x"), pt.iscalar("n")
    f = pytensor.function([x, n], [sum(pt.exp(x * k) for k in range(1, 20)), pt.zeros(n)], mode="JAXPR")

    def refused(*_args, **_kwargs):
        raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: no small call of this")

    monkeypatch.setattr(specialization, "for_calls", refused)
    want = sum(np.exp(np.ones(3) * k) for k in range(1, 20))
    for _ in range(2):
        np.testing.assert_allclose(f(np.ones(3), 2)[0], want, rtol=1e-12)
