"""NUTS of nutpie, by its public `from_pyfunc`: it runs chains in threads of its own."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any

import jax
import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pytensor_jaxpr_linker.base.errors import GraphBreakError
from pytensor_jaxpr_linker.frontend.pregrad import value_and_gradient
from pytensor_jaxpr_linker.pymc.arguments import seed_of
from pytensor_jaxpr_linker.pymc.chains.chains import ChainDraws, shapes_of
from pytensor_jaxpr_linker.pymc.chains.kept_draws import Draws, thinned
from pytensor_jaxpr_linker.pymc.functions.density import Layout, layout_of
from pytensor_jaxpr_linker.pymc.functions.graph import model_mode
from pytensor_jaxpr_linker.pymc.functions.initial import Start, check_starts, point_functions
from pytensor_jaxpr_linker.pymc.kept_models import KeptModel
from pytensor_jaxpr_linker.pymc.request import Request
from pytensor_jaxpr_linker.pymc.samplers.nutpie_options import as_model

#: PyMC's names of nutpie's statistics.
STATS = {
    "mean_tree_accept": "acceptance_rate",
    "diverging": "diverging",
    "energy": "energy",
    "energy_error": "energy_error",
    "index_in_trajectory": "index_in_trajectory",
    "logp": "lp",
    "n_steps": "n_steps",
    "step_size": "step_size",
    "step_size_bar": "step_size_bar",
    "depth": "tree_depth",
    "maxdepth_reached": "reached_max_treedepth",
}
#: Chains whose log density takes less than this many seconds a call run one after the other: in threads they would mostly wait for
#: Python's lock, and took two to three times as long.
SHORT_CALL = 40e-6


def compiled_density(kept: KeptModel) -> tuple[Callable[[np.ndarray], tuple[float, np.ndarray]], Layout]:
    """Return one XLA program, which is kept, from a flat vector to log density and gradient, and the vector's layout."""
    names, given = [str(v.name) for v in kept.model.value_vars], kept.data
    layout = layout_of(kept.model, names)

    def value_and_gradient(x: jax.Array, data: Any) -> jax.Array:
        # As one array: each further result takes as long as calling a small program.
        def logp(x: jax.Array) -> jax.Array:
            return kept.logp(layout.unravel(x), data).astype("float64")

        value, gradient = jax.value_and_grad(logp)(x)
        return jax.numpy.append(gradient, value)

    def make() -> jax.stages.Compiled:
        _ = kept.logp  # which finds graph breaks before JAX traces
        vector = jax.ShapeDtypeStruct((sum(layout.sizes),), np.dtype("float64"))
        return jax.jit(value_and_gradient).lower(vector, given).compile()

    with jax.enable_x64(True):
        key = "gradient", kept.lengths, shapes_of(given), tuple(layout.shapes.items())
        compiled = kept.programs.find(key, make)
        data = jax.device_put(given)

    def call(x: np.ndarray) -> tuple[float, np.ndarray]:
        with jax.enable_x64(True):  # this setting belongs to a thread
            result = np.asarray(compiled(x, data))
        return float(result[-1]), result[:-1]

    return call, layout


def density_with_host_steps(model: pm.Model) -> tuple[Callable[[np.ndarray], tuple[float, np.ndarray]], Layout]:
    """Return a function, perhaps with host steps, from a flat vector to log density and gradient, and the vector's layout."""
    logp, gradients = value_and_gradient(model.logp(), model.value_vars)
    with model:
        f = pm.compile(model.value_vars, [logp, pt.concatenate([g.ravel() for g in gradients])], mode=model_mode(model))
    layout = layout_of(model, [str(v.name) for v in model.value_vars])
    dtypes = [v.type.dtype for v in model.value_vars]
    in_turn = threading.Lock()

    def call(x: np.ndarray) -> tuple[float, np.ndarray]:
        values = [v.astype(dtype) for v, dtype in zip(layout.unravel(x).values(), dtypes, strict=True)]
        with in_turn:
            value, gradient = f(*values)
        return float(value), np.asarray(gradient, "float64")

    return call, layout


def in_lasting_threads(density: Callable[[np.ndarray], tuple[float, np.ndarray]]) -> Callable:
    """Wrap `density` so that nutpie's threads keep their Python and JAX state between calls.

    Python drops the state of a thread that it did not start at the end of each call, and makes it anew at the next: that took longer than
    a small program. It keeps the state as long as one `PyGILState_Ensure` has no release.
    """
    of_thread = threading.local()

    def call(x: np.ndarray) -> tuple[float, np.ndarray]:
        if not hasattr(of_thread, "is_registered"):
            of_thread.is_registered = True
            ctypes.pythonapi.PyGILState_Ensure()
        return density(x)

    return call


