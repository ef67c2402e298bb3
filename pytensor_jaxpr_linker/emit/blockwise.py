"""`Blockwise`, which repeats a core Op over leading axes.

A rule with ``batched=True`` takes operands with equal leading batch axes, or none. Of any other rule the Jaxpr of one
element is built, and batched as `jax.vmap` does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.blockwise import Blockwise

from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.base.errors import CannotEmit
from pytensor_jaxpr_linker.base.rules import InnerGraph, Rule, emits, find_rule
from pytensor_jaxpr_linker.emit.indexing import broadcast_shapes
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.jaxpr.rule_results import checked_results


def core_op(node: Apply) -> Any:
    """Return the Op of a node, or of a `Blockwise` its core Op."""
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
    """Broadcast the operands' batch axes, then apply the core Op's rule: to the batch, or to each element."""
    n = op.batch_ndim(node)
    batch = batch_shape(node, n, xs)
    rule: Any = find_core_rule(op.core_op)
    if not rule.batched:
        return emit_batch(b, rule, node, batch, inner, xs)
    operands = [x if isinstance(x, np.ndarray) else prims.broadcast_to(b, x, (*batch, *x.aval.shape[n:])) for x in xs]
    return rule.emit(op.core_op, node, b, *operands if rule.inner is None else (inner, *operands))


def batch_shape(node: Apply, n: int, xs: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the broadcast shape of `n` axes; a ValueError if lengths differ, or an undeclared 1 meets another."""
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


# -- rules that take one element ---------------------------------------------------------------------------------------


def core_node(node: Apply) -> Apply:
    """Return the node that a `Blockwise` repeats."""
    return node.op._create_dummy_core_node(node.inputs)


def find_core_rule(op: Op) -> Rule | None:
    """Return the rule for a core node of `op`: its own, or its inner graph's, since a core Op is not inlined."""
    return GRAPH_RULE if (rule := find_rule(op)) is None and isinstance(op, OpFromGraph) else rule


GRAPH_RULE = Rule(
    lambda op, node, b, inner, *operands: inner[0](b, operands),
    static=lambda node: (),
    refuse=lambda node: None,
    inner=lambda node: [InnerGraph(node.op.fgraph, "in its inner graph")],
)


def emit_batch(
    b: JaxprBuilder, rule: Rule, node: Apply, batch: Shape, inner: Sequence[Any], operands: Sequence[Any]
) -> list[Atom]:
    """Emit a `Blockwise`'s core Op for each element of a batch; an operand that the whole batch shares is not repeated.

    Raises
    ------
    CannotEmit
        If a static operand differs within the batch: the shapes of the results would differ, too.
    """
    core, n = core_node(node), len(batch)
    operands = [one_of_all(x, n) if isinstance(x, np.ndarray) else x for i, x in enumerate(operands)]
    atoms = [i for i, x in enumerate(operands) if hasattr(x, "aval")]
    repeated = [any(k != 1 for k in operands[i].aval.shape[:n]) for i in atoms]
    passed = []
    for x, is_repeated in zip([operands[i] for i in atoms], repeated, strict=True):
        whole = (*batch, *x.aval.shape[n:])
        passed.append(prims.broadcast_to(b, x, whole) if is_repeated else prims.squeeze(b, x, range(n)))
    count = len(b.checks)
    child, taken = b.sub_jaxpr([b.aval(operands[i].aval.shape[n:], operands[i].aval.dtype) for i in atoms])
    values = dict(zip(atoms, taken, strict=True))
    given = [values.get(i, x) for i, x in enumerate(operands)]
    results = rule.emit(core.op, core, child, *given if rule.inner is None else (inner, *given))
    results = [*checked_results(rule, core, given, results)]
    has_checks = len(b.checks) > count
    jaxpr = child.build([*results, child.check_code()] if has_checks else results)
    for size in reversed(batch):
        jaxpr, _ = jax_compat.batch_jaxpr(jaxpr, size, repeated, every_result=True)
    outputs = prims.closed_call(b, jaxpr, passed)
    if has_checks:
        # The largest of no codes is the smallest integer.
        code = prims.reduce_max(b, outputs.pop(), tuple(range(n)))
        b.check_code_of(prims.max_(b, code, b.constant(np.int32(0))))
    return outputs


def one_of_all(value: np.ndarray, n: int) -> np.ndarray:
    """Return a static operand without its `n` batch axes, along which it must not differ."""
    elements = value.reshape((math.prod(value.shape[:n]), *value.shape[n:]))
    if len(elements) == 0 or (elements != elements[0]).any():
        raise CannotEmit("a length or a bound differs within the batch")
    return elements[0]
