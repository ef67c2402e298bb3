"""One transition of NUTS, from random numbers that are given.

Stan and BlackJAX have this algorithm, too [1]_: a trajectory doubles until it turns back or diverges, and its draw is
chosen by weight. As in NumPyro and BlackJAX [2]_ there is no recursion: a doubling is a loop that keeps one state for
each level of the tree. Momenta are as in `metric.py`, standard normal whatever the mass matrix is.

It differs from ``blackjax.nuts`` in its random numbers. That kernel makes keys for each doubling and each step. Here
one call of the generator makes all numbers of a transition, and one number chooses among all states of a doubling. XLA
compiles the chains of `eight_schools` in 0.7 of the time, and a step of five models takes 0.7 to 1.0 of it. It stays
until BlackJAX releases the patch of docs/notes/upstream/blackjax-nuts.md.

References
----------
.. [1] M. Betancourt (2017). A conceptual introduction to Hamiltonian Monte Carlo, appendix A: multinomial sampling,
   biased progressive sampling between doublings, and the criterion for a turn.
.. [2] D. Phan, N. Pradhan, M. Jankowiak (2019). Composable effects for flexible and accelerated probabilistic
   programming in NumPyro: the iterative doubling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pytensor_jaxpr_linker.pymc.kernels.metric import to_force, to_velocity

#: A trajectory diverges if its energy grows by more: BlackJAX's and Stan's limit.
DIVERGENCE = 1000.0
#: Differences of energies are cut off here, so that no weight is NaN.
LARGEST = 1e300


class Noise(NamedTuple):
    """The random numbers of a transition."""

    normal: Any
    """Standard normal numbers, as many as a position has: float64."""
    uniform: Any
    """Three numbers in [0, 1) for each doubling: for its direction, for its draw, and for whether the trajectory takes
    that draw. Shape (3, doublings), float64."""


class State(NamedTuple):
    """The state of a chain: a position with its log density and gradient. BlackJAX's ``HMCState`` has these fields."""

    position: Any
    logdensity: Any
    logdensity_grad: Any


class Point(NamedTuple):
    """A state of the integrator."""

    position: Any
    momentum: Any
    logdensity: Any
    force: Any
    """How fast the momentum changes: see `to_force`."""


class Candidate(NamedTuple):
    """A state of a trajectory that may be the next one of the chain."""

    position: Any
    logdensity: Any
    gradient: Any
    energy: Any
    index: Any
    """How many steps it is from the start, negative if backwards: int64."""


class Tree(NamedTuple):
    """Consecutive states of a trajectory."""

    draw: Candidate
    log_weight: Any
    """The logarithm of the sum of ``exp(energy of the start - energy)``."""
    momentum_sum: Any
    acceptance_sum: Any
    """The sum of the Metropolis acceptance probabilities of its steps."""
    steps: Any
    lowest: Any
    """The lowest energy, infinite if there are no steps."""
    highest: Any


class System(NamedTuple):
    """The system in which a trajectory moves."""

    energy_of_start: Any
    step: Callable[[Point, Any], tuple[Point, Any]]
    """Returns the next point and the gradient there, from a point and a step size."""


class Trajectory(NamedTuple):
    """A trajectory after a number of doublings."""

    doublings: Any
    left: Point
    right: Point
    forwards: Any
    """How many of its steps are forwards."""
    tree: Tree
    saved: Any
    """Memory for `Branch.saved`."""
    is_divergent: Any
    is_turning: Any


class Branch(NamedTuple):
    """The states that a doubling adds, as far as they are made."""

    end: Point
    tree: Tree
    chance: Any
    """A number in [0, 1) that chooses the draw."""
    saved: Any
    """For each level of the tree the momentum of the first state of a part, and the sum of momenta up to it. The last
    row is never read. Shape (2, levels + 1, size)."""
    is_divergent: Any
    is_turning: Any


def noise_of(key: Any, size: int, max_treedepth: int) -> tuple[Any, Noise]:
    """Return a new key, of two 32-bit words, and the random numbers of a transition, for a position of a size."""
    # All from one call: XLA takes 50 ms to compile each call of the generator.
    bits = jax.random.bits(key, (1 + size + 3 * max_treedepth,), "uint64")
    numbers = ((bits[1:] >> 12).astype("float64") + 0.5) * 2.0**-52
    normal = np.sqrt(2) * jax.lax.erf_inv(2 * numbers[:size] - 1)
    new = jax.random.wrap_key_data(
        jnp.stack([bits[0] >> 32, bits[0] & 0xFFFFFFFF]).astype("uint32"), impl=jax.random.key_impl(key)
    )
    return new, Noise(normal, numbers[size:].reshape(3, max_treedepth))


