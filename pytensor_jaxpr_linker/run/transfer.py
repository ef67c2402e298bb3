"""Moves values between PyTensor's storage, which holds NumPy arrays, and JAX's devices."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from numpy import ndarray
from pytensor.graph.type import Type
from pytensor.tensor.random.utils import custom_rng_deepcopy
from pytensor.tensor.type import TensorType, all_dtypes

from pytensor_jaxpr_linker.base.array_types import unmasked
from pytensor_jaxpr_linker.run.placement import own_copy, own_device


class DeviceBuffer:
    """The base of a NumPy array that mirrors a JAX array; it leads back to the JAX array.

    On the CPU both share memory: what another PyTensor mode writes in place to a shared variable's array, the next call
    reads. On an accelerator the NumPy array is the read-only copy `host`, so that such a write fails instead of being lost.

    JAX takes arrays for immutable, so nobody else holds the array of a mirror, nor does a running program read it: `upload` makes such an
    array, and `Runner.call` returns such (see `Executor` and `result_converters`). A mirror takes 5 µs. A copy to the host after each call,
    and back before the next, took 160 µs for 1000 numbers and 6 ms for a million.

    Parameters
    ----------
    array
        The JAX array.
    host
        Its copy, if NumPy can't read the array where it is.
    is_column_major
        Whether `array` is the transpose of the value: the mirror is in column-major order then.
    """

    __slots__ = ("__array_interface__", "array", "host", "is_column_major", "is_own")

    def __init__(self, array: jax.Array, host: np.ndarray | None = None, is_column_major: bool = False):
        self.array, self.host, self.is_column_major = array, host, is_column_major
        self.is_own = own_device() in array.devices()
        if host is None:
            array.block_until_ready()
        pointer = array.unsafe_buffer_pointer() if self.host is None else self.host.ctypes.data
        lengths, size = array.shape, array.dtype.itemsize
        self.__array_interface__ = {
            "version": 3,
            "shape": lengths[::-1] if is_column_major else lengths,
            "strides": (size, size * lengths[-1]) if is_column_major else None,
            "typestr": np.dtype(array.dtype).str,
            "data": (pointer, self.host is not None),
        }

    def on(self, device: jax.Device | None) -> jax.Array:
        """Return the array on the client of `device`, or on JAX's if that is None: itself, or a copy."""
        if self.is_own is (device is not None):
            return self.array
        with jax.enable_x64(True):
            return jax.device_put(np.array(self.array), device)


def shares_memory(array: jax.Array) -> bool:
    """Return whether NumPy can read an array where it is: on a CPU device, whole."""
    devices = array.devices()
    return len(devices) == 1 and next(iter(devices)).platform == "cpu"


def mirror(array: jax.Array, is_column_major: bool = False) -> np.ndarray:
    """Return a NumPy array that mirrors `array`, or its transpose, which is on the CPU and nobody else holds; what is written to it, programs read."""
    return np.asarray(DeviceBuffer(array, None, is_column_major)) if array.size else np.array(array)


def buffer_of(host: Any) -> DeviceBuffer | None:
    """Return the buffer of the JAX array that `host` mirrors, or None."""
    base: Any = host.base if type(host) is np.ndarray else None
    return base if type(base) is DeviceBuffer else None


def upload(value: np.ndarray, device: jax.Device | None = None, is_column_major: bool = False) -> np.ndarray:
    """Copy an array to a device, or JAX's default device, and return its mirror. With `is_column_major` the copy is the transpose of a matrix."""
    laid = value.T if is_column_major else value
    array = own_copy(laid, device)
    is_mirrored = shares_memory(array) or not array.size
    host = None if is_mirrored else np.array(laid, order="C")
    return mirror(array, is_column_major) if is_mirrored else np.asarray(DeviceBuffer(array, host, is_column_major))


def on_device(value: Any, device: jax.Device | None = None) -> jax.Array:
    """Return an array as a JAX array; one of NumPy's, which a host step made, is copied."""
    if isinstance(value, jax.Array):
        return value
    with jax.enable_x64(True):
        return own_copy(np.asarray(value), device)


