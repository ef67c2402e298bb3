"""`shard`: a model's log density whose data are divided among the devices of a mesh."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any, Literal

import jax
import numpy as np
import pymc as pm
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pytensor.compile.mode import Mode, get_mode

from pytensor_jaxpr_linker.base.errors import warn_user
from pytensor_jaxpr_linker.base.options import Options
from pytensor_jaxpr_linker.frontend.linker import JaxprLinker
from pytensor_jaxpr_linker.frontend.shared_arrays import check_axes, value_in_place
from pytensor_jaxpr_linker.frontend.targets import Target
from pytensor_jaxpr_linker.plan.padding import NotExact
from pytensor_jaxpr_linker.pymc.arguments import Names, check_model, did_you_mean
from pytensor_jaxpr_linker.pymc.chains.runners import CHAINS
from pytensor_jaxpr_linker.pymc.functions.density import LogDensity
from pytensor_jaxpr_linker.pymc.functions.graph import ModelFunction, model_mode, shared_inputs
from pytensor_jaxpr_linker.pymc.kept_models import Gradient, KeptModel
from pytensor_jaxpr_linker.pymc.mesh.graph import density_for_mesh, with_sums_of_parts
from pytensor_jaxpr_linker.pymc.mesh.padded_density import PaddedFunction, lengths_along
from pytensor_jaxpr_linker.pymc.options import ALIASES, PACKAGES
from pytensor_jaxpr_linker.run import placement

#: Samplers that run on meshes.
ON_MESHES = ("nuts", "numpyro", "mclmc")


def check_mesh(mesh: Any) -> Mesh:
    """Return a mesh, or raise a TypeError."""
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh must be a jax.sharding.Mesh, not {mesh!r}: make one by jax.make_mesh((8,), ('data',)).")
    return mesh


def check_division(name: str, axes: Any) -> Mapping[str, str]:
    """Return along which axis of a mesh each dim is divided, or raise an error."""
    if not isinstance(axes, Mapping) or not axes:
        given = "" if axes is None else f", not {axes!r}"
        error = TypeError if given and not isinstance(axes, Mapping) else ValueError
        raise error(
            f'{name} says along which axis of the mesh a dim is divided: give a dict such as {{"obs": "data"}}{given}.'
        )
    for dim, axis in axes.items():
        if not isinstance(axis, str):
            raise ValueError(
                f"A dim is divided along one axis of the mesh, and {name} has {axis!r} for {dim!r}: give the name of"
                " one axis, of a mesh that has one in place of several."
            )
    return axes


def checked_mesh(mesh: Any, shard: Any) -> Mesh:
    """Return the mesh of a run, by default of all devices, or raise an error, with the remedy."""
    if mesh is not None:
        check_mesh(mesh)
    if shard is not None:
        check_division("shard", shard)
    if CHAINS in dict(shard or {}).values():
        raise ValueError(
            "Chains are divided along the mesh's axis 'chains', so data can't be: give the mesh another axis for them."
        )
    if mesh is None and shard:
        axis = next(iter(shard.values()))
        raise ValueError(
            "shard divides data along axes of a mesh, and there is none: give one, such as"
            f" mesh=jax.make_mesh((1, {len(jax.devices())}), ({CHAINS!r}, {axis!r}))."
        )
    if mesh is not None and shard is None and (others := [n for n in mesh.axis_names if n != CHAINS]):
        raise ValueError(
            f"The mesh has the axis {others[0]!r}, and nothing is divided along it: give shard, a dict such as"
            f" {{'obs': {others[0]!r}}}, or a mesh with the axis 'chains' alone."
        )
    return placement.automatic(Mesh(np.array(jax.devices()), (CHAINS,)) if mesh is None else mesh)


def check_sampler_of_mesh(sampler: str) -> None:
    """Raise an error for a sampler that does not run on a mesh."""
    if sampler not in ON_MESHES:
        what = f"sampler={sampler!r} knows of no mesh" if sampler in PACKAGES else f"There is no sampler {sampler!r}"
        meant = did_you_mean(sampler, [*ON_MESHES, *ALIASES])
        raise ValueError(f"{what}: use one of {', '.join(map(repr, ON_MESHES))}.{meant}")


class ShardedLogDensity(LogDensity):
    """The log density of a model whose data are on a mesh; see `shard`.

    Attributes
    ----------
    mesh
        The devices.
    axes
        For each dim the mesh axis along which it is divided.
    shardings
        How each array of `data` lies on the mesh.
    """

    def __init__(
        self,
        model: pm.Model,
        mesh: Mesh,
        axes: Mapping[str, str],
        gradient: Literal["pytensor", "jax"] = "pytensor",
        names: Names | None = None,
    ):
        self.mesh, self.axes = placement.automatic(mesh), dict(axes)
        for dim, axis in self.axes.items():
            check_axes(f"the dim {dim!r}", mesh, [axis])
        super().__init__(model, gradient, names, make_function=partial(self._make_function, model, gradient))
        self.shardings = {name: self._sharding(name) for name in self._function.data}
        self._warn_of_constants()
        self._placed: dict[str, tuple[Any, jax.Array]] = {}

    def _make_function(self, model: pm.Model, gradient: Literal["pytensor", "jax"]) -> ModelFunction:
        """Return the log density as a function, of padded data if the mesh does not divide them."""
        graph, dims = density_for_mesh(model, self.axes)
        data, _ = shared_inputs(model, [graph])
        self._dims = {name: dims.get(name, ()) for name in data}
        check_dims(model, self.axes, self._dims)
        lengths, sizes = self.lengths({name: value_in_place(v) for name, v in data.items()}), self.mesh.shape
        #: For each dim that its mesh axis does not divide, the length to which it is padded.
        self.padded = {dim: -(-n // k) * k for dim, n in lengths.items() if n % (k := sizes[self.axes[dim]])}
        mode = with_sums_of_parts(model_mode(model), math.prod(sizes[axis] for axis in {*self.axes.values()}))
        if not self.padded:
            return ModelFunction(model, [graph], gradient, mode)
        try:
            return PaddedFunction(model, graph, gradient, self._dims, lengths, self.padded, mode)
        except NotExact as error:
            raise self._not_padded(error, lengths) from None

    def _not_padded(self, error: NotExact, lengths: Mapping[str, int]) -> ValueError:
        """Return the error for data that can't be divided. The remedies are numbers of devices that divide all dims."""
        dims = " and ".join(f"the dim {dim!r} of length {lengths[dim]}" for dim in self.padded)
        remedies = []
        for axis in dict.fromkeys(self.axes[dim] for dim in self.padded):
            size, n = self.mesh.shape[axis], math.gcd(*(lengths[dim] for dim in self.axes if self.axes[dim] == axis))
            fits = max(k for k in range(1, size + 1) if n % k == 0)
            remedies.append(f"{fits} instead of {size} devices along its axis {axis!r}")
        return ValueError(
            f"The mesh does not divide {dims}, and padding would change the result: {error}. Give the mesh"
            f" {' and '.join(remedies)}."
        )

    def _sharding(self, name: str) -> NamedSharding:
        """Return how an array of shared data lies on the mesh: each axis of the mesh divides one of its axes."""
        wanted = [self.axes.get(str(dim)) for dim in self._dims.get(name, ())]
        spec = [axis if wanted.index(axis) == i else None for i, axis in enumerate(wanted)]
        return NamedSharding(self.mesh, PartitionSpec(*spec))

    def __repr__(self) -> str:
        axes = ", ".join(f"{dim!r} along {axis!r}" for dim, axis in self.axes.items())
        return f"<log density of {', '.join(self.names)}, with {axes} of {dict(self.mesh.shape)}, as a JAX function>"

    def lengths(self, data: Mapping[str, Any]) -> dict[str, int]:
        """Return the length of each divided dim in arrays of shared data."""
        return lengths_along(self.axes, self._dims, data)

    def _warn_of_constants(self) -> None:
        """Warn of arrays that are constants of the model, so that each device has all of them."""
        lengths = self.lengths(self._function.current_data(gather=False))
        for array in self._function._call.program.constants:
            if dim := next((dim for dim, n in lengths.items() if n in array.shape), None):
                warn_user(
                    f"An array of shape {array.shape} is a constant of the model, so each device has all of its"
                    f" {array.nbytes} bytes: make it pm.Data with the dim {dim!r}, and it is divided, too.",
                    UserWarning,
                )

    @property
    def source(self) -> Target:
        """The graph for `explain`, with the shared data on the mesh as example arguments."""
        target, placed = super().source, self.data
        count = len(self._function.value_vars)
        example = [*target.example[:count], *placed.values(), *target.example[count + len(placed) :]]
        linker = JaxprLinker(Options(checks="skip"))  # as in calls
        return target._replace(mode=Mode(linker, get_mode(target.mode).provided_optimizer), example=example)

    @property
    def data(self) -> dict[str, Any]:
        """The shared data on the mesh, padded where a length needs it. It follows `pymc.set_data`."""
        current = self._function.current_data(gather=False)
        changed = {name: x for name, x in current.items() if self._placed.get(name, (None,))[0] is not x}
        self._placed |= {name: (current[name], x) for name, x in self._put(changed).items()}
        return {name: self._placed[name][1] for name in current}

    def place(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return other values of shared data on the mesh, padded where a length needs it, as `data` of a call.

        Parameters
        ----------
        data
            NumPy arrays, or JAX arrays that are on the mesh already: in a program of several processes, where each has
            its own part of the data, made by `jax.make_array_from_process_local_data`.
        """
        self._function.check_data(data)
        if isinstance(self._function, PaddedFunction):
            data = self._function.beside_current(data)
        return self._put(data)

    def _put(self, values: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Return values on the mesh."""
        if isinstance(self._function, PaddedFunction):
            values = {name: self._function.pad(name, x) for name, x in values.items()}
        for dim, n in self.lengths(values).items():
            if n % self.mesh.shape[self.axes[dim]]:
                raise ValueError(
                    f"The data have {n} elements along the dim {dim!r}, which the mesh does not divide, and the log"
                    " density was made for a length that it divides: call `pytensor_jaxpr_linker.pymc.shard` again."
                )
        return {name: placement.put(x, self.shardings[name], repr(name)) for name, x in values.items()}

    def __call__(self, position: Any, data: Mapping[str, Any] | None = None) -> Any:
        """Return the log density, see `LogDensity`. Data that `data` leaves out are on the mesh already."""
        placed = self.data if data is None else {**self.data, **data}
        if data is not None:
            placement.check_one_mesh(list(map(repr, placed)), list(placed.values()), "put them there by `place`")
        return super().__call__(position, placed)


class ModelOnMesh(KeptModel):
    """A model whose data are divided along axes of a mesh, or lie whole on each device."""

    def __init__(self, model: pm.Model, gradient: Gradient, mesh: Mesh, shard: Mapping[str, str] | None):
        super().__init__(model, gradient)
        self._mesh, self._shard = mesh, shard

    @cached_property
    def logp(self) -> LogDensity:
        """The log density as a JAX function, of divided data if there are axes for them."""
        if self._shard is None:
            return LogDensity(self.model, self.gradient, graph=self.graph)
        return ShardedLogDensity(self.model, self._mesh, self._shard, self.gradient)

    @cached_property
    def data(self) -> dict[str, Any]:
        """The shared data on the mesh, with the values that they have when a run begins."""
        if isinstance(self.logp, ShardedLogDensity):
            return self.logp.data
        everywhere = NamedSharding(self._mesh, PartitionSpec())
        return {name: placement.put(x, everywhere, name) for name, x in self.logp.data.items()}


def check_dims(model: pm.Model, axes: Mapping[str, str], dims: Mapping[str, tuple]) -> None:
    """Raise an error for a dim that no data has."""
    known = {str(dim) for found in dims.values() for dim in found if dim is not None}
    for dim in axes:
        if dim in known:
            continue
        has = f"its data have the dims {', '.join(map(repr, sorted(known)))}" if known else "none of its data has a dim"
        why = (
            "only free variables have it, and they are whole on each device"
            if dim in model.coords
            else "the model does not have it"
        )
        raise ValueError(f"No data can be divided along the dim {dim!r}: {why}; {has}.{did_you_mean(dim, known)}")


def shard(
    model: pm.Model | None = None,
    mesh: Mesh | None = None,
    axes: Mapping[str, str] | None = None,
    *,
    gradient: Literal["pytensor", "jax"] = "pytensor",
    var_names: Names | None = None,
) -> ShardedLogDensity:
    """Return the log density of a model whose data are divided among the devices of a mesh.

    XLA divides the work as the data are divided, and adds up the results of the devices: for a log density that is a
    sum over observations it takes one all-reduce, with the gradient too.

    Parameters
    ----------
    model : pymc.Model, optional
        By default the model of the context.
    mesh : jax.sharding.Mesh
        The devices, of one process or several.
    axes : dict
        The axis of the mesh along which each dim is divided: ``{"obs": "data"}``. Data (`pymc.Data`) and observed
        values with such a dim are divided, and arrays that the model lines up with them. All others are whole on each
        device. A length that the devices can't divide is padded: the log density stays the same.
    gradient, var_names
        See `logdensity`.

    Returns
    -------
    ShardedLogDensity
        A `LogDensity`. Inside your own `jax.jit` pass its ``data``, as an argument.

    Raises
    ------
    ValueError
        If the mesh has no such axis, no data has such a dim, or padding would change the result.
    GraphBreakError
        If the log density can't be one XLA program.

    Examples
    --------
    >>> import jax, numpy as np, pymc as pm
    >>> import pytensor_jaxpr_linker as pjl
    >>> with pm.Model(coords={"obs": range(6)}) as model:
    ...     x = pm.Normal("x")
    ...     y = pm.Normal("y", x, 1, observed=np.arange(6.0), dims="obs")
    >>> logp = pjl.pymc.shard(model, jax.make_mesh((1,), ("data",)), {"obs": "data"})
    >>> with jax.enable_x64(True):
    ...     value, gradient = jax.jit(jax.value_and_grad(logp))({"x": 2.0}, logp.data)
    >>> gradient
    {'x': Array(1., dtype=float64, weak_type=True)}
    """
    model = check_model(model)
    return ShardedLogDensity(model, check_mesh(mesh), check_division("axes", axes), gradient, var_names)
