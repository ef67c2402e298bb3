"""Lowers a region to a Jaxpr, for the avals of its inputs: one walk over its nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jax.errors import InconclusiveDimensionOperation
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import walk

from jaxpr_artifact.threads import with_x64
from pytensor_jaxpr_linker.base import marks
from pytensor_jaxpr_linker.base.errors import MISFITS, CannotEmit, note_node, user_line
from pytensor_jaxpr_linker.base.interpreter import gc_paused, identity
from pytensor_jaxpr_linker.base.random_keys import keys_of
from pytensor_jaxpr_linker.base.rules import find_rule
from pytensor_jaxpr_linker.graph.decompose import wide_dtype
from pytensor_jaxpr_linker.graph.facts import generators_read
from pytensor_jaxpr_linker.graph.static_values import NotStatic, StaticValues, is_symbolic
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, Check, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.nested import fixed_value
from pytensor_jaxpr_linker.jaxpr.optimize.finish import PASSES
from pytensor_jaxpr_linker.jaxpr.optimize.simplify import PEEPHOLES
from pytensor_jaxpr_linker.jaxpr.rule_results import checked_results, fits
from pytensor_jaxpr_linker.plan.model import InnerPlan, Region, Step, node_names


class Lowered(NamedTuple):
    """A region lowered for one tuple of avals and static values."""

    jaxpr: Any  #: the closed Jaxpr; after the region's outputs it returns the check code, if there are `checks`
    checks: list[Check]  #: run-time checks, in the order in which the check code counts them from 1


@with_x64
@gc_paused()
def lower_region(
    region: Region,
    avals: Sequence[Any],
    static: Mapping[Variable, Any] | None = None,
    checked: bool = False,
    name: str = "pytensor_function",
    differentiable: bool = False,
    for_jax: bool = False,
) -> Lowered:
    """Build the Jaxpr of a region.

    Parameters
    ----------
    region, name
        The region, and the name of the Jaxpr.
    avals
        Shape and dtype of each input and large constant; another dtype than the graph's is converted on entry.
    static
        The values of the inputs that key a specialization.
    checked
        Whether run-time checks become one more output.
    differentiable
        Whether JAX differentiates the Jaxpr.
    for_jax
        Whether JAX transforms the Jaxpr: it may divide the arrays over devices.

    Raises
    ------
    ValueError, IndexError, TypeError, AssertionError
        What PyTensor raises for these shapes and static values. A note says which node it comes from.
    """
    b = JaxprBuilder(name, checked, differentiable=differentiable, for_jax=for_jax, passes=PASSES, peepholes=PEEPHOLES)
    names = [v.name or "" for v in region.inputs] + ["constant"] * len(region.constants.arrays)
    atoms = [b.input(aval.shape, np.dtype(aval.dtype), name) for aval, name in zip(avals, names, strict=True)]
    count = len(region.inputs)
    operands = [convert_input(b, v, atom) for v, atom in zip(region.inputs, atoms[:count], strict=True)]
    outputs = lower_into(b, region, operands, static or {}, atoms[count:])
    # JAX hands an input that is also an output back as the same buffer; the caller of `f` may write to its result.
    # Its linearization takes no NumPy array as an output.
    passed = set(map(identity, [*b.invars, *b.constvars]))
    outputs = [prims.copy(b, atom) if identity(atom) in passed else atom for atom in outputs]
    results = [*outputs, b.check_code()] if b.checks else outputs
    return Lowered(b.build(results), b.checks)


def convert_input(b: JaxprBuilder, variable: Variable, atom: Atom) -> Atom:
    """Return an input in its declared dtype; counts that an update has stored stay wide, see `graph.decompose`."""
    dtype = getattr(variable.type, "dtype", None)
    if dtype is None or (isinstance(variable, SharedVariable) and atom.aval.dtype == wide_dtype(dtype)):
        return atom
    return prims.convert(b, atom, dtype)


def lower_into(
    b: JaxprBuilder,
    region: Region,
    operands: Sequence[Atom],
    static: Mapping[Variable, Any],
    constants: Sequence[Atom] = (),
) -> list[Atom]:
    """Emit the equations of a region at the insertion point of `b` and return the atoms of its outputs."""
    env = Environment(b, static)
    env.update(zip(region.inputs, operands, strict=True))
    for v in region.inputs:
        if v in static and marks.is_static(v):
            env[v] = b.constant(static[v], v.type.dtype)
    for constant, (place, axes) in region.constants.views.items() if constants else ():
        wide = prims.convert(b, prims.transpose(b, constants[place], axes), constant.data.dtype)
        env[constant] = b.remember(wide, constant.data)
    env.streamed = stream_keys(b, region, env)
    env.update(env.streamed)
    emit_steps(b, region.steps, env)
    return [env[variable] for variable in region.outputs]


class Environment(dict):
    """Maps variables to their atoms; a value known at specialization becomes a constant where it is read."""

    def __init__(self, b: JaxprBuilder, static: Mapping[Variable, Any]):
        self._builder = b
        self.static = StaticValues(static, lambda v: self[v].aval.shape)
        #: The keys of generators, see `stream_keys`. They replace the results of rules for generators.
        self.streamed: dict[Variable, Atom] = {}

    def __missing__(self, variable: Variable) -> Any:
        b = self._builder
        try:
            value = variable.data if isinstance(variable, Constant) else self.static(variable)
        except NotStatic:
            emit_steps(b, [step_for_dimensions(variable.owner)], self)
            return self[variable]
        if isinstance(value, np.random.Generator):
            atom = b.constant(keys_of(value))
        elif is_symbolic(value):
            atom = prims.dimensions(b, value, variable.type.dtype)
        else:
            atom = value if value is None or isinstance(value, slice) else b.constant(value, variable.type.dtype)
        self[variable] = atom
        return atom


def stream_keys(b: JaxprBuilder, region: Region, env: Mapping[Variable, Atom]) -> dict[Variable, Atom]:
    """Return the keys of a region's generators in their ancestors' streams; rules split a caller's single key."""
    keys = {}
    for variable, (generator, draws) in generators_read(region.inputs, region.draws).items():
        if generator in env:
            stream = env[generator]
            if len(stream.aval.shape) == 2:
                row = prims.slice_(b, stream, [draws, 0], [draws + 1, 2], [1, 1])
                keys[variable] = prims.reshape(b, row, (2,))
        elif isinstance(value := getattr(generator, "data", None), np.random.Generator):
            keys[variable] = b.constant(np.atleast_2d(keys_of(value, draws + 1))[draws])
    return keys


