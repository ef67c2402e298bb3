"""The runners of chains: one program over all of them, or one for each in a thread of its own."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from time import perf_counter
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pytensor_jaxpr_linker.pymc.chains.chain_progress import Watched
from pytensor_jaxpr_linker.pymc.chains.kept_draws import Chunk
from pytensor_jaxpr_linker.pymc.chains.programs import ChainPrograms, ChunkLengths, with_counts
from pytensor_jaxpr_linker.run import placement

#: The axis of a mesh along which chains are divided.
CHAINS = "chains"
#: How many chunks a chain may be ahead of the slowest one.
AHEAD = 8


class OneProgram:
    """One program over all chains, with an equal part of them on each device of a mesh.

    ``shard_map`` leaves each device its own loops: where XLA's partitioner divides the batch, every step of a
    trajectory waits for the slowest chain on any device.

    A call of the program advances `chains`. `sharding` is how their states lie on several devices, or None; `states`
    are the ones after the last chunk.
    """

    def __init__(self, given: Any, keys: np.ndarray, mesh: Mesh):
        self.chains, self._mesh = len(keys), mesh
        parts = mesh.shape.get(CHAINS, 1)
        self._part = -(-self.chains // parts)
        # Equal parts: the last one may run chains of the first once more, which nobody reads.
        self._index = np.arange(self._part * parts) % self.chains
        self._same = NamedSharding(mesh, PartitionSpec())
        self._each = NamedSharding(mesh, PartitionSpec(CHAINS)) if CHAINS in mesh.axis_names else self._same
        self._given = jax.device_put(given, self._same)
        self._keys = self._put(keys)
        self.sharding = None if mesh.size == 1 else self._each
        self.states: Any = None

    @property
    def key(self) -> tuple:
        """The things on which the programs depend."""
        return "one program", self.chains, tuple(self._mesh.shape.items()), tuple(self._mesh.devices.flat)

    def arguments(self, positions: dict) -> tuple:
        """Return the arguments of the program that starts chains."""
        return self._given, self._keys, self._put(positions)

    def _put(self, values: Any) -> Any:
        return jax.tree.map(
            lambda x: placement.put(np.asarray(x)[self._index], self._each, "the state of chains"), values
        )

    def _divided(self, batched: Callable, arguments: int) -> Any:
        """Return a function of the chains of a part as one of all, jitted."""
        if self.sharding is None:
            return jax.jit(batched)
        if CHAINS not in self._mesh.axis_names:
            return jax.jit(batched, out_shardings=self._same)
        specs, each = (self._same.spec, *(self._each.spec,) * arguments), self._each.spec
        options: Any = {"in_specs": specs, "out_specs": each, "axis_names": {CHAINS}, "check_vma": False}
        return jax.jit(jax.shard_map(batched, mesh=self._mesh, **options))

    def jitted(self, function: Callable, arguments: int, is_ensemble: bool) -> Any:
        """Return a function of one chain, or of all chains at once, as a jitted function of all chains.

        It takes the given arrays and a number of `arguments` of chains.
        """
        if is_ensemble:
            batched = function
        elif self._part == 1:
            batched = for_one(function)
        else:
            batched = jax.vmap(function, in_axes=(None, *(0,) * arguments))
        return self._divided(batched, arguments)

    def begun(self, programs: ChainPrograms, positions: dict) -> tuple[Any, np.ndarray | None]:
        """Return the first states of chains, and their log densities if the first transition evaluates them."""
        begin, _, program = programs.result()
        states = begin(*self.arguments(positions))
        if not programs.about.first_evaluates:
            return states, None
        states, (_, stats) = program(with_counts(self._given, 1), states)
        return states, np.asarray(stats["lp"])[: self.chains, 0]

    def tuned(self, programs: ChainPrograms, states: list, lengths: ChunkLengths, watch: Watched) -> list:
        """Return the states of chains after the steps of their tuning."""
        _, tune, _ = programs.result()
        number = done = 0
        while tune is not None and (length := lengths(number)):
            began = perf_counter()
            states = jax.block_until_ready(tune(with_counts(self._given, done, done + length), states))
            lengths.took(length, perf_counter() - began)
            number, done = number + 1, done + length
            watch.add_tuning(range(self.chains), length)
        return states[: programs.about.results]

    def on_host(self, values: Any) -> Any:
        """Return arrays as NumPy's."""
        return jax.tree.map(np.asarray, values)

    def run(
        self, programs: ChainPrograms, states: list, lengths: ChunkLengths, watch: Watched, skipped: int
    ) -> Iterator[Chunk]:
        """Return an iterator over the chunks of transitions, without the first `skipped` of the first one."""
        _, _, program = programs.result()
        for number in itertools.count():
            if not (length := lengths(number)):
                return
            began, part = perf_counter(), slice(0 if number else skipped, length)
            self.states, outputs = program(with_counts(self._given, length), states)
            states = self.states
            chunk = jax.tree.map(lambda x, part=part: x[: self.chains, part], self.on_host(outputs))
            lengths.took(length, perf_counter() - began)
            watch.add(range(self.chains), chunk[1])
            yield chunk


