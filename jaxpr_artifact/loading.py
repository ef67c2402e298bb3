"""`load`: what is in a file, of whichever kind that this package reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jaxpr_artifact.container import MAGIC
from jaxpr_artifact.describe import described, described_module
from jaxpr_artifact.iree_function import IreeFunction
from jaxpr_artifact.iree_module import IreeModule
from jaxpr_artifact.iree_program import DEVICE, IreeProgram
from jaxpr_artifact.loaded import LoadedFunction

#: The first bytes of a ZIP archive, as which IREE's compiler writes programs.
ARCHIVE = b"PK\x03\x04"


def load(path: str | os.PathLike, *, verify: bool = True, device: str | None = None) -> Any:
    """Return the function or the module in a file that this package wrote. It needs JAX and NumPy, not PyTensor.

    Parameters
    ----------
    path : str or os.PathLike
        A file of `pytensor_jaxpr_linker.export`, or a ``.vmfb`` file, of `pytensor_jaxpr_linker.Module.save`, too, which needs IREE's
        runtime. What is in it decides, not its name. Leave it as it is while it is in use: its arrays are mapped into memory. (An export
        to the same path makes a new file.)
    verify : bool
        Whether to compare the checksums of stored arrays, which reads them; those of the programs are always compared.
    device : str
        Where a ``.vmfb`` file runs, see `load_iree`. Others run where JAX computes.

    Returns
    -------
    LoadedFunction, IreeFunction or IreeModule
        A function is called by position or by name; the functions of a module are its attributes. ``print`` says what it was made of.

    Raises
    ------
    ArtifactError
        If the file is damaged, truncated, no artifact, or one of a version that this package does not read.
    OSError
        If the file can't be read.

    Examples
    --------
    The first lines run where PyTensor is, the last ones anywhere:

    >>> import tempfile, pytensor.tensor as pt, pytensor_jaxpr_linker as pjl
    >>> x, scale = pt.vector("x", dtype="float64"), pt.scalar("scale", dtype="float64")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     exported = pjl.export([x, scale], pt.exp(-x / scale), path=f"{folder}/decay.jaxpr", name="decay")
    ...     decay = load(f"{folder}/decay.jaxpr")
    >>> decay([0.0, 1.0], scale=0.5).round(3)
    array([1.   , 0.135])
    >>> decay([0.0, 1.0], scale=[0.5])
    Traceback (most recent call last):
    ...
    TypeError: scale has 0 axes, (), and its value has shape (1,).
    """
    if is_iree_file(path):
        program = IreeProgram(path, DEVICE if device is None else device)
        return IreeModule(program, verify=verify) if program.is_module else IreeFunction(program)
    if device is not None:
        raise TypeError(
            f"device={device!r} is for .vmfb files, and {os.fspath(path)} is none: JAX runs it on its own devices."
        )
    return LoadedFunction(path, verify)


def description_of(path: str | os.PathLike) -> str:
    """Return what a file was made of. A program of IREE may be one for another machine."""
    if not is_iree_file(path):
        return str(LoadedFunction(path))
    program = IreeProgram(path)
    return described_module(program.description()) if program.is_module else described(program.header())


def is_iree_file(path: str | os.PathLike) -> bool:
    """Tell whether IREE's compiler wrote a file: by what it begins with, or by its name if that says nothing."""
    with open(path, "rb") as file:
        start = file.read(len(MAGIC))
    return start != MAGIC and (start.startswith(ARCHIVE) or Path(path).suffix == ".vmfb")
