"""XLA's programs for later processes, without another lowering or compilation.

A key holds everything that a program depends on, as text, so a program is found before its Jaxpr is built. Only
processes with one CPU device keep programs: others were not tried.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from types import NoneType
from typing import Any, NamedTuple

import jax
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import toposort

from pytensor_jaxpr_linker.base import jax_compat, logs
from pytensor_jaxpr_linker.base.interpreter import usable_cores
from pytensor_jaxpr_linker.base.options import resolve
from pytensor_jaxpr_linker.base.rules import RULES, SCALAR_RULES, class_name
from pytensor_jaxpr_linker.graph.rewritten import environment
from pytensor_jaxpr_linker.graph.rewritten.describe import OF_PYTENSOR, Descriptions, NotDescribed
from pytensor_jaxpr_linker.graph.rewritten.flat import read_tags, tags_of
from pytensor_jaxpr_linker.graph.rewritten.live import package_of
from pytensor_jaxpr_linker.graph.rewritten.store import STORE

#: Settings of JAX that no program depends on: for its cache, for its messages, and one that callers set.
OF_NO_PROGRAM = (
    "jax_compilation_cache",
    "jax_dump",
    "jax_enable_compilation_cache",
    "jax_enable_x64",
    "jax_explain",
    "jax_log",
    "jax_persistent_cache",
    "jax_raise_persistent_cache",
    "jax_traceback",
    "jax_transfer_guard",
)
#: PyTensor's settings that no program depends on. The first is changed while starting points are made, in any thread.
OF_NO_GRAPH = frozenset({"cxx"})
#: Environment variables that XLA's compiler reads begin so.
OF_XLA = ("XLA_", "TF_", "NPROC")
#: What Linux says of a CPU and its instructions, by the first words of lines of its file.
CPU_FILE = "/proc/cpuinfo"
CPU_LINES = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ")


def jax_settings() -> str:
    """Return the options in force and JAX's configuration as a text that is equal in each process."""
    names = [name for name in jax.config.values if not name.startswith(OF_NO_PROGRAM)]
    return repr((resolve(), [(name, getattr(jax.config, name, jax.config.values[name])) for name in names]))


def pytensor_settings() -> list[tuple[str, str]]:
    """Return PyTensor's settings that programs depend on."""
    return [(name, value) for name, value in environment.settings() if name not in OF_NO_GRAPH]


def foreign_rules() -> list[tuple[Any, Any]]:
    """Return the rules that somebody else has ever changed, and the user's functions that evaluate Ops, by class."""
    found: list[tuple[Any, Any]] = [(op, table.get(op)) for table in (RULES, SCALAR_RULES) for op in table.foreign]
    return found + [(op, function) for op, function in jax_functions() if package_of(function) not in OF_PYTENSOR]


def jax_functions() -> list[tuple[Any, Any]]:
    """Return the functions of PyTensor's JAX backend by class of Op."""
    basic = sys.modules.get("pytensor.link.jax.dispatch.basic")
    return list(basic.jax_funcify.registry.items()) if basic else []


def name_of_function(function: Any) -> str:
    """Return the name of a function with its module's, or raise `NotDescribed` if it has none."""
    if not hasattr(function, "__qualname__"):
        raise NotDescribed(f"{function} has no name")
    return class_name(function)


def text_of_machine() -> str:
    """Return a text of versions and the device, on which programs depend, too.

    Raise `NotDescribed` if no other process can have the same, as a rule, or a JAX function, for one of PyTensor's Ops
    is the user's own.
    """
    for op, function in foreign_rules():
        if (op.partition(".")[0] if isinstance(op, str) else package_of(op)) in OF_PYTENSOR:
            raise NotDescribed(f"{function} is registered for {op}")
    in_jax = sorted((class_name(op), name_of_function(function)) for op, function in jax_functions())
    device = jax.devices()[0]
    variables = sorted((k, v) for k, v in os.environ.items() if k.startswith(OF_XLA))
    of_jax = jax.__version__, jax.lib.__version__, device.platform, device.device_kind
    return repr([environment.versions(), of_jax, cpu(), variables, in_jax])


@cache
def cpu() -> str:
    """Return a digest of the CPU, its instructions, and the number of cores that this process has.

    Where no file lists the instructions, the name of the machine stands for them.
    """
    cores = usable_cores()
    with suppress(OSError), open(CPU_FILE) as file:
        lines = [line for line in file.read(2**14).partition("\n\n")[0].splitlines() if line.startswith(CPU_LINES)]
        if lines:
            return sha256(repr([cores, lines]).encode()).hexdigest()
    return sha256(repr([cores, platform.processor(), platform.node()]).encode()).hexdigest()


