"""A model's log density as a pure JAX function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import pymc as pm
from pymc.step_methods import NUTS, STEP_METHODS
from pytensor.graph.basic import Variable

from pytensor_jaxpr_linker.frontend.targets import Target
from pytensor_jaxpr_linker.pymc.arguments import GRADIENTS, Names, as_names, check_choice, check_model
from pytensor_jaxpr_linker.pymc.functions.graph import Data, ModelFunction
from pytensor_jaxpr_linker.pymc.functions.initial import shapes_of_points


class Layout(NamedTuple):
    """The shapes of named values, in their order in a flat vector."""

    shapes: dict[str, tuple[int, ...]]

    @property
    def sizes(self) -> list[int]:
        """The number of elements of each value."""
        return [int(np.prod(shape)) for shape in self.shapes.values()]

    def ravel(self, values: Mapping[str, Any]) -> np.ndarray:
        """Return the flat vector of a dict of values; leading axes, of chains say, stay."""
        arrays = {name: np.asarray(values[name]) for name in self.shapes}
        leads = [a.shape[: a.ndim - len(shape)] for a, shape in zip(arrays.values(), self.shapes.values(), strict=True)]
        flat = [a.reshape((*lead, n)) for a, lead, n in zip(arrays.values(), leads, self.sizes, strict=True)]
        return np.concatenate(flat, axis=-1)

    def unravel(self, vector: Any) -> dict[str, Any]:
        """Return the dict of values of a flat vector; leading axes stay."""
        sizes = self.sizes
        if vector.shape[-1] != sum(sizes):
            raise ValueError(f"The flat vector must have length {sum(sizes)}, not {vector.shape[-1]}: {self.shapes}.")
        if isinstance(vector, jax.Array):
            # The derivative of `split` is one concatenation; slices have sums of vectors that are mostly zero.
            parts: Any = jax.lax.split(vector, sizes, vector.ndim - 1)
        else:
            parts = np.split(vector, np.cumsum(sizes)[:-1], axis=-1)
        return {
            name: part.reshape((*vector.shape[:-1], *shape))
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }


def check_steps(model: pm.Model) -> None:
    """Raise an error for continuous variables that PyMC does not move by NUTS, such as BART's."""
    steps = {}
    for value in model.continuous_value_vars:
        rv = model.values_to_rvs[value]
        # As in `pymc.sample`, which first builds the gradient for each variable alone: many times the work of one
        # gradient.
        step = max(STEP_METHODS, key=lambda step: step._competence(rv, True))
        if not issubclass(step, NUTS):
            steps[rv.name] = step.__name__
    if steps:
        assigned = ", ".join(f"{name!r} by {step}" for name, step in steps.items())
        raise ValueError(
            f"PyMC samples {assigned}, a step of its own: the log density of such a variable need not be its"
            " prior's, so methods that follow the log density would be wrong. Use sample(sampler='pymc'), which runs"
            " that step."
        )


class LogDensity:
    """The log density of a model at unconstrained values; see `logdensity`.

    Attributes
    ----------
    names
        The unconstrained variables, in the order of the flat vector.
    layout
        Their shapes when it is first asked for.
    """

    def __init__(
        self,
        model: pm.Model,
        gradient: Literal["pytensor", "jax"],
        names: Names | None = None,
        graph: Variable | None = None,
        make_function: Callable[[], ModelFunction] | None = None,
    ):
        known = [str(v.name) for v in model.value_vars]
        if not known:
            raise ValueError("The model has no free variables, so there is nothing to sample.")
        check_choice("gradient", gradient, GRADIENTS)
        check_steps(model)
        self.names = known if names is None else as_names(names, model.rvs_to_values)
        if sorted(self.names) != sorted(known):
            raise ValueError(f"var_names must be all of {', '.join(map(repr, known))} in some order, not {self.names}.")
        self.model = model
        make = make_function or (lambda: ModelFunction(model, [model.logp() if graph is None else graph], gradient))
        self._function = make()

    def __repr__(self) -> str:
        return f"<log density of {', '.join(self.names)}, as a JAX function>"

    @property
    def source(self) -> Target:
        """The graph with example arguments, for `explain`, `stages` and `make_jaxpr`."""
        return self._function.source

    @property
    def data(self) -> dict[str, np.ndarray]:
        """The shared data that the log density depends on, with the values that they have now."""
        return self.current_data()

    def current_data(self) -> dict[str, np.ndarray]:
        """Return the values that the shared data have now, as the model holds them: whole, and without padding."""
        return self._function.current_data()

    @property
    def constants(self) -> list[np.ndarray]:
        """The large arrays that the graph holds, which a program takes as arguments."""
        return list(self._function._call.program.constants)

    @cached_property
    def layout(self) -> Layout:
        """Where the unconstrained variables lie in the flat vector."""
        shapes = shapes_of_points(self.model)
        return Layout({name: shapes[name] for name in self.names})

    @property
    def size(self) -> int:
        """The length of the flat vector."""
        return sum(self.layout.sizes)

    def ravel(self, values: Mapping[str, Any]) -> np.ndarray:
        """Return the flat vector of a dict of values; leading axes, of chains say, stay."""
        return self.layout.ravel(values)

    def unravel(self, vector: Any) -> dict[str, Any]:
        """Return the dict of values of a flat vector; leading axes stay."""
        return self.layout.unravel(vector)

    def __call__(self, position: Any, data: Data | None = None) -> Any:
        """Return the log density.

        Parameters
        ----------
        position
            A dict from names to arrays, or a flat vector.
        data
            Arrays instead of the current values of shared data. Inside your own `jax.jit` pass ``data``, as an argument
            of the jitted function: left out, they are constants there.
        """
        if not isinstance(position, Mapping):
            position = self.unravel(position if isinstance(position, jax.Array) else np.asarray(position))
        return self._function(position, data)[0]


def logdensity(
    model: pm.Model | None = None, *, gradient: Literal["pytensor", "jax"] = "pytensor", var_names: Names | None = None
) -> LogDensity:
    """Return the log density of a PyMC model as a pure JAX function.

    Parameters
    ----------
    model : pymc.Model, optional
        By default the context's model.
    gradient : {"pytensor", "jax"}
        How JAX differentiates it, see `as_jax_function`.
    var_names : sequence of str or of variables, optional
        The order of the unconstrained variables in the flat vector, by default the model's.

    Returns
    -------
    LogDensity
        Call it with a dict of unconstrained values or with a flat vector, and with arrays for the shared data
        (`pymc.Data`).

    Raises
    ------
    GraphBreakError
        If it can't be one XLA program.
    ValueError
        If the model has no free variables, draws random numbers, or has variables with a log density that is not their
        prior's, such as BART's.

    Examples
    --------
    >>> import jax, pymc as pm
    >>> from pytensor_jaxpr_linker.pymc import logdensity
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", shape=3)
    >>> with jax.enable_x64(True):
    ...     jax.grad(logdensity(model))(jax.numpy.arange(1.0, 4.0))
    Array([-1., -2., -3.], dtype=float64)
    """
    return LogDensity(check_model(model), gradient, var_names)
