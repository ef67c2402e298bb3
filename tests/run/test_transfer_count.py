"""Transfers between host and device, by `explain`, by `count_transfers`, and by JAX's transfer guard."""

from __future__ import annotations

import copy
import pickle
import threading
from collections import Counter

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import Doubled
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.run import placement

#: More numbers than are packed with others into one array, so that the guard sees each.
N = 4096
LARGE = 8 * N
X = np.linspace(-1, 1, N)


def on_device(value):
    with jax.enable_x64(True):
        return jax.device_put(value)


def compiled(inputs, outputs, updates=None, **options):
    with pjl.options(on_break="ignore", **options):
        return pytensor.function(inputs, outputs, updates=updates, mode="JAXPR")


def plain():
    x, y = pt.dvectors("x", "y")
    return compiled([x, y], [x + y, pt.exp(x)], results="jax"), [X, X]


def given_on_the_device():
    f, _ = plain()
    return f, [X, on_device(X)]


def trained():
    x, w = pt.dvector("x"), pytensor.shared(np.ones(N), name="w")
    return compiled([x], [], {w: w * x}, results="jax"), [X]


def with_a_host_step():
    """The second region takes from the host what the step made, and the argument once more."""
    x = pt.dvector("x")
    y = pt.exp(x)
    return compiled([x], [y * Doubled()(y) + x], results="jax"), [X]


def host_results():
    """A host step makes a result, which goes to the device: there results are."""
    x = pt.tensor("x", shape=(N,), dtype="float64")
    return compiled([x], [Doubled()(x), pt.exp(x)], results="jax"), [X]


def host_updates():
    x, w = pt.tensor("x", shape=(N,), dtype="float64"), pytensor.shared(np.ones(N), name="w")
    return compiled([x], [], {w: Doubled()(x) + 0 * w[0]}, results="jax"), [X]


CASES = {f.__name__: f for f in (plain, given_on_the_device, trained, with_a_host_step, host_results, host_updates)}


@pytest.mark.parametrize("name", CASES)
def test_the_guard_sees_what_is_counted(name, capfd):
    f, args = CASES[name]()
    f(*args)
    with pjl.count_transfers() as moved:
        f(*args)
    capfd.readouterr()
    with jax.transfer_guard_host_to_device("log_explicit"):
        f(*args)
    seen = capfd.readouterr().err.count("host-to-device transfer")
    assert moved.calls == 1
    assert (moved.to_device.arrays, moved.to_device.bytes) == (seen, seen * LARGE)
    told = pjl.explain(f, args=args).transfers
    assert sum(t.bytes for t in told if t.direction == "to the device") == moved.to_device.bytes
    assert sum(t.bytes for t in told if t.direction == "to the host") == moved.to_host.bytes
    reasons = Counter((t.direction, t.why) for t in told if t.direction != "stays on the device")
    assert reasons == {key: value.arrays for key, value in moved.by_reason.items()}


def test_the_guard_sees_the_upload_of_a_value_that_was_set(capfd):
    w = pytensor.shared(np.ones(N), name="w")
    f = compiled([], w * 2, results="jax")
    counts = []
    for value in (None, None, X):
        if value is not None:
            w.set_value(value)
        with pjl.count_transfers() as moved, jax.transfer_guard_host_to_device("log_explicit"):
            f()
        counts.append((moved.to_device.bytes, capfd.readouterr().err.count("host-to-device transfer")))
    assert counts == [(LARGE, 1), (0, 0), (LARGE, 1)]


def test_what_the_host_reads():
    """By hand: JAX's guard sees no copies to the host on a CPU."""
    x, i = pt.dvector("x"), pt.lscalar("i")
    f = compiled([x, i], [x[i], pt.exp(x)])
    with pjl.count_transfers() as moved:
        f(X, 3)
        f(X, 4)
    assert moved.by_reason == {
        ("to the device", "argument"): (4, 2 * (LARGE + 8)),
        ("to the host", "check code"): (2, 8),
        ("to the host", "result"): (4, 2 * (LARGE + 8)),
    }
    y = pt.exp(x)
    g = compiled([x], [Doubled()(y), Doubled()(Doubled()(y)), y.sum()])
    with pjl.count_transfers() as moved:
        g(X)
    assert (moved.by_reason["to the host", "read by a host step"], moved.to_host) == ((1, LARGE), (2, LARGE + 8))


