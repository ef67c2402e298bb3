"""Passes small NumPy arguments to a program as one array, and takes small results as one.

`jax.jit` takes 1.6 µs for each NumPy array that it moves to the device, whatever its size, and 1.5 µs for each result
that becomes a NumPy array.
"""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from jaxpr_artifact.threads import with_x64
from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.base.array_types import is_tensor
from pytensor_jaxpr_linker.base.interpreter import gc_paused
from pytensor_jaxpr_linker.base.passes import Pass
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import JaxprBuilder, Shape, is_variable, with_operands
from pytensor_jaxpr_linker.jaxpr.optimize.finish import CALL_PASSES, WITHOUT_SMALL_CALLS, for_calls
from pytensor_jaxpr_linker.run.placement import own_copy

#: Arrays of more bytes are passed as they are: a copy of them takes longer than passing them, measured on the CPU.
PACKED_BYTES = 2**14


class Piece(NamedTuple):
    """A part of a packed array: the position of the argument or result, where it starts and stops, and its shape."""

    position: int
    start: int
    stop: int
    shape: Shape


class Packing(NamedTuple):
    """Which arguments, or which results, are one array; the others follow it."""

    pieces: tuple[Piece, ...]
    dtype: Any = None

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the arguments or results that are packed."""
        return tuple(piece.position for piece in self.pieces)

    @property
    def length(self) -> int:
        """How many elements the packed array has."""
        return self.pieces[-1].stop if self.pieces else 0

    def others(self, count: int) -> list[int]:
        """Return the positions, of `count`, that are not packed."""
        return sorted({*range(count)} - {*self.positions})

    def plain(self) -> tuple:
        """Return the packing as numbers and names, for `read_packing`."""
        return [tuple(piece) for piece in self.pieces], None if self.dtype is None else self.dtype.name


def read_packing(plain: tuple) -> Packing:
    """Return the packing of `Packing.plain`."""
    pieces, dtype = plain
    return Packing(tuple(Piece(*piece) for piece in pieces), None if dtype is None else np.dtype(dtype))


NOTHING = Packing(())


def packed_jaxpr(
    closed: Any, arguments: Packing, others: Sequence[int], results: Packing, taken: int, returned: int
) -> Any:
    """Return a closed Jaxpr with packed arguments and results: the packed array comes first, then the others.

    Parameters
    ----------
    others
        The positions of the other arguments that it takes.
    taken, returned
        How many elements the packed arguments and the packed results have. Behind the last piece nothing is read, and
        zeros are returned.
    """
    b, jaxpr = JaxprBuilder("packed"), closed.jaxpr
    replaced = {}
    invars = [jaxpr.invars[i] for i in others]
    if arguments.pieces:
        whole = b.input((taken,), arguments.dtype)
        for i, start, stop, shape in arguments.pieces:
            replaced[jaxpr.invars[i]] = prims.reshape(b, prims.slice_(b, whole, [start], [stop], [1]), shape)
        invars.insert(0, whole)
    b.eqns += [with_operands(eqn, replaced) for eqn in jaxpr.eqns]
    outvars = [replaced.get(x, x) if is_variable(x) else x for x in jaxpr.outvars]
    if results.pieces:
        flat = [prims.reshape(b, outvars[i], (stop - start,)) for i, start, stop, _ in results.pieces]
        parts = [prims.convert(b, x, results.dtype) for x in flat]
        if (rest := returned - results.length) > 0:
            parts.append(prims.broadcast_to(b, b.constant(np.zeros((), results.dtype)), (rest,)))
        outvars = [prims.concatenate(b, parts, 0), *(outvars[i] for i in results.others(len(outvars)))]
    return jax_compat.make_jaxpr_object(jaxpr.constvars, invars, outvars, b.eqns, closed.consts, "packed")


def read_inputs_of(closed: Any) -> list[int]:
    """Return the positions of the inputs of a closed Jaxpr that its equations or results read."""
    jaxpr = closed.jaxpr
    read = {x for eqn in jaxpr.eqns for x in eqn.invars if is_variable(x)}.union(filter(is_variable, jaxpr.outvars))
    return [i for i, x in enumerate(jaxpr.invars) if x in read]


def pack_small(shapes: Sequence[tuple[int, Shape]], dtype: np.dtype, least: int) -> Packing:
    """Return how arrays of one dtype are packed, by positions and shapes: the small ones, if there are `least`."""
    small = [(i, shape) for i, shape in shapes if math.prod(shape) * dtype.itemsize <= PACKED_BYTES]
    if len(small) < least or not any(math.prod(shape) for _, shape in small):
        return NOTHING
    pieces, start = [], 0
    for i, shape in small:
        stop = start + math.prod(shape)
        pieces.append(Piece(i, start, stop, shape))
        start = stop
    return Packing(tuple(pieces), dtype)


def commonest(dtypes: dict[int, Any]) -> tuple[list[int], np.dtype] | None:
    """Return the positions of the commonest dtype in a dict by position, and that dtype; None for an empty dict."""
    if not dtypes:
        return None
    ((chosen, _),) = Counter(dtypes.values()).most_common(1)
    return [i for i, dtype in dtypes.items() if dtype == chosen], np.dtype(chosen)


def pack_arguments(inputs: Sequence[Variable], args: Sequence[Any], least: int) -> Packing:
    """Return how NumPy arguments of the commonest dtype are packed; shared variables are on the device."""
    found = commonest({i: v.type.dtype for i, v in enumerate(inputs) if is_argument(v)})
    return NOTHING if found is None else pack_small([(i, args[i].shape) for i in found[0]], found[1], least)


def pack_results(avals: Sequence[Any], wanted: Sequence[int], code: int | None, least: int) -> Packing:
    """Return how the `wanted` results of the commonest dtype are packed, with the check code if that can hold it.

    The code is the result at a position that need not exist.
    """
    found = commonest({i: avals[i].dtype for i in wanted})
    if found is None:
        return NOTHING
    places, dtype = found
    if code is not None and code < len(avals) and dtype == np.float64:
        places = [*places, code]
    return pack_small([(i, avals[i].shape) for i in places], dtype, least)


def is_argument(variable: Variable) -> bool:
    """Return whether an input is a tensor that callers pass."""
    return is_tensor(variable.type) and not isinstance(variable, SharedVariable)


def flat_copy(arrays: Sequence[np.ndarray], dtype: np.dtype) -> bytes:
    """Return the elements of arrays, in their order, whatever that is in memory."""
    return np.concatenate([x.ravel() for x in arrays], dtype=dtype).tobytes()


class CallBuffer:
    """A JAX array on the own device, and its memory, where a call writes arguments and a donating program its results.

    JAX takes arrays for immutable. Nobody else holds this one, results are copied, and a program has ended when its
    call returns. A call with new NumPy arrays instead takes 1.8 µs more, and 1.4 µs more for each new result.

    Parameters
    ----------
    dtype, length
        Of the array.
    arguments
        How many elements a call writes.
    results
        The results that a call reads.
    """

    __slots__ = ("array", "copies", "memory", "results")

    @with_x64
    def __init__(self, dtype: np.dtype, length: int, arguments: int, results: Packing, device: jax.Device):
        #: A donating call replaces it by the result of the program, which has the same memory.
        self.array = own_copy(np.zeros(length, dtype), device)
        size = length * dtype.itemsize
        memory = (ctypes.c_char * size).from_address(self.array.unsafe_buffer_pointer())
        elements = np.frombuffer(memory, dtype)
        self.memory = memoryview(elements[:arguments].view(np.uint8))
        self.results = elements[: results.length]
        #: Each returns a copy of one result.
        self.copies = tuple(elements[start:stop].reshape(shape).copy for _, start, stop, shape in results.pieces)


#: To fill the memory of the arguments behind the results with more zeros takes longer than new memory.
MOST_FILL_BYTES = 2**12


class PackedLayout(NamedTuple):
    """The arguments and results of a packed program."""

    arguments: Packing
    others: list[int]
    """The positions of the arguments that it takes behind the packed ones."""
    results: Packing
    returned: int
    """How many results there are without packing."""
    donates: bool = False
    """Whether the packed results are where the packed arguments were."""
    has_witness: bool = False
    """Whether the last result is a witness, see `with_small_calls`."""

    @property
    def length(self) -> int:
        """How many elements the memory of the packed arguments has: donated, with the results and the witness."""
        ours = self.arguments.length
        return max(ours, self.results.length + 1) if self.donates else ours

    def plain(self) -> tuple:
        """Return the layout as numbers and names, for `read_layout`."""
        return self.arguments.plain(), self.others, self.results.plain(), *self[3:]


def read_layout(plain: tuple) -> PackedLayout:
    """Return the layout of `PackedLayout.plain`."""
    arguments, others, results, *rest = plain
    return PackedLayout(read_packing(arguments), others, read_packing(results), *rest)


class PackedProgram(NamedTuple):
    """A program of packed arguments and results."""

    layout: PackedLayout
    call: Any
    """The jitted function or, for a device, the compiled program."""
    executable: jax_compat.Executable | None = None
    """The same, if all arguments are JAX arrays."""
    make_buffer: Callable[[], CallBuffer] | None = None
    """Makes memory for the packed arguments. If None, they are a new array in each call."""


def for_device(layout: PackedLayout, program: jax.stages.Compiled, device: jax.Device) -> PackedProgram:
    """Return a program that was compiled for a device."""
    ours, read = layout.arguments, layout.results if layout.donates else NOTHING
    make_buffer = partial(CallBuffer, ours.dtype, layout.length, ours.length, read, device) if ours.pieces else None
    return PackedProgram(layout, program, jax_compat.executable_of(program), make_buffer)


def packed_program(
    closed: Any, arguments: Packing, results: Packing, device: jax.Device | None, jit: Callable[..., Any]
) -> PackedProgram:
    """Return a closed Jaxpr as a program for a device (None: where JAX chooses).

    On the own device a witness is the last element of the packed results, or a further result if nothing is packed.
    Packed results take the memory of packed arguments of the same dtype.

    Parameters
    ----------
    jit
        Returns a jitted function of a closed Jaxpr and the options of `jax.jit`.
    """
    others = [i for i in read_inputs_of(closed) if i not in arguments.positions]
    layout = PackedLayout(arguments, others, results, len(closed.jaxpr.outvars))
    ours, theirs = arguments.length, results.length
    if device is None:
        return PackedProgram(layout, jit(packed_jaxpr(closed, arguments, others, results, ours, theirs)))

    def compiled(layout: PackedLayout) -> PackedProgram:
        filled = layout.length - 1 if layout.donates else theirs  # the witness comes last
        jaxpr = packed_jaxpr(closed, arguments, others, results, layout.length, filled)

        def with_passes(passes: Sequence[Pass]) -> jax.stages.Compiled:
            whole, options = for_calls(jaxpr, bool(results.pieces), passes)
            donated = (0,) if layout.donates else ()
            # All arguments are read: JAX need not look for others, which takes a tenth of the time of lowering.
            jitted = jit(whole, compiler_options=dict(options), donate_argnums=donated, keep_unused=True)
            with gc_paused():
                lowered = jitted.lower(*whole.in_avals)
            return lowered.compile()

        try:
            program = with_passes(CALL_PASSES)
        except jax.errors.JaxRuntimeError:  # XLA's compiler has no small call of some equation
            program = with_passes(WITHOUT_SMALL_CALLS)
        memory: Any = program.memory_analysis()
        if layout.donates and not memory.alias_size_in_bytes:
            return compiled(layout._replace(donates=False))
        return for_device(layout, program, device)

    fill = (ours - theirs - 1) * arguments.dtype.itemsize if ours else 0
    donates = bool(ours and theirs) and arguments.dtype == results.dtype and fill <= MOST_FILL_BYTES
    return compiled(layout._replace(donates=donates, has_witness=not results.pieces))
