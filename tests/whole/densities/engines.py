"""Log densities and gradients of a model at many points: ours, PyMC's in its default mode, nutpie's."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pymc as pm
from densities.measure import Found
from pymc.initial_point import make_initial_point_fn

from pytensor_jaxpr_linker.pymc import logdensity


def ours(model: pm.Model, flat: np.ndarray) -> Found:
    """Evaluate by the function that our samplers differentiate."""
    function = logdensity(model)
    with jax.enable_x64(True):
        call = jax.jit(jax.vmap(jax.value_and_grad(function)))
        density, gradient = call(flat.reshape(-1, flat.shape[-1]).astype(pm.pytensorf.floatX(flat).dtype))
    return Found(*(np.asarray(x, "float64").reshape(*flat.shape[:2], *x.shape[1:]) for x in (density, gradient)))


def by_points(call: Any, flat: np.ndarray) -> Found:
    density, gradient = np.full(flat.shape[:2], np.nan), np.full(flat.shape, np.nan)
    for index in np.ndindex(*flat.shape[:2]):
        with np.errstate(all="ignore"):
            density[index], gradient[index] = call(flat[index])
    return Found(density, gradient)


def pymc(model: pm.Model, flat: np.ndarray) -> Found:
    """Evaluate by `compile_logp` and `compile_dlogp`."""
    logp, dlogp, layout = model.compile_logp(), model.compile_dlogp(), logdensity(model).layout

    def call(position: np.ndarray) -> tuple[Any, Any]:
        values = layout.unravel(position)
        return logp(values), dlogp(values)

    return by_points(call, flat)


def nutpie(model: pm.Model, flat: np.ndarray) -> Found:
    """Evaluate by the function that `nutpie.compile_pymc_model` compiles; what else it compiles, the sampler needs."""
    from nutpie.compile_pymc import _make_functions

    start = make_initial_point_fn(model=model, default_strategy="support_point", return_transformed=True)
    made = _make_functions(model, mode="NUMBA", compute_grad=True, join_expanded=True, pymc_initial_point_fn=start)
    return by_points(made[2], flat)
