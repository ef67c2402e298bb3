"""`export` and `load`: what goes into a file comes out of it, in a process that has JAX and not PyTensor."""

import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import Doubled, run_python
from pytensor.graph.utils import MissingInputError
from pytensor.raise_op import Assert
from pytensor.scan.utils import until
from pytensor.tensor.random.type import random_generator_type

import pytensor_jaxpr_linker as pjl

#: Forbids what a machine without PyTensor does not have.
WITHOUT_PYTENSOR = """
import sys

class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pytensor", "pytensor_jaxpr_linker", "pymc", "flatbuffers"):
            raise ImportError(f"{name} is not here")

sys.meta_path.insert(0, Forbid())
import numpy as np
import jax
from jaxpr_artifact import load
"""


def run_elsewhere(code):
    """Run a program in a fresh process without PyTensor, and return what it prints."""
    return run_python(WITHOUT_PYTENSOR + textwrap.dedent(code))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "function.jaxpr"


def matrix_and_vector():
    return pt.dmatrix("x"), pt.dvector("w")


# The same values


def test_compiled_function_in_another_process(path):
    x, w = matrix_and_vector()
    f = pytensor.function([x, w], [pt.exp(x @ w), x.sum()], mode="JAXPR", name="predict")
    pjl.export(f, path=path, dims={"x": "n, 3"}, examples={"w": np.ones(3)})
    out = run_elsewhere(
        f"""
        predict = load({str(path)!r})
        assert jax.config.jax_enable_x64 is False
        for n in (1, 4):
            values, total = predict(np.arange(3.0 * n).reshape(n, 3) / 9, w=[0.1, 0.2, 0.3])
            print(values.dtype, *values.tolist(), total)
        assert "pytensor" not in sys.modules
        """
    )
    for line, n in zip(out.splitlines(), (1, 4), strict=True):
        dtype, *numbers = line.split()
        values, total = f(np.arange(3.0 * n).reshape(n, 3) / 9, [0.1, 0.2, 0.3])
        assert dtype == "float64"
        np.testing.assert_allclose([float(v) for v in numbers], [*values, total], rtol=1e-14)


