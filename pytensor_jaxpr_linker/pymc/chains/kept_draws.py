"""Draws of chains in arrays that are allocated once, so that memory is bounded by what is kept and one chunk."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from pytensor_jaxpr_linker.pymc.chains.programs import Chunk

#: Statistics by which a transition warns. A kept draw has them if it, or a transition that is skipped, has.
WARNINGS = ("diverging", "reached_max_treedepth")
#: How the names of arrays begin that tell of a divergence, and are NaN for other transitions.
OF_DIVERGENCE = "divergence_"


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
        Of so many transitions the last one is kept, with the warnings of all of them: those in which no divergence is seen would tell of a posterior without
        any. What is too short for one more draw counts to the last one.

    Attributes
    ----------
    seen, missing
        How many transitions there were, and how many are to come.

    Examples
    --------
    >>> import numpy as np
    >>> from pytensor_jaxpr_linker.pymc.chains.kept_draws import KeptDraws
    >>> kept = KeptDraws(6, thinning=2)
    >>> for first in (0, 3):
    ...     chunk = np.arange(first, first + 3.0)[None]
    ...     kept.add(({"x": chunk}, {"diverging": chunk == 2, "n_steps": chunk}), 0, 3)
    >>> draws = kept.result()
    >>> draws.positions["x"], draws.stats["n_steps"], draws.stats["diverging"]
    (array([[1., 3., 5.]]), array([[1., 3., 5.]]), array([[False,  True, False]]))
    """

    def __init__(self, count: int, thinning: int = 1):
        self._room, self._thinning = count // thinning, thinning
        self._arrays: Any = None
        self.seen, self.missing = 0, count

    @property
    def length(self) -> int:
        """How many draws are complete."""
        return self.seen // self._thinning

    @property
    def begun(self) -> Chunk:
        """The draws so far, with one that is not complete."""
        return jax.tree.map(lambda x: x[:, : -(-self.seen // self._thinning)], self._arrays or ({}, {}))

    def restore(self, begun: Chunk, seen: int) -> None:
        """Go on from draws so far, of so many transitions."""
        if seen:
            self._make_room(begun)
            for whole, part in zip(jax.tree.leaves(self._arrays), jax.tree.leaves(begun), strict=True):
                whole[:, : part.shape[1]] = part
        self.seen, self.missing = seen, self.missing - seen

    def _make_room(self, chunk: Chunk) -> None:
        self._arrays = tuple({name: self._empty(name, x) for name, x in group.items()} for group in chunk)

    def add(self, chunk: Chunk, first: int, end: int) -> None:
        """Keep what is to be kept of the transitions from `first` to `end` of a chunk."""
        if self._arrays is None:
            self._make_room(chunk)
        positions, stats = jax.tree.map(lambda x: x[:, first:end], chunk)
        kept_positions, kept_stats = self._arrays
        numbers = np.arange(self.seen, self.seen + end - first)
        rows, is_kept = np.minimum(numbers // self._thinning, self._room - 1), (numbers + 1) % self._thinning == 0
        for name, x in positions.items():
            kept_positions[name][:, rows[is_kept]] = x[:, is_kept]
        for name, x in stats.items():
            if name in WARNINGS:
                np.logical_or.at(kept_stats[name].swapaxes(0, 1), rows, x.swapaxes(0, 1))
            elif name.startswith(OF_DIVERGENCE):
                chains, diverged = np.nonzero(stats["diverging"])
                kept_stats[name][chains, rows[diverged]] = x[chains, diverged]
            else:
                kept_stats[name][:, rows[is_kept]] = x[:, is_kept]
        self.seen, self.missing = self.seen + end - first, self.missing - end + first

    def _empty(self, name: str, x: np.ndarray) -> np.ndarray:
        fill = np.nan if name.startswith(OF_DIVERGENCE) and x.dtype.kind == "f" else 0
        return np.full((len(x), self._room, *x.shape[2:]), fill, x.dtype)

    def result(self) -> Draws:
        """Return the draws so far."""
        return Draws(*jax.tree.map(lambda x: x[:, : self.length], self._arrays))


def length_of(chunk: Chunk) -> int:
    """Return how many transitions of each chain there are."""
    return next(iter(chunk[1].values())).shape[1]


def thinned(draws: Draws, thinning: int) -> Draws:
    """Return every `thinning`-th of some draws, with the warnings of all: see `KeptDraws`."""
    if thinning == 1:
        return draws
    count = length_of(draws)
    kept = KeptDraws(count, thinning)
    kept.add((draws.positions, draws.stats), 0, count)
    return kept.result()
