"""The identity of objects that have no hash, or a slow one."""

from __future__ import annotations

#: Return an integer that no other living object has, as `id` does. `id` also raises an audit event, which makes it five times slower
#: where something listens: `filelock` does, and JAX and PyTensor import it.
identity = object.__hash__
