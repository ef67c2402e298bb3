"""Puts a module together: compiles its functions, finds its globals, and tells constants from what changes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from jaxpr_artifact.trees import leaves_of, with_leaves
from pytensor_jaxpr_linker.artifacts.module.declarations import FunctionDeclaration, StateDeclaration, state_leaves
from pytensor_jaxpr_linker.artifacts.module.functions import (
    ModuleFunction,
    check_type,
    compiled_declaration,
    compiled_function,
)
from pytensor_jaxpr_linker.artifacts.module.state import Global
from pytensor_jaxpr_linker.artifacts.shapes import unique_names
from pytensor_jaxpr_linker.frontend.targets import target_of


class Assembly(NamedTuple):
    """The parts of a module, without values."""

    functions: dict[str, ModuleFunction]
    globals: list[Global]
    state: dict[str, Any]
    """A tree of the names of globals, for each attribute of the module that is state."""
    places: dict[str, list[str]]
    """The names of the globals that each function takes, in the order of its state."""
    declared: dict[str, Any]
    """What the functions were made of."""


class GlobalsFound:
    """The shared variables of a module. Each has one name, the first that it is called by; others are aliases."""

    def __init__(self, reserved: Iterable[str]):
        self._reserved = frozenset(reserved)
        self._names: dict[int, str] = {}  # by the address of the cell
        self._variables: dict[str, tuple[Variable, list]] = {}
        self._told: dict[str, bool] = {}
        self._updated: dict[str, str] = {}

    def add(self, wanted: str, variable: Variable, cell: list) -> str:
        """Return the name of the variable whose value is in this cell: if it has none yet, the wanted one, or one like it."""
        if id(cell) not in self._names:
            name = re.sub(
                r"[^\w.]", "_", wanted, flags=re.ASCII
            )  # MLIR has symbols of other characters, and its readers quote them
            while name in self._variables or name in self._reserved:
                name += "_"
            self._names[id(cell)] = name
            self._variables[name] = variable, cell  # the cell lives as long as its address is used
        return self._names[id(cell)]

    def tell(self, name: str, is_mutable: bool | None, place: str) -> None:
        """Note what the user says of a variable."""
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
    """Return a module with these attributes; what is neither a function nor state is left out. No global gets a name that is reserved.

    Raises
    ------
    TypeError
        If an attribute has arrays that are no shared variables, or is told to be constant and has an update.
    GraphBreakError
        If a function can't be one program.
    """
    declared = {name: given for name, given in attributes.items() if is_function(given)}
    found = GlobalsFound([*reserved, *declared])
    state = {
        name: tree for name, given in attributes.items() if (tree := names_of_state(name, given, found)) is not None
    }
    functions = {name: function_of_module(name, given) for name, given in declared.items()}
    places = {name: globals_of(function, found) for name, function in functions.items()}
    variables = found.all()
    named = {leaf for tree in state.values() for _, leaf in leaves_of(tree)}
    state |= {g.name: g.name for g in variables if g.name not in named}
    return Assembly(functions, variables, state, places, declared)


def names_of_state(attribute: str, given: Any, found: GlobalsFound) -> Any:
    """Return an attribute as a tree of the names of globals, which are added to those found; None if it is no state."""
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
    """Return the names of the globals of a function, which are added to those found."""
    names = [found.add(unique_names([s.variable.name], "state")[0], s.variable, s.cell) for s in function.state]
    for name, s in zip(names, function.state, strict=True):
        if s.update is not None:
            found.note_update(name, function.name)
    return names


def is_function(given: Any) -> bool:
    """Return whether an attribute is a function of a module."""
    return isinstance(given, FunctionDeclaration | CompiledByUser)


class CompiledByUser(NamedTuple):
    """A function that the user compiled."""

    function: Any


def function_of_module(name: str, given: Any) -> ModuleFunction:
    """Return a function of a module, compiled."""
    if isinstance(given, CompiledByUser):
        return compiled_function(name, given.function)
    return compiled_declaration(name, given)


def attributes_of_functions(functions: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes for a module of functions that are compiled, declared, or what else names a graph."""
    found: dict[str, Any] = {}
    for name, given in functions.items():
        if isinstance(given, FunctionDeclaration):
            found[name] = given
            continue
        target = target_of(given, "Module")
        if target.function is not None:
            found[name] = CompiledByUser(target.function)
        else:
            outputs = target.outputs[0] if target.is_bare else list(target.outputs)
            inputs = [v for v in target.inputs if not isinstance(v, SharedVariable)]
            found[name] = FunctionDeclaration(inputs, outputs, (), None, target.mode, True)
    return found


def declared_functions(given: Assembly) -> dict[str, Any]:
    """Return what `attributes_of_functions` takes for the functions of a module."""
    return {name: x.function if isinstance(x, CompiledByUser) else x for name, x in given.declared.items()}


def check_functions(functions: Any) -> None:
    """Raise a TypeError if functions have no names."""
    if not isinstance(functions, Mapping) or not all(isinstance(name, str) for name in functions):
        raise TypeError(
            f'The functions of a module are a dict with their names, such as functions={{"step": f}}, not {functions!r:.80}.'
        )


def check_attributes(names: Iterable[str], reserved: Iterable[str]) -> None:
    """Raise a TypeError if a part of a module has the name of a method of all modules, or none that Python can say."""
    for name in names:
        if name in set(reserved):
            raise TypeError(f"{name!r} is a method of every module: call the function or state otherwise.")
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
            raise TypeError(f"{name!r:.80} is no name for a part of a module: give an identifier.")
