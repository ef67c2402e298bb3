"""A pause of Python's cyclic garbage collection while many objects that stay are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the collection of cycles: its time grows with all objects, so that builds would not take linear time.

    Also a decorator. Where the collector is off already, it stays off.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
