"""Tensors with named dimensions: as inputs, results, shared variables and constants of one program, beside FAST_COMPILE."""

from __future__ import annotations

import copy
import pickle

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytensor.xtensor as px
import pytensor.xtensor.random as pxr
import pytest
import xarray as xr
from helpers import FULLGRAPH, Doubled, compare, run_python
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.conditional import ifelse
from pytensor.gradient import zero_grad

import pytensor_jaxpr_linker as pjl

# PyTensor's C code complains where no BLAS is installed.
pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

X = np.arange(9.0).reshape(3, 3)
W = np.array([0.5, -1.0, 2.0])


#: Mode JAXPR for graphs that may have breaks.
ANY = Mode(pjl.JaxprLinker(pjl.Options(on_break="ignore")), "fast_run")


def matrix(name: str = "x", **options) -> px.type.XTensorVariable:
    """Return an input with the dimensions a and b."""
    return px.xtensor(name, dims=("a", "b"), **options)


def vector(name: str = "w", **options) -> px.type.XTensorVariable:
    """Return an input with the dimension b."""
    return px.xtensor(name, dims=("b",), **options)


def named(value, *dims: str) -> xr.DataArray:
    """Return an array with named dimensions."""
    return xr.DataArray(value, dims=dims)


def reference(*args, **options):
    """Return a function of mode FAST_COMPILE."""
    return pytensor.function(*args, mode="FAST_COMPILE", **options)


def outcome(f, *args):
    """Return what a call gives: type, dtype, shape and numbers, or the exception."""
    try:
        result = f(*args)
    except Exception as error:
        return type(error), str(error)
    return type(result), result.dtype, result.shape, result.tolist()


EXPRESSIONS = {
    "broadcast": lambda x, w: (w - x) / (1 + x**2),
    "reduce": lambda x, w: (x * w).sum("b") + x.max("b").rename(a="a"),
    "cumsum": lambda x, w: x.cumsum("a"),
    "dot": lambda x, w: x.dot(w),
    "concat": lambda x, w: px.concat([x, w], dim="b"),
    "stack": lambda x, w: (x + w).stack({"c": ("b", "a")}),
    "unstack": lambda x, w: x.stack({"c": ("b", "a")}).unstack({"c": {"b": x.sizes["b"], "a": x.sizes["a"]}}),
    "transpose": lambda x, w: x.transpose("b", ...),
    "slices": lambda x, w: x.isel(a=slice(None, None, -1), b=slice(1, None)),
    "pointwise": lambda x, w: x.isel(a=px.as_xtensor([0, 2], dims=("p",)), b=px.as_xtensor([1, 1], dims=("p",))),
    "set": lambda x, w: x.isel(a=1).set(w),
    "where": lambda x, w: px.math.where(x > 3, x, w),
    "sizes": lambda x, w: x * x.sizes["b"] + px.zeros_like(w),
    "input": lambda x, w: x,
    "rename": lambda x, w: x.rename(a="c"),
    "number": lambda x, w: (x * w).mean(),
    "constant": lambda x, w: x * px.as_xtensor(np.ones((100, 100)), dims=("c", "d")).sum("d"),
    "tensor": lambda x, w: x.values * 2,
}


@pytest.mark.parametrize("build", EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_expressions_are_one_program(build):
    x, w = matrix(), vector()
    y = build(x, w)
    want = pytensor.function([x, w], y, mode="FAST_COMPILE", on_unused_input="ignore")
    f = pytensor.function([x, w], y, mode=FULLGRAPH, on_unused_input="ignore")
    for value in (X, np.vstack([X, W])):
        got, expected = f(value, W), want(value, W)
        assert type(got) is type(expected) and got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=1e-14)


