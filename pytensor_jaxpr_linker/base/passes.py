"""Lists of passes, and records of what each pass did.

A pass takes a graph or the equations of a Jaxpr, and returns others that compute the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

from pytensor_jaxpr_linker.base.contexts import bound


class Pass(NamedTuple):
    """One step of a list of passes.

    ``run(value, *given)`` returns the new value, or the same object if nothing changes. It changes nothing in place.
    """

    name: str
    run: Callable[..., Any]


class PassRecord(NamedTuple):
    """What one pass did."""

    name: str
    before: int  #: the number of nodes or equations
    after: int
    changed: bool
    seconds: float
    show: Callable[[], str]  #: returns the graph or Jaxpr after the pass as text

    def __repr__(self) -> str:
        what = f"{self.before} -> {self.after}" if self.changed else "unchanged"
        return f"<{self.name}: {what}, {1e3 * self.seconds:.3g} ms>"


#: The records of each list of passes that ran, or None if nobody asks for them.
RUNS: ContextVar[list[list[PassRecord]] | None] = ContextVar("runs", default=None)


@contextmanager
def record_passes() -> Iterator[list[list[PassRecord]]]:
    """Record the passes that run inside: one list for each call of `run_passes`, appended when that call ends.

    Inner graphs and inner Jaxprs are finished first, so the last list is that of the outermost one.
    """
    runs: list[list[PassRecord]] = []
    with bound(RUNS, runs):
        yield runs


def run_passes[T](
    passes: Sequence[Pass], value: T, *given: Any, size: Callable[[T], int], show: Callable[[T], str]
) -> T:
    """Run passes on a graph or Jaxpr, each with the arguments `given`.

    `size` and `show` return the number of nodes or equations of a value, and its text. Only records call them.
    """
    runs = RUNS.get()
    if runs is None:
        for step in passes:
            value = step.run(value, *given)
        return value
    records = []
    for step in passes:
        started = perf_counter()
        result = step.run(value, *given)
        seconds = perf_counter() - started
        records.append(
            PassRecord(step.name, size(value), size(result), result is not value, seconds, partial(show, result))
        )
        value = result
    runs.append(records)
    return value
