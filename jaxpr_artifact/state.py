"""`State`: the values that a loaded function keeps between calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxpr_artifact.arguments import argument_of, check_sizes, taken
from jaxpr_artifact.header import Stored
from jaxpr_artifact.precision import with_x64_restored


class State(MutableMapping[str, Any]):
    """The values of what a function keeps between calls, by name. A new value must have the dtype and the shape of the old one.

    A random generator is a key: ``uint32[2]``, or what `jax.random.key` makes. Values are read as NumPy arrays, whose 64 bits JAX's
    settings do not touch; the function keeps them on the device.
    """

    def __init__(self, stored: Sequence[Stored], values: Sequence[Any]):
        self._arguments = {s.name: argument_of(s) for s in stored}
        self._values = dict(zip(self._arguments, values, strict=True))
        self._changed: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> np.ndarray:
        return np.asarray(self._values[name])

    @with_x64_restored
    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self._arguments:
            raise KeyError(f"The function has no state {name!r}; it has {', '.join(self._arguments) or 'none'}.")
        with jax.enable_x64(True):
            array = taken(self._arguments[name], value)
            check_sizes([self._arguments[name]], [array])
            self.update_all({name: jax.device_put(np.array(array) if isinstance(array, np.ndarray) else array)})

    def __delitem__(self, name: str) -> None:
        raise TypeError("The state of a function has as many values as the function that was exported.")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"State({', '.join(f'{name}: {x.dtype}{list(x.shape)}' for name, x in self._values.items())})"

    def update_all(self, values: Mapping[str, Any]) -> None:
        """Replace values by results of the program, without a check."""
        self._changed |= values.keys()  # before the values change: Ctrl-C may come in between
        self._values = {**self._values, **values}

    def changes(self) -> dict[str, np.ndarray]:
        """Return the values that are no longer those of the file."""
        return {name: np.array(value) for name, value in self._values.items() if name in self._changed}

    def snapshot(self) -> dict[str, Any]:
        """Return the values on the device by name, as they are now."""
        return self._values
