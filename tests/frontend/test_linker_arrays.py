"""Arguments, results and shared variables of mode JAXPR: dtypes, casts, and where their arrays are."""

import pickle

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.io import In, Out
from pytensor.compile.mode import Mode
from pytensor.raise_op import Assert

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker import JaxprLinker
from tests.frontend.test_linker import compiled, mode_with

# Results


@pytest.mark.parametrize("size", [2, 131_072], ids=["small", "1MB"])
def test_results_are_writable_and_stay(size):
    x = pt.vector("x", dtype="float64")
    f = compiled([x], x + 1)
    first = f(np.zeros(size))
    assert type(first) is np.ndarray and first.flags.writeable
    second = f(np.ones(size))
    first += 10
    np.testing.assert_array_equal(second, 2)
    del f
    np.testing.assert_array_equal(first, 11)
    pickle.loads(pickle.dumps(first))


def test_borrowed_result_is_read_only_view():
    x = pt.vector("x", dtype="float64")
    result = compiled([x], Out(x + 1, borrow=True))(np.zeros(131_072))
    assert type(result) is np.ndarray and not result.flags.writeable and result.base is not None
    np.testing.assert_array_equal(result, 1)


def test_results_jax_stay_on_device():
    x = pt.vector("x", dtype="float64")
    s = pytensor.shared(np.ones(3))
    f = compiled([x], x + s, mode=mode_with(results="jax"))
    with jax.enable_x64(True):
        value = jax.numpy.ones(3)
    f(value)
    with jax.transfer_guard("disallow"):
        result = f(value)
        result = f(result)
    assert isinstance(result, jax.Array) and result.dtype == "float64"
    np.testing.assert_array_equal(result, 3)


def test_large_constants_stay_on_device():
    x = pt.vector("x", dtype="float64")
    f = compiled([x], x + np.arange(5000.0), mode=mode_with(results="jax"))
    with jax.enable_x64(True):
        value = jax.numpy.ones(5000)
    f(value)
    with jax.transfer_guard("disallow"):
        f(value)


def test_large_constant_and_its_transpose_are_uploaded_once():
    design = pt.as_tensor(np.random.default_rng(0).normal(size=(2000, 5)))
    x, y = pt.dvector("x"), pt.dvector("y")
    f = compiled([x, y], [design @ x, design.T @ y, design[::2].sum()])
    assert len(f.vm.runner.program.constants) == 1
    values = [np.arange(5.0), np.arange(2000.0)]
    data = design.data
    for got, want in zip(f(*values), [data @ values[0], data.T @ values[1], data[::2].sum()], strict=True):
        np.testing.assert_allclose(got, want)
    fn = pjl.as_jax_function(f)
    with jax.enable_x64(True):
        np.testing.assert_allclose(jax.grad(lambda x: fn(x, values[1])[0].sum())(values[0]), data.sum(0))


def test_result_of_a_function_is_input_of_the_next():
    x = pt.vector("x", dtype="float64")
    f = compiled([x], x + 1)
    value = f(np.zeros(131_072))
    value[0] = 5
    np.testing.assert_array_equal(f(value)[:2], [6, 2])


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int16", "int32", "int64", "uint64", "float32", "float64", "complex128"]
)
def test_dtypes_are_exact(dtype):
    x = pt.vector("x", dtype=dtype)
    result = compiled([x], x)(np.ones(2, dtype))
    assert result.dtype == dtype


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, jax.vmap], ids=["jit", "grad", "vmap"])
@pytest.mark.parametrize("mode", ["JAXPR", Mode(JaxprLinker(), "fast_run")], ids=["JAXPR", "Mode"])
def test_compiled_functions_inside_transformations(transform, mode):
    x, scale = pt.dvector("x"), pytensor.shared(2.0)
    f = pytensor.function([x], (x * scale).sum(), mode=mode)
    call = f if mode == "JAXPR" else lambda x: f(x)
    with jax.enable_x64(True), pytest.raises(TypeError, match=r"'x' is a tracer of a JAX .*as_jax_function\(f\)"):
        transform(call)(np.ones((2, 2)) if transform is jax.vmap else np.ones(2))


CASTS = [
    ("float32", "float64"),
    ("int8", "float32"),
    ("int32", "int64"),
    ("bool", "float64"),
    ("float64", "complex128"),
]


@pytest.mark.parametrize(("given", "declared"), CASTS)
def test_device_arrays_are_cast_on_the_device(given, declared):
    x = pt.vector("x", dtype=declared)
    f = pytensor.function([x], x * 2, mode="JAXPR")
    want = pytensor.function([x], x * 2, mode="FAST_COMPILE")
    with jax.enable_x64(True):
        value = jax.numpy.array([1, 0, 3], given)
    f(value)
    with jax.transfer_guard_device_to_host("disallow"):
        assert isinstance(f.input_storage[0].type.filter(value), jax.Array)
    np.testing.assert_array_equal(f(value), want(np.asarray(value)), strict=True)