def test_environment_that_has_jax_and_numpy_alone(path, tmp_path):
    """The interpreter has no site-packages: a folder has what `pip install jax` brings, and the second package."""
    y = pt.dvector("y")
    pjl.export([y], y[y > 0].sum(), path=path, vjp_order=1)
    site = Path(jax.__file__).parents[1]
    for name in ("jax", "jaxlib", "numpy", "numpy.libs", "ml_dtypes", "opt_einsum", "scipy", "scipy.libs"):
        if (site / name).exists():
            (tmp_path / name).symlink_to(site / name)
    (tmp_path / "jaxpr_artifact").symlink_to(Path(pjl.__file__).parents[1] / "jaxpr_artifact")
    code = f"""
        import importlib.util, sys
        sys.path.append({str(tmp_path)!r})
        assert all(importlib.util.find_spec(name) is None for name in ("pytensor", "pytensor_jaxpr_linker", "pymc"))
        import jax
        from jaxpr_artifact import load
        f = load({str(path)!r})
        jax.config.update("jax_enable_x64", True)
        print(f([1.0, -2.0, 3.0]), jax.grad(f.jax)(jax.numpy.array([1.0, -2.0, 3.0])).tolist())
        """
    command = [sys.executable, "-I", "-S", "-c", textwrap.dedent(code)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.stdout == "4.0 [1.0, 0.0, 1.0]\n", run.stderr


x, M = pt.dvector("x"), pt.dmatrix("M")
KINDS = {
    "scan": (x, pytensor.scan(lambda b, a: a / 2 + b, x, [pt.zeros((), "float64")], return_updates=False), "n"),
    "while": (
        x,
        pytensor.scan(lambda b: (b * 2, until(b > 9)), outputs_info=[abs(x[0]) + 1], n_steps=20, return_updates=False)[
            -1
        ],
        "n",
    ),
    "slices": (x, [x[1:] - x[:-1], x[::-1], x.mean(), pt.sort(x), x[x > 0].sum()], "n"),
    "gradient": (x, pytensor.grad(pt.gammaln(x**2 + 1).sum(), x), "n"),
    "cholesky": (M, pt.linalg.cholesky(M @ M.T + pt.eye(M.shape[0])), "n, n"),
    "slogdet": (M, pytensor.grad(pt.linalg.slogdet(M @ M.T + pt.eye(M.shape[0]))[1], M), "n, n"),
    "eigh": (M, pt.linalg.eigh(M + M.T)[0], "3, 3"),
}


@pytest.mark.parametrize(("variable", "outputs", "shape"), KINDS.values(), ids=KINDS)
def test_kinds_of_graphs_at_several_lengths(variable, outputs, shape, path):
    """For all four platforms, compared with FAST_COMPILE on this one."""
    loaded = pjl.export([variable], outputs, path=path, dims={variable.name: shape})
    reference = pytensor.function([variable], outputs, mode="FAST_COMPILE")
    for n in (3,) if "n" not in shape else (2, 3, 5):
        value = np.random.default_rng(n).normal(size=(n,) * variable.ndim)
        for got, want in zip(jax.tree.leaves(loaded(value)), jax.tree.leaves(reference(value)), strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


def test_products_with_a_single_column(path):
    """The column is a vector in the program, at any number of rows."""
    column, batch = pt.tensor("column", shape=(None, 1)), pt.tensor("batch", shape=(None, None, 1))
    outputs = [M @ column, (M @ column)[:, 0], M.T @ (M @ column), batch.swapaxes(1, 2) @ batch]
    inputs, dims = [M, column, batch], {"M": "n, k", "column": "k, 1", "batch": "m, q, 1"}
    loaded = pjl.export(inputs, outputs, path=path, dims=dims)
    reference = pytensor.function(inputs, outputs, mode="FAST_COMPILE")
    rng = np.random.default_rng(1)
    for n, k in ((5, 3), (1, 1), (4, 1), (1, 2)):
        values = [rng.normal(size=shape) for shape in ((n, k), (k, 1), (3, n, 1))]
        for got, want in zip(loaded(*values), reference(*values), strict=True):
            assert got.dtype == want.dtype
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize("make", ["graph", "compiled", "as_jax_function"])
def test_what_is_exported(make, path):
    x, w = matrix_and_vector()
    y = pt.exp(x @ w)
    y.name = "growth"
    given = {
        "graph": lambda: ([x, w], y),
        "compiled": lambda: (pytensor.function([x, w], y, mode="JAXPR"),),
        "as_jax_function": lambda: (pjl.as_jax_function([x, w], y),),
    }[make]()
    loaded = pjl.export(*given, path=path, examples=[np.ones((2, 3)), np.ones(3)])
    assert str(inspect.signature(loaded)) == "(x, w)"
    value = loaded(np.ones((2, 3)), w=np.ones(3))
    assert isinstance(value, np.ndarray)
    np.testing.assert_allclose(value, np.exp([3.0, 3.0]))


def test_outputs_come_as_they_were_asked_for(path):
    x = pt.dscalar("x")
    assert pjl.export([x], x + 1, path=path)(1) == 2
    assert pjl.export([x], [x + 1], path=path)(1) == [2]
    assert pjl.export([x], [x + 1, x], path=path)(1) == [2, 1]


@pytest.mark.parametrize("gradient", ["pytensor", "jax"])
def test_derivatives(gradient, path):
    x = pt.dvector("x")
    data = np.random.default_rng(0).normal(size=(300, 40))  # more than a program holds
    logp = -((pt.constant(data) @ pt.exp(x)) ** 2).sum()
    loaded = pjl.export([x], logp, path=path, examples=[np.ones(40)], vjp_order=2, gradient=gradient)
    assert loaded.header.constants and all(s < 60_000 for n, s in loaded.sizes.items() if n.startswith("programs/"))
    by_hand = lambda x: -((data @ jax.numpy.exp(x)) ** 2).sum()  # noqa: E731
    point = np.linspace(-1, 1, 40)
    with jax.enable_x64(True):
        np.testing.assert_allclose(jax.grad(loaded.jax)(point), jax.grad(by_hand)(point), rtol=1e-12)
        along = lambda f: jax.grad(lambda x: jax.grad(f)(x) @ point)  # noqa: E731
        np.testing.assert_allclose(along(loaded.jax)(point), along(by_hand)(point), rtol=1e-10)
        np.testing.assert_allclose(jax.jit(jax.grad(loaded.jax))(point), jax.grad(by_hand)(point), rtol=1e-12)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("order", [0, 1])
def test_no_derivative_that_was_not_asked_for(order, batched, path):
    x = pt.dvector("x")
    loaded = pjl.export([x], (x**2).sum(), path=path, examples=[np.ones(2)], vjp_order=order, batched=batched)
    asked = jax.grad(loaded.jax)
    if order:
        asked = jax.grad(lambda x: jax.grad(loaded.jax)(x).sum())
    with pytest.raises(TypeError, match=f"order {order}: export it with vjp_order={order + 1}"), jax.enable_x64(True):
        asked(np.ones(2))


def test_batched(path):
    x, i = pt.dvector("x"), pt.lscalar("i")
    f = pytensor.function([x, i], [x[i] * 2, x.sum()], mode="JAXPR")
    loaded = pjl.export(f, path=path, examples=[np.ones(3)], batched=True)
    values, totals = loaded.batched(np.arange(12.0).reshape(4, 3), np.array([0, 1, 2, 0]))
    np.testing.assert_array_equal(values, [0, 8, 16, 18])
    np.testing.assert_array_equal(totals, [3, 12, 21, 30])
    with pytest.raises(IndexError, match="out of bounds") as raised:
        loaded.batched(np.ones((4, 3)), np.array([0, 1, 7, 9]))
    assert "in row 2 of the batch" in raised.value.__notes__[0]
    with pytest.raises(TypeError, match="batch is 4 for x and 3 for axis 0 of i"):
        loaded.batched(np.ones((4, 3)), np.zeros(3, int))


def test_batches_that_share_arguments(path):
    """An argument without the axis of the batch, by its rank, is the same in each row: arrays, scalars, keys of both kinds."""
    x, a = pt.dmatrix("x"), pt.dscalar("a")
    rng = random_generator_type("rng")
    following, noise = pt.random.normal(rng=rng, return_next_rng=True)
    weights = pytensor.shared(np.array([1.0, -1.0]), name="weights")
    how = {"dims": {"x": "n, 2", "weights": "2"}, "batched": True}
    loaded = pjl.export([x, a, rng], [x @ weights * a, noise, following], path, **how)
    xs, scales = np.random.default_rng(0).normal(size=(3, 4, 2)), np.arange(3.0)
    keys = jax.random.split(jax.random.key(1), 3)
    for rows, factor, rng_, draws in (
        (xs[0], scales, keys, 3),
        (xs, 2.0, keys, 3),
        (xs, scales, keys[0], 1),
        (xs[0], 2.0, jax.random.key_data(keys), 3),
        (xs, 2, jax.random.key_data(keys[0]), 1),
    ):
        product, drawn, after = loaded.batched(rows, a=factor, rng=rng_)
        wanted = (rows @ [1.0, -1.0]) * np.reshape(factor, (-1, 1))
        np.testing.assert_allclose(product, np.broadcast_to(wanted, (3, 4)))
        assert drawn.shape == (3,) and len(set(drawn)) == draws
        assert len(after) == 3 and after.dtype == rng_.dtype
    with pytest.raises(TypeError, match="give at least one of x, a, rng one more axis"):
        loaded.batched(xs[0], 1.0, keys[0])
    with pytest.raises(TypeError, match=r"a has 1 axis, \(batch,\), and its value has shape \(3, 3\)"):
        loaded.batched(xs, np.ones((3, 3)), keys)
    with pytest.raises(TypeError, match="batch is 3 for x and 2 for axis 0 of a"):
        loaded.batched(xs, np.ones(2), keys[0])


@pytest.mark.parametrize("gradient", ["pytensor", "jax"])
def test_vmap_of_derivatives(gradient, path):
    """`data @ weights` is shared by the rows of a batch, also where its derivative is asked for."""
    x, y = pt.dvector("x"), pt.dscalar("y")
    weights = pytensor.shared(np.arange(1.0, 4.0), name="weights")
    data = np.random.default_rng(0).normal(size=(3_000, 3))
    graph = [(pt.exp(x) * weights).sum() * y, pt.constant(data) @ weights]
    how = {"examples": [np.ones(3), 1.0], "vjp_order": 2, "batched": True, "gradient": gradient}
    loaded = pjl.export([x, y], graph, path=path, **how)
    by_hand = lambda x, y, w: ((jax.numpy.exp(x) * w).sum() * y, data @ w)  # noqa: E731
    xs, ys, w = np.random.default_rng(1).normal(size=(4, 3)), np.arange(4.0), np.arange(1.0, 4.0)
    with jax.enable_x64(True):
        total = lambda f: lambda x, y: sum(z.sum() for z in f(x, y))  # noqa: E731
        ours, theirs = total(loaded.jax), total(lambda x, y: by_hand(x, y, w))
        for transform, args in (
            (jax.vmap, (xs, ys)),
            (lambda f: jax.vmap(f, (0, None)), (xs, 2.0)),
            (lambda f: jax.vmap(jax.grad(f, (0, 1))), (xs, ys)),
            (lambda f: jax.jit(jax.vmap(jax.grad(f))), (xs, ys)),
            (lambda f: jax.grad(lambda x, y: jax.vmap(f)(x, y).sum()), (xs, ys)),
            (lambda f: jax.vmap(jax.jacrev(jax.grad(f))), (xs, ys)),
        ):
            pairs = zip(*(jax.tree.leaves(transform(f)(*args)) for f in (ours, theirs)), strict=True)
            for got, want in pairs:
                np.testing.assert_allclose(got, want, rtol=1e-12)
        twice = lambda f: jax.vmap(jax.vmap(f, (0, None)), (None, 0))(xs, ys)  # noqa: E731
        np.testing.assert_allclose(twice(ours), twice(theirs), rtol=1e-12)
        by_state = lambda f: jax.grad(lambda w: jax.vmap(lambda x, y: f(w, x, y))(xs, ys).sum())(w)  # noqa: E731
        ours = lambda w, x, y: sum(z.sum() for z in loaded.pure({"weights": w}, x, y)[0])  # noqa: E731
        theirs = lambda w, x, y: sum(z.sum() for z in by_hand(x, y, w))  # noqa: E731
        np.testing.assert_allclose(by_state(ours), by_state(theirs), rtol=1e-12)
        with pytest.raises(NotImplementedError, match="not over its state"):
            jax.vmap(lambda w: ours(w, xs[0], 1.0))(np.ones((2, 3)))


def test_batched_when_it_can_not_be(path):
    x, s = pt.dvector("x"), pytensor.shared(0.0, name="s")
    with pytest.raises(ValueError, match="this one updates s"):
        f = pytensor.function([x], x + s, updates={s: s + 1}, mode="JAXPR")
        pjl.export(f, path=path, batched=True)
    with pytest.raises(TypeError, match="batched=True"):
        pjl.export([x], x, path=path).batched(np.ones((2, 2)))
    with pytest.raises(ValueError, match="has none"):
        pjl.export([], s + 1, path=path, batched=True)


# State


def stateful():
    x, total = pt.dvector("x"), pytensor.shared(np.zeros(3), name="total")
    count = pytensor.shared(0, name="count")
    updates = {total: total + x, count: count + 1}
    return pytensor.function([x], total.sum() + count, updates=updates, mode="JAXPR", name="step")


def test_state_is_updated(path):
    f = stateful()
    loaded = pjl.export(f, path=path, examples=[np.ones(3)])
    for x in ([1, 2, 3], [0, 1, 0]):
        assert loaded(x) == f(x)
    np.testing.assert_array_equal(loaded.state["total"], [1, 3, 3])
    assert loaded.state["count"] == 2
    assert pjl.load(path).state["count"] == 0


def test_pure_function_of_the_state(path):
    loaded = pjl.export(stateful(), path=path, examples=[np.ones(3)], vjp_order=1)
    with jax.enable_x64(True):
        start = dict(loaded.state)

        def step(state, x):
            output, state = loaded.pure(state, x)
            return state, output

        state, outputs = jax.lax.scan(step, start, np.ones((4, 3)))
        np.testing.assert_array_equal(outputs, [0, 4, 8, 12])
        np.testing.assert_array_equal(state["total"], [4, 4, 4])
        by_state = jax.grad(lambda total: loaded.pure({**start, "total": total}, np.ones(3))[0])
        np.testing.assert_array_equal(by_state(np.ones(3)), np.ones(3))
    assert loaded.state["count"] == 0
    with pytest.raises(TypeError, match="The state has the names"):
        loaded.pure({}, np.ones(3))


def test_state_keeps_its_values_when_a_check_fails(path):
    i, s = pt.lscalar("i"), pytensor.shared(np.zeros(3), name="s")
    f = pytensor.function([i], s[i], updates={s: s + 1}, mode="JAXPR")
    loaded = pjl.export(f, path=path)
    loaded(0)
    with pytest.raises(IndexError, match="out of bounds for axis 0 with size 3"):
        loaded(3)
    np.testing.assert_array_equal(loaded.state["s"], np.ones(3))


def test_new_values_of_the_state(path):
    loaded = pjl.export(stateful(), path=path, examples=[np.ones(3)])
    loaded.state["total"] = [1, 2, 3]
    assert loaded([0, 0, 0]) == 6
    with pytest.raises(TypeError, match=r"total has shape \(3,\)"):
        loaded.state["total"] = np.ones(2)
    with pytest.raises(TypeError, match="count has dtype int64"):
        loaded.state["count"] = np.float64(2)
    with pytest.raises(KeyError, match="no state 'other'; it has total, count"):
        loaded.state["other"] = 1
    with pytest.raises(TypeError, match="as many values"):
        del loaded.state["count"]


@pytest.mark.parametrize(
    ("dims", "shapes"),
    [
        ({}, r"\(2,\), has shape \(x_0 \+ 2,\)"),
        ({"x": "n", "w": "n"}, r"\(n,\), has shape \(2\*n,\)"),
        ({"x": "1"}, r"\(2,\), has shape \(3,\)"),
    ],
)
def test_an_update_of_another_shape(dims, shapes, path):
    x, w = pt.dvector("x"), pytensor.shared(np.zeros(2), name="w")
    f = pytensor.function([x], w.sum(), updates={w: pt.concatenate([w, x])}, mode="JAXPR")
    with pytest.raises(TypeError, match=f"The update of w, which has shape {shapes}: ") as raised:
        pjl.export(f, path=path, dims=dims)
    assert f"{__file__}:" in str(raised.value)
    assert not path.exists()


def test_an_update_of_a_symbolic_shape(path):
    x, w = pt.dvector("x"), pytensor.shared(np.zeros(2), name="w")
    f = pytensor.function([x], w.sum(), updates={w: pt.concatenate([x, w[:2]])[2:]}, mode="JAXPR")
    loaded = pjl.export(f, path=path, dims={"x": "2*n", "w": "2*n"})
    loaded([1.0, 2.0])
    np.testing.assert_array_equal(loaded.state["w"], [0, 0])


def test_state_that_nothing_reads_is_left_out(path):
    x, w = pt.dvector("x"), pytensor.shared(np.ones(3), name="w", shape=(3,))
    unread, rng = w.shape[0], pytensor.shared(np.random.default_rng(0), name="rng")
    next_count = (count := pytensor.shared(0, name="count")) + 1
    f = pytensor.function([x], x * unread, updates={count: next_count, rng: rng}, mode="JAXPR")
    loaded = pjl.export(f, path, vjp_order=1)
    assert set(loaded.state) == {"count", "rng"}  # an update is read by who looks at the state
    np.testing.assert_array_equal(loaded([1.0, 2.0]), [3, 6])
    loaded = pjl.export([x], x * unread, path)
    assert not loaded.state and not loaded.header.fixed
    np.testing.assert_array_equal(loaded([1.0, 2.0]), [3, 6])


def test_draws_are_those_of_as_jax_function(path):
    rng = pytensor.shared(np.random.default_rng(3), name="rng")
    following, draws = pt.random.normal(size=(4,), rng=rng, return_next_rng=True)
    f = pytensor.function([], draws, updates={rng: following}, mode="JAXPR")
    loaded = pjl.export(f, path=path)
    (name,) = loaded.state
    fn, key = pjl.as_jax_function(f), loaded.state[name]
    assert loaded.header.state[0].is_key
    for _ in range(2):
        with jax.enable_x64(True):
            want, key = fn(key)
        np.testing.assert_array_equal(loaded(), want)
    loaded.state[name] = jax.random.key(1)
    first = loaded()
    loaded.state[name] = jax.random.key(1)
    np.testing.assert_array_equal(loaded(), first)


def test_transformations_with_32_bits(path):
    x = pt.dvector("x")
    loaded = pjl.export([x], x * 2, path=path)
    with pytest.raises(TypeError, match="computes with 64 bits"):
        jax.jit(loaded.jax)(np.ones(2))
    assert loaded.jax(np.ones(2)).dtype == loaded(np.ones(2)).dtype == "float64"
    x = pt.fvector("x")
    assert jax.jit(pjl.export([x], x * 2, path=path).jax)(np.ones(2, "float32")).dtype == "float32"


# Checks and arguments


@pytest.mark.parametrize("checks", [True, False])
def test_checks_raise_their_exceptions_elsewhere(checks, path):
    x = pt.dvector("x")
    y = pt.linalg.cholesky(pt.outer(x, x) + pt.eye(2)) * Assert("x must be small")(x.sum(), x.sum() < 9)
    pjl.export([x], y.sum(), path=path, examples=[np.ones(2)], checks=checks)
    out = run_elsewhere(
        f"""
        f = load({str(path)!r})
        print(np.isfinite(f([1, 2])))
        try:
            print(np.isfinite(f([8, 2])))
        except AssertionError as error:
            print(error, *error.__notes__)
        """
    ).splitlines()
    assert out[0] == "True"
    assert out[1].startswith("x must be small Raised by Assert" if checks else "True")


BAD_ARGUMENTS = {
    "missing": (lambda f: f(np.ones((2, 3))), "missing a required argument: 'w'"),
    "many": (lambda f: f(1, 2, 3), "too many positional"),
    "unknown": (lambda f: f(np.ones((2, 3)), z=1), "missing a required argument: 'w'|unexpected"),
    "dtype": (lambda f: f(np.ones((2, 3)), np.ones(3, complex)), "w has dtype float64, and its value has complex128"),
    "text": (lambda f: f(np.ones((2, 3)), "three"), "w takes an array of dtype float64"),
    "ragged": (lambda f: f([[1], [2, 3]], [1, 2, 3]), "x takes an array of dtype float64"),
    "none": (lambda f: f(None, [1, 2, 3]), "x takes an array of dtype float64"),
    "object": (lambda f: f(np.ones((2, 3)), np.array([None] * 3)), "w has dtype float64, and its value has object"),
    "rank": (lambda f: f(np.ones(3), np.ones(3)), r"x has 2 axes, \(n, m\), and its value has shape \(3,\)"),
    "size": (lambda f: f(np.ones((2, 3)), np.ones(4)), "m is 3 for x and 4 for axis 0 of w"),
    "empty": (lambda f: f(np.ones((0, 3)), np.ones(3)), "n is 0 for x"),
    "key": (lambda f: f(np.ones((2, 3)), jax.random.key(1)), "w takes numbers"),
}


@pytest.mark.parametrize(("call", "message"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
def test_bad_arguments(call, message, path):
    x, w = matrix_and_vector()
    loaded = pjl.export([x, w], x @ w, path=path, dims={"x": "n, m", "w": "m"})
    loaded._backend.jitted["call"] = None  # nothing runs
    with pytest.raises(TypeError, match=message):
        call(loaded)


def test_numbers_are_cast_as_pytensor_does(path):
    x, i = pt.tensor("x", dtype="float32", shape=(2,)), pt.iscalar("i")
    loaded = pjl.export([x, i], x * i, path=path)
    np.testing.assert_array_equal(loaded([0.5, 2], 3), np.float32([1.5, 6]))
    np.testing.assert_array_equal(loaded(np.array([1, 2], "int8"), True), [1, 2])
    for wrong in ((np.ones(2), 1), ([1, 2], np.int64(3)), ([1, 2], 2.5), ([1, 2], 2**40)):
        with pytest.raises(TypeError, match=r"x has dtype float32|i has dtype int32|i takes an array"):
            loaded(*wrong)


def test_names_that_are_none(path):
    inputs = [pt.dscalar(), pt.dscalar("beta[0]"), pt.dscalar("lambda"), pt.dscalar("x"), pt.dscalar("x")]
    loaded = pjl.export(inputs, sum(inputs[1:], inputs[0]), path=path)
    assert str(inspect.signature(loaded)) == "(arg0, beta_0_, _lambda, x, x_)"
    assert loaded(1, 2, 3, x=4, x_=5) == 15


# Shapes


def test_symbols(path):
    x, y = pt.dvector("x"), pt.dvector("y")
    with pytest.raises(Exception) as raised:
        pjl.export([x, y], x + y, path=path)
    assert "dims={'x': 'n', 'y': 'n'}" in "".join(raised.value.__notes__)
    assert not path.exists()
    loaded = pjl.export([x, y], x + y, path=path, dims={"x": "n", "y": ("n",)})
    np.testing.assert_array_equal(loaded(np.ones(4), np.ones(4)), np.full(4, 2))
    loaded = pjl.export([x], pt.exp(x), path=path)
    assert loaded.header.arguments[0].shape == ("x_0",)


def test_expressions_and_constraints(path):
    x, y = pt.dvector("x"), pt.dvector("y")
    loaded = pjl.export([x, y], x.reshape((2, -1)) + y, path=path, dims={"x": "2*n", "y": "n"}, constraints=["n >= 3"])
    np.testing.assert_array_equal(loaded(np.zeros(6), np.arange(3)), [[0, 1, 2]] * 2)
    again = pjl.load(path)
    assert again.header.constraints == ("n >= 3",)
    for wrong in ((np.zeros(5), np.zeros(3)), (np.zeros(4), np.zeros(2))):
        with pytest.raises(TypeError, match="n is"):
            again(*wrong)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dims": {"z": "n"}}, TypeError, "dims names 'z', and the function takes x"),
        ({"dims": {"x": "n, m"}}, ValueError, "x has 1 axis, and dims gives it 2 axes"),
        ({"dims": {"x": "n +"}}, ValueError, "is none"),
        ({"dims": {"x": "ñ"}}, ValueError, "gives x the length 'ñ': symbols consist of ASCII"),
        ({"examples": {"z": 1}}, TypeError, "examples names 'z'"),
        ({"examples": [1, 2]}, TypeError, "There are 2 examples"),
        ({"examples": [np.ones((2, 2))]}, TypeError, r"its example has shape \(2, 2\)"),
        ({"static": {"x": 1}}, TypeError, "static names 'x', which does not determine a shape"),
        ({"vjp_order": 3}, ValueError, "vjp_order is 0, 1 or 2"),
        ({"gradient": "none"}, ValueError, 'gradient is "pytensor" or "jax"'),
        ({"platforms": "cpu"}, ValueError, "platforms is a sequence"),
        ({"platforms": ()}, ValueError, "platforms is a sequence"),
        ({"platforms": None}, ValueError, "platforms is a sequence"),
        ({"platforms": ["CPU"]}, ValueError, "among 'cpu', 'cuda', 'rocm', 'tpu', not 'CPU'"),
        ({"platforms": ["cpu", "metal"]}, ValueError, "not 'metal'"),
        ({"platforms": ["gpu"]}, ValueError, r"not 'gpu'. GPUs are 'cuda' and 'rocm'"),
        ({"platforms": [0]}, ValueError, "not 0"),
    ],
)
def test_wrong_options(options, error, message, path):
    with pytest.raises(error, match=message):
        pjl.export([x := pt.dvector("x")], x, path=path, **options)
    assert not path.exists()


def test_wrong_static_shape(path):
    x = pt.tensor("x", shape=(3, None), dtype="float64")
    with pytest.raises(ValueError, match=r"static shape \(3, None\)"):
        pjl.export([x], x, path=path, dims={"x": "4, n"})
    assert pjl.export([x], x, path=path, dims={"x": "_, n"}).header.arguments[0].shape == (3, "n")


def test_inputs_that_determine_shapes(path):
    n, x = pt.lscalar("n"), pt.dscalar("x")
    with pytest.raises(TypeError, match=r"n determines a shape.*static=\{'n': 5\}"):
        pjl.export([n, x], pt.arange(n) * x, path=path)
    loaded = pjl.export([n, x], pt.arange(n) * x, path=path, static={"n": 4})
    np.testing.assert_array_equal(loaded(2.0), [0, 2, 4, 6])
    assert str(inspect.signature(loaded)) == "(x)"
    assert "fixed       n  4" in str(loaded)


# What is refused


def test_graph_with_host_steps(path):
    x = pt.dvector("x")
    y = Doubled()(x + 1)
    y.name = "doubled"
    with pytest.raises(pjl.GraphBreakError, match=r"Doubled.*'doubled'.*no emission rule"):
        pjl.export([x], y * 2, path=path)
    with pytest.warns(pjl.GraphBreakWarning):
        f = pytensor.function([x], y * 2, mode="JAXPR")
    with pytest.raises(pjl.GraphBreakError, match="no emission rule"):
        pjl.export(f, path=path)
    assert not path.exists()


@pytest.mark.parametrize("checks", [True, False])
def test_what_a_rule_refuses(checks, path):
    x = pt.dvector("x")
    with pytest.raises(pjl.GraphBreakError, match="JX002"):
        pjl.export([x], pt.arange(x.sum().astype("int64")), path=path, checks=checks, examples=[np.ones(2)])


def test_missing_inputs_and_others(path):
    x, y = pt.dvector("x"), pt.dvector("y")
    with pytest.raises(MissingInputError, match="y"):
        pjl.export([x], x + y, path=path)
    with pytest.raises(TypeError, match="export takes a function compiled"):
        pjl.export(3, path=path)


def test_platform_that_jax_does_not_lower_for(path):
    x = pt.dmatrix("x")
    y = pt.linalg.eig(x)[0]
    with pytest.raises(NotImplementedError, match=r"JAX can't lower .* for .*tpu.*platforms=\("):
        pjl.export([x], y, path=path, examples=[np.eye(2)], platforms=("cpu", "tpu"))
    loaded = pjl.export([x], y, path=path, examples=[np.eye(2)], platforms=("cpu",))
    np.testing.assert_allclose(loaded(np.eye(2)), [1, 1])


@pytest.mark.parametrize("platforms", [("cpu", "cuda", "rocm", "tpu"), ("cuda",), ("cpu", "rocm")])
def test_a_library_call_that_jax_does_not_promise_to_keep(platforms, path):
    x = pt.dmatrix("x")
    y = pt.linalg.eig(x)[0]
    with pytest.raises(NotImplementedError, match=r"JAX can't lower .* would call .*hybrid_eig_real") as raised:
        pjl.export([x], y, path=path, examples=[np.eye(2)], platforms=platforms)
    message = str(raised.value)
    assert all(platform in message for platform in platforms if platform != "cpu")
    assert ("platforms=('cpu',) leaves" in message) == ("cpu" in platforms)
    assert f"Made at {__file__}:" in message


def test_platforms_in_any_container(path):
    x = pt.dvector("x")
    for given in ((p for p in ["tpu", "cpu"]), {"cpu", "tpu"}, ["tpu", "cpu", "tpu"]):
        assert pjl.export([x], x, path=path, platforms=given).header.platforms == ("cpu", "tpu")


def test_a_decomposition_that_jax_has_on_the_cpu_alone(path):
    """For all platforms it is a loop of basic operations."""
    x = pt.dmatrix("x")
    value = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.0], [0.5, 0.0, 1.0]])
    t, z = pjl.export([x], list(pt.linalg.schur(x)), path=path, examples=[value])(value)
    np.testing.assert_allclose(z @ t @ z.T, value, atol=1e-12)
    np.testing.assert_allclose(np.tril(t, -1), 0, atol=1e-12)


