"""Transfers between the host and the device: planned by `transfers_of`, counted by `count_transfers`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.random.type import RandomType

from pytensor_jaxpr_linker.base.contexts import bound, named_context
from pytensor_jaxpr_linker.base.words import counted
from pytensor_jaxpr_linker.emit.random.sampler import KEY_DTYPE, KEY_SHAPE
from pytensor_jaxpr_linker.graph.facts import is_array
from pytensor_jaxpr_linker.plan.model import Plan, Region
from pytensor_jaxpr_linker.run.program import Program, declared_aval
from pytensor_jaxpr_linker.run.specialization import Specialization

type Direction = Literal["to the device", "to the host", "stays on the device"]


class Transfer(NamedTuple):
    """A value that a call moves, or leaves on the device; `variable` is None for a check code."""

    direction: Direction
    why: str
    variable: Variable | None
    bytes: int | None  #: None if the shape is not known


class Held(NamedTuple):
    """Where a value is, and how large."""

    on_device: bool
    bytes: int | None


def held(value: Any) -> Held:
    """Return where a value is: of a `jax.ShapeDtypeStruct` it is on the host, as the argument that it stands for."""
    if isinstance(value, jax.Array | jax.ShapeDtypeStruct):
        return Held(isinstance(value, jax.Array), array_bytes_of(value))
    return Held(False, None if isinstance(value, np.random.Generator | None) else np.asarray(value).nbytes)


def array_bytes_of(aval: Any) -> int:
    """Return the bytes of a shape and dtype."""
    return int(np.prod(aval.shape)) * np.dtype(aval.dtype).itemsize


def declared_bytes(variable: Variable) -> int | None:
    """Return the bytes of a variable whose type declares its shape, else None."""
    aval = declared_aval(variable)
    return None if aval is None else array_bytes_of(aval)


def code_bytes(specialization: Specialization, results: int) -> int:
    """Return the bytes of the check code that follows the results; 0 if there are no checks, or nothing is built."""
    avals: Sequence[Any] = next((lowered.jaxpr.out_avals for lowered in reversed(specialization.lowered.values())), ())
    return array_bytes_of(avals[-1]) if len(avals) > results else 0


@dataclass(frozen=True)
class Sizes:
    """Sizes in a call: where each input is, the bytes of the results of batches, and of each region's check code.

    The functions that `of_region` and `of_host` return call the batches of a plan, and add their sizes.
    """

    inputs: dict[Variable, Held]
    made: dict[Variable, int | None] = field(default_factory=dict)
    codes: list[int] = field(default_factory=list)

    def of_region(self, program: Program, call: Callable[[list], list | None]) -> Callable[[list], list | None]:
        """Return the call of a region that adds the sizes of its results."""

        def watched(args: list) -> list | None:
            specialization = program.specialize(args)  # before the call, which may take the memory of arguments
            results = call(args)
            self.codes.append(code_bytes(specialization, len(program.outputs)))
            return results if results is None else self.add(program.outputs, results)

        return watched

    def of_host(self, outputs: Sequence[Variable], call: Callable[[list], list]) -> Callable[[list], list]:
        """Return the call of a host step that adds the sizes of its results."""
        return lambda args: self.add(outputs, call(args))

    def add(self, outputs: Sequence[Variable], results: list) -> list:
        """Add the sizes of a batch's results, and return the results."""
        self.made.update((v, held(x).bytes) for v, x in zip(outputs, results, strict=True) if is_array(v))
        return results


def transfers_of(
    plan: Plan, programs: Sequence[Program], updates: Mapping[int, int], results: str, sizes: Sizes
) -> list[Transfer]:
    """Return the values that a call of a plan moves.

    Parameters
    ----------
    updates
        The input that each output becomes the value of, by their positions.
    results
        The option: "numpy" or "jax".
    """
    walk = Walk(plan, updates, sizes)
    regions = iter(zip(programs, sizes.codes, strict=True))
    for batch in plan.batches:
        if isinstance(batch, Region):
            walk.run_region(*next(regions))
        else:
            for v in batch.inputs:
                walk.read(v, "read by a host step")
        for v in batch.outputs:
            walk.values[v] = Held(isinstance(batch, Region), sizes.made.get(v, declared_bytes(v)))
    for i, v in enumerate(plan.outputs):
        if not isinstance(v.type, RandomType) and is_array(v):
            walk.return_output(v, "update" if i in updates else "result", i in updates or results == "jax")
    return walk.found


