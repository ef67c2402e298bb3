"""Shared variables and inputs on several devices: what they compute is what one device computes, and they stay where they are."""

from __future__ import annotations

import copy
import pickle

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import Doubled, run_python
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.run import placement

MESH = jax.make_mesh((4, 2), ("data", "model"))
X = np.linspace(-1, 2, 24).reshape(8, 3)


def placed(value, *spec, mesh=MESH):
    with jax.enable_x64(True):
        return jax.device_put(value, NamedSharding(mesh, P(*spec)))


def layout(variable):
    spec = [*pjl.device_array(variable).sharding.spec]
    while spec and spec[-1] is None:
        spec.pop()
    return tuple(spec)


def sharded(value, *spec, name="w"):
    return pjl.shard(pytensor.shared(value, name=name), MESH, spec)


def test_where_each_part_lies():
    w = sharded(X, "data")
    assert {shard.data.shape for shard in pjl.device_array(w).addressable_shards} == {(2, 3)}
    assert w.get_value().dtype == np.float64 and type(w.get_value()) is np.ndarray
    np.testing.assert_array_equal(w.get_value(), X)
    assert not w.get_value(borrow=True).flags.writeable


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
@pytest.mark.parametrize("results", ["numpy", "jax"])
def test_functions_and_updates_keep_the_sharding(dtype, results):
    value = X.astype(dtype)
    w, x = sharded(value, ("data", "model")), pt.matrix("x", dtype=dtype)
    with pjl.options(results=results):
        f = pytensor.function([x], [(w * x).sum(), w * 2], updates={w: (w + x).astype(dtype)}, mode="JAXPR")
    first = f(value)
    np.testing.assert_allclose(first[0], (value * value).sum(), rtol=1e-6)
    np.testing.assert_array_equal(first[1], value * 2)
    if results == "jax":
        assert first[1].sharding.spec == P(("data", "model"))
    assert layout(w) == (("data", "model"),)
    np.testing.assert_array_equal(w.get_value(), value * 2)
    assert w.get_value().dtype == dtype


def test_a_function_compiled_before_and_one_after():
    w = pytensor.shared(X, name="w")
    before = pytensor.function([], w.sum(), updates={w: w + 1}, mode="JAXPR")
    before()
    pjl.shard(w, MESH, ["data"])
    after = pytensor.function([], w.sum(), updates={w: w - 1}, mode="JAXPR")
    np.testing.assert_allclose([before(), after()], [X.sum() + X.size, X.sum() + 2 * X.size])
    assert layout(w) == ("data",)


@pytest.mark.parametrize(
    "value",
    [X + 1, placed(X + 1, "model"), placed(X + 1), jax.numpy.asarray(X + 1)],
    ids=["numpy", "other", "copies", "one"],
)
def test_set_value_keeps_the_sharding(value):
    w = sharded(X, "data")
    f = pytensor.function([], w * 2, mode="JAXPR")
    w.set_value(value)
    assert layout(w) == ("data",)
    np.testing.assert_allclose(f(), 2 * (X + 1), rtol=1e-6)


@pytest.mark.parametrize("compiled", ["before", "after"])
def test_a_sharded_value_of_a_variable_that_is_not(compiled):
    """It takes the place of the old value as it is; a whole array takes its place again."""
    w = pytensor.shared(X, name="w")
    if compiled == "after":
        w.set_value(placed(X + 1, "data"))
    f = pytensor.function([], w.sum(axis=0), mode="JAXPR")
    w.set_value(placed(X + 1, "data"))
    assert layout(w) == ("data",)
    np.testing.assert_allclose(f(), (X + 1).sum(axis=0), rtol=1e-12)
    w.set_value(X)
    assert type(w.container.storage[0]) is np.ndarray
    np.testing.assert_allclose(f(), X.sum(axis=0), rtol=1e-12)


@pytest.mark.parametrize(
    "value", [np.zeros(()), 0.0, np.float64(0), 0, 0j], ids=["array", "float", "numpy", "int", "complex"]
)
def test_the_first_sharded_value_of_a_number(value):
    w = pytensor.shared(value)
    w.set_value(placed(np.asarray(value) + 1))
    assert len(pjl.device_array(w).sharding.device_set) == 8
    assert w.get_value() == 1


