"""`load`: the function or module in a file, of any kind that this package reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jaxpr_artifact.descriptions import described, described_module
from jaxpr_artifact.files import MAGIC
from jaxpr_artifact.iree import DEVICE, IreeFunction, IreeModule, IreeProgram
from jaxpr_artifact.loaded import LoadedFunction

#: The first bytes of a ZIP archive, the format of the programs of IREE's compiler.
ARCHIVE = b"PK\x03\x04"


def load(
    path: str | os.PathLike,
    *,
    verify: bool = True,
    device: str | None = None,
    parameters: str | os.PathLike | None = None,
) -> Any:
    """Return the function or the module in a file that this package wrote. It needs JAX and NumPy, not PyTensor.

    Parameters
    ----------
    path : str or os.PathLike
        A file of `pytensor_jaxpr_linker.export`, or a ``.vmfb`` file, which `pytensor_jaxpr_linker.Module.save` writes,
        too, and which needs IREE's runtime. Its contents decide, not its name. Leave it as it is while it is in use:
        its arrays are mapped into memory. (An export to the same path makes a new file.)
    verify : bool
        Whether to compare the checksums of stored arrays, which reads them; checksums of programs are always compared.
    device : str
        Where a ``.vmfb`` file runs, see `load_iree`. Others run where JAX computes.
    parameters : str or os.PathLike
        The file of a module's parameters, see `load_iree_module`.

    Returns
    -------
    LoadedFunction, IreeFunction or IreeModule
        A function is called by position or by name; the functions of a module are its attributes. ``print`` describes
        it.

    Raises
    ------
    ArtifactError
        If the file is damaged, truncated, not an artifact, or of a version that this package does not read.
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
        if program.is_module:
            return IreeModule(program, parameters, verify)
        if parameters is not None:
            raise TypeError(f"parameters={parameters!r} is for modules, and {program.path} is one function.")
        return IreeFunction(program)
    for option, given in (("device", device), ("parameters", parameters)):
        if given is not None:
            what = f"{option}={given!r} is for .vmfb files, and {os.fspath(path)} is none"
            raise TypeError(f"{what}: JAX runs it on its own devices.")
    return LoadedFunction(path, verify)


def load_iree(path: str | os.PathLike, *, device: str = DEVICE) -> IreeFunction:
    """Return the function in a ``.vmfb`` file of `pytensor_jaxpr_linker.export`.

    It needs IREE's runtime and no compiler.

    Parameters
    ----------
    path : str or os.PathLike
        The file. It is mapped into memory; an export to the same path makes a new file.
    device : str
        Where it runs, as ``iree-run-module --device`` takes it: "local-task" uses all cores, "local-sync" the thread of
        the caller.

    Returns
    -------
    IreeFunction
        Call it by position or by name. ``print`` describes it.

    Raises
    ------
    ArtifactError
        If the file is damaged, of another machine, or not a file of this package.
    ImportError
        If the runtime is not installed.

    Examples
    --------
    The first lines need the compiler, the last one needs neither it nor PyTensor:

    >>> import pytest
    >>> _ = pytest.importorskip("iree.compiler"), pytest.importorskip("iree.runtime")
    >>> import tempfile, pytensor.tensor as pt, pytensor_jaxpr_linker as pjl
    >>> x = pt.vector("x", dtype="float64")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pjl.export([x], pt.exp(-x), path=f"{folder}/decay.vmfb", dims={"x": "2"}, name="decay")
    ...     decay = load_iree(f"{folder}/decay.vmfb")
    >>> decay([0.0, 1.0]).round(3)
    array([1.   , 0.368])
    >>> decay([0.0, 1.0, 2.0])
    Traceback (most recent call last):
    ...
    TypeError: x has shape (2,), and its value has (3,).
    """
    return IreeFunction(IreeProgram(path, device))


def load_iree_module(
    path: str | os.PathLike, *, parameters: str | os.PathLike | None = None, device: str = DEVICE, verify: bool = True
) -> IreeModule:
    """Return the module in a ``.vmfb`` file of `pytensor_jaxpr_linker.Module.save`.

    It needs IREE's runtime and no compiler.

    Parameters
    ----------
    path : str or os.PathLike
        The file. It is mapped into memory, like its parameters.
    parameters : str or os.PathLike
        The file of its parameters, by default with the same name, but ending with ``.irpa`` or ``.safetensors``.
    device : str
        Where it runs, as ``iree-run-module --device`` takes it.
    verify : bool
        Whether to compare the checksums of the parameters, which reads them. The program's is always compared.

    Returns
    -------
    IreeModule
        Its functions are its attributes. It begins with the state that the module had when it was saved.

    Raises
    ------
    ArtifactError
        If a file is damaged, missing, of another machine, or not a module of this package.
    ImportError
        If the runtime is not installed.

    Examples
    --------
    >>> import pytest
    >>> _ = pytest.importorskip("iree.compiler"), pytest.importorskip("iree.runtime")
    >>> import tempfile, pytensor, pytensor.tensor as pt, pytensor_jaxpr_linker as pjl
    >>> count, by = pytensor.shared(0, name="count"), pt.lscalar("by")
    >>> class Counter(pjl.Module):
    ...     advance = pjl.public([by], count + by, updates={count: count + by})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Counter().save(f"{folder}/counter.vmfb")
    ...     counter = load_iree_module(f"{folder}/counter.vmfb")  # without PyTensor
    >>> counter.advance(3), counter.advance(by=3)
    (array(3), array(6))
    """
    return IreeModule(IreeProgram(path, device), parameters, verify)


def description_of(path: str | os.PathLike) -> str:
    """Return the description of a file. A program of IREE may be for another machine."""
    if not is_iree_file(path):
        return str(LoadedFunction(path))
    program = IreeProgram(path)
    return described_module(program.description()) if program.is_module else described(program.header())


def is_iree_file(path: str | os.PathLike) -> bool:
    """Return whether IREE's compiler wrote a file: by its first bytes, or by its name if they do not decide."""
    with open(path, "rb") as file:
        start = file.read(len(MAGIC))
    return start != MAGIC and (start.startswith(ARCHIVE) or Path(path).suffix == ".vmfb")
