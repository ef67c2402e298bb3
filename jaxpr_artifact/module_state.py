"""`ModuleState`: state of a module as users reach it, on the host and out of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from jaxpr_artifact.trees import dotted, leaves_like, leaves_of, level, with_leaves


class StateValues(Protocol):
    """The values of the globals of a module."""

    def read(self, names: Sequence[str]) -> Sequence[Any]:
        """Return the values of globals, all of one moment."""
        ...

    def set(self, given: Mapping[str, Any]) -> None:
        """Replace values by those of a caller, all or none, or raise a TypeError."""
        ...

    def is_mutable(self, name: str) -> bool:
        """Tell whether a global may change."""
        ...

    def spelled_type(self, name: str) -> str:
        """Return dtype and shape of a global."""
        ...


class ModuleState:
    """State of a module: one array, or a tree of them. `m.params` has the parts ``m.params.w`` or ``m.params["w"]``."""

    def __init__(self, name: str, tree: Any, values: StateValues):
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
