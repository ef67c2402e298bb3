"""Ops that make, join, split and check tensors, against PyTensor."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import compare, compare_error, compare_grad, tensor_like
from pytensor.raise_op import Assert, CheckAndRaise

import pytensor_jaxpr_linker as pjl

X = np.arange(12.0).reshape(3, 4)


# -- making tensors ----------------------------------------------------------------------------------------------------


def test_alloc():
    x, n = pt.vector("x"), pt.lscalar("n")
    outputs = [
        pt.alloc(x, n, 4),
        pt.alloc(2.5, n),
        pt.zeros((n, 2), "int8"),
        pt.ones((2, n)),
        pt.alloc(np.array(True), n),
    ]
    compare([x, n], outputs, [X[0], 3])
    compare([x, n], outputs[1:], [X[0], 0])


def test_alloc_does_not_broadcast_undeclared_dimensions():
    x, n = pt.vector("x"), pt.lscalar("n")
    compare_error([x, n], pt.alloc(x, 2, n), [X[0, :1], 3], match="Runtime broadcasting not allowed")
    compare_error([x, n], pt.alloc(x, 2, n), [X[0], 3])


def test_alloc_of_a_negative_length():
    n = pt.lscalar("n")
    compare_error([n], pt.zeros((n,)), [-1], match="negative")


def test_alloc_empty():
    n = pt.lscalar("n")
    result = pytensor.function([n], pt.empty((n, 2), dtype="float32"), mode="JAXPR")(3)
    assert result.shape == (3, 2)
    assert result.dtype == np.float32


@pytest.mark.parametrize(
    "args",
    [(5,), (2, 9), (9, 2), (9, 2, -2), (0, 10, 3), (0, 0), (0.0, 1.0, 0.1), (1.0, -1.0, -0.25), (0.5, 4), (-3, 3)],
    ids=str,
)
def test_arange(args):
    compare([], [pt.arange(*args), pt.arange(*args, dtype="float32"), pt.arange(*args, dtype="int16")], [])


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8"])
def test_arange_of_inputs(dtype):
    start, stop, step = inputs = [pt.scalar(name, dtype=dtype) for name in ("start", "stop", "step")]
    values = [np.array(v, dtype) for v in (1, 11, 3)]
    compare(inputs, pt.arange(start, stop, step), values)


def test_arange_with_step_zero():
    step = pt.lscalar("step")
    compare_error([step], pt.arange(0, 3, step), [0])


@pytest.mark.parametrize("k", [-4, -1, 0, 2, 5])
def test_eye(k):
    n = pt.lscalar("n")
    compare([n], [pt.eye(n, k=k), pt.eye(n, 5, k), pt.eye(4, n, k, dtype="int32"), pt.tri(n, 4, k)], [3])


def test_make_vector():
    x, n = pt.dscalar("x"), pt.bscalar("n")
    compare([x, n], [pt.stack([x, x * 2]), pt.as_tensor([x, n, 1]), pt.stack([n, n])], [2.5, np.int8(3)])


def test_linspace_and_friends():
    stop = pt.dscalar("stop")
    compare([stop], [pt.linspace(0, stop, 5), pt.logspace(0, stop, 3), pt.geomspace(1, stop, 4)], [2.0])


# -- joining and splitting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_join(axis):
    x, y, z = inputs = [pt.matrix("x"), pt.matrix("y", dtype="int8"), pt.matrix("z", dtype="float32")]
    arrays = [X, np.ones((3, 4), "int8"), X.astype("float32")]
    compare(inputs, [pt.join(axis, x, y, z), pt.join(axis, y, y), pt.join(axis, y, z), pt.stack([x, x], axis)], arrays)


def test_join_of_empty_parts():
    x, y = pt.matrix("x"), pt.matrix("y")
    compare([x, y], pt.join(0, x, y, x[:0]), [X[:0], X])


def test_join_of_different_shapes():
    x, y = pt.matrix("x"), pt.matrix("y")
    compare_error([x, y], pt.join(0, x, y), [X, X[:, :2]], match="must match exactly")


@pytest.mark.parametrize("axis, sizes", [(0, (1, 0, 2)), (1, (2, 1, 1)), (-1, (4, 0, 0))], ids=str)
def test_split(axis, sizes):
    x, s = pt.matrix("x"), pt.lvector("s")
    compare([x, s], list(pt.split(x, splits_size=s, n_splits=3, axis=axis)), [X, np.array(sizes)])


@pytest.mark.parametrize("sizes", [(1, 1), (1, 1, 2), (1, 3, -1), (2, 1)], ids=str)
def test_split_errors(sizes):
    x, s = pt.matrix("x"), pt.lvector("s")
    compare_error([x, s], pt.split(x, splits_size=s, n_splits=3)[0], [X, np.array(sizes)])


def test_tile_pad_and_roll():
    x = pt.matrix("x")
    padded = [pt.pad(x, 2), pt.pad(x, ((1, 0), (0, 2)), mode="edge"), pt.pad(x, 1, mode="reflect")]
    compare([x], [pt.tile(x, (2, 3)), pt.roll(x, 2, 1), *padded], [X])


# -- diagonals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [-5, -1, 0, 2, 4])
def test_diagonals(offset):
    x, y = pt.matrix("x"), pt.tensor3("y")
    outputs = [pt.diagonal(x, offset), pt.diagonal(y, offset, 1, 2), pt.diagonal(y, offset, 2, 0), pt.trace(x)]
    compare([x, y], outputs, [X, np.arange(24.0).reshape(2, 3, 4)])


@pytest.mark.parametrize("offset", [-1, 0, 2])
def test_alloc_diag(offset):
    x, y = pt.vector("x"), pt.matrix("y")
    compare([x, y], [pt.diag(x, offset), pt.basic.alloc_diag(y, offset, 0, 2)], [X[0], X])


# -- repeats -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("repeats", [3, 0, [2, 0, 1], [1, 1, 1]], ids=str)
def test_repeat(repeats):
    x = pt.matrix("x")
    r = tensor_like(np.asarray(repeats), "r")
    compare([x, r], pt.repeat(x, r, 0), [X, np.asarray(repeats)])


@pytest.mark.parametrize("repeats", [[1, 2], [1, -1, 2]], ids=str)
def test_repeat_errors(repeats):
    x, r = pt.matrix("x"), pt.lvector("r")
    compare_error([x, r], pt.repeat(x, r, 0), [X, np.array(repeats)])


# -- checks ------------------------------------------------------------------------------------------------------------


def test_assert():
    x = pt.vector("x")
    checked = Assert("x must be positive")(x, (x > 0).all())
    compare([x], checked * 2, [X[1]])
    compare_error([x], checked * 2, [X[0]], match="x must be positive")


def test_check_and_raise_another_exception():
    x = pt.vector("x")
    checked = CheckAndRaise(KeyError, "no such key")(x, x.sum() > 0, x[0] > 0)
    compare([x], pt.exp(checked), [X[1]])
    compare_error([x], pt.exp(checked), [X[0]], match="no such key")


def test_the_first_failed_check_raises():
    x = pt.vector("x")
    first = Assert("first")(x, x[0] > 0)
    second = Assert("second")(first, x[1] > 0)
    f = pytensor.function([x], second * 1.5, mode="JAXPR")
    np.testing.assert_array_equal(f(np.array([1.0, 2.0])), [1.5, 3.0])
    for value, message in [([-1.0, -1.0], "first"), ([-1.0, 1.0], "first"), ([1.0, -1.0], "second")]:
        with pytest.raises(AssertionError, match=message):
            f(np.array(value))
    np.testing.assert_array_equal(f(np.array([1.0, 2.0])), [1.5, 3.0])


# -- lengths that inputs give ------------------------------------------------------------------------------------------


def test_static_lengths_of_inputs():
    x, n = pt.matrix("x"), pt.lscalar("n")
    outputs = [pt.arange(n), pt.zeros(n), x[:n], x.reshape((n, -1)), pt.eye(n), pt.alloc(x[0, 0], n)]
    f = pytensor.function([x, n], outputs, mode="JAXPR")
    for rows in (1, 2, 3):
        expected = [
            np.arange(rows),
            np.zeros(rows),
            X[:rows],
            X.reshape(rows, -1),
            np.eye(rows),
            np.full(rows, X[0, 0]),
        ]
        for got, want in zip(f(X, rows), expected, strict=True):
            np.testing.assert_array_equal(got, want)


def test_more_lengths_than_the_cache_holds():
    n = pt.lscalar("n")
    f = pytensor.function([n], pt.arange(n) * 2, mode="JAXPR")
    with pytest.warns(pjl.RecompileWarning, match="'n'"):
        for length in [*range(70), 0, 3]:
            np.testing.assert_array_equal(f(length), np.arange(length) * 2)


# -- constants ---------------------------------------------------------------------------------------------------------


def test_large_constants():
    x = pt.vector("x")
    large, small = np.arange(20_000.0), np.arange(3.0)
    f = pytensor.function([x], [(x + large).sum(), x[0] * small, large[::2] * x[:1].sum()], mode="JAXPR")
    value = np.ones(20_000)
    for _ in range(2):
        for got, want in zip(f(value), [(value + large).sum(), small, large[::2]], strict=True):
            np.testing.assert_allclose(got, want)


# -- derivatives -------------------------------------------------------------------------------------------------------


def test_gradients():
    x, y = pt.matrix("x"), pt.vector("y")
    outputs = [
        pt.alloc(y, 2, 4),
        pt.join(1, x, 2 * x),
        pt.split(x, splits_size=[1, 3], n_splits=2, axis=1)[1],
        pt.stack([y[0], x[0, 0]]),
        pt.diagonal(x, 1),
        pt.basic.alloc_diag(y, 1),
        pt.repeat(x, [1, 0, 2], 0),
        pt.repeat(x, 2, 1),
        pt.tile(y, 2),
        pt.pad(x, 1),
        Assert("positive")(y, (y > -1).all()),
    ]
    compare_grad([x, y], pt.concatenate([pt.sin(z).ravel() for z in outputs]), [X / 7, X[1] / 5])


@pytest.mark.parametrize("mode", ["raise", "wrap", "clip"])
def test_choose_out_of_bounds(mode):
    which, x = pt.lvector("which"), pt.dmatrix("x")
    outside = [np.array([3, 0, -1, 1]), X]
    y = pt.choose(which, x, mode=mode)
    compare([which, x], y, [np.array([2, 0, 1, 1]), X])
    if mode == "raise":
        compare_error([which, x], y, outside, "invalid entry in choice array")
    else:
        compare([which, x], y, outside)
