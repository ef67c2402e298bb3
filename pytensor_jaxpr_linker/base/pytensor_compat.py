"""Everything that differs between PyTensor releases: the conditional Ops. No other module asks for a PyTensor version."""

from __future__ import annotations

from pytensor.graph.op import Op

try:
    from pytensor.conditional.op import IfElse, LazyIfElse
except ModuleNotFoundError:  # older releases have one conditional Op
    from pytensor.ifelse import IfElse  # type: ignore[no-redef]

    class LazyIfElse(Op):  # type: ignore[no-redef]
        """Stands in where PyTensor has none; no graph contains it."""


__all__ = ["IfElse", "LazyIfElse"]
