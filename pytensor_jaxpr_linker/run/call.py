"""Calls a program on values: replaces generators by keys, adds constants, donates memory, tests run-time checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from pytensor.graph.basic import Constant
from pytensor.tensor.random.type import RandomType

from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.base.progress import Progress
from pytensor_jaxpr_linker.base.random_keys import keys_of
from pytensor_jaxpr_linker.graph.generators import Ancestor, generator_ancestor
from pytensor_jaxpr_linker.plan.model import Region
from pytensor_jaxpr_linker.run import transfer
from pytensor_jaxpr_linker.run.checks import DeferredChecks, raise_if_failed
from pytensor_jaxpr_linker.run.packing import make_packer
from pytensor_jaxpr_linker.run.program import Program
from pytensor_jaxpr_linker.run.recompiles import OnHost
from pytensor_jaxpr_linker.run.specialization import NotAdmitted, Specialization

#: Arrays of fewer bytes are not donated: a new one costs less than donating takes, measured on the CPU.
DONATED_BYTES = 2**20


def program_call(
    program: Program, progress: Progress, donated: Sequence[int] = (), deferred: DeferredChecks | None = None
) -> Callable[[list], list | None]:
    """Return the function that runs a program on a list of values and returns the list of outputs.

    It returns None, and has done nothing, if the nodes have to run on the host. Any number of threads may call it. The results may take the
    memory of the inputs at the positions `donated`. `deferred` keeps the results of checks; without it, each call tests its own.
    """
    test = raise_if_failed if deferred is None else deferred.add
    general = general_call(program, progress, donated, test)
    region = program.region
    if program.static_positions or find_generators(region) or find_constant_generators(region):
        return general
    count, only, has_constants = len(program.outputs), program.specialize(()), bool(program.constants)
    swap_x64, restore_x64 = jax_compat.swap_x64, jax_compat.restore_x64
    pack = make_packer(region.inputs, only.packed, lambda packing: only.jitted(packing=packing))

    # The hot path of most programs: one Python function, with one test for each thing that the program may not have.
    def direct(args: list) -> list | None:
        if donated or program.padded is not None:
            return general(args)
        given = args + program.device_constants() if has_constants else args
        packed = None if pack is None else pack(given)
        outside = swap_x64(True)
        try:
            results = only.call(*given) if packed is None else packed[0](*packed[1])
        except NotAdmitted as other:
            return None if isinstance(other.decision, OnHost) else general(args)
        finally:
            restore_x64(outside)
        if progress.active:
            progress.end()
        if len(results) > count:
            test(only, results.pop(), given)
        return results

    return direct


def general_call(
    program: Program, progress: Progress, donated: Sequence[int], test: Callable[[Specialization, Any, list], None]
) -> Callable[[list], list | None]:
    """Return the function of `program_call`, for any program; it calls `test` with the number of the check that failed, or 0."""
    count = len(program.outputs)
    run, generators = program.run, find_generators(program.region)
    constants = find_constant_generators(program.region)
    swap_x64, restore_x64 = jax_compat.swap_x64, jax_compat.restore_x64

    def call(given: list) -> list | None:
        args = [*given]  # keys and constants go into it
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
        return results

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
