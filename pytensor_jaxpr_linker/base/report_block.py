"""The text of a report on the environment: a block of Markdown for a bug report. It needs nothing that may be broken."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pytensor_jaxpr_linker.base.version import __version__

#: Environment variables that change what runs.
VARIABLES = re.compile(r"PYTENSOR_|JAX_|XLA_|CUDA_VISIBLE|OMP_NUM_THREADS|OPENBLAS_NUM_THREADS|MKL_NUM_THREADS")


class Section(NamedTuple):
    """A part of the report: its title and lines, and what is wrong, each with what to do."""

    title: str
    lines: list[str]
    problems: Sequence[str] = ()


def report_block(sections: Sequence[Section]) -> str:
    """Return the sections and a verdict as a block of Markdown."""
    lines = ["```text", f"pytensor_jaxpr_linker {__version__}"]
    for section in sections:
        lines += ["", section.title, *(f"  {line}" for line in section.lines)]
    problems = [problem for section in sections for problem in section.problems]
    lines += ["", "Verdict", *(f"  - {problem}" for problem in problems or ["Nothing is wrong."]), "```"]
    return without_home("\n".join(lines))


def environment_lines() -> list[str]:
    """Return the environment variables that change what runs, with their values."""
    return [f"{name}={value}" for name, value in sorted(os.environ.items()) if VARIABLES.match(name)]


def described_error(error: BaseException) -> str:
    """Return an error as one line: its text, or where it was raised if it has none."""
    text = next(iter(str(error).splitlines()), "")
    if text:
        return f"{type(error).__name__}: {text}"
    places = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}" + (f" at {places[-1].filename}:{places[-1].lineno}" if places else "")


def without_home(text: str) -> str:
    """Replace the user's home folder, which is nobody's business, by ``~``."""
    home = str(Path.home())
    return text if len(home) < 3 else text.replace(home, "~")
