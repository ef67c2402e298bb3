"""What users call beside `pytensor.function`: `as_jax_function` and `make_jaxpr`, under JAX's transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import run_python

import pytensor_jaxpr_linker as pjl


def logp_graph():
    """Return inputs, a smooth scalar output, and a hand-written JAX version."""
    x = pt.vector("x", dtype="float64")
    scale = pt.scalar("scale", dtype="float64")
    logp = (-0.5 * (x / scale) ** 2 - pt.log(scale)).sum()
    logp.name = "logp"
    return [x, scale], logp, lambda x, scale: (-0.5 * (x / scale) ** 2 - jnp.log(scale)).sum()


# Transformations

TRANSFORMATIONS = {
    "call": lambda f: f,
    "jit": jax.jit,
    "grad": jax.grad,
    "value_and_grad": jax.value_and_grad,
    "jit-grad": lambda f: jax.jit(jax.grad(f, argnums=(0, 1))),
    "grad-jit": lambda f: jax.grad(jax.jit(f)),
    "jacrev": jax.jacrev,
    "jacrev-jacrev": lambda f: jax.jacrev(jax.jacrev(f)),
    "vmap": lambda f: lambda x, s: jax.vmap(f, in_axes=(0, None))(jnp.stack([x, 2 * x]), s),
    "jit-vmap-grad": lambda f: lambda x, s: jax.jit(jax.vmap(jax.grad(f), in_axes=(0, None)))(jnp.stack([x, 2 * x]), s),
    "vmap-vmap": lambda f: lambda x, s: jax.vmap(lambda s: jax.vmap(lambda x: f(x, s))(jnp.stack([x, 2 * x])))(s[None]),
    "scan": lambda f: lambda x, s: jax.lax.scan(lambda c, y: (c + f(y, s), c), jnp.float64(0), jnp.stack([x, x + 1])),
    "while": lambda f: lambda x, s: jax.lax.fori_loop(0, 3, lambda i, c: c + f(x, s) * i, jnp.float64(0)),
    "grad-scan": lambda f: jax.grad(
        lambda x, s: jax.lax.scan(lambda c, y: (c + f(y, s), c), jnp.float64(0), jnp.stack([x, x + 1]))[0]
    ),
    "remat": lambda f: jax.grad(jax.checkpoint(f)),
}
#: The transformations in forward mode.
FORWARD_MODE = {
    "hessian": jax.hessian,
    "jacfwd": jax.jacfwd,
    "jvp": lambda f: lambda x, s: jax.jvp(f, (x, s), (jnp.ones_like(x), jnp.ones_like(s))),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["graph", "compiled"])
@pytest.mark.parametrize("transform", TRANSFORMATIONS.values(), ids=TRANSFORMATIONS)
def test_transformations_equal_jax(transform, compiled, x64):
    check_transformation(transform, compiled, "pytensor")


@pytest.mark.parametrize("name", ["grad", "jit-grad", "jit-vmap-grad", "grad-scan", "remat", *FORWARD_MODE])
def test_transformations_with_the_derivatives_of_jax(name, x64):
    check_transformation((TRANSFORMATIONS | FORWARD_MODE)[name], False, "jax")


def check_transformation(transform, compiled, gradient):
    """Compare what a transformation makes of the emitted function and of one written by hand."""
    inputs, logp, by_hand = logp_graph()
    graph = (pytensor.function(inputs, logp, mode="JAXPR"),) if compiled else (inputs, logp)
    whole = pjl.as_jax_function(*graph, gradient=gradient)
    fn = (lambda *args: whole(*args)[0]) if compiled else whole
    x, scale = jnp.array([0.5, -1.0, 2.0]), jnp.float64(1.5)
    got, want = transform(fn)(x, scale), transform(by_hand)(x, scale)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), got, want)


@pytest.mark.parametrize("check_vma", [True, False], ids=["check_vma", "no_check_vma"])
def test_shard_map_over_two_devices(check_vma):
    out = run_python(
        f"""
        import jax, numpy as np, pytensor.tensor as pt
        from jax.sharding import PartitionSpec as P
        import pytensor_jaxpr_linker as pjl
        jax.config.update("jax_enable_x64", True)
        mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
        x, w = pt.matrix("x", dtype="float64"), pt.vector("w", dtype="float64")
        outputs = [pt.exp(x * w + 1.0).sum(axis=1), pt.log1p(x ** 2) @ w, x[:, 1], pt.max(x, axis=1)]
        fn = pjl.as_jax_function([x, w], outputs)
        sharded = jax.shard_map(
            lambda x, w: tuple(fn(x, w)), mesh=mesh, in_specs=(P("i"), P()), out_specs=P("i"), check_vma={check_vma}
        )
        data, weights = np.arange(12.0).reshape(4, 3) / 9, np.array([0.1, 0.2, 0.3])
        for run in (sharded, jax.jit(sharded)):
            for got, want in zip(run(data, weights), fn(data, weights)):
                np.testing.assert_allclose(got, want)
        grad = jax.grad(lambda w: sharded(data, w)[0].sum())(weights)
        np.testing.assert_allclose(grad, jax.grad(lambda w: fn(data, w)[0].sum())(weights))
        print(len(jax.devices()), "devices")
        """,
        XLA_FLAGS="--xla_force_host_platform_device_count=2",
    )
    assert "2 devices" in out


def test_export_with_static_shapes(x64):
    inputs, logp, by_hand = logp_graph()
    fn = pjl.as_jax_function(inputs, logp)
    exported = jax.export.export(jax.jit(fn))(
        jax.ShapeDtypeStruct((3,), "float64"), jax.ShapeDtypeStruct((), "float64")
    )
    x = np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(exported.call(x, 2.0), by_hand(x, 2.0))


SYMBOLIC = {
    "unary": lambda x: pt.exp(x),
    "scalar-constant": lambda x: x * 2.0 + 1.0,
    "row-constant": lambda x: x * np.array([1.0, 2.0, 3.0]),
    "two-uses": lambda x: x * pt.tanh(x),
    "where": lambda x: pt.switch(x > 0, x, 0.0),
    "sum": lambda x: x.sum(),
    "sum-batch": lambda x: x.sum(axis=0),
    "sum-rows": lambda x: x.sum(axis=1),
    "max": lambda x: x.max(axis=1),
    "mean-rows": lambda x: x.mean(axis=1),
    "centered": lambda x: x - x.sum(axis=1, keepdims=True),
    "softmax": lambda x: pt.special.softmax(x, axis=1),
    "transpose": lambda x: x.T,
    "matvec": lambda x: x @ np.array([1.0, 2.0, 3.0]),
}


@pytest.mark.parametrize("graph", SYMBOLIC.values(), ids=SYMBOLIC)
def test_export_with_symbolic_batch(graph, x64):
    x = pt.tensor("x", dtype="float64", shape=(None, 3))
    fn = pjl.as_jax_function([x], graph(x))
    shape = jax.export.symbolic_shape("b, 3")
    exported = jax.export.export(jax.jit(fn))(jax.ShapeDtypeStruct(shape, "float64"))
    for rows in (2, 5):
        value = np.arange(rows * 3.0).reshape(rows, 3) / 7 - 0.5
        np.testing.assert_allclose(exported.call(value), fn(value))


def test_export_with_two_inputs_of_one_symbolic_size(x64):
    x, y = (pt.vector(n, dtype="float64") for n in ("x", "y"))
    (b,) = jax.export.symbolic_shape("b")
    aval = jax.ShapeDtypeStruct((b,), "float64")
    exported = jax.export.export(jax.jit(pjl.as_jax_function([x, y], x * y + 1)))(aval, aval)
    np.testing.assert_allclose(exported.call(np.ones(4), np.ones(4)), 2)


# Arguments


def test_shared_variables_and_updates_of_a_compiled_function(x64):
    s = pytensor.shared(np.ones(2), name="s")
    x = pt.vector("x", dtype="float64")
    fn = pjl.as_jax_function(pytensor.function([x], x * s, updates={s: s + x}, mode="JAXPR"))
    out, new = fn(np.full(2, 3.0), np.full(2, 2.0))
    np.testing.assert_array_equal(out, [6, 6])
    np.testing.assert_array_equal(new, [5, 5])
    np.testing.assert_array_equal(s.get_value(), [1, 1])
    carry, outs = jax.lax.scan(lambda s, x: fn(x, s)[::-1], jnp.zeros(2), jnp.ones((3, 2)))
    np.testing.assert_array_equal(carry, [3, 3])
    np.testing.assert_array_equal(outs[:, 0], [0, 1, 2])


def test_shared_variables_of_a_graph_are_constants():
    s = pytensor.shared(np.ones(2), name="s")
    x = pt.vector("x", dtype="float64")
    fn = pjl.as_jax_function([x], x * s)
    s.set_value(np.full(2, 9.0))
    np.testing.assert_array_equal(fn(np.full(2, 3.0)), [3, 3])


def test_shared_variable_given_as_input_is_an_argument():
    s = pytensor.shared(np.ones(2), name="s")
    fn = pjl.as_jax_function([s], s * 2)
    np.testing.assert_array_equal(fn(np.full(2, 3.0)), [6, 6])


def test_checks_do_not_add_outputs():
    x, i = pt.vector("x", dtype="float64"), pt.lscalar("i")
    fn = pjl.as_jax_function(pytensor.function([x, i], x[i], mode="JAXPR"))
    np.testing.assert_array_equal(fn(np.ones(2), 0), [1])
    assert np.isnan(fn(np.ones(2), 5)[0])


@pytest.mark.parametrize(
    "value",
    [2, 2.0, np.float32(2), np.float64(2), np.int64(2), jnp.float32(2), jnp.int32(2)],
    ids=["int", "float", "numpy-float32", "numpy-float64", "numpy-int64", "jax-float32", "jax-int32"],
)
@pytest.mark.parametrize("wide", [False, True], ids=["x32", "x64"])
def test_numbers_become_the_declared_dtype(value, wide):
    x = pt.scalar("x", dtype="float64")
    fn = pjl.as_jax_function([x], [x * 0.1, pt.exp(x)])
    with jax.enable_x64(wide):
        product, exponential = fn(value)
    assert product.dtype == exponential.dtype == "float64"
    np.testing.assert_allclose(product, 0.2, rtol=1e-15)


def test_weak_typed_tracers(x64):
    x = pt.scalar("x", dtype="float64")
    fn = pjl.as_jax_function([x], x * 0.1)
    assert jax.jit(fn)(2).dtype == "float64"
    assert jax.jit(fn)(2.0).dtype == "float64"
    np.testing.assert_allclose(jax.grad(fn)(2.0), 0.1)
    y = pt.scalar("y", dtype="float32")
    narrow = pjl.as_jax_function([y], y * np.float32(0.5))
    assert jax.jit(narrow)(2.0).dtype == "float32"


def test_float32_arrays_to_float64_graph(x64):
    x = pt.vector("x", dtype="float64")
    fn = pjl.as_jax_function([x], (x**2).sum())
    value = np.ones(3, "float32")
    assert fn(value).dtype == "float64"
    assert jax.jit(fn)(value).dtype == "float64"
    assert jax.grad(fn)(jnp.asarray(value)).dtype == "float32"


def test_float32_graph_needs_no_x64():
    x = pt.vector("x", dtype="float32")
    fn = pjl.as_jax_function([x], pt.exp(x).sum())
    value = jnp.zeros(3)
    np.testing.assert_array_equal(jax.jit(jax.grad(fn))(value), 1)
    assert fn(value).dtype == "float32"


@pytest.mark.parametrize("typed", [True, False], ids=["typed", "raw"])
def test_keys(typed):
    rng = pytensor.shared(np.random.default_rng(0), name="rng")
    following, draw = pt.random.normal(size=(3,), rng=rng, return_next_rng=True)
    fn = pjl.as_jax_function(pytensor.function([], draw, updates={rng: following}, mode="JAXPR"))
    key = jax.random.key(1) if typed else jax.random.PRNGKey(1)
    first, new_key = fn(key)
    np.testing.assert_array_equal(fn(key)[0], first)
    assert not np.allclose(fn(new_key)[0], first)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(jax.jit(fn)(key)[0], first)
        draws = jax.vmap(lambda k: fn(k)[0])(jax.random.split(key, 4))
    assert len(np.unique(draws)) == 12


def test_a_typed_key_that_goes_in_comes_out_typed(x64):
    """So a loop may carry it."""
    rng, other = (pytensor.shared(np.random.default_rng(i), name=f"rng{i}") for i in range(2))
    following, draw = pt.random.normal(size=3, rng=rng, return_next_rng=True)
    next_other, _ = pt.random.normal(rng=other, return_next_rng=True)
    f = pytensor.function([], draw, updates={rng: following, other: next_other}, mode="JAXPR")
    fn = pjl.as_jax_function(f)
    places = {v.name: i for i, v in enumerate(f.maker.fgraph.inputs)}
    keys = [None, None]
    keys[places["rng0"]], keys[places["rng1"]] = jax.random.key(0), jax.random.PRNGKey(1)
    typed, raw = (fn(*keys)[1:][places[name]] for name in ("rng0", "rng1"))
    assert jnp.issubdtype(typed.dtype, jax.dtypes.prng_key) and raw.dtype == "uint32"
    np.testing.assert_array_equal(jax.random.key_data(typed), fn(*map(raw_key, keys))[1:][places["rng0"]])

    def step(carry, _):
        value, *following = fn(*carry)
        return following, value

    last, draws = jax.jit(lambda keys: jax.lax.scan(step, keys, length=3))(keys)
    assert [k.dtype for k in last] == [k.dtype for k in keys] and len(np.unique(draws)) == 9


def raw_key(key):
    return jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
