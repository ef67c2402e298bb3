"""The result of sampling: a DataTree like PyMC's, and the checks of its convergence."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any, Literal

import numpy as np
import pymc as pm
import xarray as xr
from arviz_base import dict_to_dataset, from_dict, make_attrs
from pymc.backends.arviz import coords_and_dims_for_inferencedata, find_constants, find_observations
from pymc.stats.convergence import log_warnings, warn_divergences, warn_treedepth

from pytensor_jaxpr_linker.base.version import __version__
from pytensor_jaxpr_linker.pymc.arguments import Names, as_names
from pytensor_jaxpr_linker.pymc.chains.chain_progress import pymc_logger
from pytensor_jaxpr_linker.pymc.chains.chains import ChainDraws
from pytensor_jaxpr_linker.pymc.chains.kept_draws import Draws
from pytensor_jaxpr_linker.pymc.diagnosis import MANY, MOST_RHAT, diagnose, worst_of
from pytensor_jaxpr_linker.pymc.functions.constrained import Constrain, constrain
from pytensor_jaxpr_linker.pymc.functions.graph import model_mode
from pytensor_jaxpr_linker.pymc.request import Request


@contextmanager
def keeping_draws(what: str, remedy: str) -> Iterator[None]:
    """Log that `what` failed, or was interrupted, where an error would lose the draws."""
    try:
        yield
    except KeyboardInterrupt:
        pymc_logger.warning("%s was interrupted. The draws are kept. %s", what, remedy)
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        pymc_logger.warning("%s failed (%s: %s). The draws are kept. %s", what, type(error).__name__, first, remedy)


#: PyMC's limits: draws of a chain, chains, and effective draws of a chain.
LEAST_CHECKED, RECOMMENDED_CHAINS, LEAST_ESS_OF_CHAIN = 100, 4, 100


def log_convergence(result: xr.DataTree, model: pm.Model) -> None:
    """Log PyMC's warnings with the worst free variable's name or, for many chains, the findings of `diagnose`."""
    with keeping_draws("The check of convergence", "Call diagnose(data) to see where."), np.errstate(all="ignore"):
        posterior = result.posterior.to_dataset()
        free = [rv.name for rv in model.free_RVs if rv.name in posterior and varies(posterior[rv.name])]
        if free and posterior.sizes["chain"] <= MANY:
            stats = xr.DataTree.from_dict({"sample_stats": result.sample_stats.to_dataset()})
            log_warnings([*warn_divergences(stats), *warn_treedepth(stats)])
            log_worst(posterior[free])
            return
        for finding in diagnose(result).findings:
            pymc_logger.warning("%s %s", finding.problem, finding.remedy)


def log_worst(posterior: xr.Dataset) -> None:
    """Log whether R-hat or effective sample sizes miss PyMC's limits. PyMC's check imports ArviZ, for a second."""
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    if draws < LEAST_CHECKED:
        pymc_logger.info("The %d draws of a chain are too few to check convergence reliably.", draws)
        return
    if chains < RECOMMENDED_CHAINS:
        pymc_logger.info("R-hat and effective sample sizes are reliable from %d chains on.", RECOMMENDED_CHAINS)
    worst = worst_of(posterior)
    if worst.rhat > MOST_RHAT:
        pymc_logger.info(
            f"The rhat statistic is larger than 1.01 for some parameters ({worst.rhat:.3f} for {worst.rhat_name!r}):"
            " the chains do not agree. See https://arxiv.org/abs/1903.08008 and diagnose(data)."
        )
    if worst.ess < LEAST_ESS_OF_CHAIN * chains:
        pymc_logger.error(
            "The effective sample size per chain is smaller than 100 for some parameters"
            f" ({worst.ess / chains:.0f} for {worst.ess_name!r}). R-hat and effective sample sizes need more."
            " See https://arxiv.org/abs/1903.08008 and diagnose(data)."
        )


def varies(draws: xr.DataArray) -> bool:
    """Return whether an element of a variable has draws that are finite and differ, so that R-hat is defined."""
    x = draws.transpose("chain", "draw", ...).to_numpy()
    return bool(((x != x[:1, :1]).any((0, 1)) & np.isfinite(x).all((0, 1))).any())


#: The levels that PyMC's log had before each of the quiet calls that run now, in any thread.
BEFORE: list[int] = []
CHANGING_LEVELS = threading.Lock()


@contextmanager
def quiet_logger(quiet: bool) -> Iterator[None]:
    """Keep PyMC's log from showing anything, if `quiet`, until the last of the quiet calls ends."""
    if not quiet:
        yield
        return
    logger = logging.getLogger("pymc")
    with CHANGING_LEVELS:
        BEFORE.append(logger.level)
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        with CHANGING_LEVELS:
            before = BEFORE.pop()
            if not BEFORE:
                logger.setLevel(before)


def result_of(request: Request, constrained: Constrain, found: ChainDraws) -> xr.DataTree:
    """Return the draws of chains as `sample` returns them."""
    attrs = attributes_of(request, found.seconds, found.seconds_before, found.interrupted)
    if found.store is not None:
        return found.store.result(attrs)
    posterior = variables_at(constrained, found.draws.positions)
    warmup = found.warmup and Draws(variables_at(constrained, found.warmup.positions), found.warmup.stats)
    given = request.model, posterior, found.draws.stats, attrs, request.package, request.log_likelihood
    make = partial(to_datatree, *given, warmup=warmup)
    if request.idata_kwargs:
        with keeping_draws("Naming axes by idata_kwargs", "Their axes are named by the model."):
            return make(**request.idata_kwargs)
    return make()


def tree_of_block(request: Request, constrained: Constrain, block: Draws) -> xr.DataTree:
    """Return a block of draws as `sample` returns them; failures are errors, since the draws are in a folder."""
    attrs = attributes_of(request, 0.0, 0.0, False)
    posterior = constrained(block.positions)
    data = to_datatree(request.model, posterior, block.stats, attrs, request.package, **request.idata_kwargs)
    if request.log_likelihood:
        compute_log_likelihood(request.model, data, request.log_likelihood)
    return data


def attributes_of(request: Request, seconds: float, seconds_before: float, interrupted: bool) -> dict[str, Any]:
    """Return the attributes of the groups posterior and sample_stats."""
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
    """Return draws with the model's data, coordinates and dimensions.

    The arrays of `posterior` have axes of chains and draws in front, and the arrays of `stats` the axes `stats_dims`.
    `attrs` are attributes of the groups posterior and sample_stats. `coords` and `dims` are added to the model's.
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
    """Add the group log_likelihood, of all observed variables or the named ones, computed by mode JAXPR."""
    with keeping_draws("Computing log_likelihood", "Call pm.compute_log_likelihood(data, model=model) for it."):
        compute_log_likelihood(model, data, which)


def compute_log_likelihood(model: pm.Model, data: xr.DataTree, which: Literal[True] | Names) -> None:
    """Add the group log_likelihood, or raise an error."""
    names, mode = None if which is True else as_names(which), model_mode(model)
    pm.compute_log_likelihood(data, var_names=names, model=model, progressbar=False, compile_kwargs={"mode": mode})
