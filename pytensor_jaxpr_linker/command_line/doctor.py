"""``doctor``: whether versions, devices, settings, folders and compilers fit together, and a program that runs."""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.gradient import grad

from pytensor_jaxpr_linker.base.documentation import SITE
from pytensor_jaxpr_linker.base.requirements import problems, version_lines
from pytensor_jaxpr_linker.base.version import __version__
from pytensor_jaxpr_linker.report.explain import explain
from pytensor_jaxpr_linker.report.text import duration

#: Environment variables that change what runs.
VARIABLES = re.compile(r"PYTENSOR_|JAX_|XLA_|CUDA_VISIBLE|OMP_NUM_THREADS|OPENBLAS_NUM_THREADS|MKL_NUM_THREADS")
#: How far results of the program may be from NumPy's.
TOLERANCE = 1e-12


class Section(NamedTuple):
    """A part of the report: its title and lines, and what is wrong, each with what to do."""

    title: str
    lines: list[str]
    problems: list[str]


class Examination(NamedTuple):
    """What `examine` found. Print it: the text is a block of Markdown for a bug report."""

    sections: list[Section]

    @property
    def problems(self) -> list[str]:
        """What is wrong, each with what to do."""
        return [problem for section in self.sections for problem in section.problems]

    def __str__(self) -> str:
        lines = ["```text", f"pytensor_jaxpr_linker {__version__}"]
        for section in self.sections:
            lines += ["", section.title, *(f"  {line}" for line in section.lines)]
        lines += ["", "Verdict", *(f"  - {problem}" for problem in self.problems or ["Nothing is wrong."]), "```"]
        return without_home("\n".join(lines))


def examine() -> Examination:
    """Look at the environment, and run a program in it."""
    parts: list[Callable[[], Section]] = [
        installed_versions,
        machine,
        devices,
        jax_and_pytensor_settings,
        folders,
        compilers,
        program,
    ]
    return Examination([looked_at(part) for part in parts])


def looked_at(part: Callable[[], Section]) -> Section:
    """Return a part, or what it failed with: one that fails must not hide the others."""
    try:
        return part()
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        return Section(part.__name__.capitalize(), [f"failed: {said}"], [f"{part.__name__}: {said}"])


def installed_versions() -> Section:
    """Return the packages, and whether their versions fit."""
    return Section("Versions", [f"Python {platform.python_version()}", *version_lines()], problems())


def machine() -> Section:
    """Return what the machine is."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Section("Machine", [platform.platform(), f"{platform.machine()}, {cores} cores for this process"], [])


def devices() -> Section:
    """Return JAX's devices; a GPU that JAX does not see is a problem."""
    found = jax.devices()
    lines = [f"{device.platform} {device.id}: {device.device_kind}" for device in found]
    wrong = []
    if shutil.which("nvidia-smi") and all(device.platform == "cpu" for device in found):
        wrong.append(
            "There is an NVIDIA driver (nvidia-smi), and JAX sees no GPU: pip install 'jax[cuda13]' for JAX's plugin, or set"
            " JAX_PLATFORMS=cpu to compute on the CPU on purpose."
        )
    return Section("Devices of JAX", lines, [] if os.environ.get("JAX_PLATFORMS") == "cpu" else wrong)


def jax_and_pytensor_settings() -> Section:
    """Return the settings that change results or what runs."""
    lines = [
        f"jax_enable_x64 = {jax.config.jax_enable_x64}  (functions of mode JAXPR keep 64 bits in either case)",
        f"pytensor.config.floatX = {pytensor.config.floatX}",
        f"pytensor.config.mode = {pytensor.config.mode}",
    ]
    lines += [f"{name}={value}" for name, value in sorted(os.environ.items()) if VARIABLES.match(name)]
    return Section("Settings", lines, [])


def folders() -> Section:
    """Return the folders for compiled code, and whether they can be written to."""
    compiled = Path(pytensor.config.base_compiledir)
    kept = jax.config.jax_compilation_cache_dir
    lines = [f"PyTensor compiles in {compiled}"]
    lines.append(f"JAX keeps programs in {kept}" if kept else "Programs are not kept for later processes: pjl.cache()")
    wrong = [
        f"{folder} can't be written to: {error}. Set {variable} to another folder."
        for folder, variable in ((compiled, "PYTENSOR_FLAGS=base_compiledir=..."), (kept, "JAX_COMPILATION_CACHE_DIR"))
        if folder and (error := write_error(Path(folder)))
    ]
    return Section("Folders", lines, wrong)


def write_error(folder: Path) -> OSError | None:
    """Return why no file can be written to a folder, or None."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
    except OSError as error:
        return error
    return None


def compilers() -> Section:
    """Return the compilers beside XLA: mode JAXPR needs none of them."""
    cxx = pytensor.config.cxx or "none (mode JAXPR needs none; PyTensor's C code is off)"
    return Section("Compilers", ["XLA: a part of jaxlib", f"C++ of PyTensor: {cxx}"], [])


def program() -> Section:
    """Run a small program, and compare its results with NumPy's."""
    x = pt.vector("x", dtype="float64")
    y = pt.log1p(pt.exp(x)).sum()
    slope: Any = grad(y, x)
    given = np.linspace(-3.0, 3.0, 7)
    started = perf_counter()
    f = pytensor.function([x], [y, slope], mode="JAXPR")
    value, gradient = f(given)
    first = perf_counter() - started
    started = perf_counter()
    for _ in range(100):
        f(given)
    call = (perf_counter() - started) / 100
    expected = np.log1p(np.exp(given)).sum(), 1 / (1 + np.exp(-given))
    error = max(abs(value - expected[0]), abs(gradient - expected[1]).max())
    lines = [
        f"log(1 + exp(x)).sum() and its gradient: first result after {duration(first)}, a call {duration(call)}",
        f"largest error {error:.1e}; {explain(f).summary}",
    ]
    wrong = [f"The program is wrong by {error:.1e}: report it with this block ({SITE})."] if error > TOLERANCE else []
    return Section("A program", lines, wrong)


def without_home(text: str) -> str:
    """Replace the user's home folder, which is nobody's business, by ``~``."""
    home = str(Path.home())
    return text if len(home) < 3 else text.replace(home, "~")
