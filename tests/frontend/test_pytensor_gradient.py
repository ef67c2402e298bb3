"""The derivative of what `as_jax_function` returns: PyTensor's gradient, or JAX's rules for the equations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.gradient import NullTypeGradError, disconnected_grad, grad_clip, grad_scale, undefined_grad, zero_grad
from pytensor.graph import Apply, Op
from pytensor.tensor.basic import tensor_copy
from pytensor.tensor.blockwise import Blockwise

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker import emits, prims
from pytensor_jaxpr_linker.frontend.pytensor_gradient import FORWARD_MODE

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize("limit", [0, 3])
def test_rewrites_record_as_much_of_the_stack_as_those_of_pytensor_function(limit, monkeypatch):
    asked = []
    original = pytensor.graph.utils.simple_extract_stack
    record = lambda *args, limit, **named: asked.append(limit) or original(*args, limit=limit, **named)  # noqa: E731
    x = pt.dvector("x")
    y = (pt.log(pt.exp(x) + 1) ** 2).sum()
    monkeypatch.setattr(pytensor.graph.utils, "simple_extract_stack", record)
    with pytensor.config.change_flags(traceback__compile_limit=limit):
        gradient = jax.grad(pjl.as_jax_function([x], y))(np.ones(3))
    np.testing.assert_allclose(gradient, 2 * np.log(np.e + 1) * np.e / (np.e + 1) * np.ones(3))
    outside = [n for n in asked if n not in (0, limit)]  # the output's view and cotangent
    assert limit in asked and len(asked) > 50 and len(outside) <= 2


def sevenfold(x):
    """Return ``x ** 2`` with the derivative 7."""
    y = pt.dvector("y")
    return OpFromGraph([y], [y**2], pullback=lambda inputs, outputs, grads: [grads[0] * 7.0])(x)


#: Expressions whose gradient the rewritten graph does not show.
OVERRIDES = [
    lambda x: disconnected_grad(x) * x,
    lambda x: zero_grad(x**2) * x,
    lambda x: grad_clip(x, -0.01, 0.01) * 3,
    lambda x: grad_scale(x, -2.0) ** 2,
    sevenfold,
]
VALUE = np.array([0.1, 0.3, 0.5])


def overridden(x):
    """Return all of `OVERRIDES` in one cost."""
    return sum((f(pt.exp(x)) * (i + 1)).sum() for i, f in enumerate(OVERRIDES))


def pytensor_gradient(inputs, cost, values, wrt=None, mode="FAST_COMPILE"):
    """Return `pytensor.grad`, evaluated."""
    gradient = pytensor.grad(cost, inputs if wrt is None else wrt, disconnected_inputs="ignore")
    return pytensor.function(inputs, gradient, mode=mode, on_unused_input="ignore")(*values)


# -- what the gradient is ----------------------------------------------------------------------------------------------


def first(fn):
    """Return the first output of the function that is made of a compiled function, which returns a list."""
    return lambda *args: fn(*args)[0]


@pytest.mark.parametrize("form", ["graph", "compiled", "copied"])
def test_overrides(form):
    x = pt.dvector("x")
    cost = overridden(x)
    (expected,) = pytensor_gradient([x], cost, [VALUE])
    if form == "graph":
        fn = pjl.as_jax_function([x], cost)
    else:
        f = pytensor.function([x], cost, mode="JAXPR")
        fn = first(pjl.as_jax_function(f.copy() if form == "copied" else f))
    value, gradient = jax.jit(jax.value_and_grad(fn))(VALUE)
    np.testing.assert_allclose(value, pytensor.function([x], cost, mode="FAST_COMPILE")(VALUE))
    np.testing.assert_allclose(gradient, expected)
    np.testing.assert_allclose(jax.vmap(jax.grad(fn))(np.stack([VALUE, VALUE])), [expected] * 2)


class Clip(Op):
    """The identity, whose gradient is clipped by a user's own Op."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0].copy()

    def pullback(self, inputs, outputs, cotangents):
        return [pt.clip(cotangents[0], -0.5, 0.5)]


