"""Calls from NumPy to NumPy run on a CPU client of their own, in the calling thread."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import Doubled, run_python

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.run.placement import ALIGNMENT, buffer_of, device_for, own_copy, own_device

X = np.arange(6.0)
sharding = jax.sharding.SingleDeviceSharding
x = pt.dvector("x")


def test_jax_is_as_it_was():
    before = jax.devices(), jax.default_backend()
    f = pytensor.function([x], [x + 1, x.sum()], mode="JAXPR")
    f(X)
    assert own_device() is not None and own_device() not in jax.devices()
    assert (jax.devices(), jax.default_backend()) == before
    assert jax.numpy.ones(2).devices() == {jax.devices()[0]}


@pytest.mark.parametrize("options", [{"synchronous": False}, {"results": "jax"}])
def test_options_that_leave_it_to_jax(options):
    with pjl.options(**options):
        f = pytensor.function([x], x * 2, mode="JAXPR")
    assert device_for(f.vm.runner.options) is None
    np.testing.assert_array_equal(f(X), X * 2)


def test_results_are_the_callers():
    f = pytensor.function([x], [x + 1, x * 2, x.sum(), x[:2] > 0], mode="JAXPR")
    first, second = f(X), f(X)
    for array in first:
        assert type(array) is np.ndarray and array.flags.writeable
        array[...] = 7
    np.testing.assert_array_equal(first[0], np.full(6, 7.0))
    for got, want in zip(second, [X + 1, X * 2, 15.0, [False, True]], strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "complex128", "bool"])
@pytest.mark.parametrize("shapes", [((), (3,)), ((0,), (0, 2)), ((2, 3), (1,)), ((2500,), (2,))])
def test_results_of_each_dtype_and_shape(dtype, shapes):
    inputs = [pt.tensor(dtype=dtype, shape=(None,) * len(shape)) for shape in shapes]
    values = [np.arange(np.prod(shape)).reshape(shape).astype(dtype) for shape in shapes]
    outputs = [v.copy() for v in inputs] + [
        pt.stack([(abs(v) if dtype != "bool" else v).astype("float64").sum() for v in inputs])
    ]
    f = pytensor.function(inputs, outputs, mode="JAXPR")
    g = pytensor.function(inputs, outputs, mode="FAST_COMPILE")
    for got, want in zip(f(*values), g(*values), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_array_equal(got, want)


def test_checks_among_packed_results():
    i = pt.lscalar("i")
    f = pytensor.function([x, i], [x[i], x.sum()], mode="JAXPR")
    assert f(X, 2) == [2.0, 15.0]
    with pytest.raises(IndexError, match="out of bounds"):
        f(X, 6)
    assert f(X, -1) == [5.0, 15.0]


def test_an_argument_on_a_device_runs_there():
    y = pt.dvector("y")
    s = pytensor.shared(np.ones(6), name="s")
    f = pytensor.function([x, y], x + y * s, updates={s: s + x}, mode="JAXPR")
    with jax.enable_x64(True):
        on_device = jax.device_put(X)
    np.testing.assert_array_equal(f(X, X), 2 * X)
    np.testing.assert_array_equal(f(on_device, X), X + X * (1 + X))
    np.testing.assert_array_equal(f(X, on_device), X + X * (1 + 2 * X))
    np.testing.assert_array_equal(f(X, X), X + X * (1 + 3 * X))
    np.testing.assert_array_equal(s.get_value(), 1 + 4 * X)


def test_a_shared_variable_of_both_kinds_of_functions():
    s = pytensor.shared(np.zeros(6), name="s")
    numpy = pytensor.function([x], s.sum(), updates={s: s + x}, mode="JAXPR")
    with pjl.options(results="jax"):
        device = pytensor.function([x], s.sum(), updates={s: s * 2 + x}, mode="JAXPR")
    total = np.zeros(6)
    for f, new in [(numpy, total + X), (device, (total + X) * 2 + X), (numpy, (total + X) * 2 + X + X)]:
        assert np.asarray(f(X)) == total.sum()
        total = new
        np.testing.assert_array_equal(s.get_value(), total)
    result = device(X)
    assert isinstance(result, jax.Array) and result.devices() == {jax.devices()[0]}
    assert np.asarray(result) == total.sum()


def test_a_shared_variable_stays_where_it_is_used():
    s = pytensor.shared(np.zeros(6), name="s")
    f = pytensor.function([x], s.sum(), updates={s: s + x}, mode="JAXPR")
    for _ in range(2):
        f(X)
        assert buffer_of(s.get_value(borrow=True, return_internal_type=True)).array.devices() == {own_device()}


def test_an_array_written_in_place_by_another_mode():
    s = pytensor.shared(np.zeros(6), name="s", borrow=True)
    f = pytensor.function([], s * 2, mode="JAXPR")
    f()
    s.get_value(borrow=True)[...] = X
    np.testing.assert_array_equal(f(), 2 * X)


def test_host_steps_between_regions():
    with pytest.warns(pjl.GraphBreakWarning):
        f = pytensor.function([x], [pt.exp(Doubled()(x + 1)), x + 1], mode="JAXPR")
        got = f(X)
    np.testing.assert_allclose(got[0], np.exp(2 * (X + 1)), rtol=1e-15)
    with jax.enable_x64(True):
        np.testing.assert_allclose(f(jax.device_put(X))[0], got[0], rtol=1e-15)


def test_programs_have_ended_when_a_call_returns():
    """The next call writes to the memory that the program reads."""
    device = own_device()
    work = jax.jit(
        lambda v: jax.lax.fori_loop(0, 20_000, lambda _, c: jax.numpy.cos(c), v), in_shardings=sharding(device)
    )
    assert work(np.ones(1000, "float32")).is_ready()


def only_call(f):
    """Return the call for the only shapes that `f` was called with."""
    (call,) = f.vm.runner.program.specialize(()).packed_calls.values()
    return call


def test_each_call_at_the_same_time_has_memory_of_its_own():
    f = pytensor.function([x], pt.cumsum(x), mode="JAXPR")
    f(X)
    (used,) = buffers = only_call(f).buffers
    buffers.clear()  # another thread is in a call
    np.testing.assert_array_equal(f(X + 1), np.cumsum(X + 1))
    buffers.append(used)
    np.testing.assert_array_equal(f(X + 2), np.cumsum(X + 2))
    assert len(buffers) == 2


def used_buffer(outputs, value):
    """Compare three calls with FAST_COMPILE's, and return the one buffer that they used."""
    f = pytensor.function([x], outputs, mode="JAXPR")
    g = pytensor.function([x], outputs, mode="FAST_COMPILE")
    for k in range(3):
        for got, want in zip(f(value + k), g(value + k), strict=True):
            np.testing.assert_array_equal(got, want)
    (buffer,) = only_call(f).buffers
    return buffer


