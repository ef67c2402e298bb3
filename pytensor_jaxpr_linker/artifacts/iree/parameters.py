"""Archives of arrays (``.irpa``), which IREE maps into memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxpr_artifact.iree_function import iree_runtime


def write_parameters(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays into an archive, by the names that a program has for them: ``#flow.parameter.named<"scope"::"name">``.

    The file appears when it is complete.
    """
    index = iree_runtime().ParameterIndex()
    for name, array in arrays.items():
        index.add_buffer(name, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    folder = Path(path).absolute().parent
    with tempfile.TemporaryDirectory(prefix=".iree-", dir=folder) as scratch:
        whole = Path(scratch, "parameters.irpa")
        index.create_archive_file(str(whole))
        os.replace(whole, path)
