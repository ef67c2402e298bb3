"""Compiled functions of a module: one program of arguments and state each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pytensor
from pytensor.compile.executor import Function
from pytensor.graph.basic import Variable

from jaxpr_artifact.descriptions import CHECK_CODE
from jaxpr_artifact.header import Argument
from jaxpr_artifact.program_function import TreeCall
from jaxpr_artifact.state import State, check_sizes, taken
from jaxpr_artifact.trees import leaves_like, leaves_of
from pytensor_jaxpr_linker.artifacts.exportable import signature_of_target
from pytensor_jaxpr_linker.artifacts.module.declarations import FunctionDeclaration, is_key_type
from pytensor_jaxpr_linker.artifacts.shapes import unique_names
from pytensor_jaxpr_linker.base.array_types import in_order, is_tensor
from pytensor_jaxpr_linker.base.errors import CannotEmit, refused_by_rule
from pytensor_jaxpr_linker.base.jax_compat import with_x64_restored
from pytensor_jaxpr_linker.base.options import options
from pytensor_jaxpr_linker.base.random_keys import keys_of
from pytensor_jaxpr_linker.emit.random.sampler import KEY_DTYPE, KEY_SHAPE
from pytensor_jaxpr_linker.frontend.as_jax_function import single_program
from pytensor_jaxpr_linker.frontend.jax_function import check_shape
from pytensor_jaxpr_linker.frontend.targets import Target
from pytensor_jaxpr_linker.run.call import error_of
from pytensor_jaxpr_linker.run.placement import process
from pytensor_jaxpr_linker.run.program import Program


class Leaf(NamedTuple):
    """An array among the arguments of a function."""

    name: str
    variable: Variable
    position: int
    """Of the input of the program."""
    shape: tuple[int, ...] | None
    """Its fixed shape, or None if it is open."""

    @property
    def dtype(self) -> str:
        """The dtype of the array."""
        return KEY_DTYPE.name if is_key_type(self.variable) else self.variable.type.dtype

    def taken(self, value: Any) -> Any:
        """Return a value as an array of the declared dtype and shape, or raise a TypeError."""
        shape = np.shape(value) if self.shape is None else self.shape
        declared = Argument(self.name, self.dtype, shape, is_key_type(self.variable))
        array = taken(declared, keys_of(in_order(self.variable.type, value)))
        if self.shape is not None:
            check_sizes([declared], [array])
        else:
            check_shape(self.variable, array.shape)
        return array


class StateInput(NamedTuple):
    """A shared variable that a function reads or updates."""

    cell: list
    """The cell in which PyTensor holds its value: functions that share it have the same cell."""
    variable: Variable
    position: int
    update: int | None
    """The position of the result that is its next value."""


class ModuleFunction:
    """A compiled function of a module.

    Attributes
    ----------
    name, is_public
        Its name, and whether a compiled module shows it.
    arguments, outputs
        The tree of variables of each argument, by name, and the tree of variables that it returns.
    form
        The form of its calls with such trees.
    leaves, results
        The arrays among the arguments, and the names of the arrays among the outputs.
    state
        The shared variables that it reads or updates.
    target
        The function as PyTensor compiled it, for reports.
    program
        Takes arguments and state, and returns outputs, updates and the check code.
    """

    def __init__(self, name: str, f: Function, arguments: dict[str, Any], outputs: Any, like: Any, is_public: bool):
        self.target = Target(f)
        target, signature = signature_of_target(self.target)
        self.name, self.is_public = name, is_public
        self.arguments, self.outputs = arguments, outputs
        self.form = TreeCall(name, arguments, outputs)
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
        like = () if like is None else like
        given = like if isinstance(like, Mapping) else dict(zip(self.arguments, like, strict=False))
        if (unknown := given.keys() - self.arguments.keys()) or len(like) > len(self.arguments):
            which = repr(sorted(unknown)[0]) if unknown else f"{len(like)} arguments"
            raise TypeError(f"like has {which}, and {self.name} takes {', '.join(self.arguments) or 'nothing'}.")
        known = [(name, example) for name, example in given.items() if example is not None]
        for place, variable, value in (x for name, y in known for x in leaves_like(self.arguments[name], y, name)):
            if not is_key_type(variable):
                shape = tuple(value.shape if hasattr(value, "dtype") else np.shape(value))
                check_shape(variable, shape)
                yield place, shape

    def arrays(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the arrays among the arguments, checked and converted."""
        given = self.form.arrays(args, kwargs)
        with jax.enable_x64(True):
            return [leaf.taken(value) for leaf, value in zip(self.leaves, given, strict=True)]

    def shape_key(self, leaf: Leaf) -> str:
        """Return the key of an argument's shape in the latest call."""
        return f"{self.name}:{leaf.name}"

    def in_order(self, arrays: Iterable[Any], state: Sequence[Any]) -> list[Any]:
        """Return the operands of the program in its order."""
        places = [*(leaf.position for leaf in self.leaves), *(s.position for s in self.state)]
        values = dict(zip(places, [*arrays, *state], strict=True))
        return [values[i] for i in range(len(places))]

    def run(self, arrays: Sequence[Any], state: Sequence[Any]) -> list[Any]:
        """Return all results of the program, or raise the exception of a run-time check."""
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
        return self.form.result([np.array(x) for x in results[: len(self.results)]])


