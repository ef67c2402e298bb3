"""Where draws go while chains run: into memory, or into a folder with Zarr arrays and a checkpoint."""

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

#: How many draws of each chain a chunk of a Zarr array has.
DRAWS_IN_BLOCK = 100


class Checkpoint(NamedTuple):
    """What a run goes on from.

    Attributes
    ----------
    done
        How many transitions each chain has made.
    state
        The leaves of the states of all chains.
    pending
        The draws that are in no block yet: positions and statistics.
    about
        What the run is of, see `run_hashes`, and its seeds.
    """

    done: int
    state: list[np.ndarray]
    pending: tuple[dict, dict] | None
    about: dict[str, Any]


class MemoryStore:
    """Draws in memory; nothing outlives the process."""

    def __init__(self, draws: int):
        self._draws, self._kept, self._filled = draws, None, 0

    def add(self, chunk: tuple[dict, dict]) -> None:
        """Keep draws, with axes of chains and draws in front."""
        kept = self._kept = self._kept or jax.tree.map(self._room, chunk)
        length = next(iter(chunk[1].values())).shape[1]
        for whole, part in zip(jax.tree.leaves(kept), jax.tree.leaves(chunk), strict=True):
            whole[:, self._filled : self._filled + length] = part
        self._filled += length

    def _room(self, x: np.ndarray) -> np.ndarray:
        return np.empty((len(x), self._draws, *x.shape[2:]), x.dtype)

    @property
    def draws(self) -> tuple[dict, dict]:
        """The positions and statistics so far."""
        return jax.tree.map(lambda x: x[:, : self._filled], self._kept)


class FolderStore:
    """Draws in ``draws.zarr`` of a folder, in blocks of `DRAWS_IN_BLOCK`, and beside it a checkpoint.

    A block is written when it is full, before the checkpoint that no longer has its draws: whenever a process is killed, what the last
    checkpoint says is done is in the folder. Memory is bounded by one block.

    Parameters
    ----------
    folder
        The folder; it is made if it is missing.
    draws
        How many draws of each chain there will be.
    make_tree
        Makes a DataTree of the positions and statistics of some draws.
    """

    def __init__(self, folder: str | Path, draws: int, make_tree: Callable[[tuple[dict, dict]], xr.DataTree]):
        if find_spec("zarr") is None:
            raise ImportError("A store needs Zarr: pip install 'pytensor_jaxpr_linker[store]'.")
        self.folder, self._draws, self._make_tree = Path(folder), draws, make_tree
        if self.folder.exists() and not self.folder.is_dir():
            raise NotADirectoryError(f"store={str(folder)!r} is a file: give a folder, which is made if it is missing.")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._pending: tuple[dict, dict] | None = None
        self._written = 0
        self._group: Any = None

    def add(self, chunk: tuple[dict, dict]) -> None:
        """Keep draws, with axes of chains and draws in front; write those that fill a block."""
        pending = self._pending
        if pending is not None:
            chunk = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), pending, chunk)
        while (n := length_of(chunk)) >= DRAWS_IN_BLOCK or (n and self._written + n >= self._draws):
            self._write(jax.tree.map(lambda x: x[:, :DRAWS_IN_BLOCK], chunk))
            chunk = jax.tree.map(lambda x: x[:, DRAWS_IN_BLOCK:], chunk)
        self._pending = chunk if n else None

    def _write(self, block: tuple[dict, dict]) -> None:
        """Write a block."""
        tree, n = self._make_tree(block), length_of(block)
        if self._group is None:
            self._group = self._made(tree)
        for name in ("posterior", "sample_stats"):
            for key, x in tree[name].data_vars.items():
                self._group[name][key][:, self._written : self._written + n] = x.values
        self._written += n

    def _made(self, tree: xr.DataTree) -> Any:
        """Return the Zarr group, with arrays for all draws."""
        import zarr

        path = self.folder / "draws.zarr"
        if self._written:
            return zarr.open_group(path, mode="r+")
        rest = {k: v for k, v in tree.children.items() if k not in ("posterior", "sample_stats")}
        xr.DataTree.from_dict({k: v.dataset for k, v in rest.items()}).to_zarr(path, mode="w", consolidated=False)
        group = zarr.open_group(path, mode="r+")
        for name in ("posterior", "sample_stats"):
            data = tree[name].dataset
            made = group.create_group(name, overwrite=True, attributes=plain_attributes(data.attrs))
            for label, x in data.variables.items():
                key, dims = str(label), [str(dim) for dim in x.dims]
                values = np.arange(self._draws) if key == "draw" else np.asarray(x.values)
                if values.dtype.kind in "OU":
                    values = values.astype(np.dtypes.StringDType())
                if "draw" not in dims or key == "draw":
                    made.create_array(key, data=values, dimension_names=dims, overwrite=True)
                    continue
                shape = (x.shape[0], self._draws, *x.shape[2:])
                chunks = (x.shape[0], DRAWS_IN_BLOCK, *x.shape[2:])
                made.create_array(key, shape=shape, chunks=chunks, dtype=x.dtype, dimension_names=dims, overwrite=True)
        return group

    def save(self, done: int, state: list[np.ndarray], about: Mapping[str, Any]) -> None:
        """Replace the checkpoint, at once: a reader sees the old one or the new one."""
        arrays: dict[str, Any] = {f"state{i}": x for i, x in enumerate(state)}
        for prefix, values in zip(("position", "stat"), self._pending or ({}, {}), strict=True):
            arrays |= {f"{prefix}:{name}": x for name, x in values.items()}
        about = {**about, "done": done, "written": self._written, "leaves": len(state)}
        temporary = self.folder / "checkpoint.npz.new"
        with temporary.open("wb") as file:
            np.savez(file, about=np.array(json.dumps(about)), **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.folder / "checkpoint.npz")

    def load(self) -> Checkpoint | None:
        """Return the checkpoint, and go on where it was made; None if there is none."""
        path = self.folder / "checkpoint.npz"
        if not path.exists():
            return None
        try:
            return self._loaded(path)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise ValueError(
                f"The checkpoint {path} is damaged: delete the folder, or give another one as `store`, and the run begins anew."
            ) from error

    def _loaded(self, path: Path) -> Checkpoint:
        """Return the checkpoint in a file."""
        with np.load(path) as file:
            about = json.loads(str(file["about"]))
            state = [file[f"state{i}"] for i in range(about.pop("leaves"))]
            pending: tuple[dict, dict] = ({}, {})
            for key in file.files:
                prefix, _, name = key.partition(":")
                if name:
                    pending[("position", "stat").index(prefix)][name] = file[key]
        self._written = about.pop("written")
        self._pending = pending if pending[1] else None
        return Checkpoint(about.pop("done"), state, self._pending, about)

    def result(self) -> xr.DataTree:
        """Return the draws, which are read from the folder when they are needed."""
        return xr.open_datatree(self.folder / "draws.zarr", engine="zarr", consolidated=False)


def length_of(chunk: tuple[dict, dict]) -> int:
    """Return how many draws of each chain there are."""
    return next(iter(chunk[1].values())).shape[1]


def plain_attributes(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes as JSON has them."""
    return {
        name: value if isinstance(value, str | int | float | bool | list) else str(value)
        for name, value in attrs.items()
    }
