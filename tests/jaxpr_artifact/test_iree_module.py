"""Modules that IREE compiled: they compute the same without PyTensor, and keep their state."""

import copy
import pickle
import subprocess
import textwrap
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import run_python

import pytensor_jaxpr_linker as pjl
from jaxpr_artifact import load, load_iree_module
from tests.artifacts.mlir.test_mlir_module import with_state
from tests.artifacts.module.test_module import readme_module, regression

pytest.importorskip("iree.compiler")
pytest.importorskip("iree.runtime")


#: Forbids what a machine without PyTensor does not have.
WITHOUT_PYTENSOR = """
import sys

class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pytensor", "pytensor_jaxpr_linker", "pymc") or name == "iree.compiler":
            raise ImportError(f"{name} is not here")

sys.meta_path.insert(0, Forbid())
import numpy as np
from jaxpr_artifact import load_iree_module
"""
vector = pt.tensor("x", dtype="float64", shape=(3,))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.vmfb"


def test_a_hundred_steps_elsewhere(path):
    inputs, loss, updates, prediction, data = regression()

    class Model(pjl.Module):
        step = pjl.public(inputs, [loss], updates=updates, like=data[0])
        predict = pjl.public(inputs[:1], prediction, like=data[0][:1])

    Model().save(path)
    assert [p.name for p in path.parent.iterdir()] == ["model.vmfb"]
    np.savez(path.parent / "data.npz", x=[x for x, _ in data], y=[y for _, y in data])
    run_python(
        WITHOUT_PYTENSOR
        + textwrap.dedent(
            f"""
            m, data = load_iree_module({str(path)!r}), np.load({str(path.parent / "data.npz")!r})
            losses = [m.step(x, y=y)[0] for x, y in zip(data["x"], data["y"])]
            assert m.get_count() == 100 and "pytensor" not in sys.modules
            np.savez({str(path.parent / "found.npz")!r}, losses=losses, w=m.get_w(), p=m.predict(data["x"][0]))
            """
        )
    )
    reference = pytensor.function(inputs, loss, updates=updates, mode="FAST_COMPILE")
    with np.load(path.parent / "found.npz") as found:
        np.testing.assert_allclose(found["losses"], [reference(*row) for row in data], rtol=0, atol=1e-12)
        w = next(iter(updates)).get_value()
        np.testing.assert_allclose(found["w"], w, rtol=0, atol=1e-12)
        np.testing.assert_allclose(found["p"], data[0][0] @ w, rtol=0, atol=1e-12)


def test_program_of_the_readme_without_python(path):
    import iree.runtime

    readme_module()[0]().save(path)
    np.save(path.parent / "x.npy", np.full((3, 4), 2, "float32"))
    tool = Path(iree.runtime.__file__).parents[1] / "_runtime_libs" / "iree-run-module"
    command = [tool, "--device=local-task", f"--module={path}", "--function=run", f"--input=@{path.parent}/x.npy"]
    out = subprocess.run(command, env={}, check=True, capture_output=True, text=True).stdout
    assert "3x4xf32=[9 9 9 9][9 9 9 9][9 9 9 9]" in out


def test_state_keys_checks_and_parameters(path):
    m = with_state()
    m.save(path)
    assert {p.name for p in path.parent.iterdir()} == {"model.vmfb", "model.irpa"}
    found = load_iree_module(path)
    assert repr(found).startswith("<module model loaded from ") and "take(i)" in repr(found)
    assert repr(found).endswith(repr(m).partition("get_rng")[0].partition("change(i), ")[2])
    for i in (2, 4000):
        for got, want in zip(found.take(i), m.take(i), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-14)
    np.testing.assert_allclose(found.draw(), m.draw(), rtol=1e-14)
    for i in (3, 8000):
        with pytest.raises((AssertionError, IndexError)) as expected:
            m.take(i)
        with pytest.raises(expected.type, match=str(expected.value).partition("(")[0]):
            found.take(i)
    key = found.get_rng()
    assert key.dtype == "uint32"
    np.testing.assert_array_equal(key, m.rng.get_value())
    found.change(2)
    m.change(2)
    np.testing.assert_allclose(found.take(2)[0], m.take(2)[0], rtol=1e-14)
    params = found.get_params()
    np.testing.assert_array_equal(params["table"][2], 0)
    assert found.set_params({"bias": params["bias"] + 1, "table": params["table"]}) is None
    assert found.get_params()["bias"][0] == params["bias"][0] + 1
    found.set_rng([1, 2])
    m.rng.set_value(np.array([1, 2], "uint32"))
    np.testing.assert_allclose(found.draw(), m.draw() + 1, rtol=1e-14)


