"""A checksum in a ``.vmfb`` file. IREE runs what is in it without a look, and a damaged program would end the process.

Such a file is a ZIP archive, too. The checksum is the archive's comment, so IREE and tools for archives read the file as before.
"""

from __future__ import annotations

import hashlib
import os
import struct

from jaxpr_artifact.errors import ArtifactError

#: The end of an archive without a comment: its signature, what the checksum covers, and the length of the comment.
_END = struct.Struct("<4s16sH")
_SIGNATURE, _WORD = b"PK\x05\x06", b"sha256 "
_LENGTH = len(_WORD) + 64


def seal(path: str | os.PathLike) -> None:
    """Write the checksum of a file into it.

    Raises
    ------
    ValueError
        If it is no archive, or has a comment.
    """
    with open(path, "r+b") as file:
        data = file.read()
        signature, _, length = _END.unpack(data[-_END.size :])
        if signature != _SIGNATURE or length:
            raise ValueError(f"{os.fspath(path)} does not end as an archive without a comment does.")
        file.seek(-2, os.SEEK_END)
        file.write(struct.pack("<H", _LENGTH) + comment_of(data[:-2]))


def check_seal(path: str | os.PathLike) -> None:
    """Raise an ArtifactError if a file is not as it was sealed."""
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
