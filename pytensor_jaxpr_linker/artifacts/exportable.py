"""Makes an `Exportable` of a graph or a compiled function, with its arguments, state, constants and checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.random.type import RandomType

from jaxpr_artifact.header import Check, Fixed
from jaxpr_artifact.state import spelled
from pytensor_jaxpr_linker.artifacts.shapes import Input, Spec, advising, by_name, inputs_of, unique_names
from pytensor_jaxpr_linker.artifacts.writing import Exportable, KeptArray
from pytensor_jaxpr_linker.base.array_types import in_order
from pytensor_jaxpr_linker.base.errors import CannotEmit, describe_node, refused_by_rule, source_line, user_line
from pytensor_jaxpr_linker.base.options import for_platforms
from pytensor_jaxpr_linker.base.random_keys import keys_of
from pytensor_jaxpr_linker.frontend.as_jax_function import differentiable_function, single_program
from pytensor_jaxpr_linker.frontend.targets import Target
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import DEAD_CODE, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.builder import Check as BuilderCheck
from pytensor_jaxpr_linker.jaxpr.lower import Lowered
from pytensor_jaxpr_linker.plan.model import Step
from pytensor_jaxpr_linker.run.call import find_generators
from pytensor_jaxpr_linker.run.program import Program


class Signature(NamedTuple):
    """The division of the inputs of a program into arguments and state."""

    variables: list[Variable]
    """The inputs, as variables of the user's."""
    arguments: list[int]
    state: list[int]
    values: dict[int, Any]
    """The value of each state."""
    updates: dict[int, int]
    """The result that is the next value of a state."""
    outputs: list[Variable]
    is_bare: bool
    name: str


def signature_of_target(target: Target) -> tuple[Target, Signature]:
    """Return a target whose shared variables are inputs, and its signature."""
    if (f := target.function) is None:
        roots = dict.fromkeys(graph_inputs(target.outputs))
        shared = [v for v in roots if isinstance(v, SharedVariable) and v not in target.inputs]
        inputs: list[Any] = [*target.inputs, *shared]
        count = len(target.inputs)
        state = [i for i, v in enumerate(inputs) if i >= count or v in target.kept]
        arguments = [i for i in range(count) if i not in state]
        values = {i: inputs[i].get_value(borrow=True) for i in state}
        example = [target.example[i] for i in arguments] if target.example else ()
        name = next((v.name for v in target.outputs if v.name), "") if len(target.outputs) == 1 else ""
        signature = Signature(inputs, arguments, state, values, {}, list(target.outputs), target.is_bare, name or "")
        return target._replace(inputs=inputs, example=example), signature
    given = f.maker.inputs
    updates = {i: output for output, i in (f.maker.fgraph.update_mapping or {}).items()}
    state = [i for i, x in enumerate(given) if x.shared or i in updates]
    values = {i: f.input_storage[i].value for i in state}
    outputs = [x.variable for x in f.maker.outputs]
    arguments = [i for i in range(len(given)) if i not in state]
    inputs = [x.variable for x in given]
    return target, Signature(inputs, arguments, state, values, updates, outputs, f.unpack_single, f.name or "")


def exportable(target: Target, *, platforms: Sequence[str], **options: Any) -> Exportable:
    """Return a target, ready to be written, planned for platforms. For the options see `planned`."""
    with for_platforms(platforms):
        return planned(target, **options)


