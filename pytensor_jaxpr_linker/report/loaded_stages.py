"""The stages of a function that was loaded from a file: it has a program, and no graph of PyTensor's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax

from jaxpr_artifact import LoadedFunction


class LoadedStages:
    """The stages of a function that was loaded from a file, like `Stages`; each is made when it is first asked for.

    `traced` is JAX's `jax.stages.Traced`.
    """

    def __init__(self, loaded: LoadedFunction, args: Sequence[Any]):
        self._name = loaded.header.name
        self.traced = loaded.trace(*args)

    @cached_property
    def lowered(self) -> Any:
        """JAX's `jax.stages.Lowered`."""
        with jax.enable_x64(True):
            return self.traced.lower()

    @cached_property
    def compiled(self) -> Any:
        """JAX's `jax.stages.Compiled`."""
        with jax.enable_x64(True):
            return self.lowered.compile()

    @property
    def jaxpr(self) -> list[Any]:
        """The Jaxpr, in which the loaded program is one equation."""
        return [self.traced.jaxpr]

    @property
    def stablehlo(self) -> list[str]:
        """The StableHLO text that XLA gets."""
        return [self.lowered.as_text()]

    @property
    def hlo(self) -> list[str]:
        """The optimized HLO text."""
        return [self.compiled.as_text() or ""]

    @property
    def cost(self) -> list[dict[str, float]]:
        """XLA's cost analysis."""
        return [dict(self.compiled.cost_analysis() or {})]

    def __repr__(self) -> str:
        return f"Stages of {self._name}, which was loaded from a file\n  see .jaxpr, .stablehlo, .hlo, .cost"
