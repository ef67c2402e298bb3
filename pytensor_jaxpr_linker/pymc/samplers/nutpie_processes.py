"""Runs nutpie's chains in processes, each with a Python of its own.

In threads the gradients of chains wait for each other: Python runs one thread at a time, and all of a step on the host runs in Python.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from time import perf_counter
from typing import Any

import cloudpickle
import jax
import numpy as np
from pytensor import config

from pytensor_jaxpr_linker.base.errors import warn_user
from pytensor_jaxpr_linker.base.interpreter import usable_cores
from pytensor_jaxpr_linker.base.options import options, resolve
from pytensor_jaxpr_linker.frontend.kept_graphs import cache
from pytensor_jaxpr_linker.graph.rewritten.store import STORE
from pytensor_jaxpr_linker.pymc.chains.blas_threads import blas_threads
from pytensor_jaxpr_linker.pymc.chains.chains import ChainDraws
from pytensor_jaxpr_linker.pymc.kept_models import KEPT_MODELS
from pytensor_jaxpr_linker.pymc.progress import progress
from pytensor_jaxpr_linker.pymc.request import Request
from pytensor_jaxpr_linker.pymc.samplers.nutpie import most_draws, sample_nutpie
from pytensor_jaxpr_linker.pymc.samplers.processes import BASE, Process


def sample_nutpie_in_processes(request: Request) -> ChainDraws:
    """Divide the chains among processes, as many as `cores`; after an interrupt, return as many of their draws as have one length.

    A process compiles the model by itself, or finds it in the folder of `cache`, and runs its chains one after the other.

    Raises
    ------
    RuntimeError
        If a process ends by itself, for want of memory say.
    """
    began, count = perf_counter(), min(request.chains, request.cores or usable_cores())
    folder = str(jax.config.jax_compilation_cache_dir) if STORE.has_folder else None
    payload = cloudpickle.dumps((request, count, folder, resolve().named(), {"floatX": config.floatX}))
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
            f"A process of nutpie's chains ended with exit code {process.exitcode}, for want of memory perhaps: use fewer cores, or"
            " chain_method='sequential'."
        )


def of_all_chains(found: list[ChainDraws], chains: int) -> ChainDraws:
    """Return the draws of chains that ran by themselves, of which some may be missing or shorter."""
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
        if folder is not None:
            cache(folder)
        for number in numbers:
            sender.send_bytes(cloudpickle.dumps((number, None, ())))  # which begins
            alone: dict[str, Any] = {"chains": 1, "seeds": [request.seeds[number]], "chain_method": "sequential"}
            one = replace(request, cores=None, progressbar=False, **alone)
            with (
                options(**named),
                config.change_flags(**flags),
                blas_threads(processes),
                warnings.catch_warnings(record=True) as told,  # which the user's process shows
            ):
                result = sample_nutpie(one, KEPT_MODELS.find(one.model, one.gradient))
            warned = {(str(w.message), w.category) for w in told}
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
    """Raise KeyboardInterrupt, and ignore what comes after: the terminal and the user's process may both send it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt
