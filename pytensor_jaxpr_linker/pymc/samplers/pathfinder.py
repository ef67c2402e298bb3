"""`fit_pathfinder`: draws from normal approximations that BlackJAX finds while it climbs to a mode."""

from __future__ import annotations

import math
import time
from typing import Any, Literal

import blackjax
import jax
import numpy as np
import pymc as pm
import xarray as xr
from blackjax.diagnostics import psis_weights
from pymc.exceptions import SamplingError
from pymc.stats.convergence import SamplerWarning, WarningType, log_warnings

from pytensor_jaxpr_linker.base.jax_compat import with_x64_restored
from pytensor_jaxpr_linker.frontend.pregrad import WITHOUT_GRADIENTS
from pytensor_jaxpr_linker.pymc import arguments
from pytensor_jaxpr_linker.pymc.arguments import Names
from pytensor_jaxpr_linker.pymc.chains.chains import shapes_of
from pytensor_jaxpr_linker.pymc.chains.runners import pick
from pytensor_jaxpr_linker.pymc.functions.axis_names import check_axis_lengths
from pytensor_jaxpr_linker.pymc.functions.differentiable import check_variables, named_gradients, one_program
from pytensor_jaxpr_linker.pymc.functions.initial import check_starts
from pytensor_jaxpr_linker.pymc.kept_models import KEPT_MODELS, KeptModel, forgotten_if_broken
from pytensor_jaxpr_linker.pymc.progress import progress
from pytensor_jaxpr_linker.pymc.results import to_datatree
from pytensor_jaxpr_linker.pymc.samplers.jax_kernels import density_of_points, wide

#: Above this shape of the tail of the weights, a mean over weighted draws is not to be trusted (Vehtari et al.).
LARGEST_K = 0.7


@with_x64_restored
def fit_pathfinder(
    draws: int = 1000,
    *,
    paths: int = 4,
    maxiter: int = 100,
    elbo_draws: int = 25,
    model: pm.Model | None = None,
    random_seed: Any = None,
    initvals: Any = None,
    jitter: bool = True,
    gradient: Literal["pytensor", "jax"] = "pytensor",
    var_names: Names | None = None,
    log_likelihood: bool = False,
    progressbar: bool = True,
) -> xr.DataTree:
    """Draw from an approximation of the posterior by Pathfinder: in seconds, where a chain takes minutes.

    Each path climbs to a mode by L-BFGS, and keeps the normal approximation on its way that has the largest ELBO. Draws
    of all paths are weighted by Pareto smoothed importance sampling, and resampled.

    Parameters
    ----------
    draws : int
        How many draws each path makes, and how many are kept of all.
    paths : int
        From how many points to start.
    maxiter : int
        Largest number of steps of a path.
    elbo_draws : int
        Draws that estimate the ELBO of each step.
    model : pymc.Model, optional
        By default the model of the context.
    random_seed : int, sequence of int or Generator, optional
        Determines starting points and draws. A sequence has one seed for each path.
    initvals, jitter
        Where paths start, see `initial_points`.
    gradient, var_names, log_likelihood, progressbar
        As for `sample`.

    Returns
    -------
    xarray.DataTree
        As of `sample`, with one chain. Group sample_stats has the log density ``lp`` and the approximation's, ``lq``.
        The attribute ``pareto_k`` of the posterior is above 0.7 where the approximation is poor; a warning is logged
        then.

    Raises
    ------
    GraphBreakError
        If the log density is not one XLA program.
    pymc.exceptions.SamplingError
        If the log density where a path starts is not finite, or no draw has a finite one.
    ValueError
        For arguments that can't be: the message has the remedy.

    References
    ----------
    .. [1] Zhang, Carpenter, Gelman and Vehtari (2022). Pathfinder: parallel quasi-Newton variational inference. JMLR
       23, 306.
    """
    model = arguments.check_model(model)
    for name, value in (("draws", draws), ("paths", paths), ("maxiter", maxiter), ("elbo_draws", elbo_draws)):
        arguments.check_integer(name, value, 1)
    arguments.check_free(model)
    arguments.check_choice("gradient", gradient, arguments.GRADIENTS)
    check_variables(model, "Pathfinder", "use sample(sampler='pymc'), which has other steps")
    check_axis_lengths(model, var_names)
    seeds = arguments.chain_seeds(random_seed, paths, "path")
    kept = KEPT_MODELS.find(model, gradient)
    names = kept.constrain(var_names)
    rng = np.random.default_rng(seeds)
    started = time.perf_counter()

    def run() -> tuple:
        starts = kept.starts(paths, seeds, initvals, jitter)
        points = wide([start.point for start in starts])
        check_starts(starts, density_of_points(kept, points))
        return climb(kept, points, draws, maxiter, elbo_draws, int(rng.integers(2**32)), progressbar)

    with forgotten_if_broken(kept), named_gradients(model, WITHOUT_GRADIENTS):
        positions, stats, elbo, log_weights, pareto_k = one_program(
            model, "fit_pathfinder", gradient, run, "use sample, which runs it with host steps"
        )
    weights = np.exp(log_weights)
    chosen = rng.choice(len(weights), size=(1, draws), p=weights / weights.sum())
    attrs = {
        "sampling_time": time.perf_counter() - started,
        "sampler": "pathfinder",
        "pareto_k": pareto_k,
        "elbo": elbo,
    }
    resampled, stats = jax.tree.map(lambda x: x[chosen], (positions, stats))
    if not pareto_k <= LARGEST_K:
        message = (
            f"Pareto k is {pareto_k:.2f}, above {LARGEST_K}: the approximation misses a part of the posterior."
            " More paths may help; else use sample."
        )
        log_warnings([SamplerWarning(WarningType.CONVERGENCE, message, "warn")])
    return to_datatree(model, names(resampled), stats, attrs, blackjax, log_likelihood)


