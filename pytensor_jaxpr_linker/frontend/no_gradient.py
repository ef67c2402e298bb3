"""Finds the Op by which an expression has no gradient: PyTensor's errors name the Op's class at most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytensor.gradient import NullTypeGradError, grad
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors, toposort

from pytensor_jaxpr_linker.base.errors import describe_node, user_line

#: What PyTensor raises where there is no gradient.
NO_GRADIENT = (NotImplementedError, NullTypeGradError)


#: What to do about a model's Op without a gradient.
WITHOUT_GRADIENTS = "use sample(sampler='pymc'), which has steps without gradients"


def why_no_gradient(logp: Variable, values: Sequence[Variable], remedy: str = WITHOUT_GRADIENTS) -> str:
    """Return a sentence that names the Op by which a log density has no gradient, or nothing if each Op has one."""
    found = without_gradient(logp, values)
    if found is None:
        return ""
    names, node = found
    return (
        f"The log density has no gradient with respect to {', '.join(map(repr, names))}, since {describe_node(node)} has none:"
        f" {remedy}, or give the Op a gradient (its method pullback).{user_line(node)}"
    )


def without_gradient(cost: Variable, values: Sequence[Variable]) -> tuple[list[str], Apply] | None:
    """Return the names of the values that the first node without a gradient depends on, and that node."""
    reached = ancestors_between(cost, values)
    for node in toposort([cost]):
        inputs = [v for v in node.inputs if v in reached]
        outputs = [v for v in node.outputs if v in reached]
        if inputs and not node_has_gradient(outputs, inputs):
            behind = set(ancestors(inputs))
            return [str(v.name) for v in values if v in behind], node
    return None


def ancestors_between(output: Variable, inputs: Sequence[Variable]) -> set[Variable]:
    """Return the floating variables that depend on an input and that the output depends on, and these inputs."""
    reached = set(inputs)
    for node in toposort([output]):
        if not reached.isdisjoint(node.inputs):
            reached.update(v for v in node.outputs if getattr(v.type, "dtype", "").startswith("float"))
    return reached


def node_has_gradient(outputs: list[Variable], inputs: list[Variable]) -> bool:
    """Return whether PyTensor defines a gradient of a node's outputs with respect to its inputs, which may be zero."""
    known: Any = {v: v * 0 + 1 for v in outputs}  # type: ignore[operator]  # also of variables with named dimensions
    try:
        grad(None, inputs, known_grads=known, disconnected_inputs="ignore")
    except NO_GRADIENT:
        return False
    return True
