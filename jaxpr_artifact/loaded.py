"""`LoadedFunction`: a function out of a file."""

from __future__ import annotations

import builtins
import os
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxpr_artifact.arguments import check_sizes, signature_of, taken
from jaxpr_artifact.container import read_container
from jaxpr_artifact.describe import described
from jaxpr_artifact.errors import ArtifactError
from jaxpr_artifact.functions import function_of
from jaxpr_artifact.header import Argument, Check, Stored, header_of
from jaxpr_artifact.programs import from_programs

#: dtypes that JAX narrows unless `jax_enable_x64` is set.
WIDE = frozenset(["float64", "int64", "uint64", "complex128"])


class State(MutableMapping[str, Any]):
    """The values of what a function keeps between calls, by name. A new value must have the dtype and the shape of the old one.

    A random generator is a key: ``uint32[2]``, or what `jax.random.key` makes. Values are read as NumPy arrays, whose 64 bits JAX's
    settings do not touch; the function keeps them on the device.
    """

    def __init__(self, stored: Sequence[Stored], values: Sequence[Any]):
        self._arguments = {
            s.name: Argument(s.name, s.dtype, s.shape if s.symbolic is None else s.symbolic, s.is_key) for s in stored
        }
        self._values = dict(zip(self._arguments, values, strict=True))

    def __getitem__(self, name: str) -> np.ndarray:
        return np.asarray(self._values[name])

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self._arguments:
            raise KeyError(f"The function has no state {name!r}; it has {', '.join(self._arguments) or 'none'}.")
        with jax.enable_x64(True):
            array = taken(self._arguments[name], value)
            check_sizes([self._arguments[name]], [array])
            self._values[name] = jax.device_put(np.array(array) if isinstance(array, np.ndarray) else array)

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
        self._values = {**self._values, **values}

    def snapshot(self) -> dict[str, Any]:
        """Return the values on the device by name, as they are now."""
        return self._values


