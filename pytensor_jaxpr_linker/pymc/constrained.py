"""Maps unconstrained draws to the variables that a model's user knows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
import pymc as pm
from pymc.util import get_default_varnames

from pytensor_jaxpr_linker.base.errors import GraphBreakError
from pytensor_jaxpr_linker.pymc.arguments import Names, as_names, did_you_mean
from pytensor_jaxpr_linker.pymc.graph import Data, ModelFunction, model_mode

#: How many bytes of results are computed at once.
CHUNK_BYTES = 64 * 2**20


class ChunkProgram(NamedTuple):
    """A compiled program for a chunk of draws: how many draws it takes, and the shapes and dtypes of its results."""

    call: jax.stages.Compiled
    size: int
    results: list[jax.ShapeDtypeStruct]


class Constrain:
    """Maps unconstrained draws to constrained values and Deterministics; see `constrain`.

    Attributes
    ----------
    names
        The variables that it returns.
    """

    def __init__(self, model: pm.Model, var_names: Names | None):
        variables = get_default_varnames(model.unobserved_value_vars, include_transformed=False)
        known = [str(v.name) for v in variables]
        wanted = known if var_names is None else as_names(var_names)
        if unknown := sorted(set(wanted) - set(known)):
            question = did_you_mean(unknown[0], known)
            raise ValueError(f"The model has no {', '.join(map(repr, unknown))}; it has {', '.join(known)}.{question}")
        self._outputs = [v for v in variables if v.name in wanted]
        self.names = [str(v.name) for v in self._outputs]
        self.model = model
        self._programs: dict[Any, ChunkProgram] = {}

    @cached_property
    def _function(self) -> ModelFunction:
        return ModelFunction(self.model, self._outputs)

    def __call__(self, draws: Mapping[str, Any], data: Data | None = None) -> dict[str, np.ndarray]:
        """Return arrays with the leading axes of `draws`, computed in chunks of bounded size.

        Parameters
        ----------
        draws
            For each unconstrained variable an array, all with the same leading axes.
        data
            Arrays instead of the current values of shared data.
        """
        if any(isinstance(draws[v.name], jax.core.Tracer) for v in self.model.value_vars):
            raise TypeError(
                "constrain(model) computes NumPy arrays in chunks, so it can't be called inside a JAX transformation (jit, grad, vmap, scan):"
                " use `pytensor_jaxpr_linker.as_jax_function(model.value_vars, model.unobserved_value_vars)` there"
            )
        first = self.model.value_vars[0]
        values = {v.name: np.asarray(draws[v.name]) for v in self.model.value_vars}
        lead = values[first.name].shape[: values[first.name].ndim - first.type.ndim]
        flat = {name: x.reshape(-1, *x.shape[len(lead) :]) for name, x in values.items()}
        try:
            results = self._in_chunks(flat, data)
        except GraphBreakError:
            results = self._one_by_one(flat, data)
        return {name: x.reshape(*lead, *x.shape[1:]) for name, x in zip(self.names, results, strict=True)}

    def prepare(self, like: Mapping[str, np.ndarray], count: int) -> None:
        """Compile the program for `count` draws like those in `like`, along its first axis."""
        with suppress(GraphBreakError):
            self._program(chunk_of(like, count), self._function.current_data())

    def _program(self, draws: Mapping[str, Any], given: Data) -> ChunkProgram:
        """Return the program for draws and data of these shapes and dtypes, and the current lengths of dims."""
        shapes = tuple((name, x.shape, x.dtype) for values in (draws, given) for name, x in values.items())
        key = (shapes, *map(int, self._function.current_lengths()))
        if key not in self._programs:
            with jax.enable_x64(True):
                call = jax.jit(jax.vmap(self._function, in_axes=(0, None)))
                results = jax.eval_shape(call, chunk_of(draws, 1), given)
                most = CHUNK_BYTES // max(1, sum(x.size * x.dtype.itemsize for x in results))
                size = max(1, min(len_of(draws), most))
                self._programs[key] = ChunkProgram(call.lower(chunk_of(draws, size), given).compile(), size, results)
        return self._programs[key]

    def _in_chunks(self, flat: dict[str, np.ndarray], data: Data | None) -> list[np.ndarray]:
        """Compute chunks of draws, each by one program; the last one is padded to the same size."""
        given = {**self._function.current_data(), **(data or {})}
        call, size, shapes = self._program(flat, given)
        count = len_of(flat)
        results = [np.empty((count, *x.shape[1:]), x.dtype) for x in shapes]
        with jax.enable_x64(True):
            for begin in range(0, count, size):
                index = np.arange(begin, begin + size) % count
                for result, chunk in zip(results, call({n: x[index] for n, x in flat.items()}, given), strict=True):
                    result[begin : begin + size] = np.asarray(chunk)[: count - begin]
        return results

    def _one_by_one(self, flat: dict[str, np.ndarray], data: Data | None) -> list[np.ndarray]:
        """Compute one draw after the other by a function with host steps, whose warning says why."""
        if data:
            raise NotImplementedError("With host steps among the Deterministics, use pm.set_data instead of `data`.")
        with self.model:
            f = pm.compile(self.model.value_vars, self._outputs, mode=model_mode(self.model), on_unused_input="ignore")
        count = len_of(flat)
        rows = [f(*(flat[v.name][i] for v in self.model.value_vars)) for i in range(count)]
        return [np.stack(column) for column in zip(*rows, strict=True)]


def len_of(draws: Mapping[str, Any]) -> int:
    """Return how many draws there are."""
    return next(iter(draws.values())).shape[0]


def chunk_of(draws: Mapping[str, Any], size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes and dtypes of `size` draws."""
    return {name: jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype) for name, x in draws.items()}


def constrain(model: pm.Model | None = None, *, var_names: Names | None = None) -> Constrain:
    """Return the function from unconstrained draws to a model's variables and Deterministics.

    Parameters
    ----------
    model : pymc.Model, optional
        By default that of the context.
    var_names : str, variable or sequence of them, optional
        Which variables to compute, by default all.

    Returns
    -------
    Constrain
        Call it with a dict of arrays that have any leading axes, of chains and draws say.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> from pytensor_jaxpr_linker.pymc import constrain
    >>> with pm.Model() as model:
    ...     x = pm.HalfNormal("x")
    >>> constrain(model)({"x_log__": np.zeros((2, 3))})["x"].shape
    (2, 3)
    """
    return Constrain(pm.modelcontext(model), var_names)
