"""The threads of JAX and IREE, which a fork leaves behind, and the precision of the calling thread: `jax.enable_x64`.

A fork copies no threads of a library, so a program would never end in the child. `Threads` refuses to run it there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps

import jax

#: How to start processes that have threads of their own.
OTHER_PROCESSES = (
    "start processes of your own by `multiprocessing.get_context('forkserver')`, in a script under"
    " `if __name__ == '__main__':`"
)


class Threads:
    """The threads of a library in this process.

    `have_started` returns whether the library started its threads, whoever asked it to; by default only calls of
    `start` count. `remedy` is the advice in the error message. `has_no_threads` says whether the threads were left
    behind in the process that this one was forked from.
    """

    def __init__(self, library: str):
        self._library, self._started = library, False
        self.have_started: Callable[[], bool] = lambda: False
        self.remedy = f"{OTHER_PROCESSES}."
        self.has_no_threads = False
        if hasattr(os, "register_at_fork"):  # Windows lacks it, and forks nothing
            os.register_at_fork(after_in_child=self.note_fork)

    def note_fork(self) -> None:
        """Take note that this is the child of a fork."""
        self.has_no_threads = self.has_no_threads or self._started or self.have_started()

    def check(self) -> None:
        """Raise a RuntimeError if a program would never end here."""
        if self.has_no_threads:
            raise RuntimeError(
                f"This process was forked from one in which {self._library} was running. {self._library} has threads,"
                f" which a fork does not copy, so a program would wait here forever. To do: {self.remedy}"
            )

    def start(self) -> None:
        """Check, and take note that the library runs from now on."""
        self.check()
        self._started = True


jax_threads, iree_threads = Threads("JAX"), Threads("IREE")

#: ``with jax.enable_x64(True)`` calls these on entry and exit through five Python functions, which take seven times as
#: long. The first returns this thread's flag, the second sets it. Read the flag before a `try` and set it inside:
#: Ctrl-C may come after any call.
thread_x64, set_thread_x64 = jax.enable_x64.get_local, jax.enable_x64.set_local


def with_x64_restored[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function: an error leaves this thread's precision as it was.

    This holds for Ctrl-C, too, while JAX's context manager enters or exits.
    """

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
