"""`ProgramFunction`: a function whose program a backend runs, JAX or IREE; and `TreeCall`: its form of a call."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from inspect import Parameter, Signature
from types import MappingProxyType
from typing import Any, Protocol

import jax
import numpy as np

from jaxpr_artifact.descriptions import FunctionDescription
from jaxpr_artifact.header import Argument, Check
from jaxpr_artifact.state import State, check_sizes, taken
from jaxpr_artifact.threads import Threads, with_x64, with_x64_restored
from jaxpr_artifact.trees import leaves_like, level, tree_like, with_leaves


class TreeCall:
    """The form of the calls of a function, whose `name` is for errors.

    `arguments` has a tree for each argument by its name, and `returned` is the tree of the outputs; leaves may be any
    objects.
    """

    def __init__(self, name: str, arguments: Mapping[str, Any], returned: Any):
        self.name, self._arguments, self._returned = name, arguments, returned
        self.signature = Signature([Parameter(key, Parameter.POSITIONAL_OR_KEYWORD) for key in arguments])
        self._has_trees = any(level(tree) is not None for tree in arguments.values())
        self._is_bare = level(returned) is None
        self._is_list = type(returned) is list and all(level(child) is None for child in returned)

    def __str__(self) -> str:
        return f"{self.name}{self.signature}"

    def arrays(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """Return the value of each array among the arguments, in order, or raise a TypeError."""
        if kwargs or len(args) != len(self._arguments):
            try:
                args = self.signature.bind(*args, **kwargs).args
            except TypeError as error:
                raise TypeError(f"{self}: {error}") from None
        if not self._has_trees:
            return args
        pairs = zip(self._arguments.items(), args, strict=True)
        return [x for (name, tree), value in pairs for _, _, x in leaves_like(tree, value, name)]

    def result(self, outputs: list[Any]) -> Any:
        """Return the arrays of the outputs in their tree."""
        if self._is_bare:
            return outputs[0]
        return outputs if self._is_list else with_leaves(self._returned, iter(outputs))


class Backend(Protocol):
    """It runs the programs of a file.

    `threads` say whether it can run in this process, and `takes_turns` whether it runs one program at a time.
    """

    threads: Threads
    takes_turns: bool

    def run(self, program: str, operands: Sequence[Any]) -> Sequence[Any]:
        """Return the results of a program."""
        ...


class ProgramFunction:
    """A function whose program a backend runs: the function of a file, or one of a module in a file.

    The program takes the arguments and the state that Python holds. It returns the outputs, the next values of that
    state, and the code of the checks.

    Attributes
    ----------
    description : FunctionDescription
        Its description in the file.
    state : State
        The values that it keeps between calls, where Python holds them.
    """

    def __init__(
        self, description: FunctionDescription, backend: Backend, program: str, state: State, constraints: Sequence[str]
    ):
        self.description, self.state = description, state
        self._backend, self._program, self._constraints = backend, program, constraints
        arguments = {a.name: tree_like(a.tree, iter(range(len(description.arguments)))) for a in description.signature}
        returned = tree_like(description.returned, iter(range(len(description.results))))
        self._form = TreeCall(description.name, arguments, returned)
        self.__name__ = self.__qualname__ = description.name
        self.__signature__ = self._form.signature
        self._count = len(description.outputs)
        written = [name for name in description.writes if name in state]
        self._updates = {name: self._count + i for i, name in enumerate(written)}
        has_turn = bool(self._updates) or backend.takes_turns
        self._turn: AbstractContextManager = state.turn if has_turn else nullcontext()

    @with_x64_restored
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs as NumPy arrays of their own, after updates went into the state.

        Raises
        ------
        TypeError
            If arguments do not fit, before anything runs.
        Exception
            The exception of a run-time check of the graph. The state keeps its values.
        """
        return self._form.result(self._flat(self._given(args, kwargs)))

    @with_x64_restored
    def flat(self, given: Sequence[Any]) -> list[Any]:
        """Return the arrays of the outputs for the arrays of the arguments, as a call does."""
        self._backend.threads.check()
        return self._flat(given)

    def _given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """Return the value of each array among the arguments."""
        self._backend.threads.check()  # before the caller waits for a lock that another thread held at the fork
        return self._form.arrays(args, kwargs)

    def _flat(self, given: Sequence[Any]) -> list[Any]:
        """Return the arrays of the outputs, after updates went into the state."""
        with self._turn:  # no update is lost
            outputs, updates = self._run(given)
            if updates:
                self._keep(updates, [*given, *outputs])
        return self._returned(outputs, given)

    def _keep(self, updates: Mapping[str, Any], values: Sequence[Any]) -> None:
        """Put updates into the state. `values` are the values that the call took and returns."""
        self.state.replace(updates)

    def _returned(self, outputs: list[Any], given: Sequence[Any]) -> list[Any]:
        """Return the outputs for the caller."""
        return outputs

    def _run(self, given: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Run the program for the state as it is now; return the outputs and the updates."""
        present = self.state.snapshot()
        values = self._taken(self.description.arguments, given, present)
        return self._results(self._program, [*values, *present.values()])

    def _taken(
        self, arguments: Sequence[Argument], given: Sequence[Any], present: Mapping[str, Any] = MappingProxyType({})
    ) -> list[Any]:
        """Return values as arrays that fit the arguments and the present values of the state."""
        values = self._converted(arguments, given)
        self._check_sizes(arguments, values, present)
        return values

    @with_x64
    def _converted(self, arguments: Sequence[Argument], given: Sequence[Any]) -> list[Any]:
        """Return values as arrays of the dtypes of the arguments."""
        return [taken(a, value) for a, value in zip(arguments, given, strict=True)]

    def _check_sizes(self, arguments: Sequence[Argument], values: Sequence[Any], present: Mapping[str, Any]) -> None:
        """Check the lengths of values together with the present values of the state."""
        kept = self.state.open_arguments if present else []
        check_sizes([*arguments, *kept], [*values, *(present[a.name] for a in kept)], self._constraints)

    def _results(self, program: str, operands: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Run a program; return the outputs and the updates, or raise the exception of a check."""
        results = self._backend.run(program, operands)
        if (checks := self.description.checks) and not isinstance(results[-1], jax.core.Tracer):
            codes = np.asarray(results[-1])
            if np.count_nonzero(codes):
                first = np.flatnonzero(codes)[0]
                where = f"in row {first} of the batch" if codes.ndim else ""
                raise error_of(checks[codes.flat[first] - 1], where)
        return list(results[: self._count]), {name: results[i] for name, i in self._updates.items()}


def error_of(check: Check, where: str = "") -> Exception:
    """Return the exception of a check; types are Python's own or NumPy's."""
    found = np.linalg.LinAlgError if check.type == "LinAlgError" else getattr(builtins, check.type, None)
    known = isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, UnicodeError)
    error: Exception = (found if known else ValueError)(check.message)  # type: ignore[misc]
    if where or check.node:
        error.add_note(" ".join(filter(None, [f"Raised by {check.node}" if check.node else "Raised", where])))
    return error
