"""Programs between `jax.export` and a file.

JAX writes an `Exported` with the package ``flatbuffers``, which it does not require. Here its one large part, a portable artifact of
StableHLO, is a member of the file, and what else it has stands in the header: so a reader needs JAX alone, and any tool for StableHLO
reads the member. This module alone knows the fields of `jax.export.Exported`, some of which are not public.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import export

from jaxpr_artifact.errors import ArtifactError
from jaxpr_artifact.fork import jax_threads
from jaxpr_artifact.functions import function_of, with_shared
from jaxpr_artifact.header import Argument, Aval, Header, Program, Stored
from jaxpr_artifact.precision import with_x64


def aval_of(aval: Any) -> Aval:
    """Return what the header says of an array."""
    return Aval(np.dtype(aval.dtype).name, shape_of(aval.shape))


def shape_of(shape: Sequence[Any]) -> tuple[int | str, ...]:
    """Return a shape as the header spells it."""
    return tuple(str(n) if export.is_symbolic_dim(n) else int(n) for n in shape)


def argument_like(name: str, aval: Any, is_key: bool = False, by_value: bool = False) -> Argument:
    """Return what a header says of an argument or a result with this name."""
    return Argument(name, np.dtype(aval.dtype).name, shape_of(aval.shape), is_key, by_value)


def to_program(exported: export.Exported, member: str, vjp: Program | None, members: dict[str, Any]) -> Program:
    """Return what the header says of a program, and add its bytes to the members. `vjp` is its derivative."""
    odd = (*exported.ordered_effects, *exported.unordered_effects, *exported.disabled_safety_checks)
    if odd or exported.nr_devices != 1:
        raise ValueError(
            f"A program with effects, or for several devices, can't be exported: {odd or exported.nr_devices}."
        )
    members[member] = exported.mlir_module_serialized
    return Program(
        member,
        exported.fun_name,
        tuple(map(aval_of, exported.in_avals)),
        tuple(map(aval_of, exported.out_avals)),
        tuple(exported.module_kept_var_idx),
        exported.uses_global_constants,
        exported.calling_convention_version,
        vjp,
    )


def from_programs(
    path: str | os.PathLike,
    program: Program | None,
    members: Mapping[str, memoryview],
    platforms: Sequence[str],
    constraints: Sequence[str],
) -> list[export.Exported]:
    """Return a program and its derivatives, as JAX calls them."""
    found = []
    while program is not None:
        found.append(from_program(path, program, members, platforms, constraints))
        program = program.vjp
    return found


def from_program(
    path: str | os.PathLike,
    program: Program,
    members: Mapping[str, memoryview],
    platforms: Sequence[str],
    constraints: Sequence[str],
) -> export.Exported:
    """Return a program that JAX calls.

    Raises
    ------
    ArtifactError
        If this JAX does not take it.
    """
    lowest, highest = (
        export.minimum_supported_calling_convention_version,
        export.maximum_supported_calling_convention_version,
    )
    if not lowest <= program.calling_convention <= highest:
        raise ArtifactError(
            path,
            f"Its programs have version {program.calling_convention} of JAX's calling convention, and JAX {jax.__version__}"
            f" takes {lowest} to {highest}.",
            "Install a JAX of the version that made it, which `inspect` prints, or export it again.",
        )
    if program.member not in members:
        raise ArtifactError(path, f"The program {program.member!r:.80} is not in the file.", "Export it again.")
    inputs, outputs = avals_of(path, program, constraints)
    found = export.Exported(
        fun_name=program.name,
        in_tree=jax.tree.structure(((0,) * len(inputs), {})),
        in_avals=inputs,
        out_tree=jax.tree.structure((0,) * len(outputs)),
        out_avals=outputs,
        _in_named_shardings=(None,) * len(inputs),
        _out_named_shardings=(None,) * len(outputs),
        in_shardings_hlo=(None,) * len(inputs),
        out_shardings_hlo=(None,) * len(outputs),
        nr_devices=1,
        platforms=tuple(platforms),
        ordered_effects=(),
        unordered_effects=(),
        disabled_safety_checks=(),
        mlir_module_serialized=bytes(members[program.member]),
        calling_convention_version=program.calling_convention,
        module_kept_var_idx=program.kept,
        uses_global_constants=program.uses_global_constants,
        _get_vjp=None,
    )
    check_calls(path, program, found)
    return found


def check_calls(path: str | os.PathLike, program: Program, found: export.Exported) -> None:
    """Raise an ArtifactError if a program is no StableHLO, or would call a Python function of this process."""
    try:
        lines = found.mlir_module().splitlines()
    except Exception as error:
        what = f"The program {program.member!r:.80} is none that JAX {jax.__version__} reads: {str(error).splitlines()[0]:.200}."
        raise ArtifactError(path, what, "Install the JAX that made it, or a newer one.") from None
    if calls := [line for line in lines if "custom_call" in line and "callback" in line.lower()]:
        what = f"The program {program.member!r:.80} calls Python: {calls[0].strip():.80}."
        raise ArtifactError(path, what, "No file of pytensor_jaxpr_linker does that: do not use it.")


def avals_of(path: str | os.PathLike, program: Program, constraints: Sequence[str]) -> tuple[tuple, tuple]:
    """Return the abstract values that a program takes and returns, whose symbols are those of one scope."""
    try:
        scope = export.SymbolicScope(constraints)
        inputs, outputs = (
            tuple(
                jax.core.ShapedArray(
                    export.symbolic_shape(", ".join(map(str, a.shape)), scope=scope), np.dtype(a.dtype)
                )
                for a in avals
            )
            for avals in (program.inputs, program.outputs)
        )
    except Exception as error:  # JAX's parser of dimensions raises several types
        raise ArtifactError(path, f"JAX does not read the shapes in the header: {error}.", "Export it again.") from None
    return inputs, outputs


class JaxPrograms:
    """The programs of a file, run by JAX: a `Backend`.

    Attributes
    ----------
    jitted
        The programs as JAX functions, by name.
    exported
        The first program, as `jax.export` has it.
    state, constants
        The arrays in the file. Programs take the constants last.
    """

    threads, takes_turns = jax_threads, False

    def __init__(self, path: str | os.PathLike, header: Header, members: Mapping[str, memoryview]):
        exported = {
            name: from_programs(path, program, members, header.platforms, header.constraints)
            for name, program in header.programs.items()
        }
        self.exported = exported["call"][0]
        has_batch = [True] * len(header.arguments) + [False] * (len(header.state) + len(header.constants))
        constants = range(len(has_batch) - len(header.constants), len(has_batch))
        call = function_of(exported["call"], exported.get("batched", []), has_batch, constants)
        self.jitted: dict[str, Callable[..., tuple]] = {"call": jax.jit(call)}
        if "batched" in exported:
            self.jitted["batched"] = jax.jit(with_shared(exported["batched"][0], has_batch))
        with jax.enable_x64(True):
            arrays = [jax.device_put(array_of(path, s, members)) for s in (*header.state, *header.constants)]
        self.state, self.constants = arrays[: len(header.state)], arrays[len(header.state) :]

    @with_x64
    def run(self, program: str, operands: Sequence[Any]) -> Sequence[Any]:
        """Return the results of a program."""
        return self.jitted[program](*operands, *self.constants)


def array_of(path: str | os.PathLike, stored: Stored, members: Mapping[str, memoryview]) -> np.ndarray:
    """Return an array of the file, mapped and read-only."""
    dtype, count = np.dtype(stored.dtype), int(np.prod([1, *stored.shape], dtype=object))
    data = members.get(stored.member)
    if data is None or len(data) != count * dtype.itemsize:
        raise ArtifactError(
            path, f"The array {stored.name!r:.80} is not in the file as the header says.", "Export it again."
        )
    return np.frombuffer(data, dtype).reshape(stored.shape)
