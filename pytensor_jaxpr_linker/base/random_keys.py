"""JAX keys of NumPy's generators."""

from __future__ import annotations

from typing import Any

import numpy as np
from pytensor.tensor.random.utils import custom_rng_deepcopy


def keys_of(generator: Any, count: int = 1) -> Any:
    """Return the keys that the next bits of a generator's stream give: uint32 of shape (2,), or (count, 2) for several.

    The generator is left as it was. A JAX key in its place is returned as it is.
    """
    if not isinstance(generator, np.random.Generator):
        return generator
    bits = custom_rng_deepcopy(generator).bit_generator.random_raw(2 * count)
    keys = (bits ^ (bits >> 32)).astype(np.uint32)
    return keys if count == 1 else keys.reshape(count, 2)
