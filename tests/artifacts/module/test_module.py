"""`Module` on the host: its functions compute what PyTensor computes, step by step, and nothing is lost on an error."""

import collections
import dataclasses

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.io import In
from pytensor.raise_op import Assert
from pytensor.tensor.random.type import random_generator_type

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base.random_keys import keys_of

Params = collections.namedtuple("Params", "x,b")


def readme_module():
    """Return the class of the program in iree-jax's README, written with PyTensor, and the value of its ``x``."""
    x_value, b_value = np.full((3, 4), 4.0, "float32"), np.ones((3, 4), "float32")
    params = Params(pytensor.shared(x_value, name="x"), pytensor.shared(b_value, name="b"))
    m, x, b = (pt.fmatrix(name) for name in "mxb")

    class TrivialKernelModule(pjl.Module):
        _params = params
        _x = params.x
        get_params = pjl.public([], params)
        _linear = pjl.private([m, x, b], m * x + b)
        multiplier = pjl.Module.like(x_value, "multiplier")
        result = _linear(multiplier, params.x, params.b)
        run = pjl.public([multiplier], result, updates={params.x: result})
        new_params = pjl.Module.like(params, "new_params")
        set_params = pjl.public([new_params], updates={params: new_params})

    return TrivialKernelModule, x_value


def test_program_of_the_readme_of_iree_jax():
    cls, ones = readme_module()[0], np.ones((3, 4), "float32")
    m = cls()
    assert repr(m).startswith(
        "<module trivial_kernel: get_params(), _linear(m, x, b), run(multiplier), set_params(new_params)"
    )
    params = m.get_params()
    assert type(params) is Params and params.x.dtype == "float32"
    np.testing.assert_array_equal(params, [4 * ones, ones])
    np.testing.assert_array_equal(m.run(2 * ones), 9 * ones)
    np.testing.assert_array_equal(m.run(2 * ones), 19 * ones)
    np.testing.assert_array_equal(m.get_params(), [19 * ones, ones])
    np.testing.assert_array_equal(m._x.get_value(), 19 * ones)
    assert m.set_params(Params(0 * ones, ones)) is None
    np.testing.assert_array_equal(m.run(multiplier=ones), ones)
    np.testing.assert_array_equal(m._linear(2 * ones, 3 * ones, ones), 7 * ones)


# Equal to PyTensor


def regression():
    """Return inputs, outputs and updates of a step of gradient descent with momentum, and a prediction."""
    rng = np.random.default_rng(0)
    w, velocity = (pytensor.shared(np.zeros(3), name=name) for name in ("w", "velocity"))
    count = pytensor.shared(np.int64(0), name="count")
    x, y = pt.dmatrix("x"), pt.dvector("y")
    loss = ((y - x @ w) ** 2).mean()
    loss.name = "loss"
    updates = {w: w - 0.02 * velocity, velocity: 0.9 * velocity + pt.grad(loss, w), count: count + 1}
    data = [(rng.normal(size=(5, 3)), rng.normal(size=5)) for _ in range(100)]
    return [x, y], loss, updates, x @ w, data


@pytest.mark.parametrize("how", ["class", "functions"])
def test_a_hundred_steps_equal_pytensor(how):
    inputs, loss, updates, prediction, data = regression()
    w, velocity, count = updates
    if how == "class":

        class Model(pjl.Module):
            weights = w
            momentum = velocity
            step = pjl.public(inputs, [loss, count], updates=updates)
            predict = pjl.public(inputs[:1], prediction)

        m, weights = Model(), "weights"
    else:
        step = pytensor.function(inputs, [loss, count], updates=updates, mode="JAXPR")
        predict = pytensor.function(inputs[:1], prediction, mode="JAXPR")
        m, weights = pjl.Module("model", functions={"step": step, "predict": predict}), "w"
    reference = pytensor.function(inputs, [loss, count], updates=updates, mode="FAST_COMPILE")
    for xs, ys in data:
        want = reference(xs, ys)
        found = m.step(xs, y=ys)
        assert [x.dtype for x in found] == ["float64", "int64"]
        np.testing.assert_allclose(found, want, rtol=0, atol=1e-12)
        np.testing.assert_allclose(getattr(m, weights).get_value(), w.get_value(), rtol=0, atol=1e-12)
    assert m.count.get_value() == 100
    np.testing.assert_allclose(m.predict(xs), xs @ w.get_value(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "complex128", "bool"])
