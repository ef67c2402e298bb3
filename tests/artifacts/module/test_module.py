"""`Module` on the host: its functions compute what PyTensor computes, step by step, and nothing is lost on an error."""

import collections
import copy
import dataclasses
import pickle
import re
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.io import In
from pytensor.compile.rebuild import UnusedInputError
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
    with pytest.raises(TypeError, match=r"layers.1 is a tree of w, bias, and what is given has 0, 1"):
        m.replace([new[0], (1.0, 2.0)])
    with pytest.raises(TypeError, match="layers is a tree of 0, 1, and what is given is float"):
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


def test_bad_arguments_raise_before_anything_runs():
    m, _ = counter()
    for args, kwargs, message in [
        ((), {}, "missing a required argument: 'by'"),
        ((1, 2), {}, "too many positional arguments"),
        ((1,), {"step": 2}, "got an unexpected keyword argument 'step'"),
        ((1.5,), {}, "by takes an array of dtype int64"),
        ((np.float64(1),), {}, "by has dtype int64, and its value has float64"),
        (([1, 2],), {}, "by has 0 axes"),
        (({"a": 1},), {}, "by takes an array of dtype int64"),
    ]:
        with pytest.raises(TypeError, match=message):
            m.add(*args, **kwargs)
    assert m.count.get_value() == 0


def test_bad_values_of_state():
    m, _ = counter()
    for value, message in [
        (1.5, "count takes an array of dtype int64"),
        ([1, 2], "count has 0 axes"),
        ({}, "count takes"),
    ]:
        with pytest.raises(TypeError, match=message):
            m.count.set_value(value)
    assert m.count.get_value(borrow=True) == 0
    m.count.set_value(0, borrow=True)
    w = pytensor.shared(np.zeros(2), name="w")
    m = pjl.Module("pair", functions={"both": pjl.public([], updates={w: w + 1}), "more": counter_like(w)})
    with pytest.raises(TypeError, match="w has shape"):
        m.w.set_value(np.zeros(3))
    with pytest.raises(TypeError, match=r"w has shape \(2,\) as long as the module lives; its update has \(4,\)"):
        m.more()
    np.testing.assert_array_equal(m.w.get_value(), 0)


def counter_like(w):
    """Return a function that doubles the length of a vector."""
    return pjl.public([], updates={w: pt.concatenate([w, w])})


def test_a_tree_is_set_as_a_whole_or_not_at_all():
    w, v = pytensor.shared(1.0, name="w"), pytensor.shared(np.ones(2), name="v")

    class Pair(pjl.Module):
        both = pjl.Module.state((w, v), mutable=True)

    m = Pair()
    with pytest.raises(TypeError, match=r"both.1 has shape \(2,\)"):
        m.both.set_value((5.0, np.ones(3)))
    assert m.both[0].get_value() == 1


def test_no_update_is_lost_between_threads():
    m, _ = counter()
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: int(m.add(1)), range(200)))
    assert sorted(results) == list(range(1, 201))
    assert m.count.get_value() == 200


# What a module is made of


def test_functions_without_names_are_refused():
    f = pytensor.function([], pt.zeros(2), mode="JAXPR")
    for given, message in [
        ([f], r"a dict with their names, such as functions=\{\"step\": f\}, not \[<"),
        (f, "a dict with their names"),
        ({1: f}, "a dict with their names"),
        (None, r"A module has functions: Module\('m', functions=\{\"step\": f\}\)"),
    ]:
        with pytest.raises(TypeError, match=message):
            pjl.Module("m", functions=given)
    with pytest.raises(TypeError, match="A module has functions"):
        pjl.Module()
    with pytest.raises(TypeError, match="is no name for a part of a module"):
        pjl.Module(f, functions={"f": f})
    assert repr(pjl.Module(functions={"f": f})) == "<module module: f()>"


def test_inputs_that_nothing_needs():
    x, y = pt.dvectors("x", "y")
    for declare in (pjl.public, pjl.private):
        with pytest.raises(UnusedInputError):
            pjl.Module("m", functions={"f": declare([x, y], 2.0 * x)})
        m = pjl.Module("m", functions={"f": declare([x, y], 2.0 * x, like=[[1.0]] * 2, on_unused_input="ignore")})
        assert m.f([1.0], [2.0]) == 2
    (described,) = pjl.Module("m", functions={"f": m_declared(x, y)}).mlir().description.functions
    assert [a.name for a in described.arguments] == ["x", "y"]
    with pytest.warns(UserWarning, match="not part of the computational graph"):
        pjl.Module("m", functions={"f": pjl.public([x], on_unused_input="warn")})


def m_declared(x, y):
    """Return a function of fixed shapes that needs one of its inputs."""
    return pjl.public([x, y], 2.0 * x, like=[[1.0]] * 2, on_unused_input="ignore")


# Copies and pickles


class Counter(pjl.Module):
    """A module that pickles name by its class."""

    count = pytensor.shared(np.int64(0), name="count")
    by = pt.lscalar("by")
    key = pytensor.shared(np.random.default_rng(1), name="key")
    following, noise = pt.random.normal(rng=key, return_next_rng=True)
    add = pjl.public([by], [count + by, noise], updates={count: count + by, key: following})

    def __init__(self, label):
        self.label = label
        super().__init__()
        self.history = [1]


