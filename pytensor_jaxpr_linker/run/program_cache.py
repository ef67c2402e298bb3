"""Compiled programs and rewritten graphs that are kept in a folder, for later processes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import jax
import pytensor
from jax.experimental.compilation_cache import compilation_cache

from pytensor_jaxpr_linker.base.errors import CacheWarning, warn_user
from pytensor_jaxpr_linker.base.private_files import UnsafeFolderError, checked_folder, make_folder
from pytensor_jaxpr_linker.graph.rewritten.store import STORE


def cache(directory: str | Path | None = None) -> Path | None:
    """Keep XLA's programs, PyTensor's rewritten graphs and samplers of PyMC models in a folder from now on, and take those that are there from it.

    A function that an earlier process compiled needs no time of XLA and of PyTensor's rewrites then, and a sampler is not traced again. Programs are in JAX's persistent
    compilation cache, with programs of every size: it serves all JAX code of the process. An entry that can't be read or written costs a warning, and
    the program is compiled, or the graph rewritten, again.

    Parameters
    ----------
    directory : str or Path, optional
        The folder, which is made if it is missing. If None, one in PyTensor's ``base_compiledir``, for this platform and Python.

    Notes
    -----
    What is read from the folder is executed: its folder ``graphs`` has pickles, and programs are machine code. So a
    folder that somebody else can write to is refused, as ssh does, and what is made is for you alone. JAX reads and
    writes its programs by itself: this check of the folder, and of what is in it, protects them. Windows has no such
    rights, and nothing is checked there: choose a folder in your profile.

    Returns
    -------
    Path or None
        The folder; None, with a `CacheWarning`, if no file can be written there.

    Raises
    ------
    UnsafeFolderError
        A PermissionError, if the folder or something in it belongs to another user or can be written to by one, or a
        folder above it can.

    Examples
    --------
    >>> import tempfile
    >>> import pytensor_jaxpr_linker as pjl
    >>> folder = pjl.cache(tempfile.mkdtemp())
    """
    if directory is None:
        compiled = Path(pytensor.config.compiledir)
        directory = compiled.with_name(compiled.name.replace("compiledir", "xla"))
    folder = Path(directory).expanduser()
    try:
        make_folder(folder)
        real = checked_folder(folder)  # a link may lead elsewhere later
        make_folder(real / "graphs")
        checked_folder(real / "graphs")
        with tempfile.TemporaryFile(dir=real) as file:
            file.write(b"0")
    except UnsafeFolderError:
        raise
    except OSError as error:
        message = (
            f"Compiled programs can't be kept in {folder}: {error}. Functions work, and are compiled in each process. To do: call"
            " pytensor_jaxpr_linker.cache(directory) with a folder that can be written to."
        )
        warn_user(message, CacheWarning)
        return None
    STORE.use(real / "graphs")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # JAX remembers that it had none, if it has compiled before
    compilation_cache.set_cache_dir(str(real))
    return folder
