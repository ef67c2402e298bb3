"""Tests the run-time checks of a program that has run: at once, at a later call, or by `checkify`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental import checkify
from pytensor.compile.executor import Function

from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.base.errors import note_node
from pytensor_jaxpr_linker.jaxpr.builder import Check
from pytensor_jaxpr_linker.run.program import Program
from pytensor_jaxpr_linker.run.specialization import Specialization


def raise_if_failed(specialization: Specialization, code: Any, args: Sequence[Any]) -> None:
    """Raise the exception of the first run-time check that failed, if one did."""
    if number := int(code):
        raise error_of(specialization.lower(args).checks[number - 1])


def error_of(check: Check) -> Exception:
    """Return the exception of a check, with a note that names the node."""
    error = check.make_error()
    if check.node is not None:
        note_node(error, check.node)
    return error


class DeferredChecks:
    """The checks of calls that returned before their results were known. Any number of threads may use it.

    A call tests, and drops, the checks that the device has computed, so the queue is never longer than the device's.

    Parameters
    ----------
    wait
        Whether a call waits for the checks of those before it.
    """

    def __init__(self, wait: bool):
        self._wait = wait
        self._codes: deque[tuple[jax.Array, list[Check]]] = deque()
        self._lock = threading.Lock()

    def add(self, specialization: Specialization, code: jax.Array, args: Sequence[Any]) -> None:
        """Keep the check code of one call of a program."""
        self._codes.append((code, specialization.lower(args).checks))

    def raise_known(self) -> None:
        """Raise the error of an earlier call: of one that has ended, or, if calls wait, of any."""
        if self._codes:
            self.raise_failed(self._wait)

    def raise_failed(self, wait: bool = True) -> None:
        """Raise the exception of the first check that failed, and forget those that came after it."""
        with self._lock:
            while self._codes and (wait or jax_compat.is_ready(self._codes[0][0])):
                code, checks = self._codes.popleft()
                if number := int(code):
                    self._codes.clear()
                    raise error_of(checks[number - 1])


def raise_deferred(f: Function) -> None:
    """Wait for the calls of a function so far, and raise the exception of the first run-time check that failed in them.

    What it raises is raised once. Without ``Options(checks="defer")`` there is nothing to raise.

    Parameters
    ----------
    f : pytensor.compile.executor.Function
        A function compiled with mode JAXPR.

    Examples
    --------
    >>> import pytensor, pytensor.tensor as pt
    >>> import pytensor_jaxpr_linker as pjl
    >>> x, i = pt.vector("x", dtype="float64"), pt.lscalar("i")
    >>> with pjl.options(checks="defer"):
    ...     f = pytensor.function([x, i], x[i], mode="JAXPR")
    >>> result = f([1.0, 2.0], 5)
    >>> try:
    ...     pjl.raise_deferred(f)
    ... except IndexError as error:
    ...     print(error)
    index is out of bounds for axis 0 with size 2
    """
    runner = getattr(getattr(f, "vm", None), "runner", None)
    if runner is None:
        raise TypeError(f"{f} was not compiled with mode JAXPR: use pytensor.function(..., mode='JAXPR').")
    if runner.deferred is not None:
        runner.deferred.raise_failed()


def with_checkify(program: Program, fn: Callable[..., list]) -> Callable[..., list]:
    """Return `fn` with a `checkify.check` for each of the program's run-time checks, instead of the check code.

    Parameters
    ----------
    program
        A program with checks.
    fn
        The program as a pure JAX function, of constants after its inputs, perhaps with a derivative of its own. Its derivative knows no checks: those of
        the values that it uses have been made.
    """
    count = len(program.outputs)

    def call(*args: Any) -> list:
        results = fn(*args)
        for number, check in enumerate(program.checks_of(args[: len(program.inputs)]), 1):
            error = check.make_error()
            message = f"{type(error).__name__}: {error}"
            checkify.check(results[count] != number, message.replace("{", "{{").replace("}", "}}"))
        return results[:count]

    return call