@pytest.mark.parametrize(("given", "declared"), [("float64", "float32"), ("int64", "float32"), ("float32", "int32")])
def test_device_arrays_that_pytensor_does_not_cast(given, declared):
    x = pt.vector("x", dtype=declared)
    with jax.enable_x64(True):
        value = jax.numpy.array([1.0, 2.5], given)
    with pytest.raises(TypeError, match="without risking loss of precision"):
        pytensor.function([x], x * 2, mode="JAXPR")(value)
    if declared == "float32":
        inputs = [In(x, allow_downcast=True)]
        f, want = (pytensor.function(inputs, x * 2, mode=mode) for mode in ("JAXPR", "FAST_COMPILE"))
        np.testing.assert_array_equal(f(value), want(np.asarray(value)), strict=True)
    with pytest.raises(TypeError, match="expected an ndarray with dtype"):
        pytensor.function([In(x, strict=True)], x * 2, mode="JAXPR")(value)


def test_int64_under_float32():
    with pytensor.config.change_flags(floatX="float32"):
        x = pt.lvector("x")
        total, mean = compiled([x], [x.sum(), x.mean(dtype="float32")])([2**40, 2**40 + 2])
    assert (total.dtype, mean.dtype) == ("int64", "float32")
    assert int(total) == 2**41 + 2


# Shared variables


def test_shared_is_uploaded_once():
    s = pytensor.shared(np.ones(1000))
    f = compiled([], s * 2, mode=mode_with(results="jax"))
    f()
    before = s.get_value(borrow=True).ctypes.data
    with jax.transfer_guard("disallow"):
        f()
    assert s.get_value(borrow=True).ctypes.data == before


def test_shared_set_value_and_other_shape():
    s = pytensor.shared(np.ones(2))
    f = compiled([], s * 2)
    f()
    s.set_value(np.full(2, 4.0))
    np.testing.assert_array_equal(f(), [8, 8])
    s.set_value(np.full(5, 4.0))
    np.testing.assert_array_equal(f(), [8] * 5)
    s.set_value(np.zeros(0))
    assert f().shape == (0,)
    mine = np.ones(2)
    s.set_value(mine, borrow=True)
    np.testing.assert_array_equal(f(), [2, 2])


def test_shared_changed_in_place():
    s = pytensor.shared(np.ones(2))
    f = compiled([], s * 2)
    f()
    s.get_value(borrow=True)[0] = 7
    np.testing.assert_array_equal(f(), [14, 2])


@pytest.mark.parametrize("mode", ["FAST_COMPILE", "NUMBA"])
def test_shared_updated_by_another_mode(mode):
    s = pytensor.shared(np.zeros((2, 2)), name="s")
    f = compiled([], s * 2, updates={s: s + 1})
    other = pytensor.function([], s.sum(), updates={s: pt.inc_subtensor(s[0], 10.0)}, mode=mode)
    f()
    np.testing.assert_array_equal(other(), 4)
    np.testing.assert_array_equal(f(), [[22, 22], [2, 2]])
    np.testing.assert_array_equal(other(), 28)
    np.testing.assert_array_equal(s.get_value(), [[22, 22], [2, 2]])
    value = s.container.storage[0]
    assert type(value) is np.ndarray and value.flags.writeable


def test_updated_value_is_ndarray_that_others_may_write():
    s = pytensor.shared(np.zeros(2))
    compiled([], [], updates={s: s + 1})()
    value = s.get_value(borrow=True)
    assert type(value) is np.ndarray and value.flags.writeable
    pickle.loads(pickle.dumps(s))
    kept = s.get_value()
    compiled([], [], updates={s: s + 1})()
    np.testing.assert_array_equal(kept, [1, 1])


def test_shared_integer_determines_shape():
    n = pytensor.shared(3, name="n")
    f = compiled([], pt.arange(n), updates={n: n + 1})
    assert [f().tolist(), f().tolist()] == [[0, 1, 2], [0, 1, 2, 3]]
    n.set_value(1)
    assert f().tolist() == [0]


def test_error_leaves_shared_and_generators_alone():
    s = pytensor.shared(np.zeros(3), name="s")
    rng = pytensor.shared(np.random.default_rng(1), name="rng")
    following, draw = pt.random.normal(rng=rng, return_next_rng=True)
    i = pt.lscalar("i")
    y = pt.vector("y", dtype="float64")
    positive = Assert("must be positive")(y, (y > 0).all())
    f = compiled([i, y], s[i] + draw, updates={s: s + positive, rng: following})
    f(0, np.ones(3))
    state, value = rng.get_value().bit_generator.state, s.get_value()
    for args, error, match in [
        ((3, np.ones(3)), IndexError, None),
        ((0, -np.ones(3)), AssertionError, "must be positive"),
        ((0, np.ones(2)), ValueError, None),
        ((0, np.ones((2, 2))), TypeError, "y"),
    ]:
        with pytest.raises(error, match=match):
            f(*args)
        assert rng.get_value().bit_generator.state == state
        np.testing.assert_array_equal(s.get_value(), value)
    f(0, np.ones(3))
    np.testing.assert_array_equal(s.get_value(), value + 1)
