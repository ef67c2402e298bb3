"""NUTS of nutpie, by its public `from_pyfunc`: it runs chains in threads of its own."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import jax
import numpy as np
import pymc as pm

from pytensor_jaxpr_linker.pymc.chains import Draws
from pytensor_jaxpr_linker.pymc.density import LogDensity
from pytensor_jaxpr_linker.pymc.graph import model_mode
from pytensor_jaxpr_linker.pymc.initial import layout_of
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
    "maxdepth_reached": "reached_max_treedepth",
}
#: Options of a run, not settings of the sampler.
OF_A_RUN = {"cores", "progress_callback", "progress_rate", "progress_style", "progress_template"}

#: Chains whose log density takes less than this many seconds a call run one after the other: in threads they would mostly wait for
#: Python's lock, and took two to three times as long.
SHORT_CALL = 40e-6


def compiled_density(logp: LogDensity) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    """Return one XLA program from a flat vector to log density and gradient."""

    def value_and_gradient(x: jax.Array, data: Any) -> jax.Array:
        # As one array: each further result takes as long as calling a small program.
        value, gradient = jax.value_and_grad(lambda x: logp(x, data).astype("float64"))(x)
        return jax.numpy.append(gradient, value)

    with jax.enable_x64(True):
        data = jax.device_put(logp.data)
        vector = jax.ShapeDtypeStruct((logp.size,), np.dtype("float64"))
        compiled = jax.jit(value_and_gradient).lower(vector, data).compile()

    def call(x: np.ndarray) -> tuple[float, np.ndarray]:
        with jax.enable_x64(True):  # this setting belongs to a thread
            result = np.asarray(compiled(x, data))
        return float(result[-1]), result[:-1]

    return call


def density_with_host_steps(model: pm.Model) -> tuple[Callable[[np.ndarray], tuple[float, np.ndarray]], Layout]:
    """Return a function, perhaps with host steps, from a flat vector to log density and gradient, and the vector's layout."""
    with model:
        f = pm.compile(model.value_vars, [model.logp(), model.dlogp()], mode=model_mode(model))
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


def as_model(density: Callable[[np.ndarray], Any], size: int, start: Callable[[int], np.ndarray]) -> Any:
    """Return nutpie's model of a density of vectors of length `size`; `start` maps a seed to the start of a chain."""
    from nutpie.compiled_pyfunc import from_pyfunc

    return from_pyfunc(
        size,
        lambda: density,
        lambda *_: lambda x: {"position": x},  # constrained later, all at once
        [np.dtype("float64")],
        [(size,)],
        ["position"],
        make_initial_point_fn=start,
    )


def refusal(options: Mapping[str, Any]) -> str:
    """Return nutpie's error for its options, or nothing: it has no list of its settings, so it draws from a normal with them."""
    import nutpie

    settings = {name: value for name, value in options.items() if name not in OF_A_RUN}
    if not settings:
        return ""
    normal = as_model(lambda x: (-0.5 * float(x @ x), -x), 1, lambda seed: np.ones(1))
    try:
        nutpie.sample(normal, draws=1, tune=1, chains=1, cores=1, seed=1, progress_bar=False, **settings)
    except Exception as error:  # which of them depends on nutpie's release
        return " ".join(str(error).split())
    return ""


def is_short(density: Callable[[np.ndarray], Any], x: np.ndarray) -> bool:
    """Tell whether a call can take less than `SHORT_CALL`."""

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
    **options: Any,
) -> Draws:
    """Run the chains with the options of `nutpie.sample`; after an interrupt, return as many of their draws as have one length.

    `start` maps the seed of a chain to its start. `cores` is the number of chains that run at a time: if None, nutpie's default, or one if
    calls are short.
    """
    import nutpie

    size = sum(layout.sizes)
    point = start(seed)  # in the user's thread, which gets its errors
    if cores is None and is_short(density, point):
        cores = 1
    trace = nutpie.sample(
        as_model(in_lasting_threads(density), size, start),
        seed=seed,
        cores=cores,
        maxdepth=max_treedepth,
        progress_bar=progressbar,
        save_warmup=False,
        **options,
    )
    # An interrupted run has chains of different lengths, and NaN where one ends earlier.
    position = trace.posterior["position"].to_numpy()
    kept, length = most_draws(np.isfinite(position).all(axis=2).sum(axis=1))
    if not length:
        raise KeyboardInterrupt
    # `store_gradient` and the like add statistics with one more axis: the flat vector's.
    names = STATS | {str(name): str(name) for name, x in trace.sample_stats.data_vars.items() if x.ndim > 2}
    stats = {new: trace.sample_stats[old].to_numpy()[kept, :length] for old, new in names.items()}
    return Draws(layout.unravel(position[kept, :length]), stats)


def most_draws(lengths: np.ndarray) -> tuple[np.ndarray, int]:
    """Return which chains to keep, and how many draws of each, so that most draws are kept: `pymc.sample`'s rule.

    Examples
    --------
    >>> import numpy as np
    >>> from pytensor_jaxpr_linker.pymc.sampler_nutpie import most_draws
    >>> most_draws(np.array([1000, 900, 3, 0]))
    (array([0, 1]), 900)
    """
    order = np.argsort(-lengths, kind="stable")
    count = 1 + int(np.argmax(lengths[order] * np.arange(1, len(order) + 1)))
    kept = np.sort(order[:count])
    return kept, int(lengths[kept].min())
