"""Passes small NumPy arguments as one array: `jax.jit` takes 3 µs for each array that it moves to the device."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.base.array_types import is_tensor
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import JaxprBuilder, Shape

#: Arrays of more bytes are passed as they are: a copy of them takes longer than passing them, measured on the CPU.
PACKED_BYTES = 2**14
#: How many tuples of shapes are remembered: beyond the recompile limit each call may have shapes of its own.
MOST_SHAPES = 1024


class Packing(NamedTuple):
    """Positions and shapes of the arguments that are packed into one array; the other arguments follow it."""

    positions: tuple[int, ...]
    shapes: tuple[Shape, ...]

    def unpack(self, packed: Any, others: Sequence[Any]) -> list[Any]:
        """Return all arguments in their order, as tracers of the trace that `packed` belongs to."""
        b = JaxprBuilder("unpack")
        whole, pieces, start = b.input(packed.shape, packed.dtype, "packed"), [], 0
        for shape in self.shapes:
            stop = start + math.prod(shape)
            pieces.append(prims.reshape(b, prims.slice_(b, whole, [start], [stop], [1]), shape))
            start = stop
        args = list(others)
        for i, piece in zip(self.positions, jax_compat.call_jaxpr(b.build(pieces), packed), strict=True):
            args.insert(i, piece)
        return args


class Packed(NamedTuple):
    """What is called for arguments of some shapes: a jitted function, on what `arrange` makes of the arguments."""

    call: Callable[..., list]
    arrange: Callable[[list], list]
    packing: Packing


def make_packer(
    inputs: Sequence[Variable], packed: dict[tuple, Packed | None], compiled: Callable[[Packing], Callable[..., list]]
) -> Callable[[list], tuple[Callable[..., list], list] | None] | None:
    """Return a function that packs the arguments of a call, or None if there is nothing to pack.

    The function takes all arguments of a call. It returns a jitted function, made by `compiled`, and the arguments of that; or None if
    an argument that may be packed is no NumPy array, has another dtype than declared, or is not contiguous: then no argument is packed.
    Arguments of one dtype may be packed, but not shared variables, which are on the device. `packed` is a cache, by their shapes.
    """
    dtypes = {i: v.type.dtype for i, v in enumerate(inputs) if may_pack(v)}
    if len(dtypes) < 2:
        return None
    ((chosen, count),) = Counter(dtypes.values()).most_common(1)
    if count < 2:
        return None
    places, dtype = [i for i, name in dtypes.items() if name == chosen], np.dtype(chosen)

    def prepare(shapes: tuple[Shape, ...], length: int) -> Packed | None:
        if len(packed) >= MOST_SHAPES:
            packed.clear()
        small = [(i, s) for i, s in zip(places, shapes, strict=True) if math.prod(s) * dtype.itemsize <= PACKED_BYTES]
        if len(small) > 1:
            packing = Packing(*map(tuple, zip(*small, strict=True)))
            packed[shapes] = Packed(compiled(packing), arrange(packing.positions, length, dtype), packing)
        else:
            packed[shapes] = None
        return packed[shapes]

    def pack(args: list) -> tuple[Callable[..., list], list] | None:
        shapes = tuple([x.shape for i in places if type(x := args[i]) is np.ndarray and x.dtype is dtype])
        if len(shapes) < len(places):
            return None
        try:
            found = packed[shapes]
        except KeyError:
            found = prepare(shapes, len(args))
        if found is None:
            return None
        try:
            return found.call, found.arrange(args)
        except (TypeError, ValueError):  # an array that is not contiguous, or nothing but empty ones
            return None

    return pack


def may_pack(variable: Variable) -> bool:
    """Tell whether the values of an input may be small arrays of NumPy's."""
    if isinstance(variable, SharedVariable) or not is_tensor(variable.type):
        return False
    least = math.prod(n for n in variable.type.shape if n is not None)
    return least * variable.type.numpy_dtype.itemsize <= PACKED_BYTES


def arrange(positions: Sequence[int], length: int, dtype: np.dtype) -> Callable[[list], list]:
    """Return the function that packs the arguments at `positions`, of `length` in all, into an array, followed by the others."""
    others = sorted({*range(length)} - {*positions})
    return lambda args: [
        np.frombuffer(b"".join([args[i] for i in positions]), dtype),
        *[args[i] for i in others],
    ]