@pytest.mark.parametrize("shape", [(), (3,), (0, 2)], ids=str)
def test_dtypes_and_shapes(dtype, shape):
    value = np.ones(shape, dtype)
    state = pytensor.shared(value, name="state")
    x = pt.tensor("x", dtype=dtype, shape=(None,) * len(shape))

    class Sum(pjl.Module):
        total = state
        add = pjl.public([x], state, updates={state: pt.cast(state + x, dtype)})

    m = Sum()
    reference = pytensor.function([x], state, updates={state: pt.cast(state + x, dtype)}, mode="FAST_COMPILE")
    for _ in range(2):
        want, found = reference(value), m.add(value)
        assert found.dtype == want.dtype and found.shape == want.shape and found.flags.writeable
        np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(m.total.get_value(), state.get_value())


def test_draws_are_those_of_as_jax_function():
    rng = pytensor.shared(np.random.default_rng(3), name="rng")
    following, draws = pt.random.normal(size=(2,), rng=rng, return_next_rng=True)

    class Draws(pjl.Module):
        key = rng
        draw = pjl.public([], draws, updates={rng: following})

    m, other = Draws(), Draws()
    fn = pjl.as_jax_function(pytensor.function([], draws, updates={rng: following}, mode="JAXPR"))
    key = m.key.get_value()
    assert key.dtype == "uint32" and key.shape == (2,)
    for _ in range(3):
        want, key = fn(key)
        np.testing.assert_array_equal(m.draw(), want)
        np.testing.assert_array_equal(m.key.get_value(), key)
    first = other.draw()
    assert not np.array_equal(first, other.draw())
    m.key.set_value(jax.random.key(5))
    of_key = m.draw()
    m.key.set_value(jax.random.PRNGKey(5))
    np.testing.assert_array_equal(m.draw(), of_key)
    m.key.set_value(np.random.default_rng(3))
    np.testing.assert_array_equal(m.draw(), first)


def test_generators_as_arguments_and_results():
    """They are keys."""
    generator = random_generator_type("generator")
    following, draws = pt.random.normal(size=2, rng=generator, return_next_rng=True)
    m = pjl.Module("m", functions={"f": pjl.public([generator], [draws, following])})
    first, key = m.f(np.random.default_rng(1))
    np.testing.assert_array_equal(m.f(keys_of(np.random.default_rng(1)))[0], first)
    assert not np.array_equal(m.f(key)[0], first)
    (described,) = m.mlir().description.functions
    assert [a.is_key for a in (*described.arguments, *described.results)] == [True, False, True]


def test_functions_of_a_pymc_model():
    pymc = pytest.importorskip("pymc")
    with pymc.Model() as model:
        mu = pymc.Normal("mu", shape=2)
        pymc.Normal("y", mu[0], observed=np.arange(3.0))
    f, point = model.compile_logp(mode="JAXPR"), model.initial_point()
    m = pjl.Module("density", functions={"logp": f, "with_gradient": model})
    assert m.logp(**point) == f(point) == m.with_gradient(**point)[0]


def test_tensors_with_named_dimensions():
    xtensor = pytest.importorskip("pytensor.xtensor")
    xarray = pytest.importorskip("xarray")
    w = pytensor.shared(xarray.DataArray(np.arange(3.0), dims=("column",)), name="w")
    x = xtensor.xtensor("x", dims=("row", "column"), shape=(2, 3))
    m = pjl.Module("m", functions={"f": pjl.public([x], (x * w).sum("column"), updates={w: w + 1.0})})
    np.testing.assert_array_equal(m.f(np.ones((2, 3))), [3, 3])
    transposed = xarray.DataArray(np.ones((3, 2)), dims=("column", "row"))
    np.testing.assert_array_equal(m.f(transposed), [6, 6])
    m.w.set_value(xarray.DataArray(np.zeros(3), dims=("column",)))
    np.testing.assert_array_equal(m.f(transposed), [0, 0])


