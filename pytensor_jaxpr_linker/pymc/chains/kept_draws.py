"""Draws of chains in arrays that are allocated once, so that memory is bounded by what is kept and one chunk."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from pytensor_jaxpr_linker.pymc.chains.programs import Chunk


class Draws(NamedTuple):
    """Positions and statistics, with axes of chains and draws in front."""

    positions: dict[str, np.ndarray]
    stats: dict[str, np.ndarray]


class KeptDraws:
    """The draws that are kept of the transitions of chains: each of them, or every `thinning`-th.

    Parameters
    ----------
    count
        How many transitions there will be.
    thinning
        Of so many transitions the last one is kept.

    Examples
    --------
    >>> import numpy as np
    >>> from pytensor_jaxpr_linker.pymc.chains.kept_draws import KeptDraws
    >>> kept = KeptDraws(6, thinning=2)
    >>> for first in (0, 3):
    ...     kept.add(({"x": np.arange(first, first + 3.0)[None]}, {}), 0, 3)
    >>> kept.result().positions["x"]
    array([[1., 3., 5.]])
    """

    def __init__(self, count: int, thinning: int = 1):
        self._room, self._thinning = count // thinning, thinning
        self._arrays: Any = None
        self._seen = self.length = 0

    def add(self, chunk: Chunk, first: int, end: int) -> None:
        """Keep what is to be kept of the transitions from `first` to `end` of a chunk."""
        index = np.arange(first + (-self._seen - 1) % self._thinning, end, self._thinning)
        if self._arrays is None:
            self._arrays = jax.tree.map(self._empty, chunk)
        at = slice(self.length, self.length + len(index))

        def store(kept: np.ndarray, x: np.ndarray) -> None:
            kept[:, at] = x[:, index]

        jax.tree.map(store, self._arrays, chunk)
        self._seen += end - first
        self.length += len(index)

    def _empty(self, x: np.ndarray) -> np.ndarray:
        return np.empty((len(x), self._room, *x.shape[2:]), x.dtype)

    def result(self) -> Draws:
        """Return the draws so far."""
        return Draws(*jax.tree.map(lambda x: x[:, : self.length], self._arrays))
