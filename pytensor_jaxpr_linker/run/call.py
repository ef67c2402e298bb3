"""Calls a program on values: replaces generators by keys, adds constants, donates memory, tests run-time checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.base.array_types import is_tensor
from pytensor_jaxpr_linker.base.random_keys import keys_of
from pytensor_jaxpr_linker.graph.generators import Ancestor, generator_ancestor
from pytensor_jaxpr_linker.graph.wide_counts import may_be_wide
from pytensor_jaxpr_linker.plan.model import Region
from pytensor_jaxpr_linker.run import codegen, transfer
from pytensor_jaxpr_linker.run.checks import DeferredChecks, raise_if_failed
from pytensor_jaxpr_linker.run.cpu_client import device_for, place
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
    region = program.region
    if program.static_positions or find_generators(region) or find_constant_generators(region):
        return general
    return ShortCalls(program, policy, test, convert, deferred is None, donated, general).by_shapes()


class ShortCalls:
    """The calls of a program that has one specialization and reads no generator: the hot path of most functions.

    Parameters
    ----------
    test, converters, donated
        See `general_call`.
    packs_code
        Whether the check code may be packed: it is read at once.
    general
        What else calls the program.
    """

    def __init__(
        self,
        program: Program,
        policy: Policy,
        test: Callable[[Specialization, Any, Sequence[Any]], None],
        converters: Sequence[Callable[[Any], Any]],
        packs_code: bool,
        donated: Sequence[int],
        general: Callable[[list], list | None],
    ):
        self.program, self.specialization, self.policy = program, program.specialize(()), policy
        self.test, self.converters, self.packs_code = test, converters, packs_code
        self.donated, self.general = donated, general
        self.packable = [i for i, convert in enumerate(converters) if convert in transfer.NUMPY_RESULTS]
        inputs, read = program.inputs, variables_read(program.region)
        self.dtypes = {i: v.type.numpy_dtype for i, v in enumerate(inputs) if is_argument(v)}
        self.narrow = {i: v.type.numpy_dtype for i, v in enumerate(inputs) if may_be_wide(v) and i not in self.dtypes}
        self.shared = [i for i, v in enumerate(inputs) if is_tensor(v.type) and v in read and i not in self.dtypes]

    def by_shapes(self) -> Callable[[list], list | None]:
        """Return the function that calls the program on a list of arguments, see `program_call`.

        If checks are tested at once, its attribute `calls` holds the calls by the shapes of the arguments and of the shared arrays at
        the positions `shared`.
        """
        calls = self.specialization.short_calls
        call: Any = codegen.by_shapes(
            len(self.program.inputs), self.dtypes, self.shared, self.narrow, calls, self.call_first, self.call
        )
        if self.packs_code:
            call.calls, call.shared, call.narrow = calls, self.shared, self.narrow
        return call

    def call_first(self, shapes: tuple, args: list) -> list | None:
        """Call the program on NumPy arrays of shapes that it was not called with before."""
        return self.guarded(lambda args: self.make(shapes, args)(*args), args)

    def call(self, args: list) -> list | None:
        """Call the program on arguments that are not all NumPy arrays of the declared dtype."""
        return self.guarded(self.call_as_they_are, args)

    def guarded(self, run: Callable[[list], list], args: list) -> list | None:
        """Return the results of `run`, or those of `general` where it has to do more, or None if the nodes have to run on the host."""
        if self.donated or self.program.padded is not None or jax_compat.looks_for_nan():
            return self.general(args)
        outside = jax_compat.thread_x64()
        try:
            jax_compat.set_thread_x64(True)
            results = run(args)
        except NotAdmitted as other:
            return None if isinstance(other.decision, OnHost) else self.general(args)
        finally:
            jax_compat.set_thread_x64(outside)
        if self.policy.progress.active:
            self.policy.progress.end()
        return results

    def make(self, shapes: tuple, args: list) -> Callable[..., list]:
        """Make and keep the call for NumPy arrays of some shapes."""
        program, only, count = self.program, self.specialization, len(self.converters)
        device = device_for(self.policy.options)
        least = 2 if device is None else 1
        arguments = pack_arguments(program.inputs, args, least)
        constants = program.device_constants(device)
        avals = [*args, *constants]
        results = only.admit(avals).jaxpr.out_avals
        has_code = len(results) > count
        code = count if has_code and self.packs_code else None
        packed = only.packed(avals, arguments, pack_results(results, self.packable, code, least), device)
        on_device = all(i in self.shared and isinstance(args[i], jax.Array) for i in packed.others if i < len(args))
        structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in avals]
        check = partial(self.check, structs) if has_code else None
        found = codegen.packed_call(packed, constants, len(args), self.converters, check, on_device)
        calls = only.short_calls
        if len(calls) >= MOST_SHAPES:
            calls.clear()
        calls[shapes] = found
        return found

    def check(self, args: Sequence[Any], code: Any) -> None:
        """Test the check code of a call with arguments, or avals, of which the last are the constants."""
        self.test(self.specialization, code, args)

    def call_as_they_are(self, args: list) -> list:
        """Call the program without packing."""
        placed, device = place(args, self.policy.options)
        results = self.specialization.on(device)(*placed, *self.program.constants_beside(placed, device))
        if len(results) > len(self.converters):
            self.check([*args, *self.program.constants], results.pop())
        return [convert(x) for convert, x in zip(self.converters, results, strict=True)]


def general_call(
    program: Program,
    policy: Policy,
    donated: Sequence[int],
    test: Callable[[Specialization, Any, Sequence[Any]], None],
    converters: Sequence[Callable[[Any], Any]],
) -> Callable[[list], list | None]:
    """Return what `program_call` returns, for any program; `test` is called with the number of the check that failed, or 0."""
    count, progress = len(program.outputs), policy.progress
    run, generators = program.run, find_generators(program.region)
    constants = find_constant_generators(program.region)
    thread_x64, set_thread_x64 = jax_compat.thread_x64, jax_compat.set_thread_x64

    def call(given: list) -> list | None:
        args = [*given]  # keys go into it
        if generators:
            successors = take_keys(args, generators, program.key_counts)
        outside = thread_x64()
        try:
            set_thread_x64(True)
            taken = donated if donated and is_worth_donating([args[i] for i in donated]) else ()
            found = run(args, taken)
        finally:
            set_thread_x64(outside)
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


def variables_read(region: Region) -> set[Variable]:
    """Return the variables that the outputs of a region follow from, by their shapes alone, too: no step of the program computes those."""
    return set(ancestors(region.outputs, blockers=region.inputs))


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
