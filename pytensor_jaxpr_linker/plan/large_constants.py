"""Large constants: arrays that a program takes as arguments, each once, instead of holding them in its text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from pytensor.graph.basic import Constant

#: Constants of more bytes than this are passed as arguments. XLA reads small index arrays faster from the program; larger
#: data bloats its text and its constant folding.
INLINE_CONSTANT_BYTES = 2**16


class LargeConstants(NamedTuple):
    """The large constants of a region."""

    #: The arguments, with axes in the order of memory. PyTensor folds the transpose of a constant into a second constant: both are
    #: views of one array here, which is uploaded, and read by the processor, once.
    arrays: list[np.ndarray]
    views: dict[
        Constant, tuple[int, tuple[int, ...]]
    ]  #: which of the arrays each constant is, and the order of its axes


def array_key(array: np.ndarray) -> tuple:
    """Return a key that two views share if they are the same array."""
    return array.ctypes.data, array.shape, array.strides, array.dtype


def find_large_constants(constants: Iterable[Constant]) -> LargeConstants:
    """Return the constants that are too large for a program's text."""
    found = LargeConstants([], {})
    places: dict[tuple, int] = {}
    for constant in constants:
        data = constant.data
        if not isinstance(data, np.ndarray) or data.nbytes <= INLINE_CONSTANT_BYTES:
            continue
        order = sorted(range(data.ndim), key=lambda axis: -abs(data.strides[axis]))
        base = data.transpose(order)
        key = array_key(base)
        if key not in places:
            places[key] = len(found.arrays)
            found.arrays.append(base)
        found.views[constant] = places[key], tuple(order.index(axis) for axis in range(data.ndim))
    return found
