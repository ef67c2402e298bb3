"""`KeptPrograms`: compiled programs for later calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

import jax

from pytensor_jaxpr_linker.base.bounded import Bounded
from pytensor_jaxpr_linker.pymc.folder_programs import FolderPrograms
from pytensor_jaxpr_linker.run.placement import process

#: How many programs of one model are kept: those of a few samplers, each with one for the constrained values.
MOST_PROGRAMS = 16


class KeptPrograms:
    """Compiled programs by what they depend on. The one that was used least recently goes first.

    Attributes
    ----------
    folder
        The programs of the same model that later processes find, before XLA compiles them.

    Examples
    --------
    >>> from pytensor_jaxpr_linker.pymc.kept_programs import KeptPrograms
    >>> kept = KeptPrograms()
    >>> kept.find("key", lambda: "made"), kept.find("key", lambda: "made again")
    ('made', 'made')
    """

    def __init__(self) -> None:
        self.folder = FolderPrograms()
        self._kept: Bounded[Hashable, Any] = Bounded(MOST_PROGRAMS)
        self._in_turn = threading.RLock()  # two threads that sample one model compile it once

    def find(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what is kept under a key, or make and keep it."""
        process.check()
        with self._in_turn:
            if key not in self._kept:
                self._kept[key] = make()
            return self._kept.use(key)

    def compiled(self, key: Hashable, function: Callable, args: tuple) -> jax.stages.Compiled:
        """Return the program of a function that is kept under a key, or compile it for arguments like these, and keep it."""
        return self.find(key, lambda: jax.jit(function).lower(*args).compile())

    def drop(self, key: Hashable) -> None:
        """Forget what is kept under a key: its compilation has failed."""
        with self._in_turn:
            self._kept.pop(key, None)

    def __len__(self) -> int:
        return len(self._kept)
