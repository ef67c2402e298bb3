"""Measuring: where the time before the first result goes, how long a later call takes, how many equations there are."""

import os
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import wraps
from time import perf_counter, perf_counter_ns
from typing import Any

STAGES = ("rewrite", "analyze", "build", "trace", "lower", "xla")
JAX_EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "xla",
}
WRAPPERS = frozenset(
    {
        "jit",
        "pjit",
        "closed_call",
        "core_call",
        "custom_vjp_call",
        "eval_jaxpr",
        "remat",
        "checkpoint",
    }
)
SCALAR_BODIES = frozenset({"update_jaxpr"})


class Clock:
    """Records when each stage ran, while the user's own two lines (compile, call) run.

    Nothing is taken apart for the measurement: functions of PyTensor are wrapped, and JAX reports its stages by itself.
    A moment counts for one stage only, the first in `STAGES` that was running.
    """

    def __init__(self):
        self.spans: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def listen_to_jax(self) -> None:
        """Record tracing, lowering and XLA's compile times from JAX's monitoring events."""
        from jax import monitoring

        def record(event: str, duration: float, **_) -> None:
            if event in JAX_EVENTS:
                end = perf_counter()
                self.spans[JAX_EVENTS[event]].append((end - duration, end))

        monitoring.register_event_duration_secs_listener(record)

    def timed(self, stage: str, fn: Callable) -> Callable:
        """Return `fn`, recorded as `stage` whenever it runs."""

        @wraps(fn)
        def wrapped(*args, **kwargs):
            start = perf_counter()
            try:
                return fn(*args, **kwargs)
            finally:
                self.spans[stage].append((start, perf_counter()))

        return wrapped

    def watch(self, stage: str, owner: Any, name: str) -> None:
        """Replace the function or method `owner.name` by a recorded one."""
        original = vars(owner)[name]
        if isinstance(original, staticmethod):
            setattr(owner, name, staticmethod(self.timed(stage, original.__func__)))
        else:
            setattr(owner, name, self.timed(stage, original))

    def seconds(self) -> dict[str, float]:
        """Give each stage's own time, without that of the stages before it in `STAGES`."""
        result, seen, total = {}, [], 0.0
        for stage in STAGES:
            seen += self.spans[stage]
            covered = union_length(seen)
            result[stage], total = covered - total, covered
        return result


def union_length(spans: list[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def least_us(calls: dict[Any, Callable[[], Any]], seconds: float = 1.0, least: int = 20) -> dict[Any, float]:
    """Least time of each of several calls in µs: they take turns, so that what else the machine does touches all alike.

    Parameters
    ----------
    calls
        What to time, without arguments.
    seconds
        For how long to repeat each of them.
    least
        The least number of turns.
    """
    best = dict.fromkeys(calls, float("inf"))
    for key, _, time in take_turns(calls, seconds, least):
        best[key] = min(best[key], time)
    return {key: time / 1000 for key, time in best.items()}


def median_of_turns_us(
    calls: dict[Any, Callable[[], Any]], seconds: float = 1.0, least: int = 20, settle: float = 0.0
) -> dict[Any, float]:
    """Median time of each of several calls in µs, with the parameters of `least_us`.

    The first call of a turn does not count, nor do those of its first `settle` seconds; a turn goes on for three times as long.
    """
    times: dict[Any, list[int]] = {key: [] for key in calls}
    for key, counts, time in take_turns(calls, seconds, least, settle):
        if counts:
            times[key].append(time)
    return {key: statistics.median(found) / 1000 for key, found in times.items()}


#: Of turns of calls of µs, the first millisecond does not count. After a call of mode JAX it takes five calls until a processor predicts the branches of another side again.
SETTLE_SECONDS_OF_SMALL = 0.001


def take_turns(
    calls: dict[Any, Callable[[], Any]], seconds: float, least: int, settle: float = 0.0
) -> Iterator[tuple[Any, bool, int]]:
    """Give key and ns of each call, in turns of at least three calls, and whether it counts: the first one brings its data back into the caches.

    The order of the turns changes: after a call that leaves threads running, as those of mode JAX and of OpenBLAS, the next one takes longer.
    """
    until, turns, order, chance = perf_counter() + seconds * len(calls), 0, list(calls), random.Random(0)
    while turns < least or perf_counter() < until:
        turns += 1
        chance.shuffle(order)
        for key in order:
            place, began = 0, perf_counter()
            while place < 3 or perf_counter() - began < 3 * settle:
                counts = place > 0 and perf_counter() - began >= settle
                start = perf_counter_ns()
                calls[key]()
                yield key, counts, perf_counter_ns() - start
                place += 1


def pin_to_one_core() -> bool:
    """Pin this process to one core; to be called before JAX starts its threads."""
    if not hasattr(os, "sched_setaffinity"):
        return False
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    return True


def inner_jaxprs(eqn) -> Iterator[Any]:
    """Give the Jaxprs among an equation's params, without those that only combine two scalars."""
    for name, param in eqn.params.items():
        for item in param if isinstance(param, tuple | list) else (param,):
            jaxpr = getattr(item, "jaxpr", item)
            if name not in SCALAR_BODIES and hasattr(jaxpr, "eqns"):
                yield jaxpr


def count_equations(jaxpr) -> tuple[int, int]:
    """Count equations, those of inner Jaxprs too, and apart from them those in the bodies of functions that have a derivative.

    Such a function (`custom_jvp_call`) counts as one, as a primitive does that stands for it elsewhere: JAX has some special functions
    as primitives, whose formulas are in XLA. What only wraps an inner Jaxpr does not count itself.
    """
    own = inside = 0
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        found = [count_equations(inner) for inner in inner_jaxprs(eqn)]
        mine, deeper = (sum(counts) for counts in zip(*found, strict=True)) if found else (0, 0)
        if eqn.primitive.name == "custom_jvp_call":
            own, inside = own + 1, inside + mine + deeper
        else:
            own, inside = own + mine + (eqn.primitive.name not in WRAPPERS), inside + deeper
    return own, inside
