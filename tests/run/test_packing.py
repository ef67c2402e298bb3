"""Small NumPy arguments go to the program as one array."""

from __future__ import annotations

import weakref

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import compare
from pytensor.compile.debug.profiling import ProfileStats
from pytensor.raise_op import Assert

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.run import specialization
from pytensor_jaxpr_linker.run.packing import PACKED_BYTES

TOO_LARGE = PACKED_BYTES // 8 + 1


def packed_calls(f) -> list:
    """Return the calls for NumPy arguments, one for each tuple of shapes that the function was called with."""
    (program,) = f.vm.runner.programs
    return [*program.specialize(()).packed_calls.values()]


def packed_positions(f) -> list[tuple[int, ...]]:
    """Return which arguments are packed, for each tuple of shapes."""
    return [found.arguments.positions for found in packed_calls(f)]


def sum_of(*types, **options):
    """Return a function of inputs of these types, and its inputs and outputs."""
    inputs = [t(f"x{i}") for i, t in enumerate(types)]
    outputs = [sum(x.sum() * (i + 1) for i, x in enumerate(inputs)), inputs[0] + 1]
    return pytensor.function(inputs, outputs, mode="JAXPR", **options), inputs, outputs


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int8", "bool", "complex128"])
def test_arguments_of_one_dtype_are_packed(dtype):
    types = [pt.TensorType(dtype, shape) for shape in [(None,), (), (2, None), (3,)]]
    f, inputs, outputs = sum_of(*types)
    for n in (4, 0, 1):
        values = [np.ones(n, dtype), np.array(1, dtype), np.eye(2, 3, dtype=dtype), np.arange(3).astype(dtype)]
        compare(inputs, outputs, values)
        assert f(*values)[1].flags.writeable
        np.testing.assert_array_equal(
            f(*values)[0], pytensor.function(inputs, outputs, mode="FAST_COMPILE")(*values)[0]
        )
    assert packed_positions(f) == [(0, 1, 2, 3)] * 3


def test_arguments_of_the_commonest_dtype_are_packed():
    f, inputs, outputs = sum_of(pt.ivector, pt.dvector, pt.fscalar, pt.dmatrix)
    values = [np.arange(3, dtype="int32"), np.ones(2), np.array(2, "float32"), np.ones((2, 2))]
    compare(inputs, outputs, values)
    f(*values)
    assert packed_positions(f) == [(1, 3)]


def test_large_arrays_are_passed_as_they_are():
    f, *_ = sum_of(pt.dvector, pt.dvector, pt.dvector)
    small, large = np.ones(2), np.ones(TOO_LARGE)
    assert f(small, large, small)[0] == 8 + 2 * TOO_LARGE
    assert f(large, large, small)[0] == 6 + 3 * TOO_LARGE
    assert packed_positions(f) == [(0, 2), (2,)]


@pytest.mark.parametrize("inputs", [(pt.dvector,), (pt.dvector, pt.ivector)])
@pytest.mark.parametrize(("options", "positions"), [({}, (0,)), ({"synchronous": False}, ())])
def test_one_argument_is_written_to_the_own_clients_buffer(inputs, options, positions):
    with pjl.options(**options):
        f, *_ = sum_of(*inputs)
    for k in (1, 2):
        assert f(*[np.full(2, k, t.dtype) for t in inputs])[0] == 2 * k * (1 if len(inputs) == 1 else 3)
    assert packed_positions(f) == [positions]


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(np.arange(6.0)[::2], id="strided"),
        pytest.param(np.asfortranarray(np.arange(6.0).reshape(2, 3))[0], id="row of a Fortran array"),
        pytest.param(np.arange(3.0).astype(">f8"), id="big endian"),
        pytest.param(np.arange(3.0).astype("float32"), id="another dtype"),
        pytest.param([0.0, 1.0, 2.0], id="list"),
        pytest.param(np.array(np.arange(3.0)).view(type("Sub", (np.ndarray,), {})), id="subclass"),
    ],
)
def test_arguments_that_cannot_be_packed(value):
    f, *_ = sum_of(pt.dvector, pt.dvector)
    want = np.sum(np.asarray(value, "float64"))
    assert f(np.ones(2), value)[0] == 2 + 2 * want
    assert f(value, np.ones(2))[0] == 4 + want
    assert f(np.ones(3), np.arange(3.0))[0] == 9


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "bool", "complex128"])
def test_numpy_scalars(dtype):
    x, y = pt.scalar("x", dtype=dtype), pt.vector("y", dtype=dtype)
    f, g = (pytensor.function([x, y], [x, y * x], mode=mode) for mode in ("JAXPR", "FAST_COMPILE"))
    value, row = np.ones((), dtype)[()], np.ones(2, dtype)
    for got, want in zip(f(value, row), g(value, row), strict=True):
        assert (type(got), got.dtype, got.shape) == (type(want), want.dtype, want.shape)
        np.testing.assert_array_equal(got, want)
    for mode in ("JAXPR", "FAST_COMPILE"):
        strict = pytensor.function([pytensor.In(x, strict=True)], x, mode=mode)
        with pytest.raises(TypeError):
            strict(value)
        vector = pytensor.function([y], y, mode=mode)
        with pytest.raises(TypeError):
            vector(value)