def test_a_value_of_another_type():
    """Nothing changes, as in PyTensor; casts that it makes are made on the devices."""
    w = pytensor.shared(X, name="w")
    with pytest.raises(TypeError, match="Wrong number of dimensions"):
        w.set_value(
            placed(
                X[0],
            )
        )
    np.testing.assert_array_equal(w.get_value(), X)
    w.set_value(placed(X.astype("float32"), "data"))
    assert (layout(w), w.get_value().dtype) == (("data",), np.float64)


def test_shared_of_a_jax_array():
    w, whole = pytensor.shared(placed(X, "data"), name="w"), pytensor.shared(jax.numpy.ones(3))
    assert (w.type, layout(w)) == (pt.dmatrix, ("data",))
    assert type(whole.get_value()) is np.ndarray
    fixed = pytensor.shared(placed(X, "data"), shape=(8, 3))
    assert fixed.type.shape == (8, 3)


def test_an_update_of_a_whole_variable_stays_whole():
    total, w = pytensor.shared(np.zeros((8, 3)), name="total"), sharded(X, "data")
    f = pytensor.function([], [], updates={total: total + w}, mode="JAXPR")
    f()
    f()
    assert placement.buffer_of(total.container.storage[0]) is not None
    np.testing.assert_allclose(total.get_value(), 2 * X)


def test_sharded_inputs():
    x, y = pt.dmatrix("x"), pt.dvector("y")
    f = pytensor.function([x, y], [pt.exp(x) @ y, x.sum()], mode="JAXPR")
    want = np.exp(X) @ np.ones(3), X.sum()
    for given in (placed(X, "data"), placed(X, ("data", "model")), placed(X)):
        for found, expected in zip(f(given, np.ones(3)), want, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_large_constants_go_to_all_devices_once():
    c = np.random.default_rng(0).normal(size=(8, 5000))
    w = sharded(X, "data")
    f = pytensor.function([], (w.T @ pt.constant(c)).sum(), mode="JAXPR")
    np.testing.assert_allclose([f(), f()], [(X.T @ c).sum()] * 2, rtol=1e-9)
    assert [len(next(iter(arrays)).sharding.device_set) for arrays in f.vm.runner.program._on_device.values()] == [8]


def test_host_steps_gather_what_they_read():
    w, other = sharded(X, "data"), sharded(X, "data", name="other")
    with pjl.options(on_break="ignore"):
        f = pytensor.function([], [Doubled()(w.sum(axis=1)).sum(), (other * 3).sum()], updates={w: w + 1}, mode="JAXPR")
    np.testing.assert_allclose(f(), [2 * X.sum(), 3 * X.sum()], rtol=1e-12)
    assert layout(w) == ("data",)
    assert pjl.device_array(other)._npy_value is None


def test_donation_between_regions():
    rows = np.zeros((8, 2**15))
    w = sharded(rows, "data")
    y = pt.exp(w)
    with pjl.options(on_break="ignore"):
        f = pytensor.function([], (y + Doubled()(y.sum()).sum()).sum(axis=1), mode="JAXPR")
    for _ in range(2):
        np.testing.assert_allclose(f(), np.full(8, 2**15 * (1 + 2 * rows.size)))


def test_a_failed_check_changes_nothing():
    w, i = sharded(X, "data"), pt.lscalar("i")
    f = pytensor.function([i], w[i], updates={w: w + 1}, mode="JAXPR")
    with pytest.raises(IndexError):
        f(9)
    np.testing.assert_array_equal(w.get_value(), X)


def test_pickles_have_the_values_and_the_layout():
    w, x = sharded(X, "data"), pt.dmatrix("x")
    f = pytensor.function([x], (w * x).sum(axis=0), updates={w: w + 1}, mode="JAXPR")
    copied, g = pickle.loads(pickle.dumps(w)), pickle.loads(pickle.dumps(f))
    assert (layout(copied), copied.get_value().dtype) == (("data",), np.float64)
    np.testing.assert_array_equal(copied.get_value(), X)
    for _ in range(2):
        np.testing.assert_allclose(g(X), f(X), rtol=1e-12)


def test_copies():
    w, whole = sharded(X, "data"), pytensor.shared(X, name="whole")
    pytensor.function([], whole.sum(), mode="JAXPR")()
    for copied, value in ((copy.deepcopy(w), X), (copy.deepcopy(whole), X), (copy.copy(w), X)):
        np.testing.assert_array_equal(copied.get_value(), value)
    assert layout(copy.deepcopy(w)) == ("data",)
    assert b"pytensor_jaxpr_linker" not in pickle.dumps(whole)


def test_a_pickle_where_there_are_fewer_devices(tmp_path):
    (tmp_path / "w").write_bytes(pickle.dumps(sharded(X, "data")))
    code = f"""
        import pickle, numpy as np
        w = pickle.load(open({str(tmp_path / "w")!r}, "rb"))
        w.set_value(w.get_value() + 1)
        print(type(w.container.storage[0]).__name__, w.get_value().dtype, w.get_value().sum())
    """
    assert run_python(code, XLA_FLAGS="").split()[:2] == ["ndarray", "float64"]


def test_generators():
    rng, w = pytensor.shared(np.random.default_rng(1)), sharded(X, "data")
    successor, draws = pt.random.normal(0, 1, size=X.shape, rng=rng, return_next_rng=True)
    f = pytensor.function([], draws + w, updates={rng: successor}, mode="JAXPR")
    g = pytensor.function([], draws, mode="JAXPR")
    want = g()
    np.testing.assert_allclose(f() - X, want, atol=1e-12)
    assert not np.array_equal(f(), f())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda w: pjl.shard(w, MESH, ["rows"]),
            "The mesh has no axis 'rows' for 'w'; its axes are 'data', 'model': use one of them.",
        ),
        (
            lambda w: pjl.shard(w, MESH, [None, "model"]),
            "Axis 1 of 'w' has the length 3, which 2 devices .* pad it to 4",
        ),
        (
            lambda w: pjl.shard(w, MESH, [None, None, "data"]),
            "'w' has 2 axes, and .* is for 3: name at most one mesh axis for each",
        ),
        (lambda w: pjl.shard(w, MESH, ["data"]).set_value(X[:7]), "Axis 0 of 'w' has the length 7, which 4 devices"),
    ],
    ids=["axis", "length", "rank", "set_value"],
)
def test_what_can_not_be_sharded(call, message):
    w = pytensor.shared(X, name="w")
    with pytest.raises(ValueError, match=message):
        call(w)
    np.testing.assert_array_equal(w.get_value(), X)


