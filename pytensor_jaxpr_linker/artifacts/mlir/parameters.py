"""Files of parameters: large arrays of a module by name, for runtimes to map into memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxpr_artifact.iree_program import iree_runtime
from jaxpr_artifact.replacing import replacing

#: What writes each kind of file, and the extra that installs it.
FILE_PACKAGES = {".safetensors": ("safetensors", "export"), ".irpa": ("iree.runtime", "iree")}


def write_parameter_file(path: str | os.PathLike, parameters: Mapping[str, np.ndarray]) -> None:
    """Write arrays into a ``.irpa`` or ``.safetensors`` file, in place of one that is there.

    Raises
    ------
    ImportError
        If the package that writes such files is missing.
    ValueError
        If the file is of another kind.
    """
    kind = Path(path).suffix
    if kind not in FILE_PACKAGES:
        raise ValueError(f"Parameters are written into .irpa or .safetensors files, not {os.fspath(path)!r}.")
    write = write_archive if kind == ".irpa" else write_safetensors
    with replacing(path) as new:
        try:
            write(new, {name: np.ascontiguousarray(x).reshape(x.shape) for name, x in parameters.items()})
        except ImportError as error:
            package, extra = FILE_PACKAGES[kind]
            raise ImportError(
                f"A {kind} file needs the package {package}: pip install 'pytensor_jaxpr_linker[{extra}]'."
            ) from error


def write_archive(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an archive of IREE, by the names that a program has for arrays: ``#flow.parameter.named<"scope"::"name">``."""
    index = iree_runtime().ParameterIndex()
    for name, array in arrays.items():
        index.add_buffer(name, array.reshape(-1).view(np.uint8))
    index.create_archive_file(os.fspath(path))


def write_safetensors(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a file of the package safetensors."""
    from safetensors.numpy import save_file

    save_file(dict(arrays), path)


def sha256_of(array: np.ndarray) -> str:
    """Return the SHA-256 of the bytes that files of parameters have for an array."""
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8)).hexdigest()
