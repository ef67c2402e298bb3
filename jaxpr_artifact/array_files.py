"""Arrays on the command line: read from files or from what is typed, and saved in files."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpr_artifact.replacing import replacing


def read_inputs(names: Sequence[str], texts: Sequence[str]) -> list[Any]:
    """Return the arguments of these names that the texts say, in order.

    Raises
    ------
    TypeError
        If they are others, or one is given twice or not at all.
    """
    takes = f"it takes {', '.join(names) or 'no arguments'}"
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if text.endswith(".npz") and not (equals and name in names):
            found: dict[str, Any] = {**read_arrays(text)}
        elif equals and not Path(text).exists():
            found = {name: read_value(value) if name in names else None}
        else:
            positional.append(read_value(text))
            continue
        if unknown := [key for key in found if key not in names]:
            raise TypeError(f"{text} gives {unknown[0]!r}, and the function has no such argument: {takes}.")
        check_new(found, named)
        named |= found
    if len(positional) > len(names):
        raise TypeError(f"The function gets {len(positional)} arguments by position, and {takes}.")
    by_position = dict(zip(names, positional, strict=False))
    check_new(by_position, named)
    named |= by_position
    if missing := [name for name in names if name not in named]:
        raise TypeError(f"The function does not get {', '.join(missing)}: {takes}.")
    return [named[name] for name in names]


def check_new(found: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raise a TypeError if an argument is known already."""
    if again := sorted(found.keys() & known.keys()):
        raise TypeError(f"{again[0]} is given twice.")


def read_value(text: str) -> Any:
    """Return the array in a file, or the number that a text spells."""
    if text.endswith(".npy"):
        return np.load(text, allow_pickle=False)
    for kind in (int, float, complex):
        try:
            return kind(text)
        except ValueError:
            continue
    raise TypeError(f"{text!r} is no .npy or .npz file and no number.")


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Return the arrays of an ``.npz`` file by name."""
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def check_output_file(path: Path, outputs: Sequence[str]) -> None:
    """Raise a ValueError if outputs of these names can't be saved in a file of that name."""
    if path.suffix not in (".npz", ".npy"):
        raise ValueError(f"Outputs are saved in a .npz file, or one output in a .npy file, not {str(path)!r}.")
    if path.suffix == ".npy" and len(outputs) != 1:
        raise ValueError(
            f"A .npy file holds one array, and there are {len(outputs)}, {', '.join(outputs)}: name a .npz file."
        )


def save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays into an ``.npz`` file, by any names, or one into a ``.npy`` file. It takes the place of one that is there."""
    with replacing(path) as new:
        if path.suffix == ".npy":
            (array,) = arrays.values()
            np.save(new, array, allow_pickle=False)
            return
        with zipfile.ZipFile(new, "w") as archive:  # `numpy.savez` has parameters of its own, which names could be
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
