"""PyMC's own steps, compiled by mode JAXPR."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pymc as pm
import xarray as xr
from pymc.sampling.mcmc import assign_step_methods
from pymc.sampling.parallel import ParallelSamplingError

from pytensor_jaxpr_linker.base.interpreter import usable_cores
from pytensor_jaxpr_linker.pymc.chains.kept_draws import WARNINGS, Draws, thinned
from pytensor_jaxpr_linker.pymc.functions.constrained import constrain
from pytensor_jaxpr_linker.pymc.options import MAX_TREEDEPTH
from pytensor_jaxpr_linker.pymc.request import Request
from pytensor_jaxpr_linker.pymc.results import add_log_likelihood, attributes_of
from pytensor_jaxpr_linker.pymc.samplers.processes import SAMPLES_AGAIN, process_context


def sample_pymc(request: Request) -> xr.DataTree:
    """Sample with `pymc.sample`."""
    is_alone = request.chain_method == "sequential" or (request.cores is None and usable_cores() == 1)
    names = constrain(request.model, var_names=request.var_names).names  # bad names are found before sampling
    began = perf_counter()
    options: dict[str, Any] = {
        "init": "jitter+adapt_diag" if request.jitter else "adapt_diag",
        "cores": 1 if is_alone else request.cores,  # None is PyMC's own choice
        "mp_ctx": process_context(),
        "var_names": None
        if request.var_names is None
        else names or None,  # PyMC takes a run without names for one without draws
        **request.options,
        **nuts_of(request),
    }
    if request.progressbar_theme is not None:
        options["progressbar_theme"] = request.progressbar_theme
    try:
        result = pm.sample(
            draws=request.draws,
            tune=request.tune,
            chains=request.chains,
            model=request.model,
            nuts_sampler="pymc",
            compile_kwargs={"mode": "JAXPR"},
            random_seed=request.random_seed,
            initvals=request.initvals,
            discard_tuned_samples=request.discard_tuned_samples,
            idata_kwargs=request.idata_kwargs or None,
            callback=request.callback,
            progressbar=request.progressbar,
            quiet=request.quiet,
            compute_convergence_checks=False,  # as for all samplers, `sample` makes them
            **options,
        )
    except ParallelSamplingError as error:  # has the tracebacks of both processes
        if SAMPLES_AGAIN in str(getattr(error.__cause__, "__cause__", "")):
            raise RuntimeError(SAMPLES_AGAIN) from None
        raise
    except ValueError as error:
        if "Not enough samples to build a trace" in str(error):  # of a run that was interrupted in its warm-up
            raise KeyboardInterrupt from None
        raise
    describe_run(request, result, perf_counter() - began)
    if request.thinning > 1:
        thin(result, request.thinning)
    if not names:
        posterior = result["posterior"].to_dataset()
        result["posterior"] = xr.DataTree(posterior.drop_vars(list(posterior.data_vars)))
    if request.log_likelihood:
        add_log_likelihood(request.model, result, request.log_likelihood)
    return result


def describe_run(request: Request, result: xr.DataTree, seconds: float) -> None:
    """Give PyMC's result the attributes that results of all samplers have; the run took `seconds`, with compilation."""
    posterior = result["posterior"]
    interrupted = posterior.sizes["draw"] < request.draws or posterior.sizes["chain"] < request.chains
    sampling = float(posterior.attrs.get("sampling_time", seconds))
    for group in ("posterior", "sample_stats"):
        if group in result.children:
            result[group].attrs.update(attributes_of(request, sampling, seconds - sampling, interrupted))


def thin(result: xr.DataTree, thinning: int) -> None:
    """Keep the last one of every `thinning` draws, with the warnings of all; draws of the warm-up stay as they are."""
    for name, group in result.children.items():
        if "draw" in group.sizes and not name.startswith("warmup_"):
            kept = group.to_dataset().isel(draw=slice(thinning - 1, None, thinning))
            for stat in WARNINGS if kept.sizes["draw"] and name == "sample_stats" else ():
                if stat in kept:
                    marks = thinned(Draws({}, {stat: group[stat].to_numpy()}), thinning)
                    kept[stat] = kept[stat].copy(data=marks.stats[stat])
            result[name] = xr.DataTree(kept.assign_coords(draw=range(kept.sizes["draw"])))


def nuts_of(request: Request) -> dict[str, Any]:
    """Return the argument ``nuts``: PyMC refuses it for a model without such a step, so defaults are not handed on."""
    asked: dict[str, Any] = {} if request.target_accept is None else {"target_accept": request.target_accept}
    if request.max_treedepth != MAX_TREEDEPTH:
        asked["max_treedepth"] = request.max_treedepth
    if asked:
        _, assigned = assign_step_methods(request.model, request.options.get("step"))
        if not any(issubclass(step, pm.NUTS) for step in assigned):
            raise ValueError(
                f"{' and '.join(asked)} is for NUTS, and PyMC gives no variable to it here: leave it out, or"
                " give it to the step that you make."
            )
    nuts = asked | request.options.get("nuts", {})
    return {"nuts": nuts} if nuts else {}
