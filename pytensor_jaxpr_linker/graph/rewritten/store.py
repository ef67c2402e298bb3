"""Where rewritten graphs and programs are kept: in memory, and in a folder for later processes."""

from __future__ import annotations

import os
import pickle
import tempfile
import threading
import time
from contextlib import suppress
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import pytensor
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.utils import Scratchpad

from pytensor_jaxpr_linker.base.bounded import Bounded
from pytensor_jaxpr_linker.base.errors import CacheWarning, warn_user
from pytensor_jaxpr_linker.base.private_files import (
    CACHE_VARIABLE,
    UnsafeFolderError,
    checked_folder,
    make_folder,
    read_file,
)

#: The number of entries in memory: graphs, which take 10 to 50 KB.
MOST_GRAPHS = 64
#: The most bytes in the default folder, and the part of them that is left when the entries that were used least
#: recently go.
MOST_BYTES, LEFT = 2**30, 0.8
#: One of 16 writes, by the key, may prune the folder.
RARE = "0"
#: Seconds after which a file that was being written has no writer any more.
ABANDONED = 3600
#: How the names of such files begin.
WRITING = "writing-"


class GraphStore:
    """Keeps values by key: the newest graphs in memory, all in a folder, by default `default_folder`."""

    def __init__(self) -> None:
        self._kept: Bounded[str, bytes] = Bounded(MOST_GRAPHS)
        self._folder: Path | None = None
        self._is_chosen = self._has_warned = self._has_pruned = False
        self._choosing = threading.Lock()
        #: How many entries were found, and how many were looked for and not found.
        self.hits, self.misses = 0, 0

    @property
    def folder(self) -> Path | None:
        """Where entries are kept for later processes, or None."""
        if not self._is_chosen:
            with self._choosing:
                if not self._is_chosen:
                    self._folder, self._is_chosen = default_folder(), True
        return self._folder

    @property
    def has_folder(self) -> bool:
        """Whether entries are kept for later processes."""
        return self.folder is not None

    def use(self, folder: Path | None) -> None:
        """Keep entries in a folder, which is made if it is missing, from now on; None for none. Nothing is pruned."""
        if folder is not None:
            make_folder(folder)
        self._folder, self._is_chosen, self._has_warned, self._has_pruned = folder, True, False, True

    def clear(self) -> None:
        """Forget the entries in memory."""
        self._kept.clear()

    def find(self, key: str, in_memory: bool = True) -> Any:
        """Return the value under a key, or None. With `in_memory` its bytes stay in memory."""
        data = self._kept.use(key) or self._read(key)
        found = None if data is None else self._unpacked(key, data)
        if found is None or data is None:
            self.misses += 1
            return None
        self.hits += 1
        if in_memory:
            self._kept[key] = data
        return found

    def keep(self, key: str, value: Any, in_memory: bool = True) -> None:
        """Keep a value under a key."""
        data = packed(value)
        if in_memory:
            self._kept[key] = data
        folder = self.folder
        if folder is None:
            return
        try:
            write_at_once(folder / key, checksum(key, data) + data)
        except OSError as error:
            self.warn(f"Rewritten graphs and programs can't be kept in {folder}: {error}")
            self._folder = None
        if key.startswith(RARE) and not self._has_pruned:
            self._has_pruned = True
            threading.Thread(target=prune, args=(folder, MOST_BYTES), daemon=True).start()

    def _read(self, key: str) -> bytes | None:
        """Return the bytes that the folder has under a key, or None."""
        if (folder := self.folder) is None:
            return None
        path = folder / key
        try:
            held = read_file(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.warn(f"An entry of the cache can't be read: {error}")
            return None
        data = held[CHECKSUM:]
        if held[:CHECKSUM] == checksum(key, data):
            with suppress(OSError):
                os.utime(path)  # pruning goes by the last use
            return data
        self.warn(f"The entry {path} of the cache is damaged")
        return None

    def _unpacked(self, key: str, data: bytes) -> Any:
        """Return the value that was packed, or None."""
        try:
            return pickle.loads(data)
        except Exception as error:  # a pickle may raise anything
            self.warn(f"The entry {key} of the cache can't be read: {error!r}")
            return None

    def warn(self, problem: str) -> None:
        """Warn, once for each folder."""
        if not self._has_warned:
            self._has_warned = True
            warn_user(f"{problem}. It is made again. To do: look at the folder, or use another one.", CacheWarning)


def default_folder() -> Path | None:
    """Return the folder that `CACHE_VARIABLE` names, or else one beside what PyTensor compiles; None for none.

    A folder that others can write to costs a `CacheWarning`, and is not used. One that can't be made is not used.
    """
    chosen = os.environ.get(CACHE_VARIABLE, "")
    if chosen.lower() in ("off", "0", "false"):
        return None
    folder = Path(chosen).expanduser() if chosen else Path(pytensor.config.base_compiledir) / "jaxpr"
    try:
        make_folder(folder)
        return checked_folder(folder, with_files=False)
    except UnsafeFolderError as error:
        warn_user(f"No program is kept for later processes. {error}", CacheWarning)
    except OSError:  # such as a home that can't be written to
        pass
    return None


def prune(folder: Path, most: int) -> list[Path]:
    """Delete the entries that were used least recently if all take more than `most` bytes. Return what was deleted."""
    entries: list[tuple[float, int, Path]] = []
    with suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            with suppress(OSError):  # another process may have deleted it
                about = entry.stat()
                entries.append((about.st_mtime, about.st_size, Path(entry.path)))
    total, old = sum(size for _, size, _ in entries), time.time() - ABANDONED
    left = total if total <= most else LEFT * most
    gone = []
    for used, size, path in sorted(entries):
        is_abandoned = path.name.startswith(WRITING) and used < old
        if total > left or is_abandoned:
            with suppress(OSError):
                path.unlink()
                gone.append(path)
            total -= size
    return gone


def write_at_once(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees all of it or nothing. If the disk is full, no partial file is left."""
    handle, name = tempfile.mkstemp(prefix=WRITING, dir=path.parent)
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
