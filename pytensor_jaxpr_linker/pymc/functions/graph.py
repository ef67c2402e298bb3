"""A model's expressions as a pure JAX function of its unconstrained values and its shared data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Literal

import jax
import numpy as np
import pymc as pm
from pytensor.compile.mode import Mode, get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.random.type import RandomType

from pytensor_jaxpr_linker.base.array_types import in_order
from pytensor_jaxpr_linker.base.errors import variable_name
from pytensor_jaxpr_linker.frontend.as_jax_function import as_jax_function
from pytensor_jaxpr_linker.frontend.shared_arrays import value_in_place
from pytensor_jaxpr_linker.frontend.targets import Target

type Data = Mapping[str, Any]


def model_mode(model: pm.Model) -> Mode:
    """Return mode JAXPR with the rewrite that `pymc.compile` adds: a density with invalid parameters is -inf."""
    mode = get_mode("JAXPR")
    checks = "local_check_parameter_to_ninf_switch" if model.check_bounds else "local_remove_check_parameter"
    return Mode(linker=mode.linker, optimizer=mode.provided_optimizer.including(checks))


def shared_inputs(model: pm.Model, outputs: Sequence[Variable]) -> tuple[dict[str, Any], list[Any]]:
    """Return the shared variables that outputs depend on: data by name, and lengths of dims.

    Lengths determine shapes, so their values must be known when a function is traced.
    """
    shared = shared_of(outputs)
    if drawn := [v for v in shared if isinstance(v.type, RandomType)]:
        raise ValueError(
            f"The model draws random numbers ({', '.join(map(variable_name, drawn))}), as pm.Minibatch does, so it is"
            " no function of its parameters: use pm.fit, or all of the data."
        )
    lengths = set(model.dim_lengths.values())
    names = data_names(model, [v for v in shared if v not in lengths])
    return {names[v]: v for v in sorted(names, key=names.__getitem__)}, [v for v in shared if v in lengths]


def data_names(model: pm.Model, shared: Sequence[Any]) -> dict[Any, str]:
    """Return the name of each shared variable among the data of all functions of a model.

    It is the variable's own name, with a number if another variable has it, or if it has none. The variables of
    `pymc.Data` come first.
    """
    sources = [*model.basic_RVs, *model.potentials, *model.deterministics, *model.rvs_to_values.values()]
    known = [v for v in (*model.data_vars, *shared_of(sources)) if not isinstance(v.type, RandomType)]
    names = distinct_names(known)
    if any(v not in names and (v.name is None or v.name in names.values()) for v in shared):
        known += shared_of([model.logp()])  # transforms, and densities of the user's, may read others
    names = distinct_names([*known, *shared])
    return {v: names[v] for v in shared}


def shared_of(outputs: Sequence[Variable]) -> list[Any]:
    """Return the shared variables that outputs depend on."""
    return [v for v in graph_inputs(outputs) if isinstance(v, SharedVariable)]


def distinct_names(shared: Sequence[Any]) -> dict[Any, str]:
    """Return a name for each variable, in order: its own, or, if it has none or another one has it, one with a number.

    Examples
    --------
    >>> import pytensor
    >>> from pytensor_jaxpr_linker.pymc.functions.graph import distinct_names
    >>> list(distinct_names([pytensor.shared(1.0, name=name) for name in ("x", "x", None, "x_2", None)]).values())
    ['x', 'x_3', 'shared_1', 'x_2', 'shared_2']
    """
    own = {v.name for v in shared}
    found: dict[Any, str] = {}
    for v in dict.fromkeys(shared):
        taken, base, first = set(found.values()), v.name or "shared", 2 if v.name else 1
        numbered = (name for i in count(first) if (name := f"{base}_{i}") not in own | taken)
        found[v] = v.name if v.name and v.name not in taken else next(numbered)
    return found


class ModelFunction:
    """Expressions of a model's value variables as a pure JAX function.

    Arguments are the unconstrained variables `value_vars`, in the model's order, and `data`, the shared variables
    (`pymc.Data`) that the outputs depend on.
    """

    def __init__(
        self,
        model: pm.Model,
        outputs: Sequence[Variable],
        gradient: Literal["pytensor", "jax"] = "pytensor",
        mode: Mode | None = None,
    ):
        self.model = model
        self.value_vars: list[Any] = list(model.value_vars)
        self.data, self._lengths = shared_inputs(model, outputs)
        inputs = [*self.value_vars, *self.data.values(), *self._lengths]
        self._call = as_jax_function(inputs, list(outputs), mode or model_mode(model), gradient=gradient)

    @property
    def source(self) -> Target:
        """The graph, with the point where the model starts and the shared data as example arguments."""
        point = self.model.initial_point()
        values = [point[str(v.name)] for v in self.value_vars]
        kept = [*self.data.values(), *self._lengths]
        example = [*values, *self.current_data(gather=False).values(), *self.current_lengths()]
        return self._call.source._replace(example=example, kept=kept)

    def current_data(self, gather: bool = True) -> dict[str, Any]:
        """Return the current values of the shared data; with `gather` false, values on a mesh stay in place."""
        return {name: v.get_value(borrow=True) if gather else value_in_place(v) for name, v in self.data.items()}

    def current_lengths(self) -> list[Any]:
        """Return the current lengths of dims that the outputs depend on: the function is traced for them."""
        return [v.get_value() for v in self._lengths]

    def check_data(self, data: Data) -> None:
        """Raise an error for data that the outputs do not depend on."""
        if unknown := set(data) - set(self.data):
            known = ", ".join(map(repr, self.data)) or "none"
            raise ValueError(f"The model has no shared data {', '.join(map(repr, sorted(unknown)))}; it has {known}.")

    def __call__(self, values: Mapping[str, Any], data: Data | None = None) -> list[Any]:
        """Return the outputs for values by names of variables. Shared data missing in `data` has its current values."""
        self.check_data(data or {})
        check_values(self.value_vars, values)
        given = dict(data or {})
        if given.keys() != self.data.keys():
            given = {**self.current_data(), **given}
        args = [in_dtype_of(in_order(v.type, values[v.name]), v.type.dtype) for v in self.value_vars]
        args += [given[name] for name in self.data]
        try:
            return self._call(*args, *self.current_lengths())
        except (AssertionError, ValueError) as error:  # PyTensor's, about shapes
            if given:
                shapes = ", ".join(f"{name!r} of shape {np.shape(x)}" for name, x in given.items())
                error.add_note(
                    f"The shared data are {shapes}: set arrays that must fit together, and the coords of their dims,"
                    " in one pm.set_data."
                )
            raise


def check_values(value_vars: Sequence[Variable], values: Any) -> None:
    """Raise an error unless there is a value of each variable by its name."""
    names = ", ".join(repr(v.name) for v in value_vars)
    if not isinstance(values, Mapping):
        raise TypeError(f"A dict of the unconstrained variables {names} is needed, not {values!r:.100}.")
    if unknown := sorted(str(name) for name in values.keys() - {v.name for v in value_vars}):
        raise ValueError(f"No unconstrained variable is called {unknown[0]!r}: they are {names}.")
    if missing := [v.name for v in value_vars if v.name not in values]:
        raise ValueError(f"No value for {', '.join(map(repr, missing))}: the unconstrained variables are {names}.")


def in_dtype_of(value: Any, dtype: str) -> Any:
    """Return an array in the dtype of its variable: samplers move in float64, whatever the model computes in."""
    if isinstance(value, jax.Array):
        return value.astype(dtype)
    return np.asarray(value, dtype)
