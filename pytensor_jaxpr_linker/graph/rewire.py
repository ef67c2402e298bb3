"""Copies of nodes that read other operands."""

from __future__ import annotations

from collections.abc import Sequence

from pytensor.graph.basic import Apply, Variable


def copied_onto(node: Apply, operands: Sequence[Variable]) -> Apply:
    """Return a copy of a node that reads other operands, which hold the same values.

    A strict copy keeps the declared types. Without `strict`, PyTensor makes nodes like `Alloc` anew and evaluates their lengths
    through the whole graph before them, which takes quadratic time.
    """
    is_same_type = all(a.type == b.type for a, b in zip(operands, node.inputs, strict=True))
    return node.clone_with_new_inputs(list(operands), strict=is_same_type)
