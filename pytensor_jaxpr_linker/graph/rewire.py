"""Copies of nodes that read other operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytensor.graph.basic import Apply, Variable


def rewired(node: Apply, replaced: Mapping[Variable, Variable]) -> Apply:
    """Return a node on what replaced its operands: a copy, or itself if nothing did."""
    operands = [replaced.get(v, v) for v in node.inputs]
    if all(a is b for a, b in zip(operands, node.inputs, strict=True)):
        return node
    return copied_onto(node, operands)


def copied_onto(node: Apply, operands: Sequence[Variable]) -> Apply:
    """Return a copy of a node that reads other operands, which hold the same values.

    PyTensor makes nodes like `Alloc` anew, unless it is told to be strict: it evaluates their lengths as far back as the
    graph goes, which would take quadratic time.
    """
    is_same_type = all(a.type == b.type for a, b in zip(operands, node.inputs, strict=True))
    return node.clone_with_new_inputs(list(operands), strict=is_same_type)
