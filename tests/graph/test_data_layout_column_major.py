"""Column-major matrices: constants (`graph/data_layout.py`) and shared variables (`frontend/shared_arrays.py`)."""

from __future__ import annotations

import copy
import pickle
import threading

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import Doubled, compare
from hypothesis import given, settings
from hypothesis import strategies as st
from pytensor.compile.mode import Mode

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.graph import data_layout

N, K = 8_000, 5
RNG = np.random.default_rng(7)
X, Y = RNG.normal(size=(N, K)), RNG.normal(size=N)
BETA = np.linspace(-1.0, 1.0, K)


def regression(x, y=Y, dtype="float64"):
    """Return the inputs and outputs of a sum of squares and its gradient."""
    beta = pt.vector("beta", dtype=dtype, shape=(K,))
    loss = ((x @ beta - y.astype(dtype)) ** 2).sum()
    return [beta], [loss, pytensor.grad(loss, beta)]


def expected(x, beta=BETA):
    """Return the same for arrays."""
    residual = x @ beta - Y[: len(x)]
    return (residual**2).sum(), 2 * x.T @ residual


def check(f, x, beta=BETA):
    """Compare the results of a regression with the results for an array."""
    for got, want in zip(f(beta), expected(x, beta), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9)


def shapes_taken(f):
    """Return the shapes of the large arrays that a function's programs hold."""
    return {array.shape for program in f.vm.runner.programs for array in program.constants}


# -- constants ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_constant_and_its_transpose(dtype, order):
    x = np.asarray(np.tile(X, (2, 1)), dtype, order=order)
    inputs, outputs = regression(pt.constant(x), np.tile(Y, 2), dtype)
    compare(inputs, outputs, [BETA.astype(dtype)], rtol=1e-4 if dtype == "float32" else 1e-9)
    assert shapes_taken(pytensor.function(inputs, outputs, mode="JAXPR")) & {(2 * N, K), (K, 2 * N)} == {(K, 2 * N)}


READ_OTHERWISE = {
    "an elementwise function": (X, lambda x, v: [x @ v, pt.exp(x * v[0]).sum()]),
    "a product with a matrix": (X, lambda x, v: [x @ v, x @ pt.exp(pt.outer(v, v[:3]))]),
    "a row": (X, lambda x, v: [(x @ v).sum(), x[pt.argmax(v)]]),
    "the matrix itself": (X, lambda x, v: [(x @ v).sum(), x]),
    "its transpose": (X, lambda x, v: [(x @ v).sum(), x.T * v[:, None]]),
    "no product with a vector": (X, lambda x, v: [x.sum(0) * v]),
    "a small matrix": (X[:1000], lambda x, v: [x @ v]),
    "nearly a square": (RNG.normal(size=(400, 200)), lambda x, v: [x.T @ pt.tile(v, 80)]),
    "a single column": (RNG.normal(size=(N * K, 1)), lambda x, v: [x @ v[:1]]),
    "long rows": (RNG.normal(size=(K, N)), lambda x, v: [v @ x]),
}


@pytest.mark.parametrize(("x", "make"), READ_OTHERWISE.values(), ids=READ_OTHERWISE)
def test_matrices_that_stay_in_rows(x, make):
    v = pt.dvector("v", shape=(K,))
    compare([v], make(pt.constant(x), v), [BETA])
    f = pytensor.function([v], make(pt.constant(x), v), mode="JAXPR")
    assert x.T.shape not in shapes_taken(f)
    shared = pytensor.shared(x, name="x")
    g = pytensor.function([v], make(shared, v), mode="JAXPR")
    for got, want in zip(g(BETA), f(BETA), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9)
    assert not g.vm.runner.column_major
    assert shared.get_value(borrow=True).flags.c_contiguous


def test_a_large_matrix_is_not_copied(monkeypatch):
    monkeypatch.setattr(data_layout, "MOST_COPIED_BYTES", X.nbytes - 1)
    inputs, outputs = regression(pt.constant(X))
    f = pytensor.function(inputs, outputs, mode="JAXPR")
    check(f, X)
    assert (K, N) not in shapes_taken(f)


