"""NUTS of nutpie, by its public `from_pyfunc`: in threads, or in processes that have a Python each.

In threads of nutpie's the gradients of chains wait for each other: Python runs one thread at a time, and all of a step
on the host runs in Python.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import timeit
import warnings
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from time import perf_counter
from typing import Any

import cloudpickle
import jax
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor import config

from pytensor_jaxpr_linker.base.errors import GraphBreakError, warn_user
from pytensor_jaxpr_linker.base.interpreter import usable_cores
from pytensor_jaxpr_linker.base.options import options, resolve
from pytensor_jaxpr_linker.frontend.pregrad import value_and_gradient
from pytensor_jaxpr_linker.graph.rewritten.store import STORE
from pytensor_jaxpr_linker.pymc.arguments import seed_of
from pytensor_jaxpr_linker.pymc.blas import blas_threads
from pytensor_jaxpr_linker.pymc.chains.chains import ChainDraws, shapes_of
from pytensor_jaxpr_linker.pymc.chains.kept_draws import Draws, thinned
from pytensor_jaxpr_linker.pymc.functions.density import Layout
from pytensor_jaxpr_linker.pymc.functions.graph import model_mode
from pytensor_jaxpr_linker.pymc.functions.initial import Start, check_starts, point_functions, shapes_of_points
from pytensor_jaxpr_linker.pymc.kept_models import KEPT_MODELS, KeptModel
from pytensor_jaxpr_linker.pymc.progress import progress
from pytensor_jaxpr_linker.pymc.request import Request
from pytensor_jaxpr_linker.pymc.samplers.jax_kernels import VectorDensity
from pytensor_jaxpr_linker.pymc.samplers.nutpie_options import as_model
from pytensor_jaxpr_linker.pymc.samplers.processes import BASE, Process

#: PyMC's names of nutpie's statistics.
STATS = {
    "mean_tree_accept": "acceptance_rate",
    "diverging": "diverging",
    "energy": "energy",
    "energy_error": "energy_error",
    "index_in_trajectory": "index_in_trajectory",
    "logp": "lp",
    "n_steps": "n_steps",
    "step_size": "step_size",
    "step_size_bar": "step_size_bar",
    "depth": "tree_depth",
    "maxdepth_reached": "reached_max_treedepth",
}
#: Chains whose log density takes less than this many seconds a call run one after the other: in threads they would
#: mostly wait for Python's lock, and took two to three times as long.
SHORT_CALL = 40e-6


def compiled_density(kept: KeptModel) -> tuple[Callable[[np.ndarray], tuple[float, np.ndarray]], Layout]:
    """Return an XLA program, which is kept, from a flat vector to log density and gradient, and the vector's layout."""
    layout, given = Layout(shapes_of_points(kept.model)), kept.data

    def value_and_gradient(x: jax.Array, data: Any) -> jax.Array:
        # As one array: each further result takes as long as calling a small program.
        value, gradient = jax.value_and_grad(VectorDensity(kept.logp, layout))(x, data)
        return jax.numpy.append(gradient, value)

    def make() -> tuple[jax.stages.Compiled, None]:
        _ = kept.logp  # which finds graph breaks before JAX traces
        vector = jax.ShapeDtypeStruct((sum(layout.sizes),), np.dtype("float64"))
        return jax.jit(value_and_gradient).lower(vector, given).compile(), None

    with jax.enable_x64(True):
        key = "gradient", kept.lengths, shapes_of(given), tuple(layout.shapes.items())
        compiled, _ = kept.programs.by_way_of_folder(key, make)
        data = jax.device_put(given)

    def call(x: np.ndarray) -> tuple[float, np.ndarray]:
        with jax.enable_x64(True):  # this setting belongs to a thread
            result = np.asarray(compiled(x, data))
        return float(result[-1]), result[:-1]

    return call, layout


def density_with_host_steps(model: pm.Model) -> tuple[Callable[[np.ndarray], tuple[float, np.ndarray]], Layout]:
    """Return a function, perhaps with host steps, from a flat vector to log density and gradient, and the layout."""
    logp, gradients = value_and_gradient(model.logp(), model.value_vars)
    with model:
        f = pm.compile(model.value_vars, [logp, pt.concatenate([g.ravel() for g in gradients])], mode=model_mode(model))
    layout = Layout(shapes_of_points(model))
    dtypes = [v.type.dtype for v in model.value_vars]
    in_turn = threading.Lock()

    def call(x: np.ndarray) -> tuple[float, np.ndarray]:
        values = [v.astype(dtype) for v, dtype in zip(layout.unravel(x).values(), dtypes, strict=True)]
        with in_turn:
            value, gradient = f(*values)
        return float(value), np.asarray(gradient, "float64")

    return call, layout


