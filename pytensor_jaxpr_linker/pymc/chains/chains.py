"""Runs the chains of a kernel that is a pair of JAX functions, a chunk of transitions at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import cache
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from pytensor_jaxpr_linker.base.interpreter import usable_cores
from pytensor_jaxpr_linker.pymc.chains.chain_functions import ChainFunctions
from pytensor_jaxpr_linker.pymc.chains.chunk_lengths import BETWEEN_CHECKPOINTS, ChunkLengths, longest_chunk
from pytensor_jaxpr_linker.pymc.chains.folder_store import Checkpoint, FolderStore
from pytensor_jaxpr_linker.pymc.chains.kept_draws import Draws, KeptDraws, length_of
from pytensor_jaxpr_linker.pymc.chains.kernel import AboutChain, Kernel
from pytensor_jaxpr_linker.pymc.chains.mesh_chains import MeshChains
from pytensor_jaxpr_linker.pymc.chains.programs import (
    CHAINS,
    ChainPrograms,
    Chunk,
    InThreads,
    JittedChain,
    OneProgram,
    Watch,
    pick,
    xla_options,
)
from pytensor_jaxpr_linker.pymc.kept_programs import FolderPrograms, KeptPrograms, StoredFunction, stored_function


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
    mesh
        The user's, along whose axis `CHAINS` chains are divided.
    """

    draws: int
    method: str
    cores: int | None = None
    thinning: int = 1
    keep_warmup: bool = False
    mesh: Mesh | None = None


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
    store
        The folder that has the draws instead.
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
                is_ensemble = make_kernel(**inputs).is_ensemble
                return self._placed.jitted(ChainFunctions(make_kernel, self._most, is_ensemble, run.mesh is None))

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
        return self.programs.about.first_evaluates and self.run.mesh is None

    def logdensities(self, positions: dict[str, np.ndarray]) -> np.ndarray:
        """Return the log density of the position of each chain; one that is not finite where its gradient is not."""
        with jax.enable_x64(True):
            _, found = self._placed.begun(self.programs, positions)
        assert found is not None
        return found

    def chunks(
        self, positions: dict[str, np.ndarray] | None, watch: Watch, before: Checkpoint | None
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
            skipped = int(self.programs.about.first_evaluates)
        if isinstance(placed, MeshChains):
            lengths = ChunkLengths(self.total - done + skipped, self._most, by_time=False)
            return placed.run(self.programs, states, lengths, watch, skipped)
        return placed.run(self.programs, states, ChunkLengths(self.total, self._most), watch)

    def draw(
        self,
        positions: dict[str, np.ndarray] | None,
        watch: Watch,
        each: Callable[[Chunk, int], tuple[int, bool]] | None = None,
        store: FolderStore | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> ChainDraws:
        """Run the chains and return their draws after warm-up; if interrupted, those so far.

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
            Gets the number of transitions that can't be lost any more, and that of all.
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
    """Return what a program depends on of its arguments."""
    return tuple((name, x.shape, str(x.dtype)) for name, x in sorted(values.items()))


def by_way_of_folder(
    folder: FolderPrograms, key: Hashable, make: Callable[[], JittedChain], args: tuple
) -> JittedChain:
    """Return the functions of a kernel from the folder of `cache`, or put there those that `make` returns."""
    made = cache(make)

    def start_to_store() -> StoredFunction:
        stored = stored_function(made().start, args)
        return stored._replace(about=tuple(made().about()))

    def later(name: str, function: Callable[[], Any], further: tuple, options: Callable[[Any], Any]) -> Any:
        """Return a function that takes states, and what is known of it."""

        def to_store() -> StoredFunction:
            jax.eval_shape(made().start, *args)  # which shows what states consist of
            jitted = function()
            return stored_function(jitted, further, options(jitted))

        found = folder.find((name, key), to_store)
        return (function(), None) if found is None else (found.jitted(), found.about)

    def tune(further: tuple) -> Any:
        return later("tune", lambda: made().tune(further), further, lambda _: None)[0]

    def advance(further: tuple) -> tuple[Any, dict[str, Any] | None]:
        return later("advance", lambda: made().advance(further)[0], further, lambda f: xla_options(f.trace(*further)))

    found = folder.find(("start", key), start_to_store)
    return made() if found is None else JittedChain(found.jitted(), tune, advance, lambda: AboutChain(*found.about))