@pytest.mark.parametrize(
    "value",
    [
        X,
        named(X, "a", "b"),
        named(X.T, "b", "a"),
        named(X.astype("float32"), "a", "b"),
        named(np.arange(6).reshape(3, 2), "b", "a"),
        X.tolist(),
        X.astype("complex128"),
        named(X, "a", "c"),
        named(X[0], "a"),
        named(X[None], "z", "a", "b"),
        "text",
    ],
    ids=["array", "named", "transposed", "float32", "integers", "list", "complex", "other", "fewer", "more", "text"],
)
@pytest.mark.parametrize("shape", [None, (3, 3)], ids=["free", "declared"])
def test_arguments(value, shape):
    x = matrix(shape=shape)
    for y in (x * 2, x.sum("a")):
        assert outcome(pytensor.function([x], y, mode=FULLGRAPH), value) == outcome(reference([x], y), value)


def test_strict_and_mutable_inputs_and_trusted_arguments():
    w = vector()
    for options, value in (
        ({"strict": True}, W),
        ({"strict": True}, named(W, "b")),
        ({"strict": True}, W.tolist()),
        ({"allow_downcast": False}, W.astype("complex64")),
        ({"mutable": True}, W.copy()),
    ):
        functions = [
            pytensor.function([pytensor.In(w, **options)], w * 2, mode=mode) for mode in ("FAST_COMPILE", FULLGRAPH)
        ]
        want, got = (outcome(f, value) for f in functions)
        assert want == got
    f = pytensor.function([w], w * 2, mode=FULLGRAPH)
    f.trust_input = True
    np.testing.assert_array_equal(f(W), W * 2)


@pytest.mark.parametrize("mode", ["FAST_COMPILE", FULLGRAPH], ids=["reference", "jaxpr"])
def test_shared_variables(mode):
    s, other = (pytensor.shared(named(X * k, "a", "b"), name=f"s{k}") for k in (1, 10))
    w = vector()
    f = pytensor.function([w], (s * w).sum("a"), updates={s: (s + w).transpose("a", "b")}, mode=mode)
    np.testing.assert_array_equal(f(W), (X * W).sum(0))
    assert type(s.get_value()) is np.ndarray
    np.testing.assert_array_equal(s.get_value(), X + W)
    s.set_value(named(X.T, "b", "a"))
    np.testing.assert_array_equal(s.get_value(borrow=True), X)
    with pytest.raises(ValueError, match="do not exist"):
        s.set_value(named(X, "a", "c"))
    np.testing.assert_array_equal(pytensor.function([w], s.sum("a"), givens={s: s * w}, mode=mode)(W), (X * W).sum(0))
    for again in (pickle.loads(pickle.dumps(f)), f.copy(), copy.deepcopy(f)):
        start = again.get_shared()[0].get_value()
        np.testing.assert_array_equal(again(W), (start * W).sum(0))
        np.testing.assert_array_equal(again.get_shared()[0].get_value(), start + W)
    np.testing.assert_array_equal(f.copy(swap={s: other})(W), (10 * X * W).sum(0))
    np.testing.assert_array_equal(other.get_value(), 10 * X + W)


def test_lengths_from_inputs():
    n, shape = px.xtensor("n", dims=(), dtype="int64"), px.xtensor("shape", dims=("axis",), shape=(2,), dtype="int64")
    compare([n], px.as_xtensor(pt.arange(n.values), dims=("a",)) * 2, [np.array(3)])
    compare([shape], pt.zeros((shape.values[0], shape.values[1])), [np.array([2, 3])])


