"""Runs IREE's compiler, in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pytensor_jaxpr_linker.artifacts.iree.targets import FOR_ALL, SYSTEM_LIBRARY, CompileTarget, flags_of

#: A name that JAX gave to an operation: the program, the nodes, the primitive.
_QUOTED = re.compile(r'"([^"]+)"')
_FAULT = re.compile(r'\b(?:error|LLVM ERROR): (?:(?P<where>loc\((?:"[^"]*"|[()])*\)): )?(?P<what>.*)$', re.M)

#: How much of the compiler's output an error keeps: it prints the whole program several times.
KEPT_CHARACTERS = 20_000


class IreeError(RuntimeError):
    """IREE could not compile a program. `output` is what its compiler said, `command` how it was called.

    `location` is the name of the operation that it complained about: the program, the node, the primitive.
    """

    def __init__(self, message: str, output: str = "", command: Sequence[str] = ()):
        super().__init__(message)
        self.output, self.command = output, tuple(command)
        self.location = location_in(output)

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.output, self.command)


def compile_mlir(
    mlir: str | bytes,
    path: str | os.PathLike,
    target: CompileTarget = "host",
    flags: Sequence[str] = (),
    *,
    name: str = "the program",
    timeout: float | None = None,
) -> None:
    """Compile an MLIR module to a ``.vmfb`` file.

    The compiler runs in a process of its own: if it crashes, that is an exception here. The file appears when everything has succeeded.

    Parameters
    ----------
    mlir
        StableHLO with ``ml_program`` or ``util`` globals: text, or bytecode. Locations in the text name the nodes in errors.
    path
        The file to write, or to replace.
    target
        A name of `TARGETS`, or flags in place of those that it stands for.
    flags
        Further flags of ``iree-compile``. They come last, so they replace earlier ones.
    name
        What errors call the program.
    timeout
        The most seconds that the compiler gets.

    Raises
    ------
    ImportError
        If the compiler is not installed.
    ValueError
        If there is no such target.
    IreeError
        If the compiler refuses the program, crashes, or takes too long.
    """
    given = [*FOR_ALL, *flags_of(target), *flags]
    tool = tool_path("iree.compiler", "_mlir_libs", "iree-compile")
    folder = Path(path).absolute().parent
    with tempfile.TemporaryDirectory(prefix=".iree-", dir=folder) as scratch:
        source, result = Path(scratch, "program.mlir"), Path(scratch, "program.vmfb")
        source.write_bytes(mlir.encode() if isinstance(mlir, str) else mlir)
        command = [str(tool), "--iree-input-type=auto", *linked(given, tool, scratch), str(source), "-o", str(result)]
        environment = {**os.environ, "TMPDIR": scratch}
        try:
            done = subprocess.run(command, capture_output=True, timeout=timeout, env=environment, check=False)
        except subprocess.TimeoutExpired as late:
            raise IreeError(
                f"IREE's compiler took more than {timeout} s for {name}.", decoded_output(late.stderr), command
            ) from None
        if done.returncode != 0 or not result.exists():
            output = decoded_output(done.stderr)
            own_flags = bool(flags) or not isinstance(target, str)
            raise IreeError(fault_of(name, done.returncode, output, own_flags), output, command)
        os.replace(result, path)


def linked(flags: Sequence[str], tool: Path, scratch: str) -> list[str]:
    """Return flags that make the compiler link shared libraries by the linker it ships with, which knows all targets.

    Without them it looks for the linker of the machine, which is none on many, and none for other targets.
    """
    linker = "--iree-llvmcpu-system-linker-path="
    if SYSTEM_LIBRARY not in flags or os.name != "posix" or any(f.startswith(linker) for f in flags):
        return list(flags)
    script = Path(scratch, "link.sh")
    script.write_text(f'#!/bin/sh\nexec "{tool.with_name("iree-lld")}" -flavor gnu "$@"\n')
    script.chmod(0o700)
    return [*flags, f"{linker}{script}"]


def tool_path(package: str, *parts: str) -> Path:
    """Return the path of a program of one of IREE's packages.

    Raises
    ------
    ImportError
        If the package is not installed.
    """
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # no package `iree` at all
        found = None
    for folder in found.submodule_search_locations or () if found else ():
        if (tool := Path(folder, *parts)).exists():
            return tool
    distribution = package.replace("iree.", "iree-base-")
    raise ImportError(
        f"{parts[-1]} is not installed: `pip install {distribution}`, or `pip install 'pytensor_jaxpr_linker[iree]'`.",
        name=package,
    )


def decoded_output(data: bytes | None) -> str:
    """Return what a process wrote, of which the beginning says what went wrong."""
    return (data or b"")[:KEPT_CHARACTERS].decode("utf-8", "replace")


def fault_of(name: str, code: int, output: str, own_flags: bool) -> str:
    """Return the message of a compilation that failed: what, where in the user's graph, what to do."""
    fault = _FAULT.search(output)
    first = next((line.strip() for line in output.splitlines() if line.strip()), "it said nothing")
    what = (fault["what"] if fault else first.partition("  Try: ")[0])[:300].rstrip(".!")
    if code < 0:
        happened = f"IREE's compiler crashed on {name} ({signal.strsignal(-code) or -code}): {what}."
    else:
        happened = f"IREE's compiler refused {name}: {what}."
    place = location_in(output)
    if own_flags and not place and code >= 0:  # no operation was looked at
        remedy = "look at the flags that you gave it, which `iree-compile --help` lists"
    else:
        remedy = "leave this operation out, or export the function for JAX, by a path that does not end in .vmfb"
    where = f" It is about {place}." if place else ""
    return f"{happened}{where} To do: {remedy}; the error's `output` has all that the compiler said."


def location_in(output: str) -> str:
    """Return the name of the operation that the first complaint is about, or nothing."""
    fault = _FAULT.search(output)
    names = _QUOTED.findall(fault["where"] or "") if fault else []
    return next((name for name in reversed(names) if "/" in name), "")
