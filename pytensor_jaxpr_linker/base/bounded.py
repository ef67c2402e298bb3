"""`Bounded`, the dict of every cache in memory that keeps a limited number of entries by key."""

from __future__ import annotations

import threading


class Bounded[Key, Value](dict[Key, Value]):
    """A dict of at most `most` entries: beyond that, the entry that was set or used longest ago goes.

    Any number of threads may use it.

    Examples
    --------
    >>> from pytensor_jaxpr_linker.base.bounded import Bounded
    >>> kept = Bounded(2)
    >>> kept["a"], kept["b"] = 1, 2
    >>> kept.use("a"), kept.use("c")
    (1, None)
    >>> kept["d"] = 3
    >>> dict(kept)
    {'a': 1, 'd': 3}
    """

    def __init__(self, most: int):
        super().__init__()
        self._most, self._lock = most, threading.Lock()

    def __setitem__(self, key: Key, value: Value) -> None:
        with self._lock:
            self.pop(key, None)
            super().__setitem__(key, value)
            if len(self) > self._most:
                del self[next(iter(self))]

    def use(self, key: Key) -> Value | None:
        """Return the value of a key, or None, and count that as a use. `get` does not count."""
        with self._lock:
            if key not in self:
                return None
            value = self.pop(key)
            super().__setitem__(key, value)
        return value
