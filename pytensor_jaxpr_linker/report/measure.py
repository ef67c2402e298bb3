"""Measures how long each part of a function takes at run time: see `Stages.profile`."""

from __future__ import annotations

import os
import platform
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.scalar.basic import ScalarType

from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.base.array_types import is_tensor
from pytensor_jaxpr_linker.base.errors import variable_name
from pytensor_jaxpr_linker.base.options import Options, current_stance, kind_of
from pytensor_jaxpr_linker.base.words import counted
from pytensor_jaxpr_linker.frontend.runner import Runner
from pytensor_jaxpr_linker.frontend.storage import storage_of
from pytensor_jaxpr_linker.frontend.targets import Compiled, example_value
from pytensor_jaxpr_linker.report.marked import Marks, Operation, operations_of
from pytensor_jaxpr_linker.report.nodes import Provenance, Texts, batch_nodes, describe_nodes, number_nodes
from pytensor_jaxpr_linker.report.profile import ON_HOST, Profile, ProfileRow
from pytensor_jaxpr_linker.run.call import find_generators, take_keys
from pytensor_jaxpr_linker.run.executor import RegionStage
from pytensor_jaxpr_linker.run.placement import device_for, place
from pytensor_jaxpr_linker.run.program import Program
from pytensor_jaxpr_linker.run.specialization import Specialization


class Event(NamedTuple):
    """One run of an operation, in seconds."""

    operation: str
    start: float
    end: float


class ProgramRun(NamedTuple):
    """One run of a program: its seconds, and its events."""

    seconds: float
    events: list[Event]

    def between(self, ignored: Collection[str]) -> float:
        """Return the seconds in which no operation ran except the `ignored`."""
        busy = union_length([(e.start, e.end) for e in self.events if e.operation not in ignored])
        return max(0.0, self.seconds - busy)


