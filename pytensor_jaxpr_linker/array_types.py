"""Which of PyTensor's types have dense arrays as values. Uses no JAX."""

from __future__ import annotations

from functools import cache
from typing import Any

from pytensor.tensor.type import DenseTensorType

from pytensor_jaxpr_linker.registry import class_name

#: Tensors with named dimensions, whose values are NumPy arrays. Known by name: the import takes half a second, with xarray's.
NAMED = "pytensor.xtensor.type.XTensorType"


def is_tensor(type_: Any) -> bool:
    """Tell whether the values of a type are dense arrays: those of a tensor, with named dimensions or without."""
    return isinstance(type_, DenseTensorType) or has_names(type(type_))


@cache
def has_names(type_class: type) -> bool:
    """Tell whether a class of types is that of tensors with named dimensions, or derived from it."""
    return any(class_name(base) == NAMED for base in type_class.__mro__)


def in_order(type_: Any, value: Any) -> Any:
    """Return the array of an `xarray.DataArray`, its axes in the order of the type's dimensions; any other value as it is."""
    is_named = has_names(type(type_)) and hasattr(value, "dims")
    return value.transpose(*type_.dims).values if is_named else value
