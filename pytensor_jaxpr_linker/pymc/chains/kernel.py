"""A Markov chain as a pair of JAX functions, which all samplers that are JAX programs give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Kernel(NamedTuple):
    """A Markov chain that adapts itself.

    The arguments of which it is made may be inputs of programs: it is made where its functions are traced.
    """

    start: Callable[[Any, Any, Any], Any]
    """Maps data, a key and a position to the state of a chain."""
    transition: Callable[[Any, Any], tuple[Any, tuple[dict, dict]]]
    """Maps data and a state to the new state, and the position and statistics of this draw."""
    has_warmup: bool = True
    """Whether the first transitions, as many as ``tune``, adapt the chain, so are not kept. Else `start` adapts it."""
    is_ensemble: bool = False
    """Whether both functions take all chains at once, along a first axis of keys, positions, states and draws."""
    first_evaluates: bool = False
    """Whether the first transition stays where the chain starts, and gives it the log density and its gradient; it is neither warm-up nor a draw. Then
    one program has the model: XLA would compile it once more for a `start` that evaluates it."""


class AboutChain(NamedTuple):
    """What is known of a chain when its start has been traced.

    Attributes
    ----------
    has_warmup, first_evaluates
        Those of its kernel.
    tuning
        How many steps of the start are left to the function that tunes.
    results
        How many arrays, the first ones of a state, are left when it is tuned.
    """

    has_warmup: bool
    first_evaluates: bool
    tuning: int
    results: int
