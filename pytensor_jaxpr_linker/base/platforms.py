"""The platforms that programs are planned and lowered for, where that is said: else it is the one that they run on. How many cores this process has."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from pytensor_jaxpr_linker.base.contexts import bound

_given: ContextVar[tuple[str, ...]] = ContextVar("platforms", default=())

#: The names of platforms that are GPUs; JAX's rules for both are those of "gpu".
GPUS = ("cuda", "rocm")


@contextmanager
def for_platforms(platforms: Sequence[str]) -> Iterator[None]:
    """Plan and lower for these platforms, whatever devices this machine has."""
    with bound(_given, tuple(platforms)):
        yield


def given_platforms() -> tuple[str, ...]:
    """Return the platforms of `for_platforms`, or none."""
    return _given.get()


def kind_of(platform: str) -> str:
    """Return "gpu" for each GPU, and other platforms as they are."""
    return "gpu" if platform in GPUS else platform


def usable_cores() -> int:
    """Return on how many cores this process may run: in a container or under ``taskset``, fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