Point = namedtuple("Point", "x,y")


@dataclass
class Layer:
    """A dataclass that JAX knows nothing of."""

    w: Any
    bias: tuple


def test_trees_and_state_are_those_of_the_host(path):
    layers = [Layer(pytensor.shared(np.full(2, float(i))), (pytensor.shared(0.0),)) for i in range(2)]
    like = pjl.Module.like(layers, "layers")
    point = pjl.Module.like(Point(np.ones(2), {"z": 0.0}), "point")

    class Network(pjl.Module):
        parts = layers
        first = layers[0].w
        replace = pjl.public([like], {"old": layers, "sum": like[0].w + like[1].w}, updates=[(layers, like)])
        move = pjl.public([point, vector], Point(point.x + layers[0].w, {"z": point.y["z"] * vector.sum()}))
        nothing = pjl.public([], ())

    m = Network()
    m.save(path)
    found = load_iree_module(path)
    assert repr(found).partition("IREE: ")[2].startswith("replace(layers), move(point, x), nothing(), ")
    new = [Layer(np.array([5.0, 6.0]), (1.0,)), Layer(np.array([7.0, 8.0]), (2.0,))]
    for module in (m, found):
        got = module.replace(new)
        np.testing.assert_array_equal(got["sum"], [12, 14])
        assert type(got["old"]) is list and type(got["old"][1].bias) is tuple
        np.testing.assert_array_equal(got["old"][1].w, [1, 1])
        moved = module.move(Point(np.ones(2), {"z": 3.0}), x=np.ones(3))
        np.testing.assert_array_equal(moved.x, [6, 7])
        assert isinstance(moved, tuple) and moved.y == {"z": 9}
        assert module.nothing() == ()
        assert module.parts[1].bias[0].get_value(borrow=True) == 2
        np.testing.assert_array_equal(module.first.get_value(), [5, 6])
        module.parts[0].set_value({"w": [0.0, 1.0], "bias": [3.0]})  # a part of a tree, by names
        np.testing.assert_array_equal(module.first.get_value(), [0, 1])
        np.testing.assert_array_equal(module.parts.get_value()[1].w, [7, 8])
        module.first.set_value([4.0, 4.0], borrow=True)
        assert module.parts[0].w.get_value()[0] == 4 and module.parts[0].bias[0].get_value() == 3
        with pytest.raises(TypeError, match=r"layers.1 is a tree of w, bias, and the given value has 0, 1"):
            module.replace([new[0], (1.0, 2.0)])
        with pytest.raises(TypeError, match=r"parts.0.w has shape \(2,\)"):
            module.parts[0].set_value(Layer(np.ones(3), (0.0,)))
        with pytest.raises(AttributeError, match=r"parts has 0, 1, not 'w'"):
            module.parts.w  # noqa: B018
        assert repr(module.first) == "<state first = parts.0.w: float64[2]>"


def test_state_that_can_not_be_set(path):
    w, v, u = (pytensor.shared(np.ones(3), name=name) for name in "wvu")

    class Model(pjl.Module):
        pair = {"w": w, "v": v}  # noqa: RUF012
        path = u
        _hidden = pytensor.shared(1.0)
        f = pjl.public([vector], v + u + vector, updates={w: w + vector})
        get_v = pjl.public([], 2 * v)

    Model().save(path)
    m = load_iree_module(path)
    assert repr(m.pair) == "<constant pair.v: float64[3], state pair.w: float64[3]>"
    assert repr(m.path) == "<constant path: float64[3]>" and str(path) in repr(m)
    assert not hasattr(m, "_hidden")
    with pytest.raises(TypeError, match=r"path is a constant of the module: none of its functions updates it"):
        m.path.set_value(np.ones(3))
    with pytest.raises(TypeError, match=r"pair.v is a constant"):
        m.pair.set_value({"w": np.ones(3), "v": np.ones(3)})
    m.pair.w.set_value(np.zeros(3))  # the other leaf is constant
    np.testing.assert_array_equal(m.f(np.ones(3)), 3)
    np.testing.assert_array_equal(m.pair.get_value()["w"], 1)
    assert m.set_pair({"w": np.full(3, 5.0)}) is None
    np.testing.assert_array_equal(m.pair.w.get_value(), 5)


