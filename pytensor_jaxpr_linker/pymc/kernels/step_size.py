"""How a warm-up finds the step size: by dual averaging that reaches an acceptance rate, and which rate it aims at.

M. D. Hoffman and A. Gelman, "The No-U-Turn Sampler", 2014, section 3.2, is the source of the algorithm. With their constants the step size still changes by half its
size from one transition to the next when the warm-up ends. A step twice too long costs more acceptance than one half as long gains,
so the average of such steps is too short: asked for 0.8, the models of `benchmarks/` got 0.87 to 0.93. Two constants differ here. ``GAMMA`` makes the
changes smaller, and steps are drawn towards the one where a window began, not towards ten times that. The models then get 0.78 to 0.83, and 1.5 times as many
effective draws a gradient, in geometric mean.

The rate to aim at depends on the posterior. Where one step size fits everywhere, as for a normal distribution, a low rate gives the most effective draws. Where
curvature varies, a few trajectories leave their energy far behind, and more of them diverge the lower the rate is. The share of such trajectories tells the two apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from blackjax.adaptation.step_size import dual_averaging_adaptation

#: How little an acceptance rate changes the step size. 0.2 and 0.5 gave about as many effective draws; Hoffman and Gelman have 0.05.
GAMMA = 0.3
#: An energy that grows by more than this, in a trajectory, is a large error: such a state is accepted with a probability below 0.00005. A divergence is an error of 1,000.
LARGE_ERROR = 10
#: The share of transitions with a large error from which on the step size aims at the higher acceptance rate. At 0.8 the models of `benchmarks/` have at most
#: 0.003 or more than 0.02; some of the latter have 0.003 at 0.9.
MANY_LARGE_ERRORS = 0.004
#: One over the part of the transitions so far that `share_of_large_errors` remembers.
RECENT = 2


def step_size_adaptation() -> tuple[Callable, Callable, Callable]:
    """Return three functions, as ``dual_averaging_adaptation`` of BlackJAX does.

    They begin with a step size, take the acceptance rate of a transition and the one to aim at, and return the step size that was found.
    """
    init, update, final = dual_averaging_adaptation(0.0, gamma=GAMMA)

    def begin(step_size: Any) -> Any:
        state = init(step_size)
        return state._replace(mu=state.log_step_size, log_step_size_avg=state.log_step_size)

    def towards(state: Any, acceptance_rate: Any, aim: Any) -> Any:
        return update(state, acceptance_rate - aim)

    return begin, towards, final


def share_of_large_errors(share: Any, number: Any, error: Any) -> Any:
    """Return the share of transitions with a large error of the energy, from the share before this transition.

    Its memory is about the last half of all transitions so far: errors of a step size or mass matrix that did not fit yet are forgotten.

    Parameters
    ----------
    share
        The share before, 0 at first.
    number
        How many transitions came before.
    error
        The energy that was farthest off in this transition, minus that of its start; NaN counts as no error.
    """
    return share + ((error > LARGE_ERROR) - share) * RECENT / (number + 10 * RECENT)


def acceptance_to_aim_at(target_accept: Any, share: Any) -> Any:
    """Return the acceptance rate to aim at: between the two numbers of `target_accept`, by the share of transitions with large errors."""
    lowest, highest = target_accept
    return lowest + (highest - lowest) * jax.numpy.minimum(share / MANY_LARGE_ERRORS, 1)


def step_in_new_metric(step_size: Any, old: Any, new: Any) -> Any:
    """Return the step size to begin with after the mass matrix has changed.

    `GAMMA` makes dual averaging too slow to come back from a step that the old mass matrix made short. Neither a search nor a gradient is needed: the angle of a
    step stays, up to 1 radian. Leapfrog is unstable from 2 on, so a longer one is of a window in which the step size did not settle.

    Parameters
    ----------
    step_size
        The one that was found with the old mass matrix.
    old, new
        The highest frequency of trajectories under either, in radians per unit of step size.
    """
    found = jax.numpy.minimum(step_size * old, 1) / new
    return jax.numpy.where((found > 0) & jax.numpy.isfinite(found), found, step_size)
