"""A CPU client of this package's own, on which programs run in the thread that calls them.

JAX's CPU client hands a program to another thread and its results are waited for: 5 to 40 µs that a call with NumPy results can't use.
JAX has an option to run programs at once, but for the whole process; a second client leaves the user's JAX as it is. Its device is not
among `jax.devices`, and no array of it reaches the user: only NumPy arrays do.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache

import jax
import numpy as np

from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.base.array_types import copy_matrix, unmasked
from pytensor_jaxpr_linker.base.options import Options
from pytensor_jaxpr_linker.run.packing import Packing


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


class CallBuffer:
    """A JAX array on the own device, and its memory, where a call writes its arguments and, if the program donates it, finds its results.

    JAX takes arrays for immutable. This one nobody else holds, results are copied, and a program has ended when its call returns. A call
    with new NumPy arrays instead takes 1.8 µs more, and 1.4 µs more for each new result.

    Parameters
    ----------
    dtype, length
        Those of the array.
    arguments
        How many elements a call writes.
    results
        What a call reads.
    """

    __slots__ = ("array", "copies", "memory", "results")

    @jax_compat.with_x64_restored
    def __init__(self, dtype: np.dtype, length: int, arguments: int, results: Packing, device: jax.Device):
        with jax.enable_x64(True):
            #: A donating call replaces it by the result of the program, which has the same memory.
            self.array = own_copy(np.zeros(length, dtype), device)
        size = length * dtype.itemsize
        memory = (ctypes.c_char * size).from_address(self.array.unsafe_buffer_pointer())
        elements = np.frombuffer(memory, dtype)
        self.memory = memoryview(elements[:arguments].view(np.uint8))
        self.results = elements[: results.length]
        #: Each returns a copy of one result.
        self.copies = tuple(elements[start:stop].reshape(shape).copy for _, start, stop, shape in results.pieces)
