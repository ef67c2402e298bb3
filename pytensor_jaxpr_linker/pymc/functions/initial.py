"""Finds the points where chains start, and says why a chain can't start at one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pymc as pm
from pymc.exceptions import SamplingError
from pymc.initial_point import convert_str_to_rv_dict, make_initial_point_expression
from pymc.pytensorf import find_rng_nodes, replace_rng_nodes, reseed_rngs
from pymc.util import get_untransformed_name, is_transformed_name
from pytensor import config
from pytensor.compile.mode import FAST_COMPILE, Mode
from pytensor.graph.basic import Variable

from pytensor_jaxpr_linker.frontend.pregrad import value_and_gradient
from pytensor_jaxpr_linker.pymc.arguments import chain_seeds, check_model, shown
from pytensor_jaxpr_linker.pymc.functions.graph import model_mode

#: Held while PyTensor's configuration is changed. The process has one configuration, so a thread would else restore the
#: setting of another one.
CONFIGURING = threading.Lock()

#: FAST_COMPILE without PyTensor's virtual machine.
IN_PYTHON = Mode("py", FAST_COMPILE.provided_optimizer)

#: How often a chain's point is drawn anew if its log density is not finite, as in PyMC.
RETRIES = 10


def initial_points(
    model: pm.Model | None = None,
    chains: int = 4,
    random_seed: Any = None,
    *,
    initvals: Any = None,
    jitter: bool = True,
    logp: Callable[[dict[str, np.ndarray]], Any] | None = None,
) -> dict[str, np.ndarray]:
    """Return the unconstrained starting point of each chain: PyMC's, with its jitter.

    They are computed by PyTensor's mode FAST_COMPILE, as PyMC does it.

    Parameters
    ----------
    model : pymc.Model, optional
        By default the context's model.
    chains : int
        The number of points.
    random_seed : int, sequence of int or Generator, optional
        Determines the jitter. A sequence has one seed for each chain.
    initvals : dict or sequence of dict, optional
        As for `pymc.sample`.
    jitter : bool
        Whether to add uniform numbers in [-1, 1].
    logp : callable, optional
        The log density of a point. A point where it is not finite is drawn anew, up to ten times.

    Returns
    -------
    dict of ndarray
        For the name of each unconstrained variable an array with a leading axis of chains.

    Raises
    ------
    ValueError
        If `initvals` does not fit the model.
    pymc.exceptions.SamplingError
        If no point with a finite log density was found. It names the terms.
    """
    model = check_model(model)
    if chains < 1:
        raise ValueError(f"chains must be at least 1, not {chains}.")
    check_initvals(model, initvals)
    seeds = chain_seeds(random_seed, chains)
    draws = point_functions(model, chains, initvals, jitter)
    starts = [Start(model, draw, s, jitter) for draw, s in zip(draws, seeds, strict=True)]
    if logp is not None:
        check_starts(starts, lambda points: [logp(point) for point in points])
    return stacked_points([start.point for start in starts])


class Start:
    """The starting point of a chain, which `check_starts` draws anew if its log density is not finite."""

    def __init__(self, model: pm.Model, draw: Callable[[Any], dict[str, np.ndarray]], seed: Any, jitter: bool):
        self._model, self._draw, self._jitter = model, draw, jitter
        self._seeds = np.random.default_rng(seed)
        self.point = draw(seed)

    def draw_anew(self, value: float, attempt: int) -> None:
        """Draw another point, or, after `RETRIES` attempts or without jitter, raise a `SamplingError` that says why."""
        if attempt >= (RETRIES if self._jitter else 0):
            raise SamplingError(describe_start(self._model, self.point, value))
        self.point = self._draw(self._seeds.integers(2**30, dtype=np.int64))


def check_starts(starts: Sequence[Start], logps: Callable[[list[dict[str, np.ndarray]]], Iterable[Any]]) -> None:
    """Draw points anew until each has a finite log density, or raise a `SamplingError` that says why.

    `logps` returns the log densities of as many points as there are `starts`, which change.
    """
    for attempt in range(RETRIES + 1):
        values = [float(x) for x in logps([start.point for start in starts])]
        if all(map(np.isfinite, values)):
            return
        for start, value in zip(starts, values, strict=True):
            if not np.isfinite(value):
                start.draw_anew(value, attempt)


def point_functions(model: pm.Model, chains: int, initvals: Any, jitter: bool) -> list[Callable]:
    """Return functions from a seed to the starting point of each chain, for the arguments of `initial_points`."""
    jittered = set(model.free_RVs) if jitter else set()
    if isinstance(initvals, Mapping | None):
        return [point_function(model, initvals, jittered)] * chains
    if len(initvals) != chains:
        raise ValueError(
            f"initvals has {len(initvals)} dicts for {chains} chains: give one dict, or one for each chain."
        )
    return [point_function(model, given, jittered) for given in initvals]


def point_function(model: pm.Model, initvals: Mapping | None, jittered: set[Variable]) -> Callable[[Any], dict]:
    """Return PyMC's function from a seed to a starting point, in a mode that imports nothing of PyTensor's C backend.

    That backend needs setuptools, whose import takes 0.3 s.
    """
    strategies = {**model.rvs_to_initial_values, **convert_str_to_rv_dict(model, dict(initvals or {}))}
    names, expressions = point_expressions(model, strategies, "support_point", jittered)
    with in_python():  # inner graphs, as of a loop, do not get the mode
        draw = pm.compile([], replace_rng_nodes(expressions), mode=IN_PYTHON)
    generators = find_rng_nodes(draw.maker.fgraph.outputs)

    def point_at(seed: Any) -> dict[str, np.ndarray]:
        reseed_rngs(generators, seed)
        return dict(zip(names, draw(), strict=True))

    return point_at


def point_expressions(
    model: pm.Model, strategies: dict, default: str, jittered: set[Variable]
) -> tuple[list[str], list[Variable]]:
    """Return the names of unconstrained variables, and PyMC's expressions of a point."""
    names = [str(model.rvs_to_values[rv].name) for rv in model.free_RVs]
    return names, make_initial_point_expression(
        free_rvs=model.free_RVs,
        rvs_to_transforms=model.rvs_to_transforms,
        initval_strategies=strategies,
        jitter_rvs=jittered,
        default_strategy=default,
        return_transformed=True,
    )