@pytest.mark.parametrize("gradient", ["pytensor", "jax"])
@pytest.mark.parametrize("is_number", [True, False], ids=["number", "several"])
def test_pure_function_and_its_gradient(gradient, is_number):
    x, w = matrix(), vector()
    scale = pytensor.shared(named(W, "b"))
    cost = px.math.exp(-((x * w) ** 2)).sum() + px.as_xtensor(zero_grad(w.values), dims=("b",)).sum()
    outputs = [cost] if is_number else [cost, (x * w * scale).sum("b")]
    fn = pjl.as_jax_function([x, w], outputs, gradient=gradient)

    def formula(x, w):
        return jax.numpy.exp(-((x * w) ** 2)).sum() + (0 if is_number else (x * w * W).sum())

    with jax.enable_x64(True):
        found = jax.grad(lambda *args: sum(r.sum() for r in fn(*args)), argnums=(0, 1))(X, W)
        want = jax.grad(formula, argnums=(0, 1))(X, W)
        np.testing.assert_allclose(found[0], want[0], rtol=1e-12)
        # JAX's own rules know nothing of `zero_grad`.
        np.testing.assert_allclose(found[1], want[1] + (gradient == "jax"), rtol=1e-12)
        batch = jax.vmap(lambda w: fn(X, w)[0])(np.stack([W, 2 * W]))
    np.testing.assert_allclose(batch[1], fn(X, 2 * W)[0], rtol=1e-12)


def test_pure_function_takes_named_arrays_by_dimension():
    x = matrix()
    fn = pjl.as_jax_function([x], [x.cumsum("a")])
    np.testing.assert_array_equal(fn(named(X.T, "b", "a"))[0], X.cumsum(0))
    np.testing.assert_array_equal(fn(X.tolist())[0], X.cumsum(0))
    f = pytensor.function([x], x.cumsum("a"), mode=FULLGRAPH)
    jaxpr = pjl.make_jaxpr(f, named(np.ones((2, 5)), "b", "a"))
    assert [v.aval.shape for v in jaxpr.invars] == [(5, 2)]


def test_results_and_arguments_of_jax():
    x = matrix()
    f = pytensor.function(
        [x], [x, x + 1], mode=Mode(pjl.JaxprLinker(pjl.Options(results="jax", on_break="raise")), "fast_run")
    )
    with jax.enable_x64(True):
        found = f(jax.numpy.asarray(X))
    assert all(isinstance(r, jax.Array) for r in found)
    np.testing.assert_array_equal(found[1], X + 1)


def test_small_arguments_are_packed():
    inputs = [vector(f"w{i}") for i in range(3)]
    f = pytensor.function(inputs, inputs[0] + 2 * inputs[1] + 3 * inputs[2], mode=FULLGRAPH)
    np.testing.assert_array_equal(f(W, W, named(W, "b")), 6 * W)
    (found,) = f.vm.runner.program.specialize(()).packed_calls.values()
    assert found.arguments.positions == (0, 1, 2)


@pytest.mark.parametrize(
    ("build", "build_unnamed"),
    [
        (lambda x, n: x.isel(a=slice(n, n + 2)), lambda x, n: x[n : n + 2]),
        (lambda x, n: (x.isel(a=slice(n)) * (2 * x).isel(a=slice(n))).sum(), lambda x, n: (x[:n] * (2 * x)[:n]).sum()),
        (lambda x, n: (x[x > n] * 2).mean(), lambda x, n: (x[x > n] * 2).mean()),
        (lambda x, n: x[x > n] * 2, lambda x, n: x[x > n] * 2),
    ],
    ids=["window", "prefixes", "masked-mean", "masked"],
)
def test_sizes_that_depend_on_values(build, build_unnamed):
    """The plan is that of tensors: as many breaks, and programs for the same values."""
    x, n = px.xtensor("x", dims=("a",)), px.xtensor("n", dims=(), dtype="int64")
    f = pytensor.function([x, n], build(x, n.values), mode=ANY)
    x, n = pt.dvector("x"), pt.lscalar("n")
    g = pytensor.function([x, n], build_unnamed(x, n), mode=ANY)
    values = np.array([1.0, -2.0, 3.0, 4.0]), 1
    np.testing.assert_array_equal(f(*values), g(*values))
    assert len(f.vm.runner.plan.breaks) == len(g.vm.runner.plan.breaks)
    assert demanded(f) == demanded(g)