def text_of_graph(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> str:
    """Return a text that equal graphs have, whichever Ops, constants and lines of code they share; or raise
    `NotDescribed`.
    """
    describe = Descriptions()
    known: dict[Variable, Any] = {v: i for i, v in enumerate(inputs)}

    def operand(v: Variable) -> Any:
        if v not in known:
            if not isinstance(v, Constant):
                raise NotDescribed(f"{v} is no variable of the graph")
            known[v] = describe.constant(v), described(read_tags(v))
        return known[v]

    def described(tags: dict[str, Any]) -> Any:
        return describe(tags) if tags else None

    nodes = []
    for i, node in enumerate(toposort(outputs, blockers=inputs)):
        operands = [operand(v) for v in node.inputs]
        known.update((v, (i, k)) for k, v in enumerate(node.outputs))
        made = [(describe.number(v.type), v.name, described(tags_of(v))) for v in node.outputs]
        nodes.append((describe.number(node.op), operands, made))
    leaves = [(type(v).__name__, describe.number(v.type), v.name, described(read_tags(v))) for v in inputs]
    return repr((leaves, nodes, [operand(v) for v in outputs], describe.texts))


def place_of_text(make_text: Callable[[], str]) -> str | None:
    """Return where a program is kept by the text of what it depends on, or None if it is not kept.

    Where logs show Jaxprs and programs, these are made.
    """
    is_logged = any(log.isEnabledFor(logging.DEBUG) for log in (logs.jaxpr, logs.hlo, logs.guards))
    is_one_cpu = [d.platform for d in jax.devices()] == ["cpu"] and jax.config.jax_default_device is None
    if is_logged or not is_one_cpu or not STORE.has_folder:
        return None
    try:
        text = repr([make_text(), text_of_machine(), jax_settings(), pytensor_settings()])
    except NotDescribed:
        return None
    return sha256(text.encode()).hexdigest()


class KeptExecutables(NamedTuple):
    """Programs that belong together, and a value about them."""

    programs: list[jax.stages.Compiled]
    about: Any


#: What the folder has: the parts of each `PlainProgram`, and the value. All of it is plain: bytes, numbers, names and
#: containers of Python. So a file of other people's programs can be read without running anything of theirs in Python.
type Stored = tuple[list[tuple], Any]

#: The names of XLA's calls of LAPACK begin so. Without LAPACK such a program would end the process.
LAPACK = b"lapack_"
#: One of these opcodes can be read in each program, unless XLA hides names, of calls too.
OPCODES = (b"parameter", b"constant")


def find_programs(place: str, device: jax.Device | None = None) -> KeptExecutables | None:
    """Return the programs that are kept at a place, for a device, by default JAX's."""
    stored: Stored | None = STORE.find(place, in_memory=False)
    if stored is None:
        return None
    try:
        kept, about = stored
        programs = [jax_compat.PlainProgram(*parts) for parts in kept]
        if any(LAPACK in program.code for program in programs):
            jax_compat.prepare_lapack()
        where = device or jax.devices()[0]
        return KeptExecutables([jax_compat.load_program(program, where) for program in programs], about)
    except Exception as error:  # XLA's reader may raise anything
        STORE.warn(f"The program {place} of the cache can't be loaded: {error!r}")
        return None


def keep_programs(place: str, programs: Sequence[jax.stages.Compiled], about: Any) -> None:
    """Keep programs with a plain value about them, unless one of them calls Python or can't be stored."""
    with suppress(ValueError, TypeError, NotImplementedError):
        kept = [tuple(jax_compat.plain_program(program)) for program in programs]
        if all(any(name in code for name in OPCODES) for code, *_ in kept):
            STORE.keep(place, plain_value((kept, about)), in_memory=False)


def plain_value(value: Any) -> Any:
    """Return a value of bytes, numbers, names and containers, or raise a TypeError if it has anything else."""
    if type(value) in (tuple, list):
        return type(value)(map(plain_value, value))
    if type(value) is dict:
        return {plain_value(key): plain_value(item) for key, item in value.items()}
    if type(value) not in (bool, int, float, str, bytes, NoneType):
        raise TypeError(f"{value!r} is not plain.")
    return value
