"""`sample_smc`: sequential Monte Carlo of BlackJAX, from the prior to the posterior."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import xarray as xr
from blackjax.smc import resampling
from pymc.exceptions import SamplingError

from pytensor_jaxpr_linker.base.interpreter import usable_cores
from pytensor_jaxpr_linker.base.jax_compat import with_x64_restored
from pytensor_jaxpr_linker.pymc import arguments
from pytensor_jaxpr_linker.pymc.arguments import Names, seed_of
from pytensor_jaxpr_linker.pymc.chains.kept_draws import Draws
from pytensor_jaxpr_linker.pymc.functions.axis_names import check_axis_lengths
from pytensor_jaxpr_linker.pymc.functions.differentiable import check_variables, named_gradients, one_program
from pytensor_jaxpr_linker.pymc.functions.graph import ModelFunction
from pytensor_jaxpr_linker.pymc.kept_models import KEPT_MODELS, KeptModel, forgotten_if_broken
from pytensor_jaxpr_linker.pymc.progress import progress
from pytensor_jaxpr_linker.pymc.results import log_convergence, to_datatree

#: Trajectories of each particle in a stage, and steps of a trajectory.
TRAJECTORIES, STEPS = 5, 10
#: Acceptance that the step size aims at.
TARGET_ACCEPT = 0.8
#: Particles whose relative spread is smaller agree but for rounding.
ROUNDING = 1e-12


class Population(NamedTuple):
    """BlackJAX's particles, and the step size that earlier stages found."""

    particles: Any
    step_size: Any


@with_x64_restored
def sample_smc(
    draws: int = 2000,
    *,
    chains: int | None = None,
    model: pm.Model | None = None,
    threshold: float = 0.5,
    random_seed: Any = None,
    gradient: Literal["pytensor", "jax"] = "pytensor",
    var_names: Names | None = None,
    log_likelihood: bool = False,
    progressbar: bool = True,
    compute_convergence_checks: bool = True,
) -> xr.DataTree:
    """Draw from the posterior by tempered sequential Monte Carlo, which also estimates the marginal likelihood.

    Draws of the prior are weighted by the likelihood to a power, resampled, and moved by Hamiltonian Monte Carlo, until
    the power is one. It finds separate modes, where a chain finds one. `pymc.sample_smc` is without gradients.

    Parameters
    ----------
    draws : int
        How many particles: draws of each chain.
    chains : int, optional
        Independent runs, by default as many as there are cores, but from 2 to 4. They are one program.
    model : pymc.Model, optional
        By default the model of the context.
    threshold : float
        The power is raised until the effective sample size is this fraction of `draws`.
    random_seed : int, sequence of int or Generator, optional
        Determines the draws. A sequence has one seed for each chain.
    gradient, var_names, log_likelihood, progressbar, compute_convergence_checks
        As for `sample`.

    Returns
    -------
    xarray.DataTree
        As of `sample`. Group sample_stats has, by chain and stage, ``beta``, the power; ``accept_rate``; ``step_size``;
        and ``log_marginal_likelihood``, which is NaN before the power is one.

    Raises
    ------
    GraphBreakError
        If prior or likelihood are not one XLA program.
    pymc.exceptions.SamplingError
        If the likelihood of all draws of the prior is zero.
    ValueError
        For arguments that can't be: the message has the remedy.

    References
    ----------
    .. [1] Dau and Chopin (2022). Waste-free sequential Monte Carlo. JRSS B 84, 114-148. The metric from the particles.
    .. [2] Buchholz, Chopin and Jacob (2021). Adaptive tuning of Hamiltonian Monte Carlo within sequential Monte Carlo.
       Bayesian Analysis 16, 745-771. A step size for each particle.
    """
    model = arguments.check_model(model)
    arguments.check_integer("draws", draws, 1)
    arguments.check_integer("chains", 1 if chains is None else chains, 1)
    arguments.check_fraction("threshold", threshold)
    arguments.check_free(model)
    arguments.check_choice("gradient", gradient, arguments.GRADIENTS)
    check_variables(model, "SMC with gradients", "use pm.sample_smc, which has none")
    if not (model.observed_RVs or model.potentials):
        raise ValueError("The model has no observed variables: draw from it with pm.sample_prior_predictive.")
    check_axis_lengths(model, var_names)
    chains = chains or max(2, min(4, usable_cores()))
    first, second = seed_of(arguments.chain_seeds(random_seed, chains), 2)
    kept = KEPT_MODELS.find(model, gradient)
    names = kept.constrain(var_names)
    started = time.perf_counter()

    def run() -> Draws:
        drawn = kept.prior(first, chains * draws).items()
        points = {name: np.asarray(x, "float64").reshape(chains, draws, *x.shape[1:]) for name, x in drawn}
        return temper(kept, points, threshold, second, progressbar)

    with forgotten_if_broken(kept), named_gradients(model, "use pm.sample_smc, which needs none"):
        found = one_program(
            model, "sample_smc", gradient, run, "use pm.sample_smc(backend='JAXPR'), which runs it with host steps"
        )
    attrs = {"sampling_time": time.perf_counter() - started, "sampler": "smc", "threshold": threshold}
    axes = ("chain", "stage")
    result = to_datatree(model, names(found.positions), found.stats, attrs, blackjax, log_likelihood, stats_dims=axes)
    if compute_convergence_checks:
        log_convergence(result, model)
    return result


