"""Checks that the dims of variables fit their lengths before anything compiles: ArviZ checks it after sampling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pymc as pm
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.rewriting.shape import ShapeFeature

from pytensor_jaxpr_linker.base.array_types import is_tensor
from pytensor_jaxpr_linker.base.words import counted
from pytensor_jaxpr_linker.graph.static_values import StaticValues
from pytensor_jaxpr_linker.pymc.arguments import Names, as_names
from pytensor_jaxpr_linker.pymc.functions.initial import in_python, shapes_of_points

#: The lengths of a variable's axes; None for a length that depends on values.
type Lengths = Sequence[int | None]


def check_axis_lengths(model: pm.Model, var_names: Names | None = None, idata: Mapping[str, Any] | None = None) -> None:
    """Raise an error if there are no numbers to sample, or if `check_named_axes` finds one."""
    declared = [v.type.shape for v in model.value_vars]
    if all(0 in shape or None in shape for shape in declared):
        sizes = {name: math.prod(shape) for name, shape in shapes_of_points(model).items()}
        if not any(sizes.values()):
            raise ValueError(
                f"The free variables {', '.join(map(repr, sizes))} are empty, so there is nothing to sample: draw from"
                " the model with pm.sample_prior_predictive, or look for an axis or data of length 0."
            )
    check_named_axes(model, var_names, idata)


def check_named_axes(model: pm.Model, var_names: Names | None, idata: Mapping[str, Any] | None) -> None:
    """Raise an error if a variable of the result is not as long as the coords of one of its dims.

    `idata` has coordinates and dims in addition to the model's.
    """
    more_coords, more_dims = ((idata or {}).get(name) or {} for name in ("coords", "dims"))
    dims = {**model.named_vars_to_dims, **more_dims}
    coords = {dim: x for dim, x in {**model.coords, **more_coords}.items() if x is not None}
    names = dims if var_names is None else as_names(var_names)
    drawn = [v for v in (*model.free_RVs, *model.deterministics) if v.name in dims and v.name in names]
    observed = {rv.name: held_lengths(model.rvs_to_values[rv]) for rv in model.observed_RVs}
    data = {v.name: held_lengths(v) for v in model.data_vars}
    for group in (axis_lengths(model, drawn), observed, data):
        known: dict[str, tuple[int, str]] = {}  # the length of a dim without coords, from the first variable with it
        for name, lengths in group.items():
            axes = dims.get(name, ())
            if len(axes) > len(lengths):
                raise ValueError(
                    f"idata_kwargs names {counted(len(axes), 'axis')} of {name!r}, which has {len(lengths)}."
                )
            for dim, length in zip(axes, lengths, strict=False):
                if dim is None or length is None:
                    continue
                whose = "idata_kwargs" if dim in more_coords or name in more_dims else "the model"
                expected, other = (len(coords[dim]), "") if dim in coords else known.setdefault(dim, (length, name))
                if length != expected:
                    raise ValueError(misfit(name, dim, length, expected, other, whose))


def misfit(name: str, dim: str, length: int, expected: int, other: str, whose: str) -> str:
    """Return the message for an axis whose length is not its dim's: from the coords, or the variable `other`."""
    has = f"{other!r} has length {expected}" if other else f"{whose} has {counted(expected, 'coordinate')}"
    return (
        f"{name!r} has length {length} along the dim {dim!r}, but {has}: give {dim!r} coords of the variable's length"
        f" (for data in the same pm.set_data), or give {name!r} another dim."
    )


def held_lengths(variable: Variable) -> Lengths:
    """Return the lengths of data, as it is now."""
    if isinstance(variable, Constant):
        return np.shape(variable.data)
    return variable.get_value(borrow=True).shape if isinstance(variable, SharedVariable) else variable.type.shape


def axis_lengths(model: pm.Model, variables: Sequence[Variable]) -> dict[str, Lengths]:
    """Return the lengths of free variables and Deterministics by name.

    They follow from the shapes of the data or, if not, from the values at the initial point.
    """
    inferred = InferredLengths([v for v in variables if None in v.type.shape])
    found = {str(v.name): inferred(v) for v in variables}
    missing = [v for v in variables if None in found[str(v.name)] and is_tensor(v.type)]
    if missing:
        with suppress(Exception), in_python():  # an error is reported where the variable is computed
            given: dict[str, Any] = {"mode": "FAST_COMPILE", "on_unused_input": "ignore"}
            outputs = model.replace_rvs_by_values(missing)
            values = model.compile_fn(outputs, inputs=model.value_vars, **given)(model.initial_point())
            found.update({str(v.name): np.shape(x) for v, x in zip(missing, values, strict=True)})
    return found


class InferredLengths:
    """Lengths that follow from the shapes and the numbers of shared data, without drawing or compiling anything."""

    def __init__(self, variables: Sequence[Variable]):
        self._shapes = ShapeFeature()
        copies = FunctionGraph(outputs=list(variables), copy_inputs=False, features=[self._shapes]).outputs
        self._copies = dict(zip(variables, copies, strict=True))
        shared = [v for v in graph_inputs(variables) if isinstance(v, SharedVariable) and is_tensor(v.type)]
        self._held: dict[Variable, np.ndarray] = {v: np.asarray(v.get_value(borrow=True)) for v in shared}
        self._evaluate = StaticValues(self._held, self._shape)

    def __call__(self, variable: Variable) -> Lengths:
        """Return the lengths of one of the variables."""
        shape: Lengths = variable.type.shape
        if None not in shape or not is_tensor(variable.type):
            return shape
        with suppress(Exception):  # an Op's error about an impossible shape is raised again where it runs
            return self._shape(self._copies[variable])
        return shape

    def _shape(self, variable: Any) -> tuple[int, ...]:
        if variable in self._held:
            return self._held[variable].shape
        lengths = [self._shapes.get_shape(variable, i) for i in range(variable.type.ndim)]
        if any(n.owner is not None and variable in n.owner.inputs for n in lengths):
            raise KeyError(variable)  # the length depends on its value
        return tuple(int(self._evaluate(n)) for n in lengths)
