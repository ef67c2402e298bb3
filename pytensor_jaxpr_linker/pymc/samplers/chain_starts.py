"""The points where chains start, and their log densities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from pytensor_jaxpr_linker.pymc.chains.chains import Chains, shapes_of
from pytensor_jaxpr_linker.pymc.chains.programs import options_of_few_calls
from pytensor_jaxpr_linker.pymc.functions.initial import stacked_points
from pytensor_jaxpr_linker.pymc.kept_models import KeptModel
from pytensor_jaxpr_linker.run import placement


def chain_positions(points: list[dict[str, np.ndarray]], group: int) -> dict[str, np.ndarray]:
    """Return the positions of chains, `group` of which start at each point."""
    return wide([point for point in points for _ in range(group)])


def logdensities_of(chains: Chains, group: int) -> Callable[[list[dict]], np.ndarray]:
    """Return the function from points to their log densities, by the first transition of chains."""
    return lambda points: chains.logdensities(chain_positions(points, group))[::group]


def wide(points: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the points of chains as arrays of float64, in which samplers move, with an axis of chains in front."""
    return {name: x.astype("float64") for name, x in stacked_points(points).items()}


def density_of_points(
    kept: KeptModel, like: dict[str, np.ndarray], data: Mapping[str, Any]
) -> Callable[[list[dict]], list[float]]:
    """Return the function from points to their log densities, by a program of one point, which is kept."""
    everywhere = placement.copied_to_mesh(data.values())
    one = {name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype, sharding=everywhere) for name, x in like.items()}

    def make() -> jax.stages.Compiled:
        args = one, dict(data)
        jitted = kept.programs.folder.jitted(key, lambda q, data: kept.logp(q, data), args)
        return jitted.lower(*args).compile(options_of_few_calls())

    key = "log density", shapes_of(data), shapes_of(one), kept.lengths
    with jax.enable_x64(True):
        call = kept.programs.find(key, make)

    def value(point: dict[str, np.ndarray]) -> float:
        with jax.enable_x64(True):
            return float(call({name: np.asarray(point[name], "float64") for name in one}, dict(data)))

    return lambda points: [value(point) for point in points]
