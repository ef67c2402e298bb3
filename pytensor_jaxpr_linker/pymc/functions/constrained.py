"""Maps unconstrained draws to the variables that a model's user knows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import pymc as pm
from pymc.util import get_default_varnames

from pytensor_jaxpr_linker.base.errors import GraphBreakError
from pytensor_jaxpr_linker.base.jax_compat import with_x64_restored
from pytensor_jaxpr_linker.base.words import counted
from pytensor_jaxpr_linker.pymc.arguments import GRADIENTS, Names, as_names, check_choice, check_model, did_you_mean
from pytensor_jaxpr_linker.pymc.functions.graph import Data, ModelFunction, check_values, model_mode, shared_inputs
from pytensor_jaxpr_linker.pymc.kept_programs import KeptPrograms

#: The number of bytes of results that are computed at once.
CHUNK_BYTES = 64 * 2**20


class ChunkProgram(NamedTuple):
    """A compiled program for a chunk of draws, its number of draws, and shape and dtype's name of a draw's results."""

    call: jax.stages.Compiled
    size: int
    results: dict[str, tuple[tuple[int, ...], str]]


class Constrain:
    """Maps unconstrained draws to constrained values and Deterministics; see `constrain`.

    Attributes
    ----------
    names
        The variables that it returns.
    """

    def __init__(
        self,
        model: pm.Model,
        var_names: Names | None,
        programs: KeptPrograms | None = None,
        gradient: Literal["pytensor", "jax"] = "pytensor",
    ):
        check_choice("gradient", gradient, GRADIENTS)
        variables = get_default_varnames(model.unobserved_value_vars, include_transformed=False)
        known = [str(v.name) for v in variables]
        wanted = known if var_names is None else as_names(var_names)
        if unknown := sorted(set(wanted) - set(known)):
            question = did_you_mean(unknown[0], known)
            raise ValueError(f"The model has no {', '.join(map(repr, unknown))}; it has {', '.join(known)}.{question}")
        self._outputs = [v for v in variables if v.name in wanted]
        self.names = [str(v.name) for v in self._outputs]
        self.model, self._gradient = model, gradient
        self._programs = KeptPrograms() if programs is None else programs

    def __repr__(self) -> str:
        return f"<map of unconstrained draws to {', '.join(self.names)}>"

    @cached_property
    def _shared(self) -> tuple[dict[str, Any], list[Any]]:
        return shared_inputs(self.model, self._outputs)

    def _current_data(self) -> Data:
        return {name: v.get_value(borrow=True) for name, v in self._shared[0].items()}

    @cached_property
    def _function(self) -> ModelFunction:
        return ModelFunction(self.model, self._outputs, self._gradient)

    @with_x64_restored
    def __call__(self, draws: Mapping[str, Any], data: Data | None = None) -> dict[str, np.ndarray]:
        """Return arrays with the leading axes of `draws`, computed in chunks of bounded size.

        Parameters
        ----------
        draws
            For each unconstrained variable an array, all with the same leading axes, or none for one point. Inside a
            transformation of JAX (`jit`, `vmap`, `grad`) they are tracers, and so are the results.
        data
            Arrays instead of the current values of shared data.
        """
        check_values(self.model.value_vars, draws)
        if any(isinstance(draws[v.name], jax.core.Tracer) for v in self.model.value_vars):
            return self._traced(draws, data)
        values = {v.name: np.asarray(draws[v.name]) for v in self.model.value_vars}
        lead = leading_axes(self.model.value_vars, values)
        flat = {name: x.reshape((math.prod(lead), *x.shape[len(lead) :])) for name, x in values.items()}
        try:
            results = self._in_chunks(flat, data)
        except GraphBreakError:
            results = self._one_by_one(flat, data)
        return {name: x.reshape((*lead, *x.shape[1:])) for name, x in zip(self.names, results, strict=True)}

    def _named(self, values: Mapping[str, Any], data: Data) -> dict[str, Any]:
        """Return the values of one draw by name."""
        return dict(zip(self.names, self._function(values, data), strict=True))

    def _traced(self, draws: Mapping[str, Any], data: Data | None) -> dict[str, Any]:
        """Return the variables at tracers, as a part of the traced program."""
        call: Any = self._named
        for _ in leading_axes(self.model.value_vars, draws):
            call = jax.vmap(call, in_axes=(0, None))
        values = {v.name: draws[v.name] for v in self.model.value_vars}
        return call(values, {**self._current_data(), **(data or {})})

    def prepare(self, like: Mapping[str, np.ndarray], count: int) -> None:
        """Compile the program for `count` draws of the shapes and dtypes in `like`, whose first axis is the draws."""
        with suppress(GraphBreakError):
            self._program(chunk_of(like, count), self._current_data())

    def _program(self, draws: Mapping[str, Any], given: Data) -> ChunkProgram:
        """Return the program for draws and data of these shapes and dtypes, and the current lengths of dims."""
        shapes = tuple((name, x.shape, str(x.dtype)) for values in (draws, given) for name, x in sorted(values.items()))
        lengths = [int(v.get_value()) for v in self._shared[1]]

        call = jax.vmap(self._named, in_axes=(0, None))

        def make() -> tuple[jax.stages.Compiled, tuple[int, dict]]:
            each = jax.eval_shape(call, chunk_of(draws, 1), given)
            most = CHUNK_BYTES // max(1, sum(x.size * x.dtype.itemsize for x in each.values()))
            size = max(1, min(len_of(draws), most))
            program = jax.jit(call).lower(chunk_of(draws, size), given).compile()
            return program, (size, {name: (x.shape[1:], x.dtype.name) for name, x in each.items()})

        key = "constrained", *sorted(self.names), shapes, *lengths
        with jax.enable_x64(True):
            program, about = self._programs.by_way_of_folder(key, make)
        return ChunkProgram(program, *about)

    def _in_chunks(self, flat: dict[str, np.ndarray], data: Data | None) -> list[np.ndarray]:
        """Compute chunks of draws, each by one program; the last one is padded to the same size."""
        given = {**self._current_data(), **(data or {})}
        call, size, found = self._program(flat, given)
        count = len_of(flat)
        results = {name: np.empty((count, *found[name][0]), found[name][1]) for name in self.names}
        with jax.enable_x64(True):
            for begin in range(0, count, size):
                index = np.arange(begin, begin + size) % count
                for name, chunk in call({n: x[index] for n, x in flat.items()}, given).items():
                    results[name][begin : begin + size] = np.asarray(chunk)[: count - begin]
        return list(results.values())

    def _one_by_one(self, flat: dict[str, np.ndarray], data: Data | None) -> list[np.ndarray]:
        """Compute one draw after the other by a function with host steps, whose warning says why."""
        if data:
            raise NotImplementedError("With host steps among the Deterministics, use pm.set_data instead of `data`.")
        with self.model:
            f = pm.compile(self.model.value_vars, self._outputs, mode=model_mode(self.model), on_unused_input="ignore")
        count = len_of(flat)
        rows = [f(*(flat[v.name][i] for v in self.model.value_vars)) for i in range(count)]
        return [np.stack(column) for column in zip(*rows, strict=True)]


def leading_axes(value_vars: Sequence[Any], draws: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the lengths of the leading axes, of chains and draws say, of all arrays."""
    shapes = {v: np.shape(draws[v.name]) for v in value_vars}
    for v, shape in shapes.items():
        if len(shape) < v.type.ndim:
            axes = counted(v.type.ndim, "axis")
            raise ValueError(f"The value of {v.name!r} has shape {shape}, but a point of this variable has {axes}.")
    leads = {v.name: shape[: len(shape) - v.type.ndim] for v, shape in shapes.items()}
    (first, lead), *others = leads.items()
    for name, other in others:
        if other != lead:
            raise ValueError(f"All draws need the same leading axes: {first!r} has {lead}, but {name!r} has {other}.")
    return lead


def len_of(draws: Mapping[str, Any]) -> int:
    """Return the number of draws."""
    return next(iter(draws.values())).shape[0]


def chunk_of(draws: Mapping[str, Any], size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes and dtypes of `size` draws."""
    return {name: jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype) for name, x in draws.items()}


def constrain(
    model: pm.Model | None = None, *, gradient: Literal["pytensor", "jax"] = "pytensor", var_names: Names | None = None
) -> Constrain:
    """Return the function from unconstrained draws to a model's variables and Deterministics.

    Parameters
    ----------
    model : pymc.Model, optional
        By default the context's model.
    gradient : {"pytensor", "jax"}
        How JAX differentiates it, see `as_jax_function`. "jax" also gives `jax.jacfwd`.
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
    return Constrain(check_model(model), var_names, gradient=gradient)
