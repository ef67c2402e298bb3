"""`IreeFunction` and `IreeModule`: what is in a ``.vmfb`` file, run by IREE."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxpr_artifact.arguments import argument_of
from jaxpr_artifact.describe import described, described_module
from jaxpr_artifact.iree_parameters import parameter_modules
from jaxpr_artifact.iree_program import FIRST_STATE, MAIN, IreeProgram, MachineCode, not_copied
from jaxpr_artifact.module_header import FunctionDescription, ModuleDescription, function_description
from jaxpr_artifact.program_function import Backend, ProgramFunction
from jaxpr_artifact.state import ModuleState, State
from jaxpr_artifact.tree_description import tree_like


class IreeFunction(MachineCode, ProgramFunction):
    """A function that `load` made of a ``.vmfb`` file: call it with arguments by position or by name.

    A call returns the outputs as NumPy arrays of their own, after updates went into `state`.

    Attributes
    ----------
    header : Header
        What the file says of it: names, dtypes, shapes, checks, the target, versions.
    state : State
        What it keeps between calls, by the names of the shared variables.
    """

    def __init__(self, program: IreeProgram):
        self.path, self.header = program.path, program.header()
        arguments = [argument_of(s) for s in self.header.state]
        dtypes = {MAIN: self.header.result_dtypes, FIRST_STATE: [a.dtype for a in arguments]}
        called = f"{self.header.name}, and the state keeps its values"
        backend = program.backend(self.header.target, dtypes, called)
        state = State(arguments, backend.run(FIRST_STATE, []) if arguments else [])
        super().__init__(function_description(self.header), backend, MAIN, state)

    def __reduce__(self) -> Any:
        raise not_copied(self, self.path)

    def __str__(self) -> str:
        return described(self.header)

    def __repr__(self) -> str:
        return f"<{self.header.name}{self.__signature__} loaded from {self.path} by IREE>"


class IreeModule(MachineCode):
    """A module that `load_iree_module` made of a ``.vmfb`` file. Its functions and its state are its attributes, as those of the original.

    Functions take arguments by position or by name, in trees where the original has trees, and return new NumPy arrays. What was a named tuple or
    a dataclass comes as a named tuple; whatever has parts of the same names may go in. State has `get_value` and `set_value`. State whose name
    begins with an underscore is not in the file.

    Attributes
    ----------
    path : str
        The file.
    description : ModuleDescription
        What the file says of itself: names, dtypes, shapes, checks, globals, the target, versions.
    """

    def __init__(self, program: IreeProgram, parameters: str | os.PathLike | None = None, verify: bool = True):
        description = program.description()
        others = parameter_modules(program, description, parameters, verify)
        dtypes = {f.name: [r.dtype for r in f.results] for f in description.functions}
        backend = program.backend(description.target, dtypes, f"a function of {description.name}", others)
        values = GlobalValues(description, backend)
        self.path, self.description = self.__path, self.__description = program.path, description
        for state in description.state:  # which may have one of these names
            if values.has(state.globals):
                vars(self)[state.name] = ModuleState(state.name, tree_like(state.tree, iter(state.globals)), values)
        vars(self).update({function.__name__: function for function in values.functions})

    def __reduce__(self) -> Any:
        raise not_copied(self, self.__path)

    def __str__(self) -> str:
        return described_module(self.__description)

    def __repr__(self) -> str:
        parts = [f"{x.__name__}{x.__signature__}" for x in vars(self).values() if isinstance(x, IreeModuleFunction)]
        parts += [repr(x) for x in vars(self).values() if isinstance(x, ModuleState)]
        return f"<module {self.__description.name} loaded from {self.__path} by IREE: {', '.join(parts)}>"


class IreeModuleFunction(MachineCode, ProgramFunction):
    """A function of an `IreeModule`."""

    def __init__(self, description: FunctionDescription, backend: Backend, state: State):
        super().__init__(description, backend, description.name, state)
        self.__doc__ = f"Return {', '.join(r.name for r in description.outputs) or 'nothing'}."

    def __repr__(self) -> str:
        return f"<function {self.__name__}{self.__signature__} run by IREE>"


class GlobalValues(State):
    """The globals of a module, of which IREE has the values: getters read them, and setters set them."""

    def __init__(self, description: ModuleDescription, backend: Backend):
        super().__init__((), ())  # Python holds none; functions take turns by this
        self.functions = [IreeModuleFunction(f, backend, self) for f in description.functions]
        self._globals = {g.name: g for g in description.globals}
        self._getters = {f.description.reads: f for f in self.functions if f.description.kind == "getter"}
        self._setters = {f.description.writes: f for f in self.functions if f.description.kind == "setter"}
        self._places = {name: (names, i) for names in self._getters for i, name in enumerate(names)}

    def has(self, names: Sequence[str]) -> bool:
        """Return whether getters return all of these globals."""
        return self._places.keys() >= set(names)

    def read(self, names: Sequence[str]) -> list[np.ndarray]:
        """Return the values of globals, all of one moment."""
        with self.turn:
            found = {group: self._getters[group].flat([]) for group in {self._places[name][0] for name in names}}
        return [found[group][i] for group, i in (self._places[name] for name in names)]

    def set(self, given: Mapping[str, Any]) -> None:
        """Replace values by those of a caller, all or none."""
        for names, setter in self._setters.items():
            others = [name for name in names if name not in given]
            if given.keys() <= set(names) and self.has(others):
                with self.turn:
                    values = {**given, **dict(zip(others, self.read(others), strict=True))}
                    setter.flat([values[name] for name in names])
                return
        if constants := [name for name in given if not self.is_mutable(name)]:
            raise TypeError(f"{constants[0]} is a constant of the module: none of its functions updates it.")
        raise TypeError(
            f"The module has no setter of {', '.join(given)}: constants are in the same tree, or a function has the setter's name."
        )

    def is_mutable(self, name: str) -> bool:
        """Return whether a global may change."""
        return self._globals[name].is_mutable

    def spelled_type(self, name: str) -> str:
        """Return dtype and shape of a global."""
        return f"{self._globals[name].dtype}{list(self._globals[name].shape)}"
