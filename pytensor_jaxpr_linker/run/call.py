"""`ProgramCall`, which calls a program on values, packed or by `Program.run`, and the tests of its run-time checks."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.experimental import checkify
from jax.sharding import SingleDeviceSharding
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from jaxpr_artifact.threads import with_x64
from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.base.array_types import is_tensor
from pytensor_jaxpr_linker.base.errors import note_node
from pytensor_jaxpr_linker.base.random_keys import keys_of
from pytensor_jaxpr_linker.graph.decompose import may_be_wide
from pytensor_jaxpr_linker.graph.facts import Ancestor, generator_ancestor
from pytensor_jaxpr_linker.jaxpr.builder import Check
from pytensor_jaxpr_linker.plan.model import Region
from pytensor_jaxpr_linker.run import codegen, placement
from pytensor_jaxpr_linker.run.packing import is_argument, pack_arguments, pack_results
from pytensor_jaxpr_linker.run.program import Program
from pytensor_jaxpr_linker.run.recompiles import NotAdmitted, Policy
from pytensor_jaxpr_linker.run.specialization import Specialization

#: Arrays of fewer bytes are not donated: a new one costs less than donating takes, measured on the CPU.
DONATED_BYTES = 2**20


class ProgramCall:
    """Calls a program on a list of values and returns the list of outputs. Any number of threads may call it.

    NumPy arrays of the declared dtypes go to the packed call for their shapes, which the first of them makes. All other
    values go to `Program.run`. It returns None, and has done nothing, if the nodes have to run on the host.

    Parameters
    ----------
    donated
        The positions of inputs whose memory the results may take.
    deferred
        Keeps the results of checks; if None, each call tests its own.
    converters
        Convert each output to a value of the user's. If None, outputs are JAX arrays.

    Attributes
    ----------
    calls
        The packed calls, by the shapes of the arguments and of the shared arrays.
    shared
        For each position of a shared array: the dtype that it must have, or None if it has no other.
    """

    def __init__(
        self,
        program: Program,
        policy: Policy,
        donated: Sequence[int] = (),
        deferred: DeferredChecks | None = None,
        converters: Sequence[Callable[[Any], Any]] | None = None,
    ):
        region, inputs = program.region, program.inputs
        self._program, self._policy, self._donated = program, policy, donated
        self._test: Callable[..., None] = raise_if_failed if deferred is None else deferred.add
        self._packs_code = deferred is None  # it is read at once
        self._converters = converters or [lambda value: value] * len(program.outputs)
        self._generators, self._constants = find_generators(region), find_constant_generators(region)
        self._is_packable = not (program.static_positions or self._generators or self._constants)
        # An output follows from some variables by their shapes alone: no step of the program computes these.
        read = set(ancestors(region.outputs, blockers=region.inputs))
        self._arguments = [(i, v.type.numpy_dtype) for i, v in enumerate(inputs) if is_argument(v)]
        self.shared: dict[int, np.dtype | None] = {
            i: v.type.numpy_dtype if may_be_wide(v) else None
            for i, v in enumerate(inputs)
            if is_tensor(v.type) and v in read and not is_argument(v)
        }
        self._count = len(self._arguments) + len(self.shared)
        self.calls: dict[tuple, Callable[..., list]] = program.specialize(()).packed_calls if self._is_packable else {}

    def __call__(self, args: list) -> list | None:
        shapes = self._packed_shapes(args)
        if shapes is None:
            return self._run(args)
        call = self.calls.get(shapes)
        return self._call_first(shapes, args) if call is None else call(*args)

    def _packed_shapes(self, args: list) -> tuple | None:
        """Return the key of the packed call for arguments, or None if they can't be packed."""
        if not self._is_packable or jax_compat.looks_for_nan():
            return None
        found = [x.shape for i, dtype in self._arguments if type(x := args[i]) is np.ndarray and x.dtype is dtype]
        for i, wide in self.shared.items():
            x = args[i]
            is_on_one_device = type(x) is np.ndarray or type(x.sharding) is SingleDeviceSharding
            if is_on_one_device and (wide is None or x.dtype == wide):
                found.append(x.shape)
        return tuple(found) if len(found) == self._count else None

    def _call_first(self, shapes: tuple, args: list) -> list | None:
        """Make the packed call for these shapes and call it, unless `Program.run` or the host has to do more."""
        if self._donated or self._program.padded is not None:
            return self._run(args)
        try:
            call = self.calls[shapes] = self._packed_call(args)
        except NotAdmitted as other:
            return None if other.padding is None else self._run(args)
        results = call(*args)
        if self._policy.progress.active:
            self._policy.progress.end()
        return results

    @with_x64
    def _packed_call(self, args: list) -> Callable[..., list]:
        """Return the packed call for arguments of the shapes of `args`."""
        program, only, count = self._program, self._program.specialize(()), len(self._converters)
        device = placement.device_for(self._policy.options)
        least = 2 if device is None else 1
        arguments = pack_arguments(program.inputs, args, least)
        constants = program.device_constants(device)
        avals = [*args, *constants]
        packable = [i for i, convert in enumerate(self._converters) if convert in placement.NUMPY_RESULTS]
        code = count if self._packs_code else None  # the check code follows the results, if there is one
        how = repr((self._policy.options, arguments, packable, code, least))
        pack = partial(pack_results, wanted=packable, code=code, least=least)
        packed = only.packed(avals, arguments, pack, device, how)
        has_code, others = packed.layout.returned > count, packed.layout.others
        on_device = all(i in self.shared and isinstance(args[i], jax.Array) for i in others if i < len(args))
        structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in avals]
        check = partial(self._test, only, args=structs) if has_code else None
        return codegen.packed_call(packed, constants, len(args), self._converters, check, on_device)

    def _run(self, given: list) -> list | None:
        """Call the program by `Program.run`, whatever the values are."""
        args, program, progress = [*given], self._program, self._policy.progress  # keys go into `args`
        successors = take_keys(args, self._generators, program.key_counts)
        donated = self._donated
        taken = donated if donated and is_worth_donating([args[i] for i in donated]) else ()
        if (found := program.run(args, taken)) is None:
            return None
        results, specialization, args = found
        if progress.active:
            progress.end()
        if len(results) > len(self._converters):
            self._test(specialization, results.pop(), args)
        for i, generator in successors.items():
            results[i] = generator
        for i, (constant, draws) in self._constants.items():
            results[i] = placement.advanced(constant.data, draws)  # type: ignore[attr-defined]
        return [convert(x) for convert, x in zip(self._converters, results, strict=True)]