def nuts_transition(
    noise: Noise, state: Any, logp: Callable, step_size: Any, factor: Any, max_treedepth: Any
) -> tuple[Any, Trajectory, dict[str, Any]]:
    """Return the next state of a chain, the trajectory, and statistics of the transition by PyMC's names.

    ``energy_error`` is the energy of the draw, minus the energy of the start. ``max_energy_error`` is of the state
    whose energy is farthest off, or infinite if an energy was NaN.

    The position of `state`, a `State`, is a vector of float64. `factor`, of the inverse mass matrix, has one of the
    forms of `metric.py`. `max_treedepth`, which may be traced, is at most the number of doublings that `noise` is for.
    """
    momentum = noise.normal
    start = Point(state.position, momentum, state.logdensity, to_force(factor, state.logdensity_grad))
    energy = kinetic_energy(momentum) - state.logdensity
    system = System(energy, leapfrog(logp, factor))
    draw = Candidate(state.position, state.logdensity, state.logdensity_grad, energy, 0)
    tree = Tree(draw, 0.0, momentum, 0.0, 0, np.inf, -np.inf)
    saved = np.zeros((2, noise.uniform.shape[1] + 1, momentum.size))
    path: Trajectory = jax.lax.while_loop(
        lambda path: (path.doublings < max_treedepth) & ~path.is_divergent & ~path.is_turning,
        lambda path: doubled(path, system, noise, step_size),
        arrays(Trajectory(0, start, start, 0, tree, saved, False, False)),
    )
    draw, tree = path.tree.draw, path.tree
    above, below = tree.highest - energy, tree.lowest - energy
    stats = {
        "acceptance_rate": tree.acceptance_sum / tree.steps,
        "diverging": path.is_divergent,
        "energy": draw.energy,
        "energy_error": draw.energy - energy,
        "index_in_trajectory": draw.index,
        "max_energy_error": jnp.where(above > -below, above, below),
        "n_steps": tree.steps,
        "tree_depth": path.doublings,
    }
    state = state._replace(position=draw.position, logdensity=draw.logdensity, logdensity_grad=draw.gradient)
    return state, path, stats


def leapfrog(logp: Callable, factor: Any) -> Callable[[Point, Any], tuple[Point, Any]]:
    """Return a function that makes a step of the leapfrog integrator."""

    def step(point: Point, step_size: Any) -> tuple[Point, Any]:
        midway = point.momentum + 0.5 * step_size * point.force
        position = point.position + step_size * to_velocity(factor, midway)
        logdensity, gradient = jax.value_and_grad(logp)(position)
        force = to_force(factor, gradient)
        return Point(position, midway + 0.5 * step_size * force, logdensity, force), gradient

    return step


def kinetic_energy(momentum: Any) -> Any:
    """Return the kinetic energy of a momentum."""
    return 0.5 * jnp.dot(momentum, momentum)


def turns_back(first: Any, last: Any, total: Any) -> Any:
    """Return whether consecutive states turn back, by their first and last momentum and the sum of all."""
    rho = total - (first + last) / 2
    return (jnp.dot(first, rho) <= 0) | (jnp.dot(last, rho) <= 0)