def test_state_whose_setter_is_a_function_of_the_user(path):
    w = pytensor.shared(np.ones(3), name="w")

    class Model(pjl.Module):
        pair = {"w": w}  # noqa: RUF012
        set_pair = pjl.public([vector], updates={w: w + vector})

    Model().save(path)
    with pytest.raises(TypeError, match=r"no setter of pair.w: a function has the setter's name, or constants"):
        load_iree_module(path).pair.w.set_value(np.ones(3))


def test_what_iree_lacks_is_replaced(path):
    a = pt.tensor("a", dtype="float64", shape=(4, 4))
    total = pytensor.shared(np.zeros(4), name="total")
    solved = pt.linalg.solve(a, pt.ones(4), assume_a="pos")
    factor = pt.constant(np.linalg.cholesky(np.eye(4) + 0.1))  # IREE computes with it before the first call, in order
    whitened = {
        name: pjl.public([a], k * pt.linalg.solve_triangular(factor, a, lower=True)) for k, name in enumerate("gh")
    }
    m = pjl.Module("m", functions={"f": pjl.public([a], solved, updates={total: total + solved}), **whitened})
    m.save(path)
    found = load_iree_module(path)
    np.testing.assert_allclose(found.h(np.eye(4)), m.h(np.eye(4)), rtol=1e-12)
    value = np.random.default_rng(0).normal(size=(4, 9))
    value = value @ value.T
    np.testing.assert_allclose(found.f(value), np.linalg.solve(value, np.ones(4)), rtol=1e-9)
    np.testing.assert_allclose(found.get_total(), m.f(value), rtol=1e-9)


def test_bad_arguments_raise_before_anything_runs(path):
    count = pytensor.shared(np.zeros(3), name="count")
    pjl.Module("m", functions={"add": pjl.public([vector], count, updates={count: count + vector})}).save(path)
    m = load_iree_module(path)
    for args, named, message in [
        ((), {}, r"add\(x\): missing a required argument: 'x'"),
        ((1, 2), {}, r"add\(x\): too many positional arguments"),
        ((np.ones(3),), {"x": np.ones(3)}, "multiple values for argument 'x'"),
        ((np.ones(3),), {"y": 1}, "unexpected keyword argument 'y'"),
        ((np.ones(2),), {}, r"x has shape \(3,\), and its value has \(2,\)"),
        ((np.ones(3) * 1j,), {}, "x has dtype float64, and its value has complex128"),
    ]:
        with pytest.raises(TypeError, match=message):
            m.add(*args, **named)
    with pytest.raises(ValueError, match="shape"):  # the module itself, without our wrapper
        m.add._backend._functions["add"](np.ones(2))
    np.testing.assert_array_equal(m.add(x=[1, 2, 3]), 0)
    first = m.get_count()
    m.add(np.ones(3))
    np.testing.assert_array_equal(first, [1, 2, 3])  # a copy


def test_reports_say_what_to_ask_about(path):
    x, w = pt.dvector("x", shape=(3,)), pytensor.shared(np.ones(3), name="w")
    m = pjl.Module("m", functions={"f": pjl.public([x], w * x), "g": pjl.public([x], x + 1)})
    m.save(path)
    found = load(path)
    pjl.export(m.f, path=path.parent / "f.vmfb")
    doors = [
        pjl.explain,
        pjl.stages,
        pjl.make_jaxpr,
        pjl.as_jax_function,
        lambda given: pjl.export(given, path="f.jaxpr"),
    ]
    for door in doors:
        for given, message in [
            (m, r"takes no Module: it has functions to ask about, m.f, m.g. Module.save"),
            (m.w, "takes no ModuleState: state has no program"),
            (found.w, "takes no ModuleState: state has no program"),
            (found, "takes no IreeModule: IREE compiled it to machine code, and print shows"),
            (found.f, "takes no IreeModuleFunction: IREE compiled it"),
            (
                load(path.parent / "f.vmfb"),
                "takes no IreeFunction: IREE compiled it .*Ask about the function that it was made of",
            ),
        ]:
            with pytest.raises(TypeError, match=message):
                door(given)


def test_copies_are_refused_by_one_sentence(path):
    x = pt.dvector("x", shape=(3,))
    pjl.Module("m", functions={"f": pjl.public([x], x + 1)}).save(path)
    pjl.export([x], x + 1, path=path.parent / "f.vmfb")
    for file in (path, path.parent / "f.vmfb"):
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=rf"can't be copied or pickled: load {file} again, where it is needed"):
                way(load(file))
