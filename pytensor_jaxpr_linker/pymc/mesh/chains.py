"""Chains and data on one mesh: chains along its axis "chains", data along the others, in one process or several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pytensor_jaxpr_linker.pymc.chains.chain_functions import for_one
from pytensor_jaxpr_linker.pymc.chains.random_keys import KEYS, with_keys, without_keys
from pytensor_jaxpr_linker.run import placement

#: The axis of a mesh along which chains are divided.
CHAINS = "chains"


class MeshChains:
    """The two programs of a kernel on a mesh: `start` makes the states of all chains, `advance` makes `length` transitions of each.

    Each part of the axis "chains" has loops of its own, so that no chain waits for one elsewhere; along the other axes XLA's partitioner divides
    what reads the data.

    Parameters
    ----------
    kernel
        Its attributes are functions of the data: ``start(data, key, position)`` and ``transition(data, state)``.
    data
        The shared data, on the mesh.
    mesh
        With an axis "chains", or without: then all chains are on each device.
    like
        Arrays of the shapes and dtypes of the positions where chains start, with an axis of chains in front.
    seeds
        One for each chain.
    length
        How many transitions `advance` makes.
    """

    def __init__(
        self, kernel: Any, data: Mapping[str, Any], mesh: Mesh, like: Mapping[str, Any], seeds: list[int], length: int
    ):
        self.mesh, self.count, self.length = mesh, len(seeds), length
        self._data = dict(data)
        parts = mesh.shape.get(CHAINS, 1)
        rows = -(-self.count // parts)
        # Equal parts: the last one may run chains of the first once more, which nobody reads.
        self._index = np.arange(rows * parts) % self.count
        self._each = PartitionSpec(CHAINS) if CHAINS in mesh.axis_names else PartitionSpec()
        # The starting point is drawn from the same seed, but not from this child of it.
        keys = np.stack([np.random.SeedSequence(seed, spawn_key=(0,)).generate_state(2) for seed in seeds])

        def start(data: Any, key: Any, position: dict) -> Any:
            return without_keys(kernel.start(data, jax.random.wrap_key_data(key, impl=KEYS), position))

        def advance(data: Any, state: Any) -> tuple[Any, tuple[dict, dict]]:
            state, outputs = jax.lax.scan(lambda s, _: kernel.transition(data, s), with_keys(state), length=length)
            return without_keys(state), outputs

        with jax.enable_x64(True):
            self._keys = self._put(keys)
            first, further = self._divided(start, 2, rows), self._divided(advance, 1, rows)
            lowered = first.lower(self._data, self._keys, self._put(like))
            states = jax.tree.map(self._struct, lowered.out_info)
            self._tree = jax.tree.structure(states)
            self.lowered = further.lower(self._data, states)
            self._start, self._advance = lowered.compile(), self.lowered.compile()
            self._whole = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def _struct(self, x: Any) -> jax.ShapeDtypeStruct:
        """Return the shape of an array of all chains, with where it lies."""
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(self.mesh, self._each))

    def _divided(self, function: Callable, arguments: int, rows: int) -> Any:
        """Return a function of one chain as one of all, which has a part of them on each part of the mesh."""
        batched = for_one(function) if rows == 1 else jax.vmap(function, in_axes=(None, *(0,) * arguments))
        if CHAINS not in self.mesh.axis_names:
            return jax.jit(batched, out_shardings=NamedSharding(self.mesh, PartitionSpec()))
        specs = (PartitionSpec(), *(self._each,) * arguments)
        divided = jax.shard_map(
            batched, mesh=self.mesh, in_specs=specs, out_specs=self._each, axis_names={CHAINS}, check_vma=False
        )
        return jax.jit(divided)

    def _put(self, values: Any) -> Any:
        """Return arrays of all chains on the mesh."""
        sharding = NamedSharding(self.mesh, self._each)
        return jax.tree.map(
            lambda x: placement.put(np.asarray(x)[self._index], sharding, "the state of chains"), values
        )

    def start(self, positions: Mapping[str, Any]) -> Any:
        """Return the states of chains that start at positions."""
        with jax.enable_x64(True):
            return self._start(self._data, self._keys, self._put(dict(positions)))

    def advance(self, states: Any) -> tuple[Any, tuple[dict, dict]]:
        """Return the states after `length` transitions, and the positions and statistics of these as NumPy arrays."""
        with jax.enable_x64(True):
            states, outputs = self._advance(self._data, states)
            return states, jax.tree.map(lambda x: x[: self.count], self.on_host(outputs))

    def on_host(self, values: Any) -> Any:
        """Return arrays as NumPy's; each process gets all chains."""
        with jax.enable_x64(True):
            if not all(map(placement.is_here, jax.tree.leaves(values))):
                values = self._whole(values)
            return jax.tree.map(np.asarray, values)

    def saved(self, states: Any) -> list[np.ndarray]:
        """Return what a checkpoint has to hold of the states."""
        return jax.tree.leaves(self.on_host(states))

    def restored(self, leaves: list[np.ndarray]) -> Any:
        """Return the states that were saved."""
        sharding = NamedSharding(self.mesh, self._each)
        return jax.tree.unflatten(self._tree, [placement.put(x, sharding, "the state of chains") for x in leaves])


def check_same_everywhere(parts: Mapping[str, str]) -> None:
    """Raise a RuntimeError unless all processes have the same hashes; `parts` are hexadecimal, by what they are of."""
    if jax.process_count() == 1:
        return
    words = np.array([[int(digest[i : i + 7], 16) for i in (0, 7)] for digest in parts.values()], dtype="int32")
    everywhere = np.asarray(multihost_utils.process_allgather(words))
    for i, what in enumerate(parts):
        if (differing := np.flatnonzero((everywhere[:, i] != everywhere[0, i]).any(axis=1))).size:
            raise RuntimeError(
                f"The processes of this run have different {what} (process {differing[0]} differs from process 0): start the same program, with the"
                " same arguments and versions, on each."
            )
