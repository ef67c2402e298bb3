"""Files: written whole or not at all, and checked when they are read.

A *container* is the file of a function for JAX: a header in JSON and members, which are runs of bytes.

====================  ================================================================================================
bytes                 contents
====================  ================================================================================================
8                     `MAGIC`
8                     the version of the format, a little-endian integer like the next one
8                     the size of the header
32                    SHA-256 of the 16 bytes before it and of the header
the size              the header: a JSON object of ASCII characters, with offset, size and SHA-256 of each member
the rest              the members in the order of the header, each at the next multiple of `ALIGNMENT`, zeros between
====================  ================================================================================================

Each byte of a file is compared with a checksum or with zero, so a reader sees every change. The offsets let a reader
map arrays into memory: JAX on the CPU uses memory at such addresses without a copy.

A *seal* is a checksum in a ``.vmfb`` file: IREE runs programs unchecked, and a damaged one would end the process.
Such a file is a ZIP archive, too, and the seal is its comment, so IREE and tools for archives read the file as before.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple


class ArtifactError(ValueError):
    """A file can't be used as an artifact: damaged, truncated, foreign, newer, or of parts that do not fit together.

    Its message names the file, the fault and the remedy.
    """

    def __init__(self, path: str | os.PathLike, what: str, remedy: str = "Export it again, or copy it again."):
        super().__init__(f"{os.fspath(path)}: {what} {remedy}")
        self.path, self.what, self.remedy = os.fspath(path), what, remedy

    def __reduce__(self) -> tuple:
        return type(self), (self.path, self.what, self.remedy)


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Give a new file to write, which replaces `path` if nothing fails; otherwise it is removed.

    A process that has an older file of that name mapped keeps the older one. The new one has the permissions of files
    that `open` makes, not the permissions that its writer gives it.
    """
    target = Path(path).resolve()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        new = Path(folder) / target.name
        yield new
        os.umask(mask := os.umask(0o077))  # it can only be read by setting it
        new.chmod(0o666 & ~mask)
        os.replace(new, target)


#: The end of an archive without a comment: its signature, the bytes that the seal covers, the length of the comment.
_END = struct.Struct("<4s16sH")
_SIGNATURE, _WORD = b"PK\x05\x06", b"sha256 "
_LENGTH = len(_WORD) + 64


def seal(path: str | os.PathLike) -> None:
    """Write the checksum of a file into it, or raise a ValueError if it is not an archive, or has a comment."""
    with open(path, "r+b") as file:
        data = file.read()
        signature, _, length = _END.unpack(data[-_END.size :])
        if signature != _SIGNATURE or length:
            raise ValueError(f"{os.fspath(path)} does not end as an archive without a comment does.")
        file.seek(-2, os.SEEK_END)
        file.write(struct.pack("<H", _LENGTH) + comment_of(data[:-2]))


def check_seal(path: str | os.PathLike) -> None:
    """Raise an ArtifactError if a file has changed since it was sealed."""
    with open(path, "rb") as file:
        data = file.read()
    if not data:
        raise ArtifactError(path, "The file is empty.")
    body, comment = data[: -_LENGTH - 2], data[-_LENGTH:]
    if not comment.startswith(_WORD):
        what = "The file has no checksum at its end: it is truncated, damaged, or was not written by this package."
        raise ArtifactError(path, what, "Save it again, or copy it again.")
    if data[-_LENGTH - 2 : -_LENGTH] != struct.pack("<H", _LENGTH) or comment != comment_of(body):
        raise ArtifactError(path, "The file is damaged: its checksum does not fit.", "Save it again, or copy it again.")


def comment_of(body: bytes) -> bytes:
    """Return the comment of an archive."""
    return _WORD + hashlib.sha256(body).hexdigest().encode("ascii")


#: The first byte is not text, and the line ends change where a file is copied as text: the trick of PNG.
MAGIC = b"\x89JAXPR\r\n"
#: Raised when older readers would misunderstand a file.
FORMAT_VERSION = 1
#: The alignment of memory that XLA's CPU client uses without a copy.
ALIGNMENT = 64
MOST_HEADER_BYTES = 2**26

_PREFIX = struct.Struct("<8sQQ32s")
_LAYOUT, _DIGEST = "members", re.compile("[0-9a-f]{64}")


class Contents(NamedTuple):
    """The contents of a container."""

    header: dict[str, Any]
    members: dict[str, memoryview]
    """The bytes of each member. They are mapped, and take no memory until they are read."""