class MeshChains(OneProgram):
    """One program over all chains on a mesh of the user's, with an equal part of them on each part of its axis
    `CHAINS`.

    Several processes may share a run, which goes on from a checkpoint. Along the other axes XLA's partitioner divides
    the work with the data. Without the axis `CHAINS` all chains are on each device.
    """

    def __init__(self, given: Any, keys: np.ndarray, mesh: Mesh):
        super().__init__((), keys, mesh)
        self._given, self.sharding = given, self._each  # the given arrays are on the mesh
        self._whole = jax.jit(lambda x: x, out_shardings=self._same)

    def on_host(self, values: Any) -> Any:
        """Return arrays as NumPy's; each process gets all chains."""
        if not all(map(placement.is_here, jax.tree.leaves(values))):
            values = self._whole(values)
        return super().on_host(values)

    def saved(self) -> list[np.ndarray]:
        """Return the states for a checkpoint."""
        return self.on_host(self.states)

    def restored(self, saved: list[np.ndarray]) -> Any:
        """Return the states of chains that were saved."""
        return [placement.put(x, self._each, "the state of chains") for x in saved]

    def begun(self, programs: ChainPrograms, positions: dict) -> tuple[Any, None]:
        """Return the states of chains before the first transition."""
        return programs.result()[0](*self.arguments(positions)), None


