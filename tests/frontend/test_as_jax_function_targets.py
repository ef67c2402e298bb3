"""What `as_jax_function` and `make_jaxpr` take, what they refuse, and what they print."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from jax.extend.core import check_jaxpr, jaxpr_as_fun

import pytensor_jaxpr_linker as pjl
from tests.frontend.test_as_jax_function import logp_graph


def test_what_is_asked_for_bare_comes_bare(x64):
    x, s = pt.dvector("x"), pytensor.shared(1.0, name="s")
    loss = (x**2).sum()
    np.testing.assert_array_equal(jax.grad(pjl.as_jax_function([x], loss))(np.ones(2)), [2, 2])
    assert pjl.as_jax_function([x], loss)(np.ones(2)) == 2
    assert pjl.as_jax_function([x], [loss])(np.ones(2)) == [2]
    # A compiled function has updates, too: its JAX function always returns a list.
    assert pjl.as_jax_function(pytensor.function([x], loss, mode="JAXPR"))(np.ones(2)) == [2]
    f = pytensor.function([x], loss * s, updates={s: s + 1}, mode="JAXPR")
    assert pjl.as_jax_function(f)(np.ones(2), 1.0) == [2, 2]


# What users hand in


@pytest.fixture(scope="module")
def model():
    pm = pytest.importorskip("pymc")
    with pm.Model() as model:
        scale, shift = pm.HalfNormal("scale"), pm.Normal("shift", shape=2)
        pm.Normal("y", shift * pm.Data("data", np.ones(2)), scale, observed=np.zeros(2))
    return model


TARGETS = {
    "point function": lambda model: (model.compile_logp(mode="JAXPR"), model.initial_point()),
    "gradient": lambda model: (model.compile_dlogp(mode="JAXPR"), model.initial_point()),
    "value and gradient": lambda model: (model.logp_dlogp_function(mode="JAXPR", ravel_inputs=True), np.zeros(3)),
    "model": lambda model: (model,),
    "JAX function": lambda model: (pjl.as_jax_function(model.value_vars, model.logp()), 0.0, np.zeros(2)),
    "JAX function of a function": lambda model: (
        pjl.as_jax_function(model.compile_logp(mode="JAXPR").f),
        0.0,
        np.zeros(2),
    ),
}


@pytest.mark.parametrize("make", TARGETS.values(), ids=TARGETS)
def test_what_may_be_asked_about(make, model, x64):
    given, *args = make(model)
    assert pjl.explain(given).text().startswith("One XLA program")
    assert pjl.explain(given, args=args or None).stages.regions
    found = pjl.stages(given, *args)
    assert found.jaxpr[0].eqns and "1 region" in repr(found)
    check_jaxpr(pjl.make_jaxpr(given, *args))
    fn = pjl.as_jax_function(given, gradient="jax")
    values = {
        "scale_log__": 0.3,
        "shift": np.array([0.5, -1.0]),
        "joined_inputs": np.array([0.3, 0.5, -1.0]),
        "data": np.ones(2),
    }
    results = fn(*(values[v.name] for v in fn.program.inputs))
    point = {name: values[name] for name in ("scale_log__", "shift")}
    logp, dlogp = model.compile_logp()(point), model.compile_dlogp()(point)
    flat = np.concatenate([np.ravel(x) for x in (results if isinstance(results, list) else [results])])
    want = {1: [logp], 3: dlogp, 4: [logp, *dlogp]}[len(flat)]
    np.testing.assert_allclose(flat, want)


@pytest.mark.parametrize("call", [pjl.explain, pjl.stages, pjl.make_jaxpr, pjl.as_jax_function])
@pytest.mark.parametrize("given", [3, "f", np.exp, None], ids=str)
def test_what_may_not_be_asked_about(call, given):
    with pytest.raises(TypeError, match=rf"{call.__name__} takes a function compiled.*; not {type(given).__name__} \("):
        call(given)


def test_loaded_functions(tmp_path):
    """Reports take the result of `load`. Others say that they don't: an exported function is a program, not a graph."""
    x = pt.vector("x", dtype="float64", shape=(2,))
    loaded = pjl.export([x], x.sum(), path=tmp_path / "total.jaxpr", name="total")
    for report in (pjl.explain, pjl.stages, pjl.make_jaxpr):
        report(loaded)
        with pytest.raises(TypeError, match="what load returned"):
            report(3)
    for call in (pjl.as_jax_function, lambda f: pjl.export(f, path=tmp_path / "other.jaxpr")):
        with pytest.raises(
            TypeError, match=r"no function that load returned: total\.jax is a JAX function already.*total\.jaxpr"
        ):
            call(loaded)
        with pytest.raises(TypeError) as raised:
            call(3)
        assert "load" not in str(raised.value)


def test_graphs_of_something_else():
    with pytest.raises(TypeError, match=r"explain takes the outputs of a graph as a list of variables, not \[3\]"):
        pjl.explain([3])
    with pytest.raises(TypeError, match="as_jax_function takes the inputs of a graph as a list of variables, not x"):
        pjl.as_jax_function(pt.vector("x"), pt.vector("y"))


