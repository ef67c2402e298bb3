"""Puts a module together: compiles its functions, finds its globals, and tells constants from mutable globals."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from jaxpr_artifact.header import Argument
from jaxpr_artifact.state import State
from jaxpr_artifact.trees import leaves_of, with_leaves
from pytensor_jaxpr_linker.artifacts.module.declarations import (
    FunctionDeclaration,
    StateDeclaration,
    is_key_type,
    state_leaves,
)
from pytensor_jaxpr_linker.artifacts.module.functions import (
    ModuleFunction,
    check_type,
    compiled_declaration,
    compiled_function,
)
from pytensor_jaxpr_linker.artifacts.shapes import unique_names
from pytensor_jaxpr_linker.base.array_types import in_order
from pytensor_jaxpr_linker.base.random_keys import keys_of
from pytensor_jaxpr_linker.frontend.targets import target_of


class Global(NamedTuple):
    """A shared variable as part of a module."""

    name: str
    variable: Variable
    cell: list
    is_mutable: bool

    def first_value(self) -> np.ndarray:
        """Return a copy of PyTensor's present value; for a generator, the key that its next bits give."""
        value = self.cell[0]
        if value is None:
            raise TypeError(f"{self.name} is updated and has no value: make it a shared variable, or an argument.")
        if is_key_type(self.variable):
            return np.array(keys_of(value))
        return np.array(in_order(self.variable.type, value), self.variable.type.dtype)


