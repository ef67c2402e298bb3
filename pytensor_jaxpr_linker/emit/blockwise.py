"""`Blockwise`, which repeats a core Op over leading axes.

A core rule takes operands with leading batch axes of equal lengths; a node without them is the case of none. Where there is
only a rule without batch axes, `batched` applies it to each element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.math import Dot
from pytensor.tensor.sort import ArgSortOp, SortOp

from pytensor_jaxpr_linker.base.rules import InnerGraph, Refusal, Rule, emits, find_rule
from pytensor_jaxpr_linker.emit.batched import core_node, emit_batch, find_core_rule
from pytensor_jaxpr_linker.emit.math import emit_ArgSortOp, emit_Dot, emit_SortOp
from pytensor_jaxpr_linker.emit.scalar import find
from pytensor_jaxpr_linker.jaxpr import prims

#: The rules of core Ops that take batch axes.
CORE_RULES: dict[type, Callable[..., Any]] = {
    ArgSortOp: emit_ArgSortOp,
    Dot: emit_Dot,
    SortOp: emit_SortOp,
}


def core_rule(
    *op_types: type, static: tuple[int, ...] = (), refuse: Refusal = lambda node: None
) -> Callable[[Callable], Callable]:
    """Register the decorated function for core Ops, alone and inside a `Blockwise`.

    A static operand comes as an array of as many batch axes as the others, of any lengths.
    """

    def register(rule: Callable) -> Callable:
        CORE_RULES.update(dict.fromkeys(op_types, rule))
        return emits(*op_types, static=static, refuse=refuse)(rule)

    return register


def core_op(node: Apply) -> Op:
    """Return the Op of a node, or the one that its `Blockwise` repeats."""
    return node.op.core_op if isinstance(node.op, Blockwise) else node.op


def core_of(node: Apply) -> tuple[Rule | None, Apply]:
    """Return the rule that says what a `Blockwise` refuses and needs static, and the node to ask it for.

    A batched rule is asked for the `Blockwise`'s node, and need not be one of its core Op alone.
    """
    core = node.op.core_op
    return (find_rule(core), node) if find(CORE_RULES, core) is not None else (find_core_rule(core), core_node(node))


def refuse_blockwise(node: Apply) -> str | None:
    """Return why a `Blockwise` can't be emitted, or None."""
    rule, asked = core_of(node)
    if rule is None:
        return None if asked is node else f"no emission rule is registered for the core Op {node.op.core_op}"
    return rule.refuse(asked)


def static_operands(node: Apply) -> Iterable[int]:
    """Return which operands of a `Blockwise` the rule of its core Op must know."""
    rule, asked = core_of(node)
    return () if rule is None else rule.static(asked)


def inner_graphs(node: Apply) -> Sequence[InnerGraph]:
    """Return the inner graphs of the core Op, whose inputs are the operands of the `Blockwise`, too."""
    rule, asked = core_of(node)
    return () if rule is None or rule.inner is None else rule.inner(asked)


@emits(Blockwise, static=static_operands, refuse=refuse_blockwise, inner=inner_graphs)
def emit_Blockwise(op, node, b, inner, *xs):
    """Broadcast the batch axes of the operands, then apply the core Op's rule; without a batched one, to each element."""
    n = op.batch_ndim(node)
    batch = batch_shape(node, n, xs)
    batched = find(CORE_RULES, op.core_op)
    if batched is None and (rule := find_core_rule(op.core_op)) is not None:
        results = emit_batch(b, rule, node, batch, inner, xs)
        return results if len(results) > 1 else results[0]
    operands = [x if isinstance(x, np.ndarray) else prims.broadcast_to(b, x, (*batch, *x.aval.shape[n:])) for x in xs]
    return batched(op.core_op, node, b, *operands)


def batch_shape(node: Apply, n: int, xs: tuple[Any, ...]) -> tuple[int, ...]:
    """Return what the first `n` axes of the operands broadcast to.

    Raises
    ------
    ValueError
        If lengths differ, or if a length of 1 meets another one in a dimension that was not declared broadcastable.
    """
    shapes = [(x.shape if isinstance(x, np.ndarray) else x.aval.shape)[:n] for x in xs]
    result = np.broadcast_shapes(*shapes)
    for variable, shape in zip(node.inputs, shapes, strict=True):
        if any(k == 1 != out and v != 1 for k, out, v in zip(shape, result, variable.type.shape[:n], strict=True)):
            raise ValueError(
                "Runtime broadcasting not allowed. At least one input has a distinct batch dimension length of 1, but"
                " was not marked as broadcastable.\n"
                "If broadcasting was intended, use `specify_broadcastable` on the relevant input."
            )
    return result
