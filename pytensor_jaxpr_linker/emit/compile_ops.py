"""Ops that pass an operand on, or copy it."""

from __future__ import annotations

from pytensor.compile.ops import DeepCopyOp, TypeCastingOp

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.jaxpr import prims


@emits(TypeCastingOp)
def emit_TypeCastingOp(op, node, b, x):
    """Pass the operand on: these Ops change how PyTensor sees it, not its value."""
    return x


@emits(DeepCopyOp)
def emit_DeepCopyOp(op, node, b, x):
    """Copy an array."""
    return prims.copy(b, x)
