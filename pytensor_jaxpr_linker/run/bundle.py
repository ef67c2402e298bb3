"""Bundles: one file with the kept programs of a folder, for the folder of another process, such as one of CI.

A bundle and its entries are pickles without classes and functions, which can only make numbers, names, bytes and
containers: whatever names something is refused before that is imported. Rewritten graphs do, so they are left out. A
program is machine code of XLA, which runs with the user's rights when a function with its key is compiled; nothing can
check that.
"""

from __future__ import annotations

import pickle
import re
from hashlib import sha256
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from pytensor_jaxpr_linker.base.jax_compat import PlainProgram
from pytensor_jaxpr_linker.graph.rewritten import environment
from pytensor_jaxpr_linker.graph.rewritten.store import CHECKSUM, MOST_BYTES, checksum, packed, prune, write_at_once
from pytensor_jaxpr_linker.run.kept_executables import cpu

#: How each bundle begins, and how one of this format goes on. Behind it come the checksum of the rest, and a pickle of
#: what the writer was and of the entries by key, as the folder has them.
MAGIC, FORMAT = b"programs of pytensor_jaxpr_linker, format ", b"1\n"
#: A bundle may have this many bytes more than a folder.
MOST_OTHER_BYTES = 2**24
ENTRY_KEY = re.compile(r"[0-9a-f]{64}")
#: The packages whose versions a message names.
NAMED_PACKAGES = "jax", "jaxlib", "pytensor"


class BundleError(ValueError):
    """A file is not a bundle that can be imported, and nothing of it was."""


class Imported(NamedTuple):
    """The numbers of programs that were added and that were there already, and how their writer differs."""

    added: int
    known: int
    differences: list[str]


class PlainUnpickler(pickle.Unpickler):
    """Reads data without classes and functions."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse a class or a function, before it is imported."""
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def export_bundle(folder: Path, path: Path) -> int:
    """Write the programs of a folder to a file, and return how many they are."""
    held = {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if ENTRY_KEY.fullmatch(file.name)}
    entries = {key: data for key, data in held.items() if refusal_of_entry(key, data) is None}
    contents = packed((writer_here(), entries))
    write_at_once(path, MAGIC + FORMAT + sha256(contents).digest() + contents)
    return len(entries)


def import_bundle(path: Path, folder: Path) -> Imported:
    """Add the programs of a bundle to a folder: all, or none if one is refused or can't be written."""
    if path.stat().st_size > MOST_BYTES + MOST_OTHER_BYTES:
        raise BundleError(f"{path} is larger than the folder of programs may be; nothing was imported.")
    writer, entries = read_bundle(path)
    new = {folder / key: data for key, data in entries.items() if not (folder / key).exists()}
    try:
        for place, data in new.items():
            write_at_once(place, data)
    except BaseException:
        for place in new:
            place.unlink(missing_ok=True)
        raise
    prune(folder, MOST_BYTES)
    here = writer_here()
    named = [f"{name} {writer.get(name)}, here {here[name]}" if name in NAMED_PACKAGES else name for name in here]
    differences = [text for text, name in zip(named, here, strict=True) if writer.get(name) != here[name]]
    return Imported(len(new), len(entries) - len(new), differences)


def read_bundle(path: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return what the writer of a bundle was, and the entries by key, or raise a `BundleError`."""
    data, start = path.read_bytes(), len(MAGIC + FORMAT)
    try:
        if not data.startswith(MAGIC):
            raise ValueError("it is not a bundle of programs")
        if not data.startswith(MAGIC + FORMAT):
            raise ValueError("it has another format, of another version of this package")
        seal, contents = data[start : start + CHECKSUM], data[start + CHECKSUM :]
        if sha256(contents).digest() != seal:
            raise ValueError("it is damaged or not complete")
        writer, entries = PlainUnpickler(BytesIO(contents)).load()  # anyone can make a seal
        for key, held in dict.items(entries):
            if why := refusal_of_entry(key, held):
                raise ValueError(f"of one entry {why}")
        return dict(writer), entries
    except Exception as error:  # a pickle may raise anything
        raise BundleError(f"{path} is refused, as {error}; nothing was imported.") from None


def refusal_of_entry(key: Any, held: Any) -> str | None:
    """Return why an entry of a folder is not taken for one of programs, or None. Nothing in it is executed."""
    try:
        if not ENTRY_KEY.fullmatch(key):
            return f"the key is {key!r}"
        if held[:CHECKSUM] != checksum(key, held[CHECKSUM:]):
            return "the checksum is wrong"
        programs, _ = PlainUnpickler(BytesIO(held[CHECKSUM:])).load()
        for program in programs:
            PlainProgram(*program)
    except Exception as error:  # a pickle may raise anything
        return str(error) or type(error).__name__
    return None


def writer_here() -> dict[str, str]:
    """Return what differs between machines and is in keys, by words for messages."""
    found = {name: version(name) for name in NAMED_PACKAGES}
    return found | {"other files of packages": environment.versions(), "another processor": cpu()}
