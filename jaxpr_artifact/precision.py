"""The precision of a thread's JAX, `jax.enable_x64`, as it was found."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import jax

#: ``with jax.enable_x64(True)`` calls these on entry and exit, by way of five Python functions, which take seven times as long.
#: The first returns this thread's flag, the second sets it. Read it before a `try` and set it inside: Ctrl-C may come after any call.
thread_x64, set_thread_x64 = jax.enable_x64.get_local, jax.enable_x64.set_local


def with_x64_restored[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function: an error leaves this thread's precision as it was, also Ctrl-C while JAX's context manager enters or exits."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        outside = thread_x64()
        try:
            return function(*args, **kwargs)
        except BaseException:
            set_thread_x64(outside)
            raise

    return call


def with_x64[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function: it runs with 64 bits, as in ``with jax.enable_x64(True)``."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        outside = thread_x64()
        try:
            set_thread_x64(True)
            return function(*args, **kwargs)
        finally:
            set_thread_x64(outside)

    return call