def read_inputs(value: Any) -> jax.Array:
    """Return `on_device`, on the CPU after the program has read its inputs: it reads the memory that their mirrors share."""
    array = on_device(value)
    return array.block_until_ready() if array.platform() == "cpu" else array


def read_only(array: Any) -> np.ndarray:
    """Return a read-only NumPy array: a host step may have returned the caller's own."""
    array = np.asarray(array)
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def numpy_scalar(array: Any) -> Any:
    """Return a 0-d array as a NumPy scalar."""
    return np.asarray(array)[()]


#: What makes NumPy values of results; a copy of the elements does as well.
NUMPY_RESULTS = (np.array, read_only, numpy_scalar)


def advanced(generator: np.random.Generator, draws: int) -> np.random.Generator:
    """Return a copy of a generator that is `draws` keys ahead; the argument keeps its state, in case the call fails."""
    copied = custom_rng_deepcopy(generator)
    copied.bit_generator.random_raw(2 * draws)
    return copied


TRACED = (
    "the input {} is a tracer of a JAX transformation (jit, grad, vmap, scan), in which a compiled PyTensor function can't be called: transform"
    " `pytensor_jaxpr_linker.as_jax_function(f)` instead of the function f"
)


class DeviceTensorType(Type):
    """The declared type of an input, a `TensorType` or `XTensorType`, for its container: it takes JAX arrays, too."""

    def __init__(self, type: TensorType, name: str):
        self.type = type
        self.name = name
        self.numpy_dtype = type.numpy_dtype
        self.scalar_type = type.numpy_dtype.type
        self.shape: Any = type.shape if None not in type.shape else None
        self.fixed = tuple((i, n) for i, n in enumerate(type.shape) if n is not None)
        self.free_ndim = None if self.fixed or not type.shape else len(type.shape)

    def filter(self, value: Any, strict: bool = False, allow_downcast: bool | None = None) -> Any:
        """Return `value` as PyTensor's type takes it; a JAX array of the declared type stays on its device."""
        if type(value) is ndarray and value.dtype is self.numpy_dtype:
            shape = value.shape
            if shape == self.shape or len(shape) == self.free_ndim:
                return value  # what follows says so too, in three times the time
        if type(value) is self.scalar_type and self.shape == () and not strict:
            return np.asarray(value)  # a NumPy scalar, as the points of PyMC have: the rest takes ten times as long
        is_array = type(value) is ndarray or (isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer))
        fits = is_array and value.dtype == self.numpy_dtype and value.ndim == self.type.ndim
        if fits and all(value.shape[i] == n for i, n in self.fixed):
            return value
        if isinstance(value, jax.Array):
            if isinstance(value, jax.core.Tracer):
                raise TypeError(TRACED.format(self.name))
            if not strict and self._is_cast(value, allow_downcast):
                with jax.enable_x64(True):
                    return jax.lax.convert_element_type(value, self.numpy_dtype)
            value = np.asarray(value)
        try:
            if (
                getattr(getattr(value, "dtype", None), "kind", "") == "O"
            ):  # TensorType.filter fails on these with an AttributeError
                raise TypeError("an array of Python objects is not a tensor")
            return unmasked(self.type.filter(value, strict=strict, allow_downcast=allow_downcast))
        except Exception as error:
            error.add_note(f"The input is {self.name}, of type {self.type}.")
            raise

    def _is_cast(self, value: jax.Array, allow_downcast: bool | None) -> bool:
        """Return whether an array is cast on its device. NumPy casts from one kind to a lesser one, and PyTensor refuses the rest."""
        if value.ndim != self.type.ndim or any(value.shape[i] != n for i, n in self.fixed):
            return False
        is_known = value.dtype.name in all_dtypes  # neither bfloat16 nor a typed key
        return is_known and np.can_cast(value.dtype, self.numpy_dtype, "same_kind" if allow_downcast else "safe")
