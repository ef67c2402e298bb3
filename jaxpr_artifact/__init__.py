"""Functions out of files of `pytensor_jaxpr_linker`: they are read and called here, with JAX and NumPy alone.

Nothing in this package imports PyTensor. ``python -m jaxpr_artifact --help`` lists what it does at the command line.
"""

from jaxpr_artifact.first_use import on_first_use

#: The modules of the public names. They are imported when a name is first used: `pytensor_jaxpr_linker` shares modules
#: of this package, and reads no file when it is imported.
_MODULE_OF = {
    "ArtifactError": "jaxpr_artifact.files",
    "IreeFunction": "jaxpr_artifact.iree",
    "IreeModule": "jaxpr_artifact.iree",
    "LoadedFunction": "jaxpr_artifact.loaded",
    "load": "jaxpr_artifact.loading",
    "load_iree": "jaxpr_artifact.loading",
    "load_iree_module": "jaxpr_artifact.loading",
}

__all__ = ["ArtifactError", "IreeFunction", "IreeModule", "LoadedFunction", "load", "load_iree", "load_iree_module"]


def __dir__() -> list[str]:
    return [*__all__]


__getattr__ = on_first_use(__name__, _MODULE_OF)
