"""Why samplers that follow the gradient can't move some of a model's variables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymc as pm
from pymc.step_methods import NUTS, STEP_METHODS
from pytensor.gradient import NullTypeGradError, grad
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors, toposort

from pytensor_jaxpr_linker.base.errors import GraphBreakError, describe_node, user_line

#: What PyTensor raises where there is no gradient.
NO_GRADIENT = (NotImplementedError, NullTypeGradError)

#: The remedy for a model without a gradient.
WITHOUT_GRADIENTS = "use sample(sampler='pymc'), which has steps without gradients"


def check_steps(model: pm.Model) -> None:
    """Raise an error for continuous variables that PyMC would not move by NUTS, as those of BART: their log density is no prior's."""
    steps = {}
    for value in model.continuous_value_vars:
        rv = model.values_to_rvs[value]
        # As `pymc.sample` chooses, which first builds the gradient for each variable alone: many times the work of one for all.
        step = max(STEP_METHODS, key=lambda step: step._competence(rv, True))
        if not issubclass(step, NUTS):
            steps[rv.name] = step.__name__
    if steps:
        assigned = ", ".join(f"{name!r} by {step}" for name, step in steps.items())
        raise ValueError(
            f"PyMC samples {assigned}, a step of its own: the log density of such a variable need not be its prior's, so methods that"
            " follow the log density would be wrong. Use sample(sampler='pymc'), which runs that step."
        )


def check_variables(model: pm.Model, method: str, remedy: str) -> None:
    """Raise an error, with the remedy, for variables that a method can't move along the gradient: discrete ones, and see `check_steps`."""
    if model.discrete_value_vars:
        names = ", ".join(repr(v.name) for v in model.discrete_value_vars)
        raise ValueError(
            f"{method} samples continuous variables only, and {names} is discrete: {remedy}, or sum over it"
            " (sample(marginalize=True), or pymc_extras.marginalize)."
        )
    check_steps(model)


@contextmanager
def named_gradients(model: pm.Model, remedy: str) -> Iterator[None]:
    """Name the Op that has no gradient, and the model's variables that it depends on: PyTensor's errors name the Op's class at most."""
    try:
        yield
    except GraphBreakError:  # a NotImplementedError, too
        raise
    except NO_GRADIENT as error:
        found = without_gradient(model)
        if found is None:
            raise
        names, node = found
        raise NotImplementedError(
            f"The log density has no gradient with respect to {', '.join(map(repr, names))}, since {describe_node(node)} has none:"
            f" {remedy}, or give the Op a gradient (its method pullback).{user_line(node)}"
        ) from error


def without_gradient(model: pm.Model) -> tuple[list[str], Apply] | None:
    """Return the first node of the log density that has no gradient, and the continuous variables that it depends on."""
    logp: Any = model.logp()
    values = model.continuous_value_vars
    reached = set(ancestors_between(logp, values))
    for node in toposort([logp]):
        inputs = [v for v in node.inputs if v in reached]
        outputs = [v for v in node.outputs if v in reached]
        if inputs and not node_has_gradient(outputs, inputs):
            behind = set(ancestors(inputs))
            return [str(v.name) for v in values if v in behind], node
    return None


def ancestors_between(output: Variable, inputs: list[Any]) -> set[Variable]:
    """Return the floating variables that depend on an input and that the output depends on, and these inputs."""
    reached = set(inputs)
    for node in toposort([output]):
        if not reached.isdisjoint(node.inputs):
            reached.update(v for v in node.outputs if getattr(v.type, "dtype", "").startswith("float"))
    return reached


def node_has_gradient(outputs: list[Variable], inputs: list[Variable]) -> bool:
    """Tell whether PyTensor defines a gradient of a node's outputs with respect to its inputs, which may be zero."""
    known: Any = {v: v * 0 + 1 for v in outputs}  # type: ignore[operator]  # also of variables with named dimensions
    try:
        grad(None, inputs, known_grads=known, disconnected_inputs="ignore")
    except NO_GRADIENT:
        return False
    return True
