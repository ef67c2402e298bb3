"""Ops whose only implementation is somebody else's JAX function: the one exception to emitting without a trace.

PyTensor lets libraries register a JAX function for their Op, and users wrap one as an Op. Such a function is traced
once per specialization, and its Jaxpr becomes one call.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import jax
import numpy as np
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.random.type import RandomType

from pytensor_jaxpr_linker.base.rules import Rule
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.rule_results import fits, output_name
from pytensor_jaxpr_linker.plan.breaks import host_reason

logger = logging.getLogger("pytensor_jaxpr_linker")

_logged: set[type] = set()


def leaf_rule(node: Apply) -> Rule | None:
    """Return the rule that traces a third party's JAX function, or None, also for an Op on the host by choice."""
    if host_reason(node.op) is not None:
        return None
    return LEAF_RULE if third_party_function(node.op) is not None else None


def is_traced_leaf(rule: Rule | None) -> bool:
    """Return whether a rule traces."""
    return rule is LEAF_RULE


def third_party_function(op: Op) -> Any:
    """Return the factory of an Op's JAX function, called as ``make(op, node=..., storage_map=...)``, or None.

    Reading PyTensor's registry before anyone has imported it would only set ``jax_enable_x64``: it has no third-party
    entry yet.
    """
    ops = sys.modules.get("pytensor.link.jax.ops")
    is_jax_op = ops is not None and isinstance(op, ops.JAXOp)
    registry = sys.modules.get("pytensor.link.jax.dispatch.basic")
    if registry is not None and hasattr(registry, "jax_funcify"):
        make = registry.jax_funcify.dispatch(type(op))
        if not str(getattr(make, "__module__", "")).startswith("pytensor.link.jax"):
            return make
    return (lambda op, **kwargs: op.perform_jax) if is_jax_op else None


def refuse_leaf(node: Apply) -> str | None:
    has_generator = any(isinstance(v.type, RandomType) for v in (*node.inputs, *node.outputs))
    return "its JAX function expects another kind of random generator than a key" if has_generator else None


def emit_leaf(op: Op, node: Apply, b: JaxprBuilder, *operands: Any) -> Any:
    """Trace the Op's JAX function and call its Jaxpr."""
    make = third_party_function(op)
    if type(op) not in _logged:
        _logged.add(type(op))
        logger.info("%s has no emission rule; the JAX function registered for it is traced", type(op).__name__)
    values = [concrete(b, x) for x in operands]
    traced = [i for i, value in enumerate(values) if value is None and operands[i] is not None]

    with jax.enable_x64(True):
        function = make(op, node=node, storage_map=None)

        def call(*xs: Any) -> Any:
            arguments = list(values)
            for i, x in zip(traced, xs, strict=True):
                arguments[i] = x
            return function(*arguments)

        avals = [jax.ShapeDtypeStruct(operands[i].aval.shape, operands[i].aval.dtype) for i in traced]
        jaxpr = jax.make_jaxpr(call)(*avals)
    if len(jaxpr.out_avals) != len(node.outputs):
        found, declared = len(jaxpr.out_avals), len(node.outputs)
        raise TypeError(f"the JAX function of {op} returned {found} outputs, but it has {declared}")
    atoms: list[Atom] = prims.closed_call(b, jaxpr, [operands[i] for i in traced])
    results = [prims.convert(b, x, v.type.dtype) for x, v in zip(atoms, node.outputs, strict=True)]
    for x, v in zip(results, node.outputs, strict=True):
        if not fits(v.type, x.aval):
            what = f"an array of shape {x.aval.shape} for {output_name(v)}"
            raise TypeError(f"the JAX function of {op} returned {what}, a {v.type}")
    return results


def concrete(b: JaxprBuilder, operand: Any) -> Any:
    """Return the value of a constant operand as PyTensor's JAX backend passes it, or None for a computed one."""
    if not hasattr(operand, "aval"):  # None or a slice
        return operand
    value = b.known(operand)
    if value is None:
        return None
    return value.item() if np.ndim(value) == 0 else jax.device_put(value)


LEAF_RULE = Rule(emit_leaf, lambda node: (), refuse_leaf)
