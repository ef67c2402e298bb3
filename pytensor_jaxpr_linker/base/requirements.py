"""The environment: versions, whether they fit, and a report. It imports none of the packages: one may be broken."""

from __future__ import annotations

import importlib
import os
import platform
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from importlib import metadata
from operator import eq, ge, gt, le, lt
from pathlib import Path
from typing import Any, NamedTuple

from pytensor_jaxpr_linker.base.version import __version__

#: Environment variables that have effects.
VARIABLES = re.compile(r"PYTENSOR_|JAX_|XLA_|CUDA_VISIBLE|OMP_NUM_THREADS|OPENBLAS_NUM_THREADS|MKL_NUM_THREADS")


class Section(NamedTuple):
    """A part of the report: its title and lines, and problems, each with a remedy."""

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
    """Return the environment variables that have effects, with their values."""
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


DISTRIBUTION = "pytensor_jaxpr_linker"
#: Packages that a report lists with the requirements, and extras whose packages it lists.
ALSO = ("jaxlib", "numba", "scipy")
LISTED_EXTRAS = re.compile(r"""extra == ['"](pymc|nutpie|numpyro|report)['"]""")
REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*([<>=!~0-9.,\s]*)")
RELEASE = re.compile(r"\d+(\.\d+)*")
BOUND_TESTS: dict[str, Callable[[Any, Any], bool]] = {">=": ge, "<=": le, "==": eq, "<": lt, ">": gt}


class Requirement(NamedTuple):
    """A package that this one needs, or may use."""

    name: str
    bounds: str  #: such as ``>=3.3,<3.4``, or nothing
    installed: str | None  #: the version that is installed, or None
    is_optional: bool

    @property
    def is_too_old(self) -> bool:
        """Whether the version is below the lower bound."""
        lower = [bound for bound in self.bounds.split(",") if bound.startswith(">=")]
        return self.installed is not None and not all(is_within(self.installed, bound) for bound in lower)

    @property
    def problem(self) -> str:
        """The problem with it, and the remedy, or nothing."""
        if self.installed is None:
            return "" if self.is_optional else f"{self.name} is missing: pip install '{self.name}{self.bounds}'"
        if all(is_within(self.installed, bound) for bound in self.bounds.split(",") if bound):
            return ""
        return f"{self.name} {self.installed} does not fit {self.bounds}: pip install '{self.name}{self.bounds}'"


def requirements() -> list[Requirement]:
    """Return the packages that this one needs, then packages that its extras and reports name, each once."""
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # a folder on the path, which nobody installed
        lines = ["pytensor", "jax", "numpy"]
    found: dict[str, Requirement] = {}
    for line in [*lines, *(f"{name}; extra == 'report'" for name in ALSO)]:
        specifier, _, marker = line.partition(";")
        match = REQUIREMENT.match(specifier)
        if match is None or match[1].replace("-", "_") == DISTRIBUTION or (marker and not LISTED_EXTRAS.search(marker)):
            continue
        name, bounds = match[1], ",".join(sorted(match[2].replace(" ", "").split(","), reverse=True))
        found.setdefault(name, Requirement(name, bounds, installed_version(name), bool(marker)))
    return list(found.values())


def installed_version(name: str) -> str | None:
    """Return the version of a distribution, or None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def is_within(version: str, bound: str) -> bool:
    """Return whether a version is within one bound, such as ``>=3.3``. Suffixes of releases (``rc1``) do not count."""
    match = re.fullmatch(r"(>=|<=|==|<|>)([\d.]+)", bound)
    if match is None:
        return True
    ours, limit = (release_numbers(text) for text in (version, match[2]))
    return BOUND_TESTS[match[1]](ours, limit)


def release_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a release, without zeros at the end: 3.3.0 is 3.3."""
    match = RELEASE.match(version)
    numbers = [int(n) for n in match[0].split(".")] if match else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def problems() -> list[str]:
    """Return a sentence for each package that is missing or has a version that does not fit."""
    return [r.problem for r in requirements() if r.problem]


def fitting_versions() -> Section:
    """Return a line for each package: its name, its version, the versions that fit."""
    width = max(len(r.name) for r in requirements())
    lines = [f"Python {platform.python_version()}"]
    for r in requirements():
        note = "" if not r.bounds else f"  needs {r.bounds}" + ("  <- does not fit" if r.problem else "")
        lines.append(f"{r.name:<{width}}  {r.installed or '-':<10}{note}".rstrip())
    return Section("Versions", lines, problems())


def import_problem(requirement: Requirement) -> str:
    """Return the error of the import of an installed package, and the remedy, or nothing."""
    try:
        importlib.import_module(requirement.name)
    except Exception as error:
        flags = os.environ.get("PYTENSOR_FLAGS", "")
        remedy = f"Install it again: pip install --force-reinstall '{requirement.name}{requirement.bounds}'"
        if requirement.name == "pytensor" and flags:
            remedy = f"PyTensor reads PYTENSOR_FLAGS={flags} when it is imported: correct it or unset it."
        if requirement.name == "pytensor" and "JAXPR" in flags:
            remedy += " It has no mode JAXPR yet: set pytensor.config.mode = 'JAXPR' after the import of this package."
        return f"{requirement.name} {requirement.installed} can't be imported ({described_error(error)}). {remedy}"
    return ""


def check() -> None:
    """Raise an ImportError if a package is missing or too old, or warn if it is too new, before its import fails.

    For ``python -m pytensor_jaxpr_linker doctor``, whose other parts need the imports, print the part that needs none,
    and exit.
    """
    needed = [r for r in requirements() if not r.is_optional]
    is_fatal = any(r.installed is None or r.is_too_old for r in needed)
    if is_doctor_asked():
        failed = [] if is_fatal else [problem for r in needed if (problem := import_problem(r))]
        if is_fatal or failed:
            print(report_block([fitting_versions(), Section("Settings", environment_lines(), failed)]))
            sys.exit(1)
    told = "; ".join(r.problem for r in needed if r.problem)
    if is_fatal:
        raise ImportError(f"pytensor_jaxpr_linker can't be imported. To do: {told}")
    if told:
        warnings.warn(f"pytensor_jaxpr_linker is tested with other versions. To do: {told}", stacklevel=3)


def is_doctor_asked() -> bool:
    """Return whether this process is ``python -m pytensor_jaxpr_linker doctor``."""
    words = sys.orig_argv
    return any(words[i : i + 3] == ["-m", DISTRIBUTION, "doctor"] for i in range(len(words)))