def test_arrays_of_jax_are_not_packed():
    f, *_ = sum_of(pt.dvector, pt.dvector)
    with jax.enable_x64(True):
        on_device = jax.device_put(np.arange(3.0))
    assert f(on_device, np.arange(3.0))[0] == 9
    assert f(on_device, on_device)[0] == 9
    assert packed_positions(f) == []
    assert f(np.arange(3.0), np.arange(3.0))[0] == 9
    assert packed_positions(f) == [(0, 1)]


def test_trusted_arguments_of_another_dtype():
    f, *_ = sum_of(pt.dvector, pt.dvector, trust_input=True)
    assert f(np.ones(2), np.ones(2))[0] == 6
    assert f(np.ones(2, "float32"), np.ones(2))[0] == 6
    assert f(np.ones(2, "float32"), np.ones(2, "int8"))[0] == 6


def test_shared_variables_stay_on_the_device():
    x, y, s = pt.dvector("x"), pt.dscalar("y"), pytensor.shared(np.arange(3.0))
    f = pytensor.function([x, y], [x * s + y], updates={s: s + y}, mode="JAXPR")
    np.testing.assert_array_equal(f(np.ones(3), np.array(1.0))[0], [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(f(np.ones(3), np.array(1.0))[0], [2.0, 3.0, 4.0])
    np.testing.assert_array_equal(s.get_value(), [2.0, 3.0, 4.0])
    assert packed_positions(f) == [(0, 1)]


def test_a_shared_variable_of_another_shape():
    x, s = pt.dvector("x"), pytensor.shared(np.arange(3.0))
    outputs = [s * 2 + x.sum(), s + 1, x + 1]
    f, g = (pytensor.function([x], outputs, mode=mode) for mode in ("JAXPR", "FAST_COMPILE"))
    for length in (3, 5, 0, 1, 3):
        s.set_value(np.arange(length, dtype="float64"))
        for got, want in zip(f(np.ones(2)), g(np.ones(2)), strict=True):
            np.testing.assert_array_equal(got, want)


def test_errors_name_the_packed_arguments():
    x, i, y = pt.dvector("x"), pt.lscalar("i"), pt.dvector("y")
    f = pytensor.function([x, y, i], x[i] + y.sum(), mode="JAXPR")
    assert f(np.arange(3.0), np.ones(1), np.array(2)) == 3
    with pytest.raises(IndexError, match="out of bounds for axis 0 with size 3"):
        f(np.arange(3.0), np.ones(1), np.array(3))
    g = pytensor.function([x, y], x + y, mode="JAXPR")
    with pytest.raises(ValueError, match="Incompatible Elemwise input shapes"):
        g(np.ones(2), np.ones(3))
    np.testing.assert_array_equal(g(np.ones(2), np.ones(2)), [2.0, 2.0])


def test_what_was_packed_is_dropped_with_the_programs():
    options = pjl.Options(specializations=2)
    x, y = pt.dvector("x"), pt.dvector("y")
    f = pytensor.function([x, y], x.sum() + y.sum(), mode=pjl.JaxprMode(pjl.JaxprLinker(options), "fast_run"))
    for n in range(1, 6):
        assert f(np.ones(n), np.ones(2)) == n + 2
        assert len(packed_positions(f)) <= 2


def test_shapes_that_run_on_the_host_are_forgotten(monkeypatch):
    monkeypatch.setattr(specialization, "MOST_SHAPES", 4)
    options = pjl.Options(recompile_limit=2, on_recompile_limit="host")
    x, y = pt.dvector("x"), pt.dvector("y")
    f = pytensor.function([x, y], x.sum() + y.sum(), mode=pjl.JaxprMode(pjl.JaxprLinker(options), "fast_run"))
    with pytest.warns(pjl.RecompileWarning):
        results = [f(np.ones(n), np.ones(2)) for n in range(1, 12)]
    assert results == [n + 2 for n in range(1, 12)]
    assert len(packed_positions(f)) <= 4


def is_short(f, *args, **kwargs) -> bool:
    """Return whether a call goes to the program by the shortest way."""
    if f._short is None:
        f(*args, **kwargs)
        return False
    ways = []

    def short(values):
        ways.append(f_short(values))
        return ways[-1]

    f_short, f._short = f._short, short
    try:
        f(*args, **kwargs)
    finally:
        f._short = f_short
    return bool(ways) and ways[0] is not None


def test_the_shortest_way_is_for_arguments_as_declared():
    x, y = pt.dvector("x"), pt.dscalar("y")
    f = pytensor.function([x, y], [x * y, y + 1], mode="JAXPR")
    a, b = np.arange(3.0), np.array(2.0)
    assert not is_short(f, a, b)  # the first call compiles
    assert is_short(f, a, b) and is_short(f, x=a, y=b) and is_short(f, a, y=b)
    for others in (
        ([1.0, 2, 3], b),
        (a, 2.0),
        (a.astype("float32"), b),
        (np.arange(4.0), b),
        (jax.numpy.arange(3.0), b),
    ):
        assert not is_short(f, *others)
    for wrong in ((a,), (a, b, b), (np.eye(2), b)):
        with pytest.raises(TypeError):
            f(*wrong)
    with pytest.raises(TypeError, match="Unknown input"):
        f(a, z=b)
    with pytest.raises(TypeError):
        f(a, x=a)
    with pjl.stance("force_host"):
        assert not is_short(f, a, b)
    with pjl.count_transfers() as count:
        assert not is_short(f, a, b)
    assert count.calls == 1
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        f(np.array([np.nan, 0, 0]), b)
    assert is_short(f, a, b)
    f.trust_input = True
    assert is_short(f, a, b)


def test_the_shortest_way_checks():
    x = pt.dvector("x")
    f = pytensor.function([x], Assert("must be positive")(x, (x > 0).all()) * 2, mode="JAXPR")
    assert not is_short(f, np.ones(2)) and is_short(f, np.ones(2))
    with pytest.raises(AssertionError, match="must be positive"):
        f(-np.ones(2))
    np.testing.assert_array_equal(f(np.ones(2)), [2, 2])


def test_the_shortest_way_is_made_when_there_is_a_program_to_call():
    x = pt.vector("x", shape=(2,), dtype="float64")
    f = pytensor.function([x], [x * 2, x.sum()], mode="JAXPR")
    f(jax.numpy.ones(2))
    with pjl.stance("force_host"):
        f(np.ones(2))
    with pytest.raises(TypeError):
        f(np.ones(3))
    assert f._short is None
    f([1.0, 2.0])
    assert is_short(f, np.ones(2))
    for other in (np.ones(3), np.ones((2, 1)), np.ones(2, "float32"), [1.0, 2.0]):
        assert f._short([other]) is None
    assert f._short([]) is f._short([np.ones(2), np.ones(2)]) is None


@pytest.mark.parametrize("shape", [(), (2,), (None,)])
def test_the_shortest_way_beside_shared_variables_that_nothing_reads(shape):
    """The error of a failed check is found by the shapes of all inputs, also if the short call leaves them out."""
    x, unread = pt.tensor("x", shape=shape, dtype="float64"), pytensor.shared(np.ones(3), name="unread")
    outputs = Assert("must be positive")(x + 0 * unread.shape[0], (x > 0).all()) * 2
    f = pytensor.function([x], outputs, mode="JAXPR")
    value = np.ones([n or 3 for n in shape])
    assert not is_short(f, value) and is_short(f, value)
    with pytest.raises(AssertionError, match="must be positive"):
        f(-value)
    np.testing.assert_array_equal(f(value), 2 * value)


def test_a_profile_and_kept_cells_take_the_long_way():
    x = pt.vector("x", shape=(2,), dtype="float64")
    f = pytensor.function([x], x * 2, mode="JAXPR")
    f(np.ones(2))
    f.profile = ProfileStats(atexit_print=False)
    assert not is_short(f, np.ones(2)) and f.profile.fct_callcount == 1
    f.profile, f.vm.allow_gc = None, False
    assert not is_short(f, np.ones(2))
    np.testing.assert_array_equal(f.input_storage[0].storage[0], np.ones(2))
    f.vm.allow_gc = True
    assert is_short(f, np.ones(2))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("dtype", ["float64", "int8"])
def test_results_are_in_memory_of_their_own(count, dtype):
    """Few are copied one by one, more share a copy: a write to one changes no other result, nor a later call."""
    x = pt.vector("x", shape=(4,), dtype=dtype)
    outputs = [x * 2, x.sum(dtype=dtype), x.reshape((2, 2)) + x[0], x[:0], x[1:3], x[::-1], x.max()][:count]
    f = pytensor.function([x], outputs, mode="JAXPR")
    compare([x], outputs, [np.arange(4).astype(dtype)])
    value = np.arange(4).astype(dtype)
    first, kept = f(value), [r.copy() for r in f(value)]
    for result, want in zip(first, kept, strict=True):
        np.testing.assert_array_equal(result, want, strict=True)
        result[...] = 77
    for result, want in zip(f(value), kept, strict=True):
        np.testing.assert_array_equal(result, want, strict=True)
    assert not any(np.shares_memory(a, b) for i, a in enumerate(first) for b in first[:i])


def test_functions_for_which_the_shortest_way_is_not():
    x, shared = pt.dvector("x"), pytensor.shared(np.ones(2), name="shared")
    deferred, with_breaks = (
        pjl.JaxprMode(pjl.JaxprLinker(pjl.Options(**options)), "fast_run")
        for options in ({"checks": "defer"}, {"on_break": "ignore"})
    )
    for outputs, kwargs in (
        (x + 1, {"updates": {shared: shared + 1}}),
        (x + 1, {"mode": deferred}),
        (pt.sort(x)[: pt.argmax(x) + 1], {"mode": with_breaks}),
    ):
        f = pytensor.function([x], outputs, **{"mode": "JAXPR", **kwargs}, on_unused_input="ignore")
        f(np.ones(2))
        assert f._short is None or not is_short(f, np.ones(2))


def test_one_output_and_none():
    x = pt.dvector("x")
    one, several = (pytensor.function([x], outputs, mode="JAXPR") for outputs in (x * 2, [x * 2]))
    for _ in range(2):
        assert type(one(np.ones(2))) is np.ndarray and type(several(np.ones(2))) is list


def test_shared_arrays_on_the_shortest_way():
    x, a, b = pt.dvector("x"), pytensor.shared(np.ones(2), name="a"), pytensor.shared(np.array(3.0), name="b")
    f = pytensor.function([x], [x + a, a * b], mode="JAXPR")
    add = pytensor.function([], updates={a: a + 1}, mode="JAXPR")
    in_place = pytensor.function([], updates={b: b + 1}, mode="FAST_RUN")
    value = np.zeros(2)

    def check():
        for _ in range(2):
            want = [value + a.get_value(), a.get_value() * b.get_value()]
            for got, expected in zip(f(value), want, strict=True):
                np.testing.assert_array_equal(got, expected)
        assert is_short(f, value)

    check()
    for change in (
        lambda: a.set_value(np.full(2, 5.0)),
        add,
        in_place,
        lambda: a.get_value(borrow=True).__setitem__(0, 7.0),
        lambda: b.set_value(np.array(-1.0)),
        add,
    ):
        change()
        check()
    a.set_value(np.ones(3))  # a new length
    value = np.zeros(3)
    check()
    kept = weakref.ref(a.get_value(borrow=True))
    a.set_value(np.zeros(3))
    check()
    assert kept() is None


def test_large_shared_arrays_are_not_kept(monkeypatch):
    monkeypatch.setattr("pytensor_jaxpr_linker.frontend.storage.MOST_KEPT", 8)
    x, a = pt.dscalar("x"), pytensor.shared(np.ones(2), name="a")
    f = pytensor.function([x], x + a, mode="JAXPR")
    for number in (1.0, 2.0):
        a.set_value(np.full(2, number))
        np.testing.assert_array_equal([f(np.array(1.0)) for _ in range(3)], [[1 + number] * 2] * 3)
    assert not is_short(f, np.array(1.0))
