"""Random keys in the states of chains, and the numbers that programs and files have in their place."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

#: The generator whose keys chains have, by its name in JAX.
KEYS = "threefry2x32"


class KeyData(NamedTuple):
    """The numbers of a random key, as an array that can be passed and saved."""

    data: Any


def is_key(value: Any) -> bool:
    """Return whether a value is a key of `jax.random`, or several."""
    return jax.dtypes.issubdtype(getattr(value, "dtype", np.float64), jax.dtypes.prng_key)


def without_keys(state: Any) -> Any:
    """Return a pytree with `KeyData` in the place of keys."""
    return jax.tree.map(lambda x: KeyData(jax.random.key_data(x)) if is_key(x) else x, state)


def with_keys(state: Any) -> Any:
    """Return a pytree with keys in the place of `KeyData`."""
    return jax.tree.map(
        lambda x: jax.random.wrap_key_data(x.data, impl=KEYS) if isinstance(x, KeyData) else x,
        state,
        is_leaf=lambda x: isinstance(x, KeyData),
    )
