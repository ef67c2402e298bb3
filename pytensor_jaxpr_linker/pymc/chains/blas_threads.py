"""How many threads of BLAS each of several chains has."""

from __future__ import annotations

from threadpoolctl import threadpool_info, threadpool_limits

from pytensor_jaxpr_linker.base.platforms import usable_cores


def blas_threads(chains: int) -> threadpool_limits:
    """Return a context in which BLAS divides the cores among chains that run at the same time, and keeps a limit that the user has set.

    `pymc.sample` does so, too. Else LAPACK, which XLA calls on the CPU, starts as many threads for each chain as there are cores, and they
    wait for each other: four chains of a Gaussian process took 3 to 12 times as long, more than one after the other.
    """
    outside = [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]
    return threadpool_limits(limits=max(1, min([usable_cores() // chains, *outside])), user_api="blas")
