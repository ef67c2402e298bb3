"""What type checkers and editors see: the names that `__init__.py` imports when they are first used."""

from jaxpr_artifact.files import ArtifactError as ArtifactError
from jaxpr_artifact.iree import IreeFunction as IreeFunction
from jaxpr_artifact.iree import IreeModule as IreeModule
from jaxpr_artifact.loaded import LoadedFunction as LoadedFunction
from jaxpr_artifact.loading import load as load
from jaxpr_artifact.loading import load_iree as load_iree
from jaxpr_artifact.loading import load_iree_module as load_iree_module
