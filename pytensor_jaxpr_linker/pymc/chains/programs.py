"""The programs that make and advance chains: compiled in threads, and run for all chains or for each."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from functools import cache
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pytensor_jaxpr_linker.jaxpr.optimize.xla_options import FEW_CALLS, options_of_chain
from pytensor_jaxpr_linker.pymc.chains.chunk_lengths import ChunkLengths
from pytensor_jaxpr_linker.pymc.folder_programs import FolderPrograms, StoredFunction, stored_function

#: How many chunks a chain may be ahead of the slowest one.
AHEAD = 8
#: A child of PyMC's logger, so that notebooks and terminals show what it says.
pymc_logger = logging.getLogger("pymc.pytensor_jaxpr_linker")

#: Positions and statistics of a chunk of transitions, with an axis of chains and one of transitions in front.
type Chunk = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]
#: Is told of each chunk that is done: of which chains, and their statistics.
type Watch = Callable[[Sequence[int], dict[str, np.ndarray]], None]


class Kernel(NamedTuple):
    """A Markov chain that adapts itself.

    The arguments of which it is made may be inputs of programs: it is made where its functions are traced.
    """

    start: Callable[[Any, Any, Any], Any]
    """Maps data, a key and a position to the state of a chain."""
    transition: Callable[[Any, Any], tuple[Any, tuple[dict, dict]]]
    """Maps data and a state to the new state, and the position and statistics of this draw."""
    has_warmup: bool = True
    """Whether the first transitions, as many as ``tune``, adapt the chain, so are not kept. Else `start` adapts it."""
    is_ensemble: bool = False
    """Whether both functions take all chains at once, along a first axis of keys, positions, states and draws."""
    first_evaluates: bool = False
    """Whether the first transition stays where the chain starts, and gives it the log density and its gradient; it is neither warm-up nor a draw. Then
    one program has the model: XLA would compile it once more for a `start` that evaluates it."""


class JittedChain(NamedTuple):
    """The functions of a kernel as they are lowered: one makes states, the other advances them by a chunk of transitions."""

    start: Any
    advance: Callable[[Any], tuple[Any, dict[str, str] | None]]
    """Returns, from its arguments, the second function, and XLA's options if they are known. Beside what both are given it takes how many
    transitions to make."""
    has_warmup: bool
    first_evaluates: bool


class ChainPrograms(NamedTuple):
    """The programs of a kernel, which compile in threads of their own."""

    start: Future[jax.stages.Compiled]
    advance: Future[jax.stages.Compiled]
    has_warmup: bool
    first_evaluates: bool

    def result(self) -> tuple[jax.stages.Compiled, jax.stages.Compiled]:
        """Wait for the programs."""
        try:
            return self.start.result(), self.advance.result()
        except KeyboardInterrupt:
            pymc_logger.warning("Interrupted while XLA compiles, which can't be stopped: this ends when XLA has done.")
            wait([self.start, self.advance])
            raise


def compile_programs(chain: JittedChain, args: tuple, sharding: Any = None) -> ChainPrograms:
    """Begin to compile, in threads, the programs that make and advance the state of chains, from what they are given, keys and positions.

    XLA releases Python's lock while it compiles, so the other steps before sampling run at the same time.
    """

    def compile_(lowered: jax.stages.Lowered, options: dict[str, Any]) -> jax.stages.Compiled:
        with jax.enable_x64(True):  # this setting belongs to a thread
            return lowered.compile(options)

    pool = ThreadPoolExecutor(2)
    start = chain.start.trace(*args)
    further = with_count(args[0], 0), states_of(start.out_info, sharding)
    jitted, options = chain.advance(further)
    advance = jitted.trace(*further)
    options = xla_options(advance) if options is None else options
    begun = pool.submit(compile_, start.lower(), options | options_of_few_calls() if chain.has_warmup else options)
    advanced = pool.submit(compile_, advance.lower(), options)
    pool.shutdown(wait=False)
    return ChainPrograms(begun, advanced, chain.has_warmup, chain.first_evaluates)


def xla_options(traced: jax.stages.Traced) -> dict[str, str]:
    """Return XLA's options for the programs of a kernel, by the trace of the one that makes transitions."""
    return options_of_chain(traced.jaxpr) if jax.default_backend() == "cpu" else {}


