"""Refuses to run programs in a process forked after JAX or IREE started: a fork copies none of their threads, so programs would never end."""

from __future__ import annotations

import os
from collections.abc import Callable

#: How to start processes that have threads of their own.
OTHER_PROCESSES = "start processes of your own by `multiprocessing.get_context('forkserver')`, in a script under `if __name__ == '__main__':`"


class Threads:
    """The threads of a library in this process, which a fork leaves behind.

    Attributes
    ----------
    have_started
        Returns whether the library started its threads, whoever asked it to. By default only calls of `start` count.
    remedy
        What to do, for the message.
    has_no_threads
        Whether the threads were left behind in the process that this one was forked from.
    """

    def __init__(self, library: str):
        self._library, self._started = library, False
        self.have_started: Callable[[], bool] = lambda: False
        self.remedy = f"{OTHER_PROCESSES}."
        self.has_no_threads = False
        if hasattr(os, "register_at_fork"):  # there is none on Windows, where nothing is forked
            os.register_at_fork(after_in_child=self.note_fork)

    def note_fork(self) -> None:
        """Take note that this is the child of a fork."""
        self.has_no_threads = self.has_no_threads or self._started or self.have_started()

    def check(self) -> None:
        """Raise a RuntimeError if a program would never end here."""
        if self.has_no_threads:
            raise RuntimeError(
                f"This process was forked from one in which {self._library} was running. {self._library} has threads, which a fork does not"
                f" copy, so a program would wait here forever. To do: {self.remedy}"
            )

    def start(self) -> None:
        """Check, and take note that the library runs from now on."""
        self.check()
        self._started = True


jax_threads, iree_threads = Threads("JAX"), Threads("IREE")
