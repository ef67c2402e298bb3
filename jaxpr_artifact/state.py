"""`State`: the values that functions keep between calls, and the checks of values that callers give.

`ModuleState` shows a part of the state as a tree.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import export

from jaxpr_artifact.dimensions import Length, Numbers, check_constraints, check_expressions
from jaxpr_artifact.header import Argument, Dimension, Stored
from jaxpr_artifact.threads import with_x64
from jaxpr_artifact.trees import dotted, leaves_like, leaves_of, level, with_leaves


def argument_of(stored: Stored) -> Argument:
    """Return the requirements on a new value of the state."""
    return Argument(stored.name, stored.dtype, stored.open_shape, stored.is_key)


def is_typed_key(value: Any) -> bool:
    """Return whether a value is a key of `jax.random.key`."""
    return isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


def like_key(given: Any, data: Any) -> Any:
    """Return the data of a key as a key of the kind that was given."""
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(given)) if is_typed_key(given) else data


def taken(argument: Argument, value: Any) -> Any:
    """Return a value as an array of the argument's dtype, or raise a TypeError.

    PyTensor's rule holds: no dtype is narrowed, and no number changes.
    """
    if is_typed_key(value):
        if not argument.is_key:
            raise TypeError(f"{argument.name} takes numbers of dtype {argument.dtype}, not a random key.")
        return jax.random.key_data(value)
    if isinstance(value, np.ma.MaskedArray):
        value = np.asarray(value)  # PyTensor takes the values under the mask, too
    dtype = np.dtype(argument.dtype)
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        if value.dtype == dtype:
            return value
        if np.can_cast(value.dtype, dtype, "safe"):
            return value.astype(dtype)
        if argument.by_value and (array := fitting(value, dtype)) is not None:
            return array
        raise TypeError(
            f"{argument.name} has dtype {dtype}, and its value has {value.dtype}, which can't be cast to it without a"
            f" loss: give {argument.name}.astype({dtype.name!r}) if that is what you mean."
        )
    array = rounded(value, dtype)
    if array is None:
        raise TypeError(f"{argument.name} takes an array of dtype {dtype}, which can't hold {value!r:.80}.")
    return array


def fitting(value: Any, dtype: np.dtype) -> np.ndarray | None:
    """Return known integers as an array of another integer dtype; None if they do not fit."""
    if value.dtype.kind not in "iu" or dtype.kind not in "iu" or isinstance(value, jax.core.Tracer):
        return None
    array = np.asarray(value).astype(dtype)
    return array if np.array_equal(array, value) else None


def rounded(value: Any, dtype: np.dtype) -> np.ndarray | None:
    """Return Python numbers as an array, floats rounded; None for other objects, or if the dtype lacks the numbers."""
    try:
        given = np.asarray(value)
        with np.errstate(over="ignore", invalid="ignore"):
            array = given.astype(dtype) if given.dtype.kind in "biuf" or given.dtype.kind == dtype.kind == "c" else None
    except (TypeError, ValueError, OverflowError):
        return None
    if array is None or np.array_equal(given, array):
        return array
    rounds = given.dtype.kind in "fc" and dtype.kind in "fc"
    return array if rounds and np.array_equal(np.isfinite(given), np.isfinite(array)) else None


def check_sizes(arguments: Sequence[Argument], values: Sequence[Any], constraints: Sequence[str] = ()) -> None:
    """Raise a TypeError if ranks or lengths of arrays do not fit the arguments, each other or the constraints.

    Where `jax.export` traces with symbols for lengths, JAX checks the expressions.
    """
    found: Numbers = {}
    expressions = []
    for argument, value in zip(arguments, values, strict=True):
        shape = np.shape(value)
        if len(shape) != len(argument.shape):
            axes = f"{len(argument.shape)} ax{'i' if len(argument.shape) == 1 else 'e'}s"
            raise TypeError(f"{argument.name} has {axes}, {spelled(argument.shape)}, and its value has shape {shape}.")
        for axis, (wanted, n) in enumerate(zip(argument.shape, shape, strict=True)):
            if isinstance(wanted, int):
                if wanted != n:
                    raise TypeError(f"{argument.name} has shape {spelled(argument.shape)}, and its value has {shape}.")
            elif wanted.isidentifier():
                other, where = found.setdefault(wanted, (n, argument.name))
                if other != n:
                    raise TypeError(f"{wanted} is {other} for {where} and {n} for axis {axis} of {argument.name}.")
                if n < 1:
                    raise TypeError(f"{wanted} is 0 for {argument.name}: a symbolic length is 1 or more.")
            else:
                expressions.append(Length(argument.name, axis, wanted, n))
    if not (expressions or constraints) or any(export.is_symbolic_dim(n) for value in values for n in np.shape(value)):
        return
    check_expressions(expressions, found)
    check_constraints(constraints, found)


def spelled(shape: Sequence[Dimension]) -> str:
    """Return a shape as a reader writes it: ``(n, 3)``."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


class State(MutableMapping[str, Any]):
    """The values that a function keeps between calls, by name. A new value has the dtype and the shape of the old one.

    A random generator is a key: ``uint32[2]``, or a key of `jax.random.key`. Values are read as NumPy arrays, because
    JAX's settings do not touch their 64 bits; the function keeps them on the device. Each change replaces all values at
    once: a reader sees the values of one update, and an error leaves the old ones.

    Attributes
    ----------
    arguments, open_arguments
        The requirements on new values, and the ones with an open length.
    turn
        A lock that is held from reading to writing, so that no update is lost.
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
        """Replace values by a caller's, all or none, or raise a TypeError."""
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
        """Return the values that have changed since the file was loaded."""
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

        `borrow` is for programs that treat shared variables and state alike; they get a copy, too.
        """
        arrays = self._values.read([name for _, name in leaves_of(self._tree)])
        return with_leaves(self._tree, iter([np.array(array) for array in arrays]))

    def set_value(self, value: Any, borrow: bool = False) -> None:
        """Set the value; dtypes and shapes stay. The value is copied, whatever `borrow` says.

        A random generator is set by a key; on the host by a NumPy generator, too.
        """
        self._values.set({name: x for _, name, x in leaves_like(self._tree, value, self._name)})

    @property
    def is_mutable(self) -> bool:
        """Whether functions may change all of it."""
        return all(self._values.is_mutable(name) for _, name in leaves_of(self._tree))

    def _mutable_leaves(self) -> list[tuple[str, str]]:
        """Return the place of each array that functions may change, with the name that it has among all values."""
        return [pair for pair in leaves_of(self._tree, self._name) if self._values.is_mutable(pair[1])]

    def __instead__(self) -> str:
        """Return the objects to ask about in place of state."""
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
        return [*super().__dir__(), *(inner.names if (inner := level(self._tree)) else [])]

    def __repr__(self) -> str:
        parts = []
        for place, name in leaves_of(self._tree, self._name):
            kind = "state" if self._values.is_mutable(name) else "constant"
            alias = "" if place == name else f" = {name}"
            parts.append(f"{kind} {place}{alias}: {self._values.spelled_type(name)}")
        return f"<{', '.join(parts)}>"
