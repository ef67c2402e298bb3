"""Lists of passes, and records of what each pass did.

A pass takes a graph, or a Jaxpr, and returns another one that computes the same. Both kinds of passes run here, so that
`explain` and `stages` can show what each one did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple


class Pass(NamedTuple):
    """One step of a list of passes.

    Attributes
    ----------
    name
        What reports call it.
    run
        Takes the value, and what else `run_passes` was given; returns the new value, or the same object if nothing changes.
        It changes nothing in place.
    """

    name: str
    run: Callable[..., Any]


class PassRecord(NamedTuple):
    """What one pass did.

    Attributes
    ----------
    name
        That of the pass.
    before, after
        How many nodes or equations there were, and are.
    changed
        Whether the pass returned another value than it was given.
    seconds
        How long it took.
    show
        Returns the graph or Jaxpr after the pass as text.
    """

    name: str
    before: int
    after: int
    changed: bool
    seconds: float
    show: Callable[[], str]

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
    token = RUNS.set(runs)
    try:
        yield runs
    finally:
        RUNS.reset(token)


def run_passes[T](
    passes: Sequence[Pass], value: T, *given: Any, size: Callable[[T], int], show: Callable[[T], str]
) -> T:
    """Return what a list of passes makes of a value.

    Parameters
    ----------
    passes
        The passes, in order.
    value
        A graph or a Jaxpr.
    *given
        What each pass takes after the value.
    size, show
        Give the number of nodes or equations, and the text, of such a value. They are called for records only.
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
