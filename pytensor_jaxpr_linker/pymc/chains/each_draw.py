"""Calls a user's function after each draw, as `pymc.sample` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pytensor_jaxpr_linker.pymc.chains.programs import Chunk


class DrawOfChain(NamedTuple):
    """One transition of a chain, with the names that PyMC's have."""

    chain: int
    is_last: bool
    draw_idx: int
    tuning: bool
    stats: list[dict[str, Any]]
    point: dict[str, np.ndarray]


def each_draw(callback: Callable, tune: int, total: int) -> Callable[[Chunk, int], None]:
    """Return the function that hands on the transitions of a chunk, of which `done` were made before it.

    `callback` is called as ``callback(trace=None, draw=draw)``: draws are kept in arrays, not in a trace of PyMC's. It may raise
    `KeyboardInterrupt` to end sampling.
    """

    def each(chunk: Chunk, done: int) -> None:
        positions, stats = chunk
        chains, length = next(iter(stats.values())).shape[:2]
        for i in range(length):
            for chain in range(chains):
                found = {name: x[chain, i] for name, x in stats.items()}
                point = {name: x[chain, i] for name, x in positions.items()}
                at = done + i
                callback(trace=None, draw=DrawOfChain(chain, at == total - 1, at, at < tune, [found], point))

    return each
