"""Errors for models that a method can't sample, with the remedies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import jax
import numpy as np
import pymc as pm
from pytensor.graph.basic import Variable

from pytensor_jaxpr_linker.base.errors import GraphBreakError
from pytensor_jaxpr_linker.frontend.pregrad import NO_GRADIENT, why_no_gradient
from pytensor_jaxpr_linker.pymc.functions.density import LogDensity, check_steps
from pytensor_jaxpr_linker.pymc.functions.graph import model_mode
from pytensor_jaxpr_linker.report.explain import explain


def check_variables(model: pm.Model, method: str, remedy: str) -> None:
    """Raise an error, with the remedy, for discrete variables, and for the variables of `check_steps`."""
    if model.discrete_value_vars:
        names = ", ".join(repr(v.name) for v in model.discrete_value_vars)
        raise ValueError(
            f"{method} samples continuous variables only, and {names} is discrete: {remedy}, or sum over it"
            " (pm.Mixture, or sample(marginalize=True) with pymc-extras)."
        )
    check_steps(model)


@contextmanager
def named_gradients(model: pm.Model, remedy: str) -> Iterator[None]:
    """Add the Op without a gradient, and the model's variables that it depends on, to PyTensor's errors."""
    try:
        yield
    except GraphBreakError:  # a NotImplementedError, too
        raise
    except NO_GRADIENT as error:
        reason = why_no_gradient(cast(Variable, model.logp()), model.continuous_value_vars, remedy)
        if not reason:
            raise
        raise NotImplementedError(reason) from error


def one_program[T](model: pm.Model, method: str, gradient: str, make: Callable[[], T], remedy: str) -> T:
    """Call `make`, which compiles the log density. A `GraphBreakError` gets the remedies and a note on the breaks."""
    try:
        return make()
    except GraphBreakError as error:
        add_remedies(error, model, method, gradient, remedy)
        add_report(error, model)
        raise


def add_remedies(error: GraphBreakError, model: pm.Model, method: str, gradient: str, remedy: str) -> None:
    """Add other ways to draw from the model to the message of an error: `remedy`, and JAX's derivative if it exists."""
    by_jax = "give gradient='jax', so that JAX differentiates it; or " if gradient != "jax" and by_rules(model) else ""
    without = ", without gradient='jax'" if gradient == "jax" else ""
    needs = f"{method} needs a log density that is one XLA program with its gradient"
    error.args = (f"{error}\n{needs}. To do: {by_jax}{remedy}{without}.",)


def add_report(error: GraphBreakError, model: pm.Model) -> None:
    """Add to an error a note that explains the breaks."""
    error.add_note(str(explain([model.logp(), model.dlogp()], mode=model_mode(model))))


def by_rules(model: pm.Model) -> bool:
    """Return whether JAX differentiates the log density by the emission rules of its Ops."""
    try:
        with jax.enable_x64(True):
            logp = LogDensity(model, "jax")
            vector = jax.ShapeDtypeStruct((logp.size,), np.dtype("float64"))
            jax.eval_shape(jax.grad(lambda x: logp(logp.unravel(x)).astype("float64")), vector)
    except Exception:  # of rules, and of JAX's transformations
        return False
    return True
