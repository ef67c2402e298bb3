"""Sums over discrete variables, by pymc-extras, so that samplers that follow the gradient can run."""

from __future__ import annotations

import threading
from importlib.util import find_spec
from typing import Any

import pymc as pm
from pytensor.compile.sharedvalue import SharedVariable

from pytensor_jaxpr_linker.pymc.arguments import as_names
from pytensor_jaxpr_linker.pymc.kept_models import MOST_MODELS, ModelState


class Marginalized:
    """A model, and the model in which some of its variables are summed over."""

    def __init__(self, model: pm.Model, names: list[str]):
        self.model, self.names = model, names
        self._state, self._coords = ModelState(model), dict(model.coords)
        self.result = without_variables(model, names)

    def is_of(self, model: pm.Model, names: list[str]) -> bool:
        """Return whether this was made of a model as it is now; the values of its data may be others."""
        if model is not self.model or names != self.names or dict(model.coords) != self._coords:
            return False
        return ModelState(model) == self._state

    def with_current_data(self) -> pm.Model:
        """Return the model that was made, with the values that the data of the other have now."""
        for v in self.model.data_vars:
            self.result[v.name].set_value(v.get_value(borrow=True), borrow=True)
        for dim, length in self.model.dim_lengths.items():
            if isinstance(length, SharedVariable):
                self.result.dim_lengths[dim].set_value(length.get_value())
        return self.result


def without_variables(model: pm.Model, names: list[str]) -> pm.Model:
    """Return a model in which variables are summed over."""
    import pymc_extras

    try:
        return pymc_extras.marginalize(model, names)
    except NotImplementedError as error:
        raise NotImplementedError(
            f"pymc-extras can't sum over {', '.join(map(repr, names))}: {str(error).rstrip('.')}. Use"
            " sampler='pymc', which has steps for discrete variables."
        ) from error


#: The error without pymc-extras: its release 0.15.1 needs a PyMC before 6.4, and pip then replaces PyMC.
NO_EXTRAS = (
    "marginalize needs pymc-extras, and `pip install pymc-extras` replaces PyMC 6.4.0 by 6.3.2: install it in an"
    " environment of its own, sum by hand (pm.Mixture, or pm.math.logsumexp in a pm.Potential), or give sampler='pymc',"
    " which has Gibbs and Metropolis steps for discrete variables."
)
#: The models of the last calls, so that a second call samples the same model and compiles nothing.
LAST_MODELS: list[Marginalized] = []
ONE_AT_A_TIME = threading.Lock()


def marginalized(model: pm.Model, asked: Any) -> pm.Model:
    """Return the model to sample: without the variables to sum over, which are all discrete ones for True."""
    if asked is None or asked is False:
        return model
    if find_spec("pymc_extras") is None:
        raise ImportError(NO_EXTRAS)
    discrete = [str(rv.name) for rv in model.free_RVs if str(rv.dtype).startswith(("int", "uint", "bool"))]
    names = discrete if asked is True else as_names(asked)
    if unknown := [name for name in names if name not in discrete]:
        raise ValueError(
            f"marginalize sums over discrete variables, which {', '.join(map(repr, unknown))} is not; the model has"
            f" {', '.join(map(repr, discrete)) or 'none'}."
        )
    if not names:
        return model
    with ONE_AT_A_TIME:
        found = next((k for k in LAST_MODELS if k.is_of(model, names)), None) or Marginalized(model, names)
        LAST_MODELS[:] = [found, *[k for k in LAST_MODELS if k is not found]][:MOST_MODELS]
    return found.with_current_data()