def test_constants_that_are_no_arrays():
    """The size of a random variable is a constant without a shape."""
    beta, rng = pt.dvector("beta", shape=(K,)), pytensor.shared(np.random.default_rng(1))
    _, noise = pt.random.normal(0.0, 1e-12, size=None, rng=rng, return_next_rng=True)
    f = pytensor.function([beta], pt.constant(X) @ beta + noise, mode="JAXPR")
    np.testing.assert_allclose(f(BETA), X @ BETA, atol=1e-9)
    assert (K, N) in shapes_taken(f)


def test_functions_of_one_matrix_share_its_copy():
    inputs, outputs = regression(pt.constant(X))
    functions = [pytensor.function(inputs, out, mode="JAXPR") for out in (outputs, outputs[:1])]
    first, second = ([a for a in f.vm.runner.program.constants if a.shape == (K, N)] for f in functions)
    assert np.shares_memory(first[0], second[0])


def test_a_matrix_that_was_written_to_since():
    x = X.copy()
    inputs, outputs = regression(pt.constant(x))
    check(pytensor.function(inputs, outputs, mode="JAXPR"), x)
    x *= 2
    check(pytensor.function(inputs, outputs, mode="JAXPR"), x)


def test_a_function_for_jax():
    inputs, outputs = regression(pt.constant(X))
    fn = pjl.as_jax_function(inputs, outputs[0])
    with jax.enable_x64(True):
        np.testing.assert_allclose(jax.jit(jax.grad(lambda b: fn(b)[()]))(BETA), expected(X)[1], rtol=1e-9)
        betas = np.stack([BETA, 2 * BETA])
        np.testing.assert_allclose(jax.vmap(fn)(betas), [expected(X, b)[0] for b in betas], rtol=1e-9)


# -- shared variables --------------------------------------------------------------------------------------------------


@pytest.fixture
def x():
    return pytensor.shared(X, name="x")


