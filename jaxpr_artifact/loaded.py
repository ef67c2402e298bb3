"""`LoadedFunction`: a function out of a file."""

from __future__ import annotations

import builtins
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from jaxpr_artifact.arguments import argument_of, check_sizes, like_key, signature_of, taken
from jaxpr_artifact.container import mapped, read_container
from jaxpr_artifact.describe import described
from jaxpr_artifact.errors import ArtifactError
from jaxpr_artifact.fork import jax_threads
from jaxpr_artifact.functions import function_of, with_shared
from jaxpr_artifact.header import Argument, Check, Stored, header_of
from jaxpr_artifact.precision import with_x64_restored
from jaxpr_artifact.programs import from_programs
from jaxpr_artifact.state import State

#: dtypes that JAX narrows unless `jax_enable_x64` is set.
WIDE = frozenset(["float64", "int64", "uint64", "complex128"])


class LoadedFunction:
    """A function that `load` made of a file: call it with arguments by position or by name.

    Attributes
    ----------
    header : Header
        What the file says of it: names, dtypes, shapes, checks, platforms, versions.
    state : State
        What it keeps between calls, by the names of the shared variables.
    """

    def __init__(self, path: str | os.PathLike, verify: bool = True, data: memoryview | None = None):
        jax_threads.start()  # JAX reads a program with threads, too
        self._data = mapped(path) if data is None else data
        contents = read_container(path, verify, self._data)
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
            self._jitted["batched"] = jax.jit(with_shared(exported["batched"][0], has_batch))
        self.sizes = {name: len(data) for name, data in members.items()}
        with jax.enable_x64(True):
            arrays = [jax.device_put(array_of(path, s, members)) for s in (*header.state, *header.constants)]
        self.state = State(header.state, arrays[: len(header.state)])
        self._constants = arrays[len(header.state) :]
        self._turn = threading.Lock()
        self._stored = [argument_of(s) for s in header.state]
        self._open = [a for a in self._stored if has_symbols(a)]
        self._updates = {s.name: s.output for s in header.state if s.output is not None}
        self._is_wide = any(a.dtype in WIDE for a in (*header.arguments, *header.outputs, *self._stored))

    @with_x64_restored
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs as NumPy arrays, after updates went into `state`.

        Inside JAX's transformations they are JAX arrays, as those of `jax`, and no check raises. What comes of a key is a key of its kind.

        Raises
        ------
        TypeError
            If arguments do not fit, before anything runs; or inside a transformation, if there are updates.
        Exception
            What a run-time check of the graph raises. The state keeps its values.
        """
        given = self._given(args, kwargs)
        if not self._updates:
            return self._returned(self._run("call", self.header.arguments, given)[0], given)
        with self._turn:  # no update is lost
            outputs, updates = self._run("call", self.header.arguments, given)
            if is_traced([*given, *outputs, *updates.values()]):
                raise TypeError(
                    f"{self.__name__} updates {', '.join(updates)}, which is no part of JAX's transformations: call"
                    f" {self.__name__}.pure(state, ...), which returns the next state, or {self.__name__}.jax(...), which drops updates."
                )
            self.state.update_all(updates)
        return self._returned(outputs, given)

    @with_x64_restored
    def pure(self, state: Mapping[str, Any], /, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Return the outputs and the next state, as JAX arrays, for a state like `state`: for `jax.jit`, `jax.grad`, `jax.lax.scan`.

        Inside JAX's transformations nothing is raised by run-time checks; a call on arrays raises.
        """
        known = self.state.snapshot()
        if not isinstance(state, Mapping) or state.keys() != known.keys():
            found = sorted(map(str, state)) if isinstance(state, Mapping) else f"{state!r:.80}"
            raise TypeError(f"The state has the names {sorted(known)}, not {found}: it is the first argument of pure.")
        given = [*self._given(args, kwargs), *(state[name] for name in known)]
        values = self._taken([*self.header.arguments, *self._stored], given)
        count = len(self.header.arguments)
        outputs, updates = self._results("call", values[:count], values[count:])
        following = {name: like_key(state[name], value) for name, value in updates.items()}
        return self._asked(self._with_keys(outputs, given)), {**state, **following}

    @with_x64_restored
    def jax(self, /, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs, as JAX arrays, for the values that `state` has now; updates are dropped. For JAX's transformations.

        `jax.grad` works up to the ``vjp_order`` that the function was exported with, `jax.vmap` if it was exported with ``batched=True``.
        """
        given = self._given(args, kwargs)
        outputs, _ = self._run("call", self.header.arguments, given)
        return self._asked(self._with_keys(outputs, given))

    @with_x64_restored
    def batched(self, /, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs, as NumPy arrays, for arguments with one more axis, the first. One without it is the same in each row.

        Raises
        ------
        TypeError
            If the file has no such program: export it with ``batched=True``; or if no argument has the axis.
        """
        if "batched" not in self._jitted:
            raise TypeError(f"{self.path} has no batched program: export the function with batched=True.")
        symbol = self.header.programs["batched"].inputs[0].shape[0]
        given, present = self._given(args, kwargs), self.state.snapshot()
        values = self._converted(self.header.arguments, given)
        arguments = [
            a if np.ndim(x) == len(a.shape) else replace(a, shape=(symbol, *a.shape))
            for a, x in zip(self.header.arguments, values, strict=True)
        ]
        if arguments == list(self.header.arguments):
            names = ", ".join(a.name for a in arguments)
            raise TypeError(
                f"No argument has the axis of the batch: give at least one of {names} one more axis, the first."
            )
        self._check_sizes(arguments, values, present)
        return self._returned(self._results("batched", values, list(present.values()))[0], given)

    @property
    def stablehlo(self) -> str:
        """The program as StableHLO text, for the lengths that the file leaves open. Its locations name PyTensor's nodes."""
        jax_threads.check()
        return self._exported.mlir_module()

    @with_x64_restored
    def trace(self, /, *args: Any, **kwargs: Any) -> Any:
        """Return the program for the shapes of arguments as JAX's `jax.stages.Traced`, of which `lower` and `compile` make the next ones.

        Arguments may be left out where the file fixes all shapes. The program takes the state after the arguments, then large constants.
        """
        if args or kwargs:
            values = self._taken(self.header.arguments, self._given(args, kwargs), self.state.snapshot())
        elif any(isinstance(n, str) for a in self.header.arguments for n in a.shape):
            raise TypeError(
                f"The lengths of the arguments are open: give examples of {', '.join(self.__signature__.parameters)}."
            )
        else:
            values = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in self.header.arguments]
        with jax.enable_x64(True):
            jitted: Any = self._jitted["call"]
            return jitted.trace(*values, *self.state.snapshot().values(), *self._constants)

    def _given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """Return the arguments in their order."""
        jax_threads.check()  # before the caller waits for a lock that another thread held when the process was forked
        if not kwargs and len(args) == len(self.header.arguments):
            return args
        return self.__signature__.bind(*args, **kwargs).args

    def _run(self, name: str, arguments: Sequence[Argument], given: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Call a program for the state as it is now; return the outputs and the updates."""
        present = self.state.snapshot()
        return self._results(name, self._taken(arguments, given, present), list(present.values()))

    def _taken(
        self, arguments: Sequence[Argument], given: Sequence[Any], present: Mapping[str, Any] = MappingProxyType({})
    ) -> list[Any]:
        """Return what is given as arrays that the arguments can have, beside the present values of the state."""
        values = self._converted(arguments, given)
        self._check_sizes(arguments, values, present)
        return values

    def _converted(self, arguments: Sequence[Argument], given: Sequence[Any]) -> list[Any]:
        """Return what is given as arrays of the dtypes of the arguments."""
        if self._is_wide and not jax.config.jax_enable_x64 and is_traced(given):
            raise TypeError(
                f"{self.header.name} computes with 64 bits, and inside this JAX transformation its arguments have 32: call the"
                " transformation inside `with jax.enable_x64(True):`, or set `jax.config.update('jax_enable_x64', True)`."
            )
        with jax.enable_x64(True):
            return [taken(a, value) for a, value in zip(arguments, given, strict=True)]

    def _check_sizes(self, arguments: Sequence[Argument], values: Sequence[Any], present: Mapping[str, Any]) -> None:
        """Check the lengths of values, beside the present values of the state."""
        beside = self._open if present else []
        check_sizes([*arguments, *beside], [*values, *(present[a.name] for a in beside)], self.header.constraints)

    def _results(self, name: str, values: Sequence[Any], state: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Call a program; return the outputs and the updates, or raise what a check raises."""
        with jax.enable_x64(True):
            results = self._jitted[name](*values, *state, *self._constants)
        if self.header.checks and not isinstance(results[-1], jax.core.Tracer):
            codes = np.ravel(results[-1])
            if (failed := np.flatnonzero(codes)).size:
                row = f"in row {failed[0]} of the batch" if name == "batched" else ""
                raise error_of(self.header.checks[codes[failed[0]] - 1], row)
        outputs = list(results[: len(self.header.outputs)])
        return outputs, {name: results[i] for name, i in self._updates.items()}

    def _returned(self, outputs: Sequence[Any], given: Sequence[Any]) -> Any:
        """Return the outputs to who called on values: as NumPy arrays, unless a transformation of JAX's called."""
        try:
            arrays: Sequence[Any] = [np.asarray(x) for x in outputs]
        except jax.errors.TracerArrayConversionError:
            arrays = outputs
        return self._asked(self._with_keys(arrays, given))

    def _with_keys(self, outputs: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        """Return the outputs, where a key that follows one of what is given is of its kind."""
        found = list(outputs)
        for place, i in enumerate(self.header.key_of):
            if i is not None and i < len(given):
                found[place] = like_key(given[i], found[place])
        return found

    def _asked(self, outputs: list[Any]) -> Any:
        """Return the outputs as they were asked for: in a list, or one by itself."""
        return outputs[0] if self.header.is_bare else outputs

    def __getattr__(self, name: str) -> Any:
        """Refuse, in a forked process, what is asked of a function that `restored` has not loaded."""
        jax_threads.check()
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __reduce__(self) -> tuple:
        """Return the contents of the file and the state as it is now: a pickle needs no file, whatever is at its path later."""
        return restored, (self.path, bytes(self._data), self.state.changes())

    def __copy__(self) -> LoadedFunction:
        """Return a function with a state of its own, which starts as this one."""
        return restored(self.path, self._data, self.state.changes(), verify=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> LoadedFunction:
        return self.__copy__()

    def __str__(self) -> str:
        return described(self.header, self.sizes)

    def __repr__(self) -> str:
        return f"<{self.header.name}{self.__signature__} loaded from {self.path}>"


def restored(path: str, data: bytes | memoryview, state: Mapping[str, Any], verify: bool = True) -> LoadedFunction:
    """Return a function from the contents of its file, with a state.

    In a forked process it is not loaded, and refuses to be called. (An error here would end a worker of `multiprocessing.Pool`, which waits forever then.)
    """
    if jax_threads.has_no_threads:
        return object.__new__(LoadedFunction)
    found = LoadedFunction(path, verify, memoryview(data))
    found.state.update(state)
    return found


def is_traced(values: Iterable[Any]) -> bool:
    """Tell whether a transformation of JAX's made some of the values."""
    return any(isinstance(x, jax.core.Tracer) for x in values)


def has_symbols(argument: Argument) -> bool:
    """Tell whether a length is open."""
    return any(isinstance(n, str) for n in argument.shape)


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
