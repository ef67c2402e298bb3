"""How else a model can be sampled whose log density, or its gradient, is no part of one XLA program."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import pymc as pm

from pytensor_jaxpr_linker.base.errors import GraphBreakError
from pytensor_jaxpr_linker.pymc.functions.density import LogDensity
from pytensor_jaxpr_linker.pymc.functions.graph import model_mode
from pytensor_jaxpr_linker.report.explain import explain


def one_program[T](model: pm.Model, method: str, gradient: str, make: Callable[[], T], remedy: str) -> T:
    """Call `make`, which compiles the log density; a `GraphBreakError` gets the remedies and a note that explains the breaks."""
    try:
        return make()
    except GraphBreakError as error:
        add_remedies(error, model, method, gradient, remedy)
        add_report(error, model)
        raise


def add_remedies(error: GraphBreakError, model: pm.Model, method: str, gradient: str, remedy: str) -> None:
    """Add to the message of an error what else draws from the model: `remedy`, and JAX's derivative if there is one."""
    by_jax = "give gradient='jax', by which JAX differentiates it; or " if gradient != "jax" and by_rules(model) else ""
    without = ", without gradient='jax'" if gradient == "jax" else ""
    error.args = (
        f"{error}\n{method} needs a log density that is one XLA program with its gradient. To do: {by_jax}{remedy}{without}.",
    )


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
