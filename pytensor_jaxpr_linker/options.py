"""The options of a linker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """How mode JAXPR compiles and calls.

    Parameters
    ----------
    results : {"numpy", "jax"}
        Whether functions return NumPy arrays, as PyTensor promises, or JAX arrays that stay on the device.
    checks : bool
        Whether index bounds, `Assert`, `CheckAndRaise` and failed factorizations raise. Without, a read out of bounds gives
        NaN, and the rest passes unnoticed.
    specializations : int
        How many values of static inputs (such as `n` in ``pt.arange(n)``) a function keeps programs for.

    on_break : {"warn", "log", "ignore", "raise"}
        What to do when a graph can't be one program: warn, write to the logger ``pytensor_jaxpr_linker.breaks``, nothing, or
        raise one `GraphBreakError` that lists every break.

    Examples
    --------
    >>> import pytensor, pytensor.tensor as pt
    >>> from pytensor.compile.mode import Mode
    >>> from pytensor_jaxpr_linker import JaxprLinker, Options
    >>> mode = Mode(linker=JaxprLinker(Options(results="jax")), optimizer="fast_run")
    >>> x = pt.vector("x", dtype="float64")
    >>> type(pytensor.function([x], x * 2, mode=mode)([1.0])).__name__
    'ArrayImpl'
    """

    results: Literal["numpy", "jax"] = "numpy"
    checks: bool = True
    specializations: int = 64
    on_break: Literal["warn", "log", "ignore", "raise"] = "warn"

    def __post_init__(self) -> None:
        if self.results not in ("numpy", "jax"):
            raise ValueError(f"results must be 'numpy' or 'jax', not {self.results!r}")
        if self.on_break not in ("warn", "log", "ignore", "raise"):
            raise ValueError(f"on_break must be 'warn', 'log', 'ignore' or 'raise', not {self.on_break!r}")
        if self.specializations < 1:
            raise ValueError(f"specializations must be at least 1, not {self.specializations}")
