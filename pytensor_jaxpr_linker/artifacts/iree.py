"""Programs for IREE: MLIR of functions and modules with their descriptions, and IREE's compiler."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax

from jaxpr_artifact import IreeFunction, load_iree
from jaxpr_artifact.files import canonical, replacing, seal
from jaxpr_artifact.iree import ATTRIBUTE, FIRST_STATE, MAIN
from pytensor_jaxpr_linker.artifacts import writing
from pytensor_jaxpr_linker.artifacts.mlir.build import ModuleSource, add_description, pure_module
from pytensor_jaxpr_linker.artifacts.mlir.mlir_module import MlirModule, write_parameter_file
from pytensor_jaxpr_linker.artifacts.shapes import has_symbols
from pytensor_jaxpr_linker.artifacts.writing import Exportable, line_of_names
from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import DEAD_CODE, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.portable.for_iree import FOR_IREE
from pytensor_jaxpr_linker.jaxpr.portable.rewrite import NotPortableError, portable

#: A name of `TARGETS`, or flags of ``iree-compile``.
type CompileTarget = str | Sequence[str]

#: Without the first, IREE computes float64 in float32. Without the second, it compiles and runs constant subgraphs
#: while it compiles, which fails for some programs ("jit global source initialization order invalid").
FOR_ALL = ("--iree-input-demote-f64-to-f32=false", "--iree-opt-const-eval=false")

CPU = "--iree-hal-target-backends=llvm-cpu"

#: IREE's own linker knows no library, and float64 needs the sine of the C library: see `linked`.
SYSTEM_LIBRARY = "--iree-llvmcpu-link-embedded=false"

TRIPLE, GENERIC = "--iree-llvmcpu-target-triple", "--iree-llvmcpu-target-cpu=generic"

TARGETS: dict[str, tuple[str, ...]] = {
    "host": (CPU, "--iree-llvmcpu-target-cpu=host", SYSTEM_LIBRARY),
    "x86-64": (CPU, f"{TRIPLE}=x86_64-unknown-linux-gnu", GENERIC, SYSTEM_LIBRARY),
    "aarch64": (CPU, f"{TRIPLE}=aarch64-unknown-linux-gnu", GENERIC, SYSTEM_LIBRARY),
    "cuda": ("--iree-hal-target-backends=cuda", "--iree-cuda-target=sm_80"),
}


def flags_of(target: CompileTarget) -> tuple[str, ...]:
    """Return the flags of a target, or raise a ValueError if it is neither a known name nor flags."""
    if isinstance(target, str) and target in TARGETS:
        return TARGETS[target]
    if isinstance(target, list | tuple) and target and all(isinstance(f, str) and f.startswith("-") for f in target):
        return tuple(target)
    raise ValueError(
        f"target is one of {', '.join(map(repr, TARGETS))}, or a list of flags of iree-compile, not {target!r}."
        " 'host', 'x86-64' and 'aarch64' are IREE's llvm-cpu; another backend is chosen by a flag, such as"
        " ['--iree-hal-target-backends=vulkan-spirv']."
    )


def target_name(target: CompileTarget) -> str:
    """Return the name of a target in files."""
    return target if isinstance(target, str) else " ".join(target)


#: A name that JAX gave to an operation: the program, the nodes, the primitive.
_QUOTED = re.compile(r'"([^"]+)"')
_FAULT = re.compile(r'\b(?:error|LLVM ERROR): (?:(?P<where>loc\((?:"[^"]*"|[()])*\)): )?(?P<what>.*)$', re.M)

#: The beginning of the compiler's output that an error keeps: it prints the whole program several times.
KEPT_BYTES = 20_000


class IreeError(RuntimeError):
    """IREE could not compile a program. `output` is its compiler's text, `command` the call of it.

    `location` is the name of the rejected operation: the program, the node, the primitive.
    """

    def __init__(self, message: str, output: str = "", command: Sequence[str] = ()):
        super().__init__(message)
        self.output, self.command = output, tuple(command)
        self.location = location_in(output)

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.output, self.command)


def compile_mlir(mlir: str, path: str | os.PathLike, target: CompileTarget = "host", name: str = "the program") -> None:
    """Compile an MLIR module to a ``.vmfb`` file, which appears when everything has succeeded.

    The compiler runs in a process of its own: if it crashes, that is an exception here.

    Parameters
    ----------
    mlir
        StableHLO with ``ml_program`` or ``util`` globals. Errors name nodes by the locations in it.
    path
        The file to write, or to replace.
    target
        A name of `TARGETS`, or flags.
    name
        The name of the program in errors.

    Raises
    ------
    ImportError
        If the compiler is not installed.
    ValueError
        If the target is unknown.
    IreeError
        If the compiler refuses the program, or crashes.
    """
    flags = [*FOR_ALL, *flags_of(target)]
    tool = tool_path("iree.compiler", "_mlir_libs", "iree-compile")
    folder = Path(path).absolute().parent
    with tempfile.TemporaryDirectory(prefix=".iree-", dir=folder) as scratch:
        source, result = Path(scratch, "program.mlir"), Path(scratch, "program.vmfb")
        source.write_text(mlir, encoding="utf-8")
        command = [str(tool), "--iree-input-type=auto", *linked(flags, tool, scratch), str(source), "-o", str(result)]
        done = subprocess.run(command, capture_output=True, env={**os.environ, "TMPDIR": scratch}, check=False)
        if done.returncode != 0 or not result.exists():
            output = done.stderr[:KEPT_BYTES].decode("utf-8", "replace")
            raise IreeError(fault_of(name, done.returncode, output, not isinstance(target, str)), output, command)
        os.replace(result, path)


def linked(flags: Sequence[str], tool: Path, scratch: str) -> list[str]:
    """Return flags that make the compiler link shared libraries by its own linker, which knows all targets.

    Without them it looks for the linker of the machine. Many have none, or only one for themselves.
    """
    linker = "--iree-llvmcpu-system-linker-path="
    if SYSTEM_LIBRARY not in flags or os.name != "posix" or any(f.startswith(linker) for f in flags):
        return list(flags)
    script = Path(scratch, "link.sh")
    script.write_text(f'#!/bin/sh\nexec "{tool.with_name("iree-lld")}" -flavor gnu "$@"\n')
    script.chmod(0o700)
    return [*flags, f"{linker}{script}"]


def tool_path(package: str, *parts: str) -> Path:
    """Return the path of a program of one of IREE's packages, or raise an ImportError."""
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


