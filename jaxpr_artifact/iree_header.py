"""What a ``.vmfb`` file of IREE says of the function in it: a text that travels with the program."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

from jaxpr_artifact.description import check_fixed, read_description
from jaxpr_artifact.header import Argument, Check, Fixed, Stored

#: The attribute of the function ``main`` that holds the description, among those that IREE keeps for programs that load a module.
ATTRIBUTE = "pytensor_jaxpr_linker"

#: The functions of a file: the program, and the first values of the state.
MAIN, FIRST_STATE = "main", "first_state"


@dataclass(frozen=True)
class IreeHeader:
    """What a file says of itself.

    ``main`` takes the arguments and the state, and returns the outputs, the updates and, if there are checks, the number of the first one that
    failed, or 0. ``first_state`` takes nothing and returns the state.
    """

    name: str
    arguments: tuple[Argument, ...]
    state: tuple[Stored, ...]
    outputs: tuple[Argument, ...]
    is_bare: bool
    fixed: tuple[Fixed, ...]
    checks: tuple[Check, ...]
    target: str
    versions: dict[str, str]
    note: str = ""

    def as_text(self) -> str:
        """Return the description as JSON."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))


def iree_header_of(path: str | os.PathLike, text: Any) -> IreeHeader:
    """Return the description that a text spells.

    Raises
    ------
    ArtifactError
        If there is none, or its parts do not fit.
    """
    remedy = "Export it again, as a `.vmfb` file of pytensor_jaxpr_linker."
    return read_description(
        IreeHeader,
        path,
        text,
        "what its arguments are",
        remedy,
        lambda header: check_fixed((*header.arguments, *header.outputs, *header.state)),
    )
