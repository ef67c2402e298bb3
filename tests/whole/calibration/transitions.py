"""Invariance: one transition from exact draws leaves the joint distribution of parameters and data as it is (Geweke, 2004).

Prior draws with their data are exact draws of the joint distribution. A transition of an exact sampler, given the data, keeps it: then no mean
changes. What changes is small against the spread of draws, so the differences show errors that ranks do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytensor
from blackjax.adaptation.mclmc_adaptation import MCLMCAdaptationState
from blackjax.mcmc import adjusted_mclmc_dynamic, dynamic_hmc
from blackjax.mcmc.mclmc import init as mclmc_init
from calibration.models import build, exact_draws
from scipy import stats

from pytensor_jaxpr_linker.pymc.functions.density import Layout, logdensity
from pytensor_jaxpr_linker.pymc.kernels import chees, mclmc, nuts
from pytensor_jaxpr_linker.pymc.kernels.trajectory import State
from pytensor_jaxpr_linker.pymc.samplers.jax_kernels import VectorDensity

#: Consecutive transitions: an error adds up.
STEPS = 12
#: The probability that a test of an exact sampler finds nothing.
PROBABILITY = 0.999


class Change(NamedTuple):
    """How much means changed by transitions, in standard errors."""

    quantities: list[str]
    z: np.ndarray

    @property
    def is_found(self) -> bool:
        """Whether it is more than chance allows, for the number of quantities."""
        return bool(np.abs(self.z).max() > stats.norm.ppf(1 - (1 - PROBABILITY) / 2 / len(self.z)))


def unconstrained(model: Any, priors: dict[str, np.ndarray]) -> np.ndarray:
    """Return draws as the vectors that samplers move. Shape (draws, size)."""
    inputs, outputs = [], []
    for rv in model.free_RVs:
        value, transform = rv.type(rv.name), model.rvs_to_transforms[rv]
        inputs.append(value)
        outputs.append(value if transform is None else transform.forward(value, *rv.owner.inputs))
    f = pytensor.function(inputs, outputs, mode="FAST_COMPILE", on_unused_input="ignore")
    count = len(next(iter(priors.values())))
    rows = [
        np.concatenate([np.ravel(x) for x in f(*(priors[rv.name][i] for rv in model.free_RVs))]) for i in range(count)
    ]
    return np.array(rows, float)


def factor_for(positions: np.ndarray, form: str) -> np.ndarray:
    """Return a factor of the inverse mass matrix that fits the draws, but not well: its scales are off by up to 1.5."""
    spread = positions.std(axis=0) * np.linspace(0.7, 1.5, positions.shape[1])
    if form == "diagonal":
        return spread
    rotation = np.eye(len(spread)) + 0.3 * np.tril(np.ones((len(spread), len(spread))), -1)
    return np.diag(spread) @ rotation


#: Returns, of a log density, draws and a step size, a function of data, a key and a position that moves the position once.
Mover = Callable[[Any, np.ndarray, float], Callable]


def nuts_mover(form: str) -> Mover:
    def make(logp: Any, positions: np.ndarray, size: float) -> Callable:
        kernel = nuts.make_kernel(logp, 0, 0.8, 6, mass_matrix=form)
        factor = factor_for(positions, form)

        def move(data: Any, key: Any, position: Any) -> Any:
            _, key, _, step, errors, metric = kernel.start(data, key, position)
            value, gradient = jax.value_and_grad(logp)(position, data)
            log_size = jax.numpy.log(size)
            step = step._replace(log_step_size=log_size, log_step_size_avg=log_size)
            state = 10, key, State(position, value, gradient), step, errors, metric._replace(factor=factor)
            return kernel.transition(data, state)[1][0]

        return move

    return make


def adjusted_mover(logp: Any, positions: np.ndarray, size: float) -> Callable:
    kernel = mclmc.make_kernel(logp, 1, 10, adjusted=True)

    def move(data: Any, key: Any, position: Any) -> Any:
        first, key = jax.random.split(key)
        state = adjusted_mclmc_dynamic.init(position, lambda q: logp(q, data), first)
        spread = positions.std(axis=0) ** 2
        params = blackjax_params(4 * size, size, spread)
        return kernel.transition(data, (key, state, params))[1][0]

    return move


def blackjax_params(length: float, size: float, spread: np.ndarray) -> Any:
    return MCLMCAdaptationState(jax.numpy.asarray(length), jax.numpy.asarray(size), jax.numpy.asarray(spread))


def unadjusted_mover(logp: Any, positions: np.ndarray, size: float) -> Callable:
    kernel = mclmc.make_kernel(logp, 1, 10)

    def move(data: Any, key: Any, position: Any) -> Any:
        first, key = jax.random.split(key)
        state = mclmc_init(position, lambda q: logp(q, data), first)
        params = blackjax_params(4 * size, size, positions.std(axis=0) ** 2)
        return kernel.transition(data, (key, state, params))[1][0]

    return move


def chees_mover(logp: Any, positions: np.ndarray, size: float) -> Callable:
    kernel = chees.make_kernel(logp, 1, 6)

    def move(data: Any, key: Any, position: Any) -> Any:
        first, number = jax.random.split(key)
        state = dynamic_hmc.init(position, lambda q: logp(q, data), jax.random.randint(number, (), 0, 1000))
        states = jax.tree.map(lambda x: jax.numpy.expand_dims(x, 0), state)
        chains = first[None], states, jax.numpy.asarray(size), positions.std(axis=0) ** 2, jax.numpy.asarray(6.0)
        return kernel.transition(data, chains)[1][0][0]

    return move


#: Each with its step size, as a multiple of that of the model.
MOVERS: dict[str, tuple[Mover, float]] = {
    "NUTS, dense": (nuts_mover("dense"), 0.7),
    "NUTS, diagonal": (nuts_mover("diagonal"), 1.0),
    "adjusted MCLMC": (adjusted_mover, 1.5),
    "ChEES": (chees_mover, 1.0),
    "MCLMC": (unadjusted_mover, 4.0),
}
#: The models, each with a step size in units of the prior's spread: so large that energies have errors, and that the chains still move.
MODELS = {"normal": 0.25, "hierarchical": 1.0, "mixture": 0.5, "logistic": 0.7, "gaussian_process": 0.5}


def change_of(name: str, mover: str, count: int = 20_000, seed: int = 1) -> Change:
    """Return how much the means of coordinates, their squares and products with the data change in `STEPS` transitions of `count` exact draws."""
    model = build(name)
    priors, data = exact_draws(model, count, seed)
    positions = unconstrained(model, priors)
    make, factor = MOVERS[mover]
    size = MODELS[name] * factor
    with jax.enable_x64(True):
        logp = logdensity(model)
        layout = Layout({v.name: np.shape(model.initial_point()[v.name]) for v in model.value_vars})
        vector = VectorDensity(logp, layout)
        move = make(vector, positions, size)

        def several(given: tuple) -> Any:
            key, position, y = given
            shared = {**logp.data, "data": y}
            keys = jax.random.split(key, STEPS)
            return jax.lax.fori_loop(0, STEPS, lambda i, q: move(shared, keys[i], q), position)

        keys = jax.random.split(jax.random.key(seed), count)
        moved = np.asarray(jax.jit(lambda *given: jax.lax.map(several, given))(keys, positions, np.asarray(data)))
        density = jax.jit(jax.vmap(lambda q, y: vector(q, {**logp.data, "data": y})))
        before, after = (np.asarray(density(q, np.asarray(data))) for q in (positions, moved))
    center, spread = positions.mean(axis=0), positions.std(axis=0)
    level = np.reshape(data, (count, -1)).mean(axis=1)
    level = (level - level.mean()) / level.std()
    quantities, z = [], []

    def add(quantity: str, new: np.ndarray, old: np.ndarray) -> None:
        difference = np.clip(new - old, -50, 50)
        quantities.append(quantity)
        z.append(difference.mean() / (difference.std() / np.sqrt(count) + 1e-300))

    old, new = (positions - center) / spread, (moved - center) / spread
    for k in range(positions.shape[1]):
        add(f"q[{k}]", new[:, k], old[:, k])
        add(f"q[{k}]^2", new[:, k] ** 2, old[:, k] ** 2)
        add(f"q[{k}] y", new[:, k] * level, old[:, k] * level)
    add("log density", after, before)
    return Change(quantities, np.array(z))
