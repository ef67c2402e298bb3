"""`State`: the values that functions keep between calls, and `ModuleState`: a part of them that a module shows, as a tree."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxpr_artifact.arguments import check_sizes, taken
from jaxpr_artifact.header import Argument
from jaxpr_artifact.precision import with_x64
from jaxpr_artifact.trees import dotted, leaves_like, leaves_of, level, with_leaves


class State(MutableMapping[str, Any]):
    """The values of what a function keeps between calls, by name. A new value must have the dtype and the shape of the old one.

    A random generator is a key: ``uint32[2]``, or what `jax.random.key` makes. Values are read as NumPy arrays, whose 64 bits JAX's
    settings do not touch; the function keeps them on the device. Each change replaces all values at once: a reader sees the values of one
    update, and an error leaves the old ones.

    Attributes
    ----------
    arguments, open_arguments
        What new values must be, and those with an open length.
    turn
        Is held from reading to writing, so that no update is lost.
    """

    def __init__(self, arguments: Sequence[Argument], values: Sequence[Any]):
        self._arguments = {a.name: a for a in arguments}
        self.arguments = list(arguments)
        self.open_arguments = [a for a in arguments if any(isinstance(n, str) for n in a.shape)]
        self._values = dict(zip(self._arguments, values, strict=True))
        self._changed: frozenset[str] = frozenset()
        self.turn = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: x for name, x in vars(self).items() if name != "turn"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, turn=threading.RLock())

    def __getitem__(self, name: str) -> np.ndarray:
        return np.asarray(self._values[name])

    def __setitem__(self, name: str, value: Any) -> None:
        self.set({name: value})

    def __delitem__(self, name: str) -> None:
        raise TypeError("The state of a function has as many values as the function that was exported.")

    def __contains__(self, name: object) -> bool:
        return name in self._values  # without reading the value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"State({', '.join(f'{name}: {self.spelled_type(name)}' for name in self)})"

    @with_x64
    def set(self, given: Mapping[str, Any]) -> None:
        """Replace values by those of a caller, all or none, or raise a TypeError."""
        changes = {name: jax.device_put(self._copied(name, value)) for name, value in given.items()}
        with self.turn:
            self.replace(changes)

    def _copied(self, name: str, value: Any) -> Any:
        """Return a caller's value as an array that nobody else changes."""
        if name not in self._arguments:
            raise KeyError(f"The function has no state {name!r}; it has {', '.join(self._arguments) or 'none'}.")
        array = taken(self._arguments[name], value)
        check_sizes([self._arguments[name]], [array])
        return np.array(array) if isinstance(array, np.ndarray) else array

    def replace(self, changes: Mapping[str, Any]) -> None:
        """Replace values by results of a program."""
        self._changed |= changes.keys()  # before the values change: Ctrl-C may come in between
        self._values = {**self._values, **changes}

    def changes(self) -> dict[str, np.ndarray]:
        """Return the values that are no longer those of the file."""
        return {name: np.array(value) for name, value in self._values.items() if name in self._changed}

    def snapshot(self) -> Mapping[str, Any]:
        """Return the values on the device by name, as they are now."""
        return self._values

    def read(self, names: Sequence[str]) -> list[Any]:
        """Return values, all of one moment."""
        present = self._values
        return [present[name] for name in names]

    def is_mutable(self, name: str) -> bool:
        """Return whether a value may change."""
        return name in self._values

    def spelled_type(self, name: str) -> str:
        """Return dtype and shape of a value."""
        array = self._values[name]
        return f"{array.dtype}{list(array.shape)}"


class ModuleState:
    """State of a module: one array, or a tree of them. `m.params` has the parts ``m.params.w`` or ``m.params["w"]``."""

    def __init__(self, name: str, tree: Any, values: State):
        self._name, self._tree, self._values = name, tree, values

    def get_value(self, borrow: bool = False) -> Any:
        """Return a copy of the value: an array, or a tree of arrays like the one that the module was made of.

        `borrow` is for programs that treat shared variables and state alike; what they get is a copy.
        """
        arrays = self._values.read([name for _, name in leaves_of(self._tree)])
        return with_leaves(self._tree, iter([np.array(array) for array in arrays]))

    def set_value(self, value: Any, borrow: bool = False) -> None:
        """Set the value, of the dtypes and shapes that it has. A random generator is set by a key; on the host by a NumPy generator, too.

        The value is copied, whatever `borrow` says.
        """
        self._values.set({name: x for _, name, x in leaves_like(self._tree, value, self._name)})

    @property
    def is_mutable(self) -> bool:
        """Whether functions may change all of it."""
        return all(self._values.is_mutable(name) for _, name in leaves_of(self._tree))

    def __instead__(self) -> str:
        """Return what to ask about in place of state."""
        return "state has no program. The functions of its module have."

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self!r} is part of a module: copy or pickle the module, or the value that get_value returns."
        )

    def __getitem__(self, key: Any) -> ModuleState:
        inner = level(self._tree)
        names = inner.names if inner else []
        if inner is None or str(key) not in names:
            raise KeyError(f"{self._name} has {', '.join(names) or 'no parts'}, not {key!r}.")
        return ModuleState(dotted(self._name, str(key)), inner.children[names.index(str(key))], self._values)

    def __getattr__(self, key: str) -> ModuleState:
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
        return f"<{', '.join(self._described(place, name) for place, name in leaves_of(self._tree, self._name))}>"

    def _described(self, place: str, name: str) -> str:
        """Return what one array is; an alias says of which global."""
        kind = "state" if self._values.is_mutable(name) else "constant"
        alias = "" if place == name else f" = {name}"
        return f"{kind} {place}{alias}: {self._values.spelled_type(name)}"
