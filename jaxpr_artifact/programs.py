"""Programs between `jax.export` and a file.

JAX writes an `Exported` with the package ``flatbuffers``, which it does not require. Here its one large part, a
portable artifact of StableHLO, is a member of the file, and its other parts stand in the header: a reader needs JAX
alone, and any tool for StableHLO reads the member. Only this module knows the fields of `Exported`, some of them
private.

A program becomes a JAX function whose `jax.grad` and `jax.vmap` call the programs of derivatives and batches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import export

from jaxpr_artifact.files import ArtifactError
from jaxpr_artifact.header import Argument, Aval, Header, Program, Stored
from jaxpr_artifact.threads import jax_threads, with_x64

#: The highest order of derivatives that an artifact has programs for.
MOST_DERIVATIVES = 2


def function_of(
    programs: Sequence[export.Exported],
    batched: Sequence[export.Exported],
    has_batch: Sequence[bool],
    constants: range,
    order: int = 0,
) -> Callable[..., Any]:
    """Return the first of some programs as a JAX function.

    `programs` are a program and its derivatives. Each takes the operands of the one before, and cotangents of its
    inexact results; it returns cotangents of the inexact operands, without constants, which are at the positions
    `constants`. `batched` are the same over a batch, or empty, and `has_batch` says which operands of the first program
    have the axis of a batch there. The first program is the derivative of this `order`.
    """
    program, *derivatives = programs
    call = over_batches(program, batched[0] if batched else None, has_batch)
    of = [i for i, aval in enumerate(program.out_avals) if is_inexact(aval)]
    wrt = [i for i, aval in enumerate(program.in_avals) if is_inexact(aval) and i not in constants]

    def no_pullback(*_: Any) -> Any:
        remedy = (
            f"export it with vjp_order={order + 1}, if JAX is to differentiate it further"
            if order < MOST_DERIVATIVES
            else "no artifact has more. Export a gradient that pytensor.grad makes as a function of its own"
        )
        name = program.fun_name
        raise TypeError(f"The function {name!r} was exported with derivatives up to order {order}: {remedy}.")

    more = [*has_batch, *[True] * len(of)]
    pullback = function_of(derivatives, batched[1:], more, constants, order + 1) if derivatives else no_pullback

    def forward(*args: Any) -> tuple[Any, Any]:
        return function(*args), args  # not `call`: a second derivative differentiates this

    def backward(args: Any, cotangents: Sequence[Any]) -> tuple:
        found = dict(zip(wrt, pullback(*args, *[cotangents[i] for i in of]), strict=True))
        return tuple(found.get(i) for i in range(len(args)))

    function = jax.custom_vjp(lambda *args: call(*args))
    function.defvjp(forward, backward)
    return function


def over_batches(
    program: export.Exported, batched: export.Exported | None, has_batch: Sequence[bool]
) -> Callable[..., Any]:
    """Return a program as a function whose `jax.vmap` calls the batched one, or raises an error without one."""

    @jax.custom_batching.custom_vmap
    def call(*args: Any) -> Any:
        return program.call(*args)

    if batched is None:

        @call.def_vmap
        def _(*_: Any) -> Any:
            raise NotImplementedError(
                f"The function {program.fun_name!r} was exported without a batched program: export it with"
                " batched=True for jax.vmap."
            )

        return call

    @jax.custom_batching.custom_vmap
    def call_batched(*args: Any) -> Any:
        return batched.call(*args)

    @call.def_vmap
    def _(size: int, in_batched: Sequence[bool], *args: Any) -> tuple[Any, Any]:
        results = call_batched(*rows(has_batch, size, in_batched, args))
        return results, jax.tree.map(lambda _: True, results)

    @call_batched.def_vmap
    def _(size: int, in_batched: Sequence[bool], *args: Any) -> tuple[Any, Any]:
        """Make one axis of two."""
        operands = rows(has_batch, size, in_batched, args)
        inner = next(x.shape[1] for x, may in zip(operands, has_batch, strict=True) if may)
        flat = [x.reshape(-1, *x.shape[2:]) if may else x for x, may in zip(operands, has_batch, strict=True)]
        results = jax.tree.map(lambda x: x.reshape(size, inner, *x.shape[1:]), call_batched(*flat))
        return results, jax.tree.map(lambda _: True, results)

    return call


def with_shared(batched: export.Exported, has_batch: Sequence[bool]) -> Callable[..., Any]:
    """Return a batched program as a function. An operand that lacks the axis of the batch is the same in each row."""

    def call(*args: Any) -> Any:
        in_batched = [
            may and x.ndim == len(aval.shape) for x, aval, may in zip(args, batched.in_avals, has_batch, strict=True)
        ]
        size = next(x.shape[0] for x, is_batched in zip(args, in_batched, strict=True) if is_batched)
        return batched.call(*rows(has_batch, size, in_batched, args))

    return call


def rows(has_batch: Sequence[bool], size: int, in_batched: Sequence[bool], args: Sequence[Any]) -> list[Any]:
    """Return the operands, with the axis of the batch where the batched program takes it."""
    if any(is_batched and not may for is_batched, may in zip(in_batched, has_batch, strict=True)):
        raise NotImplementedError("A loaded function can be batched over its arguments (jax.vmap), not over its state.")
    return [
        jax.numpy.broadcast_to(x, (size, *x.shape)) if may and not is_batched else x
        for x, is_batched, may in zip(args, in_batched, has_batch, strict=True)
    ]


def is_inexact(aval: Any) -> bool:
    """Return whether an array has real or complex numbers."""
    return jax.numpy.issubdtype(aval.dtype, jax.numpy.inexact)


def aval_of(aval: Any) -> Aval:
    """Return shape and dtype of an array for the header."""
    return Aval(np.dtype(aval.dtype).name, shape_of(aval.shape))


def shape_of(shape: Sequence[Any]) -> tuple[int | str, ...]:
    """Return a shape as the header spells it."""
    return tuple(str(n) if export.is_symbolic_dim(n) else int(n) for n in shape)


def argument_like(name: str, aval: Any, is_key: bool = False, by_value: bool = False) -> Argument:
    """Return the description of an argument or a result with this name."""
    return Argument(name, np.dtype(aval.dtype).name, shape_of(aval.shape), is_key, by_value)


def to_program(exported: export.Exported, member: str, vjp: Program | None, members: dict[str, Any]) -> Program:
    """Return the description of a program, and add its bytes to the members. `vjp` is its derivative."""
    odd = (*exported.ordered_effects, *exported.unordered_effects, *exported.disabled_safety_checks)
    if odd or exported.nr_devices != 1:
        found = odd or exported.nr_devices
        raise ValueError(f"A program with effects, or for several devices, can't be exported: {found}.")
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


def from_program(
    path: str | os.PathLike,
    program: Program,
    members: Mapping[str, memoryview],
    platforms: Sequence[str],
    constraints: Sequence[str],
) -> export.Exported:
    """Return a program that JAX calls, or raise an ArtifactError if this JAX does not take it."""
    lowest = export.minimum_supported_calling_convention_version
    highest = export.maximum_supported_calling_convention_version
    if not lowest <= program.calling_convention <= highest:
        raise ArtifactError(
            path,
            f"Its programs have version {program.calling_convention} of JAX's calling convention, and JAX"
            f" {jax.__version__} takes {lowest} to {highest}.",
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
    """Raise an ArtifactError if a program is not StableHLO, or would call a Python function of this process."""
    try:
        lines = found.mlir_module().splitlines()
    except Exception as error:
        why = f"{str(error).splitlines()[0]:.200}"
        what = f"The program {program.member!r:.80} is none that JAX {jax.__version__} reads: {why}."
        raise ArtifactError(path, what, "Install the JAX that made it, or a newer one.") from None
    if calls := [line for line in lines if "custom_call" in line and "callback" in line.lower()]:
        what = f"The program {program.member!r:.80} calls Python: {calls[0].strip():.80}."
        raise ArtifactError(path, what, "No file of pytensor_jaxpr_linker does that: do not use it.")


def avals_of(path: str | os.PathLike, program: Program, constraints: Sequence[str]) -> tuple[tuple, tuple]:
    """Return the abstract values that a program takes and returns, with symbols of one scope."""
    try:
        scope = export.SymbolicScope(constraints)

        def aval(a: Aval) -> jax.core.ShapedArray:
            shape = export.symbolic_shape(", ".join(map(str, a.shape)), scope=scope)
            return jax.core.ShapedArray(shape, np.dtype(a.dtype))

        return tuple(map(aval, program.inputs)), tuple(map(aval, program.outputs))
    except Exception as error:  # JAX's parser of dimensions raises several types
        raise ArtifactError(path, f"JAX does not read the shapes in the header: {error}.", "Export it again.") from None


class JaxPrograms:
    """The programs of a file, run by JAX: a `Backend`.

    `jitted` has the programs as JAX functions, by name, and `exported` is the first one as `jax.export` has it. The
    arrays in the file are `state` and `constants`, which programs take last.
    """

    threads, takes_turns = jax_threads, False

    def __init__(self, path: str | os.PathLike, header: Header, members: Mapping[str, memoryview]):
        how = members, header.platforms, header.constraints
        exported = {
            name: [from_program(path, p, *how) for p in program.with_derivatives]
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
        what = f"The array {stored.name!r:.80} is not in the file as the header says."
        raise ArtifactError(path, what, "Export it again.")
    return np.frombuffer(data, dtype).reshape(stored.shape)