def record(run: Callable[[], Any], count: int, module: str) -> list[ProgramRun]:
    """Run a program under JAX's profiler, without the first run, in which the profiler takes its memory.

    `run` waits for its end. `module` is the name of its HLO module: other threads may run other programs.
    """
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            jax.profiler.start_trace(folder, profiler_options=options)
        except RuntimeError as error:
            raise RuntimeError(
                f"profile() uses JAX's profiler, which did not start: {error} If it is running, stop it first"
                " (jax.profiler.stop_trace())."
            ) from error
        try:
            seconds = seconds_of(run, count + 1)
        finally:
            jax.profiler.stop_trace()
        files = [*Path(folder).rglob("*.xplane.pb")]
        events = [e for file in files for e in events_of(jax.profiler.ProfileData.from_file(str(file)), module)]
    events.sort(key=attrgetter("start"))  # each run has the same events
    ends = [i * len(events) // (count + 1) for i in range(count + 2)]
    return [ProgramRun(seconds[i], events[ends[i] : ends[i + 1]]) for i in range(1, count + 1)]


def events_of(data: Any, module: str) -> Iterator[Event]:
    """Yield the events of operations of an HLO module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the type of `stats`, where the profiler makes it
        for plane in data.planes:
            for line in plane.lines:
                for event in line.events:
                    stats: dict[Any, Any] = dict(event.stats)
                    if stats.get("hlo_module") == module and "hlo_op" in stats:
                        start = event.start_ns / 1e9
                        yield Event(str(stats["hlo_op"]), start, start + event.duration_ns / 1e9)


def seconds_of(run: Callable[[], Any], count: int) -> list[float]:
    """Return the seconds that each run takes."""
    times = []
    for _ in range(count):
        started = perf_counter()
        run()
        times.append(perf_counter() - started)
    return times


def union_length(intervals: Iterable[tuple[float, float]]) -> float:
    """Return the length of a union of intervals."""
    length, reached = 0.0, -np.inf
    for start, end in sorted(intervals):
        length += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return length


#: By default each batch runs for about this many seconds, at most this often.
SECONDS, MOST_CALLS = 0.3, 100
#: The largest number of runs, and about the largest number of events, of one recording. The longer the profiler runs,
#: the more often it takes memory that a run has just freed, so that the next run gets new pages of the operating
#: system: programs of 50 µs took 150 µs, others of 0.8 ms 4 ms.
MOST_RUNS, MOST_EVENTS = 8, 1000
#: XLA for GPUs starts consecutive operations as one CUDA graph, and the profiler sees only its name. With this option
#: no row of operations is long enough for that.
EACH_ALONE = {"xla_gpu_graph_min_graph_size": 2**30}
#: The largest block of memory that glibc keeps when it is freed: `DEFAULT_MMAP_THRESHOLD_MAX` in its malloc.c. The
#: pages of a larger block go back to the operating system.
LARGEST_KEPT = 2**25
#: Stands for an operation that the HLO text does not name.
UNNAMED = Operation("", frozenset(), frozenset(), frozenset())


def profile_of(found: Compiled, args: Sequence[Any], calls: int | None = None) -> Profile:
    """Return the time of each part of a function for arguments. See `Stages.profile`."""
    if calls is not None and (isinstance(calls, bool) or not isinstance(calls, int | np.integer) or calls < 1):
        raise ValueError(f"`calls` says how often each part runs: a whole number from 1 on, or None; not {calls!r}.")
    runner = found.runner
    values = values_of(found, args)
    storage = storage_of(found.fgraph, [[value] for value in values], [[None] for _ in found.fgraph.outputs])
    thunk: Any = runner.thunk(storage._replace(updates=(), turns=()))  # stores nothing
    given = [] if storage.is_shared else values

    def call() -> None:
        jax.block_until_ready(thunk.compute(given))

    call()  # compiles, and plans again if a rule can't emit a node
    call_times = seconds_of(call, how_often(call, calls))
    measured = Measured(runner, calls)
    on_device = storage.read([], device_for(runner.options), runner.column_major) if storage.is_shared else values
    measured.run(on_device)
    if runner.deferred is not None:
        runner.deferred.raise_failed()
    return measured.profile(fmean(fastest(call_times)) * 1e6)


def values_of(found: Compiled, args: Sequence[Any]) -> list[Any]:
    """Return the value of each input, for the user's arguments."""
    inputs = found.fgraph.inputs
    given = [*args, *found.stored[len(args) :]]
    if len(given) != len(inputs):
        raise TypeError(f"The function takes {counted(len(inputs), 'value')}, but {len(given)} are given.")
    missing = [
        variable_name(v)
        for v, x in zip(inputs, given, strict=True)
        if isinstance(x, jax.ShapeDtypeStruct) or (x is None and takes_numbers(v))
    ]
    if missing:
        raise TypeError(
            f"profile() runs the function, so it needs a value of each input, but has none of {', '.join(missing)}:"
            " use stages(f, value, ...).profile()."
        )
    return [example_value(v, x, 1) if takes_numbers(v) else x for v, x in zip(inputs, given, strict=True)]


def takes_numbers(variable: Variable) -> bool:
    """Return whether the values of a variable are arrays, or numbers, which programs take as arrays."""
    return is_tensor(variable.type) or isinstance(variable.type, ScalarType)


class Timed(NamedTuple):
    """A `ProfileRow` with the numbers of nodes in place of their descriptions."""

    batch: int
    nodes: Sequence[int]
    readers: Sequence[int]
    inner: Sequence[Apply]
    operation: str
    result: str
    seconds: float
    runs: float


class Measured:
    """Measures the batches of a plan, one after the other."""

    def __init__(self, runner: Runner, calls: int | None):
        self._runner, self._calls = runner, calls
        self._index, self._places = number_nodes(runner.graph, runner.plan)
        self._rows: list[Timed] = []
        self._between = self._moving = 0.0
        self._done: list[int] = []
        self._batch_seconds: dict[int, float] = {}
        self._devices: dict[str, None] = {}
        self._notes: list[str] = []

    def run(self, values: list[Any]) -> None:
        """Measure each batch on the values that it gets in a call on `values`."""
        runner = self._runner
        on_host = current_stance.get() == "force_host" or runner.call(values) is None
        if on_host:
            self._host(0, runner.graph.nodes, partial(runner.host_call, values, runner.column_major))
        elif runner.program is not None:
            self._region(0, runner.program, [*values], runner.options)
        else:
            self._batches(values)

    def _batches(self, values: Sequence[Any]) -> None:
        """Measure each batch of a plan of several."""
        executor, plan = self._runner.executor, self._runner.plan
        assert executor is not None
        env: dict[int, Any] = dict(enumerate(values))
        for i, (stage, batch) in enumerate(zip(executor.stages, plan.batches, strict=True)):
            args = [env[slot] for slot in stage.inputs]
            results = None
            if isinstance(stage, RegionStage):
                kept = [x.copy() if j in stage.donated and isinstance(x, jax.Array) else x for j, x in enumerate(args)]
                results = stage.call(kept)
                if results is not None:
                    self._region(i, stage.program, [*args], self._runner.options)
            if results is None:
                call: Callable = stage.call_on_host if isinstance(stage, RegionStage) else stage.call
                results = call(args)
                self._host(i, batch_nodes(batch), partial(call, args))
            env.update(zip(stage.outputs, results, strict=True))

    def _host(self, batch: int, nodes: Sequence[Apply], call: Callable[[], Any]) -> None:
        """Measure nodes that run on the host."""
        seconds = seconds_of(call, how_often(call, self._calls))
        taken = fmean(fastest(seconds))
        self._rows.append(Timed(batch, [self._index[node] for node in nodes], (), (), ON_HOST, "", taken, 1.0))
        self._done.append(len(seconds))
        self._batch_seconds[batch] = taken

    def _region(self, batch: int, program: Program, args: list[Any], options: Options) -> None:
        """Measure the operations of a region."""
        take_keys(args, find_generators(program.region), program.key_counts)
        with jax.enable_x64(True):
            specialization, args, device = called_by(program, args, options)
            for step in specialization.region.steps:  # the nodes of a padded region are not in the graph
                self._index.setdefault(step.node, len(self._index))
            marks = Marks(self._index)
            compiled = compile_marked(marks, specialization, args, device)
            there = jax.device_put(args, device)

            def run(args: Sequence[Any] = there) -> list:
                return jax.block_until_ready(compiled(*args))

            (where,) = run()[0].devices()
            hlo = compiled.as_text() or ""
            name = hlo.partition("HloModule ")[2].partition(",")[0]
            (first,) = record(run, 1, name)
            count = how_often(run, self._calls)
            if any(isinstance(x, np.ndarray) for x in args):
                self._moving += fmean(fastest(seconds_of(partial(run, args), count)))
                self._moving -= fmean(fastest(seconds_of(run, count)))
            at_once = max(1, min(MOST_RUNS, MOST_EVENTS // max(1, len(first.events))))
            recorded = [r for n in split_count(count, at_once) for r in record(run, n, name)]
        operations = operations_of(hlo)
        self._devices["on the CPU client that calls use" if where == device else f"on the device {where}"] = None
        kept = fastest(recorded, key=attrgetter("seconds"))
        seen = {event.operation for r in kept for event in r.events}
        # Operations inside a loop have events of their own.
        outer = {o for o in seen if o in operations and not operations[o].within.isdisjoint(seen)}
        times: dict[str, list[float]] = {o: [] for o in seen - outer}
        for event in (e for r in kept for e in r.events if e.operation in times):
            times[event.operation].append(event.end - event.start)
        for operation, durations in times.items():
            known = operations.get(operation, UNNAMED)
            inner = [marks.inner[i] for i in sorted(known.inner)]
            members, readers = sorted(known.nodes), sorted(known.readers)
            taken, runs = sum(durations) / len(kept), len(durations) / len(kept)
            self._rows.append(Timed(batch, members, readers, inner, operation, known.result, taken, runs))
        temporary = compiled.memory_analysis().temp_size_in_bytes
        if where.platform == "cpu" and temporary > LARGEST_KEPT and gives_memory_back():
            self._notes.append(
                f"Region {batch} has {temporary / 1e6:.0f} MB of temporary arrays, for which the operating system gives"
                " new pages in each call: that may take half of its time. MALLOC_MMAP_THRESHOLD_=1073741824 and"
                " MALLOC_TRIM_THRESHOLD_=2147483648 in the environment, before Python starts, keep them."
            )
        if not times:
            self._notes.append(f"JAX's profiler recorded no operation of region {batch} on {where}.")
        self._done.append(count)
        taken = fmean(r.seconds for r in kept)
        self._batch_seconds[batch] = taken
        self._between += fmean(r.between(outer) for r in kept)

    def profile(self, call_microseconds: float) -> Profile:
        """Return the measurements."""
        texts, provenance = Texts(), Provenance(self._runner.graph, None)
        nodes = [*describe_nodes(self._index, self._places, self._runner.plan, texts, provenance, {})]
        total = sum(self._batch_seconds.values())
        rows = []
        for row in sorted(self._rows, key=lambda row: -row.seconds):
            members, readers = (tuple(nodes[i] for i in numbers) for numbers in (row.nodes, row.readers))
            inner = tuple(dict.fromkeys(short_name(node, texts) for node in row.inner))
            time, share = row.seconds * 1e6, row.seconds / total
            rows.append(
                ProfileRow(row.batch, members, readers, inner, row.operation, row.result, time, share, row.runs)
            )
        run, between, moving = (seconds * 1e6 for seconds in (total, self._between, max(0.0, self._moving)))
        by_batch = {i: seconds * 1e6 for i, seconds in self._batch_seconds.items()}
        device = " and ".join(self._devices) or "on the host"
        calls, notes = tuple(self._done), tuple(self._notes)
        return Profile(tuple(rows), run, between, moving, call_microseconds, calls, by_batch, device, notes)


def short_name(node: Apply, texts: Texts) -> str:
    """Return the Op of a node of an inner graph, and the user's name of its result."""
    name = next((v.name for v in node.outputs if v.name), "")
    return texts.op(node) + (f" = '{name}'" if name else "")


def called_by(
    program: Program, args: list[Any], options: Options
) -> tuple[Specialization, list[Any], jax.Device | None]:
    """Return the specialization that a call runs, perhaps of the padded region, with its arguments and device."""
    args, device = place(args, options)
    found, whole, padded = program.specialize(args), [*args, *program.device_constants(device)], program.padded
    if padded is not None and not found.holds(whole) and padded.padding.fits(whole):
        return called_by(padded.program, padded.padding.pad(args), options)
    return found, whole, device


def compile_marked(marks: Marks, s: Specialization, args: Sequence[Any], device: jax.Device | None) -> Any:
    """Return JAX's `jax.stages.Compiled` of a marked specialization, without packed arguments and results."""
    jaxpr = marks.lower(s, args)

    def call(*given: Any) -> list:
        return jax_compat.call_jaxpr(jaxpr, *given)

    call.__name__ = call.__qualname__ = f"profiled_{s.name}"
    sharding = None if device is None else jax.sharding.SingleDeviceSharding(device)
    on_gpu = any(kind_of(target) == "gpu" for target in jax_compat.target_platforms())
    return jax.jit(call, in_shardings=sharding).lower(*args).compile(compiler_options=EACH_ALONE if on_gpu else None)


def gives_memory_back() -> bool:
    """Return whether the allocator is glibc's, without a setting that keeps large blocks."""
    return platform.libc_ver()[0] == "glibc" and "MALLOC_MMAP_THRESHOLD_" not in os.environ


def how_often(run: Callable[[], Any], calls: int | None) -> int:
    """Return the number of runs to measure: `calls` if it is given."""
    if calls is not None:
        return int(calls)
    (seconds,) = seconds_of(run, 1)
    return max(1, min(MOST_CALLS, int(SECONDS / max(seconds, 1e-9))))


def fastest[T](runs: Sequence[T], key: Callable[[T], Any] | None = None) -> list[T]:
    """Return the fastest fifth of the runs: other work of the computer, and the profiler, make the others longer.

    Means over them add up, as medians would not.
    """
    return sorted(runs, key=key)[: (len(runs) + 4) // 5]  # type: ignore[type-var, arg-type]


def split_count(count: int, most: int) -> list[int]:
    """Return a count as a sum of numbers up to `most`."""
    return [min(most, count - start) for start in range(0, count, most)]