def fault_of(name: str, code: int, output: str, own_flags: bool) -> str:
    """Return the message of a failed compilation: the fault, the place in the user's graph, the remedy."""
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
    """Return the name of the operation of the first complaint, or an empty text."""
    fault = _FAULT.search(output)
    names = _QUOTED.findall(fault["where"] or "") if fault else []
    return next((name for name in reversed(names) if "/" in name), "")


def write_iree(path: str | os.PathLike, given: Exportable, target: CompileTarget) -> IreeFunction | None:
    """Compile a function into a ``.vmfb`` file and load it, or return None if it is for another machine."""
    flags_of(target)  # a wrong target costs no time
    line_of = partial(line_of_names, places=given.places)
    with vmfb_file(path, iree_text(given, target_name(target)), target, given.name, line_of) as new:
        if target == "host":
            writing.check_loads(path, new, load_iree)
    return load_iree(path) if target == "host" else None


def write_module(
    path: str | os.PathLike,
    source: ModuleSource,
    target: CompileTarget,
    inline_bytes: int | None,
    parameters: str | os.PathLike | None = None,
) -> None:
    """Compile a module, and write its parameters next to it."""
    flags_of(target)  # a wrong target costs no time
    mlir = MlirModule(source, lower_for_iree, inline_bytes)
    places = {f.name: f.places for f in source.functions}

    def line_of(names: str) -> str:
        return line_of_names(names, places.get(names.partition("/")[0], {}))

    with vmfb_file(path, mlir.text_with_description(target_name(target)), target, source.name, line_of):
        if mlir.parameters:
            write_parameter_file(parameters or Path(path).with_suffix(".irpa"), mlir.parameters)


