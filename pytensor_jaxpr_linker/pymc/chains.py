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
TRANSITIONS_PER_CALL = 25
#: How many chunks a chain may be ahead of the slowest one.
AHEAD = 8


class Kernel(NamedTuple):
    """A Markov chain that adapts itself."""

    start: Callable[[Any, Any, Any], Any]
    """Maps data, a key and a position to the state of a chain."""
    transition: Callable[[Any, Any], tuple[Any, tuple[dict, dict]]]
    """Maps data and a state to the new state, and the position and statistics of this draw."""
    tune: int
    """How many of the first transitions adapt the chain, so are not kept."""


class Draws(NamedTuple):
    """Positions and statistics after warm-up, with axes of chains and draws in front."""

    positions: dict[str, np.ndarray]
    stats: dict[str, np.ndarray]


def usable_cores() -> int:
    """Return on how many cores this process may run: in a container or under ``taskset``, fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Chains:
    """The chains of a kernel, whose programs compile in threads of their own until they are called.

    XLA releases Python's lock while it compiles, so the other steps before sampling run at the same time.

    Parameters
    ----------
    kernel, data
        The kernel, and the shared data that it takes.
    like
        Arrays of the shapes and dtypes of the positions where chains start, with an axis of chains in front.
    seeds
        One for each chain.
    total
        How many transitions a chain makes.
    method : {"parallel", "vectorized", "sequential"}
        At the same time, in threads or divided among JAX's devices; as one program over all chains; one after the other.
    cores : int, optional
        How many chains run at a time in threads, by default as many as there are cores.
    """

    def __init__(
        self,
        kernel: Kernel,
        data: Mapping[str, Any],
        like: dict[str, np.ndarray],
        seeds: list[int],
        total: int,
        method: str,
        cores: int | None = None,
    ):
        self.tune, self.total = kernel.tune, total
        self._count = -(-total // TRANSITIONS_PER_CALL)
        length = -(-total // self._count)

        def start(data: Any, key: Any, position: dict) -> Any:
            return kernel.start(data, jax.random.wrap_key_data(key, impl="threefry2x32"), position)

        def advance(data: Any, state: Any) -> tuple[Any, tuple[dict, dict]]:
            return jax.lax.scan(lambda s, _: kernel.transition(data, s), state, length=length)

        devices = jax.devices() if method == "parallel" and cores is None else jax.devices()[:1]
        # JAX would compile a program to make a key. The starting point is drawn from the same seed, but not from this child of it.
        keys = np.stack([np.random.SeedSequence(seed, spawn_key=(0,)).generate_state(2) for seed in seeds])
        with jax.enable_x64(True):
            if method == "vectorized" or len(devices) > 1:
                self._run = in_one_program(start, advance, data, like, keys, devices)
            else:
                workers = 1 if method == "sequential" else cores or usable_cores()
                self._run = in_threads(start, advance, data, like, keys, workers)

    def chunks(self, positions: dict[str, np.ndarray]) -> Iterator[tuple[dict, dict]]:
        """Return an iterator over the chunks of transitions: the positions and statistics of each."""
        return self._run(positions, self._count)

    def draw(self, positions: dict[str, np.ndarray], progressbar: bool) -> Draws:
        """Run the chains and return their draws after warm-up; if interrupted, those so far.

        Each draw is written to the array that is returned, so memory is bounded by the draws and one chunk.
        """
        chains, draws = len(next(iter(positions.values()))), self.total - self.tune
        kept: Any = None
        done = diverged = 0
        with jax.enable_x64(True), progress(progressbar, self.total) as update:
            try:
                for chunk in self.chunks(positions):
                    length = chunk[1]["diverging"].shape[1]
                    first, end = max(0, self.tune - done), min(length, self.total - done)
                    if first < end:
                        kept = kept or jax.tree.map(partial(room, draws), chunk)
                        at = done - self.tune
                        jax.tree.map(partial(store, first=first, end=end, at=at), kept, chunk)
                        diverged += int(chunk[1]["diverging"][:, first:end].sum())
                    done += end
                    step_size = chunk[1]["step_size"][:, -1].mean()
                    text = f"of {chains} chains, {diverged} diverged, step size {step_size:.2g}"
                    update(done, "sampling" if done > self.tune else "warm-up", text)
            except KeyboardInterrupt:
                if done <= self.tune:
                    raise
        return Draws(*jax.tree.map(lambda x: x[:, : done - self.tune], kept))


def room(draws: int, chunk: np.ndarray) -> np.ndarray:
    """Return an empty array for all draws of each chain, like those of a chunk."""
    return np.empty((len(chunk), draws, *chunk.shape[2:]), chunk.dtype)


def store(kept: np.ndarray, chunk: np.ndarray, first: int, end: int, at: int) -> None:
    """Write a chunk's draws from `first` to `end` into an array of all draws, in which the chunk begins at `at`."""
    kept[:, at + first : at + end] = chunk[:, first:end]


def compile_programs(
    start: Any, advance: Any, data: Any, key: Any, position: Any, sharding: Any = None
) -> list[Future]:
    """Begin to compile, in threads, the jitted functions that make and advance the state of chains."""

    def compile_(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        with jax.enable_x64(True):  # this setting belongs to a thread
            return lowered.compile()

    pool = ThreadPoolExecutor(2)
    started = start.lower(data, key, position)
    begun = pool.submit(compile_, started)
    state = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), started.out_info)
    programs = [begun, pool.submit(compile_, advance.lower(data, state))]
    pool.shutdown(wait=False)
    return programs


def in_one_program(
    start: Callable, advance: Callable, data: Any, like: dict, keys: Any, devices: list
) -> Callable[[dict, int], Iterator[tuple[dict, dict]]]:
    """Return the function that runs one program over all chains, with an equal part of them on each device.

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

    def put(values: Any) -> Any:
        return jax.device_put(jax.tree.map(lambda x: x[index], values), NamedSharding(mesh, each))

    given, placed = jax.device_put(dict(data), NamedSharding(mesh, same)), put(keys)
    programs = compile_programs(
        divide(start, 2), divide(advance, 1), given, placed, put(like), NamedSharding(mesh, each)
    )

    def run(positions: dict, count: int) -> Iterator[tuple[dict, dict]]:
        begin, program = (future.result() for future in programs)
        states = begin(given, placed, put(positions))
        for _ in range(count):
            states, outputs = program(given, states)
            yield jax.tree.map(lambda x: np.asarray(x)[:chains], outputs)

    return run


def in_threads(
    start: Callable, advance: Callable, data: Any, like: dict, keys: Any, workers: int
) -> Callable[[dict, int], Iterator[tuple[dict, dict]]]:
    """Return the function that runs a program for each chain, in threads: XLA releases Python's lock while it computes."""
    given, chains = jax.device_put(dict(data)), range(len(keys))

    def pick(values: Any, i: int) -> Any:
        return jax.tree.map(lambda x: x[i], values)

    programs = compile_programs(jax.jit(start), jax.jit(advance), given, keys[0], pick(like, 0))

    def run(positions: dict, count: int) -> Iterator[tuple[dict, dict]]:
        begin, program = (future.result() for future in programs)
        states = [begin(given, keys[i], pick(positions, i)) for i in chains]

        def go_on(state: Any) -> tuple[Any, tuple[dict, dict]]:
            with jax.enable_x64(True):  # this setting belongs to a thread
                state, outputs = program(given, state)
                return state, jax.tree.map(np.asarray, outputs)

        with ThreadPoolExecutor(workers) as pool:
            yield from side_by_side(pool, go_on, states, count)

    return run


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
