"""`ChainTrace`: the draws of a chain so far, as a callback of `pymc.sample` reads them."""

from __future__ import annotations

from typing import Any

import numpy as np


class PositionsSoFar:
    """The positions of all chains so far, and the model's variables there once somebody asks for them."""

    def __init__(self, constrained: Any):
        self._constrained = constrained
        self._positions: list[dict[str, np.ndarray]] = []
        self._values: list[dict[str, np.ndarray]] = []

    def add(self, positions: dict[str, np.ndarray]) -> None:
        """Add a chunk of transitions."""
        self._positions.append(positions)

    @property
    def names(self) -> list[str]:
        """The unconstrained variables, and those that the user knows."""
        return list(dict.fromkeys([*self._positions[0], *self._constrained.names]))

    def values(self, name: str, chain: int) -> np.ndarray:
        """Return the values of a variable in one chain."""
        if name not in self.names:
            raise KeyError(f"The trace has no {name!r}; it has {', '.join(self.names)}.")
        chunks = self._positions if name in self._positions[0] else self._constrained_chunks()
        return np.concatenate([chunk[name][chain] for chunk in chunks])

    def _constrained_chunks(self) -> list[dict[str, np.ndarray]]:
        self._values += map(self._constrained, self._positions[len(self._values) :])
        return self._values


class ChainTrace:
    """The draws of one chain so far, those of the warm-up, too.

    Attributes
    ----------
    chain
        The number of the chain.
    """

    def __init__(self, chain: int, length: int, seen: PositionsSoFar):
        self.chain, self._length, self._seen = chain, length, seen

    @property
    def varnames(self) -> list[str]:
        """The variables that `get_values` knows: unconstrained ones, and those of the result."""
        return self._seen.names

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"<{len(self)} draws of chain {self.chain}: {', '.join(self.varnames)}>"

    def get_values(self, varname: str, burn: int = 0, thin: int = 1) -> np.ndarray:
        """Return the draws of a variable from `burn` on, each `thin`-th of them."""
        return self._seen.values(varname, self.chain)[: len(self)][burn::thin]