def in_lasting_threads(density: Callable[[np.ndarray], tuple[float, np.ndarray]]) -> Callable:
    """Wrap `density` so that nutpie's threads keep their Python and JAX state between calls.

    Python drops the state of a thread that it did not start at the end of each call, and makes it anew at the next:
    that took longer than a small program. It keeps the state as long as one `PyGILState_Ensure` has no release.
    """
    of_thread = threading.local()

    def call(x: np.ndarray) -> tuple[float, np.ndarray]:
        if not hasattr(of_thread, "is_registered"):
            of_thread.is_registered = True
            ctypes.pythonapi.PyGILState_Ensure()
        return density(x)

    return call


def run_nutpie(
    request: Request,
    density: Callable[[np.ndarray], tuple[float, np.ndarray]],
    layout: Layout,
    start: Callable[[int], np.ndarray],
) -> ChainDraws:
    """Run the chains; after an interrupt, return as many of their draws as have one length.

    `start` maps the seed of a chain to its start. Without `cores`, nutpie has a default number of chains that run at a
    time, or one chain does if calls are short.
    """
    import nutpie

    size, seed, options = sum(layout.sizes), seed_of(request.seeds)[0], request.adaptation
    keep_warmup = not request.discard_tuned_samples
    point = start(seed)  # in the user's thread, which gets its errors
    cores = 1 if request.chain_method == "sequential" else request.cores
    if cores is None and min(timeit.repeat(lambda: density(point), number=1, repeat=5)) < SHORT_CALL:
        cores = 1
    began = perf_counter()
    trace = nutpie.sample(
        as_model(in_lasting_threads(density), size, start),
        draws=request.draws,
        chains=request.chains,
        seed=seed,
        cores=cores,
        maxdepth=options.pop("max_treedepth"),
        progress_bar=bool(request.progressbar),
        save_warmup=keep_warmup,
        **options,
    )
    seconds = perf_counter() - began
    # An interrupted run has chains of different lengths, and NaN where one ends earlier.
    lengths = np.isfinite(trace.posterior["position"].to_numpy()).all(axis=2).sum(axis=1)
    kept, length = most_draws(lengths)
    if length < request.thinning:
        raise KeyboardInterrupt
    draws = thinned(draws_of(trace.posterior, trace.sample_stats, kept, length, layout), request.thinning)
    warmup = None
    if keep_warmup:
        warmup = draws_of(trace.warmup_posterior, trace.warmup_sample_stats, kept, None, layout)
    return ChainDraws(draws, warmup, bool((lengths < request.draws).any()), seconds)


def draws_of(posterior: Any, stats: Any, chains: np.ndarray, length: int | None, layout: Layout) -> Draws:
    """Return the first draws of some chains of nutpie's, or all, with PyMC's names of statistics."""
    # `store_gradient` and the like add statistics with one more axis: the flat vector's.
    names = STATS | {str(name): str(name) for name, x in stats.data_vars.items() if x.ndim > 2}
    found = {new: stats[old].to_numpy()[chains][:, :length] for old, new in names.items()}
    return Draws(layout.unravel(posterior["position"].to_numpy()[chains][:, :length]), found)


def most_draws(lengths: np.ndarray) -> tuple[np.ndarray, int]:
    """Return which chains to keep, and how many draws of each, so that most draws are kept: `pymc.sample`'s rule.

    Examples
    --------
    >>> import numpy as np
    >>> from pytensor_jaxpr_linker.pymc.samplers.nutpie import most_draws
    >>> most_draws(np.array([1000, 900, 3, 0]))
    (array([0, 1]), 900)
    """
    order = np.argsort(-lengths, kind="stable")
    count = 1 + int(np.argmax(lengths[order] * np.arange(1, len(order) + 1)))
    kept = np.sort(order[:count])
    return kept, int(lengths[kept].min())


def sample_nutpie(request: Request, kept: KeptModel) -> ChainDraws:
    """Sample with nutpie, with host steps if the log density is not one program."""
    began = perf_counter()
    try:
        density, layout = compiled_density(kept)
    except GraphBreakError as error:  # whose reasons the warning of the function with host steps repeats
        if request.gradient == "jax":
            error.add_note(
                "With host steps the gradient is PyTensor's: leave out gradient='jax', and nutpie runs them."
            )
            raise
        density, layout = density_with_host_steps(request.model)
    draw = point_functions(request.model, 1, request.initvals, request.jitter)[0]
    in_turn, before = threading.Lock(), perf_counter() - began

    def ravel(point: dict) -> np.ndarray:
        return layout.ravel(point).astype("float64")

    def usable(value: Any, gradient: Any) -> float:
        return float(value) if np.all(np.isfinite(gradient)) else np.nan  # nutpie would panic

    def start(seed: int) -> np.ndarray:
        with in_turn:  # the function that draws is shared by the threads
            begun = Start(request.model, draw, seed, request.jitter)
            check_starts([begun], lambda points: [usable(*density(ravel(point))) for point in points])
            return ravel(begun.point)

    found = run_nutpie(request, density, layout, start)
    return found._replace(seconds_before=before)


