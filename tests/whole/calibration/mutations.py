"""Errors that calibration has to find: each is one change of the source of a sampler."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import pymc as pm

from pytensor_jaxpr_linker.pymc.kernels import trajectory


@contextmanager
def mutated(function: Callable, old: str, new: str) -> Iterator[None]:
    """Replace a function, in every module that has it, by one with another source."""
    name, source = function.__name__, inspect.getsource(function)
    assert source.count(old) == 1, f"{name} has not once {old!r}"
    space: dict[str, Callable] = {}
    exec(
        "from __future__ import annotations\n" + source.replace(old, new), vars(sys.modules[function.__module__]), space
    )
    with ExitStack() as stack:
        for module in [m for m in list(sys.modules.values()) if getattr(m, "__dict__", {}).get(name) is function]:
            stack.enter_context(patch.object(module, name, space[name]))
        yield


@contextmanager
def without_jacobian() -> Iterator[None]:
    """Leave out the Jacobian of the transforms from the model's log density."""
    logp = pm.Model.logp

    def without(self, vars=None, jacobian=True, sum=True):
        return logp(self, vars, False, sum)

    with patch.object(pm.Model, "logp", without):
        yield


#: By what they change.
MUTATIONS: dict[str, Callable] = {
    "the last half of a step is 20 % too long": lambda: mutated(
        trajectory.leapfrog, "midway + 0.5 * step_size * force", "midway + 0.6 * step_size * force"
    ),
    "backwards steps keep the sign of the momentum": lambda: mutated(
        trajectory.doubled, "(path.left, -step_size)", "(path.left, step_size)"
    ),
    "the first force is that of the mass matrix before": lambda: mutated(
        trajectory.nuts_transition, "to_force(factor, state.logdensity_grad)", "state.logdensity_grad"
    ),
    "the Jacobian of transforms is left out": without_jacobian,
}
