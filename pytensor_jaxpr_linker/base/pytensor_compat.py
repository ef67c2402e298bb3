"""Everything that differs between PyTensor releases. No other module asks for a PyTensor version."""

from __future__ import annotations

from typing import Any

from pytensor.assumptions import core
from pytensor.graph.op import Op

try:
    from pytensor.conditional.op import IfElse, LazyIfElse
except ModuleNotFoundError:  # older releases have one conditional Op
    from pytensor.ifelse import IfElse  # type: ignore[no-redef]

    class LazyIfElse(Op):  # type: ignore[no-redef]
        """Stands in where PyTensor has none; no graph contains it."""


__all__ = ["INFER_REGISTRIES", "IfElse", "LazyIfElse"]

#: The tables of the functions by which rewrites infer what a matrix is: diagonal, positive definite. Older releases have fewer.
INFER_REGISTRIES: list[dict[Any, Any]] = [
    getattr(core, name)
    for name in ("ASSUMPTION_INFER_REGISTRY", "CLIENT_INFER_REGISTRY", "CONSTANT_INFER_REGISTRY")
    if hasattr(core, name)
]
