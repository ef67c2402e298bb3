"""The source of a module's MLIR: its values, and each function as one Jaxpr of arguments and globals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np

from jaxpr_artifact.descriptions import CHECK_CODE, FunctionDescription, NamedTree, StateDescription
from jaxpr_artifact.header import Argument
from jaxpr_artifact.programs import argument_like
from jaxpr_artifact.trees import TreeDescription, described_tree, leaves_of
from pytensor_jaxpr_linker.artifacts.exportable import check_text, lowered_program, places_of
from pytensor_jaxpr_linker.artifacts.mlir.build import FunctionSource, GlobalSource, ModuleSource
from pytensor_jaxpr_linker.artifacts.module.assembly import Assembly
from pytensor_jaxpr_linker.artifacts.module.declarations import is_key_type
from pytensor_jaxpr_linker.artifacts.module.functions import Leaf, ModuleFunction
from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.jaxpr.lower import Lowered
from pytensor_jaxpr_linker.run.placement import process
from pytensor_jaxpr_linker.run.program import static_value


def source_of(
    name: str, assembly: Assembly, values: Mapping[str, Any], seen: Mapping[str, Any], inline_bytes: int | None
) -> ModuleSource:
    """Return a module, lowered for the shapes of its arguments and for the present values of its state.

    An argument without a declared shape has the shape of the latest call, from `seen`. Constants of functions become
    globals, too, if they have more bytes than `inline_bytes`. A shape that is unknown, or depends on unknown values, is
    a TypeError.
    """
    process.start()  # lowering has threads, too
    known = {
        g.name: GlobalSource(g.name, np.asarray(values[g.name]), is_key_type(g.variable), g.is_mutable)
        for g in assembly.globals
    }
    functions = [
        function_source(f, assembly.places[f.name], known, Constants(known, inline_bytes), seen)
        for f in assembly.functions.values()
        if f.is_public
    ]
    state = []
    for attribute, tree in assembly.state.items():
        if not attribute.startswith("_"):
            leaves = [(place, known[leaf]) for place, leaf in leaves_of(tree)]
            state.append(StateDescription(attribute, described_tree(tree), tuple(g.name for _, g in leaves)))
            functions += [f for f in getter_and_setter(state[-1], leaves) if f.name not in assembly.functions]
    return ModuleSource(name, functions, known, state)


def getter_and_setter(state: StateDescription, leaves: Sequence[tuple[str, GlobalSource]]) -> Iterator[FunctionSource]:
    """Yield a function that returns state, and one that sets it to the arrays of a tree, unless it is constant.

    If a part of the state is constant, the tree of the setter is a dict of the other leaves, by their places.
    """

    def described(given: Sequence[tuple[str, GlobalSource]]) -> tuple[Argument, ...]:
        return tuple(argument_like(g.name, g.value, g.is_key) for _, g in given)

    name, found = f"get_{state.name}", described(leaves)
    yield FunctionSource(FunctionDescription(name, "getter", (), found, (), state.tree, state.globals), None)
    mutable, tree = leaves, state.tree
    if not all(g.is_mutable for _, g in leaves):
        mutable = sorted((pair for pair in leaves if pair[1].is_mutable), key=itemgetter(0))  # the order of a dict
        tree = TreeDescription("dict", "", tuple(place for place, _ in mutable), (None,) * len(mutable))
    if mutable:
        name, given, written = f"set_{state.name}", (NamedTree(state.name, tree),), tuple(g.name for _, g in mutable)
        nothing = described_tree(None)
        setter = FunctionDescription(name, "setter", described(mutable), (), given, nothing, writes=written)
        yield FunctionSource(setter, None)


class Constants:
    """The large constants of functions as globals of a module. Equal constants share a global."""

    def __init__(self, known: dict[str, GlobalSource], inline_bytes: int | None):
        self._known, self._inline_bytes = known, inline_bytes

    def is_large(self, value: np.ndarray) -> bool:
        """Return whether a constant is to be a global."""
        return self._inline_bytes is not None and value.nbytes > self._inline_bytes

    def name_of(self, value: np.ndarray) -> str:
        """Return the name of the global that has this value."""
        for given in self._known.values():
            if not given.is_mutable and equal_bits(given.value, value):
                return given.name
        count = 0
        while (name := f"constant{count}") in self._known:
            count += 1
        self._known[name] = GlobalSource(name, value)
        return name


def equal_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two arrays are equal bit by bit, without a copy of them."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.ctypes.data == other.ctypes.data and one.strides == other.strides:
        return True
    mine, theirs = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (one, other))
    return np.array_equal(mine, theirs)


def function_source(
    function: ModuleFunction,
    places: Sequence[str],
    known: Mapping[str, GlobalSource],
    constants: Constants,
    seen: Mapping[str, Any],
) -> FunctionSource:
    """Return a function as a Jaxpr of its arguments and the globals that it reads."""
    avals = [jax.ShapeDtypeStruct(shape_of_leaf(function, leaf, seen), leaf.dtype) for leaf in function.leaves]
    check_static(function, places, known)
    program = function.program
    given = function.in_order(avals, [known[name].value for name in places])
    values = [
        static_value(v, x) if i in program.static_positions else x
        for i, (v, x) in enumerate(zip(program.inputs, given, strict=True))
    ]
    lowered = lowered_program(program, values)
    updates = {name: s.update for name, s in zip(places, function.state, strict=True) if s.update is not None}
    for name, i in updates.items():
        if (found := lowered.jaxpr.out_avals[i].shape) != (shape := known[name].value.shape):
            shapes = f"{function.name} gives {name}, of shape {shape}, a value of shape {found}"
            raise TypeError(f"{shapes}: a global has one shape.")
    jaxpr, reads = with_globals(function, lowered, places, updates.values(), constants)
    description = described_function(function, avals, lowered, reads, updates)
    return FunctionSource(description, jaxpr, dict(places_of(function.program.region.steps)))


def with_globals(
    function: ModuleFunction, lowered: Lowered, places: Sequence[str], updates: Iterable[int], constants: Constants
) -> tuple[Any, list[str]]:
    """Return the Jaxpr of the arguments and of the globals that it reads, and the names of these."""
    closed = lowered.jaxpr
    inputs, results = closed.jaxpr.invars, closed.jaxpr.outvars
    atoms = [*(x for eqn in closed.jaxpr.eqns for x in eqn.invars), *results]
    used = {x for x in atoms if isinstance(x, jex.Var)}
    count = len(function.leaves) + len(function.state)
    reads = {inputs[s.position]: name for name, s in zip(places, function.state, strict=True)}
    large = dict(zip(inputs[count:], function.program.constants, strict=True))
    small: dict[Any, np.ndarray] = {}
    for variable, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        array = np.asarray(value)
        (large if constants.is_large(array) else small)[variable] = array
    reads |= {variable: constants.name_of(value) for variable, value in large.items() if variable in used}
    reads = {variable: name for variable, name in reads.items() if variable in used}
    outputs = [*results[: len(function.results)], *(results[i] for i in updates)]
    jaxpr = jax_compat.make_jaxpr_object(
        list(small),
        [*(inputs[leaf.position] for leaf in function.leaves), *reads],
        [*outputs, results[-1]] if lowered.checks else outputs,
        closed.jaxpr.eqns,
        list(small.values()),
        function.name,
        [*(leaf.name for leaf in function.leaves), *reads.values()],
    )
    return jaxpr, list(reads.values())


def described_function(
    function: ModuleFunction, avals: Sequence[Any], lowered: Lowered, reads: Sequence[str], writes: Iterable[str]
) -> FunctionDescription:
    """Return the description of a function."""
    outputs = [variable for _, variable in leaves_of(function.outputs)]
    results = [
        argument_like(name, aval, is_key_type(variable))
        for name, aval, variable in zip(function.results, lowered.jaxpr.out_avals, outputs, strict=False)
    ]
    pairs = zip(function.leaves, avals, strict=True)
    arguments = [argument_like(leaf.name, aval, is_key_type(leaf.variable)) for leaf, aval in pairs]
    return FunctionDescription(
        function.name,
        "function",
        tuple(arguments),
        (*results, CHECK_CODE) if lowered.checks else tuple(results),
        tuple(NamedTree(name, described_tree(tree)) for name, tree in function.arguments.items()),
        described_tree(function.outputs),
        tuple(reads),
        tuple(writes),
        tuple(map(check_text, lowered.checks)),
    )


def shape_of_leaf(function: ModuleFunction, leaf: Leaf, seen: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of an argument: as declared, or as in the latest call."""
    shape = leaf.shape if leaf.shape is not None else seen.get(function.shape_key(leaf))
    if shape is None:
        raise TypeError(
            f"The argument {leaf.name} of {function.name} is a {leaf.variable.type}, and a module that leaves Python"
            f" has fixed shapes: give one by public(..., like={{{leaf.name.partition('.')[0]!r}: np.ones((4, 3))}}), by"
            f" a type with a shape, or call {function.name} once."
        )
    return shape


def check_static(function: ModuleFunction, places: Sequence[str], known: Mapping[str, GlobalSource]) -> None:
    """Raise a TypeError if a shape depends on the value of an argument, or of state that may change."""
    static = set(function.program.static_positions)
    given = [("argument", leaf.name, leaf.position) for leaf in function.leaves]
    state = zip(places, function.state, strict=True)
    given += [("state", name, s.position) for name, s in state if known[name].is_mutable]
    for what, name, position in given:
        if position in static:
            raise TypeError(
                f"The {what} {name} of {function.name} determines a shape, and a module that leaves Python has fixed"
                " shapes: make it a constant of the graph, or compute the size from the shape of an argument."
            )
