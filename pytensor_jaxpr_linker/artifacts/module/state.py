"""The globals of a module, and their values in one instance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from pytensor.graph.basic import Variable

from jaxpr_artifact.header import Argument
from jaxpr_artifact.state import State
from pytensor_jaxpr_linker.artifacts.module.declarations import is_key_type
from pytensor_jaxpr_linker.base.array_types import in_order
from pytensor_jaxpr_linker.base.random_keys import keys_of


class Global(NamedTuple):
    """A shared variable as part of a module."""

    name: str
    variable: Variable
    cell: list
    is_mutable: bool

    def first_value(self) -> np.ndarray:
        """Return a copy of the value that PyTensor has now; that of a generator is the key that its next bits give."""
        value = self.cell[0]
        if value is None:
            raise TypeError(f"{self.name} is updated and has no value: make it a shared variable, or an argument.")
        if is_key_type(self.variable):
            return np.array(keys_of(value))
        return np.array(in_order(self.variable.type, value), self.variable.type.dtype)


class Values(State):
    """The values of globals in one instance of a module. Any number of threads may use it."""

    def __init__(self, known: Iterable[Global]):
        self.globals = {g.name: g for g in known}
        first = {name: g.first_value() for name, g in self.globals.items()}
        arguments = [
            Argument(name, x.dtype.name, x.shape, is_key_type(self.globals[name].variable)) for name, x in first.items()
        ]
        with jax.enable_x64(True):
            super().__init__(arguments, [jax.device_put(x) for x in first.values()])

    def is_mutable(self, name: str) -> bool:
        """Return whether a global may change."""
        return self.globals[name].is_mutable

    def arrays(self) -> dict[str, np.ndarray]:
        """Return copies of the values by name."""
        return {name: np.array(array) for name, array in self.snapshot().items()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace all values by those of another instance.

        Raises
        ------
        TypeError
            If the other one had other globals.
        """
        mine, theirs = (
            {name: f"{x.dtype}{list(x.shape)}" for name, x in known.items()} for known in (self.snapshot(), arrays)
        )
        if mine != theirs:
            names = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
            parts = [
                f"{name} is {theirs.get(name, 'missing')} there and {mine.get(name, 'missing')} here" for name in names
            ]
            raise TypeError(f"The module has other state than the pickled one: {', '.join(parts)}.")
        with jax.enable_x64(True):
            self.replace({name: jax.device_put(array) for name, array in arrays.items()})

    def replace(self, changes: Mapping[str, Any]) -> None:
        """Replace values by results of a program.

        Raises
        ------
        TypeError
            If one has another shape. All keep their values then.
        """
        present = self.snapshot()
        for name, array in changes.items():
            if array.shape != (shape := present[name].shape):
                raise TypeError(
                    f"The state {name} has shape {shape} as long as the module lives; its update has {array.shape}."
                )
        super().replace(changes)

    def _copied(self, name: str, value: Any) -> Any:
        known = self.globals[name]
        if not known.is_mutable:
            remedy = f"Module.state({known.variable.name or name}, mutable=True) makes it state that can be set."
            raise TypeError(f"{name} is a constant of the module: none of its functions updates it. {remedy}")
        return super()._copied(name, keys_of(in_order(known.variable.type, value)))