def prior_function(model: pm.Model) -> Callable[[int, int], dict[str, np.ndarray]]:
    """Return a function from a seed and a number to that many unconstrained draws of the prior, as by `pymc.draw`."""
    names, expressions = point_expressions(model, {}, "prior", set())
    draw, updates = pm.compile([], expressions, mode=model_mode(model), random_seed=False, return_updates=True)

    def call(seed: int, count: int) -> dict[str, np.ndarray]:
        reseed_rngs(list(updates), seed)
        drawn = zip(*(draw() for _ in range(count)), strict=True)
        return {name: np.stack(x) for name, x in zip(names, drawn, strict=True)}

    return call


@contextmanager
def in_python() -> Iterator[None]:
    """Keep PyTensor from compiling C for functions whose mode PyMC fixes: its configuration is the only switch."""
    with CONFIGURING, config.change_flags(cxx=""):
        yield


def shapes_of_points(model: pm.Model) -> dict[str, tuple[int, ...]]:
    """Return the current shape of each unconstrained variable."""
    declared = {str(v.name): v.type.shape for v in model.value_vars}
    if not any(None in shape for shape in declared.values()):
        return declared
    with in_python():
        found = model.eval_rv_shapes()
    return {name: tuple(map(int, found[name])) for name in declared}


def stacked_points(points: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Return arrays with an axis of chains in front."""
    return {name: np.stack([point[name] for point in points]) for name in points[0]}


def check_initvals(model: pm.Model, initvals: Any) -> None:
    """Raise an error if `initvals` names anything but free variables, or has values of other shapes."""
    free = {rv.name: rv for rv in model.free_RVs}
    several = [initvals] if isinstance(initvals, Mapping | None) else initvals
    if not isinstance(several, list | tuple) or not all(isinstance(given, Mapping | None) for given in several):
        raise TypeError(f"initvals must be a dict, or a list with a dict for each chain, not {shown(initvals)}.")
    for given in several:
        for key, value in (given or {}).items():
            name = get_untransformed_name(key) if is_transformed_name(str(key)) else str(key)
            if name not in free:
                raise ValueError(f"initvals has {name!r}, but the free variables are {', '.join(map(repr, free))}.")
            if isinstance(value, str | Variable) or name != str(key):
                continue
            declared, shape = free[name].type.shape, np.shape(value)
            if len(declared) != len(shape) or any(n not in (None, m) for n, m in zip(declared, shape, strict=True)):
                raise ValueError(f"initvals has shape {shape} for {name!r}, which is a {free[name].type}.")


def check_shapes(model: pm.Model, points: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Raise a ValueError if starting points, perhaps of `initvals`, do not have the shapes of the model's variables."""
    for name, shape in shapes_of_points(model).items():
        for point in points:
            if point[name].shape != shape:
                raise ValueError(
                    f"initvals gives {name!r} the shape {point[name].shape}, but in this model it has {shape}."
                )


def describe_start(model: pm.Model, point: Mapping[str, Any], value: float) -> str:
    """Return why a chain can't start at a point: its log density `value`, or its gradient, is not finite."""
    names = [v.name for v in (*model.basic_RVs, *model.potentials)]
    terms = values_at(model, point, model.logp(sum=False))
    parts = [
        f"the term of {name!r} is {np.sum(x)} ({how_many(x)})"
        for name, x in zip(names, terms, strict=True)
        if not np.all(np.isfinite(x))
    ]
    if bad := [name for name, x in point.items() if not np.all(np.isfinite(x))]:
        parts.append(f"the starting value of {', '.join(map(repr, bad))} is not finite")
    total = float(sum(map(np.sum, terms)))
    if np.isfinite(total):
        inputs = model.continuous_value_vars
        gradients = values_at(model, point, value_and_gradient(model.logp(), inputs)[1])
        found = [(v.name, x) for v, x in zip(inputs, gradients, strict=True) if not np.all(np.isfinite(x))]
        parts = [f"the gradient by {name!r} is not finite ({how_many(x)})" for name, x in found]
    if parts:
        value = total
    reasons = "; ".join(parts) or "the terms are finite, their sum is not"
    return (
        f"The log density at the starting point is {value}: {reasons}."
        " Give other initvals, or look for data outside of the support and priors that are too wide."
    )


def values_at(model: pm.Model, point: Mapping[str, Any], outputs: Any) -> list[np.ndarray]:
    """Return the values of expressions at a point."""
    with model:
        call = pm.compile(model.value_vars, outputs, mode=model_mode(model), on_unused_input="ignore")
        return call(*(point[v.name] for v in model.value_vars))


def how_many(x: np.ndarray) -> str:
    """Return the number of elements of an array that are not finite, as text."""
    return f"{np.sum(~np.isfinite(x))} of {np.size(x)} elements are not finite"
