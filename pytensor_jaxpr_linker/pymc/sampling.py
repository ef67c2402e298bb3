"""`sample`: the posterior of a PyMC model by one of five samplers."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import pymc as pm
import xarray as xr
from pymc.sampling.mcmc import assign_step_methods
from pymc.stats.convergence import log_warnings, run_convergence_checks
from threadpoolctl import threadpool_info, threadpool_limits

from pytensor_jaxpr_linker.base.errors import GraphBreakError
from pytensor_jaxpr_linker.pymc.arguments import (
    GRADIENTS,
    Names,
    chain_seeds,
    check_choice,
    check_fraction,
    check_free,
    check_integer,
    one_program,
    require,
    seed_of,
)
from pytensor_jaxpr_linker.pymc.chains import Chains, Draws, usable_cores
from pytensor_jaxpr_linker.pymc.constrained import Constrain, constrain
from pytensor_jaxpr_linker.pymc.density import logdensity
from pytensor_jaxpr_linker.pymc.differentiable import WITHOUT_GRADIENTS, check_variables, named_gradients
from pytensor_jaxpr_linker.pymc.initial import Start, check_initvals, draw_starts, point_functions, stacked_points
from pytensor_jaxpr_linker.pymc.options import PACKAGES, check_options, kernel_module
from pytensor_jaxpr_linker.pymc.processes import check_script, in_one_sentence, process_context
from pytensor_jaxpr_linker.pymc.results import add_log_likelihood, to_datatree
from pytensor_jaxpr_linker.pymc.sampler_nutpie import compiled_density, density_with_host_steps, run_nutpie

#: Aim of the adaptation of NUTS, and its largest number of doublings: PyMC's.
TARGET_ACCEPT, MAX_TREEDEPTH = 0.8, 10
METHODS = ("parallel", "vectorized", "sequential")
#: The sampler where none is asked for: it has its last draw sooner than nutpie on 19 of the 23 models of `benchmarks/`.
DEFAULT = "blackjax"
#: A child of PyMC's logger, so that notebooks and terminals show what it says.
pymc_logger = logging.getLogger("pymc.pytensor_jaxpr_linker")


def sample(
    draws: int = 1000,
    *,
    tune: int = 1000,
    chains: int | None = None,
    model: pm.Model | None = None,
    sampler: Literal["nutpie", "numpyro", "blackjax", "mclmc", "pymc"] | None = None,
    target_accept: float | None = None,
    max_treedepth: int = MAX_TREEDEPTH,
    chain_method: Literal["parallel", "vectorized", "sequential"] = "parallel",
    cores: int | None = None,
    random_seed: Any = None,
    initvals: Any = None,
    jitter: bool = True,
    gradient: Literal["pytensor", "jax"] = "pytensor",
    var_names: Names | None = None,
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
    sampler : {"nutpie", "numpyro", "blackjax", "mclmc", "pymc"}, optional
        Whose NUTS. By default BlackJAX's, or nutpie's if the log density has host steps; one line of PyMC's log says which. "pymc" is `pymc.sample`: it also has steps for discrete variables. "mclmc" is not NUTS but BlackJAX's microcanonical Langevin Monte Carlo: in many dimensions it
        takes fewer gradients, but it never rejects, so its draws have a small bias.
    target_accept, max_treedepth
        Aim of the adaptation of the step size, by default 0.8; largest number of doublings of a trajectory.
    chain_method : {"parallel", "vectorized", "sequential"}
        "parallel" runs chains at the same time: in threads (PyMC: processes) or, if JAX has several devices, divided among
        them; "vectorized" as one program over all chains on one device; "sequential" one after the other. nutpie and PyMC
        have no "vectorized" and know of one device; nutpie runs chains of calls below 40 µs one after the other, which is faster.
    cores : int, optional
        How many chains run at a time if `chain_method` is "parallel": in threads of one device (PyMC: in processes). By default as many
        as there are cores.
    random_seed : int, sequence of int or Generator, optional
        Determines starting points and draws. A sequence has one seed for each chain.
    initvals, jitter
        Where chains start, see `initial_points`.
    gradient : {"pytensor", "jax"}
        Whose derivative, see `as_jax_function`. "pymc", and nutpie where there are host steps, have PyTensor's only.
    var_names : str, variable or sequence of them, optional
        Which variables to return, by default all.
    log_likelihood : bool
        Whether to add the group log_likelihood.
    progressbar : bool
        Whether to draw one.
    compute_convergence_checks : bool
        Whether to log PyMC's warnings about R-hat, effective sample sizes and divergences.
    **kwargs
        For `nutpie.sample` or `pymc.sample`. Of "blackjax" ``mass_matrix``, which is "diagonal" (the default), "low_rank" (for strongly
        correlated posteriors) or "dense" (up to about 100 dimensions); of "mclmc" ``desired_energy_var``, the variance of the energy error
        by dimension that its step size aims at, by default 5e-4.

    Returns
    -------
    xarray.DataTree
        Groups posterior, sample_stats, observed_data and constant_data. After Ctrl-C, the draws that were finished.

    Raises
    ------
    GraphBreakError
        If a sampler of BlackJAX or NumPyro is asked for a log density that is not one XLA program.
    pymc.exceptions.SamplingError
        If the log density where a chain starts is not finite.
    ValueError, ImportError, TypeError
        For arguments that can't be: the message has the remedy.
    """
    check_script()
    model = pm.modelcontext(model)
    chosen: str = sampler or DEFAULT
    check_choice("sampler", chosen, PACKAGES)
    package = require(PACKAGES[chosen])
    check_arguments(model, chosen, draws, tune, chains, chain_method, cores, target_accept, max_treedepth, gradient)
    check_options(chosen, inspect.signature(sample).parameters, kwargs)
    chains = chains or max(2, min(4, usable_cores()))
    seeds = chain_seeds(random_seed, chains)
    names = constrain(model, var_names=var_names)  # bad names are found before sampling
    if chosen == "pymc":
        return run_pymc(
            model,
            draws=draws,
            tune=tune,
            chains=chains,
            random_seed=random_seed,
            initvals=initvals,
            progressbar=progressbar,
            compute_convergence_checks=compute_convergence_checks,
            var_names=None if var_names is None else names.names,
            log_likelihood=log_likelihood,
            target_accept=target_accept,
            max_treedepth=max_treedepth,
            options={
                "init": "jitter+adapt_diag" if jitter else "adapt_diag",
                "cores": 1 if chain_method == "sequential" else cores or min(chains, 4, usable_cores()),
                **kwargs,
            },
        )
    run: dict[str, Any] = {"draws": draws, "progressbar": progressbar}
    adaptation: dict[str, Any] = {"tune": tune, "max_treedepth": max_treedepth, **kwargs}
    if chosen != "mclmc":
        adaptation["target_accept"] = target_accept or TARGET_ACCEPT
    if sampler is None:
        pymc_logger.info("NUTS of BlackJAX, which runs a chain as one XLA program with the model (sampler='blackjax')")
    started = time.perf_counter()
    with blas_threads(chains if chain_method == "parallel" else 1), named_gradients(model, WITHOUT_GRADIENTS):
        found = None
        if chosen != "nutpie":
            starts = draw_starts(model, chains, seeds, initvals, jitter)
            try:
                found = sample_jax(model, gradient, chosen, chain_method, cores, seeds, starts, names, run, adaptation)
            except GraphBreakError:
                if sampler is not None or not may_have_host_steps(chain_method, kwargs):
                    raise
                chosen, package = "nutpie", require("nutpie")
                pymc_logger.info("NUTS of nutpie: the log density has steps on the host, see explain(model)")
        if found is None:
            in_turn = {"cores": 1 if chain_method == "sequential" else cores}
            options = in_turn | {"chains": chains, "seed": seed_of(seeds)[0]} | run | adaptation
            found = sample_nutpie(model, gradient, initvals, jitter, **options)
    seconds = time.perf_counter() - started
    attrs = {"sampling_time": seconds, "tuning_steps": tune, "sampler": chosen, "chain_method": chain_method}
    result = to_datatree(model, names(found.positions), found.stats, attrs, package, log_likelihood)
    if compute_convergence_checks:
        log_warnings(run_convergence_checks(result, model))
    return result


