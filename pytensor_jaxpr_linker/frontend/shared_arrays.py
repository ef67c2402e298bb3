"""The arrays of shared variables: their containers, `shard`, column-major order, and their copies on a device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial, wraps
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pytensor.compile.sharedvalue import SharedVariable, shared_constructor
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.link.basic import Container
from pytensor.tensor.sharedvar import TensorSharedVariable, scalar_constructor, tensor_constructor
from pytensor.tensor.type import TensorType

from pytensor_jaxpr_linker.base import marks
from pytensor_jaxpr_linker.base.array_types import is_tensor, unmasked
from pytensor_jaxpr_linker.base.errors import variable_name
from pytensor_jaxpr_linker.base.passes import Pass
from pytensor_jaxpr_linker.graph.data_layout import gains, lay_inputs
from pytensor_jaxpr_linker.jaxpr.passes import CPU
from pytensor_jaxpr_linker.run import placement
from pytensor_jaxpr_linker.run.transfer_count import count_upload


class SharedTensorType(placement.DeviceTensorType):
    """The declared type of a shared variable, for its container: it keeps sharded arrays and lays out all others."""

    sharding: NamedSharding | None = None

    def filter(self, value: Any, strict: bool = False, allow_downcast: bool | None = None) -> Any:
        """Return `value` as PyTensor's type takes it, laid out by `sharding` if there is one."""
        if self.sharding is None and not placement.is_sharded(value):
            return self.type.filter(value, strict=strict, allow_downcast=allow_downcast)
        value = super().filter(value, strict=strict, allow_downcast=allow_downcast)
        return value if self.sharding is None else placement.put(value, self.sharding, self.name)

    def is_valid_value(self, data: Any, strict: bool = True) -> bool:
        """Return whether a cell may hold `data`; a JAX array in one came through `filter`, or from a program."""
        return isinstance(data, jax.Array) or super().is_valid_value(data, strict)

    def __deepcopy__(self, memo: dict) -> SharedTensorType:
        return self


class SharedContainer(Container):
    """The container of a shared variable whose value may be a JAX array, on a mesh or, after an update, an accelerator.

    The cell holds the JAX array, which programs read. `get_value` returns a NumPy array, as of any shared variable. A
    pickle has that array and the description of the mesh; where there are as many devices, it is sharded again.
    """

    @property
    def value(self) -> Any:
        found = self.storage[0]
        return placement.read_only(placement.to_host(found)) if isinstance(found, jax.Array) else found

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
    """Return a mesh's axes, their sizes and the partition spec, for a pickle; None for a sharding without a mesh."""
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
    """Turn a container into a `SharedContainer`: the same object and cell, which functions compiled before hold."""
    if not isinstance(container, SharedContainer):
        container.__class__ = SharedContainer
        container.type = SharedTensorType(container.type, name)
    return container  # type: ignore[return-value]


def shard(
    variable: SharedVariable, mesh: Mesh, axes: str | Sequence[str | tuple[str, ...] | None] = ()
) -> SharedVariable:
    """Put the value of a shared variable on the devices of a mesh, where it stays.

    `set_value`, updates and pickles keep the layout. A function of mode JAXPR that reads the variable runs on all of
    these devices: XLA divides its work by the layouts of its arguments.

    Parameters
    ----------
    variable : SharedVariable
        A shared variable of tensor type.
    mesh : jax.sharding.Mesh
        The devices. In a program of several processes each of them calls `shard` with the same mesh and value.
    axes : str, or sequence of str, tuple of str or None
        For each axis of the variable the mesh axis, or axes, along which it is divided. An axis with None, or without
        an entry, is whole on each device. One name is for the first axis.

    Returns
    -------
    SharedVariable
        The argument. ``get_value()`` gathers the parts into a NumPy array, and `device_array` returns the JAX array.

    Raises
    ------
    TypeError
        If `variable` is not a shared tensor, or `mesh` not a mesh.
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
            f"Only shared variables of tensor type can be sharded, not {variable!r:.100}. Divide the data of a PyMC"
            " model by pytensor_jaxpr_linker.pymc.shard, and give arguments of functions as sharded JAX arrays."
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
    """Return whether this is a shared variable whose value is an array."""
    return isinstance(variable, SharedVariable) and is_tensor(variable.type)


def check_axes(name: str, mesh: Mesh, wanted: Sequence[str]) -> None:
    """Raise a ValueError for an axis that a mesh does not have."""
    if missing := [n for n in wanted if n not in mesh.axis_names]:
        axes = ", ".join(map(repr, mesh.axis_names))
        raise ValueError(f"The mesh has no axis {missing[0]!r} for {name}; its axes are {axes}: use one of them.")


def value_in_place(variable: SharedVariable) -> Any:
    """Return the value of a shared variable without a copy: a sharded array as it is, any other as a NumPy array."""
    held = variable.container.storage[0]
    return held if placement.is_sharded(held) else variable.get_value(borrow=True)


def device_array(variable: SharedVariable) -> jax.Array:
    """Return the value of a shared variable as a JAX array: the array on the devices itself, if there is one.

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
        If `variable` is not a shared variable of tensor type.

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
    return found if isinstance(found, jax.Array) else placement.on_device(np.asarray(found))


#: The classes of values for which PyTensor makes shared tensors.
TENSOR_VALUES = (np.ndarray, np.number, float, int, complex)


