"""NUTS of BlackJAX with a warm-up in windows, whose estimates of the mass matrix are BlackJAX's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import blackjax
import jax
import numpy as np
from blackjax.mcmc.metrics import default_metric

from pytensor_jaxpr_linker.pymc.chains.programs import Kernel
from pytensor_jaxpr_linker.pymc.kernels.inputs import inputs_among
from pytensor_jaxpr_linker.pymc.kernels.mass_matrix import INSIDE, MOMENTS, SAMPLE, mass_matrix_adaptation
from pytensor_jaxpr_linker.pymc.kernels.step_size import step_size_adaptation

MASS_MATRICES = (*MOMENTS, "low_rank")
#: The least length of a table of the schedule: programs for shorter warm-ups are the same.
LEAST_ROWS = 4096


def make_kernel(
    logp: Any,
    tune: int,
    target_accept: float,
    max_treedepth: int,
    mass_matrix: Literal["diagonal", "dense", "low_rank"] = "diagonal",
    step_size: float = 1.0,
    store_divergences: bool = False,
    schedule: Any = None,
) -> Kernel:
    """Return NUTS with window adaptation during the first `tune` transitions, which begins with `step_size`.

    ``blackjax.staged_adaptation`` runs the whole warm-up in one call. This one is made of its parts, so that a progress bar
    can follow and that warm-up and sampling are one program. `store_divergences`, for positions that are vectors, adds
    two of them as statistics of each draw. `schedule` is what `schedule_table` returns, by default for `tune`.
    """
    numpy = jax.numpy
    nuts = blackjax.nuts.build_kernel()
    step_init, step_update, step_final = step_size_adaptation(target_accept)
    with (
        jax.ensure_compile_time_eval()
    ):  # a program may be traced here, and BlackJAX makes the schedule of JAX's arrays
        adaptation = mass_matrix_adaptation(mass_matrix, tune)
    rows = schedule_table(adaptation.schedule) if schedule is None else schedule

    def select(condition: Any, new: Any, old: Any) -> Any:
        return jax.tree.map(lambda a, b: numpy.where(condition, a, b), new, old)

    def start(data: Any, key: Any, position: Any) -> tuple:
        state = blackjax.nuts.init(position, lambda q: logp(q, data))
        return 0, key, state, step_init(step_size), adaptation.start(state)

    def transition(data: Any, chain: tuple) -> tuple[tuple, tuple[Any, dict]]:
        i, key, state, step, metric = chain
        key, subkey = jax.random.split(key)
        stage, place = numpy.asarray(rows)[numpy.minimum(i, len(rows) - 1)].astype(int)
        adapted = step_final(step)
        size = numpy.where(stage == SAMPLE, adapted, numpy.exp(step.log_step_size))
        before, inverse_mass = state, metric.inverse_mass_matrix
        state, info = nuts(subkey, state, lambda q: logp(q, data), size, inverse_mass, max_treedepth)
        step = select(stage == SAMPLE, step, step_update(step, info.acceptance_rate))
        step = select(place == INSIDE, step, step_init(step_final(step)))
        metric = adaptation.update(metric, stage, place, state)
        stats = {
            "acceptance_rate": info.acceptance_rate,
            "diverging": info.is_divergent,
            "energy": info.energy,
            "energy_error": info.energy - kinetic_energy(info.momentum, inverse_mass) + before.logdensity,
            "lp": state.logdensity,
            "n_steps": info.num_integration_steps,
            "reached_max_treedepth": (info.num_trajectory_expansions >= max_treedepth)
            & ~(info.is_turning | info.is_divergent),
            "step_size": size,
            "step_size_bar": adapted,
            "tree_depth": info.num_trajectory_expansions,
        }
        if store_divergences:
            stats |= divergence(before.position, info, inverse_mass)
        return (i + 1, key, state, step, metric), (state.position, stats)

    return Kernel(start, transition)


def divided(arguments: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arguments that are inputs of the programs, and those on which the programs depend.

    BlackJAX allocates memory by `max_treedepth`, and an adaptation that keeps the draws of a window by `tune`.
    """
    inputs, fixed = inputs_among(make_kernel, {"target_accept": float, "step_size": float}, arguments)
    mass_matrix, tune = fixed["mass_matrix"], fixed["tune"]
    inputs["schedule"] = schedule_table(mass_matrix_adaptation(mass_matrix, tune).schedule)
    # Sums over a window know nothing of its length.
    others = {"tune": 0 if mass_matrix in MOMENTS else tune}
    return inputs, {name: value for name, value in (fixed | others).items() if name != "schedule"}


def schedule_table(schedule: np.ndarray) -> np.ndarray:
    """Return the rows of a schedule, and below them rows for transitions after the warm-up: tables have few lengths."""
    length = LEAST_ROWS
    while length <= len(schedule):
        length *= 2
    table = np.full((length, 2), (SAMPLE, INSIDE), "int8")
    table[: len(schedule)] = schedule
    return table


def divergence(position: Any, info: Any, inverse_mass: Any) -> dict[str, Any]:
    """Return, of a transition that diverged, the positions where it began and where its energy was farthest off; else NaN.

    The names are nutpie's. The trajectory ends where it diverged, on one of its sides.
    """
    numpy = jax.numpy

    def energy(end: Any) -> Any:
        found = kinetic_energy(end.momentum, inverse_mass) - end.logdensity
        return numpy.where(numpy.isfinite(found), found, numpy.inf)

    left, right = info.trajectory_leftmost_state, info.trajectory_rightmost_state
    end = numpy.where(energy(left) > energy(right), left.position, right.position)
    found = {"divergence_start": position, "divergence_end": end}
    return {name: numpy.where(info.is_divergent, x, numpy.nan) for name, x in found.items()}


def kinetic_energy(momentum: Any, inverse_mass: Any) -> Any:
    """Return the kinetic energy of a momentum, by BlackJAX's metric."""
    return default_metric(inverse_mass).kinetic_energy(momentum)
