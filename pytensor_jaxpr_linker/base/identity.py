"""The identity of objects that have no hash, or a slow one."""

from __future__ import annotations

#: Returns an integer that is an object's own as long as it lives, as `id` does. But `id` raises an audit event: where something listens
#: to those, as `filelock` does, which JAX and PyTensor import, it takes five times as long.
identity = object.__hash__
