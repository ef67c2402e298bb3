"""Differences between JAX releases, and private parts of JAX: no other module asks for a version or ``jax._src``."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import cache, lru_cache
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src import core, flattree, source_info_util, stages, xla_bridge
from jax._src.core import dim_value_aval
from jax._src.export.shape_poly import _DimExpr as SymbolicDim
from jax._src.export.shape_poly import dim_as_value_p
from jax._src.interpreters import batching
from jax._src.interpreters import mlir as mlir_internals
from jax._src.interpreters.pxla import ExecuteReplicated, UnloadedMeshExecutable
from jax._src.lax.control_flow import platform_index_p
from jax._src.lax.control_flow.solves import _LinearSolveTuple as LinearSolveTuple
from jax._src.lax.lax import optimization_barrier_p
from jax._src.lax.linalg import geqp3_p, geqrf_p
from jax._src.xla_metadata import xla_metadata_call_p
from jax.extend import linear_util
from jax.extend.core import primitives
from jax.interpreters import mlir
from jaxlib import lapack, xla_client

from jaxpr_artifact.threads import set_thread_x64, thread_x64, with_x64_restored
from pytensor_jaxpr_linker.base.options import given_platforms

#: What other modules import from here as it is defined elsewhere.
__all__ = ["LinearSolveTuple", "SymbolicDim", "dim_as_value_p", "dim_value_aval", "geqp3_p", "geqrf_p"]
__all__ += ["optimization_barrier_p", "platform_index_p", "xla_metadata_call_p"]
__all__ += ["set_thread_x64", "thread_x64", "with_x64_restored"]

#: From JAX 0.12 on, ``erfc`` has the param that ``exp`` and others have had.
ERFC_PARAMS: dict[str, Any] = {"accuracy": None} if "accuracy" in inspect.signature(lax.erfc).parameters else {}


class NamedJaxpr(jex.Jaxpr):
    """A Jaxpr that prints the PyTensor node and variable names behind each equation."""

    def __str__(self) -> str:
        printed = self.pretty_print(name_stack=any(eqn.source_info.name_stack.stack for eqn in self.eqns))
        # JAX puts all names behind the longest line, which may have thousands of characters.
        return re.sub(r"^(.*?) {2,}(# \[.*\])$", with_name, printed, flags=re.M)

    __repr__ = __str__


#: The column at which names begin in the print of a Jaxpr, or before, unless the line is longer.
NAME_COLUMN = 80


def with_name(line: re.Match) -> str:
    """Return a line of a Jaxpr with the name behind it no further away than `NAME_COLUMN`."""
    column = line.start(2) - line.start() - 1
    return f"{line[1]:<{min(column, NAME_COLUMN - 1)}} {line[2]}"


def make_jaxpr_object(
    constvars: list, invars: list, outvars: list, eqns: list, consts: list, name: str, arg_names: Sequence[str] = ()
) -> jex.Jaxpr:
    """Assemble a closed Jaxpr from its parts. JAX's messages call it `name`, and its inputs `arg_names`, if given."""
    result_paths = tuple(f"result[{i}]" for i in range(len(outvars)))
    debug_info = jex.DebugInfo("pytensor", name, tuple(arg_names) or ("",) * len(invars), result_paths)
    effects = frozenset(itertools.chain.from_iterable(eqn.effects for eqn in eqns))
    jaxpr = jex.Jaxpr(constvars, invars, outvars, eqns, effects, debug_info)
    return jex.Jaxpr(jaxpr, consts)


def equation_context() -> Any:
    """Return the context of equations that are made here, by JAX's settings."""
    return jex.new_jaxpr_eqn([], [], primitives.add_p, {}, jex.no_effects).ctx


def inner_jaxprs(eqn: Any, platform: str | None = None) -> list[Any]:
    """Return the Jaxprs inside an equation: bodies, calls and branches, of `platform` only if it is given."""
    if platform is not None and (platforms := branches_platforms(eqn)) is not None:
        branches = zip(platforms, eqn.params["branches"], strict=True)
        return [next(jaxpr for of, jaxpr in branches if of is None or platform in of)]
    return list(core.jaxprs_in_params(eqn.params))


