"""`sample`: the posterior of a PyMC model by one of several samplers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pymc as pm
import xarray as xr
from jax.sharding import Mesh

from pytensor_jaxpr_linker.base.errors import GraphBreakError
from pytensor_jaxpr_linker.base.jax_compat import with_x64_restored
from pytensor_jaxpr_linker.base.words import counted
from pytensor_jaxpr_linker.frontend.pregrad import WITHOUT_GRADIENTS
from pytensor_jaxpr_linker.pymc.arguments import Names, require
from pytensor_jaxpr_linker.pymc.blas import blas_threads
from pytensor_jaxpr_linker.pymc.chains.chain_progress import pymc_logger
from pytensor_jaxpr_linker.pymc.chains.chains import ChainDraws
from pytensor_jaxpr_linker.pymc.functions.differentiable import add_remedies, add_report, named_gradients
from pytensor_jaxpr_linker.pymc.kept_models import KEPT_MODELS, KeptModel, forgotten_if_broken
from pytensor_jaxpr_linker.pymc.mesh.sharded_density import ModelOnMesh
from pytensor_jaxpr_linker.pymc.options import MAX_TREEDEPTH
from pytensor_jaxpr_linker.pymc.request import Request, check_restarts
from pytensor_jaxpr_linker.pymc.results import log_convergence, quiet_logger, result_of
from pytensor_jaxpr_linker.pymc.samplers.jax_kernels import sample_jax
from pytensor_jaxpr_linker.pymc.samplers.nutpie import sample_nutpie, sample_nutpie_in_processes
from pytensor_jaxpr_linker.pymc.samplers.processes import check_script
from pytensor_jaxpr_linker.pymc.samplers.pymc_steps import sample_pymc


@with_x64_restored
def sample(
    draws: int = 1000,
    *,
    tune: int | None = 1000,
    chains: int | None = None,
    model: pm.Model | None = None,
    sampler: Literal["nuts", "nutpie", "numpyro", "blackjax", "mclmc", "chees", "pymc"] | None = None,
    target_accept: float | None = None,
    max_treedepth: int = MAX_TREEDEPTH,
    nuts: Mapping[str, Any] | None = None,
    chain_method: Literal["parallel", "vectorized", "sequential", "processes"] = "parallel",
    cores: int | None = None,
    random_seed: Any = None,
    initvals: Any = None,
    jitter: bool = True,
    restarts: Literal[0] = 0,
    gradient: Literal["pytensor", "jax"] = "pytensor",
    var_names: Names | None = None,
    marginalize: Names | Literal[True] | None = None,
    thinning: int = 1,
    discard_tuned_samples: bool = True,
    log_likelihood: bool | Names = False,
    idata_kwargs: Mapping[str, Any] | None = None,
    callback: Callable | None = None,
    progressbar: bool | str = True,
    progressbar_theme: Any = None,
    quiet: bool = False,
    compute_convergence_checks: bool = True,
    nuts_sampler: str | None = None,
    mesh: Mesh | None = None,
    shard: Mapping[str, str] | None = None,
    store: str | Path | None = None,
    **options: Any,
) -> xr.DataTree:
    """Draw from the posterior of a PyMC model, whose log density mode JAXPR compiles.

    A second call for the same model, or for an equal one, compiles nothing: the last models are kept with their
    programs. It takes account of data that `pymc.set_data` has set since then, and of any change of the model, also in
    place. `compile` gives a model to keep.

    Parameters
    ----------
    draws, tune : int
        The number of draws of each chain, and the number of transitions before them, which adapt the sampler: None is
        1,000, too.
    chains : int, optional
        By default as many as there are cores, but from 2 to 4; 64 of "chees".
    model : pymc.Model, optional
        By default the context's model.
    sampler : {"nuts", "nutpie", "numpyro", "mclmc", "chees", "pymc"}, optional
        Whose NUTS. By default "nuts", of this package, or nutpie's if the log density has host steps; one line of
        PyMC's log says which. "blackjax" is an alias of "nuts". "pymc" is `pymc.sample`: it also has steps for discrete
        variables. Two are not NUTS: "mclmc", BlackJAX's microcanonical
        Langevin Monte Carlo, takes fewer gradients in many dimensions, but it never rejects, so its draws have a small
        bias. "chees", BlackJAX's Hamiltonian Monte Carlo of many chains, by default 64, which adapt together and run as
        one program.
    target_accept, max_treedepth
        Acceptance rate that the adaptation of the step size aims at, by default 0.8; "nuts" then takes up to 0.95 where
        trajectories do not keep their energy. Largest number of doublings of a trajectory.
    nuts : dict, optional
        These two and other arguments of NUTS, as `pymc.sample` takes them.
    chain_method : {"parallel", "vectorized", "sequential", "processes"}
        "parallel" runs chains at the same time: in threads (PyMC: processes) or, if JAX has several devices, divided
        among them; "vectorized" as one program over all chains on one device; "sequential" one after the other. nutpie
        and PyMC have no "vectorized" and use one device; nutpie runs chains of calls below 40 µs one after the other,
        which is faster. "processes" is for nutpie, whose chains otherwise wait for each other's Python: use it if they
        run for longer than a process takes to start, some seconds.
    cores : int, optional
        The number of chains that run at a time if `chain_method` is "parallel", in threads of one device (PyMC: in
        processes), or "processes". By default the number of cores; "pymc" then takes PyMC's choice, up to 4 processes,
        but one where there are two cores.
    random_seed : int, sequence of int or Generator, optional
        Determines starting points and draws. A sequence has one seed for each chain.
    initvals, jitter
        Where chains start, see `initial_points`.
    restarts : {0}
        No effect: chains no longer start again, see "Chains in several modes" in docs/from_pymc.md.
    gradient : {"pytensor", "jax"}
        Whose derivative, see `as_jax_function`. "pymc", and nutpie where there are host steps, have PyTensor's only.
    var_names : str, variable or sequence of them, optional
        Which variables to return, by default all.
    marginalize : True, str, variable or sequence of them, optional
        Discrete variables to sum over by pymc-extras, True for all: samplers that follow the gradient can't move them.
        They are not in the posterior; ``pymc_extras.recover_marginals`` draws them.
    thinning : int
        Of each group of this many draws the last one is kept, so that ``draws // thinning`` remain. Its ``diverging``
        and ``reached_max_treedepth`` are true if they are for any draw of the group, so no divergence gets lost. The
        other statistics are its own.
    discard_tuned_samples : bool
        False adds the groups warmup_posterior and warmup_sample_stats.
    log_likelihood : bool, str, variable or sequence of them
        Whether to add the group log_likelihood, or the observed variables to add it for.
    idata_kwargs : dict, optional
        ``log_likelihood``, and ``coords`` and ``dims`` in addition to the model's, as for `pymc.sample`.
    callback : callable, optional
        Called after each draw of a chain as ``callback(trace=trace, draw=draw)``. `draw` has the attributes of
        `pymc.sample`'s: chain, draw_idx, tuning, is_last, point (unconstrained), stats. `trace` has the chain's draws
        so far, also of the warm-up: ``len(trace)``, ``trace.get_values(name, burn, thin)``, `chain`, `varnames`. It may
        raise `KeyboardInterrupt` to end sampling: this draw is the last one that is kept. nutpie has none.
    progressbar : bool
        Whether to show one, with a line for each chain. Without a terminal or a notebook, PyMC's log gets a line every
        ten seconds.
    progressbar_theme : rich.theme.Theme, optional
        Colors of the bar.
    quiet : bool
        Whether to show nothing: no bar, and nothing in PyMC's log.
    compute_convergence_checks : bool
        Whether to log PyMC's warnings about R-hat, effective sample sizes and divergences.
    nuts_sampler : str, optional
        PyMC's name of `sampler`.
    mesh : jax.sharding.Mesh, optional
        Devices, of one process or several: chains are divided along its axis "chains", if there is one, and data along
        the others. By default, if `store` is given, all devices along an axis "chains". Then there are four chains by
        default, or as many as that axis is long if that is more.
    shard : dict, optional
        The axis of the mesh along which each dim of the data is divided, see `pytensor_jaxpr_linker.pymc.shard`.
    store : str or Path, optional
        A folder for draws and a checkpoint. Draws go there in blocks, so memory is bounded. If there is a checkpoint of
        the same run, the run goes on from it, and gives the draws that it would have given without the interruption. In
        a run of several processes all of them need the folder; process 0 writes. Ctrl-C, or `KeyboardInterrupt` of a
        `callback`, is then an error that says how many draws the folder keeps. There are no checks of convergence, for
        they read all draws. The result reads the folder when its values are needed; ``draws.zarr`` there can be opened
        by xarray, too.
    **options
        For `nutpie.sample` or `pymc.sample`. Of "nuts" ``mass_matrix``, which is "dense" (the default for up to 80
        dimensions, takes up to about 100), "diagonal" (the default for more) or "low_rank" (for strong correlations in
        many dimensions); "numpyro" has "diagonal", its default, and "dense". Both take ``step_size``, with which the
        adaptation begins, by default 1. Of "mclmc" ``desired_energy_var``, the variance of the energy error by
        dimension that its step size aims at, by default 5e-4, and ``adjusted=True``, which rejects some of its steps,
        so that draws have no bias.

    Returns
    -------
    xarray.DataTree
        Groups posterior, sample_stats, observed_data and constant_data. After Ctrl-C, the draws that were finished.
        Attributes of posterior have the number of requested draws, whether they were interrupted, and the seconds of
        compiling and sampling.

    Raises
    ------
    GraphBreakError
        If a sampler of BlackJAX or NumPyro is asked for a log density that is not one XLA program.
    pymc.exceptions.SamplingError
        If the log density where a chain starts, or its gradient, is not finite.
    ValueError, ImportError, TypeError
        For invalid arguments: the message has the remedy.
    """
    return sample_request(Request(**locals()))


def sample_request(asked: Request) -> xr.DataTree:
    """Return the draws for a request."""
    check_restarts(asked.restarts)
    check_script()
    request = asked.checked()
    with quiet_logger(request.quiet):
        result = sample_pymc(request) if request.sampler == "pymc" else sample_compiled(request)
        log_result(request, result)
    return result


def log_result(request: Request, result: xr.DataTree) -> None:
    """Log the number of draws of an interrupted run, and the findings of the check of convergence."""
    if result.posterior.attrs["interrupted"]:
        sizes, asked = result.posterior.sizes, request.draws // request.thinning
        pymc_logger.warning(
            f"Interrupted: {sizes['draw']} of {asked} draws of {counted(sizes['chain'], 'chain')} are kept."
        )
    if request.compute_convergence_checks and request.store is None:
        log_convergence(result, request.model)


def sample_compiled(request: Request) -> xr.DataTree:
    """Draw by a sampler that calls the compiled log density."""
    if request.mesh is None:
        kept = KEPT_MODELS.find(request.model, request.gradient)
    else:
        kept = ModelOnMesh(request.model, request.gradient, request.mesh, request.shard)
    constrained = kept.constrain(request.var_names)  # bad names are found before sampling
    with (
        forgotten_if_broken(kept),
        blas_threads(request.chains_at_a_time),
        named_gradients(request.model, WITHOUT_GRADIENTS),
    ):
        request, found = drawn(request, kept, constrained)
    return result_of(request, constrained, found)


def drawn(request: Request, kept: KeptModel, constrained: Any) -> tuple[Request, ChainDraws]:
    """Return the draws of the requested sampler, or of the default, which is nutpie if there are host steps."""
    if request.sampler != "nutpie":
        try:
            return request, sample_jax(request, kept, constrained)
        except GraphBreakError as error:
            if remedy := without_nutpie(request):
                method = f"sampler={request.sampler!r}{' on a mesh' if request.is_on_mesh else ''}"
                add_remedies(error, request.model, method, request.gradient, remedy)
                if not request.is_default:
                    add_report(error, request.model)
                raise
        request = replace(request, sampler="nutpie", package=require("nutpie"), options={})
        pymc_logger.info("NUTS of nutpie: the log density has steps on the host, see explain(model)")
    if request.chain_method == "processes":
        return request, sample_nutpie_in_processes(request)
    return request, sample_nutpie(request, kept)


def without_nutpie(request: Request) -> str:
    """Return the remedy if nutpie, which runs host steps, can't take the place of the sampler, or nothing."""
    if request.is_on_mesh:
        return (
            "leave out mesh, shard, store and sampler: sample then runs it with host steps, by nutpie, and so does"
            " sampler='pymc'"
        )
    others = "sampler='nutpie' or 'pymc', which run it with host steps"
    if not request.is_default:
        return f"leave out sampler={request.sampler!r}, or give {others}"
    if find_spec("nutpie") is None:
        return f"give {others} (pip install 'pytensor_jaxpr_linker[nutpie]')"
    refused = " and ".join(request.not_of_nutpie)
    return f"leave out {refused}, with which nutpie can't run it with host steps" if refused else ""
