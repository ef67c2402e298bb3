"""The programs of chains: how they are compiled, and how many transitions a call of them makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np

from pytensor_jaxpr_linker.base.session import note_build, parts_of_build
from pytensor_jaxpr_linker.jaxpr.optimize.xla_options import FEW_CALLS, options_of_chain
from pytensor_jaxpr_linker.pymc.chains.chain_progress import pymc_logger
from pytensor_jaxpr_linker.pymc.chains.kernel import AboutChain
from pytensor_jaxpr_linker.run import kept_executables

#: Seconds that a call should take. A bar moves as often, and Ctrl-C waits as long.
CALL_SECONDS = 0.1
#: The largest ratio of the transitions in a call to the number in the call before: the first transitions of a warm-up
#: say little about the time of later ones.
GROWTH = 4
#: Most transitions in a call: then Python takes less than a tenth of the time even of short ones.
MOST_TRANSITIONS = 256
#: Most transitions in a call on a user's mesh, so between two checkpoints.
BETWEEN_CHECKPOINTS = 25
#: Most bytes of the results of a call. Statistics take about as many for each transition and chain.
MOST_BYTES, STATISTICS_BYTES = 2**22, 256


class ChunkLengths:
    """The lengths of the chunks in which chains advance, the same for all chains.

    The first chunk has one transition. Later ones, which have room for `most`, have as many as `CALL_SECONDS` allows,
    until a chain has made `total`. Without `by_time` each chunk but the last one is full: several processes must make
    the same.

    Examples
    --------
    >>> from pytensor_jaxpr_linker.pymc.chains.programs import ChunkLengths
    >>> lengths, seconds_of_a_transition = ChunkLengths(total=40, most=256), 0.01
    >>> found = []
    >>> while n := lengths(len(found)):
    ...     lengths.took(n, n * seconds_of_a_transition)
    ...     found.append(n)
    >>> found
    [1, 4, 10, 10, 10, 5]
    """

    def __init__(self, total: int, most: int, by_time: bool = True):
        self._left, self._most, self._by_time = total, most, by_time
        self._lengths: list[int] = []
        self._seconds = 0.0

    def __call__(self, number: int) -> int:
        """Return the length of a chunk by its number, 0 behind the last one. Chunks are asked for in turn."""
        if number == len(self._lengths):
            longest = GROWTH * self._lengths[-1] if self._lengths else 1
            in_time = max(1, CALL_SECONDS / self._seconds) if self._seconds else longest
            fits = min(longest, in_time) if self._by_time else self._most
            self._lengths.append(int(min(self._left, self._most, fits)))
            self._left -= self._lengths[-1]
        return self._lengths[number]

    def took(self, length: int, seconds: float) -> None:
        """Note how long a chunk took."""
        self._seconds = seconds / length


def longest_chunk(like: Mapping[str, Any], chains: int) -> int:
    """Return how many transitions a chunk of some chains has room for, by positions `like` these of all chains."""
    position = sum(np.prod(x.shape[1:], dtype=int) * x.dtype.itemsize for x in like.values())
    return int(np.clip(MOST_BYTES // (chains * (position + STATISTICS_BYTES)), 1, MOST_TRANSITIONS))


class JittedChain(NamedTuple):
    """The functions of a kernel, to be lowered.

    `start` maps the given arrays, a key and a position to a state. `tune` and `advance` make some steps of the tuning,
    or transitions. `about` describes the chain when `start` has been traced.
    """

    start: Any
    tune: Any
    advance: Any
    about: Callable[[], AboutChain]


class ChainPrograms(NamedTuple):
    """The programs of a kernel, which compile in threads of their own. Only chains that tune have one for that.

    `text` is the program that makes transitions, where runs are compared.
    """

    start: Future[jax.stages.Compiled]
    tune: Future[jax.stages.Compiled] | None
    advance: Future[jax.stages.Compiled]
    about: AboutChain
    text: str = ""

    @property
    def futures(self) -> list[Future[jax.stages.Compiled]]:
        """All of them, the one that tunes last."""
        return [self.start, self.advance, *([] if self.tune is None else [self.tune])]

    def result(self) -> tuple[jax.stages.Compiled, jax.stages.Compiled | None, jax.stages.Compiled]:
        """Wait for the programs."""
        try:
            return self.start.result(), None if self.tune is None else self.tune.result(), self.advance.result()
        except KeyboardInterrupt:
            pymc_logger.warning("Interrupted while XLA compiles, which can't be stopped: this ends when XLA has done.")
            wait(self.futures)
            raise


def programs_of(
    make: Callable[[], JittedChain],
    args: tuple,
    sharding: Any,
    is_compared: bool,
    place: str | None,
    name: str,
    why: str,
) -> ChainPrograms:
    """Begin to compile the programs of chains in threads, for arguments of `JittedChain.start`, unless they are kept.

    XLA releases Python's lock while it compiles, so the other steps before sampling run at the same time. With
    `is_compared` the text of the program that makes transitions is kept, and XLA has its own options.

    Parameters
    ----------
    place
        Where the programs are kept for later processes, or None.
    name, why
        For the report of the session: what they are, and the cause if the model has had other programs.
    """
    began, seconds = perf_counter(), dict[str, float]()
    if place is not None and (kept := kept_executables.find_programs(place)) is not None:
        seconds["load"] = perf_counter() - began
        note_build("sampler", name, seconds, kept=True)
        start, advance, *tune = map(done, kept.programs)
        return ChainPrograms(start, tune[0] if tune else None, advance, AboutChain(*kept.about))

    def compile_(name: str, lowered: jax.stages.Lowered, options: dict[str, Any]) -> jax.stages.Compiled:
        started = perf_counter()
        with jax.enable_x64(True):  # this setting belongs to a thread
            program = lowered.compile(options)
        seconds[f"XLA ({name})"] = perf_counter() - started
        return program

    note_build("sampler", name, seconds, cause=why)
    pool = ThreadPoolExecutor(3)
    with parts_of_build():
        chain = make()
        traced = chain.start.trace(*args)
        about = chain.about()
        begun = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), traced.out_info)
        further = with_counts(args[0], 0), begun[: about.results]
        advance = chain.advance.trace(*further)
        options = {} if is_compared else xla_options(advance)
        runs_once = (about.has_warmup or about.tuning) and not is_compared
        started = pool.submit(
            compile_, "start", traced.lower(), options | options_of_few_calls() if runs_once else options
        )
        tuned = None
        if about.tuning:
            to_tune = with_counts(args[0], 0, 0), begun
            tuned = pool.submit(compile_, "tuning", chain.tune.lower(*to_tune), options)
        advanced = pool.submit(compile_, "transitions", lowered := advance.lower(), options)
        seconds["trace and lower"] = perf_counter() - began
    made = ChainPrograms(started, tuned, advanced, about, lowered.as_text() if is_compared else "")
    if place is not None:
        pool.submit(keep_chain, place, made)
    pool.shutdown(wait=False)
    return made


def done(program: jax.stages.Compiled) -> Future[jax.stages.Compiled]:
    """Return a program as one that has been compiled."""
    future: Future[jax.stages.Compiled] = Future()
    future.set_result(program)
    return future


def keep_chain(place: str, programs: ChainPrograms) -> None:
    """Keep programs for later processes when all are compiled; nothing if one can't be."""
    wait(programs.futures)
    if all(program.exception() is None for program in programs.futures):
        kept_executables.keep_programs(place, [program.result() for program in programs.futures], tuple(programs.about))


def xla_options(traced: jax.stages.Traced) -> dict[str, Any]:
    """Return XLA's options for the programs of a kernel, by the trace of the one that makes transitions."""
    return options_of_chain(traced.jaxpr) if jax.default_backend() == "cpu" else {}


def options_of_few_calls() -> dict[str, Any]:
    """Return XLA's options for a program that runs only a few times."""
    return FEW_CALLS if jax.default_backend() == "cpu" else {}


def with_counts(given: tuple, *counts: int) -> tuple:
    """Return the given arrays of a chain with a number of transitions, or the first and last step of some tuning."""
    return *given, *map(np.int64, counts)
