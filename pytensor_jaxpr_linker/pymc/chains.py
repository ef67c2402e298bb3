"""Runs the chains of a kernel that is a pair of JAX functions, a chunk of transitions at a time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pytensor_jaxpr_linker.pymc.progress import progress

#: Transitions in one call of the compiled program, so between updates of the progress bar.
CHUNK = 25
#: How many chunks a chain may be ahead of the slowest one.
AHEAD = 8


class Kernel(NamedTuple):
    """A Markov chain that adapts itself.

    Attributes
    ----------
    start
        Maps data, a key and a position to the state of a chain.
    transition
        Maps data and a state to the new state, and the position and statistics of this draw.
    tune
        How many of the first transitions adapt the chain, so are not kept.
    """

    start: Callable[[Any, Any, Any], Any]
    transition: Callable[[Any, Any], tuple[Any, tuple[dict, dict]]]
    tune: int


class Draws(NamedTuple):
    """Positions and statistics after warm-up, with axes of chains and draws in front."""

    positions: dict[str, np.ndarray]
    stats: dict[str, np.ndarray]


def usable_cores() -> int:
    """Return on how many cores this process may run: in a container or under ``taskset``, fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_chains(
    kernel: Kernel,
    data: Mapping[str, Any],
    positions: dict[str, np.ndarray],
    seed: int,
    draws: int,
    method: str,
    progressbar: bool,
) -> Draws:
    """Run the chains and return what they drew after warm-up; less of it if interrupted.

    What is kept is written where it stays, so memory is bounded by the draws and one chunk.

    Parameters
    ----------
    kernel, data
        What to run, and the shared data that it is given.
    positions
        Where chains start, with an axis of chains in front.
    seed, draws
        Seed of all chains; how many draws of each are kept.
    method : {"parallel", "vectorized", "sequential"}
        At the same time, in threads or divided among JAX's devices; as one program over all chains; one after the other.
    progressbar
        Whether to draw one.
    """
    chains, total = len(next(iter(positions.values()))), kernel.tune + draws
    kept: Any = None
    done = diverged = 0
    with jax.enable_x64(True), progress(progressbar, total) as update:
        keys = jax.random.split(jax.random.key(seed), chains)
        try:
            for chunk in runner(kernel, data, positions, keys, method, -(-total // CHUNK)):
                first, end = max(0, kernel.tune - done), min(CHUNK, total - done)
                if first < end:
                    kept = kept or jax.tree.map(partial(room, draws), chunk)
                    at = done - kernel.tune
                    jax.tree.map(partial(store, first=first, end=end, at=at), kept, chunk)
                    diverged += int(chunk[1]["diverging"][:, first:end].sum())
                done += end
                step_size = chunk[1]["step_size"][:, -1].mean()
                text = f"of {chains} chains, {diverged} diverged, step size {step_size:.2g}"
                update(done, "sampling" if done > kernel.tune else "warm-up", text)
        except KeyboardInterrupt:
            if done <= kernel.tune:
                raise
    return Draws(*jax.tree.map(lambda x: x[:, : done - kernel.tune], kept))


def room(draws: int, chunk: np.ndarray) -> np.ndarray:
    """Return an array for all draws of which a chunk has some."""
    return np.empty((len(chunk), draws, *chunk.shape[2:]), chunk.dtype)


def store(kept: np.ndarray, chunk: np.ndarray, first: int, end: int, at: int) -> None:
    """Write a chunk's draws from `first` to `end` to where they belong if its own first belongs to `at`."""
    kept[:, at + first : at + end] = chunk[:, first:end]


def runner(
    kernel: Kernel, data: Any, positions: dict[str, np.ndarray], keys: Any, method: str, count: int
) -> Iterator[tuple[dict, dict]]:
    """Compile, and return an iterator over the outputs of one chunk of transitions after the other."""

    def advance(data: Any, state: Any) -> tuple[Any, tuple[dict, dict]]:
        return jax.lax.scan(lambda s, _: kernel.transition(data, s), state, length=CHUNK)

    devices = jax.devices() if method == "parallel" else jax.devices()[:1]
    if method == "vectorized" or len(devices) > 1:
        return in_one_program(kernel.start, advance, data, positions, keys, devices, count)
    workers = 1 if method == "sequential" else usable_cores()
    return in_threads(kernel.start, advance, data, positions, keys, workers, count)


def in_one_program(
    start: Callable, advance: Callable, data: Any, positions: dict, keys: Any, devices: list, count: int
) -> Iterator[tuple[dict, dict]]:
    """Run one program over all chains; of several devices each has an equal part of them.

    ``shard_map`` leaves each device its own loops: where XLA's partitioner divides the batch, every step of a trajectory waits
    for the slowest chain on any device.
    """
    chains = len(keys)
    part = -(-chains // len(devices))
    used = devices[: -(-chains // part)]
    # Equal parts: the last device may run chains of the first once more, which nobody reads.
    index = np.arange(part * len(used)) % chains
    mesh = Mesh(np.array(used), ("chain",))
    each, same = PartitionSpec("chain"), PartitionSpec()

    def one(function: Callable) -> Callable:
        """Map a function over an axis of length 1: under `vmap` each choice of the sampler would compute both of its branches."""

        def call(data: Any, *args: Any) -> Any:
            return jax.tree.map(
                lambda x: jax.numpy.expand_dims(x, 0), function(data, *jax.tree.map(lambda x: x[0], args))
            )

        return call

    def divide(function: Callable, arguments: int) -> Any:
        batched = one(function) if part == 1 else jax.vmap(function, in_axes=(None, *(0,) * arguments))
        if len(used) == 1:
            return jax.jit(batched)
        specs = (same, *(each,) * arguments)
        return jax.jit(jax.shard_map(batched, mesh=mesh, in_specs=specs, out_specs=each, check_vma=False))

    given = jax.device_put(dict(data), NamedSharding(mesh, same))
    points = jax.device_put({name: x[index] for name, x in positions.items()}, NamedSharding(mesh, each))
    states = divide(start, 2)(given, jax.device_put(keys[index], NamedSharding(mesh, each)), points)
    program = divide(advance, 1).lower(given, states).compile()
    for _ in range(count):
        states, outputs = program(given, states)
        yield jax.tree.map(lambda x: np.asarray(x)[:chains], outputs)


def in_threads(
    start: Callable, advance: Callable, data: Any, positions: dict, keys: Any, workers: int, count: int
) -> Iterator[tuple[dict, dict]]:
    """Run a program for each chain, in threads: XLA lets go of Python's lock while it computes."""
    given = jax.device_put(dict(data))
    points = [{name: x[i] for name, x in positions.items()} for i in range(len(keys))]
    begin = jax.jit(start)
    states = [begin(given, key, point) for key, point in zip(keys, points, strict=True)]
    # Compiled before the threads start, which would compile it once each.
    program = jax.jit(advance).lower(given, states[0]).compile()

    def run(state: Any) -> tuple[Any, tuple[dict, dict]]:
        with jax.enable_x64(True):  # this setting belongs to a thread
            state, outputs = program(given, state)
            return state, jax.tree.map(np.asarray, outputs)

    with ThreadPoolExecutor(workers) as pool:
        yield from side_by_side(pool, run, states, count)


def side_by_side(
    pool: Executor, run: Callable[[Any], tuple[Any, Any]], states: list[Any], count: int
) -> Iterator[tuple[dict, dict]]:
    """Run `count` chunks of each chain and return an iterator over their outputs, those of all chains together.

    A chain does not wait for the others, whose trajectories may be longer, until it is `AHEAD` chunks ahead of the slowest.
    """
    states, begun = list(states), [0] * len(states)
    finished: list[deque] = [deque() for _ in states]
    running: dict[Future, int] = {}

    def go_on(i: int) -> None:
        if begun[i] < count and len(finished[i]) < AHEAD:
            running[pool.submit(run, states[i])] = i
            begun[i] += 1

    try:
        for _ in range(count):
            for i in set(range(len(states))) - set(running.values()):
                go_on(i)
            while not all(finished):
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    i = running.pop(future)
                    states[i], outputs = future.result()
                    finished[i].append(outputs)
                    go_on(i)
            yield jax.tree.map(lambda *parts: np.stack(parts), *[outputs.popleft() for outputs in finished])
    finally:
        # After Ctrl-C the pool waits for the chunks that run, not for those that wait for a thread.
        for future in running:
            future.cancel()
