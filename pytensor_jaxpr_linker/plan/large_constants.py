"""Large constants: arrays that a program takes as arguments, each once, instead of holding them in its text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from pytensor.graph.basic import Apply, Constant
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor

from pytensor_jaxpr_linker.base.array_types import array_key, in_memory_order

#: Constants of more bytes than this are passed as arguments. XLA reads small index arrays faster from the program; larger
#: data bloats its text and its constant folding.
INLINE_CONSTANT_BYTES = 2**16
#: Constants of more bytes than this are read from memory in each call, and memory is slower than a conversion.
WIDE_CONSTANT_BYTES = 2**20
#: The dtypes that may hold the numbers of another one, the smallest first.
NARROW = [np.dtype(name) for name in ("int8", "uint8", "int16", "uint16", "int32", "float32")]


class LargeConstants(NamedTuple):
    """The large constants of a region."""

    #: The arguments, with axes in the order of memory, in a dtype that holds their numbers. PyTensor folds the transpose of a constant into a second constant: both are
    #: views of one array here, which is uploaded, and read by the processor, once.
    arrays: list[np.ndarray]
    views: dict[
        Constant, tuple[int, tuple[int, ...]]
    ]  #: which of the arrays each constant is, and the order of its axes


def find_large_constants(read: Iterable[tuple[Constant, Apply]]) -> LargeConstants:
    """Return the constants that are too large for a program's text, of constants and the nodes that read them."""
    found = LargeConstants([], {})
    places: dict[tuple, int] = {}
    only_elements: dict[int, bool] = {}
    for constant, node in read:
        data = constant.data
        if not isinstance(data, np.ndarray) or data.nbytes <= INLINE_CONSTANT_BYTES:
            continue
        base, order = in_memory_order(data)
        place = places.setdefault(array_key(base), len(found.arrays))
        if place == len(found.arrays):
            found.arrays.append(base)
        found.views[constant] = place, tuple(order.index(axis) for axis in range(data.ndim))
        only_elements[place] = only_elements.get(place, True) and reads_elements(node, constant)
    for place, array in enumerate(found.arrays):
        if only_elements[place]:
            found.arrays[place] = narrowed(array)
    return found


def reads_elements(node: Apply, constant: Constant) -> bool:
    """Return whether a node reads a constant element by element, so that XLA converts elements where it reads them. A product would need a converted array."""
    if isinstance(node.op, AdvancedSubtensor):
        return constant is not node.inputs[0]
    if isinstance(node.op, AdvancedIncSubtensor):
        return constant not in node.inputs[:2]
    return isinstance(node.op, Elemwise)


def narrowed(array: np.ndarray) -> np.ndarray:
    """Return an array of real numbers in the smallest dtype that holds all of them bit by bit, if it takes long to read."""
    if array.nbytes <= WIDE_CONSTANT_BYTES or array.dtype.kind not in "iuf":
        return array
    for dtype in NARROW:
        if dtype.itemsize < array.dtype.itemsize and all(holds(dtype, part) for part in (array[:1], array)):
            return array.astype(dtype)
    return array


def holds(dtype: np.dtype, array: np.ndarray) -> bool:
    """Return whether a dtype holds the numbers of an array: -0.0 and NaN are no integers."""
    with np.errstate(invalid="ignore", over="ignore"):
        again = array.astype(dtype).astype(array.dtype)
    bits = f"u{array.dtype.itemsize}"
    return np.array_equal(again.view(bits), array.view(bits))
