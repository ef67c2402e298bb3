"""`compile`: a model with programs that live as long as the user keeps it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import cloudpickle
import numpy as np
import pymc as pm
import xarray as xr
from pymc.model.fgraph import clone_model

from pytensor_jaxpr_linker.pymc.arguments import GRADIENTS, check_choice, check_free, check_model, did_you_mean
from pytensor_jaxpr_linker.pymc.functions.constrained import Constrain
from pytensor_jaxpr_linker.pymc.functions.density import LogDensity
from pytensor_jaxpr_linker.pymc.kept_models import KEPT_MODELS, KeptModel
from pytensor_jaxpr_linker.pymc.kept_programs import KeptPrograms
from pytensor_jaxpr_linker.pymc.sampling import sample


class CompiledModel:
    """A PyMC model and the programs that were compiled for it; see `compile`.

    Attributes
    ----------
    model, gradient
        The arguments of `compile`.
    """

    def __init__(
        self, model: pm.Model, gradient: Literal["pytensor", "jax"] = "pytensor", programs: KeptPrograms | None = None
    ):
        self.model, self.gradient, self._programs = model, gradient, programs
        self._found: KeptModel | None = None

    @property
    def _kept(self) -> KeptModel:
        """The programs of the model as it is now."""
        if self._found is None or not self._found.is_of(self.model, self.gradient):
            self._found, self._programs = KEPT_MODELS.find(self.model, self.gradient, self._programs), None
        return self._found

    @property
    def logdensity(self) -> LogDensity:
        """The log density as a pure JAX function, see `logdensity`."""
        return self._kept.logp

    @property
    def constrain(self) -> Constrain:
        """The function from unconstrained draws to variables, see `constrain`. `jax.jit` and `jax.vmap` take it."""
        return self._kept.constrain(None)

    def sample(self, draws: int = 1000, **arguments: Any) -> xr.DataTree:
        """Draw from the posterior, see `sample`.

        The second call compiles nothing, also with other seeds or another `target_accept`.
        """
        if given := [name for name in ("model", "gradient") if name in arguments]:
            raise TypeError(f"The compiled model has its {given[0]}: leave out {given[0]}=, or compile another one.")
        KEPT_MODELS.keep(self._kept)
        return sample(draws, model=self.model, gradient=self.gradient, **arguments)

    def with_data(
        self, data: Mapping[str, Any] | None = None, /, *, coords: Mapping[str, Sequence] | None = None, **named: Any
    ) -> CompiledModel:
        """Return a compiled model with other values of shared data (`pymc.Data`).

        This one, and its model, stay as they are. Data of the same shapes needs no compilation.

        Parameters
        ----------
        data, **named
            Arrays by the names of the shared data. They may be of other lengths.
        coords
            Coordinates of dims that get another length. Coordinates 0, 1, 2 ... are extended without this.
        """
        given = {**(data or {}), **named}
        model = copy_of_model(self.model)
        known = [str(v.name) for v in model.data_vars]
        if unknown := [name for name in given if name not in known]:
            names, has = (", ".join(map(repr, several)) for several in (unknown, known))
            question = did_you_mean(unknown[0], known)
            raise ValueError(f"The model has no shared data {names}; it has {has or 'none'} (pm.Data).{question}")
        with model:
            pm.set_data(given, coords={**counted_coords(model, given), **(coords or {})})
        return CompiledModel(model, self.gradient, self._kept.programs)

    def __reduce__(self) -> tuple:
        return from_pickle, (cloudpickle.dumps(self.model), self.gradient)

    def __repr__(self) -> str:
        names = ", ".join(str(v.name) for v in self.model.free_RVs)
        return f"<compiled model of {names}: {len(self._kept.programs)} programs>"


def from_pickle(model: bytes, gradient: Literal["pytensor", "jax"]) -> CompiledModel:
    """Return a compiled model from a pickle. Its programs compile on first use, or come from the folder of `cache`."""
    return CompiledModel(cloudpickle.loads(model), gradient)


def copy_of_model(model: pm.Model) -> pm.Model:
    """Return a copy of a model whose shared data and lengths are its own.

    Its variables have the order of the model's, on which draws depend: PyMC's copy has them in an order of its graph.
    """
    copied = clone_model(model)
    place = {name: i for i, name in enumerate(model.named_vars)}
    for variables in (copied.free_RVs, copied.observed_RVs, copied.deterministics, copied.potentials, copied.data_vars):
        variables.sort(key=lambda v: place.get(v.name, len(place)))
    for v in (*copied.data_vars, *copied.dim_lengths.values()):
        if hasattr(v, "container"):
            v.container = copy.deepcopy(v.container)
    return copied


def counted_coords(model: pm.Model, data: Mapping[str, Any]) -> dict[str, Sequence]:
    """Return coordinates for dims that data gives another length and whose coordinates count from 0."""
    found: dict[str, Sequence] = {}
    for name, value in data.items():
        for dim, length in zip(model.named_vars_to_dims.get(name, ()), np.shape(value), strict=False):
            values = model.coords.get(dim)
            if values is not None and len(values) != length and list(values) == list(range(len(values))):
                found[str(dim)] = range(length)
    return found


def compile_model(model: pm.Model | None = None, *, gradient: Literal["pytensor", "jax"] = "pytensor") -> CompiledModel:
    """Return a PyMC model with its programs: as often as it is sampled, each program compiles once.

    Its name in this package is `pytensor_jaxpr_linker.pymc.compile`. A program compiles when it is first needed.

    Parameters
    ----------
    model : pymc.Model, optional
        By default the context's model.
    gradient : {"pytensor", "jax"}
        Whose derivative, see `as_jax_function`.

    Returns
    -------
    CompiledModel
        It has `sample`, `with_data`, `logdensity` and `constrain`, and can be pickled.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> import pytensor_jaxpr_linker.pymc as jaxpr_pymc
    >>> with pm.Model() as model:
    ...     x = pm.Data("x", np.zeros(3))
    ...     mu = pm.Normal("mu")
    ...     _ = pm.Normal("y", mu, observed=x)
    >>> compiled = jaxpr_pymc.compile(model)
    >>> quick = dict(draws=50, tune=50, chains=1, quiet=True, random_seed=1)
    >>> other = compiled.with_data(x=np.ones(30)).sample(**quick)  # compiles
    >>> bool(other.posterior["mu"].mean() > compiled.with_data(x=-np.ones(30)).sample(**quick).posterior["mu"].mean())
    True
    """
    model = check_model(model)
    check_choice("gradient", gradient, GRADIENTS)
    check_free(model)
    return CompiledModel(model, gradient)
