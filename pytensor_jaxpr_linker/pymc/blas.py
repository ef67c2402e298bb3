"""Shares of BLAS's threads for chains that run at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from threadpoolctl import ThreadpoolController

from pytensor_jaxpr_linker.base.contexts import bound
from pytensor_jaxpr_linker.base.interpreter import usable_cores


@contextmanager
def blas_threads(chains: int) -> Iterator[None]:
    """Enter a context in which BLAS divides the cores among chains that run at the same time, and keeps a limit that
    the user has set.

    `pymc.sample` does so, too. Else LAPACK, which XLA calls on the CPU, starts as many threads for each chain as there
    are cores, and they wait for each other: four chains of a Gaussian process took 3 to 12 times as long, more than one
    after the other.

    Libraries that are loaded later have no limit until `limit_loaded_blas` is called.
    """
    limited = Limited(chains)
    try:
        with bound(_limited, limited):
            limit_loaded_blas()
            yield
    finally:
        for before in reversed(limited.before):
            before.restore_original_limits()


@dataclass
class Limited:
    """How many chains share the cores, and what restores the limits before."""

    chains: int
    before: list[Any] = field(default_factory=list)


_limited: ContextVar[Limited | None] = ContextVar("limited_blas", default=None)


def limit_loaded_blas() -> None:
    """Limit the libraries that are loaded now, inside of `blas_threads`: JAX loads LAPACK when it compiles a call."""
    if (limited := _limited.get()) is not None:
        controller = ThreadpoolController()
        outside = [library["num_threads"] for library in controller.info() if library["user_api"] == "blas"]
        limited.before.append(controller.limit(limits=None))  # sets nothing
        controller.limit(limits=max(1, min([usable_cores() // limited.chains, *outside])), user_api="blas")
