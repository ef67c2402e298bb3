"""Reads what a program says of itself: JSON that travels with it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

from jaxpr_artifact.errors import ArtifactError
from jaxpr_artifact.header import Argument, Misfit, Stored, check_aval, decoded


def read_description[T](
    cls: type[T], path: str | os.PathLike, text: Any, says: str, remedy: str, check: Callable[[T], None]
) -> T:
    """Return the description that a text spells.

    Parameters
    ----------
    cls
        A dataclass of what `decoded` takes.
    path, text
        The file, and the text in it.
    says, remedy
        For the errors: what the text would say, and what to do.
    check
        Raises a `Misfit` if the parts do not fit.

    Raises
    ------
    ArtifactError
        If there is no text, or its parts do not fit.
    """
    if not isinstance(text, str):
        raise ArtifactError(path, f"The program does not say {says}.", remedy)
    try:
        found: T = decoded(cls, json.loads(text), "description")
        check(found)
    except (ValueError, RecursionError, Misfit) as error:
        raise ArtifactError(path, f"Its description is wrong: {error}.", remedy) from None
    return found


def check_fixed(arrays: Iterable[Argument | Stored]) -> None:
    """Raise a `Misfit` if arrays are none, or have lengths without a number."""
    for a in arrays:
        check_aval(a.name, a.dtype, a.shape)
        if not all(isinstance(n, int) for n in a.shape):
            raise Misfit(f"{a.name} has lengths without a number")