def doubled(path: Trajectory, system: System, noise: Noise, step_size: Any) -> Trajectory:
    """Return a trajectory with twice as many states, or fewer if the new ones turn back or diverge."""
    to_direction, to_draw, to_take = noise.uniform[:, path.doublings]
    forward, tree = to_direction < 0.5, path.tree
    end, signed = either(forward, (path.right, step_size), (path.left, -step_size))
    index = jnp.where(forward, path.forwards, path.forwards - tree.steps)
    empty = tree._replace(log_weight=-np.inf, momentum_sum=np.zeros(end.momentum.shape), acceptance_sum=0.0, steps=0)
    branch: Branch = jax.lax.while_loop(
        lambda branch: (branch.tree.steps < 1 << path.doublings) & ~branch.is_divergent & ~branch.is_turning,
        lambda branch: with_step(branch, system, signed, index),
        arrays(Branch(end, empty, to_draw, path.saved, False, False)),
    )
    new, fails = branch.tree, branch.is_divergent | branch.is_turning
    left, right = either(forward, (path.left, branch.end), (branch.end, path.right))
    takes = (to_take < jnp.exp(new.log_weight - tree.log_weight)) & ~fails
    whole = Tree(
        either(takes, new.draw, tree.draw),
        log_of_sum(tree.log_weight, new.log_weight),
        tree.momentum_sum + new.momentum_sum,
        tree.acceptance_sum + new.acceptance_sum,
        tree.steps + new.steps,
        new.lowest,
        new.highest,
    )
    turns = branch.is_turning | turns_back(left.momentum, right.momentum, whole.momentum_sum)
    forwards = path.forwards + jnp.where(forward, new.steps, 0)
    return Trajectory(path.doublings + 1, left, right, forwards, whole, branch.saved, branch.is_divergent, turns)


def with_step(branch: Branch, system: System, step_size: Any, index: Any) -> Branch:
    """Return a branch with one more state.

    The branch begins behind the state with an index; `step_size` is negative if it goes backwards.
    """
    tree = branch.tree
    end, gradient = system.step(branch.end, step_size)
    energy = kinetic_energy(end.momentum) - end.logdensity
    energy = jnp.where(jnp.isnan(energy), np.inf, energy)
    gain = jnp.clip(system.energy_of_start - energy, -LARGEST, LARGEST)
    log_weight = log_of_sum(tree.log_weight, gain)
    # If the number is less than the share of the new state, or if not, it is uniform again when it is rescaled: one
    # number chooses among all states.
    share = jnp.exp(gain - log_weight)
    takes = branch.chance < share
    chance = either(takes, branch.chance, branch.chance - share) / either(takes, share, 1 - share)
    steps = tree.steps + 1
    index = index + jnp.where(step_size > 0, steps, -steps)
    here = Candidate(end.position, end.logdensity, gradient, energy, index)
    tree = Tree(
        either(takes, here, tree.draw),
        log_weight,
        tree.momentum_sum + end.momentum,
        tree.acceptance_sum + jnp.exp(jnp.minimum(gain, 0)),
        steps,
        jnp.minimum(tree.lowest, energy),
        jnp.maximum(tree.highest, energy),
    )
    saved, turns = with_turn(branch.saved, tree, end.momentum)
    return Branch(end, tree, chance, saved, gain < -DIVERGENCE, turns)


def with_turn(saved: Any, tree: Tree, momentum: Any) -> tuple[Any, Any]:
    """Return `Branch.saved` after a step, and whether a part of the tree that ends there turns back.

    Parts have 2, 4, 8 ... states. A state of an even number ends none, and is the first of one or more. A state of an
    odd number ends parts whose levels follow from the bits of the number, as in NumPyro.
    """
    number = tree.steps - 1
    level = jax.lax.population_count(number >> 1)
    last = level - jax.lax.population_count((~number & (number + 1)) - 1) + 1
    unread = saved.shape[1] - 1
    row = jnp.stack([momentum, tree.momentum_sum])[:, None]
    saved = jax.lax.dynamic_update_slice_in_dim(saved, row, either(number % 2 == 0, level, unread), 1)

    def check(loop: tuple) -> tuple:
        level, _ = loop
        first, sum_to_first = saved[:, level]
        return level - 1, turns_back(first, momentum, tree.momentum_sum - sum_to_first + first)

    _, turns = jax.lax.while_loop(lambda loop: (loop[0] >= last) & ~loop[1], check, arrays((level, False)))
    return saved, turns


def arrays(values: Any) -> Any:
    """Return values with arrays in place of Python's numbers.

    JAX traces a loop twice if the dtype of a number in its state is weak.
    """
    return jax.tree.map(lambda x: x if isinstance(x, jax.Array) else np.asarray(x), values)


def either(condition: Any, if_true: Any, if_false: Any) -> Any:
    """Return one of two trees of arrays."""
    return jax.tree.map(lambda a, b: jax.lax.select(condition, a, b), if_true, if_false)


def log_of_sum(a: Any, b: Any) -> Any:
    """Return ``log(exp(a) + exp(b))``. The second number must be finite."""
    return jnp.maximum(a, b) + jnp.log1p(jnp.exp(-abs(a - b)))
