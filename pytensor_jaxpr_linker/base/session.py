"""Everything that this process has built, in order, for `session_report`: graphs, functions, programs, samplers."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from pytensor_jaxpr_linker.base.contexts import bound
from pytensor_jaxpr_linker.base.errors import is_in_package, is_of_python, library_folders

#: How many builds are remembered: the latest ones.
MOST_BUILDS = 10_000

type Kind = Literal["graph", "function", "program", "sampler"]


@dataclass
class BuildRecord:
    """Something that was built.

    Attributes
    ----------
    kind
        A rewritten graph, a function, a program of a function for shapes, or the programs of a model or a sampler.
    name
        The name of the function, program or sampler.
    line
        The file and number of the user's line, or nothing in a thread of this package.
    seconds
        How long its stages took. Those of XLA are added when they end.
    kept
        Whether it was found where an earlier call or process had kept it.
    cause
        Why a program is built: the shape or value that it is for, and the difference to the one before.
    is_part
        Whether its time is part of another build's: of the programs of a sampler.
    """

    kind: Kind
    name: str
    line: str
    seconds: dict[str, float]
    kept: bool = False
    cause: str = ""
    is_part: bool = False


#: The builds of this process.
BUILDS: deque[BuildRecord] = deque(maxlen=MOST_BUILDS)


def note_build(kind: Kind, name: str, seconds: dict[str, float], kept: bool = False, cause: str = "") -> None:
    """Remember that something was built at the user's line."""
    BUILDS.append(BuildRecord(kind, name, users_line(), seconds, kept, cause, _in_another.get()))


_in_another: ContextVar[bool] = ContextVar("in_another_build", default=False)


@contextmanager
def parts_of_build() -> Iterator[None]:
    """Take the builds of a ``with`` block for parts of another one, whose time contains theirs."""
    with bound(_in_another, True):
        yield


def users_line() -> str:
    """Return file and number of the innermost line of this thread that is the user's, or nothing."""
    frame: Any = sys._getframe(1)
    folders = library_folders()
    while frame is not None:
        file = frame.f_code.co_filename
        if not (file.startswith(folders) or is_of_python(file) or is_in_package(file)):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