def demanded(f) -> list[list[str]]:
    """Return what the values are that a program is built for, by region."""
    return [[v.name or str(v.owner.op) for v in region.demanded] for region in f.vm.runner.plan.regions]


def test_marks():
    x = matrix()
    n = pjl.mark_static(px.xtensor("n", dims=(), dtype="int64"))
    np.testing.assert_array_equal(pytensor.function([x, n], x**n, mode=FULLGRAPH)(X, 2), X**2)
    w = pjl.mark_dynamic(vector(), 0)
    f = pytensor.function([w], w * 2, mode="JAXPR")
    np.testing.assert_array_equal(f(W), W * 2)
    with pytest.warns(pjl.GraphBreakWarning, match="JX011"):
        np.testing.assert_array_equal(f(W[:2]), W[:2] * 2)


def test_host_steps_take_and_return_named_arrays():
    x, w = matrix(), vector()
    outputs = [px.as_xtensor(Doubled()(x.values), dims=("a", "b")) * w, Doubled()(x) * w, Doubled()(x + w).sum("b")]
    f = pytensor.function([x, w], outputs, mode=ANY)
    for got, want in zip(f(X, W), (2 * X * W, 2 * X * W, (2 * (X + W)).sum(1)), strict=True):
        np.testing.assert_allclose(got, want)
    assert {type(b.node.op).__name__ for b in f.vm.runner.plan.breaks} == {"Doubled"}
    g = pytensor.function([x], Doubled()(x.values), mode=ANY)
    assert not g.vm.runner.plan.regions  # a view is not worth a program
    np.testing.assert_array_equal(g(X), 2 * X)


@pytest.mark.parametrize("inline", [False, True], ids=["kept", "inlined"])
def test_inner_graphs(inline):
    x, w, c = matrix(), vector(), pt.bscalar("c")
    op = OpFromGraph([x, w], [px.math.tanh(x * w).sum("b")], inline=inline)
    y = op(x, w)
    z = ifelse(c, x + 1, x * 2)
    for value in (0, 1):
        compare([x, w, c], [y, z], [X, W, np.array(value, "int8")])


def test_draws_are_those_of_tensors():
    rng, named_rng = pytensor.shared(np.random.default_rng(1)), pxr.shared_rng(np.random.default_rng(1))
    after, first = rng.normal(0, 1, size=(3,))
    after, second = after.normal(0, 1, size=(3,))
    f = pytensor.function([], [first, second], updates={rng: after}, mode=FULLGRAPH)
    after, first = named_rng.normal(0, 1, extra_dims={"a": 3})
    after, second = after.normal(0, 1, extra_dims={"a": 3})
    g = pytensor.function([], [first, second], updates={named_rng: after}, mode=FULLGRAPH)
    for _ in range(2):
        np.testing.assert_array_equal(f(), g())


@pytest.mark.parametrize("optimizer", [None, "fast_compile", "fast_run"])
def test_every_mode_lowers_the_ops(optimizer):
    x, w = matrix(), vector()
    mode = Mode(pjl.JaxprLinker(pjl.Options(on_break="raise")), optimizer)
    f = pytensor.function([x, w], (x * w).sum("b"), mode=mode)
    np.testing.assert_allclose(f(X, W), (X * W).sum(1))
    with pytest.raises(pjl.GraphBreakError, match=r"XElemwise.*lower_xtensor"):
        pytensor.function([x, w], x * w, mode=mode.excluding("lower_xtensor"))


def test_the_package_does_not_import_named_dimensions():
    code = """
        import sys, pytensor.tensor as pt, pytensor, pytensor_jaxpr_linker
        x = pt.dvector("x")
        pytensor.function([x], x * 2, mode="JAXPR")([1.0])
        print("pytensor.xtensor" in sys.modules, "xarray" in sys.modules)
    """
    assert run_python(code).split() == ["False", "False"]
