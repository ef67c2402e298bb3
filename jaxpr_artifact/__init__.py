"""Functions out of files: what `pytensor_jaxpr_linker.export` wrote is read and called here, with JAX and NumPy alone.

Nothing in this package imports PyTensor. ``python -m jaxpr_artifact --help`` lists what it does at the command line.
"""

from jaxpr_artifact.errors import ArtifactError
from jaxpr_artifact.loaded import LoadedFunction, load

__all__ = ["ArtifactError", "LoadedFunction", "load"]
