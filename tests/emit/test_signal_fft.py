"""Fourier transforms, against PyTensor."""

import numpy as np
import pytensor.tensor as pt
import pytest
from helpers import FULLGRAPH, compare, compare_error, compare_grad, tensor_like
from pytensor import function
from pytensor.tensor.fft import irfft, rfft
from pytensor.tensor.fourier import fft

# PyTensor calls NumPy as it was before version 2.
pytestmark = pytest.mark.filterwarnings("ignore:`axes` should not be `None`:DeprecationWarning")

RNG = np.random.default_rng(11)
#: The reference keeps double precision, the transform of single precision does not.
TOLERANCE = {"float64": 1e-9, "float32": 2e-5}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(2, 8), (2, 7), (1, 4, 6), (2, 3, 4, 5), (1, 2, 3, 4, 5), (0, 4)], ids=str)
def test_transform_and_back(shape, dtype):
    value = RNG.normal(size=shape).astype(dtype)
    x = tensor_like(value, "x")
    tolerance = TOLERANCE[dtype]
    spectrum = rfft(x)
    is_odd = bool(shape[-1] % 2)
    compare([x], [spectrum, irfft(spectrum, is_odd=is_odd)], [value], rtol=tolerance, atol=tolerance * 10)
    compare([x], rfft(x, norm="ortho"), [value], rtol=tolerance, atol=tolerance * 10)


@pytest.mark.parametrize("parts", [0, 1])
def test_inverse_without_both_parts(parts):
    x = pt.tensor("x", dtype="float64", shape=(None, None, None))
    compare_error([x], irfft(x), [np.ones((2, 3, parts))], match=f"index {parts} is out of bounds for axis 2")


def test_transform_is_one_program():
    x = pt.matrix("x")
    f = function([x], rfft(x), mode=FULLGRAPH)
    value = RNG.normal(size=(3, 8))
    want = np.fft.rfft(value)
    np.testing.assert_allclose(f(value), np.stack([want.real, want.imag], -1), atol=1e-12)


@pytest.mark.parametrize("length", [5, 8, 11])
def test_complex_transform(length):
    value = RNG.normal(size=(3, 8)) + 1j * RNG.normal(size=(3, 8))
    x = tensor_like(value, "x")
    compare([x], [fft(x, length, 1), fft(x, length, 0), fft(x.real, length, 1)], [value])


def test_transform_without_elements():
    x = pt.matrix("x")
    compare_error([x], rfft(x), [np.empty((2, 0))], match="FFT data points")


def test_gradients():
    value = RNG.normal(size=(2, 6))
    x = pt.matrix("x")
    compare_grad([x], rfft(x), [value])
    compare_grad([x], irfft(rfft(x) ** 2), [value])
