"""``doctor``: checks versions, devices, settings, folders and compilers, and runs programs."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.gradient import grad

from pytensor_jaxpr_linker.base import requirements
from pytensor_jaxpr_linker.base.interpreter import usable_cores
from pytensor_jaxpr_linker.base.requirements import Section, described_error, environment_lines, report_block
from pytensor_jaxpr_linker.base.words import SITE, counted
from pytensor_jaxpr_linker.graph.rewritten.store import STORE
from pytensor_jaxpr_linker.report.explain import explain
from pytensor_jaxpr_linker.report.measure import seconds_of
from pytensor_jaxpr_linker.report.text import duration
from pytensor_jaxpr_linker.run import kept_executables

#: The number of draws of each chain of the trial, after as many for its adaptation.
DRAWS = 500
#: The largest difference between results of the program and of NumPy.
TOLERANCE = 1e-12


class Examination(NamedTuple):
    """The result of `examine`. Print it: the text is a block of Markdown for a bug report."""

    sections: list[Section]

    @property
    def problems(self) -> list[str]:
        """The problems, each with its remedy."""
        return [problem for section in self.sections for problem in section.problems]

    def __str__(self) -> str:
        return report_block(self.sections)


def examine() -> Examination:
    """Look at the environment, and run programs in it."""
    return Examination([looked_at(title, part) for title, part in PARTS.items()])


def looked_at(title: str, part: Callable[[], Section]) -> Section:
    """Return a section, or its error: a part that fails must not hide the others."""
    try:
        return part()
    except Exception as error:
        said = described_error(error)
        return Section(title, [f"failed: {said}"], [f"{title}: {said}. Report it with this block ({SITE})."])


#: What the workflows cover, by the system and its processors: docs/platforms.md says when each last ran.
TESTED = {"Linux": ("x86_64", "aarch64"), "Darwin": ("arm64",), "Windows": ("AMD64",)}


def machine() -> Section:
    """Return the kind of machine, the number of cores, and what differs between platforms."""
    cores = f"{platform.machine()}, {counted(usable_cores(), 'core')} for this process"
    return Section("Machine", [platform.platform(), cores, *differences()])


def differences() -> list[str]:
    """Return what this platform has of all that docs/platforms.md tells of."""
    system, of = platform.system(), platform.machine()
    tested = "a workflow covers" if of in TESTED.get(system, ()) else "no workflow covers"
    forks = hasattr(os, "fork")
    noticed = "are noticed" if hasattr(os, "register_at_fork") else "are not noticed: start processes by spawn"
    start = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    cores = "this process may use" if hasattr(os, "sched_getaffinity") else "the machine has"
    rights = "are checked" if hasattr(os, "geteuid") else "are not read: keep the folders in your profile"
    listed = (
        "are part of the key of a kept program"
        if Path(kept_executables.CPU_FILE).is_file()
        else "are unknown: programs stay here"
    )
    return [
        f"{tested} {system or 'an unknown system'} on {of or 'unknown processors'} "
        f"({SITE}platforms.html says when it last ran)",
        f"forks {noticed}" if forks else "nothing forks here",
        f"processes of chains start by {start}",
        f"cores are those that {cores}",
        f"rights of folders {rights}",
        f"the processor's instructions {listed}",
    ]


def devices() -> Section:
    """Return JAX's devices. Without a device, or with a GPU that JAX does not see, there is a problem."""
    asked = os.environ.get("JAX_PLATFORMS")
    if reason := no_device():
        remedy = (
            f"JAX_PLATFORMS={asked} forbids all other devices: unset it, or install what JAX needs there (pip install"
            " 'jax[cuda13]' for an NVIDIA GPU)."
            if asked
            else "Install JAX again: pip install --force-reinstall jax jaxlib"
        )
        return Section("Devices of JAX", ["none"], [f"JAX finds no device ({reason}). {remedy}"])
    found = jax.devices()
    lines = [f"{device.platform} {device.id}: {device.device_kind}" for device in found]
    wrong = []
    if shutil.which("nvidia-smi") and asked != "cpu" and all(device.platform == "cpu" for device in found):
        wrong.append(
            "There is an NVIDIA driver (nvidia-smi), and JAX sees no GPU: pip install 'jax[cuda13]' for JAX's plugin,"
            " or set JAX_PLATFORMS=cpu to compute on the CPU on purpose."
        )
    return Section("Devices of JAX", lines, wrong)


def no_device() -> str:
    """Return why JAX has no device, or nothing if it has one."""
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # AssertionError: an allowed platform without its plugin
        return described_error(error)
    return ""


