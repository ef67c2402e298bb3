"""The default NUTS: the transitions of `trajectory.py`, and a warm-up in windows that adapts the step size and the mass
matrix.

The step size comes from dual averaging that reaches an acceptance rate [1]_. With the constants of the paper it still
changes by half its size from one transition to the next when the warm-up ends. A step twice too long costs more
acceptance than one half as long gains, so the average of such steps is too short: asked for 0.8, the models of
`benchmarks/` got 0.87 to 0.93. Two constants differ here. ``GAMMA`` makes the changes smaller, and steps are drawn
towards the one where a window began, not towards ten times that. The models then get 0.78 to 0.83, and 1.5 times as
many effective draws a gradient, in geometric mean.

The rate to aim at depends on the posterior. Where one step size fits everywhere, as for a normal distribution, a low
rate gives the most effective draws. Where curvature varies, a few trajectories leave their energy far behind, and more
of them diverge the lower the rate is. The share of such trajectories tells the two apart.

References
----------
.. [1] M. D. Hoffman and A. Gelman (2014). The No-U-Turn Sampler, section 3.2.
"""

from __future__ import annotations

import importlib
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pytensor_jaxpr_linker.pymc.chains.kernel import Kernel
from pytensor_jaxpr_linker.pymc.kernels.mass_matrix import (
    FIRST,
    INSIDE,
    SAMPLE,
    MassMatrixAdaptation,
    adaptation_by_moments,
)
from pytensor_jaxpr_linker.pymc.kernels.trajectory import State, Trajectory, kinetic_energy, noise_of, nuts_transition

#: The forms of the mass matrix.
MASS_MATRICES = ("diagonal", "dense", "low_rank")
#: The arguments that are inputs of the programs, and their types: BlackJAX allocates memory by `max_treedepth`. One
#: acceptance rate is the lowest and the highest to aim at.
INPUTS = {"target_accept": lambda x: np.broadcast_to(np.asarray(x, float), 2), "step_size": float, "tune": int}
#: The mass matrix of this many coordinates or fewer is dense by default. The 17 models of `benchmarks/` with up to 11
#: coordinates have 1.5 times as many effective draws then, from 0.7 of the gradients. With more, a step may take longer
#: than it gains: multiplying by a factor of 100 rows takes as long as the gradient of a small model.
MOST_OF_DENSE = 80

#: The constants kappa and t0 of Hoffman and Gelman: early steps are forgotten, and the first errors count less.
FORGETTING, DELAY = 0.75, 10
#: How little an acceptance rate changes the step size. 0.2 and 0.5 gave about as many effective draws; Hoffman and
#: Gelman have 0.05.
GAMMA = 0.3
#: An energy that grows by more than this, in a trajectory, is a large error: such a state is accepted with a
#: probability below 0.00005. A divergence is an error of 1,000.
LARGE_ERROR = 10
#: The share of transitions with a large error from which on the step size aims at the higher acceptance rate. At 0.8
#: the models of `benchmarks/` have at most 0.003 or more than 0.02; some of the latter have 0.003 at 0.9.
MANY_LARGE_ERRORS = 0.004
#: One over the part of the transitions so far that `share_of_large_errors` remembers.
RECENT = 2


class StepSize(NamedTuple):
    """The state of dual averaging: logarithms of step sizes, the number of updates, the mean error of acceptance."""

    log_step_size: Any
    log_step_size_avg: Any
    step: Any
    avg_error: Any
    mu: Any


def begin_at(step_size: Any) -> StepSize:
    """Begin dual averaging with a step size, towards which later ones are drawn."""
    log = jnp.log(step_size)
    return StepSize(log, log, 1, 0.0, log)


def adapted_step(state: StepSize, error: Any) -> StepSize:
    """Return the state after a transition whose acceptance rate was less than the aim by `error`."""
    weight = state.step**-FORGETTING
    error = (1 - 1 / (state.step + DELAY)) * state.avg_error + error / (state.step + DELAY)
    log = state.mu - jnp.sqrt(state.step) / GAMMA * error
    average = weight * state.log_step_size + (1 - weight) * state.log_step_size_avg
    return StepSize(log, average, state.step + 1, error, state.mu)


def share_of_large_errors(share: Any, number: Any, error: Any) -> Any:
    """Return the share of transitions with a large error of the energy, from the one before, which is 0 at first.

    Its memory is about the last half of all transitions so far, of which there were `number`: errors of a step size or
    mass matrix that did not fit yet are forgotten. `error` is the energy that was farthest off in this transition,
    minus the energy of its start; NaN counts as no error.
    """
    return share + ((error > LARGE_ERROR) - share) * RECENT / (number + 10 * RECENT)


