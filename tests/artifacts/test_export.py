"""`export` and `load`: what goes into a file comes out of it, in a process that has JAX and not PyTensor."""

import inspect
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import run_python
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
    """An argument whose rank lacks the batch is the same in each row: arrays, scalars, keys of both kinds."""
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
