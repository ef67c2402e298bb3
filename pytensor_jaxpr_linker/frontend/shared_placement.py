"""`shard`: shared variables whose values lie on the devices of a mesh, and stay there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.link.basic import Container

from pytensor_jaxpr_linker.base.array_types import is_tensor
from pytensor_jaxpr_linker.base.errors import variable_name
from pytensor_jaxpr_linker.run import placement, transfer


class SharedTensorType(transfer.DeviceTensorType):
    """The declared type of a shared variable, for its container: it keeps sharded arrays, and puts all others where they belong."""

    sharding: NamedSharding | None = None

    def filter(self, value: Any, strict: bool = False, allow_downcast: bool | None = None) -> Any:
        """Return `value` as PyTensor's type takes it, laid out by `sharding` if there is one."""
        if self.sharding is None and not placement.is_sharded(value):
            return self.type.filter(value, strict=strict, allow_downcast=allow_downcast)
        value = super().filter(value, strict=strict, allow_downcast=allow_downcast)
        return value if self.sharding is None else placement.put(value, self.sharding, self.name)

    def is_valid_value(self, data: Any, strict: bool = True) -> bool:
        """Tell whether a cell may hold `data`; a JAX array in one came through `filter`, or from a program."""
        return isinstance(data, jax.Array) or super().is_valid_value(data, strict)

    def __deepcopy__(self, memo: dict) -> SharedTensorType:
        return self


class SharedContainer(Container):
    """The container of a shared variable whose value may be a JAX array: on a mesh, or, after an update, on an accelerator.

    The cell holds the JAX array, which programs read. Whoever asks for the value gets NumPy's, as from any shared variable. A pickle
    has that and the description of the mesh; where there are as many devices, it is sharded again.
    """

    @property
    def value(self) -> Any:
        found = self.storage[0]
        return transfer.read_only(placement.to_host(found)) if isinstance(found, jax.Array) else found

    @value.setter
    def value(self, value: Any) -> None:
        self.__set__(value)

    data = value

    def __reduce__(self) -> tuple:
        """Return a plain container, which needs nothing of this package, unless the value is sharded."""
        found, state = self.storage[0], {**self.__dict__, "type": self.type.type}
        if not isinstance(found, jax.Array):
            return Container, (self.type.type, self.storage), state
        whole = [np.array(self.value)]
        state["storage"] = whole
        if not placement.is_sharded(found):
            return Container, (self.type.type, whole), state
        state["layout"] = describe_layout(found.sharding)
        return SharedContainer, (self.type.type, whole), state

    def __setstate__(self, state: dict[str, Any]) -> None:
        layout = state.pop("layout")
        self.__dict__.update(state)
        self.type = SharedTensorType(state["type"], f"'{self.name}'")
        if layout is not None and (sharding := sharding_of(*layout)) is not None:
            self.type.sharding = sharding
            self.storage[0] = placement.put(self.storage[0], sharding, self.type.name)


def describe_layout(sharding: Any) -> tuple[tuple[str, ...], tuple[int, ...], tuple] | None:
    """Return the axes of a mesh, their sizes and the partition spec: what a pickle can hold. None for a sharding without a mesh."""
    if not isinstance(sharding, NamedSharding):
        return None
    return sharding.mesh.axis_names, tuple(sharding.mesh.shape.values()), tuple(sharding.spec)


def sharding_of(names: tuple[str, ...], sizes: tuple[int, ...], spec: tuple) -> NamedSharding | None:
    """Return the sharding that was described, over the first devices of this process's JAX; None if there are fewer."""
    count = int(np.prod(sizes))
    if len(jax.devices()) < count:
        return None
    mesh = Mesh(np.array(jax.devices()[:count]).reshape(sizes), names)
    return NamedSharding(placement.automatic(mesh), PartitionSpec(*spec))


def adopt(container: Container, name: str) -> SharedContainer:
    """Turn the container of a shared array into a `SharedContainer`.

    It stays the same object with the same cell: functions that were compiled before hold both.
    """
    if not isinstance(container, SharedContainer):
        container.__class__ = SharedContainer
        container.type = SharedTensorType(container.type, name)
    return container  # type: ignore[return-value]