def acceptance_to_aim_at(target_accept: Any, share: Any) -> Any:
    """Return the acceptance rate to aim at, from the lowest to the highest, by the share of large errors."""
    lowest, highest = target_accept
    return lowest + (highest - lowest) * jnp.minimum(share / MANY_LARGE_ERRORS, 1)


def step_in_new_metric(step_size: Any, old: Any, new: Any) -> Any:
    """Return the step size to begin with after the mass matrix has changed, from the one that was found before.

    `GAMMA` makes dual averaging too slow to come back from a step that the old mass matrix made short. Neither a search
    nor a gradient is needed: the angle of a step stays, up to 1 radian. Leapfrog is unstable from 2 on, so a longer one
    is of a window in which the step size did not settle. `old` and `new` are the highest frequency of trajectories
    under either matrix, in radians per unit of step size.
    """
    found = jnp.minimum(step_size * old, 1) / new
    return jnp.where((found > 0) & jnp.isfinite(found), found, step_size)


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

    Warm-up and sampling are one program, and a progress bar can follow it. `store_divergences`, for positions that are
    vectors, adds two of them as statistics of each draw. `tune` may be traced, except with ``mass_matrix="low_rank"``.

    The default mass matrix is dense for up to `MOST_OF_DENSE` coordinates, see `adaptation_by_moments`, and else
    diagonal. With two numbers as `target_accept` the step size aims at the first where all trajectories keep their
    energy, and at up to the second where some do not.
    """
    targets = jnp.broadcast_to(jnp.asarray(target_accept), 2)

    def adaptation_of(position: Any) -> MassMatrixAdaptation:
        form = mass_matrix or ("correlated" if position.size <= MOST_OF_DENSE else "diagonal")
        if form == "low_rank":  # that of BlackJAX, whose import takes longer than many a run
            return importlib.import_module(f"{__package__}.low_rank").low_rank_adaptation(tune)
        return adaptation_by_moments(form, tune)

    def select(condition: Any, new: Any, old: Any) -> Any:
        return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)

    def start(data: Any, key: Any, position: Any) -> tuple:
        # A density of zero: whatever the first transition evaluates is better.
        nowhere = State(position, jnp.asarray(-np.inf), jnp.zeros(position.size))
        return -1, key, nowhere, begin_at(step_size), jnp.zeros(()), adaptation_of(position).start(position.size)

    def transition(data: Any, chain: tuple) -> tuple[tuple, tuple[Any, dict]]:
        i, key, state, step, errors, metric = chain
        adaptation = adaptation_of(state.position)
        key, noise = noise_of(key, state.position.size, max_treedepth)
        is_first = i < 0
        stage, place = select(is_first, (SAMPLE, FIRST), adaptation.schedule(i))
        adapted = jnp.exp(step.log_step_size_avg)
        size = jnp.where(stage == SAMPLE, adapted, jnp.exp(step.log_step_size))
        before = state
        length, doublings = select(is_first, (0.0, 1), (size, max_treedepth))  # the first one stays where it is
        state, path, stats = nuts_transition(noise, state, lambda q: logp(q, data), length, metric.factor, doublings)
        errors = share_of_large_errors(errors, i, stats["max_energy_error"])
        aim = acceptance_to_aim_at(targets, errors)
        step = select(stage == SAMPLE, step, adapted_step(step, aim - stats["acceptance_rate"]))
        metric = adaptation.update(metric, stage, place, state, stats["max_energy_error"] > LARGE_ERROR)
        restarted = begin_at(step_in_new_metric(jnp.exp(step.log_step_size_avg), *metric.frequencies))
        step = select((place == INSIDE) | is_first, step, restarted)
        is_deepest = (path.doublings >= max_treedepth) & ~(path.is_turning | path.is_divergent)
        stats |= {"lp": state.logdensity, "step_size": size, "step_size_bar": adapted}
        stats |= {"reached_max_treedepth": is_deepest}
        if store_divergences:
            stats |= divergence(before.position, path)
        return (i + 1, key, state, step, errors, metric), (state.position, stats)

    return Kernel(start, transition, first_evaluates=True)


def divergence(position: Any, path: Trajectory) -> dict[str, Any]:
    """Return, of a trajectory that diverged, its start and the position where its energy was farthest off; else NaN.

    The names are nutpie's. The trajectory ends where it diverged, on one of its sides.
    """

    def energy(end: Any) -> Any:
        found = kinetic_energy(end.momentum) - end.logdensity
        return jnp.where(jnp.isfinite(found), found, jnp.inf)

    is_left = energy(path.left) > energy(path.right)
    end = jnp.where(is_left, path.left.position, path.right.position)
    found = {"divergence_start": position, "divergence_end": end}
    return {name: jnp.where(path.is_divergent, x, jnp.nan) for name, x in found.items()}