class PublicFunction:
    """A function of one instance of a module. `explain`, `make_jaxpr` and `stages` take it.

    `names` are the globals of its state, in the order of ``function.state``, and `values` the values of the instance's
    globals. Calls put the shapes of their arguments into `seen`.
    """

    def __init__(
        self, module: str, function: ModuleFunction, names: Sequence[str], values: State, seen: dict[str, Any]
    ):
        self._module, self._function, self._names, self._values, self._seen = module, function, names, values, seen
        self._updates = {name: s.update for name, s in zip(names, function.state, strict=True) if s.update is not None}
        self.source = function.target
        self.__name__ = self.__qualname__ = function.name
        self.__signature__ = function.form.signature
        self.__doc__ = f"Return {', '.join(function.results) or 'nothing'}."

    @with_x64_restored
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        function, values = self._function, self._values
        arrays = function.arrays(args, kwargs)
        for leaf, array in zip(function.leaves, arrays, strict=True):
            self._seen[function.shape_key(leaf)] = np.shape(array)
        if not self._updates:
            return function.returned(self._run(arrays))
        with values.turn:
            results = self._run(arrays)
            returned = function.returned(results)
            values.replace({name: results[i].block_until_ready() for name, i in self._updates.items()})
        return returned

    def _run(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the results of the program for the state as it is now."""
        known = self._values.snapshot()
        return self._function.run(arrays, [known[name] for name in self._names])

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} is part of a module: copy or pickle the module, and take the function of that.")

    def __repr__(self) -> str:
        return f"<function {self.__name__}{self.__signature__} of module {self._module}>"


def result_names(outputs: Any) -> Iterator[str]:
    """Yield a name for each array of the outputs: the name of the variable, otherwise of its place."""
    found: set[str] = set()
    for place, variable in leaves_of(outputs):
        name = variable.name or (f"output{place}" if place.isdigit() or not place else place)
        while name in found or name == CHECK_CODE.name:
            name += "_"
        found.add(name)
        yield name


def declared_shape(variable: Variable) -> tuple[int, ...] | None:
    """Return the shape of a generator's key, or the shape that a type declares: None if a length is open."""
    if is_key_type(variable):
        return KEY_SHAPE
    shape = variable.type.shape
    return None if None in shape else tuple(shape)


def check_type(name: str, variable: Variable) -> None:
    """Raise a TypeError unless the value of a variable is an array or a generator."""
    if not (is_tensor(variable.type) or is_key_type(variable)):
        what = f"{variable.name or 'A variable'} of {name} is no array, but {variable.type}"
        raise TypeError(f"{what}, so it can't be an argument or the state of a module.")


def compiled_declaration(name: str, given: FunctionDeclaration) -> ModuleFunction:
    """Compile a declared function, or raise a GraphBreakError if it can't be one program."""
    outputs = [leaf for _, leaf in leaves_of(given.outputs)]
    how: dict[str, Any] = {"updates": given.updates, "mode": given.mode, "on_unused_input": given.on_unused_input}
    with options(on_break="raise"):
        f = pytensor.function(given.variables(), outputs, name=name, **how)
    return ModuleFunction(name, f, given.arguments, given.outputs, given.like, given.is_public)


def compiled_function(name: str, f: Function) -> ModuleFunction:
    """Return a function that the user compiled as one of a module."""
    signature = signature_of_target(Target(f))[1]
    variables = [f.maker.inputs[i].variable for i in signature.arguments]
    names = unique_names([v.name for v in variables], "arg")
    outputs: Any = signature.outputs[0] if signature.is_bare else list(signature.outputs)
    return ModuleFunction(name, f, dict(zip(names, variables, strict=True)), outputs, None, True)
