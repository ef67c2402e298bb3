"""Where programs run and arrays lie: on a CPU client of this package's own, or on the devices of the user's JAX.

JAX's CPU client hands a program to another thread, and a call waits for its results: 5 to 40 µs that a call with NumPy
results can't use. JAX has an option to run programs in the calling thread, but for the whole process. A second client
leaves the user's JAX as it is. Its device is not among `jax.devices`, and none of its arrays reaches the user.

On several devices XLA's partitioner divides the work and chooses the collectives. Here is only where arrays lie.

PyTensor's storage holds NumPy arrays. The functions at the end move values between it and the devices.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from numpy import ndarray
from pytensor.graph.type import Type
from pytensor.tensor.random.utils import custom_rng_deepcopy
from pytensor.tensor.type import TensorType, all_dtypes

from jaxpr_artifact.threads import OTHER_PROCESSES, jax_threads
from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.base.array_types import copy_matrix, unmasked
from pytensor_jaxpr_linker.base.options import Options
from pytensor_jaxpr_linker.base.words import counted, page_url


@cache
def own_device() -> jax.Device | None:
    """Return the device of the client, or None if JAX's programs run elsewhere than on the default CPU device."""
    with _making:
        return make_own_device()


#: Held while the client is made: `cache` alone would let two threads make two, whose arrays can't meet.
_making = threading.Lock()


@cache
def make_own_device() -> jax.Device | None:
    """Make the client, once, and return its device, see `own_device`."""
    is_default = jax.default_backend() == "cpu" and jax.config.jax_default_device is None
    return jax_compat.make_synchronous_cpu_device() if is_default else None


def device_for(options: Options) -> jax.Device | None:
    """Return the device for calls from NumPy to NumPy, or None if they run on JAX's default device."""
    return own_device() if options.synchronous and options.results == "numpy" else None


def place(args: list, options: Options) -> tuple[list, jax.Device | None]:
    """Return the arguments of a call together, and its device: see `device_for`, or where the user's JAX array is."""
    own, args = device_for(options), [unmasked(x) for x in args]
    if own is None or all(not isinstance(x, jax.Array) or own in x.devices() for x in args):
        return args, own
    return [np.asarray(x) if isinstance(x, jax.Array) and own in x.devices() else x for x in args], None


#: XLA uses the memory of a NumPy array as its own, where nobody may write, if it begins at a multiple of this number
#: of bytes; else it copies.
ALIGNMENT = 64


