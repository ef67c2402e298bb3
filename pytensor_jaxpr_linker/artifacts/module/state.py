"""The globals of a module, and their values in one instance."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from pytensor.graph.basic import Variable

from pytensor_jaxpr_linker.artifacts.module.declarations import is_key_type
from pytensor_jaxpr_linker.artifacts.module.functions import Leaf
from pytensor_jaxpr_linker.artifacts.module.trees import dotted, leaves_like, leaves_of, level, with_leaves
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


class Values:
    """The values of globals in one instance of a module. Any number of threads may use it.

    Each change replaces all values at once: who reads sees those of one update, and an error before leaves the old ones.
    """

    def __init__(self, known: Iterable[Global]):
        self.globals = {g.name: g for g in known}
        self.turn = threading.RLock()  # held from reading to writing: no update is lost
        with jax.enable_x64(True):
            self._arrays = {name: jax.device_put(g.first_value()) for name, g in self.globals.items()}

    def snapshot(self) -> Mapping[str, jax.Array]:
        """Return the values as they are now."""
        return self._arrays

    def replace(self, changes: Mapping[str, Any]) -> None:
        """Replace values by results of a program.

        Raises
        ------
        TypeError
            If one has another shape. All keep their values then.
        """
        for name, array in changes.items():
            if array.shape != (shape := self._arrays[name].shape):
                raise TypeError(
                    f"The state {name} has shape {shape} as long as the module lives; its update has {array.shape}."
                )
        self._arrays = {**self._arrays, **changes}

    def set(self, given: Mapping[str, Any]) -> None:
        """Replace values by those of a caller, if all are like the old ones.

        Raises
        ------
        TypeError
            If one is not, or its global is a constant. All keep their values then.
        """
        with jax.enable_x64(True):
            changes = {name: jax.device_put(np.array(self._taken(name, value))) for name, value in given.items()}
        with self.turn:
            self.replace(changes)

    def _taken(self, name: str, value: Any) -> Any:
        """Return a caller's value as an array."""
        known = self.globals[name]
        if not known.is_mutable:
            remedy = f"Module.state({known.variable.name or name}, mutable=True) makes it state that can be set."
            raise TypeError(f"{name} is a constant of the module: none of its functions updates it. {remedy}")
        return Leaf(name, known.variable, 0, self._arrays[name].shape).taken(value)


class State:
    """State of a module: one global, or a tree of them. `m.params` has the parts ``m.params.w`` or ``m.params["w"]``."""

    def __init__(self, name: str, tree: Any, values: Values):
        self._name, self._tree, self._values = name, tree, values

    def get_value(self) -> Any:
        """Return a copy of the value: an array, or a tree of arrays like the one that the module was made of."""
        arrays = self._values.snapshot()
        return with_leaves(self._tree, iter([np.array(arrays[name]) for _, name in leaves_of(self._tree)]))

    def set_value(self, value: Any) -> None:
        """Set the value, of the dtypes and shapes that it has. A generator is set by a key, or by a NumPy generator."""
        self._values.set({name: x for _, name, x in leaves_like(self._tree, value, self._name)})

    @property
    def is_mutable(self) -> bool:
        """Whether functions may change it."""
        return all(self._values.globals[name].is_mutable for _, name in leaves_of(self._tree))

    def __getitem__(self, key: Any) -> State:
        inner = level(self._tree)
        names = inner.names if inner else []
        if inner is None or str(key) not in names:
            raise KeyError(f"{self._name} has {', '.join(names) or 'no parts'}, not {key!r}.")
        return State(dotted(self._name, str(key)), inner.children[names.index(str(key))], self._values)

    def __getattr__(self, key: str) -> State:
        if key.startswith("__"):
            raise AttributeError(key)
        try:
            return self[key]
        except KeyError as error:
            raise AttributeError(error.args[0]) from None

    def __dir__(self) -> Sequence[str]:
        inner = level(self._tree)
        return [*super().__dir__(), *(inner.names if inner else [])]

    def __repr__(self) -> str:
        arrays = self._values.snapshot()
        parts = [f"{name}: {arrays[name].dtype}{list(arrays[name].shape)}" for _, name in leaves_of(self._tree)]
        return f"<{'state' if self.is_mutable else 'constant'} {', '.join(parts)}>"
