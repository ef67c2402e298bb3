"""Where rewritten graphs and programs of samplers are kept: in memory, and in a folder if the user names one."""

from __future__ import annotations

import os
import pickle
import tempfile
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.utils import Scratchpad

from pytensor_jaxpr_linker.base.bounded import Bounded
from pytensor_jaxpr_linker.base.errors import CacheWarning, warn_user
from pytensor_jaxpr_linker.base.private_files import make_folder, read_file

#: The number of entries in memory. A graph takes 10 to 50 KB, a sampler a few hundred.
MOST_GRAPHS = 64


class GraphStore:
    """Keeps values by key: the newest in memory, all in a folder."""

    def __init__(self) -> None:
        self._kept: Bounded[str, bytes] = Bounded(MOST_GRAPHS)
        self._folder: Path | None = None
        self._has_warned = False
        #: How many entries were found, and how many were looked for and not found.
        self.hits, self.misses = 0, 0

    @property
    def has_folder(self) -> bool:
        """Whether entries are kept for later processes."""
        return self._folder is not None

    def use(self, folder: Path | None) -> None:
        """Keep entries in a folder, which is made if it is missing, from now on; None for none."""
        if folder is not None:
            make_folder(folder)
        self._folder, self._has_warned = folder, False

    def clear(self) -> None:
        """Forget the entries in memory."""
        self._kept.clear()

    def find(self, key: str) -> Any:
        """Return the value under a key, or None."""
        data = self._kept.use(key) or self._read(key)
        found = None if data is None else self._unpacked(key, data)
        if found is None or data is None:
            self.misses += 1
            return None
        self.hits += 1
        self._kept[key] = data
        return found

    def keep(self, key: str, value: Any) -> None:
        """Keep a value under a key."""
        data = packed(value)
        self._kept[key] = data
        if self._folder is None:
            return
        try:
            write_at_once(self._folder / key, checksum(key, data) + data)
        except OSError as error:
            self._warn(f"Rewritten graphs and samplers can't be kept in {self._folder}: {error}")
            self._folder = None

    def _read(self, key: str) -> bytes | None:
        """Return the bytes that the folder has under a key, or None."""
        if self._folder is None:
            return None
        try:
            held = read_file(self._folder / key)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(f"An entry of the cache can't be read: {error}")
            return None
        data = held[CHECKSUM:]
        if held[:CHECKSUM] == checksum(key, data):
            return data
        self._warn(f"The entry {self._folder / key} of the cache is damaged")
        return None

    def _unpacked(self, key: str, data: bytes) -> Any:
        """Return the value that was packed, or None."""
        try:
            return pickle.loads(data)
        except Exception as error:  # a pickle may raise anything
            self._warn(f"The entry {key} of the cache can't be read: {error!r}")
            return None

    def _warn(self, problem: str) -> None:
        """Warn, once for each folder."""
        if not self._has_warned:
            self._has_warned = True
            warn_user(f"{problem}. It is made again. To do: look at the folder, or use another one.", CacheWarning)


def write_at_once(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees all of it or nothing. If the disk is full, no partial file is left."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def checksum(key: str, data: bytes) -> bytes:
    """Return the checksum of an entry."""
    return sha256(key.encode() + data).digest()


#: The length of a checksum.
CHECKSUM = 32


#: The caches of an `OpFromGraph` for its gradients: local functions, once somebody has differentiated an equal Op.
FORGOTTEN: dict[str, Any] = {"_lop_op_cache": {}, "_rop_op_cache": None}


class Pickler(pickle.Pickler):
    """Pickles without others' parts: variables inside Ops have the tags of an equal variable that was made first."""

    def reducer_override(self, value: Any) -> Any:
        """Return an empty tag for a tag, and an Op without its caches."""
        if type(value) is Scratchpad:
            return Scratchpad, ()
        if isinstance(value, OpFromGraph):
            reduced: Any = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            return *reduced[:2], reduced[2] | FORGOTTEN
        return NotImplemented


def packed(value: Any) -> bytes:
    """Return a value as bytes, for `pickle.loads`."""
    file = BytesIO()
    Pickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


#: The store of this process.
STORE = GraphStore()