def sample_nutpie_in_processes(request: Request) -> ChainDraws:
    """Divide the chains among processes, as many as `cores`; after an interrupt, return as many of their draws as have
    one length.

    A process compiles the model by itself, or finds it in the folder of `cache`, and runs its chains one after the
    other. If one ends by itself, for want of memory say, that is a RuntimeError.
    """
    began, count = perf_counter(), min(request.chains, request.cores or usable_cores())
    payload = cloudpickle.dumps((request, count, STORE.folder, resolve().named(), {"floatX": config.floatX}))
    found: dict[int, ChainDraws | None] = {}
    running: dict[Any, Process] = {}
    with progress(bool(request.progressbar), request.chains) as update:

        def collect(ended: Callable[[Process], None]) -> None:
            while running:
                for receiver in wait(list(running)):
                    try:
                        number, result, warned = cloudpickle.loads(receiver.recv_bytes())  # type: ignore[union-attr]
                    except EOFError:
                        ended(running.pop(receiver))
                        continue
                    if isinstance(result, Exception):
                        raise result
                    for message, category in warned if number == 0 else ():  # all chains have the same
                        warn_user(message, category)
                    found[number] = result
                    begun = sum(x is None for x in found.values())
                    update(len(found) - begun, "chains", f"done, {begun} running in {count} processes")

        try:
            for i in range(count):
                receiver, sender = BASE.Pipe(duplex=False)
                numbers = list(range(i, request.chains, count))
                running[receiver] = process = Process(target=run_chains, args=(sender, payload, numbers), daemon=True)
                process.start()
                sender.close()  # else there is no end of what the process sends
            try:
                collect(check_end)
            except KeyboardInterrupt:
                for process in running.values():
                    os.kill(process.pid, signal.SIGINT)
                collect(Process.join)
        finally:
            for process in running.values():
                process.terminate()
                process.join()
    done = {number: result for number, result in sorted(found.items()) if result is not None}
    if not done:
        raise KeyboardInterrupt
    seconds = max(sum(result.seconds for number, result in done.items() if number % count == i) for i in range(count))
    before = perf_counter() - began - seconds
    return of_all_chains(list(done.values()), request.chains)._replace(seconds=seconds, seconds_before=before)


def check_end(process: Process) -> None:
    """Raise an error if a process has ended before it had sent all."""
    process.join()
    if process.exitcode:
        raise RuntimeError(
            f"A process of nutpie's chains ended with exit code {process.exitcode}, for want of memory perhaps:"
            " use fewer cores, or chain_method='sequential'."
        )


def of_all_chains(found: list[ChainDraws], chains: int) -> ChainDraws:
    """Return the draws of chains that ran by themselves. Some chains may be missing, or shorter than others."""
    kept, length = most_draws(np.array([len(next(iter(c.draws.stats.values()))[0]) for c in found]))
    chosen = [found[i] for i in kept]
    draws = jax.tree.map(lambda *x: np.concatenate([y[:, :length] for y in x]), *[c.draws for c in chosen])
    warmup = None
    if chosen[0].warmup is not None:
        warmup = jax.tree.map(lambda *x: np.concatenate(x), *[c.warmup for c in chosen])
    return ChainDraws(draws, warmup, len(found) < chains or any(c.interrupted for c in found))


def run_chains(sender: Connection, payload: bytes, numbers: list[int]) -> None:
    """Run chains one after the other in this process, and send the draws of each, or the error."""
    signal.signal(signal.SIGINT, interrupt_once)
    try:
        request, processes, folder, named, flags = cloudpickle.loads(payload)
        STORE.use(folder)
        for number in numbers:
            sender.send_bytes(cloudpickle.dumps((number, None, ())))  # which begins
            alone: dict[str, Any] = {"chains": 1, "seeds": [request.seeds[number]], "chain_method": "sequential"}
            one = replace(request, cores=None, progressbar=False, **alone)
            with (
                options(**named),
                config.change_flags(**flags),
                blas_threads(processes),
                warnings.catch_warnings(record=True) as caught,  # which the user's process shows
            ):
                result = sample_nutpie(one, KEPT_MODELS.find(one.model, one.gradient))
            warned = {(str(w.message), w.category) for w in caught}
            sender.send_bytes(cloudpickle.dumps((number, result, warned)))
            if result.interrupted:
                break
    except KeyboardInterrupt:
        pass  # before there was a draw
    except Exception as error:
        sender.send_bytes(cloudpickle.dumps((0, sendable(error), ())))
    sender.close()


def sendable(error: Exception) -> Exception:
    """Return an error that another process can read: this one, or another of the same text."""
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def interrupt_once(*_: Any) -> None:
    """Raise KeyboardInterrupt, and ignore later signals: the terminal and the user's process may both send it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt
