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
from pytensor_jaxpr_linker.pymc.layout import Layout

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


def density_with_host_steps(model: pm.Model) -> tuple[Callable[[np.ndarray], tuple[float, np.ndarray]], Layout]:
    """Return log density and gradient at a flat vector by a function that may have host steps; and the vector's layout."""
    with model:
        f = pm.compile(model.value_vars, [model.logp(), model.dlogp()], mode=model_mode(model))
    point = model.initial_point()
    layout = Layout({str(v.name): np.shape(point[v.name]) for v in model.value_vars})
    dtypes = [v.type.dtype for v in model.value_vars]
    in_turn = threading.Lock()

    def call(x: np.ndarray) -> tuple[float, np.ndarray]:
        values = [v.astype(dtype) for v, dtype in zip(layout.unravel(x).values(), dtypes, strict=True)]
        with in_turn:
            value, gradient = f(*values)
        return float(value), np.asarray(gradient, "float64")

    return call, layout


def run_nutpie(
    density: Callable[[np.ndarray], tuple[float, np.ndarray]],
    layout: Layout,
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
    density, layout
        Log density and gradient at a flat vector, and where the values lie in it.
    start
        The flat vector at which the chain with a given seed starts.
    seed, tune, draws, chains, cores, target_accept, max_treedepth, progressbar
        As for `sample`.
    **kwargs
        For `nutpie.sample`.
    """
    size = sum(layout.sizes)
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
    length = int(np.isfinite(position).all(axis=(0, 2)).sum())
    if not length:
        raise KeyboardInterrupt
    stats = {new: trace.sample_stats[old].to_numpy()[:, :length] for old, new in STATS.items()}
    return Draws(layout.unravel(position[:, :length]), stats)