# The older file


def test_a_failed_export_leaves_the_older_file(path):
    """Also if the new file can't be loaded: the header of an artifact has shorter names than PyTensor allows."""
    x, long = pt.dvector("x"), pt.dvector("x" * 300)
    pjl.export([x], x.sum(), path=path)
    for given, options, error in (
        (([x], x + 1), {"dims": {"x": "ñ"}}, ValueError),
        (([long], long + 1), {}, pjl.ArtifactError),
    ):
        with pytest.raises(error) as raised:
            pjl.export(*given, path=path, **options)
        assert pjl.load(path)([1.0, 2.0]) == 3
        assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert str(raised.value).startswith(f"{path}: ") and "Nothing was written" in str(raised.value)


def test_a_failed_export_for_iree_leaves_the_older_file(tmp_path, monkeypatch):
    pytest.importorskip("iree.compiler"), pytest.importorskip("iree.runtime")
    from pytensor_jaxpr_linker.artifacts.iree import compiled

    def refuse(path):
        raise pjl.ArtifactError(path, "The runtime does not take it.")

    x, path = pt.tensor("x", shape=(2,), dtype="float32"), tmp_path / "f.vmfb"
    pjl.export([x], x.sum(), path)
    monkeypatch.setattr(compiled, "load_iree", refuse)
    with pytest.raises(pjl.ArtifactError, match=r"does not take it\. Nothing was written") as raised:
        pjl.export([x], x + 1, path)
    assert raised.value.path == str(path)
    assert pjl.load_iree(path)([1.0, 2.0]) == 3
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