# State


def counter(**kwargs):
    """Return a module that counts, and its shared variable."""
    count, by = pytensor.shared(np.int64(0), name="count"), pt.lscalar("by")
    add = pjl.public([by], count + by, updates={count: count + by}, **kwargs)
    return pjl.Module("counter", functions={"add": add}), count


def test_an_instance_has_values_of_its_own():
    m, count = counter()
    count.set_value(100)
    assert m.add(5) == 5 and m.add(5) == 10
    assert count.get_value() == 100
    value = m.count.get_value()
    value += 1
    assert m.count.get_value() == 10
    m.count.set_value(3)
    assert m.add(by=1) == 4


def test_in_place_updates_elsewhere_do_not_reach_a_module():
    """PyTensor writes to the memory of a shared variable."""
    w = pytensor.shared(np.zeros(4), name="w")
    m = pjl.Module("reader", functions={"read": pjl.public([], w + 0.0)})
    pytensor.function([], updates={w: pt.set_subtensor(w[1], 5.0)}, mode="FAST_RUN")()
    w.get_value(borrow=True)[:] += 1
    np.testing.assert_array_equal(m.read(), 0)


def test_what_is_not_updated_is_constant():
    w, x = pytensor.shared(np.ones(2), name="w"), pt.dvector("x")

    class Scaled(pjl.Module):
        weights = w
        scale = pjl.public([x], x * w)

    m = Scaled()
    assert not m.weights.is_mutable and repr(m.weights) == "<constant weights: float64[2]>"
    with pytest.raises(TypeError, match=r"weights is a constant of the module.* Module.state\(w, mutable=True\)"):
        m.weights.set_value(np.zeros(2))
    np.testing.assert_array_equal(m.scale([2.0, 3.0]), [2, 3])


def test_state_is_mutable_or_constant_as_told():
    w, x = pytensor.shared(np.ones(2), name="w"), pt.dvector("x")

    class Scaled(pjl.Module):
        weights = pjl.Module.state({"w": w}, mutable=True)
        scale = pjl.public([x], x * w)

    m = Scaled()
    m.weights.set_value({"w": [2.0, 3.0]})
    np.testing.assert_array_equal(m.scale([2.0, 3.0]), [4, 9])

    class Constant(pjl.Module):
        weights = pjl.Module.state(w, mutable=False)
        change = pjl.public([x], updates={w: x})

    with pytest.raises(TypeError, match="weights is told to be constant, and change updates it"):
        Constant()

    class Both(pjl.Module):
        one = pjl.Module.state(w, mutable=False)
        other = pjl.Module.state(w, mutable=True)

    with pytest.raises(TypeError, match="other is told to be mutable and constant"):
        Both()


def test_aliases_stay_aliases():
    w, v, by = pytensor.shared(1.0, name="w"), pytensor.shared(1.0, name="v"), pt.dscalar("by")

    class Model(pjl.Module):
        params = collections.OrderedDict(w=w, v=v)  # noqa: RUF012
        same = w
        again = params
        grow = pjl.public([by], updates={w: w + by})

    m = Model()
    m.grow(2.0)
    assert m.same.get_value() == m.params.w.get_value() == m.again["w"].get_value() == 3
    m.same.set_value(7.0)
    assert m.params.get_value() == {"w": 7, "v": 1}
    assert repr(m.params) == "<state params.w: float64[], constant params.v: float64[]>"
    assert repr(m.same) == "<state same = params.w: float64[]>" and not m.params.is_mutable
    assert repr(m.again) == "<state again.w = params.w: float64[], constant again.v = params.v: float64[]>"
    shared = pytensor.function([], w, mode="JAXPR"), pytensor.function([by], w, updates={w: w * by}, mode="JAXPR")
    pair = pjl.Module("pair", functions=dict(zip(("get", "grow"), shared, strict=True)))
    assert (pair.grow(4.0), pair.get(), pair.w.get_value()) == (1, 4, 4)