def in_columns(x):
    """Return whether the value of a shared variable lies in column-major order."""
    return not x.get_value(borrow=True).flags.c_contiguous


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_shared_matrix(dtype, order):
    value = np.asarray(np.tile(X, (2, 1)), dtype, order=order)
    shared = pytensor.shared(value, name="x")
    inputs, outputs = regression(shared, np.tile(Y, 2), dtype)
    f = pytensor.function(inputs, [*outputs, shared.shape[0]], mode="JAXPR")
    reference = pytensor.function(inputs, [*outputs, shared.shape[0]], mode="FAST_COMPILE")
    for _ in range(3):
        for got, want in zip(f(BETA.astype(dtype)), reference(BETA.astype(dtype)), strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            np.testing.assert_allclose(got, want, rtol=1e-4 if dtype == "float32" else 1e-9)
    assert in_columns(shared)
    np.testing.assert_array_equal(shared.get_value(), value)


def test_what_is_written_in_place_is_read(x):
    inputs, outputs = regression(x)
    f = pytensor.function(inputs, outputs, mode="JAXPR")
    f(BETA)
    x.get_value(borrow=True)[3] = 7.0
    changed = X.copy()
    changed[3] = 7.0
    check(f, changed)
    pytensor.function([], [], updates={x: x * 2}, mode="FAST_COMPILE")()
    check(f, 2 * changed)


@pytest.mark.parametrize("rows", [N, N - 1, 100, 8, 0])
def test_another_value(x, rows):
    beta = pt.dvector("beta", shape=(K,))
    f = pytensor.function([beta], [x @ beta, (x @ beta) @ x], mode="JAXPR")
    f(BETA)
    x.set_value(3 * X[:rows])
    for _ in range(2):
        product, back = f(BETA)
        np.testing.assert_allclose(product, 3 * X[:rows] @ BETA)
        np.testing.assert_allclose(back, 9 * (X[:rows] @ BETA) @ X[:rows], atol=1e-12)


def test_another_function_needs_rows(x):
    """The first function takes rows from then on. A change of the order with each call would copy the matrix."""
    inputs, outputs = regression(x)
    f = pytensor.function(inputs, outputs, mode="JAXPR")
    check(f, X)
    g = pytensor.function([], pt.exp(x), mode="JAXPR")
    np.testing.assert_allclose(g(), np.exp(X))
    assert not in_columns(x)
    check(f, X)
    assert not in_columns(x) and not f.vm.runner.column_major
    x.set_value(2 * X)
    for _ in range(2):
        np.testing.assert_allclose(g(), np.exp(2 * X))
        check(f, 2 * X)


def test_a_function_made_after_one_that_needs_rows(x):
    pytensor.function([], x.sum(), mode="JAXPR")()
    inputs, outputs = regression(x)
    f = pytensor.function(inputs, outputs, mode="JAXPR")
    assert not f.vm.runner.column_major
    check(f, X)


def test_another_function_updates_the_matrix(x):
    inputs, outputs = regression(x)
    f = pytensor.function(inputs, outputs, mode="JAXPR")
    check(f, X)
    update = pytensor.function([], [], updates={x: x + 1}, mode="JAXPR")
    for step in (1, 2):
        update()
        check(f, X + step)


def test_a_function_that_updates_the_matrix_takes_rows(x):
    inputs, outputs = regression(x)
    f = pytensor.function(inputs, outputs, updates={x: x * 2}, mode="JAXPR")
    check(f, X)
    check(f, 2 * X)
    assert not f.vm.runner.column_major


@pytest.mark.parametrize("mark", [pjl.mark_dynamic, pjl.mark_static])
def test_a_marked_matrix_takes_rows(x, mark):
    mark(x)
    inputs, outputs = regression(x)
    f = pytensor.function(inputs, outputs, mode="JAXPR")
    assert not f.vm.runner.column_major
    check(f, X)


@pytest.mark.parametrize("options", [{"results": "jax"}, {"synchronous": False}, {"checks": "defer"}], ids=str)
def test_options(x, options):
    inputs, outputs = regression(x)
    mode = Mode(pjl.JaxprLinker(pjl.Options(**options)), "fast_run")
    f = pytensor.function(inputs, outputs, mode=mode)
    for _ in range(2):
        check(f, X)
    assert in_columns(x)


def test_two_clients(x):
    """The function with JAX arrays as results gets a copy on JAX's own client."""
    inputs, outputs = regression(x)
    f = pytensor.function(inputs, outputs, mode="JAXPR")
    g = pytensor.function(inputs, outputs, mode=Mode(pjl.JaxprLinker(pjl.Options(results="jax")), "fast_run"))
    for _ in range(2):
        check(f, X)
        check(g, X)
    check(lambda beta: f(jax.device_put(beta)), X, BETA)


def test_on_the_host(x):
    inputs, outputs = regression(x)
    f = pytensor.function(inputs, outputs, mode="JAXPR")
    check(f, X)
    with pjl.stance("force_host"):
        check(f, X)
    assert in_columns(x)


def test_a_node_on_the_host(x):
    """The program before the break takes the transpose."""
    beta = pt.dvector("beta", shape=(K,))
    mode = Mode(pjl.JaxprLinker(pjl.Options(on_break="ignore")), "fast_run")
    f = pytensor.function([beta], [Doubled()(x @ beta), (x @ beta).sum()], mode=mode)
    assert len(f.vm.runner.plan.batches) > 1
    for _ in range(2):
        doubled, total = f(BETA)
        np.testing.assert_allclose(doubled, 2 * X @ BETA)
        np.testing.assert_allclose(total, (X @ BETA).sum())
    assert in_columns(x)


def test_a_wrong_length(x):
    beta = pt.dvector("beta")
    f = pytensor.function([beta], x @ beta, mode="JAXPR")
    with pytest.raises(ValueError, match=rf"\({N},{K}\) and \(3,1\) not aligned"):
        f(np.ones(3))
    np.testing.assert_allclose(f(BETA), X @ BETA)


def test_reports(x):
    inputs, outputs = regression(x)
    f = pytensor.function(inputs, outputs, mode="JAXPR")
    assert "column-major inputs" in str(pjl.explain(f, passes=True))
    for _ in range(2):
        assert pjl.make_jaxpr(f).in_avals[1].shape == (K, N)
        stages = pjl.stages(f, BETA)
        assert f"f64[{K},{N}]" in str(stages.jaxpr)
        assert stages.profile().rows
        check(f, X)
    assert in_columns(x)


@pytest.mark.parametrize("example", [X[:7000], jax.ShapeDtypeStruct((7000, K), "float64")], ids=["array", "shape"])
def test_an_example_of_the_shared_matrix(x, example):
    """It has the shape that the variable has, as the rest of the user's program sees it."""
    beta = pt.dvector("beta")
    f = pytensor.function([beta], x @ beta, mode="JAXPR")
    assert pjl.make_jaxpr(f, BETA, example).in_avals[1].shape == (K, 7000)
    assert f"shared variable: x.T {7000 * K * 8} bytes" in str(pjl.explain(f, args=[BETA, example]))
    with pytest.raises(TypeError, match="input 'x'"):
        pjl.make_jaxpr(f, BETA, np.ones(3))


def test_the_pure_function_takes_rows(x):
    inputs, outputs = regression(x)
    f = pytensor.function(inputs, outputs, mode="JAXPR")
    check(f, X)
    with jax.enable_x64(True):
        for fn in (jax.jit(f.vm.jit_fn), pjl.as_jax_function(f)):
            for got, want in zip(fn(BETA, 2 * X), expected(2 * X), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-9)
    np.testing.assert_allclose(pjl.device_array(x), X)


def test_copies_of_a_function(x):
    inputs, outputs = regression(x)
    f = pytensor.function(inputs, outputs, mode="JAXPR")
    check(f, X)
    other = pytensor.shared(3 * X, name="other")
    check(f.copy(), X)
    check(f.copy(swap={x: other}), 3 * X)
    check(pickle.loads(pickle.dumps(f)), X)
    check(copy.deepcopy(f), X)
    assert in_columns(x)


def test_a_matrix_on_a_mesh(x):
    inputs, outputs = regression(x)
    f = pytensor.function(inputs, outputs, mode="JAXPR")
    check(f, X)
    pjl.shard(x, jax.make_mesh((1,), ("rows",)), ["rows"])
    for _ in range(2):
        check(f, X)


def test_threads(x):
    """One function wants columns, one rows; both start at once, and one writes between."""
    inputs, outputs = regression(x)
    f = pytensor.function(inputs, outputs, mode="JAXPR")
    g = pytensor.function([], x.sum(), mode="JAXPR")
    failures = []

    def call(run):
        try:
            for _ in range(20):
                run()
        except Exception as error:
            failures.append(error)

    runs = [
        lambda: check(f, X),
        lambda: np.testing.assert_allclose(g(), X.sum()),
        lambda: x.set_value(X),
        lambda: check(f, X),
    ]
    threads = [threading.Thread(target=call, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["columns", "rows", "set", "write", "update", "new", "host"]), min_size=1, max_size=12))
def test_any_order_of_calls(steps):
    x, value = pytensor.shared(X, name="x"), X.copy()
    inputs, outputs = regression(x)
    functions = [pytensor.function(inputs, outputs, mode="JAXPR")]
    in_rows = pytensor.function([], pt.exp(x).sum(), mode="JAXPR")
    update = pytensor.function([], [], updates={x: x + 0.25}, mode="JAXPR")
    for step in steps:
        match step:
            case "columns":
                for f in functions:
                    check(f, value)
            case "rows":
                np.testing.assert_allclose(in_rows(), np.exp(value).sum())
            case "set":
                value = value - 0.5
                x.set_value(value)
            case "write":
                value[5], x.get_value(borrow=True)[5] = 0.5, 0.5
                value = value.copy()
            case "update":
                update()
                value = value + 0.25
            case "new":
                functions.append(pytensor.function(inputs, outputs, mode="JAXPR"))
            case "host":
                np.testing.assert_allclose((x @ BETA).eval(mode="FAST_COMPILE"), value @ BETA)
    np.testing.assert_allclose(x.get_value(), value)
