"""What a mesh, a division of data and a run on a mesh must be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from pytensor_jaxpr_linker.pymc.arguments import did_you_mean
from pytensor_jaxpr_linker.pymc.chains.programs import CHAINS
from pytensor_jaxpr_linker.pymc.options import ALIASES, PACKAGES
from pytensor_jaxpr_linker.run import placement

#: Samplers that run on meshes.
ON_MESHES = ("nuts", "numpyro", "mclmc")


def check_mesh(mesh: Any) -> Mesh:
    """Return a mesh, or raise a TypeError."""
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh must be a jax.sharding.Mesh, not {mesh!r}: make one by jax.make_mesh((8,), ('data',)).")
    return mesh


def check_division(name: str, axes: Any) -> Mapping[str, str]:
    """Return along which axis of a mesh each dim is divided, or raise an error."""
    if not isinstance(axes, Mapping) or not axes:
        given = "" if axes is None else f", not {axes!r}"
        error = TypeError if given and not isinstance(axes, Mapping) else ValueError
        raise error(
            f'{name} says along which axis of the mesh a dim is divided: give a dict such as {{"obs": "data"}}{given}.'
        )
    for dim, axis in axes.items():
        if not isinstance(axis, str):
            raise ValueError(
                f"A dim is divided along one axis of the mesh, and {name} has {axis!r} for {dim!r}: give the name of one axis, of a mesh that has one"
                " in place of several."
            )
    return axes


def checked_mesh(mesh: Any, shard: Any) -> Mesh:
    """Return the mesh of a run, by default of all devices, or raise an error, with the remedy."""
    if mesh is not None:
        check_mesh(mesh)
    if shard is not None:
        check_division("shard", shard)
    if CHAINS in dict(shard or {}).values():
        raise ValueError(
            "Chains are divided along the mesh's axis 'chains', so data can't be: give the mesh another axis for them."
        )
    if mesh is None and shard:
        axis = next(iter(shard.values()))
        raise ValueError(
            f"shard divides data along axes of a mesh, and there is none: give one, such as mesh=jax.make_mesh((1, {len(jax.devices())}),"
            f" ({CHAINS!r}, {axis!r}))."
        )
    if mesh is not None and shard is None and (others := [n for n in mesh.axis_names if n != CHAINS]):
        raise ValueError(
            f"The mesh has the axis {others[0]!r}, and nothing is divided along it: give shard, a dict such as {{'obs': {others[0]!r}}}, or a mesh"
            " with the axis 'chains' alone."
        )
    return placement.automatic(Mesh(np.array(jax.devices()), (CHAINS,)) if mesh is None else mesh)


def check_sampler_of_mesh(sampler: str) -> None:
    """Raise an error for a sampler that does not run on a mesh."""
    if sampler not in ON_MESHES:
        what = f"sampler={sampler!r} knows of no mesh" if sampler in PACKAGES else f"There is no sampler {sampler!r}"
        meant = did_you_mean(sampler, [*ON_MESHES, *ALIASES])
        raise ValueError(f"{what}: use one of {', '.join(map(repr, ON_MESHES))}.{meant}")
