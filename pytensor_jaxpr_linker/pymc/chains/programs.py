"""The programs that make and advance chains: compiled in threads, and run for all chains or for each."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pytensor_jaxpr_linker.jaxpr.optimize.xla_options import FEW_CALLS, options_of_chain
from pytensor_jaxpr_linker.pymc.chains.chain_functions import ChainFunctions, for_one
from pytensor_jaxpr_linker.pymc.chains.chunk_lengths import ChunkLengths
from pytensor_jaxpr_linker.pymc.chains.kernel import AboutChain
from pytensor_jaxpr_linker.run import placement

#: The axis of a mesh along which chains are divided.
CHAINS = "chains"
#: How many chunks a chain may be ahead of the slowest one.
AHEAD = 8
#: A child of PyMC's logger, so that notebooks and terminals show what it says.
pymc_logger = logging.getLogger("pymc.pytensor_jaxpr_linker")

#: Positions and statistics of a chunk of transitions, with an axis of chains and one of transitions in front.
type Chunk = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]


class Watch(NamedTuple):
    """Who is told how far chains are.

    Attributes
    ----------
    chunk
        Of each chunk that is done: of which chains, and their statistics.
    tuning
        Of steps of the tuning that are done: of which chains, and how many steps each has made.
    """

    chunk: Callable[[Sequence[int], dict[str, np.ndarray]], None]
    tuning: Callable[[Sequence[int], int], None]


class JittedChain(NamedTuple):
    """The functions of a kernel as they are lowered.

    Attributes
    ----------
    start
        Makes a state, of what both are given, a key and a position.
    tune
        Makes, of its arguments, the function that takes a state from one step of the tuning to another one, which are given, too.
    advance
        Makes, of its arguments, the function that advances a state by a chunk of transitions; how many is given, too. Beside it come XLA's options if they
        are known.
    about
        Tells more when `start` has been traced.
    """

    start: Any
    tune: Callable[[tuple], Any]
    advance: Callable[[tuple], tuple[Any, dict[str, Any] | None]]
    about: Callable[[], AboutChain]


class ChainPrograms(NamedTuple):
    """The programs of a kernel, which compile in threads of their own. Only chains that tune have one for that.

    Attributes
    ----------
    text
        The program that makes transitions, where runs are compared.
    """

    start: Future[jax.stages.Compiled]
    tune: Future[jax.stages.Compiled] | None
    advance: Future[jax.stages.Compiled]
    about: AboutChain
    text: str = ""

    def result(self) -> tuple[jax.stages.Compiled, jax.stages.Compiled | None, jax.stages.Compiled]:
        """Wait for the programs."""
        try:
            return self.start.result(), None if self.tune is None else self.tune.result(), self.advance.result()
        except KeyboardInterrupt:
            pymc_logger.warning("Interrupted while XLA compiles, which can't be stopped: this ends when XLA has done.")
            wait([program for program in (self.start, self.tune, self.advance) if program is not None])
            raise


def compile_programs(chain: JittedChain, args: tuple, sharding: Any = None, is_compared: bool = False) -> ChainPrograms:
    """Begin to compile, in threads, the programs that make and advance the state of chains, from what they are given, keys and positions.

    XLA releases Python's lock while it compiles, so the other steps before sampling run at the same time. With
    `is_compared` the text of the program that makes transitions is kept, and XLA has its own options.
    """

    def compile_(lowered: jax.stages.Lowered, options: dict[str, Any]) -> jax.stages.Compiled:
        with jax.enable_x64(True):  # this setting belongs to a thread
            return lowered.compile(options)

    pool = ThreadPoolExecutor(3)
    start = chain.start.trace(*args)
    about = chain.about()
    begun = states_of(start.out_info, sharding)
    further = with_counts(args[0], 0), begun[: about.results]
    jitted, options = chain.advance(further)
    advance = jitted.trace(*further)
    options = {} if is_compared else xla_options(advance) if options is None else options
    runs_once = (about.has_warmup or about.tuning) and not is_compared
    started = pool.submit(compile_, start.lower(), options | options_of_few_calls() if runs_once else options)
    tuned = None
    if about.tuning:
        to_tune = with_counts(args[0], 0, 0), begun
        tuned = pool.submit(compile_, chain.tune(to_tune).lower(*to_tune), options)
    advanced = pool.submit(compile_, lowered := advance.lower(), options)
    pool.shutdown(wait=False)
    return ChainPrograms(started, tuned, advanced, about, lowered.as_text() if is_compared else "")


def xla_options(traced: jax.stages.Traced) -> dict[str, Any]:
    """Return XLA's options for the programs of a kernel, by the trace of the one that makes transitions."""
    return options_of_chain(traced.jaxpr) if jax.default_backend() == "cpu" else {}


