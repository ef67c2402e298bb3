"""Arrays on several devices: what is one, and where other values go beside it.

XLA's partitioner divides the work and chooses the collectives. Here is only what says where arrays lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from pytensor_jaxpr_linker.run.cpu_client import own_device


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
