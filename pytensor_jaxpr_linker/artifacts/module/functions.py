"""Compiled functions of a module: one program of arguments and state each."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pytensor
from pytensor.compile.executor import Function
from pytensor.graph.basic import Variable

from jaxpr_artifact.arguments import check_sizes, taken
from jaxpr_artifact.header import Argument
from jaxpr_artifact.module_header import CHECK_CODE
from jaxpr_artifact.trees import leaves_like, leaves_of, with_leaves
from pytensor_jaxpr_linker.artifacts.exportable import signature_of_target
from pytensor_jaxpr_linker.artifacts.module.declarations import FunctionDeclaration, is_key_type
from pytensor_jaxpr_linker.artifacts.shapes import unique_names
from pytensor_jaxpr_linker.base.array_types import in_order, is_tensor
from pytensor_jaxpr_linker.base.errors import CannotEmit, refused_by_rule
from pytensor_jaxpr_linker.base.options import options
from pytensor_jaxpr_linker.base.random_keys import keys_of
from pytensor_jaxpr_linker.emit.random.sampler import KEY_DTYPE, KEY_SHAPE
from pytensor_jaxpr_linker.frontend.as_jax_function import single_program
from pytensor_jaxpr_linker.frontend.jax_function import check_shape
from pytensor_jaxpr_linker.frontend.targets import Target
from pytensor_jaxpr_linker.run.checks import error_of
from pytensor_jaxpr_linker.run.fork import process
from pytensor_jaxpr_linker.run.program import Program


class Leaf(NamedTuple):
    """An array among the arguments of a function."""

    name: str
    variable: Variable
    position: int
    """Of the input of the program."""
    shape: tuple[int, ...] | None
    """Its fixed shape, or None if that is open."""

    def taken(self, value: Any) -> Any:
        """Return a value as an array of the declared dtype and shape, or raise a TypeError."""
        if is_key_type(self.variable):
            declared = Argument(self.name, np.dtype(KEY_DTYPE).name, KEY_SHAPE, True)
        else:
            shape = np.shape(value) if self.shape is None else self.shape
            declared = Argument(self.name, self.variable.type.dtype, shape)
        array = taken(declared, keys_of(in_order(self.variable.type, value)))
        if self.shape is not None or declared.is_key:
            check_sizes([declared], [array])
        else:
            check_shape(self.variable, array.shape)
        return array


class StateInput(NamedTuple):
    """A shared variable that a function reads or updates."""

    cell: list
    """Where PyTensor holds its value: functions that share it have the same cell."""
    variable: Variable
    position: int
    update: int | None
    """The position of the result that is its next value."""


class ModuleFunction:
    """A compiled function of a module.

    Attributes
    ----------
    name, is_public
        What it is called, and whether a compiled module shows it.
    arguments
        The tree of variables of each argument, by name.
    outputs
        The tree of variables that it returns.
    leaves, results
        The arrays among the arguments, and the names of those among the outputs.
    state
        The shared variables that it reads or updates.
    target
        What reports are made of: the function as PyTensor compiled it.
    program
        Takes arguments and state, and returns outputs, updates and the check code.
    """

    def __init__(self, name: str, f: Function, arguments: dict[str, Any], outputs: Any, like: Any, is_public: bool):
        self.target = Target(f)
        target, signature = signature_of_target(self.target)
        self.name, self.is_public = name, is_public
        self.arguments, self.outputs = arguments, outputs
        self.__signature__ = inspect.Signature(
            [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in arguments]
        )
        shapes = dict(self._shapes_like(like))
        flat = [pair for argument, tree in arguments.items() for pair in leaves_of(tree, argument)]
        self.leaves = [
            Leaf(place, variable, position, shapes.get(place) or declared_shape(variable))
            for (place, variable), position in zip(flat, signature.arguments, strict=True)
        ]
        self.results = list(result_names(outputs))
        self.state = [
            StateInput(f.input_storage[i].storage, f.maker.inputs[i].variable, i, signature.updates.get(i))
            for i in signature.state
        ]
        for variable in [*(leaf.variable for leaf in self.leaves), *(s.variable for s in self.state)]:
            check_type(name, variable)
        self.program: Program = single_program(target)[0].as_pure(checked=True)

    def _shapes_like(self, like: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield name and shape of each array that the caller gave an example of."""
        given = dict(zip(self.arguments, like, strict=False)) if not isinstance(like, Mapping | None) else like or {}
        if (unknown := given.keys() - self.arguments.keys()) or (like is not None and len(like) > len(self.arguments)):
            which = repr(sorted(unknown)[0]) if unknown else f"{len(like)} arguments"
            raise TypeError(f"like has {which}, and {self.name} takes {', '.join(self.arguments) or 'nothing'}.")
        for name, example in given.items():
            for place, variable, value in (
                leaves_like(self.arguments[name], example, name) if example is not None else ()
            ):
                if not is_key_type(variable):
                    shape = tuple(value.shape if hasattr(value, "dtype") else np.shape(value))
                    check_shape(variable, shape)
                    yield place, shape

    def arrays(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the arrays among the arguments, checked and converted."""
        given = self.__signature__.bind(*args, **kwargs).args
        flat = [
            value
            for (name, tree), x in zip(self.arguments.items(), given, strict=True)
            for _, _, value in leaves_like(tree, x, name)
        ]
        with jax.enable_x64(True):
            return [leaf.taken(value) for leaf, value in zip(self.leaves, flat, strict=True)]

    def in_order(self, arrays: Iterable[Any], state: Sequence[Any]) -> list[Any]:
        """Return what the program takes, in its order."""
        places = [*(leaf.position for leaf in self.leaves), *(s.position for s in self.state)]
        values = dict(zip(places, [*arrays, *state], strict=True))
        return [values[i] for i in range(len(places))]

    def run(self, arrays: Sequence[Any], state: Sequence[Any]) -> list[Any]:
        """Return all results of the program, or raise what a run-time check raises."""
        process.check()
        values = self.in_order(arrays, state)
        try:
            with jax.enable_x64(True):
                specialization = self.program.specialize(values)
                results = specialization.call(*values, *self.program.device_constants())
                lowered = specialization.lower([*values, *self.program.constants])
        except CannotEmit as error:
            raise refused_by_rule(error) from None
        if lowered.checks and (code := int(results[-1])):
            raise error_of(lowered.checks[code - 1])
        return results

    def returned(self, results: Sequence[Any]) -> Any:
        """Return the outputs in their tree, as NumPy arrays."""
        return with_leaves(self.outputs, iter([np.array(x) for x in results[: len(self.results)]]))


def result_names(outputs: Any) -> Iterator[str]:
    """Yield a name for each array of the outputs: that of the variable, else that of its place."""
    found: set[str] = set()
    for place, variable in leaves_of(outputs):
        name = variable.name or (f"output{place}" if place.isdigit() or not place else place)
        while name in found or name == CHECK_CODE.name:
            name += "_"
        found.add(name)
        yield name


def declared_shape(variable: Variable) -> tuple[int, ...] | None:
    """Return the shape that a type declares, or None if it leaves a length open. That of a generator's key is known."""
    if is_key_type(variable):
        return KEY_SHAPE
    shape = variable.type.shape
    return None if None in shape else tuple(shape)


def check_type(name: str, variable: Variable) -> None:
    """Raise a TypeError if the value of a variable is no array and no generator."""
    if not (is_tensor(variable.type) or is_key_type(variable)):
        what = variable.name or "A variable"
        raise TypeError(
            f"{what} of {name} is no array, but {variable.type}, so it can't be an argument or the state of a module."
        )


def compiled_declaration(name: str, given: FunctionDeclaration) -> ModuleFunction:
    """Compile a function that was declared.

    Raises
    ------
    GraphBreakError
        If it can't be one program.
    """
    outputs = [leaf for _, leaf in leaves_of(given.outputs)]
    with options(on_break="raise"):
        f = pytensor.function(
            given.variables(),
            outputs,
            updates=given.updates,
            mode=given.mode,
            name=name,
            on_unused_input=given.on_unused_input,
        )
    return ModuleFunction(name, f, given.arguments, given.outputs, given.like, given.is_public)


def compiled_function(name: str, f: Function) -> ModuleFunction:
    """Return a function that the user compiled as one of a module."""
    signature = signature_of_target(Target(f))[1]
    variables = [f.maker.inputs[i].variable for i in signature.arguments]
    names = unique_names([v.name for v in variables], "arg")
    outputs: Any = signature.outputs[0] if signature.is_bare else list(signature.outputs)
    return ModuleFunction(name, f, dict(zip(names, variables, strict=True)), outputs, None, True)
