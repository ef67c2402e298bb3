"""Arrays that graph passes make of constants, shared by the functions of a model."""

from __future__ import annotations

from weakref import WeakValueDictionary

import numpy as np

#: The arrays that constants of some graph hold, by where they came from.
MADE: WeakValueDictionary[tuple, np.ndarray] = WeakValueDictionary()


def shared(key: tuple, array: np.ndarray) -> np.ndarray:
    """Return the equal array that a graph has under a key, else this one.

    The key is where the array came from. A constant holds the user's own array, which may have been written to since, or freed: so what is found is compared bit by bit.
    """
    found, bits = MADE.get(key), f"u{min(array.dtype.itemsize, 8)}"
    if found is not None and np.array_equal(found.view(bits), array.view(bits)):
        return found
    MADE[key] = array
    return array