class Walk:
    """The values of a call, batch after batch."""

    def __init__(self, plan: Plan, updates: Mapping[int, int], sizes: Sizes):
        self.values, self.arguments = dict(sizes.inputs), set(plan.inputs)
        shared: list[Variable] = [v for v in plan.inputs if isinstance(v, SharedVariable)]
        #: The values that the host has already: JAX keeps the copy of an array, and a shared variable without updates
        #: is the same array in each call.
        self.on_host: set[Variable] = {*shared}.difference(plan.inputs[i] for i in updates.values())
        self.found: list[Transfer] = []
        for v in shared:
            if sizes.inputs[v].on_device:
                self.move("stays on the device", "shared variable", v, sizes.inputs[v].bytes)

    def move(self, direction: Direction, why: str, v: Variable | None, size: int | None) -> None:
        """Note a transfer."""
        self.found.append(Transfer(direction, why, v, size))

    def read(self, v: Variable, why: str) -> None:
        """Note that the host reads a value of the device, unless it has a copy."""
        if self.values[v].on_device and v not in self.on_host:
            self.on_host.add(v)
            self.move("to the host", why, v, self.values[v].bytes)

    def run_region(self, program: Program, code: int) -> None:
        """Note the values that a region takes from the host, and that the host reads of it."""
        for i, v in enumerate(program.inputs):
            on_device, size = self.values[v]
            if isinstance(v.type, RandomType) and not on_device:
                key = int(np.prod(KEY_SHAPE)) * KEY_DTYPE.itemsize
                self.move("to the device", "random key", v, key * program.key_counts.get(i, 1))
            elif not on_device:
                self.move("to the device", "argument" if v in self.arguments else "made by a host step", v, size)
            elif i in program.static_positions:
                self.read(v, "determines a shape")
        if code:
            self.move("to the host", "check code", None, code)

    def return_output(self, v: Variable, why: str, is_jax: bool) -> None:
        """Note the transfer of an output, to JAX's memory or to the host."""
        constant = Held(False, np.asarray(v.data).nbytes if isinstance(v, Constant) else None)
        on_device, size = self.values.setdefault(v, constant)
        if is_jax:
            self.move("stays on the device" if on_device else "to the device", why, v, size)
        else:
            self.read(v, why)


class Moved(NamedTuple):
    """How many arrays were moved, and how many bytes."""

    arrays: int = 0
    bytes: int = 0

    def __str__(self) -> str:
        return f"{counted(self.arrays, 'array')}, {self.bytes} bytes"


class TransferCount:
    """The transfers of calls between the host and the device.

    Attributes
    ----------
    calls : int
        How many calls of functions ended without an error.
    by_reason : dict
        The arrays and bytes, by direction and reason, such as ``("to the device", "argument")``.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.by_reason: dict[tuple[str, str], Moved] = {}
        self._lock = threading.Lock()

    def _total(self, direction: str) -> Moved:
        found = [moved for (to, _), moved in self.by_reason.items() if to == direction]
        return Moved(sum(m.arrays for m in found), sum(m.bytes for m in found))

    @property
    def to_device(self) -> Moved:
        """The arrays and bytes that were moved to the device."""
        return self._total("to the device")

    @property
    def to_host(self) -> Moved:
        """The arrays and bytes that were moved to the host."""
        return self._total("to the host")

    def add(self, transfers: Sequence[Transfer], calls: int = 1) -> None:
        """Count the transfers of a call."""
        with self._lock:
            self.calls += calls
            for to, why, _, size in transfers:
                if to != "stays on the device":
                    arrays, total = self.by_reason.get((to, why), Moved())
                    self.by_reason[to, why] = Moved(arrays + 1, total + (size or 0))

    def __repr__(self) -> str:
        lines = [counted(self.calls, "call")]
        for direction, total in (("to the device", self.to_device), ("to the host", self.to_host)):
            lines.append(f"{direction}: {total}")
            lines += [f"  {why}: {moved}" for (to, why), moved in self.by_reason.items() if to == direction]
        return "\n".join(lines)


#: The counts that are open in the process. A call looks at nothing but whether this is empty: a few ns.
open_counts: list[TransferCount] = []
_current: ContextVar[TransferCount | None] = ContextVar("transfer_count", default=None)


def current_count() -> TransferCount | None:
    """Return the count of this thread's ``with`` block, or None."""
    return _current.get() if open_counts else None


@named_context
def count_transfers() -> Iterator[TransferCount]:
    """Count the transfers between host and device by calls of functions of mode JAXPR in a ``with`` block.

    Calls in other threads do not count. A value counts when it goes from NumPy to JAX's memory, or back. On a CPU both
    are the same memory, and the numbers are the same as with an accelerator: a test needs none. Small values may go
    together, in one copy. Padding, and large constants, which move once, do not count.

    Calls that count are slower; others are not.

    Yields
    ------
    TransferCount
        Its `calls`, `to_device`, `to_host`, and `by_reason`. Print it.

    See Also
    --------
    explain : ``explain(f).transfers`` lists the transfers of one call, by name, without a call.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt
    >>> import pytensor_jaxpr_linker as pjl
    >>> x, w = pt.vector("x", dtype="float64"), pytensor.shared(np.ones(3), name="w")
    >>> f = pytensor.function([x], (w * x).sum(), updates={w: w + x}, mode="JAXPR")
    >>> with pjl.count_transfers() as moved:
    ...     for _ in range(10):
    ...         _ = f(np.ones(3))
    >>> print(moved)
    10 calls
    to the device: 11 arrays, 264 bytes
      shared variable: 1 array, 24 bytes
      argument: 10 arrays, 240 bytes
    to the host: 10 arrays, 80 bytes
      result: 10 arrays, 80 bytes
    """
    count = TransferCount()
    try:
        open_counts.append(count)
        with bound(_current, count):
            yield count
    finally:
        open_counts.remove(count)


def count_upload(size: int) -> None:
    """Count that the value of a shared variable, which was set since the last call, goes to the device."""
    if (count := current_count()) is not None:
        count.add([Transfer("to the device", "shared variable", None, size)], calls=0)
