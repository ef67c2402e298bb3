"""Runs the chains of a kernel that is a pair of JAX functions, a chunk of transitions at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np

from pytensor_jaxpr_linker.base.platforms import usable_cores
from pytensor_jaxpr_linker.pymc.chains.chain_functions import ChainFunctions
from pytensor_jaxpr_linker.pymc.chains.chunk_lengths import ChunkLengths, longest_chunk
from pytensor_jaxpr_linker.pymc.chains.kept_draws import Draws, KeptDraws
from pytensor_jaxpr_linker.pymc.chains.kernel import Kernel
from pytensor_jaxpr_linker.pymc.chains.programs import (
    ChainPrograms,
    Chunk,
    InThreads,
    JittedChain,
    OneProgram,
    Watch,
    by_way_of_folder,
    pick,
)
from pytensor_jaxpr_linker.pymc.kept_programs import KeptPrograms


class ChainRun(NamedTuple):
    """How chains run.

    Attributes
    ----------
    draws, thinning
        How many transitions a chain makes after its warm-up; every `thinning`-th is kept.
    method : {"parallel", "vectorized", "sequential"}
        At the same time, in threads or divided among JAX's devices; as one program over all chains; one after the other.
    cores
        How many chains run at a time in threads; None for as many as there are cores.
    keep_warmup
        Whether the draws of the warm-up are kept, too.
    """

    draws: int
    method: str
    cores: int | None = None
    thinning: int = 1
    keep_warmup: bool = False


class ChainDraws(NamedTuple):
    """What chains gave.

    Attributes
    ----------
    draws, warmup
        Those that are kept, and those of the warm-up if they are.
    interrupted
        Whether somebody stopped the chains.
    seconds, seconds_before
        How long they ran, and how long it took to compile them.
    """

    draws: Draws
    warmup: Draws | None = None
    interrupted: bool = False
    seconds: float = 0.0
    seconds_before: float = 0.0


class Chains:
    """The chains of a kernel, whose programs compile in threads of their own until they are called, or were kept.

    Parameters
    ----------
    make_kernel
        Returns the kernel, from `inputs`.
    inputs
        Arguments that are inputs of the programs: other values need no other programs.
    key
        What the kernel depends on beside them: equal keys, equal kernels.
    kept
        Where programs are kept.
    tune
        How many transitions the warm-up of a kernel has, if it has one.
    data
        The shared data that the kernel takes.
    like
        Arrays of the shapes and dtypes of the positions where chains start, with an axis of chains in front.
    seeds
        One for each chain.
    run
        How they run.
    """

    def __init__(
        self,
        make_kernel: Callable[..., Kernel],
        inputs: Mapping[str, Any],
        key: Hashable,
        kept: KeptPrograms,
        tune: int,
        data: Mapping[str, Any],
        like: dict[str, np.ndarray],
        seeds: list[int],
        run: ChainRun,
    ):
        self.run, self._kept = run, kept
        devices = jax.devices() if run.method == "parallel" and run.cores is None else jax.devices()[:1]
        # JAX would compile a program to make a key. The starting point is drawn from the same seed, but not from this child of it.
        keys = np.stack([np.random.SeedSequence(seed, spawn_key=(0,)).generate_state(2) for seed in seeds])
        given = dict(data), dict(inputs)
        with jax.enable_x64(True):
            self._placed: OneProgram | InThreads
            if run.method == "vectorized" or len(devices) > 1:
                self._placed = OneProgram(given, keys, devices)
            else:
                workers = 1 if run.method == "sequential" else run.cores or usable_cores()
                self._placed = InThreads(given, keys, workers)
            shapes = shapes_of(data), shapes_of(inputs), shapes_of(pick(like, 0))
            self._key = key, self._placed.key, *shapes
            self._most = longest_chunk(like, self._placed.chains)

            def make() -> JittedChain:
                functions = ChainFunctions(make_kernel, self._most, make_kernel(**inputs).is_ensemble)
                return self._placed.jitted(functions)

            def find(args: tuple) -> JittedChain:
                return by_way_of_folder(kept.folder, self._key, make, args)

            self.programs: ChainPrograms = kept.find(self._key, lambda: self._placed.compile(find, like))
        self.tune = tune if self.programs.about.has_warmup else 0
        self.tuning = self.programs.about.tuning
        self.total = self.tune + run.draws

    def wait(self) -> None:
        """Wait until the programs are compiled."""
        try:
            self.programs.result()
        except Exception:
            self._kept.drop(self._key)
            raise

    @property
    def first_evaluates(self) -> bool:
        """Whether the first transition evaluates the log density, so that `logdensities` may be called."""
        return self.programs.about.first_evaluates

    def logdensities(self, positions: dict[str, np.ndarray]) -> np.ndarray:
        """Return the log density of the position of each chain; one that is not finite where its gradient is not."""
        with jax.enable_x64(True):
            _, found = self._placed.begun(self.programs, positions)
        assert found is not None
        return found

    def chunks(self, positions: dict[str, np.ndarray], watch: Watch) -> Iterator[Chunk]:
        """Return an iterator over the chunks of transitions: the positions and statistics of each."""
        states, _ = self._placed.begun(self.programs, positions)
        states = self._placed.tuned(self.programs, states, ChunkLengths(self.tuning, self.tuning), watch)
        return self._placed.run(self.programs, states, ChunkLengths(self.total, self._most), watch)

    def draw(
        self, positions: dict[str, np.ndarray], watch: Watch, each: Callable[[Chunk, int], tuple[int, bool]] | None
    ) -> ChainDraws:
        """Run the chains and return their draws after warm-up; if interrupted, those so far.

        `each`, if there is one, gets every chunk of all chains, and the number of transitions before it. It returns how many transitions of
        the chunk are to be kept, and whether these are the last ones.
        """
        tune, done, began = self.tune, 0, perf_counter()
        kept = KeptDraws(self.run.draws, self.run.thinning)
        warmup = KeptDraws(tune) if self.run.keep_warmup and tune else None
        with jax.enable_x64(True):
            try:
                for chunk in self.chunks(positions, watch):
                    length = next(iter(chunk[1].values())).shape[1]
                    first, end = min(length, max(0, tune - done)), min(length, self.total - done)
                    ended = False
                    if each is not None:
                        end, ended = each(jax.tree.map(lambda x, end=end: x[:, :end], chunk), done)
                        first = min(first, end)
                    if first and warmup is not None:
                        warmup.add(chunk, 0, first)
                    if first < end:
                        kept.add(chunk, first, end)
                    done += end
                    if ended:
                        raise KeyboardInterrupt
            except KeyboardInterrupt:
                if not kept.length:
                    raise
                interrupted = True
            else:
                interrupted = False
        of_warmup = None if warmup is None else warmup.result()
        return ChainDraws(kept.result(), of_warmup, interrupted, perf_counter() - began)


def shapes_of(values: Mapping[str, Any]) -> tuple:
    """Return what a program depends on of its arguments."""
    return tuple((name, x.shape, str(x.dtype)) for name, x in sorted(values.items()))
