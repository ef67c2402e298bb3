"""The file: a header in JSON and members, which are runs of bytes.

====================  =======================================================================================
bytes                 what
====================  =======================================================================================
8                     `MAGIC`
8                     the version of the format, a little-endian integer like the next one
8                     the size of the header
32                    SHA-256 of the 16 bytes before it and of the header
as said               the header: a JSON object of ASCII characters, with offset, size and SHA-256 of each member
the rest              the members in the order of the header, each from the next multiple of `ALIGNMENT` on, zeros between them
====================  =======================================================================================

Each byte of a file is compared with a checksum or with zero, so a reader sees every change. The offsets let a reader map arrays into
memory: JAX on the CPU uses memory at such addresses without a copy.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxpr_artifact.errors import ArtifactError
from jaxpr_artifact.replacing import replacing

#: The first byte is no text, and the line ends change where a file is copied as text: the trick of PNG.
MAGIC = b"\x89JAXPR\r\n"
#: Raised when older readers would misunderstand a file.
FORMAT_VERSION = 1
#: What XLA's CPU client asks of memory that it uses as it is.
ALIGNMENT = 64
MOST_HEADER_BYTES = 2**26

_PREFIX = struct.Struct("<8sQQ32s")
_LAYOUT, _DIGEST = "members", re.compile("[0-9a-f]{64}")


class Contents(NamedTuple):
    """What is in a file."""

    header: dict[str, Any]
    members: dict[str, memoryview]
    """The bytes of each member. They are mapped: what is not read takes no memory."""


def aligned(offset: int) -> int:
    """Return the next multiple of `ALIGNMENT`."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def write_container(
    path: str | os.PathLike,
    header: Mapping[str, Any],
    members: Mapping[str, Any],
    check: Callable[[Path], object] | None = None,
) -> None:
    """Write a file, in place of one that is there. Equal contents give equal bytes.

    Parameters
    ----------
    path
        The file. Whoever has an older one of that name mapped keeps the older one.
    header
        What `json` can write; `members` is taken.
    members
        The bytes of each member: anything with the buffer protocol, in C order.
    check
        Raises if the new file is not fit for use. It is called before the file takes the place of an older one.
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
    """Return the bytes of a file, mapped into memory.

    Raises
    ------
    ArtifactError
        If there are none.
    OSError
        If the file can't be read.
    """
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise ArtifactError(path, "The file is empty.")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def read_container(path: str | os.PathLike, verify: bool = True, data: memoryview | None = None) -> Contents:
    """Open a file and check it.

    Parameters
    ----------
    path
        The file, which errors name.
    data
        Its bytes, where they are in memory already.
    verify
        Whether to compare the checksums of all members. If not, only those of members whose names do not begin with ``arrays/``.

    Raises
    ------
    ArtifactError
        If it is anything but a complete file of this format.
    OSError
        If it can't be read.
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
        is_canonical = isinstance(header, dict) and canonical(header) == text.rstrip(b" ")
    except (ValueError, RecursionError):
        is_canonical = False
    if not is_canonical:
        raise ArtifactError(path, "The header is not written as this format writes it.", "Export it again.")
    return header


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
