"""The default NUTS: the transitions of `trajectory.py`, and a warm-up in windows that adapts the step size and the mass matrix.

It is made of BlackJAX's dual averaging, Welford's algorithm and estimate of low rank, so ``sampler="blackjax"`` is
another name of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import numpy as np
from blackjax.mcmc.hmc import HMCState

from pytensor_jaxpr_linker.pymc.chains.kernel import Kernel
from pytensor_jaxpr_linker.pymc.kernels.inputs import inputs_among
from pytensor_jaxpr_linker.pymc.kernels.mass_matrix import (
    FIRST,
    INSIDE,
    SAMPLE,
    MassMatrixAdaptation,
    mass_matrix_adaptation,
)
from pytensor_jaxpr_linker.pymc.kernels.step_size import (
    LARGE_ERROR,
    acceptance_to_aim_at,
    share_of_large_errors,
    step_in_new_metric,
    step_size_adaptation,
)
from pytensor_jaxpr_linker.pymc.kernels.trajectory import kinetic_energy, noise_of, nuts_transition

#: The forms of the mass matrix.
MASS_MATRICES = ("diagonal", "dense", "low_rank")
#: The mass matrix of so many coordinates or fewer is dense by default. The 17 models of `benchmarks/` with up to 11 coordinates have 1.5 times as many effective draws
#: then, from 0.7 of the gradients. With more, a step may take longer than it gains: multiplying by a factor of 100 rows takes as long as the gradient of a small model.
MOST_OF_DENSE = 80


def make_kernel(
    logp: Any,
    tune: int,
    target_accept: float | tuple[float, float],
    max_treedepth: int,
    mass_matrix: Literal["diagonal", "dense", "low_rank"] | None = None,
    step_size: float = 1.0,
    store_divergences: bool = False,
) -> Kernel:
    """Return NUTS with window adaptation during the first `tune` transitions, which begins with `step_size`.

    ``blackjax.staged_adaptation`` runs the whole warm-up in one call. This one is made of its parts, so that a progress bar
    can follow and that warm-up and sampling are one program. `store_divergences`, for positions that are vectors, adds
    two of them as statistics of each draw. `tune` may be traced, except with ``mass_matrix="low_rank"``.

    The default mass matrix is dense for up to `MOST_OF_DENSE` coordinates, see `adaptation_by_moments`, and else diagonal. With two numbers as `target_accept` the step size aims at the first
    where all trajectories keep their energy, and at up to the second where some do not.
    """
    numpy = jax.numpy
    step_init, step_update, step_final = step_size_adaptation()
    targets = numpy.broadcast_to(numpy.asarray(target_accept), 2)

    def adaptation_of(position: Any) -> MassMatrixAdaptation:
        form = mass_matrix or ("correlated" if position.size <= MOST_OF_DENSE else "diagonal")
        return mass_matrix_adaptation(form, tune)

    def select(condition: Any, new: Any, old: Any) -> Any:
        return jax.tree.map(lambda a, b: numpy.where(condition, a, b), new, old)

    def start(data: Any, key: Any, position: Any) -> tuple:
        # A density of zero: whatever the first transition evaluates is better.
        nowhere = HMCState(position, numpy.asarray(-np.inf), numpy.zeros(position.size))
        return -1, key, nowhere, step_init(step_size), numpy.zeros(()), adaptation_of(position).start(position.size)

    def transition(data: Any, chain: tuple) -> tuple[tuple, tuple[Any, dict]]:
        i, key, state, step, errors, metric = chain
        adaptation = adaptation_of(state.position)
        key, noise = noise_of(key, state.position.size, max_treedepth)
        is_first = i < 0
        stage, place = select(is_first, (SAMPLE, FIRST), adaptation.schedule(i))
        adapted = step_final(step)
        size = numpy.where(stage == SAMPLE, adapted, numpy.exp(step.log_step_size))
        before = state
        length, doublings = select(is_first, (0.0, 1), (size, max_treedepth))  # the first one stays where it is
        state, info = nuts_transition(noise, state, lambda q: logp(q, data), length, metric.factor, doublings)
        errors = share_of_large_errors(errors, i, info.max_energy_error)
        aim = acceptance_to_aim_at(targets, errors)
        step = select(stage == SAMPLE, step, step_update(step, info.acceptance_rate, aim))
        metric = adaptation.update(metric, stage, place, state, info.max_energy_error > LARGE_ERROR)
        step = select(
            (place == INSIDE) | is_first, step, step_init(step_in_new_metric(step_final(step), *metric.frequencies))
        )
        stats = statistics(info, state, size, adapted, info.num_trajectory_expansions >= max_treedepth)
        if store_divergences:
            stats |= divergence(before.position, info)
        return (i + 1, key, state, step, errors, metric), (state.position, stats)

    return Kernel(start, transition, first_evaluates=True)


def statistics(info: Any, state: Any, step_size: Any, adapted: Any, is_deepest: Any) -> dict[str, Any]:
    """Return the statistics of a transition, by PyMC's names.

    Parameters
    ----------
    info : Transition
        What the transition tells.
    state : blackjax.mcmc.hmc.HMCState
        The state after it.
    step_size, adapted
        The step size in use, and the one that the warm-up has found so far.
    is_deepest
        Whether the trajectory doubled as often as it may.
    """
    return {
        "acceptance_rate": info.acceptance_rate,
        "diverging": info.is_divergent,
        "energy": info.energy,
        "lp": state.logdensity,
        "n_steps": info.num_integration_steps,
        "reached_max_treedepth": is_deepest & ~(info.is_turning | info.is_divergent),
        "step_size": step_size,
        "step_size_bar": adapted,
        "tree_depth": info.num_trajectory_expansions,
        **{name: getattr(info, name) for name in ("energy_error", "index_in_trajectory", "max_energy_error")},
    }


def inputs_and_constants(arguments: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arguments that are inputs of the programs, and those on which the programs depend.

    BlackJAX allocates memory by `max_treedepth`, and the form of low rank keeps the draws of a window.
    """
    by_window = arguments.get("mass_matrix") == "low_rank"
    types: dict[str, Callable] = {"target_accept": two_targets, "step_size": float}
    return inputs_among(make_kernel, types if by_window else types | {"tune": int}, arguments)


def two_targets(target_accept: float | tuple[float, float]) -> np.ndarray:
    """Return the lowest and the highest acceptance rate to aim at, the same for one number. Shape (2,), float64."""
    return np.broadcast_to(np.asarray(target_accept, float), 2)


def divergence(position: Any, info: Any) -> dict[str, Any]:
    """Return, of a transition that diverged, the positions where it began and where its energy was farthest off; else NaN.

    The names are nutpie's. The trajectory ends where it diverged, on one of its sides.
    """
    numpy = jax.numpy

    def energy(end: Any) -> Any:
        found = kinetic_energy(end.momentum) - end.logdensity
        return numpy.where(numpy.isfinite(found), found, numpy.inf)

    left, right = info.trajectory_leftmost_state, info.trajectory_rightmost_state
    end = numpy.where(energy(left) > energy(right), left.position, right.position)
    found = {"divergence_start": position, "divergence_end": end}
    return {name: numpy.where(info.is_divergent, x, numpy.nan) for name, x in found.items()}
