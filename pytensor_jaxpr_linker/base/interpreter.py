"""The Python process: identities of objects, pauses of the garbage collector, its end with the process, and cores."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import IOBase

#: Return an integer that no other living object has, as `id` does. `id` also raises an audit event, which makes it five
#: times slower where something listens: `filelock` does, and JAX and PyTensor import it.
identity = object.__hash__


#: So many new objects may become old unseen between two collections of all objects: these come when new ones have
#: become a quarter of all, which does not count them.
MOST_UNSEEN = 250_000


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the collection of cycles, also as a decorator. On errors, too, the collector is left as it was found.

    The collector belongs to the process, so the pause is only around code that makes many objects that stay: rewriting,
    copying, planning and lowering a graph, and explaining it. A collection takes time in proportion to all objects of
    the process, 0.15 s where PyMC is imported, so without the pause these would not take linear time. With 12,000 nodes
    and 600,000 other objects, the fastest of seven runs took 639 ms instead of 749 to copy, 137 instead of 174 to plan,
    309 instead of 355 to lower. Of threads whose pauses overlap, the one that found the collector on turns it on.

    What was made during the pause is then old, for most of it stays: a graph and its functions. To look at it once more
    took 5 to 15 ms of a first result.
    """
    was_enabled = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if was_enabled:
            try:
                UNSEEN.make_old()
            finally:
                gc.enable()


class Unseen:
    """Counts the objects that became old without a collection."""

    def __init__(self) -> None:
        self.count, self.collections = 0, -1

    def make_old(self) -> None:
        """Make all objects old, unless many are already unseen, or the user has frozen some."""
        collections = gc.get_stats()[-1]["collections"]
        if collections != self.collections:
            self.count, self.collections = 0, collections
        new = gc.get_count()[0]
        if self.count + new <= MOST_UNSEEN and not gc.get_freeze_count():
            self.count += new
            gc.freeze()
            gc.unfreeze()


UNSEEN = Unseen()


def skip_last_collection() -> None:
    """Have Python end the process without its last collections of cycles.

    They take a second where PyMC and JAX are imported. They stay where IREE is imported, whose bindings would report
    the objects as leaked.

    They free memory, which the end of the process frees as well, and call ``__del__`` of objects in cycles, which
    Python does not promise. It matters for files alone: all that are open are flushed here.
    """
    if "iree" in sys.modules:
        return
    kinds: list[type] = [IOBase.__mro__[1]]
    for kind in kinds:  # which grows
        kinds += kind.__subclasses__()
    of_files = set(kinds)
    for file in [x for x in gc.get_objects() if type(x) in of_files]:
        with suppress(Exception):
            if not file.closed and file.writable():
                file.flush()
    gc.freeze()


atexit.register(skip_last_collection)


def usable_cores() -> int:
    """Return the number of cores that this process may use: fewer in a container or under ``taskset``."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
