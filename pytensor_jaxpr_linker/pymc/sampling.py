"""`sample`: the posterior of a PyMC model by one of four samplers."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import threading
import time
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import pymc as pm
import xarray as xr
from pymc.initial_point import make_initial_point_fn
from pymc.stats.convergence import log_warnings, run_convergence_checks
from pymc.util import _get_seeds_per_chain

from pytensor_jaxpr_linker.errors import GraphBreakError
from pytensor_jaxpr_linker.pymc.chains import Draws, run_chains
from pytensor_jaxpr_linker.pymc.constrained import constrain
from pytensor_jaxpr_linker.pymc.density import LogDensity, logdensity
from pytensor_jaxpr_linker.pymc.graph import model_mode
from pytensor_jaxpr_linker.pymc.initial import RETRIES, check_initvals, draw_point, initial_points
from pytensor_jaxpr_linker.pymc.results import add_log_likelihood, to_datatree
from pytensor_jaxpr_linker.report.explain import explain

SAMPLERS = ("nutpie", "numpyro", "blackjax", "pymc")
METHODS = ("parallel", "vectorized", "sequential")


def sample(
    draws: int = 1000,
    *,
    tune: int = 1000,
    chains: int | None = None,
    model: pm.Model | None = None,
    sampler: Literal["nutpie", "numpyro", "blackjax", "pymc"] | None = None,
    target_accept: float = 0.8,
    max_treedepth: int = 10,
    chain_method: Literal["parallel", "vectorized", "sequential"] = "parallel",
    random_seed: Any = None,
    initvals: Any = None,
    jitter: bool = True,
    gradient: Literal["pytensor", "jax"] = "pytensor",
    var_names: Any = None,
    log_likelihood: bool = False,
    progressbar: bool = True,
    compute_convergence_checks: bool = True,
    **kwargs: Any,
) -> xr.DataTree:
    """Draw from the posterior of a PyMC model, whose log density mode JAXPR compiles.

    Parameters
    ----------
    draws, tune : int
        Draws of each chain that are kept, and those before, which adapt the sampler.
    chains : int, optional
        By default as many as there are cores, but from 2 to 4.
    model : pymc.Model, optional
        By default that of the context.
    sampler : {"nutpie", "numpyro", "blackjax", "pymc"}, optional
        Whose NUTS. By default nutpie's if it is installed, else BlackJAX's. "pymc" is `pymc.sample`: it also has steps for
        discrete variables.
    target_accept, max_treedepth
        Aim of the adaptation of the step size; largest number of doublings of a trajectory.
    chain_method : {"parallel", "vectorized", "sequential"}
        "parallel" runs chains in threads (PyMC: processes), each on its device if JAX has several; "vectorized" as one
        program over all chains, for BlackJAX and NumPyro; "sequential" on one core.
    random_seed : int, sequence of int or Generator, optional
        Determines starting points and draws.
    initvals, jitter
        Where chains start, see `initial_points`.
    gradient : {"pytensor", "jax"}
        Whose derivative, see `as_jax_function`.
    var_names : sequence of str, optional
        Which variables to return, by default all.
    log_likelihood : bool
        Whether to add the group log_likelihood.
    progressbar : bool
        Whether to draw one.
    compute_convergence_checks : bool
        Whether to log PyMC's warnings about R-hat, effective sample sizes and divergences.
    **kwargs
        For `nutpie.sample` or `pymc.sample`.

    Returns
    -------
    xarray.DataTree
        Groups posterior, sample_stats, observed_data and constant_data. After Ctrl-C, the draws that were finished.

    Raises
    ------
    GraphBreakError
        If BlackJAX or NumPyro are asked for a log density that is not one XLA program.
    pymc.exceptions.SamplingError
        If the log density where a chain starts is not finite.
    ValueError, ImportError, TypeError
        For arguments that can't be: the message has the remedy.
    """
    model = pm.modelcontext(model)
    sampler = sampler or ("nutpie" if find_spec("nutpie") else "blackjax")
    check_arguments(model, sampler, draws, tune, chains, chain_method, target_accept, max_treedepth, kwargs)
    cores = min(4, os.cpu_count() or 1)
    chains = chains or max(2, cores)
    (seed,) = _get_seeds_per_chain(random_seed, 1)
    if sampler == "pymc":
        return run_pymc(
            model,
            draws=draws,
            tune=tune,
            chains=chains,
            cores=1 if chain_method == "sequential" else min(chains, cores),
            random_seed=random_seed,
            initvals=initvals,
            progressbar=progressbar,
            compute_convergence_checks=compute_convergence_checks,
            init="jitter+adapt_diag" if jitter else "adapt_diag",
            var_names=var_names,
            log_likelihood=log_likelihood,
            nuts={"target_accept": target_accept, "max_treedepth": max_treedepth},
            **kwargs,
        )
    package = importlib.import_module(sampler)
    names = constrain(model, var_names=var_names)  # bad names are found before sampling
    options: dict[str, Any] = {"tune": tune, "draws": draws, "progressbar": progressbar, "seed": int(seed) % 2**32}
    adaptation: dict[str, Any] = {"target_accept": target_accept, "max_treedepth": max_treedepth}
    started = time.perf_counter()
    if sampler == "nutpie":
        limit = 1 if chain_method == "sequential" else None
        found = sample_nutpie(
            model, gradient, initvals, jitter, chains=chains, cores=limit, **options, **adaptation, **kwargs
        )
    else:
        starts = {"initvals": initvals, "jitter": jitter, "seed": random_seed}
        found = sample_jax(model, gradient, sampler, chains, chain_method, starts, **options, **adaptation)
    seconds = time.perf_counter() - started
    attrs = {"sampling_time": seconds, "tuning_steps": tune, "sampler": sampler, "chain_method": chain_method}
    result = to_datatree(model, names(found.positions), found.stats, attrs, package, log_likelihood)
    if compute_convergence_checks:
        log_warnings(run_convergence_checks(result, model))
    return result


def sample_jax(
    model: pm.Model,
    gradient: Literal["pytensor", "jax"],
    sampler: str,
    chains: int,
    chain_method: str,
    starts: dict[str, Any],
    *,
    tune: int,
    target_accept: float,
    max_treedepth: int,
    **options: Any,
) -> Draws:
    """Draw by a sampler that is itself a JAX program, from the points that `initial_points` gives for `starts`."""
    logp = one_program(model, gradient, sampler)
    points = initial_points(model, chains, logp=logp, **starts)
    kernels = importlib.import_module(f"{__package__}.kernel_{sampler}")
    kernel = kernels.make_kernel(logp, tune=tune, target_accept=target_accept, max_treedepth=max_treedepth)
    wide = {name: np.asarray(x, "float64") for name, x in points.items()}
    try:
        return run_chains(kernel, logp.data, wide, method=chain_method, tune=tune, **options)
    except GraphBreakError as error:  # of the gradient, which is built when it is traced
        raise refused(model, sampler, error) from None


def check_arguments(
    model: pm.Model,
    sampler: str,
    draws: int,
    tune: int,
    chains: int | None,
    chain_method: str,
    target_accept: float,
    max_treedepth: int,
    kwargs: dict,
) -> None:
    """Raise an error, with the remedy, for arguments that can't be."""
    if sampler not in SAMPLERS:
        raise ValueError(f"Unknown sampler {sampler!r}: choose one of {', '.join(map(repr, SAMPLERS))}.")
    if chain_method not in METHODS:
        raise ValueError(f"Unknown chain_method {chain_method!r}: choose one of {', '.join(map(repr, METHODS))}.")
    if not 0 < target_accept < 1:
        raise ValueError(f"target_accept must be between 0 and 1, not {target_accept!r}.")
    for name, value, least in (
        ("draws", draws, 1),
        ("tune", tune, 0),
        ("chains", 1 if chains is None else chains, 1),
        ("max_treedepth", max_treedepth, 1),
    ):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise ValueError(f"{name} must be an integer and at least {least}, not {value!r}.")
    if find_spec(sampler) is None:
        raise ImportError(f"The sampler {sampler!r} is not installed: pip install 'pytensor_jaxpr_linker[{sampler}]'.")
    if chain_method == "vectorized" and sampler in ("nutpie", "pymc"):
        raise ValueError(
            f"{sampler} can't run chains as one program: use chain_method='parallel', or sampler='blackjax' or 'numpyro'."
        )
    if kwargs and sampler in ("blackjax", "numpyro"):
        raise TypeError(f"sampler={sampler!r} takes no arguments {', '.join(sorted(kwargs))}.")
    if not model.value_vars:
        raise ValueError("The model has no free variables: draw from it with pm.sample_prior_predictive.")
    if sampler != "pymc" and model.discrete_value_vars:
        names = ", ".join(repr(v.name) for v in model.discrete_value_vars)
        raise ValueError(
            f"NUTS samples continuous variables only, and {names} is discrete: use sampler='pymc', which has other steps,"
            " or sum over it (pymc_extras.marginalize)."
        )