def all_equations(eqns: Iterable[Any], *closed: Any) -> Iterator[Any]:
    """Yield equations, each followed by its inner equations, but for equations of the primitives `closed`."""
    for eqn in eqns:
        yield eqn
        for jaxpr in inner_jaxprs(eqn) if eqn.primitive not in closed else ():
            yield from all_equations(jaxpr.eqns, *closed)


def branches_platforms(eqn: Any) -> tuple[tuple[str, ...] | None, ...] | None:
    """Return which platforms each branch of a ``cond`` is for, None for all others; or None for a usual ``cond``."""
    return eqn.params.get("branches_platforms")


def scan_trees(consts: int, carry: int, xs: int, ys: int) -> dict[str, Any]:
    """Return the params by which ``scan`` tells its operands, and its results, apart: flat trees of these lengths."""
    nones = flattree.nones
    return {
        "ft_in": flattree.pack((nones(consts), nones(carry), nones(xs))),
        "ft_out": flattree.pack((nones(carry), nones(ys))),
    }


def scan_counts(params: Any) -> tuple[int, int]:
    """Return how many constants a ``scan`` takes, and how many values it carries."""
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def jvp_param(make: Callable[..., tuple[Any, list[bool]]], debug_info: jex.DebugInfo) -> dict[str, Any]:
    """Return the param by which ``custom_jvp_call`` finds its derivative.

    ``make(*zeros)`` gets which operands have no tangent, and returns the closed Jaxpr from the operands and the other
    tangents to the results and their tangents, and which of the latter are zero.
    """

    @cache
    def jvp_jaxpr(*zeros: bool) -> tuple[Any, Any, list[bool]]:
        closed, out_zeros = make(*zeros)
        return closed.jaxpr, closed.consts, out_zeros

    return {"jvp_jaxpr_fun": linear_util.wrap_init(jvp_jaxpr, debug_info=debug_info)}


@lru_cache(2**12)
def source_info(names: tuple[str, ...] = ()) -> Any:
    """Return the source info whose name stack is `names`, outermost first.

    The name stack reaches HLO metadata, profiles and Jaxpr prints. It holds no traceback: the Python frames of
    this package would tell a user nothing about the graph.
    """
    stack = source_info_util.NameStack()
    for name in names:
        stack = stack.extend(name)
    return source_info_util.SourceInfo(None, stack)


def call_jaxpr(jaxpr: Any, *args: Any) -> list:
    """Bind `jaxpr` to `args` as one call; `jax.extend.core.jaxpr_as_fun` would trace each of its equations again."""
    if any(varying_axes(arg) for arg in args) and not any(core.subjaxprs(jaxpr.jaxpr)):
        return eval_varying(jaxpr, args)
    return primitives.closed_call_p.bind(*args, call_jaxpr=jaxpr)


def varying_axes(value: Any) -> frozenset:
    """Return the mesh axes over which a value differs inside `jax.shard_map` with ``check_vma=True``."""
    return jax.typeof(value).mat.varying


