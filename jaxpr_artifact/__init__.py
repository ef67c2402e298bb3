"""Functions out of files: what `pytensor_jaxpr_linker` wrote is read and called here, with JAX and NumPy alone.

Nothing in this package imports PyTensor. ``python -m jaxpr_artifact --help`` lists what it does at the command line.
"""

from jaxpr_artifact.errors import ArtifactError
from jaxpr_artifact.iree import IreeFunction, IreeModule
from jaxpr_artifact.loaded import LoadedFunction
from jaxpr_artifact.loading import load, load_iree, load_iree_module

__all__ = ["ArtifactError", "IreeFunction", "IreeModule", "LoadedFunction", "load", "load_iree", "load_iree_module"]
