"""What sampling returns: a DataTree like PyMC's."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from arviz_base import dict_to_dataset, from_dict, make_attrs
from pymc.backends.arviz import coords_and_dims_for_inferencedata, find_constants, find_observations

from pytensor_jaxpr_linker.base.version import __version__
from pytensor_jaxpr_linker.pymc.graph import model_mode


def to_datatree(
    model: pm.Model,
    posterior: Mapping[str, np.ndarray],
    stats: Mapping[str, np.ndarray],
    attrs: Mapping[str, Any],
    library: ModuleType,
    log_likelihood: bool = False,
    stats_dims: tuple[str, ...] = ("chain", "draw"),
) -> xr.DataTree:
    """Return draws with the model's data, coordinates and dimensions; `attrs` are attributes of the groups posterior and sample_stats.

    The arrays of `posterior` have axes of chains and draws in front, those of `stats` the axes `stats_dims`.
    """
    coords, dims = coords_and_dims_for_inferencedata(model)
    groups = {"posterior": dict(posterior)}
    for group, found in (("observed_data", find_observations(model)), ("constant_data", find_constants(model))):
        if found:
            groups[group] = found
    made = make_attrs({**attrs, "pytensor_jaxpr_linker_version": __version__}, inference_library=library)
    data = from_dict(groups, coords=coords, dims=dims, attrs={"posterior": made}, save_warmup=True)
    data["sample_stats"] = xr.DataTree(dict_to_dataset(dict(stats), attrs=made, sample_dims=stats_dims))
    if log_likelihood:
        add_log_likelihood(model, data)
    return data


def add_log_likelihood(model: pm.Model, data: xr.DataTree) -> None:
    """Add the group log_likelihood, computed by mode JAXPR."""
    pm.compute_log_likelihood(data, model=model, progressbar=False, compile_kwargs={"mode": model_mode(model)})