@pytest.mark.parametrize("outputs", [[x + 1, x.sum()], [x], [x[::-1], x * 2], [x.sum()], [pt.ones(3) * 2, x[0]]])
def test_results_take_the_memory_of_the_arguments(outputs):
    buffer = used_buffer(outputs, X)
    memory = np.frombuffer(buffer.memory, np.uint8).ctypes.data
    assert buffer.results.size and buffer.array.unsafe_buffer_pointer() == buffer.results.ctypes.data == memory


def test_results_of_other_dtypes_or_much_shorter_have_memory_of_their_own():
    for outputs, value in [([x > 1, x[:2] < 3], X), ([x.sum()], np.ones(600))]:
        buffer = used_buffer(outputs, value)
        assert not buffer.results.size


def test_a_program_that_xla_gives_memory_of_its_own(monkeypatch):
    class Stats:
        alias_size_in_bytes = 0

    monkeypatch.setattr(jax.stages.Compiled, "memory_analysis", lambda self: Stats())
    f = pytensor.function([x], x + 1, mode="JAXPR")
    for k in range(2):
        np.testing.assert_array_equal(f(X + k), X + k + 1)
    (buffer,) = only_call(f).buffers
    assert not buffer.results.size


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_memory_is_given_up_after_an_error_of_the_program(monkeypatch, error):
    f = pytensor.function([x], pt.cumsum(x), mode="JAXPR")
    f(X)
    call, names = only_call(f), only_call(f).__globals__
    execute = names["execute"]

    def fail(arrays):
        execute(arrays)
        raise error("as if out of memory")

    monkeypatch.setitem(names, "execute", fail)
    with pytest.raises(error, match="as if"):
        f(X)
    monkeypatch.undo()
    assert not call.buffers
    np.testing.assert_array_equal(f(X), np.cumsum(X))


def test_nan_stops_the_program_in_a_debugging_session():
    f = pytensor.function([x], [pt.log(x), x + 1], mode="JAXPR")
    f(X)
    for setting in (jax.debug_nans, jax.debug_infs):
        with setting(True):
            np.testing.assert_array_equal(f(X + 1)[1], X + 2)
            with pytest.raises(FloatingPointError):
                f(X - 1 if setting is jax.debug_nans else X)
    assert np.isnan(f(X - 1)[0][0])


