"""NUTS of nutpie, by its public `from_pyfunc`: chains run in its own threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import nutpie
import pymc as pm
from nutpie.compiled_pyfunc import from_pyfunc

from pytensor_jaxpr_linker.pymc.chains import Draws
from pytensor_jaxpr_linker.pymc.density import LogDensity
from pytensor_jaxpr_linker.pymc.graph import model_mode

#: PyMC's names of nutpie's statistics.
STATS = {
    "mean_tree_accept": "acceptance_rate",
    "diverging": "diverging",
    "energy": "energy",
    "logp": "lp",
    "n_steps": "n_steps",
    "step_size": "step_size",
    "depth": "tree_depth",
}


def compiled_density(logp: LogDensity) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    """Return log density and gradient at a flat vector, as one XLA program."""
    with jax.enable_x64(True):
        data = jax.device_put(logp.data)
        vector = jax.ShapeDtypeStruct((logp.size,), np.dtype("float64"))
        program = jax.jit(jax.value_and_grad(lambda x, data: logp(x, data).astype("float64"))).lower(vector, data)
        compiled = program.compile()

    def call(x: np.ndarray) -> tuple[float, np.ndarray]:
        with jax.enable_x64(True):  # this setting belongs to a thread
            value, gradient = compiled(x, data)
        return float(value), np.asarray(gradient)

    return call


def density_with_host_steps(model: pm.Model) -> tuple[Callable, Callable[[Any], dict], int]:
    """Return log density and gradient at a flat vector by a function that may have host steps; and unravel, and size."""
    with model:
        f = pm.compile(model.value_vars, [model.logp(), model.dlogp()], mode=model_mode(model))
    point = model.initial_point()
    shapes = {str(v.name): np.shape(point[v.name]) for v in model.value_vars}
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    in_turn = threading.Lock()

    def unravel(x: np.ndarray) -> dict[str, np.ndarray]:
        parts = np.split(x, ends[:-1], axis=-1)
        return {n: p.reshape(*x.shape[:-1], *shape) for (n, shape), p in zip(shapes.items(), parts, strict=True)}

    def call(x: np.ndarray) -> tuple[float, np.ndarray]:
        with in_turn:
            value, gradient = f(*unravel(x).values())
        return float(value), np.asarray(gradient, "float64")

    return call, unravel, int(ends[-1])


def run_nutpie(
    density: Callable[[np.ndarray], tuple[float, np.ndarray]],
    unravel: Callable[[Any], dict[str, np.ndarray]],
    size: int,
    start: Callable[[int], np.ndarray],
    *,
    seed: int,
    tune: int,
    draws: int,
    chains: int,
    cores: int | None,
    target_accept: float,
    max_treedepth: int,
    progressbar: bool,
    **kwargs: Any,
) -> Draws:
    """Run the chains; after an interrupt, return as many draws as every chain has.

    Parameters
    ----------
    density, unravel, size
        Log density and gradient at a flat vector; from flat vectors to values; their length.
    start
        The flat vector at which the chain with a given seed starts.
    seed, tune, draws, chains, cores, target_accept, max_treedepth, progressbar
        As for `sample`.
    **kwargs
        For `nutpie.sample`.
    """
    compiled = from_pyfunc(
        size,
        lambda: density,
        lambda *_: lambda x: {"position": x},  # constrained later, all at once
        [np.dtype("float64")],
        [(size,)],
        ["position"],
        make_initial_point_fn=start,
    )
    trace = nutpie.sample(
        compiled,
        seed=seed,
        tune=tune,
        draws=draws,
        chains=chains,
        cores=cores,
        target_accept=target_accept,
        maxdepth=max_treedepth,
        progress_bar=progressbar,
        save_warmup=False,
        **kwargs,
    )
    # An interrupted run has chains of different lengths, and NaN where one ends earlier.
    position = trace.posterior["position"].to_numpy()
    length = int(np.isfinite(position).all(axis=(0, 2)).sum()) if size else draws
    if not length:
        raise KeyboardInterrupt
    stats = {new: trace.sample_stats[old].to_numpy()[:, :length] for old, new in STATS.items()}
    return Draws(unravel(position[:, :length]), stats)
