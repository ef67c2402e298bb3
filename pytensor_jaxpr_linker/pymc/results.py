"""What sampling returns: a DataTree like PyMC's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import Any, Literal

import numpy as np
import pymc as pm
import xarray as xr
from arviz_base import dict_to_dataset, from_dict, make_attrs
from pymc.backends.arviz import coords_and_dims_for_inferencedata, find_constants, find_observations

from pytensor_jaxpr_linker.base.version import __version__
from pytensor_jaxpr_linker.pymc.after_sampling import keeping_draws
from pytensor_jaxpr_linker.pymc.arguments import Names, as_names
from pytensor_jaxpr_linker.pymc.chains.chains import ChainDraws
from pytensor_jaxpr_linker.pymc.chains.kept_draws import Draws
from pytensor_jaxpr_linker.pymc.functions.constrained import Constrain, constrain
from pytensor_jaxpr_linker.pymc.functions.graph import model_mode
from pytensor_jaxpr_linker.pymc.request import Request


def result_of(request: Request, constrained: Constrain, found: ChainDraws) -> xr.DataTree:
    """Return what chains gave as `sample` returns it."""
    attrs = attributes_of(request, found.seconds, found.seconds_before, found.interrupted)
    if found.store is not None:
        return found.store.result(attrs)
    make = partial(
        to_datatree,
        request.model,
        variables_at(constrained, found.draws.positions),
        found.draws.stats,
        attrs,
        request.package,
        request.log_likelihood,
        warmup=found.warmup and Draws(variables_at(constrained, found.warmup.positions), found.warmup.stats),
    )
    if request.idata_kwargs:
        with keeping_draws("Naming axes by idata_kwargs", "Their axes are named by the model."):
            return make(**request.idata_kwargs)
    return make()


def tree_of_block(request: Request, constrained: Constrain, block: Draws) -> xr.DataTree:
    """Return some draws as `sample` returns them; what can't be computed is an error, as the draws are in a folder."""
    attrs = attributes_of(request, 0.0, 0.0, False)
    posterior = constrained(block.positions)
    data = to_datatree(request.model, posterior, block.stats, attrs, request.package, **request.idata_kwargs)
    if request.log_likelihood:
        compute_log_likelihood(request.model, data, request.log_likelihood)
    return data


def attributes_of(request: Request, seconds: float, seconds_before: float, interrupted: bool) -> dict[str, Any]:
    """Return what the groups posterior and sample_stats say about the run."""
    return {
        "sampling_time": seconds,
        "compile_time": seconds_before,
        "tuning_steps": request.tune,
        "draws": request.draws,
        "thinning": request.thinning,
        "interrupted": int(interrupted),  # netCDF has no booleans
        "sampler": request.sampler,
        "chain_method": request.chain_method,
        "superchains": request.superchains,
        **({} if request.mesh is None else {"mesh": str(dict(request.mesh.shape))}),
        "pytensor_jaxpr_linker_version": __version__,
    }


def variables_at(constrained: Constrain, positions: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the variables at positions, without the Deterministics if these can't be computed."""
    with keeping_draws(
        "Computing the Deterministics", "They are left out; pm.compute_deterministics(data.posterior) tries again."
    ):
        return constrained(positions)
    free = {rv.name for rv in constrained.model.free_RVs}
    return constrain(constrained.model, var_names=[name for name in constrained.names if name in free])(positions)


def to_datatree(
    model: pm.Model,
    posterior: Mapping[str, np.ndarray],
    stats: Mapping[str, np.ndarray],
    attrs: Mapping[str, Any],
    library: ModuleType,
    log_likelihood: bool | Names = False,
    stats_dims: tuple[str, ...] = ("chain", "draw"),
    warmup: Draws | None = None,
    coords: Mapping[str, Any] | None = None,
    dims: Mapping[str, Any] | None = None,
) -> xr.DataTree:
    """Return draws with the model's data, coordinates and dimensions; `attrs` are attributes of the groups posterior and sample_stats.

    The arrays of `posterior` have axes of chains and draws in front, those of `stats` the axes `stats_dims`. `coords` and `dims` come beside
    the model's.
    """
    models_coords, models_dims = coords_and_dims_for_inferencedata(model)
    coords, dims = {**models_coords, **(coords or {})}, {**models_dims, **(dims or {})}
    groups = {"posterior": dict(posterior)}
    if warmup is not None:
        groups["warmup_posterior"] = warmup.positions
    for group, found in (("observed_data", find_observations(model)), ("constant_data", find_constants(model))):
        if found:
            groups[group] = found
    made = make_attrs({**attrs, "pytensor_jaxpr_linker_version": __version__}, inference_library=library)
    # ArviZ guesses that axes are exchanged where there are more chains than draws.
    unchecked: dict[str, Any] = {"check_conventions": False}
    data = from_dict(groups, coords=coords, dims=dims, attrs={"posterior": made}, save_warmup=True, **unchecked)
    if warmup is not None:
        data["warmup_sample_stats"] = xr.DataTree(dict_to_dataset(warmup.stats, attrs=made, **unchecked))
    data["sample_stats"] = xr.DataTree(dict_to_dataset(dict(stats), attrs=made, sample_dims=stats_dims, **unchecked))
    if not posterior:  # arrays have the axes of draws, so without one they come from the statistics
        shared = {name: axis for name, axis in data["sample_stats"].coords.items() if name in ("chain", "draw")}
        data["posterior"] = xr.DataTree(data["posterior"].to_dataset().assign_coords(shared))
    if log_likelihood:
        add_log_likelihood(model, data, log_likelihood)
    return data


def add_log_likelihood(model: pm.Model, data: xr.DataTree, which: Literal[True] | Names) -> None:
    """Add the group log_likelihood, of all observed variables or those that are named, computed by mode JAXPR."""
    with keeping_draws("Computing log_likelihood", "Call pm.compute_log_likelihood(data, model=model) for it."):
        compute_log_likelihood(model, data, which)


def compute_log_likelihood(model: pm.Model, data: xr.DataTree, which: Literal[True] | Names) -> None:
    """Add the group log_likelihood, or raise an error."""
    names, mode = None if which is True else as_names(which), model_mode(model)
    pm.compute_log_likelihood(data, var_names=names, model=model, progressbar=False, compile_kwargs={"mode": mode})
