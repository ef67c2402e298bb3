"""Calls a program on values: replaces generators by keys, adds constants, donates memory, tests run-time checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from pytensor.graph.basic import Constant
from pytensor.tensor.random.type import RandomType

from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.base.array_types import is_tensor
from pytensor_jaxpr_linker.base.random_keys import keys_of
from pytensor_jaxpr_linker.graph.generators import Ancestor, generator_ancestor
from pytensor_jaxpr_linker.plan.model import Region
from pytensor_jaxpr_linker.run import codegen, transfer
from pytensor_jaxpr_linker.run.checks import DeferredChecks, raise_if_failed
from pytensor_jaxpr_linker.run.cpu_client import ArgumentBuffer, device_for, place
from pytensor_jaxpr_linker.run.packing import is_argument, pack_arguments, pack_results
from pytensor_jaxpr_linker.run.program import Program
from pytensor_jaxpr_linker.run.recompiles import OnHost, Policy
from pytensor_jaxpr_linker.run.specialization import NotAdmitted, Specialization

#: Arrays of fewer bytes are not donated: a new one costs less than donating takes, measured on the CPU.
DONATED_BYTES = 2**20
#: How many tuples of shapes are remembered: beyond the recompile limit each call may have shapes of its own.
MOST_SHAPES = 1024


def program_call(
    program: Program,
    policy: Policy,
    donated: Sequence[int] = (),
    deferred: DeferredChecks | None = None,
    converters: Sequence[Callable[[Any], Any]] | None = None,
) -> Callable[[list], list | None]:
    """Return the function that runs a program on a list of values and returns the list of outputs.

    It returns None, and has done nothing, if the nodes have to run on the host. Any number of threads may call it.

    Parameters
    ----------
    donated
        The positions of inputs whose memory the results may take.
    deferred
        Keeps the results of checks; if None, each call tests its own.
    converters
        What makes a value of the user's of each output. If None, outputs are JAX arrays.
    """
    test = raise_if_failed if deferred is None else deferred.add
    convert = converters or [lambda value: value] * len(program.outputs)
    general = general_call(program, policy, donated, test, convert)
    region, progress = program.region, policy.progress
    if program.static_positions or find_generators(region) or find_constant_generators(region):
        return general
    only = program.specialize(())
    run = ShortCalls(program, only, policy, convert, packs_code=deferred is None).by_shapes()
    swap_x64, restore_x64 = jax_compat.swap_x64, jax_compat.restore_x64

    def direct(args: list) -> list | None:
        if donated or program.padded is not None:
            return general(args)
        outside = swap_x64(True)
        try:
            results, code = run(args)
        except NotAdmitted as other:
            return None if isinstance(other.decision, OnHost) else general(args)
        finally:
            restore_x64(outside)
        if progress.active:
            progress.end()
        if code is not None:
            test(only, code, [*args, *program.constants])
        return results

    return direct


class ShortCalls:
    """The calls of a program that has one specialization and reads no generator: the hot path of most functions.

    Parameters
    ----------
    specialization
        That of `program`.
    converters
        See `program_call`.
    packs_code
        Whether the check code may be packed: it is read at once.
    """

    def __init__(
        self,
        program: Program,
        specialization: Specialization,
        policy: Policy,
        converters: Sequence[Callable[[Any], Any]],
        packs_code: bool,
    ):
        self.program, self.specialization, self.options = program, specialization, policy.options
        self.converters, self.packs_code = converters, packs_code
        self.packable = [i for i, convert in enumerate(converters) if convert in transfer.NUMPY_RESULTS]

    def by_shapes(self) -> Callable[[list], tuple[list, Any]]:
        """Return the function that calls the program on a list of arguments and returns its results and the check code, if any."""
        inputs = self.program.inputs
        dtypes = {i: v.type.numpy_dtype for i, v in enumerate(inputs) if is_argument(v)}
        shared = [i for i, v in enumerate(inputs) if is_tensor(v.type) and i not in dtypes]
        return codegen.by_shapes(len(inputs), dtypes, shared, self.specialization.short_calls, self.make, self.call)

    def make(self, shapes: tuple, args: list) -> Callable[[list], tuple[list, Any]]:
        """Make and keep the call for NumPy arrays of some shapes."""
        program, only, count = self.program, self.specialization, len(self.converters)
        device = device_for(self.options)
        arguments = pack_arguments(program.inputs, args, least=2 if device is None else 1)
        constants = program.device_constants(device)
        avals = [*args, *constants]
        results = only.admit(avals).jaxpr.out_avals
        has_code = len(results) > count
        code = count if has_code and self.packs_code else None
        layout = pack_results(results, self.packable, code, least=2 if device is None else 1)
        jitted = only.packed(avals, arguments, layout, device)
        buffer = None
        if device is not None and arguments.pieces:
            buffer = ArgumentBuffer(arguments.pieces[-1].stop, arguments.dtype, device)
        has_witness = device is not None and not layout.pieces
        how = (arguments, buffer, layout, self.converters, has_code, has_witness)
        found = codegen.packed_call(jitted, constants, len(args), *how)
        calls = only.short_calls
        if len(calls) >= MOST_SHAPES:
            calls.clear()
        calls[shapes] = found
        return found

    def call(self, args: list) -> tuple[list, Any]:
        """Call the program on arguments that are not all NumPy arrays of the declared dtype."""
        placed, device = place(args, self.options)
        results = self.specialization.on(device)(*placed, *self.program.device_constants(device))
        code = results.pop() if len(results) > len(self.converters) else None
        return [convert(x) for convert, x in zip(self.converters, results, strict=True)], code


def general_call(
    program: Program,
    policy: Policy,
    donated: Sequence[int],
    test: Callable[[Specialization, Any, list], None],
    converters: Sequence[Callable[[Any], Any]],
) -> Callable[[list], list | None]:
    """Return what `program_call` returns, for any program; `test` is called with the number of the check that failed, or 0."""
    count, progress = len(program.outputs), policy.progress
    run, generators = program.run, find_generators(program.region)
    constants = find_constant_generators(program.region)
    swap_x64, restore_x64 = jax_compat.swap_x64, jax_compat.restore_x64

    def call(given: list) -> list | None:
        args = [*given]  # keys go into it
        if generators:
            successors = take_keys(args, generators, program.key_counts)
        outside = swap_x64(True)
        try:
            taken = donated if donated and is_worth_donating([args[i] for i in donated]) else ()
            found = run(args, taken)
        finally:
            restore_x64(outside)
        if found is None:
            return None
        results, specialization, args = found
        if progress.active:
            progress.end()
        if len(results) > count:
            test(specialization, results.pop(), args)
        if generators:
            for i, generator in successors.items():
                results[i] = generator
        if constants:
            for i, (constant, draws) in constants.items():
                results[i] = transfer.advanced(constant.data, draws)  # type: ignore[attr-defined]
        return [convert(x) for convert, x in zip(converters, results, strict=True)]

    return call


def is_worth_donating(values: Sequence[Any]) -> bool:
    """Tell whether donating values saves time: all are on the device, and they are large."""
    return all(isinstance(x, jax.Array) for x in values) and sum(x.nbytes for x in values) >= DONATED_BYTES


def take_keys(args: list, generators: dict[int, dict[int, int]], counts: Mapping[int, int]) -> dict[int, Any]:
    """Replace the generators among `args` by keys; return the generator that each generator output becomes."""
    successors = {}
    for i, wanted in generators.items():
        generator = args[i]
        args[i] = keys_of(generator, counts.get(i, 1))
        for output, draws in wanted.items():
            if isinstance(generator, np.random.Generator):  # else it is a key, and so is its successor
                successors[output] = transfer.advanced(generator, draws)
    return successors


def find_generators(region: Region) -> dict[int, dict[int, int]]:
    """Return the successors among the outputs of each input that is a generator, and how many draws they are ahead."""
    positions = {v: i for i, v in enumerate(region.inputs) if isinstance(v.type, RandomType)}
    found: dict[int, dict[int, int]] = {i: {} for i in positions.values()}
    for i, variable in enumerate(region.outputs):
        if isinstance(variable.type, RandomType):
            source, draws = generator_ancestor(variable, positions)
            if source in positions:
                found[positions[source]][i] = draws
    return found


def find_constant_generators(region: Region) -> dict[int, Ancestor]:
    """Return the constant generator that an output descends from, and how many draws the output is ahead."""
    found = {}
    for i, variable in enumerate(region.outputs):
        if isinstance(variable.type, RandomType):
            source = generator_ancestor(variable, region.inputs)
            if isinstance(source.generator, Constant):
                found[i] = source
    return found
