"""Records the operations that XLA runs, with JAX's profiler."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np


class Event(NamedTuple):
    """One run of an operation, in seconds."""

    operation: str
    start: float
    end: float


class ProgramRun(NamedTuple):
    """One run of a program: how many seconds it took, and its events."""

    seconds: float
    events: list[Event]

    def between(self, ignored: Collection[str]) -> float:
        """Return the seconds in which no operation ran, but for the `ignored`."""
        return max(
            0.0, self.seconds - union_length([(e.start, e.end) for e in self.events if e.operation not in ignored])
        )


def record(run: Callable[[], Any], count: int, module: str) -> list[ProgramRun]:
    """Run a program under JAX's profiler. The first run, in which the profiler takes its memory, is left out.

    Parameters
    ----------
    run
        Runs the program, and waits for its end.
    count
        How often.
    module
        The name of its HLO module: other threads may run other programs.
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