# Constants

DATA = np.random.default_rng(0).normal(size=(100, 200))
WITH_CONSTANTS = {
    "product": lambda x: pt.constant(DATA) @ x,
    "folded": lambda x: ((pt.constant(DATA) * 3 - pt.exp(x)) ** 2).sum(),
    "counts": lambda x: (pt.constant((DATA[0].repeat(100) * 9).astype("int64")) * pt.exp(x[0]) - x[1]).sum(),
    "two": lambda x: pt.exp(pt.constant(DATA) @ x).sum() + (pt.constant(DATA[::-1].copy()) * x).sum(),
}


@pytest.mark.parametrize("gradient", ["pytensor", "jax"])
@pytest.mark.parametrize("make", WITH_CONSTANTS.values(), ids=WITH_CONSTANTS)
def test_constants_are_arguments(make, gradient, x64):
    """Of a `jax.jit` around the function and its derivatives, which would copy them."""
    x = pt.dvector("x")
    fn = pjl.as_jax_function([x], make(x), gradient=gradient)
    value, constants = np.linspace(-1, 1, 200), fn.constants
    assert constants and all(isinstance(c, jax.Array) for c in constants)

    def total(x, c=None):
        return fn(x, constants=c).sum()

    several = np.stack([value, 2 * value])
    batched = jax.vmap(jax.grad(total), (0, None))
    for transformed, point in ((total, value), (jax.grad(total), value), (batched, several)):
        assert len(jax.jit(transformed).lower(point, constants).as_text()) < 10_000
    for inside in (jax.jit(jax.grad(total)), jax.grad(jax.jit(total)), jax.grad(total)):
        np.testing.assert_allclose(inside(value, constants), jax.grad(total)(value), rtol=1e-12)
    np.testing.assert_allclose(fn(value, constants=constants), fn(value))


def test_constants_that_are_not(x64):
    x = pt.dvector("x")
    fn = pjl.as_jax_function([x], (pt.constant(DATA[0]) * x).sum())
    assert fn.constants == [] and fn(np.ones(200), constants=[]) == fn(np.ones(200))
    fn = pjl.as_jax_function([x], (pt.constant(DATA) @ x).sum())
    for wrong in ([], [DATA.T], [DATA.astype("float32")], [DATA, DATA]):
        with pytest.raises(TypeError, match="constants must be arrays like the function's"):
            fn(np.ones(200), constants=wrong)
    with pytest.raises(TypeError, match="by a constant of the graph: make it one of the inputs"):
        jax.grad(lambda c: fn(np.ones(200), constants=c))(fn.constants)


def test_unused_inputs():
    x, y = (pt.vector(n, dtype="float64") for n in ("x", "y"))
    np.testing.assert_array_equal(pjl.as_jax_function([x, y], x + 1)(np.zeros(2), np.zeros(5)), 1)


def test_no_outputs_and_no_inputs():
    assert pjl.as_jax_function([], [])() == []
    x = pt.vector("x", dtype="float64")
    np.testing.assert_array_equal(pjl.as_jax_function([], [pt.constant([1.0, 2.0])])()[0], [1, 2])
    np.testing.assert_array_equal(pjl.as_jax_function([x], [x, x])(np.ones(2))[1], 1)


def test_static_input_under_closure():
    n, x = pt.lscalar("n"), pt.scalar("x", dtype="float64")
    fn = pjl.as_jax_function([n, x], (pt.arange(n) * x).sum())
    with jax.enable_x64(True):
        np.testing.assert_allclose(jax.grad(lambda x: fn(4, x))(2.0), 6)
        np.testing.assert_allclose(jax.jit(lambda n, x: fn(n, x), static_argnums=0)(5, 2.0), 20)


def test_threads():
    n, x = pt.lscalar("n"), pt.vector("x", dtype="float64")
    fn = pjl.as_jax_function([n, x], pt.arange(n).sum() + x)
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda k: fn(k % 5, np.ones(2)), range(20)))
    np.testing.assert_array_equal(results, [[k * (k - 1) / 2 + 1] * 2 for k in [i % 5 for i in range(20)]])


# Errors


def test_wrong_number_of_arguments():
    inputs, logp, _ = logp_graph()
    with pytest.raises(TypeError, match=r"expected 2 arguments \('x', 'scale'\), got 1"):
        pjl.as_jax_function(inputs, logp)(np.ones(2))


@pytest.mark.parametrize("function", [pjl.as_jax_function, pjl.make_jaxpr], ids=["as_jax_function", "make_jaxpr"])
def test_function_of_another_mode(function):
    x = pt.vector("x", dtype="float64")
    with pytest.raises(TypeError, match="mode JAXPR"):
        function(pytensor.function([x], x + 1, mode="FAST_COMPILE"))


