"""NUTS of BlackJAX with Stan's window adaptation."""

from __future__ import annotations

from typing import Any

import blackjax
import jax
import numpy as np
from blackjax.adaptation.mass_matrix import mass_matrix_adaptation
from blackjax.adaptation.step_size import dual_averaging_adaptation
from blackjax.adaptation.window_adaptation import build_schedule

from pytensor_jaxpr_linker.pymc.chains import Kernel
from pytensor_jaxpr_linker.pymc.density import LogDensity

#: Stages of the schedule: the first two are BlackJAX's.
ADAPT_STEP_SIZE, ADAPT_BOTH, SAMPLE = 0, 1, 2


def make_kernel(logp: LogDensity, tune: int, target_accept: float, max_treedepth: int) -> Kernel:
    """Return NUTS with window adaptation during the first `tune` transitions.

    ``blackjax.window_adaptation`` runs the whole warm-up in one call. This one is made of its parts, so that a progress bar
    can follow and that warm-up and sampling are one program.
    """
    numpy = jax.numpy
    nuts = blackjax.nuts.build_kernel()
    step_init, step_update, step_final = dual_averaging_adaptation(target=target_accept)
    metric_init, metric_update, metric_final = mass_matrix_adaptation()
    # One row more, for all transitions after warm-up.
    schedule = np.array([*np.asarray(build_schedule(tune)).reshape(-1, 2), (SAMPLE, 0)], dtype=np.int64)

    def select(condition: Any, new: Any, old: Any) -> Any:
        return jax.tree.map(lambda a, b: numpy.where(condition, a, b), new, old)

    def start(data: Any, key: Any, position: dict) -> tuple:
        size = sum(x.size for x in position.values())
        state = blackjax.nuts.init(position, lambda q: logp(q, data))
        return 0, key, state, step_init(1.0), metric_init(size)

    def transition(data: Any, chain: tuple) -> tuple[tuple, tuple[dict, dict]]:
        i, key, state, step, metric = chain
        key, subkey = jax.random.split(key)
        stage, ends_window = numpy.asarray(schedule)[numpy.minimum(i, tune)]
        step_size = numpy.where(stage == SAMPLE, step_final(step), numpy.exp(step.log_step_size))
        state, info = nuts(subkey, state, lambda q: logp(q, data), step_size, metric.inverse_mass_matrix, max_treedepth)
        step = select(stage == SAMPLE, step, step_update(step, info.acceptance_rate))
        metric = select(stage == ADAPT_BOTH, metric_update(metric, state.position), metric)
        step = select(ends_window == 1, step_init(step_final(step)), step)
        metric = select(ends_window == 1, metric_final(metric), metric)
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
