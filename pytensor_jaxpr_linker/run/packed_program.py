"""Compiles a Jaxpr for calls with packed arguments and results, see `packing`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax

from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.base.interpreter import gc_paused
from pytensor_jaxpr_linker.base.passes import Pass
from pytensor_jaxpr_linker.jaxpr.optimize.finish import CALL_PASSES, WITHOUT_SMALL_CALLS, for_calls
from pytensor_jaxpr_linker.run.cpu_client import CallBuffer
from pytensor_jaxpr_linker.run.packing import NOTHING, Packing, packed_jaxpr, read_inputs_of

#: To fill the memory of the arguments behind the results with more zeros takes longer than new memory.
MOST_FILL_BYTES = 2**12


class PackedProgram(NamedTuple):
    """A program of packed arguments and results."""

    arguments: Packing
    others: list[int]
    """The positions of the arguments that it takes behind the packed ones."""
    results: Packing
    jitted: Any
    executable: jax_compat.Executable | None = None
    """The same as `jitted`, if all arguments are JAX arrays."""
    make_buffer: Callable[[], CallBuffer] | None = None
    """What makes memory for the packed arguments. If None, they are a new array in each call."""
    donates: bool = False
    """Whether the packed results are where the packed arguments were."""
    has_witness: bool = False
    """Whether the last result is a witness, see `with_small_calls`."""


def packed_program(
    closed: Any, arguments: Packing, results: Packing, device: jax.Device | None, jit: Callable[..., Any]
) -> PackedProgram:
    """Return a closed Jaxpr as a program for a device (None: where JAX chooses).

    On the own device a witness is the last element of the packed results, or a further result if there are none. Packed results take the
    memory of packed arguments of the same dtype.

    Parameters
    ----------
    jit
        Returns a jitted function of a closed Jaxpr and the options of `jax.jit`.
    """
    others = [i for i in read_inputs_of(closed) if i not in arguments.positions]
    ours, theirs = arguments.length, results.length
    if device is None:
        return PackedProgram(
            arguments, others, results, jit(packed_jaxpr(closed, arguments, others, results, ours, theirs))
        )

    def compiled(donates: bool) -> PackedProgram:
        length = max(ours, theirs + 1) if donates else ours
        filled = length - 1 if donates else theirs  # the witness comes last
        jaxpr = packed_jaxpr(closed, arguments, others, results, length, filled)

        def with_passes(passes: Sequence[Pass]) -> tuple[Any, Any]:
            whole, options = for_calls(jaxpr, bool(results.pieces), passes)
            donated = (0,) if donates else ()
            # All arguments are read: JAX need not look for others, which takes a tenth of the time of lowering.
            jitted = jit(whole, compiler_options=dict(options), donate_argnums=donated, keep_unused=True)
            with gc_paused():
                lowered = jitted.lower(*whole.in_avals)
            return jitted, lowered.compile()  # JAX keeps the program for the calls

        try:
            jitted, program = with_passes(CALL_PASSES)
        except jax.errors.JaxRuntimeError:  # XLA's compiler has no small call of some equation
            jitted, program = with_passes(WITHOUT_SMALL_CALLS)
        if donates and not program.memory_analysis().alias_size_in_bytes:
            return compiled(donates=False)
        read = results if donates else NOTHING
        make_buffer = partial(CallBuffer, arguments.dtype, length, ours, read, device) if ours else None
        executable, has_witness = jax_compat.executable_of(program), not results.pieces
        return PackedProgram(arguments, others, results, jitted, executable, make_buffer, donates, has_witness)

    fill = (ours - theirs - 1) * arguments.dtype.itemsize if ours else 0
    return compiled(donates=bool(ours and theirs) and arguments.dtype == results.dtype and fill <= MOST_FILL_BYTES)
