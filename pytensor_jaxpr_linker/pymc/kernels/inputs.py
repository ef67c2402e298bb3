"""Arguments of kernels that are inputs of their programs: a call with other values compiles nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def inputs_among(
    make_kernel: Callable, types: Mapping[str, Callable], arguments: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Divide the arguments of a kernel, those given and the defaults of others.

    Returns
    -------
    tuple of dict
        Those named in `types`, as arrays; and those on which the programs depend.
    """
    known = inspect.signature(make_kernel).parameters
    found = {name: p.default for name, p in known.items() if p.default is not p.empty} | dict(arguments)
    inputs = {name: np.asarray(as_type(found.pop(name))) for name, as_type in types.items()}
    return inputs, found