def climb(
    kept: KeptModel,
    points: dict[str, np.ndarray],
    draws: int,
    maxiter: int,
    elbo_draws: int,
    seed: int,
    progressbar: bool,
) -> tuple:
    """Return draws of all paths, their log densities, the ELBO of each path, log weights of the draws, and Pareto k."""

    def path(data: Any, key: Any, point: dict) -> tuple:
        first, second = jax.random.split(key)
        density = lambda q: kept.logp(q, data).astype("float64")  # noqa: E731
        state, _ = blackjax.pathfinder.approximate(first, density, point, num_samples=elbo_draws, maxiter=maxiter)
        drawn, lq = blackjax.pathfinder.sample(second, state, draws)
        return drawn, {"lp": jax.lax.map(density, drawn), "lq": lq}, state.elbo

    count, data, found = len(next(iter(points.values()))), dict(kept.data), []
    program = "path of Pathfinder", draws, maxiter, elbo_draws, kept.lengths, shapes_of(data), shapes_of(points)
    # One path after the other: each evaluates all of its steps' draws at the same time.
    with jax.enable_x64(True), progress(progressbar, count) as update:
        for i, key in enumerate(jax.random.split(jax.random.key(seed), count)):
            args = data, key, pick(points, i)
            found.append(jax.tree.map(np.asarray, kept.programs.compiled(program, path, args)(*args)))
            update(i + 1, "paths", f"ELBO {found[-1][2]:.3f}")
    drawn, stats, elbo = jax.tree.map(lambda *xs: np.stack(xs), *found)
    drawn, stats = jax.tree.map(lambda x: x.reshape((math.prod(x.shape[:2]), *x.shape[2:])), (drawn, stats))
    ratio = stats["lp"] - stats["lq"]
    if not np.isfinite(ratio).any():
        raise SamplingError("No draw of Pathfinder has a finite log density: give other initvals, or use sample.")
    with jax.enable_x64(True):
        log_weights, pareto_k = jax.jit(psis_weights)(np.where(np.isfinite(ratio), ratio, -np.inf))
    return drawn, stats, elbo, np.asarray(log_weights), float(pareto_k)