def register_constructors() -> None:
    """Register the constructors with `pytensor.shared`. A constructor that another package registered stays."""
    shared_constructor.register(jax.Array, constructor_of_device_arrays)
    for kind in TENSOR_VALUES:
        if (construct := shared_constructor.dispatch(kind)) in (tensor_constructor, scalar_constructor):
            shared_constructor.register(kind, with_open_container(construct))


class OpenContainer(Container):
    """PyTensor's container of a tensor, which becomes a `SharedContainer` when it is given an array on a mesh.

    PyTensor's container gathers the parts into one NumPy array and says nothing. All other values are treated as
    PyTensor treats them, and a pickle has PyTensor's class. So nothing changes for programs that use no mesh.
    """

    def __set__(self, value: Any) -> None:
        if placement.is_sharded(value):
            adopt(self, "a shared variable" if self.name is None else f"'{self.name}'").value = value
        else:
            super().__set__(value)

    data = property(Container.__get__, __set__)
    value = property(Container.__get__, __set__)

    def __reduce__(self) -> tuple:
        return Container, (self.type, self.storage), self.__dict__


def with_open_container(construct: Callable[..., SharedVariable]) -> Callable[..., SharedVariable]:
    """Return a constructor whose variables have an `OpenContainer`."""

    @wraps(construct)
    def constructor(*args: Any, **options: Any) -> SharedVariable:
        variable = construct(*args, **options)
        variable.container.__class__ = OpenContainer
        return variable

    return constructor


def constructor_of_device_arrays(value: jax.Array, name: str | None = None, **options: Any) -> SharedVariable:
    """Make ``pytensor.shared`` of a JAX array a tensor; a sharded array stays as it is."""
    if not placement.is_sharded(value):
        return shared_constructor(np.asarray(value), name=name, **options)
    declared = options.get("shape") or (None,) * value.ndim
    plain = Container(TensorType(value.dtype.name, shape=declared), [value], name=name)
    container = adopt(plain, name or "a shared variable")
    if isinstance(value.sharding, NamedSharding):
        mesh = placement.automatic(value.sharding.mesh)
        container.type.sharding = NamedSharding(mesh, value.sharding.spec)
    none: Any = None  # the container has the value
    return TensorSharedVariable(type=container.type.type, value=none, strict=none, container=container, name=name)


class InRows(Exception):
    """A function wants a shared matrix in column-major order, and another function or an update has put it in rows."""


def shared_pass(fgraph: FunctionGraph) -> Pass:
    """Return the pass that lets a graph take the transposes of shared matrices if column-major order is faster."""
    updated = set((getattr(fgraph, "update_mapping", None) or {}).values())
    candidates = [i for i, v in enumerate(fgraph.inputs) if i not in updated and may_lie_in_columns(v)]
    run = partial(lay_inputs, candidates=candidates)
    return Pass("column-major inputs", run, when=(lambda _: bool(candidates), CPU))


def may_lie_in_columns(variable: Variable) -> bool:
    """Return whether an input is a shared matrix that nobody has put on a device in rows, nor marked."""
    if not isinstance(variable, SharedVariable):
        return False
    if marks.is_static(variable) or marks.is_dynamic(variable) or marks.dynamic_axes(variable):
        return False
    value = variable.container.storage[0]
    buffer = placement.buffer_of(value)
    return gains(value) and (buffer is None or buffer.is_column_major)


def transposed(values: Sequence[Any], positions: Collection[int]) -> list:
    """Return the values of inputs, or their shapes and dtypes, with the matrices at some positions transposed."""
    found = [*values]
    for i in positions:
        x = found[i]
        is_value = not isinstance(x, jax.ShapeDtypeStruct)
        found[i] = np.asarray(x).T if is_value else jax.ShapeDtypeStruct(x.shape[::-1], x.dtype)
    return found


#: Held while the values of shared variables are read or replaced, not while they are computed: so each call sees the
#: values of one update.
consistent = threading.Lock()


def shared_device_array(cell: list, value: Any, device: jax.Device | None, is_column_major: bool) -> Any:
    """Return the copy of a shared variable's value, or of its transpose, on a device, or on JAX's default device.

    It is uploaded the first time it is seen. A matrix that is there in column-major order is uploaded again if rows are
    wanted, and stays in rows.
    """
    buffer = placement.buffer_of(value)
    if buffer is not None and buffer.is_column_major is is_column_major:
        return buffer.on(device)
    if is_column_major and (buffer is not None or not isinstance(value, np.ndarray)):
        raise InRows
    if not isinstance(value, np.ndarray) or not value.size:
        # An array on a mesh or an accelerator stays there.
        return value.T if is_column_major else unmasked(value)
    with jax.enable_x64(True):
        uploaded = placement.upload(value, device, is_column_major)
    count_upload(value.nbytes)
    with consistent:
        if cell[0] is value:  # else another thread has replaced or uploaded it
            cell[0] = uploaded
    buffer = placement.buffer_of(uploaded)
    assert buffer is not None
    return buffer.array


def placed_like(old: Any, new: Any) -> Any:
    """Return the new value of a shared variable on the devices of the old: sharded alike, or as one mirrored array."""
    if placement.is_sharded(old):
        return placement.put(new, old.sharding, "the update of a shared variable")
    return placement.upload(placement.to_host(new)) if placement.is_sharded(new) else new


def in_cell(array: jax.Array) -> Any:
    """Return an update for a cell: a mirror or, if it is sharded or on an accelerator, the array itself."""
    stays = placement.is_sharded(array) or not placement.shares_memory(array)
    return array if stays else placement.mirror(array)