@dataclasses.dataclass
class Layer:
    """A dataclass that JAX knows nothing of, and whose own checks take arrays only."""

    w: np.ndarray
    bias: tuple

    def __post_init__(self):
        assert isinstance(self.w, np.ndarray | pt.TensorVariable | pytensor.compile.SharedVariable)


def test_trees_as_arguments_results_and_state():
    layers = [Layer(pytensor.shared(np.full(2, float(i))), (pytensor.shared(0.0),)) for i in range(2)]
    like = pjl.Module.like(layers, "layers")

    class Network(pjl.Module):
        parts = layers
        replace = pjl.public([like], {"old": layers, "sum": like[0].w + like[1].w}, updates=[(layers, like)])

    m = Network()
    new = [Layer(np.array([5.0, 6.0]), (1.0,)), Layer(np.array([7.0, 8.0]), (2.0,))]
    found = m.replace(new)
    assert type(found["old"][1]) is Layer and type(found["old"][1].bias) is tuple
    np.testing.assert_array_equal(found["old"][1].w, [1, 1])
    np.testing.assert_array_equal(found["sum"], [12, 14])
    assert m.parts[1].bias[0].get_value() == 2
    np.testing.assert_array_equal(m.parts.get_value()[0].w, [5, 6])
    m.parts[0].set_value({"w": [0.0, 0.0], "bias": [3.0]})  # names count, not types
    assert m.replace(layers=new)["old"][0].bias[0] == 3
    with pytest.raises(TypeError, match=r"layers.1 is a tree of w, bias, and the given value has 0, 1"):
        m.replace([new[0], (1.0, 2.0)])
    with pytest.raises(TypeError, match="layers is a tree of 0, 1, and the given value is float"):
        m.replace(3.0)
    with pytest.raises(AttributeError, match=r"parts has 0, 1, not 'w'"):
        m.parts.w  # noqa: B018


def test_inputs_by_name():
    a, b = pt.dvectors("a", "b")
    m = pjl.Module("module", functions={"g": pjl.public({"first": a, "pair": [b]}, a - b)})
    np.testing.assert_array_equal(m.g(first=[2.0], pair=[[3.0]]), [-1])


def test_an_input_with_updates_that_is_no_shared_variable():
    a, b = pt.dvectors("a", "b")
    f = pytensor.function([a, In(b, update=a + b)], a - b, mode="JAXPR")
    with pytest.raises(TypeError, match="b is updated and has no value: make it a shared variable, or an argument"):
        pjl.Module("module", functions={"f": f})


# Nothing is lost


def test_state_after_a_failed_check():
    w, i, x = pytensor.shared(np.arange(3.0), name="w"), pt.lscalar("i"), pt.dscalar("x")
    positive = Assert("x must be positive")(x, x > 0)
    updates = {w: pt.set_subtensor(w[i], positive)}
    m = pjl.Module("module", functions={"put": pjl.public([i, x], w[i], updates=updates)})
    assert m.put(1, 5.0) == 1
    for args, error, message in [((3, 1.0), IndexError, "index"), ((0, -1.0), AssertionError, "x must be positive")]:
        with pytest.raises(error, match=message):
            m.put(*args)
        np.testing.assert_array_equal(m.w.get_value(), [0, 5, 2])
    assert m.put(2, 1.0) == 2


def test_an_argument_that_is_called_self():
    x = pt.dscalar("self")
    assert pjl.Module("m", functions={"f": pytensor.function([x], x + 1, mode="JAXPR")}).f(self=2) == 3


def pair():
    """Return a module of a compiled function and a declared one, which share state."""
    w, x = pytensor.shared(np.ones(2), name="w"), pt.dvector("x")
    f = pytensor.function([x], w.sum(), updates={w: w + x}, mode="JAXPR")
    return pjl.Module("pair", functions={"f": f, "g": pjl.public([x], w * x)})
