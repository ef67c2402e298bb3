"""Why samplers that follow the gradient can't move some of a model's variables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pymc as pm
from pymc.step_methods import NUTS, STEP_METHODS
from pytensor.graph.basic import Variable

from pytensor_jaxpr_linker.base.errors import GraphBreakError
from pytensor_jaxpr_linker.frontend.pregrad import NO_GRADIENT, why_no_gradient


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
        reason = why_no_gradient(cast(Variable, model.logp()), model.continuous_value_vars, remedy)
        if not reason:
            raise
        raise NotImplementedError(reason) from error
