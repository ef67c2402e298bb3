"""Lists of passes from a graph, or a Jaxpr's equations, to others that compute the same, and records of the passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

from pytensor_jaxpr_linker.base.contexts import bound

#: Whether a pass may run: ``condition(given)``.
type When = Callable[..., bool]


class Pass(NamedTuple):
    """One step of a list of passes: a pattern, the conditions under which it is replaced, and how.

    ``run(value, given)`` returns the new value, or the same object if nothing changes. It changes nothing in place.
    """

    name: str
    run: Callable[..., Any]
    #: Whether a part (a node, an equation) may be where a pattern begins: ``of(part, given)``. Without such a part the
    #: pass does not run, and nobody asks for the conditions: to find out the platform starts JAX.
    of: Callable[..., bool] | None = None
    when: Sequence[When] = ()  #: all have to hold

    def applies(self, parts: Iterable[Any], given: Any) -> bool:
        """Return whether the pass runs on these parts."""
        is_found = self.of is None or any(self.of(part, given) for part in parts)
        return is_found and all(condition(given) for condition in self.when)


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

    Inner graphs and inner Jaxprs are finished first, so the last list belongs to the outermost one.
    """
    runs: list[list[PassRecord]] = []
    with bound(RUNS, runs):
        yield runs


def run_passes[T](
    passes: Sequence[Pass], value: T, given: Any, *, parts: Callable[[T], Sequence[Any]], show: Callable[[T], str]
) -> T:
    """Run the passes that apply on a graph or Jaxpr, each with the object `given`.

    `parts` returns the nodes or equations of a value, and `show` its text, for which only records ask.
    """
    runs = RUNS.get()
    records = []
    for step in passes:
        started = perf_counter()
        result = step.run(value, given) if step.applies(parts(value), given) else value
        if runs is not None:
            before, after, seconds = len(parts(value)), len(parts(result)), perf_counter() - started
            records.append(PassRecord(step.name, before, after, result is not value, seconds, partial(show, result)))
        value = result
    if runs is not None:
        runs.append(records)
    return value