class Positive(Op):
    """The positive elements, whose number depends on values."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0][inputs[0] > 0]


def test_sizes_that_a_call_finds():
    x = pt.dvector("x")
    f = compiled([x], (Positive()(x) ** 2).sum())
    moved = []
    for values in (np.arange(10.0), np.arange(-5.0, 5.0)):
        with pjl.count_transfers() as count:
            f(values)
        moved.append((count.to_device.bytes, count.to_host.bytes))
    assert moved == [(72, 8), (32, 8)]
    (first, *_) = pjl.explain(compiled([x], (Positive()(x) ** 2).sum())).transfers
    assert (first.why, first.bytes) == ("made by a host step", None)


def test_generators():
    rng = pytensor.shared(np.random.default_rng(0), name="rng")
    successor, draws = pt.random.normal(0, 1, size=N, rng=rng, return_next_rng=True)
    f = compiled([], draws, {rng: successor})
    with pjl.count_transfers() as moved:
        f()
    assert moved.by_reason == {("to the device", "random key"): (1, 8), ("to the host", "result"): (1, LARGE)}
    told = pjl.explain(f).transfers
    assert [(t.direction, t.why, t.bytes) for t in told] == [
        ("to the device", "random key", 8),
        ("to the host", "result", LARGE),
    ]


def test_counts_are_those_of_a_block_in_one_thread():
    f, args = plain()
    f(*args)
    with pjl.count_transfers() as outer:
        f(*args)
        with pjl.count_transfers() as inner:
            f(*args)
        thread = threading.Thread(target=f, args=args)
        thread.start()
        thread.join()
    f(*args)
    assert (outer.calls, inner.calls) == (1, 1)
    with pjl.count_transfers() as failed, pytest.raises(ValueError, match=r"Incompatible|incompatible|broadcast"):
        f(X, X[:3])
    assert (failed.calls, failed.to_device) == (0, (0, 0))
    assert repr(failed).splitlines()[0] == "0 calls"


def test_values_are_the_same_while_counting():
    f, args = with_a_host_step()
    with pjl.count_transfers():
        counted = f(*args)[0]
    np.testing.assert_array_equal(counted, f(*args)[0])


def test_explain_names_what_moves():
    x, w = pt.dvector("x"), pytensor.shared(np.ones(3), name="w")
    f = compiled([x], (w * x).sum(), {w: w + x})
    before = str(pjl.explain(f))
    assert "in each call: 0 bytes and 1 array of unknown shape there, 8 bytes back" in before
    told = pjl.explain(f, args=[np.ones(3)])
    text = str(told)
    assert "Between host and device in each call: 24 bytes there, 8 bytes back" in text
    assert "to the device        argument: x 24 bytes" in text
    assert "stays on the device  shared variable: w 24 bytes" in text
    assert told.as_dict()["transfers"][1] == {
        "direction": "to the device",
        "why": "argument",
        "name": "x",
        "bytes": 24,
    }


class TestOnAnAccelerator:
    """As where NumPy can't read the device's memory: no such machine is needed for it."""

    @pytest.fixture(autouse=True)
    def apart(self, monkeypatch):
        monkeypatch.setattr(placement, "shares_memory", lambda array: False)

    def trained(self):
        w = pytensor.shared(X.copy(), name="w")
        f = compiled([], w.sum(), {w: w + 1}, results="jax", checks="skip")
        return w, f

    def test_a_shared_variable_never_leaves_the_device(self, monkeypatch):
        w, f = self.trained()
        f()
        monkeypatch.setattr(np, "asarray", None)
        monkeypatch.setattr(np, "array", None)
        with jax.transfer_guard("disallow"):
            total = f()
        monkeypatch.undo()
        cell = w.container.storage[0]
        assert isinstance(cell, jax.Array) and cell._npy_value is None
        np.testing.assert_allclose(total, X.sum() + N)
        with pjl.count_transfers() as moved:
            f()
        assert (moved.to_device, moved.to_host) == ((0, 0), (0, 0))

    def test_whoever_asks_gets_numpy_arrays(self):
        w, f = self.trained()
        f()
        value = w.get_value(borrow=True)
        assert type(value) is np.ndarray and not value.flags.writeable
        np.testing.assert_allclose(value, X + 1)
        assert type(w.get_value()) is np.ndarray and w.get_value().flags.writeable
        assert pjl.device_array(w) is w.container.storage[0]
        for other in (copy.deepcopy(w), pickle.loads(pickle.dumps(w))):
            np.testing.assert_array_equal(other.get_value(), X + 1)
        assert b"pytensor_jaxpr_linker" not in pickle.dumps(w)
        w.set_value(X + 3)
        np.testing.assert_allclose(f(), X.sum() + 3 * N)

    def test_a_value_that_was_set_can_be_read_by_all_modes(self):
        w, _ = self.trained()
        compiled([], w.sum())()
        cell = w.container.storage[0]
        assert type(cell) is np.ndarray and not cell.flags.writeable
        np.testing.assert_allclose(pytensor.function([], w.sum(), mode="FAST_COMPILE")(), X.sum())
        w.set_value(X + 1)
        np.testing.assert_allclose(compiled([], w.sum())(), (X + 1).sum())
