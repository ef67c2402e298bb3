"""Files that appear when they are complete."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Give a new file to write, which takes the place of `path` if nothing fails; else nothing is left of it.

    Whoever has an older file of that name mapped keeps the older one. The new one has the permissions of files that `open` makes, whatever
    those of its writer are.
    """
    target = Path(path).resolve()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        new = Path(folder) / target.name
        yield new
        new.chmod(0o666 & ~umask())
        os.replace(new, target)


def umask() -> int:
    """Return the process's mask of permissions, which can only be read by setting it."""
    os.umask(mask := os.umask(0o077))
    return mask