def jax_and_pytensor_settings() -> Section:
    """Return the settings that change results or programs."""
    lines = [
        f"jax_enable_x64 = {jax.config.jax_enable_x64}  (functions of mode JAXPR keep 64 bits in either case)",
        f"pytensor.config.floatX = {pytensor.config.floatX}",
        f"pytensor.config.mode = {pytensor.config.mode}",
    ]
    return Section("Settings", lines + environment_lines())


def folders() -> Section:
    """Return the folders for compiled code. A folder that can't be written to is a problem."""
    compiled = Path(pytensor.config.base_compiledir)
    kept = jax.config.jax_compilation_cache_dir
    lines = [f"PyTensor compiles in {compiled}"]
    lines.append(f"Programs are kept for later processes in {STORE.folder}" if STORE.folder else "No program is kept")
    lines += [f"JAX keeps programs in {kept}"] if kept else []
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
    """Return XLA, and the C++ compiler, which mode JAXPR does not need."""
    cxx = pytensor.config.cxx or "none (mode JAXPR needs none; PyTensor's C code is off)"
    return Section("Compilers", ["XLA: a part of jaxlib", f"C++ of PyTensor: {cxx}"])


def program() -> Section:
    """Run a small program, and compare its results with NumPy's."""
    if no_device():
        return Section("A program", ["not run: JAX has no device"])
    x = pt.vector("x", dtype="float64")
    y = pt.log1p(pt.exp(x)).sum()
    slope: Any = grad(y, x)
    given = np.linspace(-3.0, 3.0, 7)
    started = perf_counter()
    f = pytensor.function([x], [y, slope], mode="JAXPR")
    value, gradient = f(given)
    first = perf_counter() - started
    call = fmean(seconds_of(partial(f, given), 100))
    expected = np.log1p(np.exp(given)).sum(), 1 / (1 + np.exp(-given))
    error = max(abs(value - expected[0]), abs(gradient - expected[1]).max())
    lines = [
        f"log(1 + exp(x)).sum() and its gradient: first result after {duration(first)}, a call {duration(call)}",
        f"largest error {error:.1e}; {explain(f).summary}",
    ]
    wrong = [f"The program is wrong by {error:.1e}: report it with this block ({SITE})."] if error > TOLERANCE else []
    return Section("A program", lines, wrong)


def extras() -> Section:
    """Import the installed packages that extras name."""
    if no_device():
        return Section("Packages of the extras", ["not imported: JAX has no device"])
    found = [r for r in requirements.requirements() if r.is_optional and r.installed]
    wrong = {r.name: problem for r in found if (problem := requirements.import_problem(r))}
    imported = ", ".join(r.name for r in found if r.name not in wrong)
    lines = [f"can be imported: {imported}"] if imported else []
    lines += [f"can't be imported: {', '.join(wrong)}"] if wrong else []
    return Section("Packages of the extras", lines or ["none is installed"], list(wrong.values()))


def posterior() -> Section:
    """Draw from a posterior that is known, and compare the mean and the standard deviation."""
    if no_device():
        return Section("A posterior", ["not drawn from: JAX has no device"])
    needed = [r for r in requirements.requirements() if r.name in ("pymc", "blackjax")]
    if absent := [r.name for r in needed if r.installed is None or requirements.import_problem(r)]:
        missing = f"no {' and no '.join(absent)} (pip install 'pytensor_jaxpr_linker[pymc]')"
        return Section("A posterior", [f"not drawn from: {missing}"])
    pymc, ours = (importlib.import_module(name) for name in ("pymc", "pytensor_jaxpr_linker.pymc"))
    with pymc.Model() as model:
        pymc.Normal("x", 3.0, 2.0)
    started = perf_counter()
    data = ours.sample(DRAWS, tune=DRAWS, chains=2, model=model, random_seed=1, quiet=True, progressbar=False)
    x = data.posterior["x"]
    mean, spread = float(x.mean()), float(x.std())
    lines = [
        f"N(3, 2) by {x.sizes['chain']} chains of {DRAWS} draws after {duration(perf_counter() - started)}:"
        f" mean {mean:.2f}, standard deviation {spread:.2f}"
    ]
    is_right = abs(mean - 3) < 1 and 1 < spread < 3
    wrong = [] if is_right else [f"The draws do not fit the posterior: report it with this block ({SITE})."]
    return Section("A posterior", lines, wrong)


#: The parts of the examination, by the titles of sections that fail.
PARTS: dict[str, Callable[[], Section]] = {
    "Versions": requirements.fitting_versions,
    "Machine": machine,
    "Devices of JAX": devices,
    "Settings": jax_and_pytensor_settings,
    "Folders": folders,
    "Compilers": compilers,
    "Packages of the extras": extras,
    "A program": program,
    "A posterior": posterior,
}