def test_only_shared_tensors_are_sharded():
    for variable in (pt.dvector("x"), pytensor.shared(np.random.default_rng())):
        with pytest.raises(TypeError, match="Only shared variables of tensor type can be sharded"):
            pjl.shard(variable, MESH, ["data"])
        with pytest.raises(TypeError, match="device_array takes a shared variable of tensor type, not "):
            pjl.device_array(variable)


def test_how_axes_are_named():
    w = pjl.shard(pytensor.shared(X, name="w"), MESH, "data")
    assert pjl.device_array(w).sharding.spec == jax.sharding.PartitionSpec("data")
    with pytest.raises(TypeError, match=r"mesh is a jax.sharding.Mesh, such as .*, not 8"):
        pjl.shard(w, 8, "data")
    with pytest.raises(ValueError, match="'w' can't be divided along 'data' twice"):
        pjl.shard(w, MESH, ["data", "data"])


def test_data_on_another_mesh():
    half = jax.make_mesh((4,), ("data",), devices=jax.devices()[4:])
    w, v = sharded(X, "data"), pjl.shard(pytensor.shared(X, name="v"), half, ["data"])
    f = pytensor.function([], w * v, mode="JAXPR")
    with pytest.raises(
        ValueError, match=r"'v' lies on 4 devices \(4, 5, 6, 7\) and 'w' on 8 devices .* put them on one mesh"
    ):
        f()


def test_an_argument_on_another_device():
    x = pt.dmatrix("x")
    f = pytensor.function([x], sharded(X, "data") * x, mode="JAXPR")
    with jax.enable_x64(True):
        elsewhere = jax.device_put(X, jax.devices()[7])
    with pytest.raises(ValueError, match=r"'x' lies on 1 device \(7\) and 'w' on 8 devices .* put them on one mesh"):
        f(elsewhere)
