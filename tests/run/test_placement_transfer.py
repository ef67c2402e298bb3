"""NumPy views of JAX arrays, which JAX takes for immutable: no array that somebody else holds changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor import wrap_py
from pytensor.compile.io import In, Out
from pytensor.compile.mode import Mode

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.run.placement import buffer_of

COUNT = 1000


@wrap_py(itypes=[pt.dvector], otypes=[pt.dvector])
def on_host(x):
    """An Op that only Python can compute."""
    return x + 1


def memory(variable):
    """Return the NumPy array that holds the value of a shared variable."""
    return variable.get_value(borrow=True, return_internal_type=True)


def address(array):
    """Return where the memory of an array begins."""
    return array.unsafe_buffer_pointer() if isinstance(array, jax.Array) else array.ctypes.data


def one_and_another(x, s, t, y):
    return [y, y], {s: y, t: y}


def equal_numbers(x, s, t, y):
    return [y, y + 0, pt.specify_shape(y, (COUNT,))], {s: y, t: pt.specify_shape(y, (COUNT,))}


def an_argument(x, s, t, y):
    return [x], {s: x, t: x}


def each_other(x, s, t, y):
    return [s, t], {s: t, t: s}


def what_is_replaced(x, s, t, y):
    return [s], {s: y}


def what_is_not_replaced(x, s, t, y):
    return [t], {s: t}


def a_constant(x, s, t, y):
    return [pt.constant(np.ones(COUNT))], {s: pt.constant(np.ones(COUNT)), t: pt.constant(np.ones(COUNT))}


def a_result_of_the_host(x, s, t, y):
    return [on_host(s)], {s: on_host(s), t: on_host(t)[::1]}


GRAPHS = [
    one_and_another,
    equal_numbers,
    an_argument,
    each_other,
    what_is_replaced,
    what_is_not_replaced,
    a_constant,
    a_result_of_the_host,
]


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.__name__)
@pytest.mark.parametrize("several", [False, True], ids=["one program", "several batches"])
@pytest.mark.parametrize("results", ["numpy", "jax"])
@pytest.mark.parametrize("borrow", [False, True], ids=["", "borrow"])
def test_what_is_written_in_place_changes_no_array_of_the_users(graph, several, results, borrow):
    """A write to a shared variable's memory, as another mode does it, is seen by that variable only."""
    with jax.enable_x64(True):
        argument, given = jnp.arange(COUNT, dtype="float64"), jnp.ones(COUNT) / 3
    x = pt.dvector("x")
    s, t = (pytensor.shared(np.zeros(COUNT), name=name) for name in "st")
    for variable in (s, t):
        variable.set_value(given, borrow=True)
    outputs, updates = graph(x, s, t, pt.exp(x) + s + t)
    outputs = [*outputs, *([on_host(pt.exp(x) * 2) * 3] if several else [])]
    with pjl.options(results=results, on_break="ignore"):
        f = pytensor.function(
            [x], [Out(v, borrow=borrow) for v in outputs], updates=updates, mode="JAXPR", on_unused_input="ignore"
        )
    held = [argument, given, *f(argument)]
    earlier = [(v, memory(v)) for v in (s, t)]
    held += f(argument)
    if results == "jax":
        assert all(isinstance(array, jax.Array) for array in held)
    held = [array for array in held if isinstance(array, jax.Array)]
    before = [np.array(array) for array in (*held, memory(s), memory(t))]
    assert len({address(array) for array in (*held, memory(s), memory(t))}) == len(held) + 2
    for v, array in earlier:
        if array is not memory(v) and array.flags.writeable:
            array[...] = -3
    for array, value in zip((*held, memory(s), memory(t)), before, strict=True):
        np.testing.assert_array_equal(array, value)
    if memory(s).flags.writeable:  # not an accelerator's, which is a copy, nor what no call has read
        assert address(buffer_of(memory(s)).array) == address(memory(s))
        memory(s)[...] = -1
    fill = pytensor.function([], updates={s: s * 0 - 2}, mode=Mode("py", "fast_run"))
    fill()
    for array, value in zip((*held, memory(t)), before[: len(held)] + before[-1:], strict=True):
        np.testing.assert_array_equal(array, value)