def shard(
    variable: SharedVariable, mesh: Mesh, axes: str | Sequence[str | tuple[str, ...] | None] = ()
) -> SharedVariable:
    """Put the value of a shared variable on the devices of a mesh, where it stays.

    `set_value`, updates and pickles keep the layout. A function of mode JAXPR that reads the variable runs on all of these devices: XLA
    divides its work by the layouts of what it reads.

    Parameters
    ----------
    variable : SharedVariable
        A shared variable of tensor type.
    mesh : jax.sharding.Mesh
        The devices. In a program of several processes each of them calls `shard` with the same mesh and value.
    axes : str, or sequence of str, tuple of str or None
        For each axis of the variable the mesh axis, or axes, along which it is divided; None, and what is left out, is whole on each device. One
        name is for the first axis.

    Returns
    -------
    SharedVariable
        The argument. ``get_value()`` gathers the parts into a NumPy array, and `device_array` returns the JAX array.

    Raises
    ------
    TypeError
        If the variable is no shared tensor, or `mesh` no mesh.
    ValueError
        If the mesh has no such axis, or a length can't be divided.

    Examples
    --------
    >>> import jax, numpy as np, pytensor
    >>> import pytensor_jaxpr_linker as pjl
    >>> mesh = jax.make_mesh((1,), ("data",))
    >>> weights = pjl.shard(pytensor.shared(np.zeros(4), name="weights"), mesh, ["data"])
    >>> pytensor.function([], [], updates={weights: weights + 1}, mode="JAXPR")()
    []
    >>> pjl.device_array(weights).sharding.mesh.axis_names
    ('data',)
    >>> weights.get_value()
    array([1., 1., 1., 1.])
    """
    if not is_shared_tensor(variable):
        raise TypeError(
            f"Only shared variables of tensor type can be sharded, not {variable!r:.100}. Divide the data of a PyMC model by"
            " pytensor_jaxpr_linker.pymc.shard, and give arguments of functions as sharded JAX arrays."
        )
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh is a jax.sharding.Mesh, such as jax.make_mesh((2,), ('data',)), not {mesh!r:.100}.")
    name, axes = variable_name(variable), (axes,) if isinstance(axes, str) else tuple(axes)
    wanted = [n for entry in axes for n in placement.axis_names(entry)]
    check_axes(name, mesh, wanted)
    if twice := [n for n in mesh.axis_names if wanted.count(n) > 1]:
        raise ValueError(
            f"{name} can't be divided along {twice[0]!r} twice: give one of its axes another name, or None."
        )
    sharding = NamedSharding(placement.automatic(mesh), PartitionSpec(*axes))
    container = adopt(variable.container, name)
    placed = placement.put(container.storage[0], sharding, name)
    container.type.sharding, container.storage[0] = sharding, placed
    return variable


def is_shared_tensor(variable: Any) -> bool:
    """Tell whether this is a shared variable whose value is an array."""
    return isinstance(variable, SharedVariable) and is_tensor(variable.type)


def check_axes(name: str, mesh: Mesh, wanted: Sequence[str]) -> None:
    """Raise a ValueError for an axis that a mesh does not have."""
    if missing := [n for n in wanted if n not in mesh.axis_names]:
        raise ValueError(
            f"The mesh has no axis {missing[0]!r} for {name}; its axes are {', '.join(map(repr, mesh.axis_names))}: use one of them."
        )


def value_in_place(variable: SharedVariable) -> Any:
    """Return the value of a shared variable without a copy: an array on a mesh as it lies there, any other as NumPy's."""
    held = variable.container.storage[0]
    return held if placement.is_sharded(held) else variable.get_value(borrow=True)


def device_array(variable: SharedVariable) -> jax.Array:
    """Return the value of a shared variable as the JAX array that lies on the devices, without a copy to the host if it is there.

    Parameters
    ----------
    variable : SharedVariable
        A shared variable of tensor type.

    Returns
    -------
    jax.Array
        With the sharding of `shard`; of a variable that is not sharded, a copy on JAX's default device.

    Raises
    ------
    TypeError
        If this is no shared variable of tensor type.

    Examples
    --------
    >>> import numpy as np, pytensor
    >>> import pytensor_jaxpr_linker as pjl
    >>> pjl.device_array(pytensor.shared(np.zeros(2, "float32")))
    Array([0., 0.], dtype=float32)
    """
    if not is_shared_tensor(variable):
        raise TypeError(f"device_array takes a shared variable of tensor type, not {variable!r:.100}.")
    found = variable.container.storage[0]
    return found if isinstance(found, jax.Array) else transfer.on_device(np.asarray(found))
