"""Records how long JAX takes for each stage of a compilation. JAX reports that, so calls take no longer."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import jax

#: What JAX calls the stages that follow the building of a Jaxpr, and what we call them.
STAGES = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "stablehlo",
    "/jax/core/compile/backend_compile_duration": "xla",
}


class Traced(threading.local):
    """The program that this thread traced last, and where the duration of its stages goes."""

    names: tuple[str, ...] = ()
    seconds: dict[str, float]
    within: float


_traced = Traced()


@cache
def listen() -> None:
    """Have JAX report durations, once in a process."""
    jax.monitoring.register_event_duration_secs_listener(note_duration)


def record_stages_of(name: str, seconds: dict[str, float], within: float) -> None:
    """Write the durations of the next stages of a program to `seconds`; `within` is subtracted from that of the trace."""
    listen()
    _traced.names, _traced.seconds, _traced.within = (name, f"jit({name})"), seconds, within


def note_duration(event: str, duration_secs: float, **details: Any) -> None:
    """Take a duration that JAX reports, if it is one of the program that this thread traced last."""
    stage = STAGES.get(event)
    if stage is not None and details.get("fun_name") in _traced.names:
        _traced.seconds.setdefault(stage, duration_secs - _traced.within if stage == "trace" else duration_secs)