# What is in the file


def test_equal_exports_are_equal_files(tmp_path):
    x, w = matrix_and_vector()
    for name in ("a", "b"):
        f = pytensor.function([x, w], pt.exp(x @ w), mode="JAXPR", name="f")
        pjl.export(f, path=tmp_path / name, dims={"x": "n, 3"}, examples={"w": np.ones(3)}, vjp_order=2, batched=True)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_no_word_of_the_machine(path):
    x, w = matrix_and_vector()
    pjl.export([x, w], pt.exp(x @ w)[0], path=path, examples=[np.ones((2, 3)), np.ones(3)], vjp_order=1, batched=True)
    content = path.read_bytes()
    for word in (b".py", b"/site-packages", b"/home", str(path.parent).encode(), __file__.encode()):
        assert word not in content
    assert jax.config.jax_traceback_in_locations_limit != 0


def test_print_says_what_it_was_made_of(path):
    loaded = pjl.export(stateful(), path=path, dims={"x": "3"}, vjp_order=1, platforms=("cpu", "tpu"))
    text = str(loaded)
    for part in ("step, an artifact", "PyTensor 3.", "cpu, tpu", "x  float64 (3,)", "count", "updated", "order 1"):
        assert part in text
    assert repr(loaded).startswith("<step(x) loaded from ")


