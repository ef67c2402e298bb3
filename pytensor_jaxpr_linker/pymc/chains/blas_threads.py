"""How many threads of BLAS each of several chains has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import ThreadpoolController

from pytensor_jaxpr_linker.base.interpreter import usable_cores


@contextmanager
def blas_threads(chains: int) -> Iterator[None]:
    """Enter a context in which BLAS divides the cores among chains that run at the same time, and keeps a limit that the user has set.

    `pymc.sample` does so, too. Else LAPACK, which XLA calls on the CPU, starts as many threads for each chain as there are cores, and they
    wait for each other: four chains of a Gaussian process took 3 to 12 times as long, more than one after the other.
    """
    controller = ThreadpoolController()
    outside = [library["num_threads"] for library in controller.info() if library["user_api"] == "blas"]
    before = controller.limit(limits=None)  # sets nothing
    try:
        controller.limit(limits=max(1, min([usable_cores() // chains, *outside])), user_api="blas")
        yield
    finally:
        before.restore_original_limits()
