"""What a mesh, a division of data and a run on a mesh must be."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import jax
import pymc as pm
from jax.sharding import Mesh

from pytensor_jaxpr_linker.pymc.arguments import (
    GRADIENTS,
    check_choice,
    check_fraction,
    check_free,
    check_integer,
    did_you_mean,
)
from pytensor_jaxpr_linker.pymc.functions.differentiable import check_variables
from pytensor_jaxpr_linker.pymc.mesh.chains import CHAINS
from pytensor_jaxpr_linker.pymc.options import PACKAGES, kernel_module

#: Samplers that are JAX programs, and the package of each.
ON_MESHES = {"blackjax": "blackjax", "numpyro": "numpyro", "mclmc": "blackjax"}


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


def check_run(
    model: pm.Model,
    sampler: str,
    draws: int,
    tune: int,
    chains: int | None,
    target_accept: float | None,
    max_treedepth: int,
    gradient: str,
    mesh: Mesh | None,
    shard: Mapping[str, str] | None,
    options: Mapping[str, Any],
) -> None:
    """Raise an error, with the remedy, for arguments that can't be."""
    if sampler not in ON_MESHES:
        what = f"sampler={sampler!r} knows of no mesh" if sampler in PACKAGES else f"There is no sampler {sampler!r}"
        meant = did_you_mean(sampler, ON_MESHES)
        raise ValueError(f"{what}: use one of {', '.join(map(repr, ON_MESHES))}.{meant}")
    check_choice("gradient", gradient, GRADIENTS)
    for name, value, least in (
        ("draws", draws, 1),
        ("tune", tune, 0),
        ("chains", chains or 1, 1),
        ("max_treedepth", max_treedepth, 1),
    ):
        check_integer(name, value, least)
    if target_accept is not None:
        check_fraction("target_accept", target_accept)
    check_free(model)
    check_variables(
        model, "MCLMC" if sampler == "mclmc" else "NUTS", "leave out mesh and store, and use sampler='pymc'"
    )
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
    known = {*inspect.signature(kernel_module(sampler).make_kernel).parameters} - {
        "logp",
        "tune",
        "target_accept",
        "max_treedepth",
    }
    for name in options:
        if name not in known:
            raise TypeError(f"sampler={sampler!r} takes no argument {name!r} on a mesh.{did_you_mean(name, known)}")