def pair():
    """Return a module of a compiled function and a declared one, which share state."""
    w, x = pytensor.shared(np.ones(2), name="w"), pt.dvector("x")
    f = pytensor.function([x], w.sum(), updates={w: w + x}, mode="JAXPR")
    return pjl.Module("pair", functions={"f": f, "g": pjl.public([x], w * x)})


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_have_the_state_of_the_moment_and_go_on_alone(way):
    m, other = Counter("mine"), pair()
    m.add(5), other.f([1.0, 2.0])
    n, another = way(m), way(other)
    assert type(n) is Counter and n.label == "mine" and n.history == [1]
    assert (n.history is m.history) == (way is copy.copy)
    assert m.add(1) == n.add(1) and m.count.get_value() == 6  # the same draws, and states of their own
    assert repr(n) == repr(m)
    np.testing.assert_array_equal(another.w.get_value(), [2, 3])
    another.f([1.0, 1.0])
    np.testing.assert_array_equal(another.g([1.0, 1.0]), [3, 4])  # its functions share its state
    np.testing.assert_array_equal(other.g([1.0, 1.0]), [2, 3])
    assert another.mlir().description.functions[1].arguments[0].shape == (2,)


def test_a_pickle_of_another_class_is_refused(monkeypatch):
    data = pickle.dumps(Counter("mine"))
    changed = type("Counter", (pjl.Module,), {"count": pytensor.shared(np.zeros(2), name="count")})
    changed.__module__ = Counter.__module__
    monkeypatch.setitem(globals(), "Counter", changed)
    with pytest.raises(
        TypeError, match=r"other state .*: count is int64\[\] there and float64\[2\] here, key is uint32"
    ):
        pickle.loads(data)


def test_classes_that_are_pickled_by_value():
    cloudpickle = pytest.importorskip("cloudpickle")
    w = pytensor.shared(1.0, name="w")

    class Local(pjl.Module):
        weight = w
        grow = pjl.public([], w, updates={w: 2.0 * w})

    m = Local()
    m.grow()
    n = pickle.loads(cloudpickle.dumps(m))
    assert (n.grow(), n.weight.get_value(), m.weight.get_value()) == (2, 4, 2)


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_parts_are_copied_with_their_module(way):
    m = pair()
    for part in (m.f, m.w):
        with pytest.raises(TypeError, match="is part of a module: copy or pickle the module, "):
            way(part)


def test_private_functions_are_applied_to_variables():
    x, y = pt.dvectors("x", "y")
    scale = pytensor.shared(2.0, name="scale")
    pair = pjl.private([(x, y)], {"sum": scale * (x + y)})

    class Model(pjl.Module):
        _pair = pair
        total = pjl.public([x], pair((x, 3.0 * x))["sum"].sum())

    m = Model()
    assert m.total([1.0, 2.0]) == 24
    np.testing.assert_array_equal(m._pair(([1.0], [2.0]))["sum"], [6])
    with pytest.raises(TypeError, match=r"The function takes arg0, not 2 arguments"):
        pair(x, y)
    with pytest.raises(TypeError, match="A function with updates can't be part of another graph"):
        pjl.public([], updates={scale: scale + 1})()


def test_a_subclass_has_what_its_base_has():
    w, x = pytensor.shared(3.0, name="w"), pt.dscalar("x")

    class Base(pjl.Module):
        weight = w
        apply = pjl.public([x], w * x)
        unit = "m"

        def twice(self, value):
            return self.apply(self.apply(value))

    class Derived(Base, name="another"):
        apply = pjl.public([x], w + x)

    assert Base().twice(2.0) == 18 and Derived().twice(2.0) == 8
    assert repr(Derived()) == "<module another: apply(x), <constant weight: float64[]>>"
    assert Derived.weight is w and Derived().unit == "m"


def test_modules_of_what_is_compiled_already():
    x = pt.dvector("x")
    f = pytensor.function([x], [x.sum(), x * 2], mode="JAXPR", name="both")
    m = pjl.Module(f)
    assert m.both([1.0, 2.0])[0] == 3
    assert pjl.Module(pytensor.function([x], x.sum(), mode="JAXPR")).main([1.0, 2.0]) == 3
    assert pjl.Module("pure", functions={"f": pjl.as_jax_function([x], x.sum())}).f([1.0, 2.0]) == 3
    for given in (np.exp, pytensor.function([x], x, mode="FAST_COMPILE"), None):
        with pytest.raises(TypeError, match="mode JAXPR"):
            pjl.Module("module", functions={"f": given})
    with pytest.raises(TypeError, match=r"Model\(\) takes no arguments"):
        type("Model", (pjl.Module,), {})("name")


def test_reports_take_functions_of_a_module():
    m, _ = counter()
    assert repr(m.add) == "<function add(by) of module counter>"
    assert "Add" in str(pjl.explain(m.add))
    assert pjl.make_jaxpr(m.add).jaxpr.eqns
    assert "1 region" in repr(pjl.stages(m.add, 1))
    with pytest.raises(TypeError, match=r"explain takes no Module: it has functions to ask about, m.add"):
        pjl.explain(m)