def is_short(density: Callable[[np.ndarray], Any], x: np.ndarray) -> bool:
    """Return whether a call can take less than `SHORT_CALL`."""

    def seconds() -> float:
        began = perf_counter()
        density(x)
        return perf_counter() - began

    return any(seconds() < SHORT_CALL for _ in range(5))


def run_nutpie(
    density: Callable[[np.ndarray], tuple[float, np.ndarray]],
    layout: Layout,
    start: Callable[[int], np.ndarray],
    *,
    seed: int,
    cores: int | None,
    max_treedepth: int,
    progressbar: bool,
    thinning: int = 1,
    keep_warmup: bool = False,
    **options: Any,
) -> ChainDraws:
    """Run the chains with the options of `nutpie.sample`; after an interrupt, return as many of their draws as have one length.

    `start` maps the seed of a chain to its start. `cores` is the number of chains that run at a time: if None, nutpie's default, or one if
    calls are short.
    """
    import nutpie

    size = sum(layout.sizes)
    point = start(seed)  # in the user's thread, which gets its errors
    if cores is None and is_short(density, point):
        cores = 1
    began = perf_counter()
    trace = nutpie.sample(
        as_model(in_lasting_threads(density), size, start),
        seed=seed,
        cores=cores,
        maxdepth=max_treedepth,
        progress_bar=progressbar,
        save_warmup=keep_warmup,
        **options,
    )
    seconds = perf_counter() - began
    # An interrupted run has chains of different lengths, and NaN where one ends earlier.
    lengths = np.isfinite(trace.posterior["position"].to_numpy()).all(axis=2).sum(axis=1)
    kept, length = most_draws(lengths)
    if length < thinning:
        raise KeyboardInterrupt
    draws = thinned(draws_of(trace.posterior, trace.sample_stats, kept, length, layout), thinning)
    warmup = None
    if keep_warmup:
        warmup = draws_of(trace.warmup_posterior, trace.warmup_sample_stats, kept, None, layout)
    return ChainDraws(draws, warmup, bool((lengths < options["draws"]).any()), seconds)


def draws_of(posterior: Any, stats: Any, chains: np.ndarray, length: int | None, layout: Layout) -> Draws:
    """Return the first draws of some chains of nutpie's, or all, with PyMC's names of statistics."""
    # `store_gradient` and the like add statistics with one more axis: the flat vector's.
    names = STATS | {str(name): str(name) for name, x in stats.data_vars.items() if x.ndim > 2}
    found = {new: stats[old].to_numpy()[chains][:, :length] for old, new in names.items()}
    return Draws(layout.unravel(posterior["position"].to_numpy()[chains][:, :length]), found)


def most_draws(lengths: np.ndarray) -> tuple[np.ndarray, int]:
    """Return which chains to keep, and how many draws of each, so that most draws are kept: `pymc.sample`'s rule.

    Examples
    --------
    >>> import numpy as np
    >>> from pytensor_jaxpr_linker.pymc.samplers.nutpie import most_draws
    >>> most_draws(np.array([1000, 900, 3, 0]))
    (array([0, 1]), 900)
    """
    order = np.argsort(-lengths, kind="stable")
    count = 1 + int(np.argmax(lengths[order] * np.arange(1, len(order) + 1)))
    kept = np.sort(order[:count])
    return kept, int(lengths[kept].min())


def sample_nutpie(request: Request, kept: KeptModel) -> ChainDraws:
    """Sample with nutpie, with host steps if the log density is not one program."""
    began = perf_counter()
    try:
        density, layout = compiled_density(kept)
    except GraphBreakError as error:  # whose reasons the warning of the function with host steps repeats
        if request.gradient == "jax":
            error.add_note(
                "With host steps the gradient is PyTensor's: leave out gradient='jax', and nutpie runs them."
            )
            raise
        density, layout = density_with_host_steps(request.model)
    draw = point_functions(request.model, 1, request.initvals, request.jitter)[0]
    in_turn, before = threading.Lock(), perf_counter() - began

    def ravel(point: dict) -> np.ndarray:
        return layout.ravel(point).astype("float64")

    def usable(value: Any, gradient: Any) -> float:
        return float(value) if np.all(np.isfinite(gradient)) else np.nan  # nutpie would panic

    def start(seed: int) -> np.ndarray:
        with in_turn:  # the function that draws is shared by the threads
            begun = Start(request.model, draw, seed, request.jitter)
            check_starts([begun], lambda points: [usable(*density(ravel(point))) for point in points])
            return ravel(begun.point)

    found = run_nutpie(
        density,
        layout,
        start,
        seed=seed_of(request.seeds)[0],
        cores=1 if request.chain_method == "sequential" else request.cores,
        chains=request.chains,
        draws=request.draws,
        progressbar=bool(request.progressbar),
        thinning=request.thinning,
        keep_warmup=not request.discard_tuned_samples,
        **request.adaptation,
    )
    return found._replace(seconds_before=before)
