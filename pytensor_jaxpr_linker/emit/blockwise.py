"""`Blockwise`, which repeats a core Op over leading axes.

A rule with ``batched=True`` takes operands with equal leading batch axes, or none. `batched` applies any other rule to each element.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.blockwise import Blockwise

from pytensor_jaxpr_linker.base.rules import InnerGraph, Rule, emits
from pytensor_jaxpr_linker.emit.batched import core_node, emit_batch, find_core_rule
from pytensor_jaxpr_linker.emit.indexing import broadcast_shapes
from pytensor_jaxpr_linker.jaxpr import prims


def core_op(node: Apply) -> Op:
    """Return the Op of a node, or the one that its `Blockwise` repeats."""
    return node.op.core_op if isinstance(node.op, Blockwise) else node.op


def core_of(node: Apply) -> tuple[Rule | None, Apply]:
    """Return the core Op's rule and the node to ask it for: the `Blockwise`'s node if the rule is batched."""
    rule = find_core_rule(node.op.core_op)
    return rule, node if rule is not None and rule.batched else core_node(node)


def is_batched_by_jax(node: Apply) -> bool:
    """Return whether a node is a `Blockwise` whose core Op has a rule for one element only, such as a `Scan`."""
    return isinstance(node.op, Blockwise) and (rule := find_core_rule(node.op.core_op)) is not None and not rule.batched


def refuse_blockwise(node: Apply) -> str | None:
    rule, asked = core_of(node)
    if rule is None:
        return f"no emission rule is registered for the core Op {node.op.core_op}"
    return rule.refuse(asked)


def static_core_operands(node: Apply) -> Iterable[int]:
    """Return which operands of a `Blockwise` the rule of its core Op must know."""
    rule, asked = core_of(node)
    return () if rule is None else rule.static(asked)


def inner_graphs(node: Apply) -> Sequence[InnerGraph]:
    """Return the inner graphs of the core Op, whose inputs are the operands of the `Blockwise`, too."""
    rule, asked = core_of(node)
    return () if rule is None or rule.inner is None else rule.inner(asked)


@emits(Blockwise, static=static_core_operands, refuse=refuse_blockwise, inner=inner_graphs)
def emit_Blockwise(op, node, b, inner, *xs):
    """Broadcast the batch axes of the operands, then apply the core Op's rule; without a batched one, to each element."""
    n = op.batch_ndim(node)
    batch = batch_shape(node, n, xs)
    rule: Any = find_core_rule(op.core_op)
    if not rule.batched:
        results = emit_batch(b, rule, node, batch, inner, xs)
        return results if len(results) > 1 else results[0]
    operands = [x if isinstance(x, np.ndarray) else prims.broadcast_to(b, x, (*batch, *x.aval.shape[n:])) for x in xs]
    return rule.emit(op.core_op, node, b, *operands if rule.inner is None else (inner, *operands))


def batch_shape(node: Apply, n: int, xs: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the broadcast shape of the first `n` axes; ValueError if lengths differ, or a 1 not declared broadcastable meets another."""
    shapes = [(x.shape if isinstance(x, np.ndarray) else x.aval.shape)[:n] for x in xs]
    result = broadcast_shapes(*shapes)
    for variable, shape in zip(node.inputs, shapes, strict=True):
        if any(k == 1 != out and v != 1 for k, out, v in zip(shape, result, variable.type.shape[:n], strict=True)):
            raise ValueError(
                "Runtime broadcasting not allowed. At least one input has a distinct batch dimension length of 1, but"
                " was not marked as broadcastable.\n"
                "If broadcasting was intended, use `specify_broadcastable` on the relevant input."
            )
    return result
