"""Tests the run-time checks of a program: when it has run, at a later call, or by `checkify`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental import checkify

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


def error_text(check: Check) -> str:
    """Return type and message of the exception of a check."""
    error = check.make_error()
    return f"{type(error).__name__}: {error}"


class DeferredChecks:
    """The checks of calls that returned before their results were known. Any number of threads may use it.

    A call tests, and drops, the checks that the device has computed, so the queue is never longer than the device's. If `wait`, a call
    waits for the checks of those before it.
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


def with_checkify(program: Program, fn: Callable[..., list]) -> Callable[..., list]:
    """Return `fn`, which runs a program, with a `checkify.check` for each of its run-time checks instead of the check code.

    A derivative of `fn` makes no checks: the values that it uses have been checked.
    """
    count = len(program.outputs)

    def call(*args: Any) -> list:
        results = fn(*args)
        for number, check in enumerate(program.checks_of(args[: len(program.inputs)]), 1):
            message = error_text(check).replace("{", "{{").replace("}", "}}")
            checkify.check(results[count] != number, message)
        return results[:count]

    return call
