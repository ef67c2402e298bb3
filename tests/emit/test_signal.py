"""Convolutions, against PyTensor."""

import numpy as np
import pytensor.tensor as pt
import pytest
from helpers import FULLGRAPH, compare, compare_error, compare_grad, tensor_like
from pytensor import function
from pytensor.tensor.signal import convolve1d, convolve2d

RNG = np.random.default_rng(7)
MODES = ["full", "valid", "same"]
TOLERANCE = {"float64": 1e-10, "float32": 1e-4, "int64": 0.0, "complex128": 1e-10}


def sample(shape, dtype="float64"):
    return (10 * RNG.normal(size=shape)).astype(dtype)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "shapes", [((7,), (3,)), ((3,), (7,)), ((50,), (21,)), ((2, 9), (2, 4)), ((4, 9), (1, 20))], ids=str
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_convolve1d(mode, shapes, dtype):
    values = [sample(shape, dtype) for shape in shapes]
    x, y = (tensor_like(v, name, static=True) for v, name in zip(values, "xy", strict=True))
    compare([x, y], convolve1d(x, y, mode=mode), values, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * 100)


@pytest.mark.parametrize("dtype", ["int64", "complex128"])
def test_convolve1d_of_other_numbers(dtype):
    values = [sample(9, dtype), sample(4, dtype)]
    x, y = (tensor_like(v, name) for v, name in zip(values, "xy", strict=True))
    compare([x, y], convolve1d(x, y), values, rtol=TOLERANCE[dtype])


def test_infinite_and_missing_elements_stay_where_they_are():
    signal, kernel = sample(40), sample(20)
    signal[17], signal[30], kernel[3] = np.nan, np.inf, np.inf
    x, y = pt.vectors("x", "y")
    for length in (3, 20):
        compare([x, y], convolve1d(x, y), [signal, kernel[:length]])


@pytest.mark.parametrize("shapes", [((0,), (3,)), ((3,), (0,))], ids=str)
def test_nothing_to_convolve(shapes):
    x, y = pt.vectors("x", "y")
    compare_error([x, y], convolve1d(x, y), [sample(shape) for shape in shapes], match="cannot be empty")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "shapes", [((6, 7), (2, 3)), ((2, 3), (6, 7)), ((12, 13), (5, 6)), ((2, 6, 7), (1, 2, 2))], ids=str
)
def test_convolve2d(mode, shapes):
    values = [sample(shape) for shape in shapes]
    x, y = (tensor_like(v, name, static=True) for v, name in zip(values, "xy", strict=True))
    compare([x, y], convolve2d(x, y, mode=mode), values, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", ["direct", "fft", "auto"])
def test_large_kernels(method):
    values = [sample((40, 45)), sample((24, 25))]
    x, y = pt.matrices("x", "y")
    compare([x, y], convolve2d(x, y, method=method), values, rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("boundary", ["wrap", "symm"])
def test_boundaries(boundary):
    values = [sample((6, 7)), sample((3, 3))]
    x, y = (tensor_like(v, name, static=True) for v, name in zip(values, "xy", strict=True))
    compare([x, y], convolve2d(x, y, mode="same", boundary=boundary), values, rtol=1e-9, atol=1e-9)


def test_kernel_that_is_larger_one_way_only():
    x, y = pt.matrices("x", "y")
    compare_error([x, y], convolve2d(x, y, mode="valid"), [sample((3, 9)), sample((4, 2))], match="at least as large")


def test_convolution_is_one_program():
    x, y = pt.matrices("x", "y")
    f = function([x, y], convolve1d(x, y), mode=FULLGRAPH)
    for lengths in ((5, 3), (8, 8)):
        signal, kernel = (sample((2, n)) for n in lengths)
        want = [np.convolve(s, k) for s, k in zip(signal, kernel, strict=True)]
        np.testing.assert_allclose(f(signal, kernel), want, rtol=1e-10)


@pytest.mark.parametrize("length", [3, 20])
def test_gradients(length):
    x, y = pt.vectors("x", "y")
    compare_grad([x, y], convolve1d(x, y), [sample(30), sample(length)])
    x, y = pt.matrices("x", "y")
    compare_grad([x, y], convolve2d(x, y, mode="valid"), [sample((5, 6)), sample((2, 3))])
