"""Functions out of files of `pytensor_jaxpr_linker`: they are read and called here, with JAX and NumPy alone.

Nothing in this package imports PyTensor. ``python -m jaxpr_artifact --help`` lists what it does at the command line.
"""

from importlib import import_module
from typing import Any

#: The modules of the public names. They are imported when a name is first used: `pytensor_jaxpr_linker` shares modules
#: of this package, and reads no file when it is imported.
_MODULE_OF = {
    "ArtifactError": "files",
    "IreeFunction": "iree",
    "IreeModule": "iree",
    "LoadedFunction": "loaded",
    "load": "loading",
    "load_iree": "loading",
    "load_iree_module": "loading",
}

__all__ = ["ArtifactError", "IreeFunction", "IreeModule", "LoadedFunction", "load", "load_iree", "load_iree_module"]


def __dir__() -> list[str]:
    return [*__all__]


def __getattr__(name: str) -> Any:
    """Import the module of a public name when the name is first used."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