def aligned(offset: int) -> int:
    """Return the next multiple of `ALIGNMENT`."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def write_container(
    path: str | os.PathLike,
    header: Mapping[str, Any],
    members: Mapping[str, Any],
    check: Callable[[Path], object] | None = None,
) -> None:
    """Write a container, in place of an older file. Equal contents give equal bytes.

    `header` is an object that `json` can write; the name `members` is taken. Members are objects with the buffer
    protocol, in C order. `check` raises if the new file is not fit for use, and is called before the file replaces an
    older one.
    """
    views = {
        name: memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
        for name, data in members.items()
    }
    digests = {name: hashlib.sha256(view).hexdigest() for name, view in views.items()}
    start = 0
    while True:  # offsets are part of the header, whose size they follow
        end = start
        places: list[tuple[str, int, int, str]] = []
        for name, view in views.items():
            offset = aligned(end)
            places.append((name, offset, view.nbytes, digests[name]))
            end = offset + view.nbytes
        text = canonical({**header, _LAYOUT: places})
        if _PREFIX.size + len(text) <= start:
            break
        start = aligned(_PREFIX.size + len(text))
    text = text.ljust(start - _PREFIX.size)  # blanks after the object
    numbers = struct.pack("<QQ", FORMAT_VERSION, len(text))
    prefix = _PREFIX.pack(MAGIC, FORMAT_VERSION, len(text), hashlib.sha256(numbers + text).digest())
    with replacing(path) as new:
        with open(new, "wb") as file:
            file.write(prefix + text)
            for (_, offset, _, _), view in zip(places, views.values(), strict=True):
                file.write(bytes(offset - file.tell()))
                file.write(view)
        if check is not None:
            check(new)


def canonical(value: Any) -> bytes:
    """Return JSON: one text for each value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def mapped(path: str | os.PathLike) -> memoryview:
    """Return the bytes of a file, mapped into memory; an ArtifactError if there are none."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise ArtifactError(path, "The file is empty.")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def read_container(path: str | os.PathLike, verify: bool = True, data: memoryview | None = None) -> Contents:
    """Open a container and check it.

    `data` are the bytes of the file, where they are in memory already. Checksums of members whose names begin with
    ``arrays/`` are compared if `verify`, all others always. Raise an ArtifactError for anything but a complete file of
    this format, or an OSError if it can't be read.
    """
    data = mapped(path) if data is None else data
    size = len(data)
    if bytes(data[:8]) != MAGIC:
        what, remedy = "The file is no artifact of pytensor_jaxpr_linker.", "Give the path of an exported file."
        raise ArtifactError(path, what, remedy)
    if size < _PREFIX.size:
        raise ArtifactError(path, "The file is truncated: it ends in its first bytes.")
    _, version, length, digest = _PREFIX.unpack(data[: _PREFIX.size])
    if version != FORMAT_VERSION:
        raise ArtifactError(
            path,
            f"The file has version {version} of the format, and this package reads version {FORMAT_VERSION}.",
            "Install a newer pytensor_jaxpr_linker." if version > FORMAT_VERSION else "Export it again.",
        )
    if length > min(size - _PREFIX.size, MOST_HEADER_BYTES):
        raise ArtifactError(path, f"The file is truncated: {size} bytes do not hold a header of {length}.")
    text = bytes(data[_PREFIX.size : _PREFIX.size + length])
    if hashlib.sha256(bytes(data[8:24]) + text).digest() != digest:
        raise ArtifactError(path, "The header is damaged: its checksum does not fit.")
    header = parsed(path, text)
    members = members_of(path, header.pop(_LAYOUT, None), data, _PREFIX.size + length, verify)
    return Contents(header, members)


def parsed(path: str | os.PathLike, text: bytes) -> dict[str, Any]:
    """Return the header that a text spells."""
    try:
        header = json.loads(text.decode("ascii"))
        if isinstance(header, dict) and canonical(header) == text.rstrip(b" "):
            return header
    except (ValueError, RecursionError):
        pass
    raise ArtifactError(path, "The header is not written as this format writes it.", "Export it again.")


def members_of(
    path: str | os.PathLike, places: Any, data: memoryview, start: int, verify: bool
) -> dict[str, memoryview]:
    """Return the members, which fill the file from `start` on."""
    members: dict[str, memoryview] = {}
    for place in places if isinstance(places, list) else [places]:
        match place:
            case [str(name), int(offset), int(size), str(digest)]:
                pass
            case _:
                raise ArtifactError(path, "The header does not say where the members are.", "Export it again.")
        if offset != aligned(start) or size < 0 or not _DIGEST.fullmatch(digest) or name in members:
            raise ArtifactError(path, f"The header misplaces the member {name!r:.80}.", "Export it again.")
        if offset + size > len(data):
            raise ArtifactError(path, f"The file is truncated: it ends before the end of the member {name!r:.80}.")
        if any(data[start:offset]):
            raise ArtifactError(path, f"The file is damaged before the member {name!r:.80}.")
        members[name] = data[offset : offset + size]
        if (verify or not name.startswith("arrays/")) and hashlib.sha256(members[name]).hexdigest() != digest:
            raise ArtifactError(path, f"The member {name!r:.80} is damaged: its checksum does not fit.")
        start = offset + size
    if start != len(data):
        raise ArtifactError(path, f"The file is damaged: {len(data) - start} bytes follow its end.")
    return members
