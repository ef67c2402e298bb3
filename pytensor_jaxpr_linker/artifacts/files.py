"""Writes a function into a file, of the kind that its name says: ``.vmfb`` for IREE, any other for JAX."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from jaxpr_artifact import IreeFunction, LoadedFunction
from pytensor_jaxpr_linker.artifacts.iree.compiled import write_iree
from pytensor_jaxpr_linker.artifacts.iree.targets import CompileTarget
from pytensor_jaxpr_linker.artifacts.lowering import PLATFORMS
from pytensor_jaxpr_linker.artifacts.writing import Exportable, write_exportable
from pytensor_jaxpr_linker.run.placement import process


def is_for_iree(path: str | os.PathLike) -> bool:
    """Return whether a path names a file of IREE."""
    return Path(path).suffix.lower() == ".vmfb"


#: Names of formats that no artifact is a file of.
OTHER_FORMATS = frozenset(
    [".mlir", ".mlirbc", ".onnx", ".pb", ".pt", ".pkl", ".h5", ".json", ".npy", ".npz", ".safetensors", ".irpa"]
)


def check_kind(path: str | os.PathLike) -> None:
    """Raise an error if a file can't be written because of its path: the name is that of another format, the folder is missing.

    Raises
    ------
    ValueError, FileNotFoundError, IsADirectoryError
    """
    if Path(path).is_dir():
        raise IsADirectoryError(
            f"{os.fspath(path)} is a folder: export writes a file, such as {Path(path, 'f.jaxpr')}."
        )
    if not Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(f"{os.fspath(path)}: the folder {Path(path).parent} is missing.")
    if (suffix := Path(path).suffix.lower()) in OTHER_FORMATS:
        others = "Module('m', functions={'f': f}).mlir().save(path) writes MLIR" if suffix.startswith(".mlir") else ""
        raise ValueError(
            f"{os.fspath(path)}: export does not write {suffix} files. A name that ends in .jaxpr is for JAX, one in .vmfb for IREE."
            f"{f' {others}.' if others else ''}"
        )


def platforms_of(path: str | os.PathLike, platforms: Sequence[str]) -> Sequence[str]:
    """Return the platforms that a function is planned for: IREE takes what JAX emits for a CPU, whatever the target."""
    return ("cpu",) if is_for_iree(path) else platforms


def write_file(
    path: str | os.PathLike,
    given: Exportable,
    platforms: Sequence[str],
    target: CompileTarget,
    vjp_order: int = 0,
    batched: bool = False,
    constraints: Sequence[str] = (),
) -> LoadedFunction | IreeFunction | None:
    """Write a function, and return what is in the file; None if it is for another machine.

    Raises
    ------
    TypeError
        If an option is none of the kind of file.
    """
    process.start()  # lowering has threads, too
    if not is_for_iree(path):
        if target != "host":
            raise TypeError(f"target={target!r} is for files of IREE, whose names end in .vmfb; others have platforms.")
        return write_exportable(path, given, platforms, vjp_order, batched, constraints)
    options = {"platforms": tuple(platforms) != PLATFORMS, "vjp_order": vjp_order, "batched": batched}
    if wrong := [name for name, is_given in options.items() if is_given]:
        raise TypeError(
            f"{wrong[0]} is for files of JAX. A .vmfb file holds one program: export the gradient, or a function of a batch, as a"
            " function of its own, and say where it runs by target."
        )
    return write_iree(path, given, target)