def test_a_buffer_is_free_after_an_error():
    f = pytensor.function([x], x[3], mode="JAXPR")
    for _ in range(2):
        with pytest.raises(IndexError):
            f(X[:3])
        assert f(X) == 3.0


def test_large_constants():
    large = np.arange(10_000.0)
    f = pytensor.function([x], pt.as_tensor(large)[:6] + x, mode="JAXPR")
    np.testing.assert_array_equal(f(X), 2 * X)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(f(jax.device_put(X)), 2 * X)


def test_threads():
    f = pytensor.function([x], [pt.cumsum(x), x.sum()], mode="JAXPR")
    barrier = threading.Barrier(4)

    def call(k: int) -> bool:
        barrier.wait()
        return all(np.array_equal(f(X + k)[0], np.cumsum(X + k)) for _ in range(200))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(4)))


def test_a_default_device_of_the_users():
    code = """
        import jax, numpy as np, pytensor, pytensor.tensor as pt, pytensor_jaxpr_linker as pjl
        from pytensor_jaxpr_linker.run.placement import own_device
        jax.config.update("jax_default_device", jax.devices()[1])
        s = pytensor.shared(np.ones(2))
        x = pt.dvector("x")
        f = pytensor.function([x], x * s, updates={s: s + 1}, mode="JAXPR")
        print(f(np.ones(2)), f(np.ones(2)), own_device())
    """
    printed = run_python(code, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    assert printed.strip() == "[1. 1.] [2. 2.] None"


def test_threads_that_come_first_share_one_client():
    code = """
        import time
        from concurrent.futures import ThreadPoolExecutor
        from pytensor_jaxpr_linker.base import jax_compat
        from pytensor_jaxpr_linker.run.placement import own_device
        make = jax_compat.make_synchronous_cpu_device
        jax_compat.make_synchronous_cpu_device = lambda: (time.sleep(0.1), make())[1]
        with ThreadPoolExecutor(4) as pool:
            print(len({*pool.map(lambda _: own_device(), range(4))}))
    """
    assert run_python(code).strip() == "1"


def test_shared_variables_that_nothing_reads():
    """They stay inputs after rewriting, as the lengths of a PyMC model's dims do."""
    n, s = pytensor.shared(np.asarray(3), name="n"), pytensor.shared(np.ones(3), name="s")
    alone = pytensor.function([x], x * (0 * n + 1), mode="JAXPR")
    beside = pytensor.function([x], x[:3] * (0 * n + 1) + s, updates={s: s + 1}, mode="JAXPR")
    for f in (alone, beside):
        assert not f.maker.fgraph.clients[f.maker.fgraph.inputs[1]]
    assert not alone.vm.storage.is_shared and beside.vm.storage.is_shared
    for k in range(3):
        n.set_value(np.asarray(k))
        np.testing.assert_array_equal(alone(X + k), X + k)
        np.testing.assert_array_equal(beside(X), X[:3] + 1 + k)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(alone(jax.device_put(X)), X)
    with pjl.stance("force_host"):
        np.testing.assert_array_equal(alone(X), X)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8", "bool", "complex128"])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 4), (0,), (1000, 3)])
def test_a_copy_has_memory_of_xlas(dtype, shape):
    """Also of an array that begins where XLA would take its memory, and of one whose elements are apart."""
    size = math.prod(shape)
    memory = np.zeros(16 * size + 128, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    value = memory[start : start + size * np.dtype(dtype).itemsize].view(dtype).reshape(shape)
    value[...] = np.arange(size).reshape(shape) % 2
    expected = value.copy()
    with jax.enable_x64(True):
        copies = [own_copy(v, device) for device in (own_device(), None) for v in (value, value.T.copy().T)]
    value[...] = 1
    for copy in copies:
        assert (copy.dtype, copy.shape) == (value.dtype, shape)
        np.testing.assert_array_equal(np.asarray(copy), expected)


def test_shared_arrays_are_uploaded_without_a_program(monkeypatch):
    """`jax.Array.copy` compiles one for each shape."""
    compiled = []
    array_class = type(jax.device_put(1))
    copy = array_class.copy
    monkeypatch.setattr(array_class, "copy", lambda self: compiled.append(self) or copy(self))
    shared = [pytensor.shared(np.arange(float(n)), name=f"s{n}") for n in (3, 4, 5)]
    f = pytensor.function([x], x[0] * pt.concatenate(shared), mode="JAXPR")
    np.testing.assert_array_equal(f(X + 2), 2 * np.concatenate([s.get_value() for s in shared]))
    assert not compiled
