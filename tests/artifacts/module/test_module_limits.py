"""What a `Module` refuses, and what it keeps: on errors, in copies and pickles."""

import copy
import pickle
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.rebuild import UnusedInputError

import pytensor_jaxpr_linker as pjl
from tests.artifacts.module.test_module import counter, pair


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