def options_of_few_calls() -> dict[str, Any]:
    """Return XLA's options for a program that runs only a few times."""
    return FEW_CALLS if jax.default_backend() == "cpu" else {}


def with_counts(given: tuple, *counts: int) -> tuple:
    """Return what the functions of a chain are given, with how many transitions to make, or which steps of the tuning."""
    return *given, *map(np.int64, counts)


def states_of(found: Any, sharding: Any = None) -> Any:
    """Return the shapes and dtypes of states."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), found)


class OneProgram:
    """One program over all chains, with an equal part of them on each device of a mesh.

    ``shard_map`` leaves each device its own loops: where XLA's partitioner divides the batch, every step of a
    trajectory waits for the slowest chain on any device.

    Attributes
    ----------
    chains
        How many chains a call of the program advances.
    states
        The states of chains after the last chunk.
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
        self.states: Any = None

    @property
    def key(self) -> tuple:
        """What the programs depend on."""
        return "one program", self.chains, tuple(self._mesh.shape.items()), tuple(self._mesh.devices.flat)

    def _put(self, values: Any) -> Any:
        return jax.tree.map(
            lambda x: placement.put(np.asarray(x)[self._index], self._each, "the state of chains"), values
        )

    def _divided(self, batched: Callable, arguments: int) -> Any:
        """Return a function of the chains of a part as one of all, jitted."""
        if self._mesh.size == 1:
            return jax.jit(batched)
        specs, each = (PartitionSpec(), *(self._each.spec,) * arguments), self._each.spec
        return jax.jit(jax.shard_map(batched, mesh=self._mesh, in_specs=specs, out_specs=each, check_vma=False))

    def jitted(self, functions: ChainFunctions) -> JittedChain:
        """Return the functions of all chains, which take all of them at once or one."""

        def divide(function: Callable, arguments: int) -> Any:
            if functions.is_ensemble:
                batched = function
            elif self._part == 1:
                batched = for_one(function)
            else:
                batched = jax.vmap(function, in_axes=(None, *(0,) * arguments))
            return self._divided(batched, arguments)

        return JittedChain(
            divide(functions.start, 2),
            lambda _: divide(functions.tune, 1),
            lambda _: (divide(functions.advance, 1), None),
            functions.about,
        )

    def compile(self, find: Callable[[tuple], JittedChain], like: dict) -> ChainPrograms:
        """Begin to compile what `find` returns for the arguments of the first program."""
        args = self._given, self._keys, self._put(like)
        return compile_programs(find(args), args, None if self._mesh.size == 1 else self._each)

    def begun(self, programs: ChainPrograms, positions: dict) -> tuple[Any, np.ndarray | None]:
        """Return the states of chains before warm-up, and the log density of each if the first transition evaluates it."""
        begin, _, program = programs.result()
        states = begin(self._given, self._keys, self._put(positions))
        if not programs.about.first_evaluates:
            return states, None
        states, (_, stats) = program(with_counts(self._given, 1), states)
        return states, np.asarray(stats["lp"])[: self.chains, 0]

    def tuned(self, programs: ChainPrograms, states: list, lengths: ChunkLengths, watch: Watch) -> list:
        """Return the states of chains after the steps of their tuning."""
        _, tune, _ = programs.result()
        number = done = 0
        while tune is not None and (length := lengths(number)):
            began = perf_counter()
            states = jax.block_until_ready(tune(with_counts(self._given, done, done + length), states))
            lengths.took(length, perf_counter() - began)
            number, done = number + 1, done + length
            watch.tuning(range(self.chains), length)
        return states[: programs.about.results]

    def on_host(self, values: Any) -> Any:
        """Return arrays as NumPy's."""
        return jax.tree.map(np.asarray, values)

    def run(
        self, programs: ChainPrograms, states: list, lengths: ChunkLengths, watch: Watch, skipped: int = 0
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
            watch.chunk(range(self.chains), chunk[1])
            yield chunk


class InThreads:
    """A program for each chain, in threads: XLA releases Python's lock while it computes."""

    chains = 1
    """How many chains a call of the program advances."""

    def __init__(self, given: Any, keys: np.ndarray, workers: int):
        self._given, self._keys, self._workers = jax.device_put(given), keys, workers

    @property
    def key(self) -> tuple:
        """What the programs depend on."""
        return ("one chain", jax.devices()[0])

    def jitted(self, functions: ChainFunctions) -> JittedChain:
        """Return the functions of one chain."""
        return JittedChain(
            jax.jit(functions.start),
            lambda _: jax.jit(functions.tune),
            lambda _: (jax.jit(functions.advance), None),
            functions.about,
        )

    def compile(self, find: Callable[[tuple], JittedChain], like: dict) -> ChainPrograms:
        """Begin to compile what `find` returns for the arguments of the first program."""
        args = self._given, self._keys[0], pick(like, 0)
        return compile_programs(find(args), args)

    def begun(self, programs: ChainPrograms, positions: dict) -> tuple[list[Any], np.ndarray | None]:
        """Return the states of chains before warm-up, and the log density of each if the first transition evaluates it."""
        begin, _, program = programs.result()
        states = [begin(self._given, key, pick(positions, i)) for i, key in enumerate(self._keys)]
        if not programs.about.first_evaluates:
            return states, None
        found = [program(with_counts(self._given, 1), state) for state in states]
        return [state for state, _ in found], np.array([np.asarray(stats["lp"])[0] for _, (_, stats) in found])

    def tuned(self, programs: ChainPrograms, states: list, lengths: ChunkLengths, watch: Watch) -> list:
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
            for _ in side_by_side(pool, go_on, counted, lengths, lambda chain, length: watch.tuning([chain], length)):
                pass
        return [arrays[: programs.about.results] for _, arrays in counted]

    def run(self, programs: ChainPrograms, states: list, lengths: ChunkLengths, watch: Watch) -> Iterator[Chunk]:
        """Return an iterator over the chunks of transitions."""
        _, _, program = programs.result()

        def go_on(state: Any, length: int) -> tuple[Any, Chunk]:
            began = perf_counter()
            with jax.enable_x64(True):  # this setting belongs to a thread
                state, outputs = program(with_counts(self._given, length), state)
                chunk = jax.tree.map(lambda x: np.asarray(x)[:length], outputs)
            lengths.took(length, perf_counter() - began)
            return state, chunk

        def seen(chain: int, outputs: Chunk) -> None:
            watch.chunk([chain], {name: x[None] for name, x in outputs[1].items()})

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
    """Run chunks of each chain and return an iterator over their outputs, those of all chains together.

    `lengths` gives the length of a chunk by its number, 0 behind the last one. `run` takes a state and a length; `states` has the last states at the end. A chain
    does not wait for the others, whose trajectories may be longer, until it is `AHEAD` chunks ahead of the slowest. `seen` is called in this thread with
    each chain's outputs as they come.
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
        # After Ctrl-C the pool waits for the chunks that run, not for those that wait for a thread.
        for future in running:
            future.cancel()
