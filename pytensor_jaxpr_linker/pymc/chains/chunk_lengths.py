"""How many transitions a chain makes in one call of its program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

#: Seconds that a call should take: as often a bar moves, and as long Ctrl-C waits.
CALL_SECONDS = 0.1
#: A call makes at most so many times the transitions of the call before: the first ones of a warm-up say little of the later ones.
GROWTH = 4
#: Most transitions in a call: then Python takes less than a tenth of the time even of short ones.
MOST_TRANSITIONS = 256
#: Most transitions in a call on a user's mesh, so between two checkpoints.
BETWEEN_CHECKPOINTS = 25
#: Most bytes of what a call returns. Statistics take about as many for each transition and chain.
MOST_BYTES, STATISTICS_BYTES = 2**22, 256


class ChunkLengths:
    """The lengths of the chunks in which chains advance, the same for all chains: one transition, then more as the time that they take allows.

    Parameters
    ----------
    total
        How many transitions a chain makes.
    most
        Of how many a chunk has room.
    by_time
        Whether the time decides; else each chunk but the last one makes as many as there is room for: several processes
        must make the same.

    Examples
    --------
    >>> from pytensor_jaxpr_linker.pymc.chains.chunk_lengths import ChunkLengths
    >>> lengths, seconds_of_a_transition = ChunkLengths(total=40, most=256), 0.01
    >>> found = []
    >>> while n := lengths(len(found)):
    ...     lengths.took(n, n * seconds_of_a_transition)
    ...     found.append(n)
    >>> found
    [1, 4, 10, 10, 10, 5]
    """

    def __init__(self, total: int, most: int, by_time: bool = True):
        self._left, self._most, self._by_time = total, most, by_time
        self._lengths: list[int] = []
        self._seconds = 0.0

    def __call__(self, number: int) -> int:
        """Return the length of a chunk by its number, 0 behind the last one. Chunks are asked for in turn."""
        if number == len(self._lengths):
            longest = GROWTH * self._lengths[-1] if self._lengths else 1
            in_time = max(1, CALL_SECONDS / self._seconds) if self._seconds else longest
            fits = min(longest, in_time) if self._by_time else self._most
            self._lengths.append(int(min(self._left, self._most, fits)))
            self._left -= self._lengths[-1]
        return self._lengths[number]

    def took(self, length: int, seconds: float) -> None:
        """Note how long a chunk took."""
        self._seconds = seconds / length


def longest_chunk(like: Mapping[str, Any], chains: int) -> int:
    """Return how many transitions a chunk has room for, by the positions of `chains` chains, whose axis is the first one of `like`."""
    position = sum(np.prod(x.shape[1:], dtype=int) * x.dtype.itemsize for x in like.values())
    return int(np.clip(MOST_BYTES // (chains * (position + STATISTICS_BYTES)), 1, MOST_TRANSITIONS))
