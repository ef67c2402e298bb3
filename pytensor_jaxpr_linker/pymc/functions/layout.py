"""`Layout`: the places of values in a flat vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np


class Layout(NamedTuple):
    """The shapes of named values, in their order in a flat vector."""

    shapes: dict[str, tuple[int, ...]]

    @property
    def sizes(self) -> list[int]:
        """The number of elements of each value."""
        return [int(np.prod(shape)) for shape in self.shapes.values()]

    def ravel(self, values: Mapping[str, Any]) -> np.ndarray:
        """Return the flat vector of a dict of values; leading axes, of chains say, stay."""
        arrays = {name: np.asarray(values[name]) for name in self.shapes}
        leads = [a.shape[: a.ndim - len(shape)] for a, shape in zip(arrays.values(), self.shapes.values(), strict=True)]
        flat = [a.reshape((*lead, n)) for a, lead, n in zip(arrays.values(), leads, self.sizes, strict=True)]
        return np.concatenate(flat, axis=-1)

    def unravel(self, vector: Any) -> dict[str, Any]:
        """Return the dict of values of a flat vector; leading axes stay."""
        sizes = self.sizes
        if vector.shape[-1] != sum(sizes):
            raise ValueError(f"The flat vector must have length {sum(sizes)}, not {vector.shape[-1]}: {self.shapes}.")
        # The derivative of `split` is one concatenation; those of slices are sums of vectors that are mostly zero.
        split: Any = jax.lax.split if isinstance(vector, jax.Array) else np_split
        parts = split(vector, sizes, vector.ndim - 1)
        return {
            name: part.reshape((*vector.shape[:-1], *shape))
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }


def np_split(vector: np.ndarray, sizes: list[int], axis: int) -> list[np.ndarray]:
    """Return the parts of a NumPy array that have these sizes, as `jax.lax.split` does."""
    return np.split(vector, np.cumsum(sizes)[:-1], axis)
