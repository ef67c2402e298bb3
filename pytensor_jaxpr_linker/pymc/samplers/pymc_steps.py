"""PyMC's own steps, compiled by mode JAXPR."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymc as pm
import xarray as xr
from pymc.sampling.mcmc import assign_step_methods

from pytensor_jaxpr_linker.pymc.chains.chains import usable_cores
from pytensor_jaxpr_linker.pymc.functions.constrained import constrain
from pytensor_jaxpr_linker.pymc.options import MAX_TREEDEPTH
from pytensor_jaxpr_linker.pymc.request import Request
from pytensor_jaxpr_linker.pymc.results import add_log_likelihood
from pytensor_jaxpr_linker.pymc.samplers.processes import in_one_sentence, process_context

#: Groups of draws, and their axis.
DRAWN = ("posterior", "sample_stats")


def sample_pymc(request: Request) -> xr.DataTree:
    """Sample with `pymc.sample`."""
    at_a_time = request.cores or min(request.chains, 4, usable_cores())
    names = constrain(request.model, var_names=request.var_names).names  # bad names are found before sampling
    options: dict[str, Any] = {
        "init": "jitter+adapt_diag" if request.jitter else "adapt_diag",
        "cores": 1 if request.chain_method == "sequential" else at_a_time,
        "mp_ctx": process_context(),
        "var_names": None if request.var_names is None else names,
        **request.options,
        **nuts_of(request),
    }
    if request.progressbar_theme is not None:
        options["progressbar_theme"] = request.progressbar_theme
    with in_one_sentence(), interrupted_in_warmup():
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
            idata_kwargs=request.idata or None,
            callback=request.callback,
            progressbar=request.progressbar,
            quiet=request.quiet,
            compute_convergence_checks=request.compute_convergence_checks,
            **options,
        )
    if request.thinning > 1:
        last = slice(request.thinning - 1, None, request.thinning)
        for group in DRAWN:
            result[group] = xr.DataTree(result[group].to_dataset().isel(draw=last))
    if request.log_likelihood:
        add_log_likelihood(request.model, result, request.log_likelihood)
    return result


@contextmanager
def interrupted_in_warmup() -> Iterator[None]:
    """Raise `KeyboardInterrupt`, as other samplers do, where PyMC says that an interrupted run has too few draws."""
    try:
        yield
    except ValueError as error:
        if "Not enough samples to build a trace" in str(error):
            raise KeyboardInterrupt from None
        raise


def nuts_of(request: Request) -> dict[str, Any]:
    """Return the argument ``nuts``: PyMC refuses it for a model without such a step, so defaults are not handed on."""
    asked: dict[str, Any] = {} if request.target_accept is None else {"target_accept": request.target_accept}
    if request.max_treedepth != MAX_TREEDEPTH:
        asked["max_treedepth"] = request.max_treedepth
    if asked:
        _, assigned = assign_step_methods(request.model, request.options.get("step"))
        if not any(issubclass(step, pm.NUTS) for step in assigned):
            raise ValueError(
                f"{' and '.join(asked)} is for NUTS, and PyMC gives no variable to it here: leave it out, or give it to the"
                " step that you make."
            )
    nuts = asked | request.options.get("nuts", {})
    return {"nuts": nuts} if nuts else {}