def test_a_function_must_be_one_program():
    x = pt.dvector("x")
    broken = x[x > 0].sum() + pt.as_tensor_variable(np.nan) * pt.unique(x)[0]
    with pytest.raises(pjl.GraphBreakError, match=r"JX002.*Compact"):
        pjl.Module("module", functions={"f": pjl.public([x], broken)})


def test_values_must_be_arrays():
    sparse, scipy_sparse = pytest.importorskip("pytensor.sparse"), pytest.importorskip("scipy.sparse")
    s = sparse.shared(scipy_sparse.csr_matrix(np.eye(3)), name="s")
    x = pt.dmatrix("x")
    with pytest.raises(TypeError, match="s of f is no array, but Sparse"):
        pjl.Module("m", functions={"f": pjl.public([x], sparse.dot(s, x))})
    with pytest.raises(TypeError, match="s of the module is no array, but Sparse"):
        type("Model", (pjl.Module,), {"matrix": s})()


def test_shared_variables_without_names_or_with_one_name():
    states = [pytensor.shared(float(i), name=name) for i, name in enumerate([None, "w", "w", "mlir", "f", "a-b"])]
    m = pjl.Module("module", functions={"f": pjl.public([], pt.stack(states), updates={s: s + 1 for s in states})})
    np.testing.assert_array_equal(m.f(), range(6))
    found = {name: float(m.__dict__[name].get_value()) for name in ("state0", "w", "w_", "mlir_", "f_", "a_b")}
    assert found == {"state0": 1, "w": 2, "w_": 3, "mlir_": 4, "f_": 5, "a_b": 6}


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"mlir": lambda w, x: pjl.public([x], x)}, "'mlir' is a method of every module"),
        ({"like": lambda w, x: w}, "'like' is a method of every module"),
        ({"data": lambda w, x: np.ones(3)}, "data is no shared variable, but array.* make it one"),
        ({"data": lambda w, x: {"w": w, "x": 3}}, "data.x is no shared variable, but 3"),
    ],
    ids=["function-name", "state-name", "array", "mixed"],
)
def test_what_a_class_may_not_have(attributes, message):
    w, x = pytensor.shared(1.0, name="w"), pt.dscalar("x")
    with pytest.raises(TypeError, match=message):
        type("Model", (pjl.Module,), {name: make(w, x) for name, make in attributes.items()})


@pytest.mark.parametrize(
    ("declare", "error", "message"),
    [
        (lambda w, x: pjl.public(x, x), TypeError, "The inputs of a function are a sequence or a dict"),
        (lambda w, x: pjl.public([3], x), TypeError, "arg0 is no PyTensor variable, but 3"),
        (lambda w, x: pjl.public([w], x), TypeError, "The input w is a shared variable"),
        (lambda w, x: pjl.public([x], [3]), TypeError, "outputs.0 is no PyTensor variable"),
        (lambda w, x: pjl.public({"a b": x}, x), ValueError, "'a b' can't be the name of an argument"),
        (lambda w, x: pjl.public([x], updates={x: w}), TypeError, "Only shared variables, and trees of them, have"),
        (lambda w, x: pjl.public([x], updates=[((w,), (x, x))]), TypeError, "The update is a tree of 0, and"),
        (lambda w, x: pjl.Module.like(object(), "a"), TypeError, "a can't be like array\\(<object"),
    ],
    ids=["no-list", "number", "shared", "output", "name", "update-of-input", "update-tree", "like"],
)
def test_what_can_not_be_declared(declare, error, message):
    with pytest.raises(error, match=message):
        declare(pytensor.shared(1.0, name="w"), pt.dscalar("x"))


def test_state_is_not_assigned_to():
    m, _ = counter()
    with pytest.raises(AttributeError, match=re.escape("count is state of the module: m.count.set_value(...) sets it")):
        m.count = 3
    m.note = "fine"
    assert m.note == "fine"


def test_like_fixes_the_shapes_of_arguments():
    x, y = pt.dmatrix("x"), pt.dvector("y")
    m = pjl.Module("module", functions={"f": pjl.public([x, (y,)], x @ y, like=[np.ones((2, 3)), ([1.0, 2.0, 3.0],)])})
    np.testing.assert_array_equal(m.f(np.ones((2, 3)), (np.ones(3),)), [3, 3])
    with pytest.raises(TypeError, match=r"x has shape \(2, 3\), and its value has \(4, 3\)"):
        m.f(np.ones((4, 3)), (np.ones(3),))
    for like, message in [
        ({"z": 1}, "like has 'z', and f takes x, arg1"),
        ([1, 2, 3], "like has 3 arguments, and f takes x, arg1"),
        ([np.ones(3)], r"'x' is a Matrix.*, but its argument has shape \(3,\)"),
        ([None, 3], "arg1 is a tree of 0"),
    ]:
        with pytest.raises(TypeError, match=message):
            pjl.Module("module", functions={"f": pjl.public([x, (y,)], x @ y, like=like)})
