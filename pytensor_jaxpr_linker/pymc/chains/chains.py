"""Runs the chains of a kernel that is a pair of JAX functions, a chunk of transitions at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from pytensor_jaxpr_linker.base.interpreter import usable_cores
from pytensor_jaxpr_linker.pymc.blas import limit_loaded_blas
from pytensor_jaxpr_linker.pymc.chains.chain_progress import Watched
from pytensor_jaxpr_linker.pymc.chains.kept_draws import Checkpoint, Chunk, Draws, FolderStore, KeptDraws, length_of
from pytensor_jaxpr_linker.pymc.chains.kernel import ChainFunctions, Kernel
from pytensor_jaxpr_linker.pymc.chains.programs import (
    BETWEEN_CHECKPOINTS,
    ChainPrograms,
    ChunkLengths,
    JittedChain,
    longest_chunk,
    programs_of,
)
from pytensor_jaxpr_linker.pymc.chains.runners import CHAINS, InThreads, MeshChains, OneProgram, pick
from pytensor_jaxpr_linker.pymc.kept_programs import KeptPrograms


class ChainRun(NamedTuple):
    """How chains run: with `draws` transitions after their warm-up, of which every `thinning`-th is kept.

    `method` is "parallel" (at the same time, in threads or divided among JAX's devices), "vectorized" (as one program
    over all chains) or "sequential". `cores` chains run at a time in threads; None is for as many as there are cores.
    `keep_warmup` keeps the draws of the warm-up, too. Along the axis `CHAINS` of `mesh`, the user's, chains are
    divided.
    """

    draws: int
    method: str
    cores: int | None = None
    thinning: int = 1
    keep_warmup: bool = False
    mesh: Mesh | None = None


class ChainDraws(NamedTuple):
    """The draws of chains, of their warm-up if these are kept, and the folder that has the draws instead.

    `interrupted` says whether somebody stopped the chains. They ran for `seconds`, after `seconds_before` for
    compiling.
    """

    draws: Draws
    warmup: Draws | None = None
    interrupted: bool = False
    seconds: float = 0.0
    seconds_before: float = 0.0
    store: FolderStore | None = None


class Chains:
    """The chains of a kernel, whose programs compile in threads of their own until they are called, or were kept.

    Parameters
    ----------
    make_kernel, inputs
        Returns the kernel from `inputs`, which are arguments of the programs: other values need no other programs.
    key
        All other things on which the kernel depends: equal keys, equal kernels.
    tune
        How many transitions the warm-up of a kernel has, if it has one.
    data
        The shared data that the kernel takes.
    like
        Arrays of the shapes and dtypes of the positions where chains start, with an axis of chains in front.
    seeds
        One for each chain.
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
        # JAX would compile a program to make a key. The starting point is drawn from the same seed, but not from this
        # child of it.
        keys = np.stack([np.random.SeedSequence(seed, spawn_key=(0,)).generate_state(2) for seed in seeds])
        given = dict(data), dict(inputs)
        with jax.enable_x64(True):
            self._placed: MeshChains | OneProgram | InThreads
            if run.mesh is not None:
                self._placed = MeshChains(given, keys, run.mesh)
            elif run.method == "vectorized" or len(devices) > 1:
                self._placed = OneProgram(given, keys, mesh_of_chains(devices, len(keys)))
            else:
                workers = 1 if run.method == "sequential" else run.cores or usable_cores()
                self._placed = InThreads(given, keys, workers)
            shapes = shapes_of(data), shapes_of(inputs), shapes_of(pick(like, 0))
            self._key = key, self._placed.key, *shapes
            self._most = longest_chunk(like, self._placed.chains)
            if run.mesh is not None:
                kernel = make_kernel(**inputs)
                warmup = tune if kernel.has_warmup else 0
                self._most = min(BETWEEN_CHECKPOINTS, kernel.first_evaluates + warmup + run.draws)

            def make() -> JittedChain:
                functions = ChainFunctions(make_kernel, self._most, run.mesh is None)
                jitted = partial(self._placed.jitted, is_ensemble=make_kernel(**inputs).is_ensemble)
                tune, advance = (jitted(f, 1) for f in (functions.tune, functions.advance))
                return JittedChain(jitted(functions.start, 2), tune, advance, lambda: functions.about)

            def compile_() -> ChainPrograms:
                args = self._placed.arguments(like)
                place = None if run.mesh is not None else kept.folder.place(self._key)
                name, why = ", ".join([*like][:3]), kept.cause("chains", self._key)
                return programs_of(make, args, self._placed.sharding, run.mesh is not None, place, name, why)

            self.programs: ChainPrograms = kept.find(self._key, compile_)
        self.tune = tune if self.programs.about.has_warmup else 0
        self.tuning = self.programs.about.tuning
        self.total = self.tune + run.draws

    def wait(self) -> None:
        """Wait until the programs are compiled. Chains then share the threads of the LAPACK that they call."""
        try:
            self.programs.result()
            limit_loaded_blas()
        except Exception:
            self._kept.drop(self._key)
            raise

    @property
    def first_evaluates(self) -> bool:
        """Whether the first transition evaluates the log density, so that `logdensities` may be called."""
        return self.programs.about.first_evaluates and self.run.mesh is None

    def logdensities(self, positions: dict[str, np.ndarray]) -> np.ndarray:
        """Return the log density of the position of each chain; one that is not finite where its gradient is not."""
        with jax.enable_x64(True):
            _, found = self._placed.begun(self.programs, positions)
        assert found is not None
        return found

    def chunks(
        self, positions: dict[str, np.ndarray] | None, watch: Watched, before: Checkpoint | None
    ) -> Iterator[Chunk]:
        """Return an iterator over the chunks of transitions that are left after a checkpoint: the positions and
        statistics of each.
        """
        placed, done, skipped = self._placed, 0, 0
        if before is not None and isinstance(placed, MeshChains):
            states, done = placed.restored(before.state), before.done
        else:
            assert positions is not None
            states, _ = placed.begun(self.programs, positions)
            states = placed.tuned(self.programs, states, ChunkLengths(self.tuning, self.tuning), watch)
            skipped = int(self.programs.about.first_evaluates and self.run.mesh is not None)
        lengths = ChunkLengths(self.total - done + skipped, self._most, by_time=self.run.mesh is None)
        return placed.run(self.programs, states, lengths, watch, skipped)

    def draw(
        self,
        positions: dict[str, np.ndarray] | None,
        watch: Watched,
        each: Callable[[Chunk, int], tuple[int, bool]] | None = None,
        store: FolderStore | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> ChainDraws:
        """Run the chains and return their draws after warm-up; if interrupted, the draws so far.

        Parameters
        ----------
        positions
            Where chains start, unless they go on.
        each
            Gets every chunk of all chains, and the number of transitions before it. It returns how many transitions of
            the chunk are to be kept, and whether these are the last ones.
        store
            Keeps the draws in a folder. If it has a checkpoint, chains go on from that.
        on_progress
            Gets the number of transitions that can't be lost any more, and the number of all.
        """
        began, before = perf_counter(), None if store is None else store.before
        kept = KeptDraws(self.run.draws, self.run.thinning) if store is None else store
        warmup = KeptDraws(self.tune) if self.run.keep_warmup and self.tune else None
        done = 0 if before is None else before.done
        interrupted = False
        with jax.enable_x64(True):
            try:
                for chunk in self.chunks(positions, watch, before):
                    end, ended = (length_of(chunk), False) if each is None else each(chunk, done)
                    first = min(end, max(0, self.tune - done))
                    if ended and store is not None:  # which keeps whole chunks
                        raise KeyboardInterrupt
                    if first and warmup is not None:
                        warmup.add(chunk, 0, first)
                    if first < end:
                        kept.add(chunk, first, end)
                    if store is not None and isinstance(self._placed, MeshChains):
                        store.save(done + end, self._placed.saved())
                    done += end
                    if on_progress is not None:
                        on_progress(done, self.total)
                    if ended:
                        raise KeyboardInterrupt
            except KeyboardInterrupt as error:
                if not isinstance(kept, KeptDraws):
                    error.add_note(
                        f"The folder {kept.folder} keeps {done} of {self.total} transitions of each chain:"
                        " the same call goes on after them."
                    )
                    raise
                if not kept.length or (self.run.mesh is not None and jax.process_count() > 1):
                    raise
                interrupted = True
        found = kept.result() if isinstance(kept, KeptDraws) else Draws({}, {})
        of_warmup = None if warmup is None else warmup.result()
        return ChainDraws(found, of_warmup, interrupted, perf_counter() - began, store=store)


def mesh_of_chains(devices: list, chains: int) -> Mesh:
    """Return a mesh of as many devices as have a part of the chains."""
    part = -(-chains // len(devices))
    return Mesh(np.array(devices[: -(-chains // part)]), (CHAINS,))


def shapes_of(values: Mapping[str, Any]) -> tuple:
    """Return the shapes and dtypes of arguments, on which a program depends."""
    return tuple((name, x.shape, str(x.dtype)) for name, x in sorted(values.items()))