def planned(
    target: Target,
    dims: Mapping[str, Spec],
    examples: Sequence[Any] | Mapping[str, Any],
    constraints: Sequence[str],
    static: Mapping[str, Any] = MappingProxyType({}),
    gradient: str = "pytensor",
    with_derivatives: bool = False,
    checks: bool = True,
    name: str = "",
    note: str = "",
) -> Exportable:
    """Return a target, ready to be written. See `export` for the options; `with_derivatives` prepares for gradients."""
    target, signature = signature_of_target(target)
    program, original, mode = single_program(target)
    names = argument_names(program, signature)
    of = names, signature.variables
    dims, static = by_name("dims", dims, *of), by_name("static", static, *of)
    examples = examples_by_name(examples or target.example, signature, names)
    shown = fixed_values(program, signature, names, static, examples)
    fixed = shown | unused_state(program, signature)
    free = [i for i in range(len(names)) if i not in fixed]
    values = examples | {names[i]: state_value(program, i, value) for i, value in signature.values.items()}
    variables = [program.inputs[i] for i in free]
    given = {names[i]: values[names[i]] for i in free if names[i] in values}
    inputs = dict(zip(free, inputs_of(variables, [names[i] for i in free], dims, given, constraints), strict=True))
    avals = [fixed.get(i, inputs[i].aval if i in inputs else None) for i in range(len(names))]

    with advising(list(inputs.values())):
        lowered = lowered_program(program.as_pure(checked=True), avals)  # raises errors of rules, too
        for i, output in signature.updates.items():
            check_shape_of_state(inputs[i], lowered.jaxpr.out_avals[output].shape, program.outputs[output])
    found = lowered.checks if checks else []
    program, fn, shared = differentiable_function(program, original, mode, gradient, bool(found))
    if with_derivatives:
        with jax.enable_x64(True):
            shared.collected()  # with the constants of the derivative
    ordered = [i for i in (*signature.arguments, *signature.state) if i in inputs]
    is_key = [isinstance(v.type, RandomType) for v in signature.outputs]
    names_out = unique_names([v.name for v in signature.outputs], "output")
    constants = unique_names([None] * len(shared.arrays), "constant")
    arrays = [
        KeptArray(Input(name, jax.ShapeDtypeStruct(x.shape, x.dtype), False), x)
        for name, x in zip(constants, shared.arrays, strict=True)
    ]
    state = [KeptArray(inputs[i], values[names[i]], signature.updates.get(i)) for i in signature.state if i in inputs]
    return Exportable(
        in_order_of(fn, ordered, fixed, len(names)),
        name or signature.name or "pytensor_function",
        [inputs[i] for i in signature.arguments if i in inputs],
        list(zip(names_out, is_key, strict=True)),
        key_sources(program, ordered, len(names_out)),
        signature.is_bare,
        state,
        arrays,
        [Fixed(names[i], np.array2string(value, threshold=8)) for i, value in shown.items()],
        [check_text(check) for check in found],
        note,
        dict(places_of(program.region.steps)),
        partial(assembled_jaxpr, program, ordered, avals, fixed),
    )


def assembled_jaxpr(
    program: Program, ordered: Sequence[int], avals: Sequence[Any], fixed: Mapping[int, np.ndarray]
) -> Any:
    """Return the closed Jaxpr of the inputs at the positions `ordered` and then of the constants of a program."""
    with jax.enable_x64(True):
        inner = program.specialize(avals).lower([*avals, *program.constants]).jaxpr
        b = JaxprBuilder(inner.jaxpr.debug_info.func_name, passes=(DEAD_CODE,))
        given = {i: b.input(avals[i].shape, avals[i].dtype) for i in ordered}
        given |= {i: b.constant(value) for i, value in fixed.items()}
        operands = [given[i] for i in range(len(avals))]
        operands += [b.input(x.shape, x.dtype) for x in program.constants]
        return b.build(prims.closed_call(b, inner, operands))


def places_of(steps: Iterable[Step]) -> Iterator[tuple[str, str]]:
    """Yield the name of each node, also of inner graphs, with the line of the user's program that made it."""
    for step in steps:
        if line := source_line(step.node):
            yield step.names[-1], line
        for inner in step.inner or ():
            yield from places_of(inner.plan.single_region().steps)


def argument_names(program: Program, signature: Signature) -> list[str]:
    """Return the name of each input of a program."""
    defaults = ["arg" if i in signature.arguments else "state" for i in range(len(program.inputs))]
    wanted = [v.name or f"{default}{i}" for i, (v, default) in enumerate(zip(program.inputs, defaults, strict=True))]
    return unique_names(wanted, "arg")


def examples_by_name(
    examples: Sequence[Any] | Mapping[Any, Any], signature: Signature, all_names: Sequence[str]
) -> dict[str, Any]:
    """Return the examples of arguments, which a user may give in order, by name."""
    names = [all_names[i] for i in signature.arguments]
    if isinstance(examples, Mapping):
        found = by_name("examples", examples, names, [signature.variables[i] for i in signature.arguments])
        return {name: value for name, value in found.items() if value is not None}
    if len(examples) > len(names):
        raise TypeError(f"There are {len(examples)} examples, and the function takes {', '.join(names) or 'nothing'}.")
    return {name: value for name, value in zip(names, examples, strict=False) if value is not None}


