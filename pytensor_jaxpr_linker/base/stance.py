"""A stance: what all functions do when they are called, whatever their options say."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from typing import Literal

from pytensor_jaxpr_linker.base.contexts import bound, named_context

type Stance = Literal["default", "fail_on_recompile", "force_host"]

STANCES = ("default", "fail_on_recompile", "force_host")

#: The stance of this thread, None for the default: one comparison for each call.
current_stance: ContextVar[str | None] = ContextVar("pytensor_jaxpr_linker_stance", default=None)


@named_context
def stance(kind: Stance) -> Iterator[None]:
    """Choose what functions of mode JAXPR do that are called inside a ``with`` block, in this thread.

    Parameters
    ----------
    kind : {"default", "fail_on_recompile", "force_host"}
        ``"fail_on_recompile"`` raises a `RecompileError`, which says what is new, where a program would be compiled, also
        the first one of a function. ``"force_host"`` runs every node by PyTensor's own Python implementation, without XLA, to
        find out whether an error or a number comes from the compiled program; random draws are those of NumPy then.

    Examples
    --------
    >>> import pytensor, pytensor.tensor as pt
    >>> import pytensor_jaxpr_linker as pjl
    >>> x = pt.vector("x", dtype="float64")
    >>> f = pytensor.function([x], x.sum(), mode="JAXPR")
    >>> f([1.0, 2.0])
    array(3.)
    >>> with pjl.stance("fail_on_recompile"):
    ...     f([1.0, 4.0])
    array(5.)
    """
    if kind not in STANCES:
        raise ValueError(f"the stance must be 'default', 'fail_on_recompile' or 'force_host', not {kind!r}")
    with bound(current_stance, None if kind == "default" else kind):
        yield
