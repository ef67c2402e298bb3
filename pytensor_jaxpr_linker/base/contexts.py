"""Context managers that users hold: they print as the call that made them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import wraps
from types import TracebackType
from typing import Any


class Entered(threading.local):
    """The contexts that a thread has entered and not left, the innermost last."""

    def __init__(self) -> None:
        self.contexts: list[AbstractContextManager[Any, bool | None]] = []


@contextmanager
def bound[T](variable: ContextVar[T], value: T) -> Iterator[None]:
    """Give a context variable a value in a ``with`` block; Ctrl-C could come between a token's making and a `try`."""
    before = variable.get()
    try:
        variable.set(value)
        yield
    finally:
        variable.set(before)


class NamedContext[T](AbstractContextManager[T, bool | None]):
    """A context that prints as the call that made it; it may be entered again, within itself and in other threads."""

    def __init__(self, make: Callable[[], Any], call: str):
        self._make, self._call = make, call
        self._entered = Entered()

    def __enter__(self) -> T:
        context, entered = self._make(), self._entered.contexts
        try:
            found = context.__enter__()
            entered.append(context)
            return found
        except BaseException:  # after Ctrl-C, Python calls no `__exit__`
            entered[:] = [other for other in entered if other is not context]
            context.gen.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._entered.contexts.pop().__exit__(kind, error, trace)

    def __call__[**P, R](self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function: its calls run inside the context."""

        @wraps(function)
        def within(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._make():
                return function(*args, **kwargs)

        return within

    def __repr__(self) -> str:
        return f"<{self._call}, for a with block>"


def named_context[**P, T](function: Callable[P, Iterator[T]]) -> Callable[P, NamedContext[T]]:
    """Make a context manager of a generator, like `contextlib.contextmanager`; its contexts print as their calls."""
    make = contextmanager(function)

    @wraps(function)
    def context(*args: P.args, **kwargs: P.kwargs) -> NamedContext[T]:
        given: list[Any] = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
        return NamedContext(lambda: make(*args, **kwargs), f"{function.__name__}({', '.join(given)})")

    return context
