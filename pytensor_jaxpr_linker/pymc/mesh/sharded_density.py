"""`shard`: a model's log density whose data are divided among the devices of a mesh."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import jax
import numpy as np
import pymc as pm
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pytensor.compile.mode import Mode, get_mode

from pytensor_jaxpr_linker.base.errors import warn_user
from pytensor_jaxpr_linker.base.options import Options
from pytensor_jaxpr_linker.frontend.linker import JaxprLinker
from pytensor_jaxpr_linker.frontend.shared_placement import check_axes
from pytensor_jaxpr_linker.frontend.targets import Target
from pytensor_jaxpr_linker.pymc.arguments import Names, check_model, did_you_mean
from pytensor_jaxpr_linker.pymc.functions.density import LogDensity
from pytensor_jaxpr_linker.pymc.functions.graph import model_mode
from pytensor_jaxpr_linker.pymc.mesh.graph import density_for_mesh, dims_of_data
from pytensor_jaxpr_linker.pymc.mesh.padded_density import PaddedFunction
from pytensor_jaxpr_linker.pymc.mesh.sums import with_sums_of_parts
from pytensor_jaxpr_linker.run import placement


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
        graph = density_for_mesh(model, self.axes)
        parts = math.prod(mesh.shape[axis] for axis in {*axes.values()})
        mode = with_sums_of_parts(model_mode(model), parts)
        super().__init__(model, gradient, names, graph, mode)
        self._dims = dims_of_data(model, self._function.data)
        check_dims(model, self.axes, self._dims)
        self.shardings = {name: self._sharding(name) for name in self._dims}
        #: For each dim that its mesh axis does not divide, the length to which it is padded.
        self.padded = {dim: -(-n // parts) * parts for dim, n, parts in self._divided() if n % parts}
        if self.padded:
            self._function = PaddedFunction(model, graph, gradient, self._dims, self.padded, mode)
            self.shardings |= {name: NamedSharding(self.mesh, PartitionSpec()) for name in self._function.counts}
        self._warn_of_constants()
        self._placed: dict[str, tuple[Any, jax.Array]] = {}

    def _sharding(self, name: str) -> NamedSharding:
        """Return how an array of shared data lies on the mesh."""
        return NamedSharding(self.mesh, PartitionSpec(*[self.axes.get(str(dim)) for dim in self._dims[name]]))

    def _divided(self) -> list[tuple[str, int, int]]:
        """Return for each divided dim its length, and into how many parts it is divided."""
        lengths = self.lengths(self.current_data())
        return [(dim, n, self.mesh.shape[self.axes[dim]]) for dim, n in lengths.items()]

    def __repr__(self) -> str:
        axes = ", ".join(f"{dim!r} along {axis!r}" for dim, axis in self.axes.items())
        return f"<log density of {', '.join(self.names)}, with {axes} of {dict(self.mesh.shape)}, as a JAX function>"

    def lengths(self, data: Mapping[str, Any]) -> dict[str, int]:
        """Return the length of each divided dim in arrays of shared data."""
        return {
            str(dim): np.shape(data[name])[axis]
            for name, dims in self._dims.items()
            if name in data
            for axis, dim in enumerate(dims)
            if dim in self.axes
        }

    def _warn_of_constants(self) -> None:
        """Warn of arrays that are constants of the model, so that each device has all of them."""
        lengths = self.lengths(self.current_data())
        for array in self._function._call.program.constants:
            if dim := next((dim for dim, n in lengths.items() if n in array.shape), None):
                warn_user(
                    f"An array of shape {array.shape} is a constant of the model, so each device has all of its {array.nbytes} bytes: make it"
                    f" pm.Data with the dim {dim!r}, and it is divided, too.",
                    UserWarning,
                )

    @property
    def source(self) -> Target:
        """What `explain` reads: the graph, with the shared data on the mesh as example arguments."""
        target, placed = super().source, self.data
        count = len(self._function.value_vars)
        example = [*target.example[:count], *placed.values(), *target.example[count + len(placed) :]]
        linker = JaxprLinker(Options(checks="skip"))  # as in what is called
        return target._replace(mode=Mode(linker, get_mode(target.mode).provided_optimizer), example=example)

    @property
    def data(self) -> dict[str, Any]:
        """The shared data on the mesh, padded where a length needs it. It follows `pymc.set_data`."""
        current = self.current_data()
        changed = {name: x for name, x in current.items() if self._placed.get(name, (None,))[0] is not x}
        self._placed |= {name: (current[name], x) for name, x in self._put(changed).items()}
        return {name: self._placed[name][1] for name in current}

    def place(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return other values of shared data on the mesh, padded where a length needs it, as `data` of a call.

        Parameters
        ----------
        data
            NumPy arrays, or JAX arrays that are on the mesh already: in a program of several processes, where each has its own part of the
            data, those of `jax.make_array_from_process_local_data`.
        """
        given = dict(data)
        if isinstance(self._function, PaddedFunction):
            given |= self._function.counts_of(self.lengths(given))
        return self._put(given)

    def _put(self, values: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Return values on the mesh."""
        pad = self._function.pad if isinstance(self._function, PaddedFunction) else lambda _, x: x
        return {name: placement.put(pad(name, x), self.shardings[name], repr(name)) for name, x in values.items()}

    def __call__(self, position: Any, data: Mapping[str, Any] | None = None) -> Any:
        """Return the log density, see `LogDensity`. What `data` leaves out is on the mesh already."""
        placed = self.data if data is None else {**self.data, **data}
        if data is not None:
            placement.check_one_mesh(list(map(repr, placed)), list(placed.values()), "put them there by `place`")
        return super().__call__(position, placed)


def check_dims(model: pm.Model, axes: Mapping[str, str], dims: Mapping[str, tuple]) -> None:
    """Raise an error for a dim that no data has."""
    known = {str(dim) for found in dims.values() for dim in found if dim is not None}
    for dim in axes:
        if dim in known:
            continue
        has = f"its data have the dims {', '.join(map(repr, sorted(known)))}" if known else "none of its data has a dim"
        why = (
            "only free variables have it, and those are whole on each device"
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

    XLA divides the work by where the data lie, and adds up what the devices have: for a log density that is a sum over observations it takes one
    all-reduce, with the gradient too.

    Parameters
    ----------
    model : pymc.Model, optional
        By default that of the context.
    mesh : jax.sharding.Mesh
        The devices, of one process or several.
    axes : dict
        The axis of the mesh along which each dim is divided: ``{"obs": "data"}``. Data (`pymc.Data`) and observed values with such a dim are divided,
        all others are whole on each device. A length that the devices can't divide is padded, where that is exact.
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
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh must be a jax.sharding.Mesh, not {mesh!r}: make one by jax.make_mesh((8,), ('data',)).")
    if not axes:
        raise ValueError(
            'axes says along which axis of the mesh a dim is divided: give a dict such as {"obs": "data"}.'
        )
    return ShardedLogDensity(model, mesh, axes, gradient, var_names)
