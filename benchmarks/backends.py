"""The four sides of the comparison, and all that the benchmark knows about each one's insides.

A backend is prepared once a process (imports, recorded stages), and then makes from a `Problem` a `Compiled`.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from clock import Clock

BACKENDS = ("jaxpr", "jax", "numba", "hand")
TITLES = {"jaxpr": "mode JAXPR", "jax": "mode JAX", "numba": "mode NUMBA", "hand": "hand-written JAX"}
MODES = {"jaxpr": "JAXPR", "jax": "JAX", "numba": "NUMBA"}
TOLERANCE = 1e-6

# Which of the package's functions make which stage; every reference to one inside the package is replaced by a recorded one.
JAXPR_STAGES = {
    "analyze": ("pytensor_jaxpr_linker.graph.facts:analyze", "pytensor_jaxpr_linker.plan.partition:partition"),
    "build": ("pytensor_jaxpr_linker.jaxpr.lower:lower_region",),
}


@dataclass(frozen=True)
class Compiled:
    """A function as a backend made it.

    Attributes
    ----------
    call
        What the user calls, with NumPy arrays.
    part
        The compiled part alone, a function of `part_args`.
    part_args
        Device arrays, or NumPy arrays for NUMBA; the values of shared variables follow the inputs.
    """

    call: Callable
    part: Callable
    part_args: Sequence[Any]


def prepare(backend: str, clock: Clock) -> None:
    """Import what `backend` needs, start its device, and have its stages recorded by `clock`."""
    from pytensor.compile.maker import FunctionMaker

    clock.watch("rewrite", FunctionMaker, "prepare_fgraph")
    if backend == "numba":
        from pytensor.link.numba.linker import NumbaLinker

        import_module("pytensor.link.numba.dispatch")
        clock.watch("build", NumbaLinker, "fgraph_convert")
        return
    import jax

    jax.jit(jax.lax.neg)(np.ones(1, "float32"))
    # Modules that PyTensor's rewrites import when they are first needed (much of SciPy) are imports for every backend.
    import_module("pytensor.link.jax.dispatch")
    clock.listen_to_jax()
    if backend == "hand":
        jax.config.update("jax_enable_x64", True)
    elif backend == "jax":
        from pytensor.link.jax.linker import JAXLinker

        clock.watch("build", JAXLinker, "fgraph_convert")
    else:
        jaxpr_stages(clock)


def jaxpr_stages(clock: Clock) -> None:
    """Have the stages of mode JAXPR recorded: wrap the functions of `JAXPR_STAGES` wherever the package refers to them."""
    package = import_module("pytensor_jaxpr_linker")
    import_module("pytensor_jaxpr_linker.emit")
    import_module("pytensor_jaxpr_linker.jaxpr.lower")
    for stage, paths in JAXPR_STAGES.items():
        for path in paths:
            module, name = path.split(":")
            original = getattr(import_module(module), name)
            for other in [m for m in sys.modules.values() if m.__name__.startswith(package.__name__)]:
                if vars(other).get(name) is original:
                    clock.watch(stage, other, name)


def as_compile(backend: str, problem) -> Callable:
    """Compile `problem`: what a user writes, nothing more."""
    if backend == "hand":
        import jax

        return jax.jit(lambda *args: problem.hand(*args))  # a new function each time, for JAX remembers those it knows
    return problem.compile(MODES[backend])


def take_apart(backend: str, fn: Callable, values: Sequence[np.ndarray]) -> Compiled:
    """Find the compiled part of a function that `as_compile` made."""
    if backend == "hand":
        return Compiled(fn, fn, on_device(values))
    shared = [container.storage[0] for container in fn.input_storage[len(values) :]]
    args = [*values, *shared]
    if backend == "numba":
        return Compiled(fn, fn.vm.jit_fn, args)
    import jax

    # The program and JAX's dispatch alone, as in mode JAX, without the Python function around it.
    part = jax.jit(fn.vm.jit_fn) if backend == "jaxpr" else fn.vm.jit_fn
    return Compiled(fn, part, on_device(args))


def on_device(values: Sequence[Any]) -> list[Any]:
    """Put NumPy arrays on JAX's default device, in their own dtypes."""
    import jax

    with jax.enable_x64(True):
        return [jax.device_put(v) for v in values]


def scope(backend: str) -> AbstractContextManager:
    """Give the context in which the compiled part of `backend` must be called directly."""
    if backend != "jaxpr":
        return nullcontext()
    import jax

    return jax.enable_x64(True)


def waiter(backend: str) -> Callable:
    """Give the function that waits until the results of the compiled part are there."""
    if backend == "numba":
        return lambda results: results

    def wait(results):
        for result in results:
            result.block_until_ready()

    return wait


def check(results: Sequence[np.ndarray], file: str | Path) -> float:
    """Return the largest deviation from results in a file, relative to the largest number of each output.

    Raises
    ------
    AssertionError
        If an output has another shape or dtype, or deviates by more than `TOLERANCE`.
    """
    worst = 0.0
    with np.load(file) as saved:
        for got, want in zip(results, saved.values(), strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype), (got.shape, got.dtype, want.shape, want.dtype)
            worst = max(worst, float(np.max(np.abs(got - want)) / np.max(np.abs(want))))
    assert worst <= TOLERANCE, f"outputs deviate by {worst:.1e}"
    return worst


def as_numpy(results) -> list[np.ndarray]:
    """Results as NumPy arrays, without a copy where there need not be one."""
    return [np.asarray(r) for r in results]
