"""Archives of arrays (``.irpa``), which IREE maps into memory."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from jaxpr_artifact.iree_program import iree_runtime


def write_parameters(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays into an archive, by the names that a program has for them: ``#flow.parameter.named<"scope"::"name">``."""
    index = iree_runtime().ParameterIndex()
    for name, array in arrays.items():
        index.add_buffer(name, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    index.create_archive_file(os.fspath(path))
