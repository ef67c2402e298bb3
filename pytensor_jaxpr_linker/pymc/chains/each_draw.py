"""Calls a user's function after each draw, as `pymc.sample` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pytensor_jaxpr_linker.pymc.chains.chain_trace import ChainTrace, PositionsSoFar
from pytensor_jaxpr_linker.pymc.chains.programs import Chunk


class DrawOfChain(NamedTuple):
    """One transition of a chain, with the names that PyMC's have."""

    chain: int
    is_last: bool
    draw_idx: int
    tuning: bool
    stats: list[dict[str, Any]]
    point: dict[str, np.ndarray]


class EachDraw:
    """Hands on the transitions of chains, one by one, to a user's function.

    Parameters
    ----------
    callback
        Called as ``callback(trace=trace, draw=draw)``. It may raise `KeyboardInterrupt` to end sampling.
    tune, total
        How many transitions are the warm-up, and how many there are.
    constrained
        Maps positions to the variables that `trace` has beside them.
    """

    def __init__(self, callback: Callable, tune: int, total: int, constrained: Any):
        self._callback, self._tune, self._total = callback, tune, total
        self._seen = PositionsSoFar(constrained)
        self._first: int | None = None  # of a run that goes on, the transitions before are not in the trace

    def __call__(self, chunk: Chunk, done: int) -> tuple[int, bool]:
        """Hand on a chunk, before which `done` transitions were made; return how many of it were, and whether this ends sampling."""
        positions, stats = chunk
        chains, length = next(iter(stats.values())).shape[:2]
        self._seen.add(positions)
        self._first = done if self._first is None else self._first
        for i in range(length):
            for chain in range(chains):
                found = {name: x[chain, i] for name, x in stats.items()}
                point = {name: x[chain, i] for name, x in positions.items()}
                at = done + i
                draw = DrawOfChain(chain, at == self._total - 1, at, at < self._tune, [found], point)
                try:
                    self._callback(trace=ChainTrace(chain, at + 1 - self._first, self._seen), draw=draw)
                except KeyboardInterrupt:
                    return i + 1, True
        return length, False