class InThreads:
    """A program for each chain, in threads: XLA releases Python's lock while it computes."""

    chains = 1
    """How many chains a call of the program advances."""
    sharding = None

    def __init__(self, given: Any, keys: np.ndarray, workers: int):
        self._given, self._keys, self._workers = jax.device_put(given), keys, workers

    @property
    def key(self) -> tuple:
        """The things on which the programs depend."""
        return ("one chain", jax.devices()[0])

    def arguments(self, positions: dict, chain: int = 0) -> tuple:
        """Return the arguments of the program that starts a chain."""
        return self._given, self._keys[chain], pick(positions, chain)

    def jitted(self, function: Callable, arguments: int, is_ensemble: bool) -> Any:
        """Return a jitted function of one chain."""
        return jax.jit(function)

    def begun(self, programs: ChainPrograms, positions: dict) -> tuple[list[Any], np.ndarray | None]:
        """Return the first states of chains, and their log densities if the first transition evaluates them."""
        begin, _, program = programs.result()
        states = [begin(*self.arguments(positions, i)) for i in range(len(self._keys))]
        if not programs.about.first_evaluates:
            return states, None
        found = [program(with_counts(self._given, 1), state) for state in states]
        return [state for state, _ in found], np.array([np.asarray(stats["lp"])[0] for _, (_, stats) in found])

    def tuned(self, programs: ChainPrograms, states: list, lengths: ChunkLengths, watch: Watched) -> list:
        """Return the states of chains after the steps of their tuning."""
        _, tune, _ = programs.result()
        if tune is None:
            return states

        def go_on(state: tuple[int, list], length: int) -> tuple[tuple[int, list], int]:
            done, arrays = state
            began = perf_counter()
            with jax.enable_x64(True):  # this setting belongs to a thread
                arrays = jax.block_until_ready(tune(with_counts(self._given, done, done + length), arrays))
            lengths.took(length, perf_counter() - began)
            return (done + length, arrays), length

        counted = [(0, state) for state in states]
        with ThreadPoolExecutor(self._workers) as pool:
            for _ in side_by_side(
                pool, go_on, counted, lengths, lambda chain, length: watch.add_tuning([chain], length)
            ):
                pass
        return [arrays[: programs.about.results] for _, arrays in counted]

    def run(
        self, programs: ChainPrograms, states: list, lengths: ChunkLengths, watch: Watched, skipped: int
    ) -> Iterator[Chunk]:
        """Return an iterator over the chunks of transitions; `begun` has made the one that may be `skipped`."""
        _, _, program = programs.result()

        def go_on(state: Any, length: int) -> tuple[Any, Chunk]:
            began = perf_counter()
            with jax.enable_x64(True):  # this setting belongs to a thread
                state, outputs = program(with_counts(self._given, length), state)
                chunk = jax.tree.map(lambda x: np.asarray(x)[:length], outputs)
            lengths.took(length, perf_counter() - began)
            return state, chunk

        def seen(chain: int, outputs: Chunk) -> None:
            watch.add([chain], {name: x[None] for name, x in outputs[1].items()})

        with ThreadPoolExecutor(self._workers) as pool:
            yield from side_by_side(pool, go_on, states, lengths, seen)


def pick(values: Any, i: int) -> Any:
    """Return the values of one chain."""
    return jax.tree.map(lambda x: x[i], values)


def side_by_side(
    pool: Executor,
    run: Callable[[Any, int], tuple[Any, Any]],
    states: list[Any],
    lengths: Callable[[int], int],
    seen: Callable[[int, Any], None] = lambda chain, outputs: None,
) -> Iterator[Any]:
    """Run chunks of each chain and return an iterator over the outputs of all chains.

    `lengths` gives the length of a chunk by its number, 0 behind the last one. `run` takes a state and a length;
    `states` has the last states at the end. A chain does not wait for the others, whose trajectories may be longer,
    until it is `AHEAD` chunks ahead of the slowest. `seen` is called in this thread with each chain's outputs as they
    come.
    """
    begun = [0] * len(states)
    finished: list[deque] = [deque() for _ in states]
    running: dict[Future, int] = {}

    def go_on(i: int) -> None:
        if len(finished[i]) < AHEAD and (length := lengths(begun[i])):
            running[pool.submit(run, states[i], length)] = i
            begun[i] += 1

    try:
        for number in itertools.count():
            if not lengths(number):
                return
            for i in set(range(len(states))) - set(running.values()):
                go_on(i)
            while not all(finished):
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    i = running.pop(future)
                    states[i], outputs = future.result()
                    finished[i].append(outputs)
                    seen(i, outputs)
                    go_on(i)
            yield jax.tree.map(lambda *parts: np.stack(parts), *[outputs.popleft() for outputs in finished])
    finally:
        # After Ctrl-C the pool waits for chunks that run, not for chunks that wait for a thread.
        for future in running:
            future.cancel()


def for_one(function: Callable) -> Callable:
    """Map a function over an axis of length 1. Under `vmap` each choice of the sampler would compute both branches."""

    def call(given: Any, *args: Any) -> Any:
        found = function(given, *jax.tree.map(lambda x: x[0], args))
        return jax.tree.map(lambda x: jax.numpy.expand_dims(x, 0), found)

    return call
