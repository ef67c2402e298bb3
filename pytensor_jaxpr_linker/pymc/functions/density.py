"""A model's log density as a pure JAX function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Literal

import jax
import numpy as np
import pymc as pm
from pytensor.graph.basic import Variable

from pytensor_jaxpr_linker.frontend.targets import Target
from pytensor_jaxpr_linker.pymc.arguments import GRADIENTS, Names, as_names, check_choice, check_model
from pytensor_jaxpr_linker.pymc.functions.differentiable import check_steps
from pytensor_jaxpr_linker.pymc.functions.graph import Data, ModelFunction
from pytensor_jaxpr_linker.pymc.functions.initial import layout_of
from pytensor_jaxpr_linker.pymc.functions.layout import Layout


class LogDensity:
    """The log density of a model at unconstrained values; see `logdensity`.

    Attributes
    ----------
    names
        The unconstrained variables, in the order of the flat vector.
    layout
        Their shapes: those that they have when first asked for.
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
        self._function = (
            ModelFunction(model, [model.logp() if graph is None else graph], gradient)
            if make_function is None
            else make_function()
        )

    def __repr__(self) -> str:
        return f"<log density of {', '.join(self.names)}, as a JAX function>"

    @property
    def source(self) -> Target:
        """What `explain`, `stages` and `make_jaxpr` read: the graph, with example arguments."""
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
        return layout_of(self.model, self.names)

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
            of the jitted function: what is left out is a constant there.
        """
        if not isinstance(position, Mapping):
            position = self.unravel(position if isinstance(position, jax.Array) else np.asarray(position))
        return self._function(position, data)[0]


def logdensity(
    model: pm.Model | None = None,
    *,
    gradient: Literal["pytensor", "jax"] = "pytensor",
    var_names: Names | None = None,
) -> LogDensity:
    """Return the log density of a PyMC model as a pure JAX function.

    Parameters
    ----------
    model : pymc.Model, optional
        By default that of the context.
    gradient : {"pytensor", "jax"}
        How JAX differentiates it, see `as_jax_function`.
    var_names : sequence of str or of variables, optional
        The order of the unconstrained variables in the flat vector, by default the model's.

    Returns
    -------
    LogDensity
        Call it with a dict of unconstrained values or with a flat vector, and with arrays for the shared data (`pymc.Data`).

    Raises
    ------
    GraphBreakError
        If it can't be one XLA program.
    ValueError
        If the model has no free variables, draws random numbers, or has variables whose log density is no prior's, as those of BART.

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