def eval_varying(jaxpr: Any, args: Sequence[Any]) -> list:
    """Evaluate `jaxpr` one equation at a time inside `jax.shard_map`.

    The types in `jaxpr` say nothing of mesh axes, so transposing a call of it would fail, and lose the sum over devices
    that the gradient of a replicated input is. Operands of one equation must vary over the same axes.
    """
    env = dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True)) | dict(zip(jaxpr.jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Any:
        dtype = atom.aval.dtype
        return jnp.asarray(atom.val, dtype) if isinstance(atom, jex.Literal) else env[atom]

    for eqn in jaxpr.jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        axes = frozenset().union(*map(varying_axes, operands))
        operands = [vary(x, axes) for x in operands]
        stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
        with source_info_util.user_context(None, name_stack=stack), eqn.ctx.manager:
            results = eqn.primitive.bind(*operands, **eqn.params)
        env.update(zip(eqn.outvars, results if eqn.primitive.multiple_results else [results], strict=True))
    return [read(atom) for atom in jaxpr.jaxpr.outvars]


def vary(value: Any, axes: frozenset) -> Any:
    """Return `value` as one that differs over `axes`."""
    missing = tuple(axes - varying_axes(value))
    return jax.lax.pcast(value, missing, to="varying") if missing else value


def cotangent_of(primal: Any, cotangent: Any) -> Any:
    """Return a cotangent in the dtype of its primal value, and summed over the devices that share that."""
    cotangent = lax.convert_element_type(cotangent, primal.dtype)
    axes = varying_axes(primal)
    shared = tuple(varying_axes(cotangent) - axes)
    return vary(lax.psum(cotangent, shared) if shared else cotangent, axes)


def default_platform() -> str:
    """Return the platform on which JAX runs programs by default: of `jax_default_device` if it is set."""
    device = jax.config.jax_default_device
    return jax.default_backend() if device is None else str(getattr(device, "platform", device))


def target_platforms() -> tuple[str, ...]:
    """Return the platforms that programs are planned and lowered for: of `for_platforms`, else JAX's platform."""
    return given_platforms() or (default_platform(),)


def backend_has_started() -> bool:
    """Return whether JAX has started a backend in this process, or in one that it was forked from."""
    # JAX's function for this takes a lock, which a thread may have held when the process was forked.
    return bool(xla_bridge._backends)


def make_synchronous_cpu_device() -> jax.Device:
    """Return the device of a new CPU client, which JAX does not list. It runs a program in the thread that calls it."""
    client: Any = xla_client.make_cpu_client(asynchronous=False)
    return client.local_devices()[0]


class Executable(NamedTuple):
    """A compiled program, without the dispatch of `jax.jit`.

    `execute(arrays).consume_with_handlers(handlers)` is its list of results.

    `arrays` are JAX arrays of the shapes and dtypes that it takes, on its device.
    """

    execute: Callable[[list], Any]
    handlers: list[Any]


def runs_alone(compiled: jax.stages.Compiled) -> bool:
    """Return whether a call of a compiled program only runs that: it calls no Python, and has no effects."""
    run = compiled._executable.unsafe_call  # type: ignore[attr-defined]
    if type(run) is not ExecuteReplicated or run.mut is not None:
        return False
    return not (run.has_host_callbacks or run.has_unordered_effects or run.ordered_effects)


def executable_of(compiled: jax.stages.Compiled) -> Executable | None:
    """Return the executable of a compiled program, or None if a call does more than run it on all arguments."""
    run = compiled._executable.unsafe_call  # type: ignore[attr-defined]
    arguments, *_ = compiled.in_avals
    if not runs_alone(compiled) or len(run.kept_var_idx) != len(arguments):
        return None
    return Executable(run.xla_executable.execute_sharded, run.out_handler.handlers)


class PlainProgram(NamedTuple):
    """A compiled program for one device as bytes, numbers, names and containers of Python.

    Trees have 0 for each leaf. An array is its shape, the name of its dtype, and whether that is weak.
    """

    code: bytes
    name: str
    is_committed: bool
    taken: Any
    """The tree of the arguments."""
    returned: Any
    """The tree of the results."""
    arguments: list[tuple]
    """Each also with whether the program may overwrite it."""
    read: list[int]
    """The positions of the arguments that XLA's program takes."""
    results: list[tuple]


def plain_program(compiled: jax.stages.Compiled) -> PlainProgram:
    """Return a program that `load_program` loads in a later process.

    Raises
    ------
    ValueError
        If it does not `runs_alone`, or has random keys, constants or several devices.
    """
    program: Any = compiled
    parts = getattr(program._executable, "_unloaded_executable", None)
    if not runs_alone(compiled) or not isinstance(parts, UnloadedMeshExecutable) or len(parts.device_list) != 1:
        raise ValueError("The program is not one of XLA for one device.")
    infos, in_tree = jax.tree.flatten(program.args_info)
    avals = [info._aval for info in infos], parts.output_avals
    if program._params.const_args or not all(isinstance(x.dtype, np.dtype) for xs in avals for x in xs):
        raise ValueError("The program has constants or random keys.")
    code = parts.xla_executable.client.serialize_executable(parts.xla_executable)
    given, returned = (jax.tree.unflatten(tree, [0] * tree.num_leaves) for tree in (in_tree, program.out_tree))
    taken, results = ([(x.shape, x.dtype.name, x.weak_type) for x in xs] for xs in avals)
    arguments = [(*x, info.donated) for x, info in zip(taken, infos, strict=True)]
    read = sorted(parts.kept_var_idx)
    return PlainProgram(code, parts.name, parts.committed, given, returned, arguments, read, results)


def load_program(plain: PlainProgram, device: jax.Device) -> jax.stages.Compiled:
    """Load a program for a device. This runs nothing but XLA: JAX's own way is a pickle."""
    devices: Any = xla_client.DeviceList((device,))
    client: Any = device.client
    arguments, results = (
        [core.ShapedArray(x[0], np.dtype(x[1]), x[2]) for x in xs] for xs in (plain.arguments, plain.results)
    )
    inputs, here = [arguments[i] for i in plain.read], jax.sharding.SingleDeviceSharding(device)
    unset: dict[str, Any] = dict.fromkeys(field.name for field in fields(UnloadedMeshExecutable))
    known = {
        "xla_executable": client.deserialize_executable(plain.code, executable_devices=devices),
        "device_list": devices,
        "backend": client,
        "input_avals": inputs,
        "input_shardings": [here] * len(inputs),
        "output_avals": results,
        "output_shardings": [here] * len(results),
        "committed": plain.is_committed,
        "name": plain.name,
        "kept_var_idx": set(plain.read),
        "xla_in_layouts": [None] * len(inputs),
        "dispatch_in_layouts": [None] * len(inputs),
        "xla_out_layouts": [None] * len(results),
    }
    executable = UnloadedMeshExecutable(**(unset | known)).load()
    infos = [stages.ArgInfo(x, donated) for x, (*_, donated) in zip(arguments, plain.arguments, strict=True)]
    given, returned = jax.tree.unflatten(jax.tree.structure(plain.taken), infos), jax.tree.structure(plain.returned)
    return jax.stages.Compiled(executable, [], given, returned)


def prepare_lapack() -> None:
    """Look up the functions of LAPACK, as JAX does when it lowers a call of one: a stored program has no lowering."""
    lapack.prepare_lapack_call("potrf_ffi", np.float64)


#: JAX's settings `jax_debug_nans` and `jax_debug_infs`: it looks for NaN or infinities in the results of each program
#: if the `value` of one is true.
debug_nans, debug_infs = jax.debug_nans, jax.debug_infs


def looks_for_nan() -> bool:
    """Return whether JAX looks for NaN or infinities in the results of each program."""
    return bool(debug_nans.value or debug_infs.value)


def is_ready(array: Any) -> bool:
    """Return whether the device has computed an array, without waiting. `jax.Array` does not declare the method."""
    return array.is_ready()


def batch_jaxpr(
    jaxpr: Any, size: Any, is_batched: Sequence[bool], every_result: bool = False
) -> tuple[Any, list[bool]]:
    """Return a closed Jaxpr over a new first axis, and which results have it: all with `every_result`."""
    axis = batching.AxisData(core.no_axis_name, size, None, None)
    batched, results = batching.batch_jaxpr(jaxpr, axis, list(is_batched), every_result)
    return batched, list(results)


@cache
def bcsr_product() -> tuple[jex.Primitive, type]:
    """Return the primitive of the product of a sparse and a dense matrix, and the type of its param `lhs_spinfo`.

    It is experimental, and its import takes half a second, so only graphs with sparse matrices import it.
    """
    from jax.experimental.sparse import bcsr_dot_general_p
    from jax.experimental.sparse.util import SparseInfo

    return bcsr_dot_general_p, SparseInfo


def new_mlir_context() -> Any:
    """Return an MLIR context of its own with the dialects of JAX; JAX hands out one for several programs."""
    return mlir_internals._create_ir_context()


def lower_to_mlir(jaxpr: jex.Jaxpr, name: str, platform: str) -> bytes:
    """Return the MLIR bytecode of a module whose function ``main`` computes a closed Jaxpr. Nothing is traced.

    Raises
    ------
    NotImplementedError
        If JAX can't lower a primitive for the platform, or the Jaxpr calls Python.
    """
    if jaxpr.effects:
        raise NotImplementedError(f"{name} has effects, {', '.join(map(str, jaxpr.effects))}, and would call Python.")
    result = mlir.lower_jaxpr_to_module(
        name,
        jaxpr,
        num_const_args=0,
        in_avals=jaxpr.in_avals,
        out_avals=jaxpr.out_avals,
        ordered_effects=[],
        platforms=[platform],
        backend=None,
        axis_context=mlir.ShardingContext(1),
        donated_args=[False] * len(jaxpr.in_avals),
        lowering_parameters=mlir.LoweringParameters(),
    )
    if result.keepalive or result.host_callbacks:
        raise NotImplementedError(f"{name} calls a Python function, which only this process has.")
    return mlir.module_to_bytecode(result.module)