def test_a_write_in_place_is_seen_by_no_program_that_was_called_before():
    """With ``results="jax"`` JAX runs programs while Python goes on, but not on memory that others may write to."""
    n = 1500
    s = pytensor.shared(np.ones((n, n)))
    with pjl.options(results="jax"):
        f = pytensor.function([], s @ s, mode="JAXPR")
    f()
    if not memory(s).flags.writeable:
        pytest.skip("an accelerator has memory of its own")
    for _ in range(3):
        memory(s)[...] = 1
        result = f()
        memory(s)[...] = 0
        assert np.all(np.asarray(result) == n)


@pytest.mark.parametrize("borrow", [False, True], ids=["own", "borrowed"])
@pytest.mark.parametrize("size", [0, 3, 2048, 3000, 300_000])
def test_the_old_value_of_a_shared_variable_is_writable(size, borrow):
    """An output may be the value that an update replaces: alone, twice, or as a view."""
    s, x = pytensor.shared(np.zeros(size), name="s"), pt.dvector("x")
    for outputs in ([s], [s, s], [s[::-1], x.sum(), s], [s.reshape((1, -1)), s]):
        f = pytensor.function([x], [Out(y, borrow=borrow) for y in outputs], updates={s: s + x}, mode="JAXPR")
        held = s.get_value(borrow=True)
        for _ in range(2):
            before = s.get_value()
            for y, result in zip(outputs, f(np.ones(size)), strict=True):
                assert y is not s or np.array_equal(result, before)
                assert result.flags.writeable or (borrow and len(outputs) > 1)
                if result.flags.writeable:
                    result += 100
            np.testing.assert_array_equal(s.get_value(), before + 1)
            assert s.get_value().flags.writeable and s.get_value(borrow=True).flags.writeable
        assert not size or held[0] < 100


MASKED = {
    "masked": np.ma.array([1.0, 5.0, 3.0], mask=[False, True, False]),
    "no mask": np.ma.array([1.0, 5.0, 3.0]),
    "integers": np.ma.array([1, 5, 3], dtype="int32", mask=[False, False, True]),
    "empty": np.ma.array(np.zeros(0), mask=np.zeros(0, bool)),
}


@pytest.mark.parametrize("value", MASKED.values(), ids=MASKED)
def test_masked_arrays_count_with_what_is_under_the_mask(value):
    """As in FAST_COMPILE, whose Ops mostly see the numbers; a mask is not kept."""
    x, s, data = pt.dvector("x"), pytensor.shared(np.zeros(len(value))), value.data

    def check(results):
        for result, want in zip(results, (2 * data, data.sum(), data + data), strict=True):
            assert type(np.asarray(result)) is np.ndarray and not isinstance(result, np.ma.MaskedArray)
            np.testing.assert_array_equal(result, want)

    outputs = [x * 2, x.sum(), on_host(x) - 1 + x]
    f = pytensor.function([x], outputs, mode=pjl.JaxprMode(on_break="ignore"))
    check(f(value)), check(f(x=value))
    check(pytensor.function([x], outputs, mode=pjl.JaxprMode(on_break="ignore"), allow_input_downcast=True)(value))
    f.trust_input = True
    check(f(value))
    one = pytensor.function([x], [x * 2, x.sum(), x + x], mode="JAXPR")
    check(one(value))
    one.trust_input = True
    check(one(value))
    check(pjl.as_jax_function([x], [x * 2, x.sum(), x + x])(value))
    reads = pytensor.function([], [s * 2, s.sum(), s + s], mode="JAXPR")
    adds = pytensor.function([x], [x * 2, x.sum(), x + x], updates={s: s + x}, mode="JAXPR")
    reads()
    s.set_value(value)
    check(reads())
    check(adds(value))
    np.testing.assert_array_equal(s.get_value(), 2 * data)


def test_masked_arrays_of_the_declared_dtype_are_taken_strictly():
    value = MASKED["masked"]
    x = pt.dvector("x")
    f = pytensor.function([In(x, strict=True)], x * 2, mode="JAXPR")
    np.testing.assert_array_equal(f(value), [2, 10, 6])
    with pytest.raises(TypeError):
        f(value.astype("float32"))


def test_exported_functions_take_masked_arrays(tmp_path):
    x = pt.dvector("x")
    pjl.export([x], x * 2, tmp_path / "f.jaxpr")
    f = pjl.load(tmp_path / "f.jaxpr")
    np.testing.assert_array_equal(f(MASKED["masked"]), [2, 10, 6])
