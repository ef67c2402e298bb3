"""Assertions."""

from __future__ import annotations

from pytensor.raise_op import CheckAndRaise

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.scalar import numpy_astype


@emits(CheckAndRaise)
def emit_CheckAndRaise(op, node, b, x, *conditions):
    """Pass the value on; the caller raises the Op's exception if a condition was false."""
    for condition in conditions:
        b.check(numpy_astype(b, condition, bool), lambda: op.exc_type(op.msg), node)
    return x