def temper(kept: KeptModel, points: dict[str, np.ndarray], threshold: float, seed: int, progressbar: bool) -> Draws:
    """Run stages until the power of the likelihood is one in all chains."""
    chains, draws = next(iter(points.values())).shape[:2]
    dimensions = sum(x.size for x in points.values()) // (chains * draws)
    rows: list[dict[str, np.ndarray]] = []
    with jax.enable_x64(True), progress(progressbar, 1.0) as update:
        prior, likelihood = kept.terms
        given = jax.device_put(((prior.current_data(), likelihood.current_data()), np.asarray(float(threshold))))
        state = Population(
            jax.vmap(blackjax.adaptive_tempered_smc.init)(points)._replace(tempering_param=np.zeros(chains)),
            np.full(chains, 0.5 * dimensions**-0.25),
        )
        keys = jax.random.split(jax.random.key(seed), chains)
        args = given, keys, state
        shapes = tuple((x.shape, str(x.dtype)) for x in jax.tree.leaves(args))
        key = "stage of SMC", kept.lengths, shapes, *(str(v.name) for v in kept.model.observed_RVs)
        stage = kept.programs.compiled(key, jax.vmap(make_stage(prior, likelihood), in_axes=(None, 0, 0)), args)
        evidence, beta = np.zeros(chains), np.zeros(chains)
        while not rows or rows[-1]["beta"].min() < 1:
            split = jax.vmap(lambda key: jax.random.fold_in(key, len(rows)))(keys)
            state, increment, accepted, step_size = stage(given, split, state)
            rows.append(
                {
                    "beta": beta,
                    "accept_rate": np.asarray(accepted),
                    "step_size": np.asarray(step_size),
                    "log_marginal_likelihood": np.where(beta == 1, evidence, np.nan),
                }
            )
            before, beta = beta, np.asarray(state.particles.tempering_param)
            evidence = evidence + np.asarray(increment)
            if not np.all(np.isfinite(evidence) & ((beta > before) | (before == 1))):
                raise SamplingError(
                    "The likelihood of all or nearly all draws of the prior is zero or not finite, so SMC can't"
                    " begin: give narrower priors or more draws."
                )
            means = f"{accepted.mean():.0%} accepted, step size {step_size.mean():.2g}"
            update(round(rows[-1]["beta"].min(), 3), "power", f"stage {len(rows)} of {chains} chains, {means}")
        positions = jax.tree.map(np.asarray, state.particles.particles)
    return Draws(positions, {name: np.stack([row[name] for row in rows], axis=1) for name in rows[0]})


def make_stage(prior: ModelFunction, likelihood: ModelFunction) -> Callable:
    """Return one stage: resample, move, and weight for the next power of the likelihood."""

    def stage(given: tuple[Any, Any], key: Any, state: Population) -> tuple:
        (of_prior, of_likelihood), threshold = given

        def term(function: ModelFunction, data: Any) -> Callable:
            return lambda q: function(q, data)[0].astype("float64")

        jitter, key = jax.random.split(key)
        kernel = blackjax.adaptive_tempered_smc.build_kernel(
            term(prior, of_prior),
            term(likelihood, of_likelihood),
            blackjax.hmc.build_kernel(),
            blackjax.hmc.init,
            resampling.systematic,
            threshold,
        )
        # A step size for each particle, so that no particle comes back to where it began.
        sizes = state.step_size * jax.random.uniform(jitter, state.particles.weights.shape, minval=0.5, maxval=1.5)
        parameters = {
            "step_size": sizes,
            "inverse_mass_matrix": variances(state.particles)[None],
            "num_integration_steps": np.array([STEPS]),
        }
        particles, info = kernel(key, state.particles, TRAJECTORIES, parameters)
        accepted = info.update_info.acceptance_rate.mean()
        step_size = state.step_size * jnp.exp(accepted - TARGET_ACCEPT)
        return Population(particles, step_size), info.log_likelihood_increment, accepted, state.step_size

    return stage


def variances(state: Any) -> Any:
    """Return the variance of each coordinate among weighted particles, or 1 where all particles agree."""
    # The flat vector has the order of ``ravel_pytree``, which BlackJAX uses.
    flat = jnp.concatenate([x.reshape(len(x), -1) for x in jax.tree.leaves(state.particles)], axis=1)
    mean = state.weights @ flat
    found = state.weights @ (flat - mean) ** 2
    return jnp.where(found > (ROUNDING * mean) ** 2, found, 1.0)
