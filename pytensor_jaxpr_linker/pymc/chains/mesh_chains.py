"""Chains on a mesh of the user's: runs that several processes share, and that go on from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from pytensor_jaxpr_linker.pymc.chains.programs import (
    CHAINS,
    ChainPrograms,
    JittedChain,
    OneProgram,
    compile_programs,
)
from pytensor_jaxpr_linker.run import placement


class MeshChains(OneProgram):
    """One program over all chains on a mesh, with an equal part of them on each part of its axis `CHAINS`.

    Along the other axes XLA's partitioner divides what reads the data. Without the axis `CHAINS` all chains are on each
    device.
    """

    def __init__(self, given: Any, keys: np.ndarray, mesh: Mesh):
        super().__init__((), keys, mesh)
        self._given = given  # which is on the mesh
        self._whole = jax.jit(lambda x: x, out_shardings=self._same)

    def _divided(self, batched: Callable, arguments: int) -> Any:
        if CHAINS not in self._mesh.axis_names:
            return jax.jit(batched, out_shardings=self._same)
        specs, each = (self._same.spec, *(self._each.spec,) * arguments), self._each.spec
        options: Any = {"in_specs": specs, "out_specs": each, "axis_names": {CHAINS}, "check_vma": False}
        return jax.jit(jax.shard_map(batched, mesh=self._mesh, **options))

    def compile(self, find: Callable[[tuple], JittedChain], like: dict) -> ChainPrograms:
        """Begin to compile what `find` returns for the arguments of the first program."""
        args = self._given, self._keys, self._put(like)
        return compile_programs(find(args), args, self._each, is_compared=True)

    def on_host(self, values: Any) -> Any:
        """Return arrays as NumPy's; each process gets all chains."""
        if not all(map(placement.is_here, jax.tree.leaves(values))):
            values = self._whole(values)
        return super().on_host(values)

    def saved(self) -> list[np.ndarray]:
        """Return what a checkpoint holds of the states."""
        return self.on_host(self.states)

    def restored(self, saved: list[np.ndarray]) -> Any:
        """Return the states of chains that were saved."""
        return [placement.put(x, self._each, "the state of chains") for x in saved]

    def begun(self, programs: ChainPrograms, positions: dict) -> tuple[Any, None]:
        """Return the states of chains before the first transition."""
        begin, _, _ = programs.result()
        return begin(self._given, self._keys, self._put(positions)), None