class Values(State):
    """The values of globals in one instance of a module. Any number of threads may use it."""

    def __init__(self, known: Iterable[Global]):
        self.globals = {g.name: g for g in known}
        first = {name: g.first_value() for name, g in self.globals.items()}
        keys = {name for name, g in self.globals.items() if is_key_type(g.variable)}
        arguments = [Argument(name, x.dtype.name, x.shape, name in keys) for name, x in first.items()]
        with jax.enable_x64(True):
            super().__init__(arguments, [jax.device_put(x) for x in first.values()])

    def is_mutable(self, name: str) -> bool:
        """Return whether a global may change."""
        return self.globals[name].is_mutable

    def arrays(self) -> dict[str, np.ndarray]:
        """Return copies of the values by name."""
        return {name: np.array(array) for name, array in self.snapshot().items()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace all values by another instance's, or raise a TypeError if that had other globals."""
        both = [{name: f"{x.dtype}{list(x.shape)}" for name, x in a.items()} for a in (arrays, self.snapshot())]
        if both[0] != both[1]:
            names = sorted(both[0].keys() | both[1].keys())
            types = {name: [known.get(name, "missing") for known in both] for name in names}
            parts = [
                f"{name} is {there} there and {here} here" for name, (there, here) in types.items() if there != here
            ]
            raise TypeError(f"The module has other state than the pickled one: {', '.join(parts)}.")
        with jax.enable_x64(True):
            self.replace({name: jax.device_put(array) for name, array in arrays.items()})

    def replace(self, changes: Mapping[str, Any]) -> None:
        """Replace values by results of a program, or raise a TypeError if one has another shape."""
        present = self.snapshot()
        for name, array in changes.items():
            if array.shape != (shape := present[name].shape):
                raise TypeError(
                    f"The state {name} has shape {shape} as long as the module lives; its update has {array.shape}."
                )
        super().replace(changes)

    def _copied(self, name: str, value: Any) -> Any:
        known = self.globals[name]
        if not known.is_mutable:
            remedy = f"Module.state({known.variable.name or name}, mutable=True) makes it state that can be set."
            raise TypeError(f"{name} is a constant of the module: none of its functions updates it. {remedy}")
        return super()._copied(name, keys_of(in_order(known.variable.type, value)))


class Assembly(NamedTuple):
    """The parts of a module, without values."""

    functions: dict[str, ModuleFunction]
    globals: list[Global]
    state: dict[str, Any]
    """For each attribute of the module that is state, a tree of the names of globals."""
    places: dict[str, list[str]]
    """The names of the globals that each function takes, in the order of its state."""
    declared: dict[str, Any]
    """The declarations, or the functions that the user compiled."""


class GlobalsFound:
    """The shared variables of a module. Each has one name, the first one that is used for it; others are aliases."""

    def __init__(self, reserved: Iterable[str]):
        self._reserved = frozenset(reserved)
        self._names: dict[int, str] = {}  # by the address of the cell
        self._variables: dict[str, tuple[Variable, list]] = {}
        self._told: dict[str, bool] = {}
        self._updated: dict[str, str] = {}

    def add(self, wanted: str, variable: Variable, cell: list) -> str:
        """Return the name of the variable with this cell. A new one gets the wanted name, or one like it."""
        if id(cell) not in self._names:
            # MLIR has symbols of other characters, and its readers quote them.
            name = re.sub(r"[^\w.]", "_", wanted, flags=re.ASCII)
            while name in self._variables or name in self._reserved:
                name += "_"
            self._names[id(cell)] = name
            self._variables[name] = variable, cell  # the cell lives as long as its address is used
        return self._names[id(cell)]

    def tell(self, name: str, is_mutable: bool | None, place: str) -> None:
        """Note that the user calls a variable mutable or constant, unless it is None."""
        if is_mutable is not None and self._told.setdefault(name, is_mutable) != is_mutable:
            raise TypeError(f"{place} is told to be mutable and constant.")

    def note_update(self, name: str, function: str) -> None:
        """Note that a function updates a variable."""
        if self._told.get(name) is False:
            raise TypeError(f"{name} is told to be constant, and {function} updates it.")
        self._updated[name] = function

    def all(self) -> list[Global]:
        """Return the variables, and which of them may change."""
        return [
            Global(name, variable, cell, self._told.get(name, name in self._updated))
            for name, (variable, cell) in self._variables.items()
        ]


def assembly_of(attributes: Mapping[str, Any], reserved: Iterable[str]) -> Assembly:
    """Return a module with the attributes that are functions or state. No global gets a reserved name.

    Raise a TypeError if an attribute has arrays that are not shared variables, or is told to be constant and has an
    update; a GraphBreakError if a function can't be one program.
    """
    declared = {name: given for name, given in attributes.items() if is_function(given)}
    found = GlobalsFound([*reserved, *declared])
    trees = {name: names_of_state(name, given, found) for name, given in attributes.items()}
    state = {name: tree for name, tree in trees.items() if tree is not None}
    functions = {
        name: given if isinstance(given, ModuleFunction) else compiled_declaration(name, given)
        for name, given in declared.items()
    }
    places = {name: globals_of(function, found) for name, function in functions.items()}
    variables = found.all()
    named = {leaf for tree in state.values() for _, leaf in leaves_of(tree)}
    state |= {g.name: g.name for g in variables if g.name not in named}
    return Assembly(functions, variables, state, places, declared)


def names_of_state(attribute: str, given: Any, found: GlobalsFound) -> Any:
    """Return an attribute as a tree of the names of globals, which are added to `found`; None if it is not state."""
    tree, is_mutable = given if isinstance(given, StateDeclaration) else (given, None)
    if (leaves := state_leaves(attribute, tree)) is None:
        return None
    names = []
    for place, shared in leaves:
        check_type("the module", shared)
        names.append(found.add(place, shared, shared.container.storage))
        found.tell(names[-1], is_mutable, place)
    return with_leaves(tree, iter(names))


def globals_of(function: ModuleFunction, found: GlobalsFound) -> list[str]:
    """Return the names of the globals of a function, which are added to `found`."""
    names = [found.add(unique_names([s.variable.name], "state")[0], s.variable, s.cell) for s in function.state]
    for name, s in zip(names, function.state, strict=True):
        if s.update is not None:
            found.note_update(name, function.name)
    return names


def is_function(given: Any) -> bool:
    """Return whether an attribute is a function of a module."""
    return isinstance(given, FunctionDeclaration | ModuleFunction)


def attributes_of_functions(functions: Any, reserved: Iterable[str]) -> dict[str, Any]:
    """Return attributes for a module of functions: compiled ones, declarations, or other objects that name a graph."""
    if not isinstance(functions, Mapping) or not all(isinstance(name, str) for name in functions):
        what = 'The functions of a module are a dict with their names, such as functions={"step": f}'
        raise TypeError(f"{what}, not {functions!r:.80}.")
    check_attributes(functions, reserved)
    found: dict[str, Any] = {}
    for name, given in functions.items():
        if isinstance(given, FunctionDeclaration):
            found[name] = given
            continue
        target = target_of(given, "Module")
        if target.function is not None:
            found[name] = compiled_function(name, target.function)
        else:
            outputs = target.outputs[0] if target.is_bare else list(target.outputs)
            inputs = [v for v in target.inputs if not isinstance(v, SharedVariable)]
            found[name] = FunctionDeclaration(inputs, outputs, (), None, target.mode, True)
    return found


def check_attributes(names: Iterable[str], reserved: Iterable[str]) -> None:
    """Raise a TypeError if a part of a module has the name of a method of all modules, or is not named at all."""
    for name in names:
        if name in set(reserved):
            raise TypeError(f"{name!r} is a method of every module: call the function or state otherwise.")
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
            raise TypeError(f"{name!r:.80} is no name for a part of a module: give an identifier.")