def test_outputs_are_missing():
    with pytest.raises(TypeError, match="inputs and the outputs"):
        pjl.as_jax_function([pt.vector("x")])


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap], ids=["jit", "vmap"])
def test_tracer_for_static_input_names_variable(transform, x64):
    n = pt.lscalar("how_many")
    fn = pjl.as_jax_function([n], pt.arange(n))
    with pytest.raises(pjl.RuntimeTracerError, match="'how_many'"):
        transform(fn)(jnp.arange(3) if transform is jax.vmap else 3)


def test_64_bit_graph_traced_without_x64():
    x = pt.vector("x", dtype="float64")
    fn = pjl.as_jax_function([x], x + 1)
    with pytest.raises(TypeError, match="enable_x64"):
        jax.jit(fn)(np.ones(2))


@pytest.mark.parametrize("value", [np.ones((2, 2)), np.ones(2)], ids=["rank", "static-shape"])
def test_wrong_shape_names_variable(value, x64):
    x = pt.tensor("myvar", dtype="float64", shape=(3,))
    with pytest.raises(TypeError, match="myvar"):
        pjl.as_jax_function([x], x + 1)(value)


def test_graph_break():
    x = pt.vector("x", dtype="float64")
    with pytest.raises(pjl.GraphBreakError, match="JX002"):
        pjl.as_jax_function([x], pt.arange(x.sum().astype("int64")))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.shape[0] * 2 + x.sum(),
        lambda x: x.mean(0),
        lambda x: x.reshape((x.shape[0], 3, 1)),
        lambda x: pt.zeros((x.shape[0], 2)) + x.shape[1],
        lambda x: pt.special.softmax(x, axis=1) @ x.T,
    ],
    ids=["number", "mean", "reshape", "alloc", "product"],
)
def test_export_with_a_symbolic_dimension(make, x64):
    x = pt.dmatrix("x")
    fn = pjl.as_jax_function([x], make(x))
    (rows,) = jax.export.symbolic_shape("rows")
    exported = jax.export.export(jax.jit(fn))(jax.ShapeDtypeStruct((rows, 3), "float64"))
    for n in (1, 4):
        value = np.arange(3.0 * n).reshape(n, 3)
        expected = pytensor.function([x], make(x), mode="FAST_COMPILE")(value)
        np.testing.assert_allclose(exported.call(value), expected, rtol=1e-12)


# Jaxprs


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
def test_jaxpr_is_ordinary(static, x64):
    x = pt.tensor("x", dtype="float64", shape=(3, 3) if static else (None, None))
    f = pytensor.function([x], [pt.tanh(x @ x).sum(axis=0), pt.special.softmax(x, axis=-1)], mode="JAXPR")
    value = np.arange(9.0).reshape(3, 3) / 9
    jaxpr = pjl.make_jaxpr(f) if static else pjl.make_jaxpr(f, value)
    check_jaxpr(jaxpr)
    for got, want in zip(jaxpr_as_fun(jaxpr)(value), f(value), strict=True):
        np.testing.assert_allclose(got, want)
    again = jax.make_jaxpr(jaxpr_as_fun(jaxpr))(value)
    assert [e.primitive for e in again.jaxpr.eqns] == [e.primitive for e in jaxpr.jaxpr.eqns]


def test_make_jaxpr_uses_values_of_shared_variables():
    s = pytensor.shared(np.ones((2, 3)), name="s")
    f = pytensor.function([], s.sum(), mode="JAXPR")
    assert "f64[2,3]" in str(pjl.make_jaxpr(f))


def test_make_jaxpr_wants_examples_by_name():
    x = pt.vector("myvar", dtype="float64")
    with pytest.raises(TypeError, match="'myvar'"):
        pjl.make_jaxpr(pytensor.function([x], x + 1, mode="JAXPR"))


def test_make_jaxpr_takes_shapes_and_static_values():
    x, n = pt.vector("x", dtype="float64"), pt.lscalar("n")
    f = pytensor.function([x, n], pt.arange(n).sum() + x, mode="JAXPR")
    assert "f64[4]" in str(pjl.make_jaxpr(f, jax.ShapeDtypeStruct((4,), "float64"), 3))


def test_names_are_printed_near_their_equations():
    xs = [pt.dvector(f"x{i}") for i in range(100)]
    y = pt.exp(xs[0])
    y.name = "y"
    f = pytensor.function(xs, pt.join(0, y, *xs), mode="JAXPR")  # one long line
    jaxpr = pjl.make_jaxpr(f, *[np.ones(3)] * 100)
    ours, of_jax = (
        next(line for line in text.splitlines() if "[Exp[y]]" in line)
        for text in (str(jaxpr), jaxpr.pretty_print(name_stack=True))
    )
    assert ours.index("# [") == 80 < of_jax.index("# [")
    assert ours.split() == of_jax.split()


def test_names_in_print_and_hlo(x64):
    inputs, logp, _ = logp_graph()
    f = pytensor.function(inputs, logp, mode="JAXPR")
    text = str(pjl.make_jaxpr(f, np.ones(3), 1.0))
    assert "Sum" in text and "logp" in text
    hlo = jax.jit(pjl.as_jax_function(f)).lower(np.ones(3), 1.0).as_text(debug_info=True)
    assert "Sum" in hlo and "logp" in hlo
