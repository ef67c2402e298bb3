"""Folders and files that nobody but the user can write to, as their contents are executed.

Windows has other owners and rights than this module reads: there nothing is checked, and a folder in the
user's profile is closed to others.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

#: The environment variable that names the folder of kept programs, or is "off".
CACHE_VARIABLE = "PYTENSOR_JAXPR_CACHE"
#: What the group and others may do: write to a file or a folder, or enter a folder.
WRITE, ENTER = stat.S_IWGRP | stat.S_IWOTH, stat.S_IXGRP | stat.S_IXOTH


class UnsafeFolderError(PermissionError):
    """Somebody else can change the contents of a folder."""


def make_folder(folder: Path) -> None:
    """Make a folder, and missing folders above it, for the user alone."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def checked_folder(folder: Path, with_files: bool = True) -> Path:
    """Return a folder without links on the way to it, or raise if somebody else can change its contents.

    As for the files of ssh, the folders above it count, up to the user's home: who may rename it there can put another
    one in its place. Its files count `with_files`: `read_file` checks each of them again.

    Raises
    ------
    UnsafeFolderError
        With the reason and the remedy.
    """
    real, home = folder.resolve(), Path(os.environ.get("HOME", "/"))
    if not hasattr(os, "geteuid"):
        return real
    if reason := why_foreign(real.stat()):
        raise unsafe_folder_error(folder, f"it {reason}")
    for above in real.parents:
        about = above.stat()
        # A group that has the user's number has no other members, by convention.
        is_closed = about.st_mode & stat.S_ISVTX or (about.st_gid == about.st_uid and not about.st_mode & stat.S_IWOTH)
        if reason := why_foreign(about, 0 if is_closed else WRITE):
            raise unsafe_folder_error(folder, f"{above}, above it, {reason}")
        if above == home:
            break
    unsafe = WRITE if real.stat().st_mode & ENTER else 0
    for path in real.iterdir() if with_files else ():
        if not path.is_symlink() and (reason := why_foreign(path.stat(), unsafe)):
            raise unsafe_folder_error(folder, f"{path.name}, in it, {reason}")
    return real


def read_file(path: Path) -> bytes:
    """Return the contents of a file, or raise a PermissionError if somebody else can write to it or has written it."""

    def opened(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))

    with open(path, "rb", opener=opened) as file:
        about = os.fstat(file.fileno())  # of the opened file, whatever takes its place meanwhile
        if hasattr(os, "geteuid") and (reason := why_foreign(about)):
            raise PermissionError(f"{path} {reason}")
        if not stat.S_ISREG(about.st_mode):
            raise PermissionError(f"{path} is no file")
        return file.read()


def why_foreign(about: os.stat_result, unsafe: int = WRITE) -> str | None:
    """Return why a file or a folder is not the user's alone, or None; nobody else may have the rights `unsafe`."""
    if about.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user (number {about.st_uid})"
    if about.st_mode & unsafe:
        return f"can be written to by other users (mode {stat.S_IMODE(about.st_mode):o})"
    return None


def unsafe_folder_error(folder: Path, reason: str) -> UnsafeFolderError:
    """Return the error for a folder, with the remedy."""
    return UnsafeFolderError(
        f"The folder {folder} is not used, for {reason}: what is read from it is executed, so nobody else may write"
        f" there. Do 'chmod 700 {folder}' if all that is in it is yours ('chown' gives it to you), or choose a new"
        " folder in your home, which is made for you alone."
    )
