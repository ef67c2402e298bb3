"""PyTensor's scalar Ops, found in its modules."""

from typing import Any

import pytensor.scalar.basic as ps
import pytensor.scalar.math as psm
from pytensor.tensor.math import MulWithoutZeros


def ops_of(*modules: Any) -> dict[str, ps.ScalarOp]:
    """Return one Op of each class that modules define, and each cast, by name."""
    ops = [op for module in modules for op in vars(module).values() if isinstance(op, ps.ScalarOp)]
    return {(op.name if isinstance(op, ps.Cast) else type(op).__name__): op for op in reversed(ops)}


OPS = ops_of(ps, psm) | {"MulWithoutZeros": MulWithoutZeros(ps.upcast_out, name="mul_without_zeros")}
