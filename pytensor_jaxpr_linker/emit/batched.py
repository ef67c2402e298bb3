"""`jax.vmap` of the Jaxpr of one element, for a core Op whose rule takes no batch axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.base.errors import CannotEmit
from pytensor_jaxpr_linker.base.rules import InnerGraph, Rule, find_rule
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.jaxpr.rule_results import checked_results


def core_node(node: Apply) -> Apply:
    """Return the node that a `Blockwise` repeats."""
    return node.op._create_dummy_core_node(node.inputs)


def find_core_rule(op: Op) -> Rule | None:
    """Return the rule for a core node of `op`: its own, or that of its inner graph, since a core Op is not inlined."""
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
    passed = [
        prims.broadcast_to(b, operands[i], (*batch, *operands[i].aval.shape[n:]))
        if is_repeated
        else prims.squeeze(b, operands[i], tuple(range(n)))
        for i, is_repeated in zip(atoms, repeated, strict=True)
    ]
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