@emits(Clip)
def emit_Clip(op, node, b, x):
    """Return the operand."""
    return x


def by_function(x):
    """Return a clipped value from a function with an override."""
    y = pt.dvector("y")
    return OpFromGraph([y], [y * 1.0], pullback=lambda inputs, outputs, grads: [pt.clip(grads[0], -0.5, 0.5)])(x)


def in_blockwise(x):
    """Return a clipped value from a batch of functions."""
    y = pt.dscalar("y")
    return Blockwise(OpFromGraph([y], [grad_clip(y, -0.5, 0.5) * 1.0]), signature="()->()")(x)


@pytest.mark.parametrize("clip", [lambda x: grad_clip(x, -0.5, 0.5), Clip(), by_function, in_blockwise])
@pytest.mark.parametrize("factor", [0.1, 100.0])
def test_clipped_gradients_are_of_the_outer_cotangent(clip, factor):
    x = pt.dvector("x")
    cost = (clip(x) ** 2).sum()
    fn = pjl.as_jax_function([x], cost)
    (expected,) = pytensor_gradient([x], cost * factor, [VALUE])
    np.testing.assert_allclose(jax.grad(lambda x: factor * fn(x))(VALUE), expected)


def test_a_number_and_its_gradient_share_loops():
    x, y = pt.dvector("x"), pt.dscalar("y")
    states = pytensor.scan(lambda e, s, y: pt.sin(s * y + e), [x], pt.zeros(()), [y], return_updates=False)
    cost = (states**2).sum()
    fn = pjl.as_jax_function([x, y], [cost, x.shape[0]])
    point = (VALUE, jnp.float64(0.7))
    value_and_grad = jax.value_and_grad(lambda x, y: 3 * fn(x, y)[0], (0, 1))
    count = str(jax.make_jaxpr(value_and_grad)(*point)).count("= scan[")
    assert count == 2  # forwards and backwards
    value, gradients = value_and_grad(*point)
    np.testing.assert_allclose(value, 3 * cost.eval({x: VALUE, y: 0.7}))
    for got, want in zip(gradients, pytensor_gradient([x, y], 3 * cost, point), strict=True):
        np.testing.assert_allclose(got, want)
    assert fn(*point)[1] == 3


def test_gradient_by_jax_knows_no_overrides():
    x = pt.dvector("x")
    fn = pjl.as_jax_function([x], (disconnected_grad(x) * x).sum(), gradient="jax")
    np.testing.assert_allclose(jax.grad(fn)(VALUE), 2 * VALUE)


def test_gradient_survives_the_deletion_of_updates():
    s, x = pytensor.shared(2.0, name="s"), pt.dscalar("x")
    f = pytensor.function([x], zero_grad(x) * x * s, updates={s: s + 1}, mode="JAXPR")
    fn = first(pjl.as_jax_function(f.copy(delete_updates=True)))
    np.testing.assert_allclose(jax.grad(fn, (0, 1))(3.0, 2.0), (6.0, 9.0))


def test_higher_derivatives():
    x = pt.dscalar("x")
    fn = pjl.as_jax_function([x], x**5 + zero_grad(x**2) * x)
    first = jax.grad(fn)
    second = jax.grad(first)
    np.testing.assert_allclose(first(2.0), 5 * 16 + 4)
    np.testing.assert_allclose(second(2.0), 20 * 8)  # pt.grad keeps zero_grad
    np.testing.assert_allclose(jax.jit(jax.grad(second))(2.0), 60 * 4)


def test_jacobian():
    x = pt.dvector("x")
    fn = pjl.as_jax_function([x], pt.exp(x) * x.sum())
    expected = np.diag(np.exp(VALUE) * VALUE.sum()) + np.exp(VALUE)[:, None]
    np.testing.assert_allclose(jax.jacrev(fn)(VALUE), expected)