class LoadedFunction:
    """A function that `load` made of a file: call it with arguments by position or by name.

    Attributes
    ----------
    header : Header
        What the file says of it: names, dtypes, shapes, checks, platforms, versions.
    state : State
        What it keeps between calls, by the names of the shared variables.
    """

    def __init__(self, path: str | os.PathLike, verify: bool = True):
        contents = read_container(path, verify)
        self.path, self.header = os.fspath(path), header_of(path, contents.header)
        header, members = self.header, contents.members
        self.__name__ = self.__qualname__ = header.name
        self.__signature__ = signature_of(header.arguments)
        exported = {
            name: from_programs(path, program, members, header.platforms, header.constraints)
            for name, program in header.programs.items()
        }
        self._exported = exported["call"][0]
        has_batch = [True] * len(header.arguments) + [False] * (len(header.state) + len(header.constants))
        constants = range(len(has_batch) - len(header.constants), len(has_batch))
        call = function_of(exported["call"], exported.get("batched", []), has_batch, constants)
        self._jitted: dict[str, Callable[..., tuple]] = {"call": jax.jit(call)}
        if "batched" in exported:
            self._jitted["batched"] = jax.jit(exported["batched"][0].call)
        self.sizes = {name: len(data) for name, data in members.items()}
        with jax.enable_x64(True):
            arrays = [jax.device_put(array_of(path, s, members)) for s in (*header.state, *header.constants)]
        self.state = State(header.state, arrays[: len(header.state)])
        self._constants = arrays[len(header.state) :]
        self._turn = threading.Lock()
        dtypes = [x.dtype for x in (*header.arguments, *header.outputs)] + [s.dtype for s in header.state]
        self._is_wide = not WIDE.isdisjoint(dtypes)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs as NumPy arrays, after updates went into `state`.

        Raises
        ------
        TypeError
            If arguments do not fit, before anything runs.
        Exception
            What a run-time check of the graph raises. The state keeps its values.
        """
        values = self._arguments(args, kwargs)
        if not any(s.output is not None for s in self.header.state):
            outputs, _ = self._results("call", values, self.state.snapshot())
        else:
            with self._turn:  # no update is lost
                outputs, updates = self._results("call", values, self.state.snapshot())
                self.state.update_all(updates)
        return self._returned([np.asarray(x) for x in outputs])

    def pure(self, state: Mapping[str, Any], *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Return the outputs and the next state, as JAX arrays, for a state like `state`: for `jax.jit`, `jax.grad`, `jax.lax.scan`.

        Inside JAX's transformations nothing is raised by run-time checks; a call on arrays raises.
        """
        known = self.state.snapshot()
        if state.keys() != known.keys():
            raise TypeError(f"The state has the names {sorted(known)}, not {sorted(state)}.")
        outputs, updates = self._results("call", self._arguments(args, kwargs), state)
        return self._returned(outputs), {**state, **updates}

    def jax(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs, as JAX arrays, for the values that `state` has now; updates are dropped. For JAX's transformations.

        `jax.grad` works up to the ``vjp_order`` that the function was exported with, `jax.vmap` if it was exported with ``batched=True``.
        """
        return self.pure(self.state.snapshot(), *args, **kwargs)[0]

    def batched(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs, as NumPy arrays, for arguments that all have one more axis, the first.

        Raises
        ------
        TypeError
            If the file has no such program: export it with ``batched=True``.
        """
        if "batched" not in self._jitted:
            raise TypeError(f"{self.path} has no batched program: export the function with batched=True.")
        symbol = self.header.programs["batched"].inputs[0].shape[0]
        arguments = [Argument(a.name, a.dtype, (symbol, *a.shape), a.is_key) for a in self.header.arguments]
        values = self._arguments(args, kwargs, arguments)
        outputs, _ = self._results("batched", values, self.state.snapshot())
        return self._returned([np.asarray(x) for x in outputs])

    @property
    def stablehlo(self) -> str:
        """The program as StableHLO text, for the lengths that the file leaves open. Its locations name PyTensor's nodes."""
        return self._exported.mlir_module()

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Return the program for the shapes of arguments as JAX's `jax.stages.Traced`, of which `lower` and `compile` make the next ones.

        Arguments may be left out where the file fixes all shapes. The program takes the state after the arguments, then large constants.
        """
        if args or kwargs:
            values = self._arguments(args, kwargs)
        elif any(isinstance(n, str) for a in self.header.arguments for n in a.shape):
            raise TypeError(
                f"The lengths of the arguments are open: give examples of {', '.join(self.__signature__.parameters)}."
            )
        else:
            values = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in self.header.arguments]
        stored = [self.state.snapshot()[s.name] for s in self.header.state]
        with jax.enable_x64(True):
            jitted: Any = self._jitted["call"]
            return jitted.trace(*values, *stored, *self._constants)

    def _arguments(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], arguments: Sequence[Argument] = ()
    ) -> list[Any]:
        """Return the values of the arguments, checked."""
        arguments = arguments or self.header.arguments
        given = args if not kwargs and len(args) == len(arguments) else self.__signature__.bind(*args, **kwargs).args
        if self._is_wide and not jax.config.jax_enable_x64 and any(isinstance(x, jax.core.Tracer) for x in given):
            raise TypeError(
                f"{self.header.name} computes with 64 bits, and inside this JAX transformation its arguments have 32: call the"
                " transformation inside `with jax.enable_x64(True):`, or set `jax.config.update('jax_enable_x64', True)`."
            )
        with jax.enable_x64(True):
            values = [taken(a, value) for a, value in zip(arguments, given, strict=True)]
        check_sizes(arguments, values)
        return values

    def _results(self, name: str, values: Sequence[Any], state: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Call a program; return the outputs and the updates, or raise what a check raises."""
        stored = [state[s.name] for s in self.header.state]
        with jax.enable_x64(True):
            results = self._jitted[name](*values, *stored, *self._constants)
        if self.header.checks and not isinstance(results[-1], jax.core.Tracer):
            codes = np.ravel(results[-1])
            if (failed := np.flatnonzero(codes)).size:
                row = f"in row {failed[0]} of the batch" if name == "batched" else ""
                raise error_of(self.header.checks[codes[failed[0]] - 1], row)
        outputs = list(results[: len(self.header.outputs)])
        return outputs, {s.name: results[s.output] for s in self.header.state if s.output is not None}

    def _returned(self, outputs: list[Any]) -> Any:
        """Return the outputs as they were asked for: in a list, or one by itself."""
        return outputs[0] if self.header.is_bare else outputs

    def __str__(self) -> str:
        return described(self.header, self.sizes)

    def __repr__(self) -> str:
        return f"<{self.header.name}{self.__signature__} loaded from {self.path}>"


def array_of(path: str | os.PathLike, stored: Stored, members: Mapping[str, memoryview]) -> np.ndarray:
    """Return an array of the file, mapped and read-only."""
    dtype, count = np.dtype(stored.dtype), int(np.prod([1, *stored.shape], dtype=object))
    data = members.get(stored.member)
    if data is None or len(data) != count * dtype.itemsize:
        raise ArtifactError(
            path, f"The array {stored.name!r:.80} is not in the file as the header says.", "Export it again."
        )
    return np.frombuffer(data, dtype).reshape(stored.shape)


def error_of(check: Check, where: str = "") -> Exception:
    """Return the exception of a check; types are Python's own or NumPy's."""
    found = np.linalg.LinAlgError if check.type == "LinAlgError" else getattr(builtins, check.type, None)
    known = isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, UnicodeError)
    error: Exception = (found if known else ValueError)(check.message)  # type: ignore[misc]
    if where or check.node:
        error.add_note(" ".join(filter(None, [f"Raised by {check.node}" if check.node else "Raised", where])))
    return error