def test_large_state_is_mapped(path):
    out_of = pytensor.shared(np.random.default_rng(0).random((5_000, 5_000)), name="weights")  # 200 MB
    x = pt.dvector("x")
    f = pytensor.function([x], out_of @ x, mode="JAXPR")
    loaded = pjl.export(f, path=path, examples=[np.ones(5_000)])
    assert sum(size for name, size in loaded.sizes.items() if name.startswith("programs/")) < 1e6
    want = float(f(np.ones(5_000))[7])
    del loaded, f
    out = run_elsewhere(
        f"""
        def anonymous():  # memory that is no file's, in MB
            (line,) = [x for x in open("/proc/self/status") if x.startswith("RssAnon")]
            return int(line.split()[1]) / 1e3
        jax.device_put(1.0)
        before = anonymous()
        f = load({str(path)!r})
        print(anonymous() - before, f(np.ones(5_000))[7], anonymous() - before)
        """
    )
    loading, value, running = map(float, out.split())
    np.testing.assert_allclose(value, want, rtol=1e-12)
    assert loading < 20
    assert running < 100


def test_the_chapter_of_the_documentation_runs(tmp_path, monkeypatch, capsys):
    chapter = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    maker, user = re.findall(r"```python\n(.*?)```", chapter, flags=re.DOTALL)
    printed = re.search(r"```\n(predict, .*?)```", chapter, flags=re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    exec(maker, {})
    found = capsys.readouterr().out
    without_numbers = lambda text: re.sub(r"[\d.]+", "", text)  # noqa: E731
    assert without_numbers(found) == without_numbers(printed)
    run_elsewhere(f"import os\nos.chdir({str(tmp_path)!r})\n" + user)


def test_reports_on_a_loaded_function(tmp_path):
    """`explain`, `stages` and `make_jaxpr` take what `load` returns."""
    x, scale = pt.vector("x", dtype="float64"), pt.scalar("scale", dtype="float64")
    weights = pytensor.shared(np.ones(3), name="weights")
    decay = pt.exp(-x / scale)
    decay.name = "decay"
    f = pytensor.function([x, scale], [decay, x[2] * weights.sum()], updates={weights: weights + 1}, mode="JAXPR")
    loaded = pjl.export(f, path=tmp_path / "decay.jaxpr")
    told = pjl.explain(loaded)
    assert [v.name for v in told.batches[0].inputs] == ["x", "scale", "weights"]
    assert [v.type for v in told.batches[0].outputs] == ["float64[x_0]", "float64[]", "float64[3]"]
    assert {("Exp", "decay"), ("True_div", ""), ("Neg", "")} <= {(node.op, node.name) for node in told.nodes}
    assert "IndexError" in told.batches[0].checks[0]
    told.save(tmp_path / "page.html")
    view = pjl.stages(loaded, np.ones(3), 2.0)
    assert "stablehlo.exponential" in view.stablehlo[0] and "HloModule" in view.hlo[0] and view.cost[0]["flops"] > 0
    assert [v.aval.shape for v in pjl.make_jaxpr(loaded, np.ones(4), 2.0).invars] == [(4,), (), (3,)]
    with pytest.raises(TypeError, match="give examples of x, scale"):
        pjl.stages(loaded)


def test_reports_on_a_loaded_function_of_fixed_shapes(tmp_path):
    x = pt.vector("x", shape=(3,), dtype="float64")
    loaded = pjl.export([x], x.sum(), path=tmp_path / "sum.jaxpr")
    assert pjl.stages(loaded).jaxpr[0].out_avals[0].shape == ()
    assert pjl.explain(loaded).batches[0].guards == ()