@pytest.mark.parametrize("gradient", ["pytensor", "jax"])
def test_outputs_of_all_kinds(gradient):
    x, y, n = pt.dvector("x"), pt.dscalar("y"), pt.lvector("n")
    a = pt.exp(x)
    outputs = [a, a, a * y, x, n + 1, x > 0, pt.constant(2.0), (x * n).sum()]
    fn = pjl.as_jax_function([x, y, n], outputs, gradient=gradient)
    values = [jnp.asarray(VALUE), jnp.float64(0.7), jnp.arange(3)]
    results, pullback = jax.vjp(lambda x, y: fn(x, y, values[2]), *values[:2])
    weights = [np.cos(np.arange(r.size) + i).reshape(r.shape) for i, r in enumerate(results)]
    floats = [i for i, r in enumerate(results) if r.dtype.kind == "f"]
    cotangents = [
        w.astype(r.dtype) if i in floats else np.zeros(w.shape, jax.dtypes.float0)
        for i, (r, w) in enumerate(zip(results, weights, strict=True))
    ]
    cost = sum((tensor_copy(outputs[i]) * weights[i]).sum() for i in floats)
    expected = pytensor_gradient([x, y, n], cost, values, [x, y])
    for got, want in zip(pullback(cotangents), expected, strict=True):
        np.testing.assert_allclose(got, want)
    float0 = jax.grad(lambda n: fn(*values[:2], n)[-1], allow_int=True)(values[2])
    assert float0.dtype == jax.dtypes.float0
    # Each output by itself: the others have no cotangent.
    for i in floats:
        got = jax.grad(lambda x, i=i: (fn(x, *values[1:])[i] * weights[i]).sum())(values[0])
        want = pytensor_gradient([x, y, n], (tensor_copy(outputs[i]) * weights[i]).sum(), values, [x])[0]
        np.testing.assert_allclose(got, want)


def test_dtypes_and_empty_arrays():
    x, y = pt.fvector("x"), pt.dvector("y")
    fn = pjl.as_jax_function([x, y], (pt.exp(x) * y).sum())
    for n in (0, 2):
        narrow, wide = jax.grad(fn, (0, 1))(jnp.zeros(n, "float32"), jnp.ones(n, "float32"))
        assert (narrow.dtype, wide.dtype) == ("float32", "float32")  # as the arguments
        np.testing.assert_array_equal(narrow, np.ones(n))
    with jax.enable_x64(False):
        z = pt.fvector("z")
        fn = pjl.as_jax_function([z], (zero_grad(z) * z).sum())
        np.testing.assert_array_equal(jax.grad(fn)(np.full(2, 3.0, "float32")), [3, 3])


def test_shared_variables_and_generators():
    rng, s = pytensor.shared(np.random.default_rng(0), name="rng"), pytensor.shared(2.0, name="s")
    following, draw = pt.random.normal(size=(2,), rng=rng, return_next_rng=True)
    x = pt.dvector("x")
    f = pytensor.function([x], (x * draw * s).sum(), updates={rng: following, s: s * 2}, mode="JAXPR")
    fn = pjl.as_jax_function(f)
    kinds = {str(v.type): i for i, v in enumerate(f.maker.fgraph.inputs)}
    args = [np.ones(2), None, None]
    args[kinds[str(rng.type)]], args[kinds[str(s.type)]] = jax.random.key(1), 3.0
    gradient = jax.grad(lambda x: fn(x, *args[1:])[0])(args[0])  # the same numbers are drawn again
    np.testing.assert_allclose(gradient @ args[0], fn(*args)[0])


# -- values that are not numbers, and Ops without a gradient -------------------------------------------------------


