"""`LoadedFunction`: a function out of a file, run by JAX."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jaxpr_artifact.descriptions import described, function_description
from jaxpr_artifact.files import mapped, read_container
from jaxpr_artifact.header import Argument, header_of
from jaxpr_artifact.program_function import ProgramFunction
from jaxpr_artifact.programs import JaxPrograms
from jaxpr_artifact.state import State, argument_of, like_key
from jaxpr_artifact.threads import jax_threads, with_x64_restored

#: dtypes that JAX narrows unless `jax_enable_x64` is set.
WIDE = frozenset(["float64", "int64", "uint64", "complex128"])


class LoadedFunction(ProgramFunction):
    """A function that `load` made of a file: call it with arguments by position or by name.

    A call returns the outputs as NumPy arrays, after updates went into `state`. Inside JAX's transformations they are
    JAX arrays, like the outputs of `jax`, and no check raises. An output that follows a key is a key of its kind.

    Attributes
    ----------
    header : Header
        The header of the file: names, dtypes, shapes, checks, platforms, versions.
    state : State
        The values that it keeps between calls, by the names of the shared variables.
    """

    _backend: JaxPrograms

    def __init__(self, path: str | os.PathLike, verify: bool = True, data: memoryview | None = None):
        jax_threads.start()  # JAX reads a program with threads, too
        self._data = mapped(path) if data is None else data
        contents = read_container(path, verify, self._data)
        self.path, self.header = os.fspath(path), header_of(path, contents.header)
        self.sizes = {name: len(data) for name, data in contents.members.items()}
        programs = JaxPrograms(path, self.header, contents.members)
        state = State([argument_of(s) for s in self.header.state], programs.state)
        super().__init__(function_description(self.header), programs, "call", state, self.header.constraints)
        arrays = (*self.header.arguments, *self.header.outputs, *state.arguments)
        self._is_wide = any(a.dtype in WIDE for a in arrays)

    @with_x64_restored
    def pure(self, state: Mapping[str, Any], /, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Return the outputs and the next state, as JAX arrays, for a state like `state`.

        It is for `jax.jit`, `jax.grad`, `jax.lax.scan`. Inside JAX's transformations run-time checks do not raise; in a
        call on arrays they do.
        """
        known = self.state.snapshot()
        if not isinstance(state, Mapping) or state.keys() != known.keys():
            found = sorted(map(str, state)) if isinstance(state, Mapping) else f"{state!r:.80}"
            raise TypeError(f"The state has the names {sorted(known)}, not {found}: it is the first argument of pure.")
        given = [*self._given(args, kwargs), *(state[name] for name in known)]
        outputs, updates = self._results("call", self._taken([*self.header.arguments, *self.state.arguments], given))
        following = {name: like_key(state[name], value) for name, value in updates.items()}
        return self._form.result(self._with_keys(outputs, given)), {**state, **following}

    @with_x64_restored
    def jax(self, /, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs, as JAX arrays, for the present values of `state`; updates are dropped.

        It is for JAX's transformations. `jax.grad` works up to the ``vjp_order`` that the function was exported with,
        `jax.vmap` if it was exported with ``batched=True``.
        """
        given = self._given(args, kwargs)
        return self._form.result(self._with_keys(self._run(given)[0], given))

    @with_x64_restored
    def batched(self, /, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs, as NumPy arrays, for arguments with one more axis, the first.

        An argument without it is the same in each row.

        Raises
        ------
        TypeError
            If the file has no such program: export it with ``batched=True``; or if no argument has the axis.
        """
        if "batched" not in self.header.programs:
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
            remedy = f"give at least one of {names} one more axis, the first"
            raise TypeError(f"No argument has the axis of the batch: {remedy}.")
        self._check_sizes(arguments, values, present)
        outputs, _ = self._results("batched", [*values, *present.values()])
        return self._form.result(self._returned(outputs, given))

    @property
    def stablehlo(self) -> str:
        """The program as StableHLO text, for open lengths. Its locations name PyTensor's nodes."""
        jax_threads.check()
        return self._backend.exported.mlir_module()

    @with_x64_restored
    def trace(self, /, *args: Any, **kwargs: Any) -> Any:
        """Return the program for the shapes of arguments as a `jax.stages.Traced`, which has `lower` and `compile`.

        Arguments may be left out where the file fixes all shapes. The program takes the arguments, then the state, then
        large constants.
        """
        if args or kwargs:
            values = self._taken(self.header.arguments, self._given(args, kwargs), self.state.snapshot())
        elif any(isinstance(n, str) for a in self.header.arguments for n in a.shape):
            names = ", ".join(self.__signature__.parameters)
            raise TypeError(f"The lengths of the arguments are open: give examples of {names}.")
        else:
            values = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in self.header.arguments]
        with jax.enable_x64(True):
            jitted: Any = self._backend.jitted["call"]
            return jitted.trace(*values, *self.state.snapshot().values(), *self._backend.constants)

    def _converted(self, arguments: Sequence[Argument], given: Sequence[Any]) -> list[Any]:
        if self._is_wide and not jax.config.jax_enable_x64 and is_traced(given):
            raise TypeError(
                f"{self.header.name} computes with 64 bits, and inside this JAX transformation its arguments have 32:"
                " call the transformation inside `with jax.enable_x64(True):`, or set"
                " `jax.config.update('jax_enable_x64', True)`."
            )
        return super()._converted(arguments, given)

    def _keep(self, updates: Mapping[str, Any], values: Sequence[Any]) -> None:
        if is_traced([*values, *updates.values()]):
            raise TypeError(
                f"{self.__name__} updates {', '.join(updates)}, which is no part of JAX's transformations: call"
                f" {self.__name__}.pure(state, ...), which returns the next state, or {self.__name__}.jax(...), which"
                " drops updates."
            )
        super()._keep(updates, values)

    def _returned(self, outputs: list[Any], given: Sequence[Any]) -> list[Any]:
        """Return the outputs to a caller on values: as NumPy arrays, unless a transformation of JAX's calls."""
        try:
            arrays = [np.asarray(x) for x in outputs]
        except jax.errors.TracerArrayConversionError:
            arrays = outputs
        return self._with_keys(arrays, given)

    def _with_keys(self, outputs: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        """Return the outputs, where a key that follows a given one is of its kind."""
        found = list(outputs)
        for place, i in enumerate(self.header.key_of):
            if i is not None and i < len(given):
                found[place] = like_key(given[i], found[place])
        return found

    def __getattr__(self, name: str) -> Any:
        """Raise an error in a forked process, where `restored` has not loaded the function."""
        jax_threads.check()
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __reduce__(self) -> tuple:
        """Return the contents of the file and the present state: a pickle does not need the file."""
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

    In a forked process it is not loaded, and refuses to be called. (An error here would end a worker of
    `multiprocessing.Pool`, which would then wait forever.)
    """
    if jax_threads.has_no_threads:
        return object.__new__(LoadedFunction)
    found = LoadedFunction(path, verify, memoryview(data))
    found.state.update(state)
    return found


def is_traced(values: Iterable[Any]) -> bool:
    """Return whether a transformation of JAX's made some of the values."""
    return any(isinstance(x, jax.core.Tracer) for x in values)