def options_of_few_calls() -> dict[str, Any]:
    """Return XLA's options for a program that runs only a few times."""
    return FEW_CALLS if jax.default_backend() == "cpu" else {}


def with_count(given: tuple, count: int) -> tuple:
    """Return what the functions of a chain are given, with how many transitions to make."""
    return *given, np.int64(count)


def states_of(found: Any, sharding: Any = None) -> Any:
    """Return the shapes and dtypes of states."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), found)


def by_way_of_folder(
    folder: FolderPrograms, key: Hashable, make: Callable[[], JittedChain], args: tuple
) -> JittedChain:
    """Return the functions of a kernel from the folder of `cache`, or those that `make` returns, which are put there."""
    made = cache(make)

    def start_to_store() -> StoredFunction:
        return stored_function(made().start, args, (made().has_warmup, made().first_evaluates))

    def advance(further: tuple) -> tuple[Any, dict[str, str] | None]:
        def to_store() -> StoredFunction:
            jax.eval_shape(made().start, *args)  # which shows what states consist of
            jitted, _ = made().advance(further)
            return stored_function(jitted, further, xla_options(jitted.trace(*further)))

        found = folder.find(("advance", key), to_store)
        return made().advance(further) if found is None else (found.jitted(), found.about)

    found = folder.find(("start", key), start_to_store)
    return made() if found is None else JittedChain(found.jitted(), advance, *found.about)


class OneProgram:
    """One program over all chains, with an equal part of them on each device.

    ``shard_map`` leaves each device its own loops: where XLA's partitioner divides the batch, every step of a trajectory waits
    for the slowest chain on any device.

    Attributes
    ----------
    chains
        How many chains a call of the program advances.
    """

    def __init__(self, given: Any, keys: np.ndarray, devices: list):
        self.chains = len(keys)
        self._part = -(-self.chains // len(devices))
        self._used = devices[: -(-self.chains // self._part)]
        # Equal parts: the last device may run chains of the first once more, which nobody reads.
        self._index = np.arange(self._part * len(self._used)) % self.chains
        self._mesh = Mesh(np.array(self._used), ("chain",))
        self._given = jax.device_put(given, NamedSharding(self._mesh, PartitionSpec()))
        self._keys = self._put(keys)

    @property
    def key(self) -> tuple:
        """What the programs depend on."""
        return "one program", self.chains, tuple(self._used)

    def _put(self, values: Any) -> Any:
        sharding = NamedSharding(self._mesh, PartitionSpec("chain"))
        return jax.device_put(jax.tree.map(lambda x: x[self._index], values), sharding)

    def jitted(self, kernel: Kernel, start: Callable, advance: Callable) -> JittedChain:
        """Return the functions of all chains."""
        each, same = PartitionSpec("chain"), PartitionSpec()

        def one(function: Callable) -> Callable:
            """Map a function over an axis of length 1: under `vmap` each choice of the sampler would compute both of its branches."""

            def call(given: Any, *args: Any) -> Any:
                return jax.tree.map(
                    lambda x: jax.numpy.expand_dims(x, 0), function(given, *jax.tree.map(lambda x: x[0], args))
                )

            return call

        def divide(function: Callable, arguments: int) -> Any:
            if kernel.is_ensemble:
                batched = function
            else:
                batched = one(function) if self._part == 1 else jax.vmap(function, in_axes=(None, *(0,) * arguments))
            if len(self._used) == 1:
                return jax.jit(batched)
            specs = (same, *(each,) * arguments)
            return jax.jit(jax.shard_map(batched, mesh=self._mesh, in_specs=specs, out_specs=each, check_vma=False))

        return JittedChain(
            divide(start, 2), lambda _: (divide(advance, 1), None), kernel.has_warmup, kernel.first_evaluates
        )

    def compile(self, find: Callable[[tuple], JittedChain], like: dict) -> ChainPrograms:
        """Begin to compile what `find` returns for the arguments of the first program."""
        args = self._given, self._keys, self._put(like)
        sharding = None if len(self._used) == 1 else NamedSharding(self._mesh, PartitionSpec("chain"))
        return compile_programs(find(args), args, sharding)

    def begun(self, programs: ChainPrograms, positions: dict) -> tuple[Any, np.ndarray | None]:
        """Return the states of chains before warm-up, and the log density of each if the first transition evaluates it."""
        begin, program = programs.result()
        states = begin(self._given, self._keys, self._put(positions))
        if not programs.first_evaluates:
            return states, None
        states, (_, stats) = program(with_count(self._given, 1), states)
        return states, np.asarray(stats["lp"])[: self.chains, 0]

    def run(self, programs: ChainPrograms, states: list, lengths: ChunkLengths, watch: Watch) -> Iterator[Chunk]:
        """Return an iterator over the chunks of transitions, which change `states`."""
        _, program = programs.result()
        for number in itertools.count():
            if not (length := lengths(number)):
                return
            began = perf_counter()
            states[:], outputs = program(with_count(self._given, length), states)
            chunk = jax.tree.map(lambda x, n=length: np.asarray(x)[: self.chains, :n], outputs)
            lengths.took(length, perf_counter() - began)
            watch(range(self.chains), chunk[1])
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

    def jitted(self, kernel: Kernel, start: Callable, advance: Callable) -> JittedChain:
        """Return the functions of one chain."""
        return JittedChain(
            jax.jit(start), lambda _: (jax.jit(advance), None), kernel.has_warmup, kernel.first_evaluates
        )

    def compile(self, find: Callable[[tuple], JittedChain], like: dict) -> ChainPrograms:
        """Begin to compile what `find` returns for the arguments of the first program."""
        args = self._given, self._keys[0], pick(like, 0)
        return compile_programs(find(args), args)

    def begun(self, programs: ChainPrograms, positions: dict) -> tuple[list[Any], np.ndarray | None]:
        """Return the states of chains before warm-up, and the log density of each if the first transition evaluates it."""
        begin, program = programs.result()
        states = [begin(self._given, key, pick(positions, i)) for i, key in enumerate(self._keys)]
        if not programs.first_evaluates:
            return states, None
        found = [program(with_count(self._given, 1), state) for state in states]
        return [state for state, _ in found], np.array([np.asarray(stats["lp"])[0] for _, (_, stats) in found])

    def run(self, programs: ChainPrograms, states: list, lengths: ChunkLengths, watch: Watch) -> Iterator[Chunk]:
        """Return an iterator over the chunks of transitions, which change `states`."""
        _, program = programs.result()

        def go_on(state: Any, length: int) -> tuple[Any, Chunk]:
            began = perf_counter()
            with jax.enable_x64(True):  # this setting belongs to a thread
                state, outputs = program(with_count(self._given, length), state)
                chunk = jax.tree.map(lambda x: np.asarray(x)[:length], outputs)
            lengths.took(length, perf_counter() - began)
            return state, chunk

        def seen(chain: int, outputs: Chunk) -> None:
            watch([chain], {name: x[None] for name, x in outputs[1].items()})

        with ThreadPoolExecutor(self._workers) as pool:
            yield from side_by_side(pool, go_on, states, lengths, seen)


def is_key(value: Any) -> bool:
    """Tell whether a value is a key of `jax.random`, or several."""
    return jax.dtypes.issubdtype(getattr(value, "dtype", np.float64), jax.dtypes.prng_key)


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