def test_static_inputs():
    n, x = pt.lscalar("how_many"), pt.dscalar("x")
    fn = pjl.as_jax_function([n, x], (pt.arange(n) * zero_grad(x) * x).sum())
    assert [float(jax.grad(lambda x, k=k: fn(k, x))(2.0)) for k in (3, 4)] == [6.0, 12.0]
    np.testing.assert_allclose(jax.jit(jax.grad(lambda x: fn(3, x)))(2.0), 6)
    with pytest.raises(pjl.RuntimeTracerError, match="'how_many'"):
        jax.jit(jax.grad(lambda x, n: fn(n, x)))(2.0, 3)


def test_input_that_only_the_gradient_must_know():
    x, n = pt.dvector("x"), pt.lscalar("n")
    y = pt.dvector("y")
    op = OpFromGraph([y, n], [y.sum() + n], pullback=lambda i, o, g: [pt.repeat(g[0], i[1]), pt.zeros(())])
    fn = pjl.as_jax_function([x, n], op(x, n))
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: fn(x, 3)))(VALUE), np.ones(3))


def test_undefined_gradient_is_that_of_jax():
    loc, x = pt.dscalar("loc"), pt.dscalar("x")
    rng = pytensor.shared(np.random.default_rng(0))
    _, draw = pt.random.normal(loc, 2.0, rng=rng, return_next_rng=True)
    fn = pjl.as_jax_function([loc, x], draw * 3 + zero_grad(x) * x)
    np.testing.assert_allclose(jax.grad(fn, (0, 1))(1.0, 5.0), (3.0, 5.0))


def test_gradient_that_the_user_declared_undefined():
    x, y = pt.dscalar("x"), pt.dscalar("y")
    fn = pjl.as_jax_function([x, y], undefined_grad(x) * y)
    np.testing.assert_allclose(jax.grad(lambda y: fn(2.0, y))(3.0), 2.0)
    with pytest.raises(NullTypeGradError, match="UndefinedGrad"):
        jax.grad(lambda x: fn(x, 3.0))(2.0)


class Plain(Op):
    """Squares; PyTensor knows no gradient of it."""

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0] ** 2


@emits(Plain)
def emit_Plain(op, node, b, x):
    """Square."""
    return prims.square(b, x)


def test_op_without_a_gradient_in_pytensor():
    x = pt.dscalar("x")
    fn = pjl.as_jax_function([x], Plain()(x) * 2)
    np.testing.assert_allclose(jax.grad(fn)(3.0), 12.0)


def test_gradient_that_is_not_one_program():
    class Broken(Plain):
        def pullback(self, inputs, outputs, cotangents):
            return [cotangents[0] * NoRule()(inputs[0])]

    class NoRule(Op):
        def make_node(self, x):
            return Apply(self, [x], [x.type()])

        def perform(self, node, inputs, outputs):
            outputs[0][0] = inputs[0]

    x = pt.dscalar("x")
    with pytest.raises(pjl.GraphBreakError, match="NoRule") as error:
        jax.grad(lambda v: pjl.as_jax_function([x], Broken()(x))(v))(3.0)
    assert 'gradient="jax"' in error.value.__notes__[0]


@pytest.mark.parametrize("transform", [jax.hessian, jax.jacfwd], ids=["hessian", "jacfwd"])
def test_forward_mode_says_what_to_do(transform):
    x = pt.dvector("x")
    fn = pjl.as_jax_function([x], (x**2).sum())
    with pytest.raises(TypeError) as error:
        transform(fn)(VALUE)
    assert str(error.value) == FORWARD_MODE


def test_unknown_gradient():
    with pytest.raises(ValueError, match="'numpy'"):
        pjl.as_jax_function([], [], gradient="numpy")


def test_export_of_a_gradient_with_a_symbolic_dimension():
    x = pt.dmatrix("x")
    fn = pjl.as_jax_function([x], (pt.exp(x) * zero_grad(x)).sum() / x.shape[0])
    shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape("rows, 3"), "float64")
    exported = jax.export.export(jax.jit(jax.grad(fn)))(shape)
    value = np.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(exported.call(value), np.exp(value) * value / 2)
