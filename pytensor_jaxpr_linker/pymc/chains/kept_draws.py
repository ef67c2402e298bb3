"""Stores the draws of chains: in arrays, or in a folder from which a run goes on after a crash."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import jax
import numpy as np
import xarray as xr

#: Positions and statistics of a chunk of transitions, with an axis of chains and one of transitions in front.
type Chunk = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]

#: Statistics by which a transition warns. A kept draw has them if it, or a transition that is skipped, has.
WARNINGS = ("diverging", "reached_max_treedepth")
#: The prefix of statistics that describe a divergence, and are NaN for other transitions.
OF_DIVERGENCE = "divergence_"
#: How many draws of each chain a chunk of a Zarr array has.
DRAWS_IN_BLOCK = 100


class Draws(NamedTuple):
    """Positions and statistics, with axes of chains and draws in front."""

    positions: dict[str, np.ndarray]
    stats: dict[str, np.ndarray]


class KeptDraws:
    """Keeps each transition of chains, or every `thinning`-th, in arrays that are allocated once.

    Of so many transitions the last one is kept, with the warnings of all of them: without these, skipped divergences
    would go unseen. Transitions that are too few for one more draw count to the last one. Of `count` transitions in
    all, `seen` are over and `missing` are to come.

    Examples
    --------
    >>> import numpy as np
    >>> from pytensor_jaxpr_linker.pymc.chains.kept_draws import KeptDraws
    >>> kept = KeptDraws(6, thinning=2)
    >>> for first in (0, 3):
    ...     chunk = np.arange(first, first + 3.0)[None]
    ...     kept.add(({"x": chunk}, {"diverging": chunk == 2, "n_steps": chunk}), 0, 3)
    >>> draws = kept.result()
    >>> draws.positions["x"], draws.stats["n_steps"], draws.stats["diverging"]
    (array([[1., 3., 5.]]), array([[1., 3., 5.]]), array([[False,  True, False]]))
    """

    def __init__(self, count: int, thinning: int = 1):
        self._room, self._thinning = count // thinning, thinning
        self._arrays: Any = None
        self.seen, self.missing = 0, count

    @property
    def length(self) -> int:
        """How many draws are complete."""
        return self.seen // self._thinning

    @property
    def begun(self) -> Chunk:
        """The draws so far, with one that is not complete."""
        return jax.tree.map(lambda x: x[:, : -(-self.seen // self._thinning)], self._arrays or ({}, {}))

    def restore(self, begun: Chunk, seen: int) -> None:
        """Go on from draws of the first `seen` transitions."""
        if seen:
            self._make_room(begun)
            for whole, part in zip(jax.tree.leaves(self._arrays), jax.tree.leaves(begun), strict=True):
                whole[:, : part.shape[1]] = part
        self.seen, self.missing = seen, self.missing - seen

    def _make_room(self, chunk: Chunk) -> None:
        def empty(name: str, x: np.ndarray) -> np.ndarray:
            fill = np.nan if name.startswith(OF_DIVERGENCE) and x.dtype.kind == "f" else 0
            return np.full((len(x), self._room, *x.shape[2:]), fill, x.dtype)

        self._arrays = tuple({name: empty(name, x) for name, x in group.items()} for group in chunk)

    def add(self, chunk: Chunk, first: int, end: int) -> None:
        """Keep draws of the transitions from `first` to `end` of a chunk."""
        if self._arrays is None:
            self._make_room(chunk)
        positions, stats = jax.tree.map(lambda x: x[:, first:end], chunk)
        kept_positions, kept_stats = self._arrays
        numbers = np.arange(self.seen, self.seen + end - first)
        rows, is_kept = np.minimum(numbers // self._thinning, self._room - 1), (numbers + 1) % self._thinning == 0
        for name, x in positions.items():
            kept_positions[name][:, rows[is_kept]] = x[:, is_kept]
        for name, x in stats.items():
            if name in WARNINGS:
                np.logical_or.at(kept_stats[name].swapaxes(0, 1), rows, x.swapaxes(0, 1))
            elif name.startswith(OF_DIVERGENCE):
                chains, diverged = np.nonzero(stats["diverging"])
                kept_stats[name][chains, rows[diverged]] = x[chains, diverged]
            else:
                kept_stats[name][:, rows[is_kept]] = x[:, is_kept]
        self.seen, self.missing = self.seen + end - first, self.missing - end + first

    def result(self) -> Draws:
        """Return the draws so far."""
        return Draws(*jax.tree.map(lambda x: x[:, : self.length], self._arrays))


def length_of(chunk: Chunk) -> int:
    """Return how many transitions of each chain there are."""
    return next(iter(chunk[1].values())).shape[1]


def thinned(draws: Draws, thinning: int) -> Draws:
    """Return every `thinning`-th of some draws, with the warnings of all: see `KeptDraws`."""
    if thinning == 1:
        return draws
    count = length_of(draws)
    kept = KeptDraws(count, thinning)
    kept.add((draws.positions, draws.stats), 0, count)
    return kept.result()


class Checkpoint(NamedTuple):
    """The place from which a run goes on.

    Each chain has made `done` transitions. `state` has the leaves of the states of all chains, and `about` the hashes
    of the run, see `run_hashes`, and its seeds.
    """

    done: int
    state: list[np.ndarray]
    about: dict[str, Any]


class FolderStore:
    """Draws in ``draws.zarr`` of a folder, in blocks of `DRAWS_IN_BLOCK`, and a checkpoint.

    Of several processes the first one writes. A full block is written before the checkpoint that no longer has its
    draws: whenever a process is killed, the folder has all draws that the last checkpoint counts. Memory is bounded by
    one block.

    `count` and `thinning` are as for `KeptDraws`; `make_tree` makes a DataTree of some draws. `before` is the
    checkpoint, if there is one, and `about` has the hashes of the run, for the next ones.
    """

    def __init__(self, folder: str | Path, count: int, thinning: int, make_tree: Callable[[Draws], xr.DataTree]):
        if find_spec("zarr") is None:
            raise ImportError("A store needs Zarr: pip install 'pytensor_jaxpr_linker[store]'.")
        self.folder, self._count, self._thinning, self._make_tree = Path(folder), count, thinning, make_tree
        if self.folder.exists() and not self.folder.is_dir():
            raise NotADirectoryError(f"store={str(folder)!r} is a file: give a folder, which is made if it is missing.")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._writes, self._written = jax.process_index() == 0, 0
        self._group: Any = None
        self._block = self._next_block()
        self.about: Mapping[str, Any] = {}
        self.before = self._load()

    def go_on(self, about: Mapping[str, Any]) -> None:
        """Note the hashes of the run, or raise an error if the checkpoint is of another run."""
        for name, value in about.items():
            if self.before is not None and self.before.about.get(name) != value:
                raise ValueError(
                    f"The folder {self.folder} has a run with other {name.removeprefix('other ')}: finish that with the"
                    " same, or give another folder as `store`."
                )
        self.about = about

    @property
    def _room(self) -> int:
        """How many draws there will be."""
        return self._count // self._thinning

    def _next_block(self) -> KeptDraws:
        """Return the place of the next block. The last block has all transitions that are left."""
        left = self._count - self._written * self._thinning
        is_last = self._written + DRAWS_IN_BLOCK >= self._room
        return KeptDraws(left if is_last else DRAWS_IN_BLOCK * self._thinning, self._thinning)

    def add(self, chunk: Chunk, first: int, end: int) -> None:
        """Keep draws of the transitions from `first` to `end` of a chunk; write blocks that are full."""
        while self._writes and first < end:
            stop = min(end, first + self._block.missing)
            self._block.add(chunk, first, stop)
            first = stop
            if not self._block.missing:
                self._write(self._block.result())
                self._block = self._next_block()

    def _write(self, block: Draws) -> None:
        """Write a block."""
        tree, n = self._make_tree(block), length_of(block)
        if self._group is None:
            self._group = self._made(tree)
        for name in groups_of_draws(tree):
            for key, x in tree[name].data_vars.items():
                self._group[name][key][:, self._written : self._written + n] = x.values
        self._written += n

    def _made(self, tree: xr.DataTree) -> Any:
        """Return the Zarr group, with arrays for all draws."""
        import zarr

        path = self.folder / "draws.zarr"
        if self._written:
            return zarr.open_group(path, mode="r+")
        names = groups_of_draws(tree)
        rest = {k: v.dataset for k, v in tree.children.items() if k not in names}
        xr.DataTree.from_dict(rest).to_zarr(path, mode="w", consolidated=False)
        group = zarr.open_group(path, mode="r+")
        for name in names:
            data = tree[name].dataset
            made = group.create_group(name, overwrite=True, attributes=plain_attributes(data.attrs))
            for label, x in data.variables.items():
                key, dims = str(label), [str(dim) for dim in x.dims]
                values = np.arange(self._room) if key == "draw" else np.asarray(x.values)
                if values.dtype.kind in "OU":
                    values = values.astype(np.dtypes.StringDType())
                if "draw" not in dims or key == "draw":
                    made.create_array(key, data=values, dimension_names=dims, overwrite=True)
                    continue
                shape = (x.shape[0], self._room, *x.shape[2:])
                chunks = (x.shape[0], DRAWS_IN_BLOCK, *x.shape[2:])
                made.create_array(key, shape=shape, chunks=chunks, dtype=x.dtype, dimension_names=dims, overwrite=True)
        return group

    def save(self, done: int, state: list[np.ndarray]) -> None:
        """Replace the checkpoint, at once: a reader sees the old one or the new one."""
        if not self._writes:
            return
        arrays: dict[str, Any] = {f"state{i}": x for i, x in enumerate(state)}
        for prefix, values in zip(("position", "stat"), self._block.begun, strict=True):
            arrays |= {f"{prefix}:{name}": x for name, x in values.items()}
        counts = {"done": done, "written": self._written, "seen": self._block.seen, "leaves": len(state)}
        about = {**self.about, **counts}
        temporary = self.folder / "checkpoint.npz.new"
        with temporary.open("wb") as file:
            np.savez(file, about=np.array(json.dumps(about)), **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.folder / "checkpoint.npz")

    def _load(self) -> Checkpoint | None:
        """Return the checkpoint, and go on where it was made; None if there is none."""
        path = self.folder / "checkpoint.npz"
        if not path.exists():
            return None
        pending: tuple[dict, dict] = ({}, {})
        try:
            with np.load(path) as file:
                about = json.loads(str(file["about"]))
                state = [file[f"state{i}"] for i in range(about.pop("leaves"))]
                for key in file.files:
                    prefix, _, name = key.partition(":")
                    if name:
                        pending[("position", "stat").index(prefix)][name] = file[key]
            self._written = about.pop("written")
            self._block = self._next_block()
            self._block.restore(pending, about.pop("seen"))
            return Checkpoint(about.pop("done"), state, about)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise ValueError(
                f"The checkpoint {path} is damaged: delete the folder, or give another one as `store`, and the run"
                " begins anew."
            ) from error

    def result(self, attrs: Mapping[str, Any]) -> xr.DataTree:
        """Return the draws, which are read from the folder when they are needed, with attributes of the whole run."""
        if self._group is not None:
            for name in ("posterior", "sample_stats"):
                self._group[name].attrs.update(plain_attributes(attrs))
        return xr.open_datatree(self.folder / "draws.zarr", engine="zarr", consolidated=False)


def groups_of_draws(tree: xr.DataTree) -> list[str]:
    """Return the names of the groups that have an axis of draws."""
    return [name for name, group in tree.children.items() if "draw" in group.sizes]


def plain_attributes(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes of types that JSON has."""
    return {
        name: value if isinstance(value, str | int | float | bool | list) else str(value)
        for name, value in attrs.items()
    }
