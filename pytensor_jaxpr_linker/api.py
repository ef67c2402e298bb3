"""The functions that users call beside `pytensor.function`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import numpy as np
from pytensor.compile.executor import Function
from pytensor.compile.mode import get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import graph_inputs

from pytensor_jaxpr_linker.checks import with_checkify
from pytensor_jaxpr_linker.constants import LargeConstants
from pytensor_jaxpr_linker.errors import CannotEmit, refused_by_rule, variable_name
from pytensor_jaxpr_linker.facts import may_be_static
from pytensor_jaxpr_linker.fork import process
from pytensor_jaxpr_linker.gradient import with_pytensor_gradient
from pytensor_jaxpr_linker.lower import lower_region
from pytensor_jaxpr_linker.options import resolve
from pytensor_jaxpr_linker.original import Original, copy_of, original_of
from pytensor_jaxpr_linker.planning import make_graph, make_plan
from pytensor_jaxpr_linker.program import Program, pure_function, static_value
from pytensor_jaxpr_linker.transfer import keys_of


def as_jax_function(
    inputs: Function | Sequence[Variable],
    outputs: Variable | Sequence[Variable] | None = None,
    mode: Any = "JAXPR",
    *,
    gradient: Literal["pytensor", "jax"] = "pytensor",
    checks: Literal["skip", "checkify"] = "skip",
) -> Callable[..., list]:
    """Return a pure JAX function, to `jit`, `grad`, `vmap`, `scan` or export.

    Parameters
    ----------
    inputs : pytensor.compile.executor.Function or sequence of Variable
        A function compiled with mode JAXPR, or the inputs of a graph.
    outputs : Variable or sequence of Variable
        The outputs of the graph. Shared variables in it enter with the values that they have now.
    mode : Mode or str
        Whose rewrites the graph gets.
    gradient : {"pytensor", "jax"}
        How JAX differentiates the function. With "pytensor" its derivative is the `pytensor.grad` of the graph before
        rewrites, so `zero_grad`, `grad_clip`, overrides and the like hold; it works in reverse mode, to any order. With
        "jax" each equation has JAX's own derivative, in forward mode too (`jax.jvp`, `jax.jacfwd`, `jax.hessian`).
    checks : {"skip", "checkify"}
        What becomes of run-time checks, which can't raise inside JAX transformations. With "skip" an index out of bounds
        reads NaN (the largest negative integer), and what `Assert`, `CheckAndRaise` and the like state is taken for true.
        With "checkify" each is a `jax.experimental.checkify.check`: `checkify.checkify` of what is returned, or of what
        calls it, gives the error beside the results. Without a `checkify` around it, JAX refuses to stage the function.

    Returns
    -------
    Callable
        Called with one array for each input, it returns the list of outputs. The shared variables of a compiled function
        follow its inputs as arguments; its updates follow its outputs. A random generator is a JAX key (``jax.random.key``
        or its ``uint32[2]`` data).

    Raises
    ------
    GraphBreakError
        If the graph can't be one XLA program.
    TypeError
        If `inputs` is a function of another mode.
    ValueError
        If `gradient` or `checks` is none of its values.

    Examples
    --------
    >>> import jax, pytensor.tensor as pt
    >>> import pytensor_jaxpr_linker as pjl
    >>> x = pt.vector("x", dtype="float64")
    >>> fn = pjl.as_jax_function([x], [(x**2).sum()])
    >>> with jax.enable_x64(True):
    ...     jax.grad(lambda x: fn(x)[0])(jax.numpy.arange(3.0))
    Array([0., 2., 4.], dtype=float64)
    """
    if gradient not in ("pytensor", "jax"):
        raise ValueError(f'gradient is "pytensor" or "jax", not {gradient!r}.')
    if checks not in ("skip", "checkify"):
        raise ValueError(f'checks is "skip" or "checkify", not {checks!r}.')
    program, original, mode = single_program(inputs, outputs, mode)
    program = program.as_pure(checked=checks == "checkify", differentiable=gradient == "jax")
    fn = pure_function(program)
    if gradient == "pytensor":
        static = [i for i, v in enumerate(program.inputs) if i in program.static_positions or may_be_static(v)]
        fn = with_pytensor_gradient(
            fn, original, static, lambda inputs, outputs: as_jax_function(inputs, outputs, mode), program.checked
        )
    return checked_call(program, with_checkify(program, fn) if program.checked else fn)


def single_program(
    inputs: Function | Sequence[Variable], outputs: Variable | Sequence[Variable] | None, mode: Any
) -> tuple[Program, Any, Any]:
    """Return what `as_jax_function` is asked for as one program, with its graph before rewrites, and its mode."""
    if isinstance(inputs, Function):
        fgraph = inputs.maker.fgraph
        original = original_of(fgraph) or copy_of(fgraph.inputs, fgraph.outputs)
        return compiled_program(inputs), original, inputs.maker.mode
    if outputs is None:
        raise TypeError("as_jax_function takes a compiled function, or the inputs and the outputs of a graph.")
    original = with_constants(inputs, [outputs] if isinstance(outputs, Variable) else outputs)
    return graph_program(original, mode), original, mode


def make_jaxpr(f: Function, *args: Any) -> Any:
    """Return the Jaxpr that a compiled function runs, for the shapes and static values of example arguments.

    Parameters
    ----------
    f : pytensor.compile.executor.Function
        A function compiled with mode JAXPR.
    *args
        Its arguments, of which only shapes, dtypes and the values of inputs that determine shapes matter. May be left out
        where the graph declares every shape.

    Returns
    -------
    jax.extend.core.Jaxpr
        A closed Jaxpr of the inputs and then the shared variables. Its print names the PyTensor node, and the user's
        variable, behind each equation.

    Examples
    --------
    >>> import pytensor, pytensor.tensor as pt
    >>> import pytensor_jaxpr_linker as pjl
    >>> x = pt.vector("x", dtype="float64")
    >>> y = pt.exp(x)
    >>> y.name = "y"
    >>> pjl.make_jaxpr(pytensor.function([x], y, mode="JAXPR"), [1.0, 2.0])
    { lambda ; a:f64[2]. let b:f64[2] = exp a in (b,) } # [Exp[y]]
    """
    program = compiled_program(f)
    with jax.enable_x64(True):
        values = [example_value(v, i, args, f) for i, v in enumerate(program.inputs)]
        static = {program.inputs[i]: static_value(program.inputs[i], values[i]) for i in program.static_positions}
        region = program.region._replace(constants=LargeConstants([], {}))
        return lower_region(region, values, static, checked=False, name=program.name).jaxpr


def example_value(variable: Variable, position: int, args: Sequence[Any], f: Function) -> Any:
    """Return a value, or shape and dtype, of one input for `make_jaxpr`."""
    value = args[position] if position < len(args) else f.input_storage[position].storage[0]
    if value is None:
        shape = getattr(variable.type, "shape", (None,))
        if None in shape:
            raise TypeError(
                f"make_jaxpr needs an example of the input {variable_name(variable)}: its shape is not declared."
            )
        return jax.ShapeDtypeStruct(shape, np.dtype(variable.type.dtype))
    if isinstance(value, np.random.Generator):
        return keys_of(value, compiled_program(f).key_counts.get(position, 1))
    return (
        value
        if isinstance(value, jax.Array | jax.ShapeDtypeStruct)
        else np.asarray(value, np.dtype(variable.type.dtype))
    )


def compiled_program(f: Function) -> Program:
    """Return the program behind a compiled function."""
    runner = getattr(getattr(f, "vm", None), "runner", None)
    if runner is None:
        raise TypeError(f"{f} was not compiled with mode JAXPR: use pytensor.function(..., mode='JAXPR').")
    return runner.single_program()


def with_constants(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> Original:
    """Return a graph with constants in place of the shared variables that are no inputs, and inputs that nothing computes."""
    shared = [v for v in graph_inputs(outputs) if isinstance(v, SharedVariable) and v not in inputs]
    constants: Any = {v: v.type.constant_type(type=v.type, data=v.get_value()) for v in shared}
    outputs = graph_replace(outputs, constants, strict=False) if constants else list(outputs)
    if any(v.owner is not None for v in inputs):
        return copy_of(inputs, outputs)
    return Original(list(inputs), list(outputs))


def graph_program(graph: Original, mode: Any) -> Program:
    """Rewrite a graph and return its program."""
    fgraph = FunctionGraph(*graph, clone=True)
    get_mode(mode).optimizer.rewrite(fgraph)
    return rewritten_program(fgraph, resolve(getattr(get_mode(mode).linker, "options", None)).allow_traced_leaves)


def rewritten_program(fgraph: FunctionGraph, traced_leaves: bool) -> Program:
    """Return the program of a graph that has been rewritten."""
    plan = make_plan(make_graph(fgraph, traced_leaves), traced_leaves=traced_leaves)
    return Program(plan.single_region(), checked=False)


def checked_call(program: Program, fn: Callable[..., list]) -> Callable[..., list]:
    """Return `fn` with the arguments that a user may give it: NumPy arrays, numbers, typed keys, tracers."""
    wide = any(getattr(v.type, "dtype", "") in WIDE for v in [*program.inputs, *program.outputs])

    def call(*args: Any) -> list:
        process.check()
        try:
            return convert_and_call(*args)
        except CannotEmit as error:
            raise refused_by_rule(error) from None

    def convert_and_call(*args: Any) -> list:
        if len(args) != len(program.inputs):
            names = ", ".join(variable_name(v) for v in program.inputs)
            raise TypeError(f"expected {len(program.inputs)} arguments ({names}), got {len(args)}")
        counts = program.key_counts
        args = tuple(
            as_argument(v, a, counts.get(i, 1)) for i, (v, a) in enumerate(zip(program.inputs, args, strict=True))
        )
        for variable, value in zip(program.inputs, args, strict=True):
            check_shape(variable, value.shape)
        if jax.config.jax_enable_x64:
            return fn(*args)
        if wide and any(isinstance(a, jax.core.Tracer) for a in args):
            raise TypeError(
                "This graph computes with 64 bits, which JAX does only if told to: call the transformation inside"
                " `with jax.enable_x64(True):`, or set `jax.config.update('jax_enable_x64', True)`."
            )
        with jax.enable_x64(True):
            return fn(*args)

    call.__name__ = call.__qualname__ = program.name
    return call


#: dtypes that JAX narrows unless `jax_enable_x64` is set.
WIDE = frozenset({"float64", "int64", "uint64", "complex128"})


def check_shape(variable: Variable, shape: tuple) -> None:
    """Raise a TypeError if an argument has another rank, or another size of an axis, than its variable declares."""
    declared = getattr(variable.type, "shape", None)  # a generator has none
    if declared is None or declared == shape:
        return
    if len(declared) != len(shape) or any(n is not None and n != m for n, m in zip(declared, shape, strict=True)):
        raise TypeError(
            f"The input {variable_name(variable)} is a {variable.type}, but its argument has shape {shape}."
        )


def as_argument(variable: Variable, value: Any, key_count: int = 1) -> Any:
    """Return an argument as an array.

    A Python number or sequence gets the declared dtype, a typed key becomes its data, a generator gives `key_count` keys.
    """
    if isinstance(value, jax.Array):
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return jax.random.key_data(value)
        return value
    if isinstance(value, np.random.Generator):
        return keys_of(value, key_count)
    if isinstance(value, np.ndarray | np.generic):
        return value
    return np.asarray(value, getattr(variable.type, "dtype", None))