def name_operands(error: Exception, node: Apply, env: Environment) -> None:
    """Add to the message of a misfit the user's nearest variables that a node depends on, their shapes and the line.

    The innermost node with named operands does it: the others are loops and branches that contain this node.
    """

    def has_name(v: Variable) -> bool:
        return bool(v.name and getattr(getattr(env.get(v), "aval", None), "shape", ()))

    named = walk(node.inputs, lambda v: None if has_name(v) or v.owner is None else v.owner.inputs)
    shapes = {v.name: f"{v.name!r} has shape {env[v].aval.shape}" for v in named if has_name(v)}
    text = str(error).rstrip(".\n")
    if type(error) in MISFITS and shapes and " Here '" not in text:
        error.args = (f"{text}. Here {', '.join([*shapes.values()][:MOST_OPERANDS])}.{user_line(node)}",)


#: The largest number of variables that the message of a misfit names.
MOST_OPERANDS = 6


def emit_steps(b: JaxprBuilder, steps: Iterable[Step], env: Environment) -> None:
    """Emit the equations of nodes and write their outputs to `env`."""
    streamed = env.streamed
    for node, rule, static, names, inner in steps:
        assert rule is not None
        try:
            operands = (
                [env.static(v) if i in static else env[v] for i, v in enumerate(node.inputs)]
                if static
                else [env[v] for v in node.inputs]
            )
            b.at(*names)
            if inner is None:
                results = rule.emit(node.op, node, b, *operands)
            else:
                results = rule.emit(node.op, node, b, [partial(emit_plan, plan) for plan in inner], *operands)
        except CannotEmit as error:
            error.node = error.node or node
            raise
        except InconclusiveDimensionOperation as error:
            refused = CannotEmit(str(error))
            refused.node = node
            raise refused from error
        except Exception as error:
            name_operands(error, node, env)
            note_node(error, node)
            raise
        outputs = node.outputs
        if len(outputs) == 1:
            # What most rules return costs two tests, `checked_results` ten times as much.
            (output,), aval = outputs, getattr(results, "aval", None)
            if aval is None or not fits(output.type, aval):
                (results,) = checked_results(rule, node, operands, results)
            env[output] = results
        else:
            env.update(zip(outputs, checked_results(rule, node, operands, results), strict=True))
        if streamed:
            env.update({v: streamed[v] for v in outputs if v in streamed})


def step_for_dimensions(node: Apply) -> Step:
    """Return the step of a node that the plan leaves to `StaticValues`, which refuses its symbolic dimensions."""
    rule = find_rule(node.op)
    if rule is None or rule.inner is not None:
        raise CannotEmit(f"no program can compute {node.op} from symbolic dimensions")
    return Step(node, rule, frozenset(rule.static(node)), node_names(node, {}))


def emit_plan(inner: InnerPlan, b: JaxprBuilder, operands: Sequence[Any]) -> list[Atom]:
    """Emit an inner graph at the insertion point of `b` and return the atoms of its outputs.

    Rules get this function for each inner graph that they declare. An operand is an atom, or its value if that is
    known.
    """
    region = inner.plan.single_region()
    static: dict[Variable, Any] = {}
    atoms = []
    for variable, x in zip(region.inputs, operands, strict=True):
        value = fixed_value(x)
        if value is not None:
            static[variable] = value
            x = b.constant(value, getattr(variable.type, "dtype", None))
        atoms.append(x)
    try:
        return lower_into(b, region, atoms, {v: static[v] for v in region.static_inputs})
    except CannotEmit as error:  # the plan of the outer graph knows no inner node
        raise CannotEmit(f"{inner.where}: {error}") from None