def fixed_values(
    program: Program, signature: Signature, names: Sequence[str], static: Mapping[str, Any], examples: dict[str, Any]
) -> dict[int, np.ndarray]:
    """Return the values that become part of the program, because they determine shapes.

    Raise a TypeError if one of them is unknown or updated.
    """
    if unknown := sorted(set(static) - {names[i] for i in program.static_positions}):
        what = f"static names {unknown[0]!r}, which does not determine a shape"
        raise TypeError(f"{what}: leave it out, it is an argument.")
    fixed = {}
    for i in program.static_positions:
        name, variable = names[i], program.inputs[i]
        if i in signature.updates:
            what = f"The state {name} determines a shape and is updated"
            raise TypeError(f"{what}, so no single program can have its values.")
        value = signature.values.get(i, static.get(name, examples.get(name)))
        if value is None:
            raise TypeError(
                f"The input {name} determines a shape, so its value becomes part of the program: give it by"
                f" static={{{name!r}: 5}} (it is no argument of the artifact then), or compute the size from the shape"
                " of an argument."
            )
        fixed[i] = np.asarray(in_order(variable.type, value), variable.type.dtype)
        examples.pop(name, None)
    return fixed


def unused_state(program: Program, signature: Signature) -> dict[int, np.ndarray]:
    """Return the state that nothing reads or updates, such as the lengths of a model's dims. An artifact omits it."""
    region = program.region
    read = {v for step in region.steps for v in step.node.inputs} | set(region.outputs)
    unused = [i for i in signature.state if program.inputs[i] not in read and i not in signature.updates]
    return {i: state_value(program, i, signature.values[i]) for i in unused}


def state_value(program: Program, position: int, value: Any) -> np.ndarray:
    """Return the value of a state as an array; for a generator, the key that its next bits give."""
    variable = program.inputs[position]
    if isinstance(variable.type, RandomType):
        return np.asarray(keys_of(value))
    return np.asarray(in_order(variable.type, value))


def lowered_program(program: Program, given: Sequence[Any]) -> Lowered:
    """Return the Jaxpr of a program for shapes, and for the values that determine shapes."""
    try:
        with jax.enable_x64(True):
            return program.specialize(given).lower([*given, *program.constants])
    except CannotEmit as error:
        raise refused_by_rule(error) from None


def check_shape_of_state(state: Input, found: Sequence[Any], update: Variable) -> None:
    """Raise a TypeError if an update has another shape than its state."""
    if tuple(found) != tuple(state.aval.shape):
        shapes = f"The update of {state.name}, which has shape {spelled(state.aval.shape)}, has shape {spelled(found)}"
        raise TypeError(
            f"{shapes}: the state of an artifact keeps its shape. Make the state an argument, and the value an output."
            f"{user_line(update.owner) if update.owner else ''}"
        )


def key_sources(program: Program, ordered: Sequence[int], count: int) -> list[int | None]:
    """Return `Exportable.key_of`, with places in `ordered`, for `count` outputs."""
    followed = find_generators(program.region)
    found = {o: ordered.index(i) for i, outputs in followed.items() for o in outputs if o < count}
    return [found.get(output) for output in range(count)] if found else []


def in_order_of(
    fn: Callable[..., list], ordered: Sequence[int], fixed: Mapping[int, np.ndarray], count: int
) -> Callable[..., list]:
    """Return `fn` as a function of the inputs at the positions `ordered`, and then of constants."""

    def call(*args: Any) -> list:
        values = dict(fixed) | dict(zip(ordered, args, strict=False))
        return fn(*[values[i] for i in range(count)], *args[len(ordered) :])

    return call


def check_text(check: BuilderCheck) -> Check:
    """Return a check as text. Its exception gets a type that a reader without PyTensor knows."""
    error = check.make_error()
    known = next(c for c in type(error).__mro__ if c.__module__ == "builtins" or c is np.linalg.LinAlgError)
    return Check(known.__name__, str(error), "" if check.node is None else describe_node(check.node))