def may_have_host_steps(chain_method: str, options: Mapping[str, Any]) -> bool:
    """Tell whether nutpie, which runs host steps, can take the place of the default sampler."""
    return find_spec("nutpie") is not None and chain_method != "vectorized" and not options


def blas_threads(chains: int) -> threadpool_limits:
    """Return a context in which BLAS divides the cores among chains that run at the same time, and keeps a limit that the user has set.

    `pymc.sample` does so, too. Else LAPACK, which XLA calls on the CPU, starts as many threads for each chain as there are cores, and they
    wait for each other: four chains of a Gaussian process took 3 to 12 times as long, more than one after the other.
    """
    outside = [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]
    return threadpool_limits(limits=max(1, min([usable_cores() // chains, *outside])), user_api="blas")


def sample_jax(
    model: pm.Model,
    gradient: Literal["pytensor", "jax"],
    sampler: str,
    chain_method: str,
    cores: int | None,
    seeds: list[int],
    starts: list[Start],
    constrained: Constrain,
    run: dict[str, Any],
    adaptation: dict[str, Any],
) -> Draws:
    """Draw by a sampler that is a JAX program; it compiles while the starting points are drawn and checked."""
    kernels = kernel_module(sampler)

    def wide(points: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        return {name: x.astype("float64") for name, x in stacked_points(points).items()}

    def draw() -> Draws:
        logp = logdensity(model, gradient=gradient)
        kernel = kernels.make_kernel(logp, **adaptation)
        like, total = wide([start.point for start in starts]), kernel.tune + run["draws"]
        chains = Chains(kernel, logp.data, like, seeds, total, chain_method, cores)
        constrained.prepare(like, len(starts) * run["draws"])
        return chains.draw(wide([start.checked(logp) for start in starts]), run["progressbar"])

    # The gradient is built when it is traced, so sampling itself may find a break.
    return one_program(model, f"sampler={sampler!r}", draw)


def check_arguments(
    model: pm.Model,
    sampler: str,
    draws: int,
    tune: int,
    chains: int | None,
    chain_method: str,
    cores: int | None,
    target_accept: float | None,
    max_treedepth: int,
    gradient: str,
) -> None:
    """Raise an error, with the remedy, for invalid arguments."""
    check_choice("chain_method", chain_method, METHODS)
    check_choice("gradient", gradient, GRADIENTS)
    check_integer("draws", draws, 1)
    check_integer("tune", tune, 0)
    check_integer("chains", 1 if chains is None else chains, 1)
    check_integer("max_treedepth", max_treedepth, 1)
    check_integer("cores", 1 if cores is None else cores, 1)
    if target_accept is not None:
        check_fraction("target_accept", target_accept)
    if cores is not None and chain_method != "parallel":
        raise ValueError("cores is how many chains run at a time with chain_method='parallel': leave one of them out.")
    if chain_method == "vectorized" and sampler in ("nutpie", "pymc"):
        raise ValueError(
            f"{sampler} can't run chains as one program: use chain_method='parallel', or sampler='blackjax' or 'numpyro'."
        )
    if sampler == "mclmc" and target_accept is not None:
        raise TypeError("sampler='mclmc' accepts every step, so it has no target_accept: use desired_energy_var.")
    if sampler == "nutpie" and tune == 0:
        raise ValueError("nutpie can't sample without warm-up: use tune=1 or more, or sampler='blackjax'.")
    if sampler == "pymc" and gradient == "jax":
        raise ValueError(
            "PyMC's steps have PyTensor's gradient only: leave out gradient='jax', or use another sampler."
        )
    check_free(model)
    if sampler != "pymc":
        check_variables(model, "MCLMC" if sampler == "mclmc" else "NUTS", "use sampler='pymc', which has other steps")


def sample_nutpie(
    model: pm.Model, gradient: Literal["pytensor", "jax"], initvals: Any, jitter: bool, **options: Any
) -> Draws:
    """Sample with nutpie, with host steps if the log density is not one program."""
    if initvals is not None and not isinstance(initvals, dict):
        raise ValueError("nutpie starts all chains by the same initvals: give one dict.")
    check_initvals(model, initvals)
    try:
        logp = logdensity(model, gradient=gradient)
        density, layout = compiled_density(logp), logp.layout
    except GraphBreakError as error:  # whose reasons the warning of the function with host steps repeats
        if gradient == "jax":
            error.add_note(
                "With host steps the gradient is PyTensor's: leave out gradient='jax', and nutpie runs them."
            )
            raise
        density, layout = density_with_host_steps(model)
    (draw,) = point_functions(model, 1, initvals, jitter)
    in_turn = threading.Lock()

    def ravel(point: dict) -> np.ndarray:
        return layout.ravel(point).astype("float64")

    def start(seed: int) -> np.ndarray:
        with in_turn:  # the function that draws is shared by the threads
            return ravel(Start(model, draw, seed, jitter).checked(lambda point: density(ravel(point))[0]))

    return run_nutpie(density, layout, start, **options)


def run_pymc(
    model: pm.Model,
    *,
    target_accept: float | None,
    max_treedepth: int,
    log_likelihood: bool,
    options: dict[str, Any],
    **common: Any,
) -> xr.DataTree:
    """Sample with PyMC's own steps, compiled by mode JAXPR."""
    # PyMC refuses arguments of NUTS for a model without such a step, so defaults are not handed on.
    asked = {"target_accept": target_accept} if target_accept is not None else {}
    if max_treedepth != MAX_TREEDEPTH:
        asked["max_treedepth"] = max_treedepth
    if asked:
        _, assigned = assign_step_methods(model, options.get("step"))
        if not any(issubclass(step, pm.NUTS) for step in assigned):
            raise ValueError(
                f"{' and '.join(asked)} is for NUTS, and PyMC gives no variable to it here: leave it out, or give it to the"
                " step that you make."
            )
        nuts = options.get("nuts") or {}
        if twice := asked.keys() & nuts.keys():
            raise ValueError(f"{' and '.join(sorted(twice))} is given twice, once in nuts: leave out one.")
        options = {**options, "nuts": asked | nuts}
    given = {"mp_ctx": process_context()} | common | options
    with in_one_sentence():
        result = pm.sample(model=model, nuts_sampler="pymc", compile_kwargs={"mode": "JAXPR"}, **given)
    if log_likelihood:
        add_log_likelihood(model, result)
    return result
