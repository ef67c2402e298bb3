"""The constructors of `pytensor.shared`: their variables keep an array on a mesh as it is, from the first `set_value` on."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from pytensor.compile.sharedvalue import SharedVariable, shared_constructor
from pytensor.link.basic import Container
from pytensor.tensor.sharedvar import TensorSharedVariable, scalar_constructor, tensor_constructor
from pytensor.tensor.type import TensorType

from pytensor_jaxpr_linker.frontend.shared_placement import adopt
from pytensor_jaxpr_linker.run import placement

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

    PyTensor's container gathers the parts into one NumPy array and says nothing. All other values are treated as PyTensor treats them, and a
    pickle has PyTensor's class. So nothing changes for programs that use no mesh.
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
    container = adopt(
        Container(TensorType(value.dtype.name, shape=declared), [value], name=name), name or "a shared variable"
    )
    if isinstance(value.sharding, NamedSharding):
        mesh = placement.automatic(value.sharding.mesh)
        container.type.sharding = NamedSharding(mesh, value.sharding.spec)
    none: Any = None  # the container has the value
    return TensorSharedVariable(type=container.type.type, value=none, strict=none, container=container, name=name)
