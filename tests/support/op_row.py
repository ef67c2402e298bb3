"""One sample of the Op table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Row(NamedTuple):
    """What to compute, and on what.

    Attributes
    ----------
    name
        What the row is about.
    build
        Makes the expression, or a list of them, of inputs like the values.
    values
        In float64, or of types that stay as they are.
    more
        Further values, on which only the results are compared: special ones, none, numbers.
    has_values
        Whether `more` begins with the values, and others behind them.
    gradient
        Whether JAX's derivative of the equations is compared with PyTensor's.
    single
        Whether it is computed in float32, too; of some Ops PyTensor then returns another dtype than it declares.
    one_program
        Whether there is no break.
    flip
        Whether the values may come in the opposite order, which is the second element of a batch.
    lengths
        The symbolic shape of each input, ``"m,n; n"``. Without it, lengths have different names, but inputs of one shape share theirs.
    where
        What is known about these lengths, as `jax.export.SymbolicScope` takes it.
    refused
        More general lengths that JAX can't do.
    """

    name: str
    build: Callable[..., Any]
    values: tuple[np.ndarray, ...]
    more: tuple[tuple[np.ndarray, ...], ...] = ()
    has_values: bool = False
    gradient: bool = True
    single: bool = True
    one_program: bool = True
    flip: bool = True
    lengths: str = ""
    where: tuple[str, ...] = ()
    refused: str = ""

    @property
    def samples(self) -> tuple[tuple[np.ndarray, ...], ...]:
        """All values, each once."""
        return self.more if self.has_values else (self.values, *self.more)