def one_program(model: pm.Model, gradient: Literal["pytensor", "jax"], sampler: str) -> LogDensity:
    """Return the log density, or raise an error with what breaks it."""
    try:
        return logdensity(model, gradient=gradient)
    except GraphBreakError as error:
        raise refused(model, sampler, error) from None


def refused(model: pm.Model, sampler: str, error: GraphBreakError) -> GraphBreakError:
    """Return the error with `explain`'s report and the way out."""
    error.add_note(
        f"sampler={sampler!r} needs a log density that is one XLA program: sampler='nutpie' and 'pymc' run it with host"
        f" steps.\n{explain([model.logp(), model.dlogp()], mode=model_mode(model))}"
    )
    return error


def sample_nutpie(
    model: pm.Model, gradient: Literal["pytensor", "jax"], initvals: Any, jitter: bool, **options: Any
) -> Draws:
    """Sample with nutpie, with host steps if there must be."""
    from pytensor_jaxpr_linker.pymc.sampler_nutpie import compiled_density, density_with_host_steps, run_nutpie

    if initvals is not None and not isinstance(initvals, dict):
        raise ValueError("nutpie starts all chains by the same initvals: give one dict.")
    check_initvals(model, initvals)
    try:
        logp = logdensity(model, gradient=gradient)
        density, layout = compiled_density(logp), logp.layout
    except GraphBreakError:  # whose reasons the warning of the function with host steps repeats
        density, layout = density_with_host_steps(model)
    draw = make_initial_point_fn(
        model=model, overrides=initvals, jitter_rvs=set(model.free_RVs) if jitter else set(), return_transformed=True
    )
    in_turn = threading.Lock()

    def ravel(point: dict) -> np.ndarray:
        return layout.ravel(point).astype("float64")

    def start(seed: int) -> np.ndarray:
        with in_turn:  # the function that draws is shared by the threads
            return ravel(
                draw_point(model, draw, seed, lambda point: density(ravel(point))[0], RETRIES if jitter else 0)
            )

    start(options["seed"])  # raises here, where the user sees it, rather than in a thread
    return run_nutpie(density, layout, start, **options)


def run_pymc(model: pm.Model, *, log_likelihood: bool, **options: Any) -> xr.DataTree:
    """Sample with PyMC's own steps, compiled by mode JAXPR."""
    if not model.discrete_value_vars:
        options["nuts_sampler"] = "pymc"
    # JAX has threads, and a fork of a process with threads may wait forever.
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    result = pm.sample(model=model, compile_kwargs={"mode": "JAXPR"}, **{"mp_ctx": method, **options})
    if log_likelihood:
        add_log_likelihood(model, result)
    return result
