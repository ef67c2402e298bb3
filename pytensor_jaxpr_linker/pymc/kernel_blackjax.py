"""NUTS of BlackJAX with a warm-up in windows, whose schedule and estimates of the mass matrix are BlackJAX's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import blackjax
import jax
import numpy as np
from blackjax.adaptation.low_rank_adaptation import build_growing_window_schedule
from blackjax.adaptation.metric_recipes import MetricCore, lookup_recipe, seed_low_rank_sigma_from_grad
from blackjax.adaptation.staged_adaptation import build_schedule
from blackjax.adaptation.step_size import dual_averaging_adaptation

from pytensor_jaxpr_linker.pymc.chains import Kernel
from pytensor_jaxpr_linker.pymc.density import LogDensity

#: Stages of the schedule: the first two are BlackJAX's.
ADAPT_STEP_SIZE, ADAPT_BOTH, SAMPLE = 0, 1, 2


class Estimate(NamedTuple):
    """How the warm-up estimates a mass matrix: BlackJAX's name of the estimate, and the windows in which it is renewed."""

    recipe: str
    schedule: Callable[[int], Any]


#: The forms of the mass matrix. The first two are Stan's, of rank 10 beside a diagonal is nutpie's (A. Seyboldt et al., "Preconditioning
#: Hamiltonian Monte Carlo by minimizing Fisher divergence", 2026). That paper's diagonal took fewer gradients on five of ten models of `benchmarks/`,
#: and more on the others.
MASS_MATRICES = {
    "diagonal": Estimate("welford_diag", build_schedule),
    "dense": Estimate("welford_dense", build_schedule),
    "low_rank": Estimate("fisher_low_rank", build_growing_window_schedule),
}


def make_kernel(
    logp: LogDensity,
    tune: int,
    target_accept: float,
    max_treedepth: int,
    mass_matrix: Literal["diagonal", "dense", "low_rank"] = "diagonal",
) -> Kernel:
    """Return NUTS with window adaptation during the first `tune` transitions.

    ``blackjax.staged_adaptation`` runs the whole warm-up in one call. This one is made of its parts, so that a progress bar
    can follow and that warm-up and sampling are one program.
    """
    numpy = jax.numpy
    nuts = blackjax.nuts.build_kernel()
    step_init, step_update, step_final = dual_averaging_adaptation(target=target_accept)
    core = metric_core(mass_matrix, tune)
    # One row more, for all transitions after warm-up.
    windows = np.asarray(MASS_MATRICES[mass_matrix].schedule(tune)).reshape(-1, 2)
    schedule = np.array([*windows, (SAMPLE, 0)], dtype=np.int64)

    def select(condition: Any, new: Any, old: Any) -> Any:
        return jax.tree.map(lambda a, b: numpy.where(condition, a, b), new, old)

    def start(data: Any, key: Any, position: dict) -> tuple:
        size = sum(x.size for x in position.values())
        state = blackjax.nuts.init(position, lambda q: logp(q, data))
        metric = core.init(size)
        if mass_matrix == "low_rank":
            metric = seed_low_rank_sigma_from_grad(metric, state.logdensity_grad)
        return 0, key, state, step_init(1.0), metric

    def transition(data: Any, chain: tuple) -> tuple[tuple, tuple[dict, dict]]:
        i, key, state, step, metric = chain
        key, subkey = jax.random.split(key)
        stage, ends_window = numpy.asarray(schedule)[numpy.minimum(i, tune)]
        step_size = numpy.where(stage == SAMPLE, step_final(step), numpy.exp(step.log_step_size))
        state, info = nuts(subkey, state, lambda q: logp(q, data), step_size, metric.inverse_mass_matrix, max_treedepth)
        step = select(stage == SAMPLE, step, step_update(step, info.acceptance_rate))
        step = select(ends_window == 1, step_init(step_final(step)), step)
        given = metric, state.position, state.logdensity_grad
        metric = jax.lax.cond(stage == ADAPT_BOTH, core.update, lambda metric, *_: metric, *given)
        metric = jax.lax.cond(ends_window == 1, core.final, lambda metric: metric, metric)
        stats = {
            "acceptance_rate": info.acceptance_rate,
            "diverging": info.is_divergent,
            "energy": info.energy,
            "lp": state.logdensity,
            "n_steps": info.num_integration_steps,
            "reached_max_treedepth": (info.num_trajectory_expansions >= max_treedepth)
            & ~(info.is_turning | info.is_divergent),
            "step_size": step_size,
            "tree_depth": info.num_trajectory_expansions,
        }
        return (i + 1, key, state, step, metric), (state.position, stats)

    return Kernel(start, transition, tune)


def metric_core(mass_matrix: str, tune: int) -> MetricCore:
    """Return BlackJAX's adaptation of a mass matrix."""
    recipe = lookup_recipe(MASS_MATRICES[mass_matrix].recipe)
    # As many draws as `blackjax.window_adaptation_low_rank` keeps of a window; other forms keep their moments only.
    return recipe.build_core(buffer_size=min(2 * max(tune // 5, 128), max(tune, 1)))