def is_worth_donating(values: Sequence[Any]) -> bool:
    """Return whether donating values saves time: all are on the device, and they are large."""
    return all(isinstance(x, jax.Array) for x in values) and sum(x.nbytes for x in values) >= DONATED_BYTES


def take_keys(args: list, generators: dict[int, dict[int, int]], counts: Mapping[int, int]) -> dict[int, Any]:
    """Replace the generators among `args` by keys; return the generator that each generator output becomes."""
    successors = {}
    for i, wanted in generators.items():
        generator = args[i]
        args[i] = keys_of(generator, counts.get(i, 1))
        for output, draws in wanted.items():
            if isinstance(generator, np.random.Generator):  # else it is a key, and so is its successor
                successors[output] = placement.advanced(generator, draws)
    return successors


def find_generators(region: Region) -> dict[int, dict[int, int]]:
    """Return the successors among the outputs of each input that is a generator, and how many draws they are ahead."""
    positions = {v: i for i, v in enumerate(region.inputs) if isinstance(v.type, RandomType)}
    found: dict[int, dict[int, int]] = {i: {} for i in positions.values()}
    for i, (source, draws) in generator_sources(region).items():
        if source in positions:
            found[positions[source]][i] = draws
    return found


def find_constant_generators(region: Region) -> dict[int, Ancestor]:
    """Return the constant generator that an output descends from, and how many draws the output is ahead."""
    return {i: source for i, source in generator_sources(region).items() if isinstance(source.generator, Constant)}


def generator_sources(region: Region) -> dict[int, Ancestor]:
    """Return the ancestor of each output that is a generator, by its position."""
    generators = ((i, v) for i, v in enumerate(region.outputs) if isinstance(v.type, RandomType))
    return {i: generator_ancestor(v, region.inputs) for i, v in generators}


def raise_if_failed(specialization: Specialization, code: Any, args: Sequence[Any]) -> None:
    """Raise the exception of the first run-time check that failed, if one did."""
    if number := int(code):
        raise error_of(specialization.lower(args).checks[number - 1])


def error_of(check: Check) -> Exception:
    """Return the exception of a check, with a note that names the node."""
    error = check.make_error()
    if check.node is not None:
        note_node(error, check.node)
    return error


def error_text(check: Check) -> str:
    """Return type and message of the exception of a check."""
    error = check.make_error()
    return f"{type(error).__name__}: {error}"


class DeferredChecks:
    """The checks of calls that returned before their results were known. Any number of threads may use it.

    A call tests, and drops, the checks that the device has computed, so the queue is never longer than the device's. If
    `wait`, a call waits for the checks of earlier calls.
    """

    def __init__(self, wait: bool):
        self._wait = wait
        self._codes: deque[tuple[jax.Array, list[Check]]] = deque()
        self._lock = threading.Lock()

    def add(self, specialization: Specialization, code: jax.Array, args: Sequence[Any]) -> None:
        """Keep the check code of one call of a program."""
        self._codes.append((code, specialization.lower(args).checks))

    def raise_known(self) -> None:
        """Raise the error of an earlier call: of one that has ended, or, if calls wait, of any."""
        if self._codes:
            self.raise_failed(self._wait)

    def raise_failed(self, wait: bool = True) -> None:
        """Raise the exception of the first check that failed, and forget the later ones."""
        with self._lock:
            while self._codes and (wait or jax_compat.is_ready(self._codes[0][0])):
                code, checks = self._codes.popleft()
                if number := int(code):
                    self._codes.clear()
                    raise error_of(checks[number - 1])


def with_checkify(program: Program, fn: Callable[..., list]) -> Callable[..., list]:
    """Return `fn` with a `checkify.check` for each run-time check in place of the code; a derivative makes none."""
    count = len(program.outputs)

    def call(*args: Any) -> list:
        results = fn(*args)
        for number, check in enumerate(program.checks_of(args[: len(program.inputs)]), 1):
            message = error_text(check).replace("{", "{{").replace("}", "}}")
            checkify.check(results[count] != number, message)
        return results[:count]

    return call
