"""NUTS of BlackJAX that also tells where on its trajectory a draw lies, and how far off the energy was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import blackjax
import jax
import numpy as np
from blackjax.mcmc.integrators import IntegratorState, velocity_verlet
from blackjax.mcmc.metrics import default_metric


class PathFromStart(NamedTuple):
    """What happened between the start of a trajectory and one of its states."""

    index: Any
    """How many steps the state is from the start, negative if backwards: int64."""
    least: Any
    most: Any
    """The smallest and the largest energy on the way: float64."""


class Trajectory(NamedTuple):
    """What BlackJAX does not tell of a transition. The names are those of PyMC's statistics."""

    energy_error: Any
    """The energy of the draw, minus that of the start."""
    index_in_trajectory: Any
    """How many steps the draw is from the start, negative if backwards."""
    max_energy_error: Any
    """The energy of the state that is farthest off, minus that of the start; infinite if an energy was NaN."""


def nuts_kernel() -> Callable[..., tuple[Any, Any, Trajectory]]:
    """Return BlackJAX's kernel, whose transitions also return their `Trajectory`.

    BlackJAX carries the gradient of each state of a trajectory and leaves it to the integrator, so the integrator can carry a `PathFromStart` beside it.
    """
    kernel = blackjax.nuts.build_kernel(with_path)

    def transition(
        key: Any, state: Any, logp: Callable, step_size: Any, inverse_mass: Any, max_treedepth: Any
    ) -> tuple[Any, Any, Trajectory]:
        start = PathFromStart(np.int64(0), np.float64(np.inf), np.float64(-np.inf))
        before = state._replace(logdensity_grad=(state.logdensity_grad, jax.tree.map(jax.numpy.asarray, start)))
        drawn, info = kernel(key, before, logp, step_size, inverse_mass, max_treedepth)
        gradient, path = drawn.logdensity_grad
        energy = default_metric(inverse_mass).kinetic_energy(info.momentum) - state.logdensity
        ends = [end.logdensity_grad[1] for end in (info.trajectory_leftmost_state, info.trajectory_rightmost_state)]
        above = jax.numpy.maximum(ends[0].most, ends[1].most) - energy
        below = jax.numpy.minimum(ends[0].least, ends[1].least) - energy
        farthest = jax.numpy.where(above > -below, above, below)
        found = Trajectory(info.energy - energy, path.index, farthest)
        return drawn._replace(logdensity_grad=gradient), info, found

    return transition


def with_path(logdensity: Callable, kinetic_energy: Callable) -> Callable[[IntegratorState, Any], IntegratorState]:
    """Return an integrator whose states carry the gradient and a `PathFromStart`."""
    step = velocity_verlet(logdensity, kinetic_energy)

    def advance(state: IntegratorState, step_size: Any) -> IntegratorState:
        numpy = jax.numpy
        gradient, path = state.logdensity_grad
        new = step(state._replace(logdensity_grad=gradient), step_size)
        energy = kinetic_energy(new.momentum) - new.logdensity
        energy = numpy.where(numpy.isnan(energy), np.inf, energy)
        index = path.index + numpy.sign(step_size).astype(path.index.dtype)
        path = PathFromStart(index, numpy.minimum(path.least, energy), numpy.maximum(path.most, energy))
        return new._replace(logdensity_grad=(new.logdensity_grad, path))

    return advance
