"""Where programs run and arrays lie: on a CPU client of this package's own, or on the devices of the user's JAX.

JAX's CPU client hands a program to another thread, and a call waits for its results: 5 to 40 µs that a call with NumPy
results can't use. JAX has an option to run programs in the calling thread, but for the whole process. A second client
leaves the user's JAX as it is. Its device is not among `jax.devices`, and none of its arrays reaches the user.

On several devices XLA's partitioner divides the work and chooses the collectives. Here is only where arrays lie.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jaxpr_artifact.fork import OTHER_PROCESSES, jax_threads
from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.base.array_types import copy_matrix, unmasked
from pytensor_jaxpr_linker.base.options import Options
from pytensor_jaxpr_linker.base.words import page_url


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
    """Return the arguments of a call, so that they are together, and the device where it runs, see `device_for`.

    With a JAX array of the user's among them it runs where that array is.
    """
    own, args = device_for(options), [unmasked(x) for x in args]
    if own is None or all(not isinstance(x, jax.Array) or own in x.devices() for x in args):
        return args, own
    return [np.asarray(x) if isinstance(x, jax.Array) and own in x.devices() else x for x in args], None


#: XLA takes the memory of a NumPy array for its own, where nobody may write, if it begins at a multiple of so many bytes; else it copies.
ALIGNMENT = 64


def own_copy(value: np.ndarray, device: jax.Device | None) -> jax.Array:
    """Copy an array to a device, or to JAX's default device, into memory of XLA's. `jax.Array.copy` would do, but compiles a program, which takes 5 to 10 ms."""
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
    """Return the mesh with axes that XLA's partitioner handles, whatever their types are: our Jaxprs say nothing of shardings."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def copied_to_mesh(values: Iterable[Any]) -> NamedSharding | None:
    """Return the sharding by which an array has a copy on each device of the sharded values, or None if no value is sharded."""
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
            raise ValueError(
                f"{name} lies on {describe_devices(x.sharding.device_set)} and {first} on {describe_devices(on_mesh.sharding.device_set)}, so no"
                f" program can read both: {remedy}."
            )


def was_put(value: Any) -> bool:
    """Return whether a value is an array that somebody put on devices; the own CPU client's are moved by themselves."""
    is_placed = isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) and value.committed
    return is_placed and own_device() not in value.devices()


def describe_devices(devices: Iterable[jax.Device]) -> str:
    """Return the devices of an array, for messages."""
    ids = sorted(device.id for device in devices)
    return f"{len(ids)} device{'' if len(ids) == 1 else 's'} ({', '.join(map(str, ids[:8]))}{', ...' if len(ids) > 8 else ''})"


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
                f"Axis {axis} of {name} has the length {shape[axis]}, which {parts} devices along the mesh axis {names!r} can't divide:"
                f" pad it to {-(-shape[axis] // parts) * parts}, or leave the axis whole."
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


process = jax_threads
process.have_started = jax_compat.backend_has_started
process.remedy = (
    "in `pymc.sample` and `pymc.sample_smc` pass `mp_ctx=pytensor_jaxpr_linker.pymc.process_context()` or `cores=1`, or call"
    f" `pytensor_jaxpr_linker.pymc.sample`, which does not fork; {OTHER_PROCESSES} ({page_url('threads', 'processes')})."
)