def own_copy(value: np.ndarray, device: jax.Device | None) -> jax.Array:
    """Copy an array to a device, by default JAX's, into XLA's memory; `jax.Array.copy` compiles, for 5 to 10 ms."""
    memory = np.empty(value.nbytes + 2 * ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT + value.dtype.itemsize
    copied = memory[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
    copy_matrix(copied, value)
    array = jax.device_put(copied, device)
    is_shared = array.size and array.platform() == "cpu" and array.unsafe_buffer_pointer() == copied.ctypes.data
    return array.copy() if is_shared else array


def is_sharded(value: Any) -> bool:
    """Return whether a value is a JAX array that was laid out on a mesh, in parts or as copies."""
    if type(value) is np.ndarray:  # which `isinstance` takes 1 µs to tell
        return False
    return isinstance(value, jax.Array) and not isinstance(value.sharding, SingleDeviceSharding)


def automatic(mesh: Any) -> Mesh:
    """Return the mesh with axes for XLA's partitioner, whatever their types: our Jaxprs say nothing of shardings."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def copied_to_mesh(values: Iterable[Any]) -> NamedSharding | None:
    """Return the sharding that copies an array to each device of the sharded values, or None if no value is sharded."""
    for value in values:
        if is_sharded(value) and isinstance(value.sharding, NamedSharding):
            return NamedSharding(value.sharding.mesh, PartitionSpec())
    return None


def check_one_mesh(
    names: Sequence[str],
    values: Sequence[Any],
    remedy: str = "put them on one mesh, by `pytensor_jaxpr_linker.shard` or `jax.device_put`",
) -> None:
    """Raise a ValueError if a value is sharded, and another one was put on other devices: no program can read both."""
    placed = [(name, x) for name, x in zip(names, values, strict=False) if was_put(x)]
    first, on_mesh = next(((name, x) for name, x in placed if is_sharded(x)), ("", None))
    for name, x in placed:
        if on_mesh is not None and x.sharding.device_set != on_mesh.sharding.device_set:
            here, there = (describe_devices(a.sharding.device_set) for a in (x, on_mesh))
            raise ValueError(f"{name} lies on {here} and {first} on {there}, so no program can read both: {remedy}.")


def was_put(value: Any) -> bool:
    """Return whether a value is an array that somebody put on devices; the own CPU client's are moved by themselves."""
    is_placed = isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) and value.committed
    return is_placed and own_device() not in value.devices()


def describe_devices(devices: Iterable[jax.Device]) -> str:
    """Return the devices of an array, for messages."""
    ids = sorted(device.id for device in devices)
    return f"{counted(len(ids), 'device')} ({', '.join(map(str, ids[:8]))}{', ...' if len(ids) > 8 else ''})"


def put(value: Any, sharding: NamedSharding, name: str) -> jax.Array:
    """Return an array, laid out by a sharding.

    Raises
    ------
    ValueError
        If the number of its axes, or a length, does not fit; the message names the variable.
    """
    check_spec(name, np.shape(value), sharding)
    if isinstance(value, jax.Array) and value.sharding.is_equivalent_to(sharding, value.ndim):
        return value
    with jax.enable_x64(True):
        if sharding.is_fully_addressable:
            return jax.device_put(value, sharding)
        if isinstance(value, jax.Array) and not value.is_fully_addressable:
            return jax.jit(lambda x: x, out_shardings=sharding)(value)
        whole = np.asarray(value)  # which each process has
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def check_spec(name: str, shape: Sequence[int], sharding: NamedSharding) -> None:
    """Raise a ValueError unless an array of this shape can be divided by a sharding."""
    spec, sizes = sharding.spec, sharding.mesh.shape
    if len(spec) > len(shape):
        raise ValueError(
            f"{name} has {len(shape)} axes, and {spec} is for {len(spec)}: name at most one mesh axis for each."
        )
    for axis, names in enumerate(spec):
        parts = int(np.prod([sizes[n] for n in axis_names(names)]))
        if shape[axis] % parts:
            raise ValueError(
                f"Axis {axis} of {name} has the length {shape[axis]}, which {parts} devices along the mesh axis"
                f" {names!r} can't divide: pad it to {-(-shape[axis] // parts) * parts}, or leave the axis whole."
            )


def axis_names(entry: Any) -> tuple[str, ...]:
    """Return the mesh axes that an entry of a partition spec names."""
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


class PartsElsewhere(RuntimeError):
    """A value can't be read on the host, since other processes have parts of it."""


def is_here(value: Any) -> bool:
    """Return whether this process can read a value."""
    return not isinstance(value, jax.Array) or value.is_fully_addressable or value.is_fully_replicated


def to_host(value: Any) -> np.ndarray:
    """Return an array as one of NumPy's; of a sharded array the parts are gathered.

    Raises
    ------
    PartsElsewhere
        If other processes have parts of it.
    """
    if not is_here(value):
        raise PartsElsewhere(
            f"An array of shape {value.shape} has parts on devices of other processes: gather it on all of them, by"
            " `jax.experimental.multihost_utils.process_allgather(x, tiled=True)`."
        )
    return np.asarray(value)


#: Refuses to run programs in a process forked after JAX started, see `jaxpr_artifact.threads`; JAX says whether it had.
#: The remedy names `mp_ctx` until PyTensor and PyMC release the patches of docs/notes/upstream/linkers-and-forks.md.
process = jax_threads
process.have_started = jax_compat.backend_has_started
process.remedy = (
    "in `pymc.sample` and `pymc.sample_smc` pass `mp_ctx=pytensor_jaxpr_linker.pymc.process_context()` or `cores=1`, or"
    " call `pytensor_jaxpr_linker.pymc.sample`, which does not fork;"
    f" {OTHER_PROCESSES} ({page_url('threads', 'processes')})."
)


class DeviceBuffer:
    """The base of a NumPy array that mirrors a JAX array; it leads back to the JAX array.

    On the CPU both share memory: the next call reads what another PyTensor mode has written in place to a shared
    variable's array. On an accelerator the NumPy array is the read-only copy `host`, so that such a write fails instead
    of being lost.

    JAX takes arrays for immutable, so nobody else holds the array of a mirror, nor does a running program read it:
    `upload` makes such an array, and `Runner.call` returns such arrays (see `Executor` and `result_converters`). A
    mirror takes 5 µs. A copy to the host after each call, and back before the next, took 160 µs for 1000 numbers and
    6 ms for a million.

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
    """Return a NumPy mirror, whose writes programs read, of a CPU array that nobody else holds, or its transpose."""
    return np.asarray(DeviceBuffer(array, None, is_column_major)) if array.size else np.array(array)


def buffer_of(host: Any) -> DeviceBuffer | None:
    """Return the buffer of the JAX array that `host` mirrors, or None."""
    base: Any = host.base if type(host) is np.ndarray else None
    return base if type(base) is DeviceBuffer else None


def upload(value: np.ndarray, device: jax.Device | None = None, is_column_major: bool = False) -> np.ndarray:
    """Copy an array, or if `is_column_major` its transpose, to a device, by default JAX's, and return its mirror."""
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
    """Return `on_device`, on the CPU after the program has read its inputs, whose mirrors share its memory."""
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


#: The functions that make NumPy values of results; a copy of the elements does as well.
NUMPY_RESULTS = (np.array, read_only, numpy_scalar)


def advanced(generator: np.random.Generator, draws: int) -> np.random.Generator:
    """Return a copy of a generator that is `draws` keys ahead; the argument keeps its state, in case the call fails."""
    copied = custom_rng_deepcopy(generator)
    copied.bit_generator.random_raw(2 * draws)
    return copied


TRACED = (
    "the input {} is a tracer of a JAX transformation (jit, grad, vmap, scan), in which a compiled PyTensor function"
    " can't be called: transform `pytensor_jaxpr_linker.as_jax_function(f)` instead of the function f"
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
                return value  # as the tests below would, in three times the time
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
            if getattr(getattr(value, "dtype", None), "kind", "") == "O":  # an AttributeError in TensorType.filter
                raise TypeError("an array of Python objects is not a tensor")
            return unmasked(self.type.filter(value, strict=strict, allow_downcast=allow_downcast))
        except Exception as error:
            error.add_note(f"The input is {self.name}, of type {self.type}.")
            raise

    def _is_cast(self, value: jax.Array, allow_downcast: bool | None) -> bool:
        """Return whether an array is cast on its device: NumPy casts to a lesser kind, PyTensor refuses other casts."""
        if value.ndim != self.type.ndim or any(value.shape[i] != n for i, n in self.fixed):
            return False
        is_known = value.dtype.name in all_dtypes  # neither bfloat16 nor a typed key
        return is_known and np.can_cast(value.dtype, self.numpy_dtype, "same_kind" if allow_downcast else "safe")