@contextmanager
def vmfb_file(
    path: str | os.PathLike, mlir: str, target: CompileTarget, name: str, line_of: Callable[[str], str]
) -> Iterator[Path]:
    """Compile MLIR into a ``.vmfb`` file, and yield the new file. If something fails, no file is left.

    `line_of` returns the line of the user's program that made an operation, by its names.
    """
    with replacing(path) as new:
        try:
            compile_mlir(mlir, new, target, name=name)
        except IreeError as error:
            if line := line_of(error.location):
                error.add_note(f"Made at {line}")
            raise
        seal(new)
        yield new


def iree_text(given: Exportable, target: str) -> str:
    """Return a function as MLIR text, with its description.

    Raise a TypeError if a length is open, or a NotPortableError if IREE lacks an operation that nothing replaces.
    """
    inputs = [*given.arguments, *[k.input for k in (*given.state, *given.constants)]]
    if open_ := [x for x in inputs if has_symbols([x])]:
        shapes = "; ".join(f"{x.name}: ({', '.join(map(str, x.aval.shape))})" for x in open_)
        raise TypeError(
            f"A program for IREE has fixed lengths, and these are open: {shapes}. Say them by"
            f" dims={{{open_[0].name!r}: ...}} with numbers, or by examples."
        )
    with jax.enable_x64(True), writing.without_source_paths():
        jaxpr = jaxpr_with_constants(given)
        lowered = {MAIN: lower_for_iree(jaxpr, given.name, given.places)}
        if given.state:
            b = JaxprBuilder(FIRST_STATE)
            first = b.build([prims.copy(b, b.constant(k.value)) for k in given.state])
            lowered[FIRST_STATE] = jax_compat.lower_to_mlir(first, FIRST_STATE, "cpu")
    header = writing.header_of(
        given,
        jaxpr.out_avals,
        state=tuple(writing.stored(k, FIRST_STATE) for k in given.state),
        constants=(),
        constraints=(),
        platforms=(),
        programs={},
        versions=writing.versions_now(IREE="iree-base-compiler"),
        target=target,
    )
    name = re.sub(r"[^\w.-]", "_", given.name).rstrip("_")  # as JAX names modules
    module = pure_module(name, lowered)
    add_description(module, MAIN, ATTRIBUTE, canonical(header.as_json()).decode("ascii"))
    return str(module.operation.get_asm(enable_debug_info=True))


def jaxpr_with_constants(given: Exportable) -> Any:
    """Return the closed Jaxpr of a function of its arguments and state; the constants are part of it.

    The Jaxpr of a graph is assembled. JAX traces a function of ours around one, which makes the keys of predictions.
    """
    values = [k.value for k in given.constants]
    if given.jaxpr is None:
        avals = [x.aval for x in given.arguments] + [k.input.aval for k in given.state]
        return jax.make_jaxpr(lambda *args: tuple(given.fn(*args, *values)))(*avals)
    jaxpr = given.jaxpr()
    b = JaxprBuilder(given.name, passes=(DEAD_CODE,))
    inputs = [b.input(x.aval.shape, x.aval.dtype) for x in [*given.arguments, *[k.input for k in given.state]]]
    return b.build(prims.closed_call(b, jaxpr, [*inputs, *[b.constant(value) for value in values]]))


def lower_for_iree(jaxpr: Any, name: str, places: Mapping[str, str]) -> bytes:
    """Lower a closed Jaxpr to operations that IREE has and computes well; `places` is for errors."""
    try:
        return jax_compat.lower_to_mlir(portable(portable(jaxpr), FOR_IREE), name, "cpu")
    except NotPortableError as error:
        refused = [r._replace(line=line_of_names(r.names, places)) for r in error.refused]
        raise NotPortableError(refused) from None
