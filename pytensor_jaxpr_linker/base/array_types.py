"""Tells which PyTensor types have dense arrays as values, and how arrays lie in memory."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from pytensor.tensor.type import DenseTensorType


def is_tensor(type_: Any) -> bool:
    """Return whether the values of a type are dense arrays: tensors with named dimensions or without."""
    return isinstance(type_, DenseTensorType) or has_names(type_)


def has_names(type_: Any) -> bool:
    """Return whether tensors of a type have named dimensions. Their values are NumPy arrays, too."""
    module = sys.modules.get("pytensor.xtensor.type")  # to import it takes half a second, with xarray
    return module is not None and isinstance(type_, module.XTensorType)


def in_order(type_: Any, value: Any) -> Any:
    """Return the array of an `xarray.DataArray`, with axes in the order of the type's dimensions, or another value."""
    return value.transpose(*type_.dims).values if has_names(type_) and hasattr(value, "dims") else value


def unmasked(value: Any) -> Any:
    """Return all numbers of a masked array, as most Ops of PyTensor take them, or another value as it is."""
    return np.asarray(value) if isinstance(value, np.ma.MaskedArray) else value


def array_key(array: np.ndarray) -> tuple:
    """Return a key that two views share if they are the same array."""
    return array.ctypes.data, array.shape, array.strides, array.dtype


def in_memory_order(array: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Return a view of an array with its axes in the order of memory, and which of the array's axes each is."""
    order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    return array.transpose(order), order


#: How many numbers of each column are transposed at a time: these rows fit into the cache of a core.
TRANSPOSED_ROWS = 1024


def copy_matrix(target: np.ndarray, source: np.ndarray) -> None:
    """Copy an array into one of the same shape; NumPy takes four times as long to transpose 400 MB at once."""
    if source.ndim != 2 or source.flags.c_contiguous:
        target[...] = source
        return
    if len(source) > source.shape[1]:
        target, source = target.T, source.T
    for start in range(0, source.shape[1], TRANSPOSED_ROWS):
        part = slice(start, start + TRANSPOSED_ROWS)
        target[:, part] = source[:, part]
