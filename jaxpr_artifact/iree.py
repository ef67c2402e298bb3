"""`IreeFunction` and `IreeModule`: the function or module in a ``.vmfb`` file, run by IREE.

`IreeProgram` is the program, mapped into memory as is its file of parameters.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from jaxpr_artifact import descriptions
from jaxpr_artifact.descriptions import MODULE_ATTRIBUTE, FunctionDescription, GlobalDescription, ModuleDescription
from jaxpr_artifact.files import ArtifactError, check_seal
from jaxpr_artifact.header import OF_JAX, Header, Misfit, check_fixed, read_description
from jaxpr_artifact.program_function import Backend, ProgramFunction
from jaxpr_artifact.state import ModuleState, State, argument_of
from jaxpr_artifact.threads import iree_threads
from jaxpr_artifact.trees import tree_like

#: The attribute of the function ``main`` that holds the header. IREE keeps it for programs that load a module.
ATTRIBUTE = "pytensor_jaxpr_linker"

#: The functions of a file with one function: its program, and the first values of the state.
MAIN, FIRST_STATE = "main", "first_state"

#: The device that IREE runs a program on unless another one is named.
DEVICE = "local-task"


class IreeProgram:
    """A program in a ``.vmfb`` file, which is one function or a module of functions. Nothing in it has run.

    `device` is the name of the device that is to run it; `names` are the names of the functions in it.
    """

    def __init__(self, path: str | os.PathLike, device: str = DEVICE):
        self.path, self.device = os.fspath(path), device
        check_seal(path)
        iree_threads.start()
        self.runtime = iree_runtime()
        try:
            self.config = self.runtime.Config(device)
        except Exception as error:  # the runtime raises several types
            drivers = ", ".join(self.runtime.query_available_drivers())
            raise ValueError(
                f"IREE finds no device {device!r} on this machine: {first_line(error)}. `device` is the name of a"
                f" driver, as `iree-run-module --device` takes it; the runtime has {drivers}, and"
                " `iree-run-module --list_devices` lists the devices."
            ) from error
        with self._translating("Save it again, or copy it again."):
            self._module = self.runtime.VmModule.mmap(self.config.vm_instance, self.path)
            self.names: Sequence[str] = self._module.function_names
            said = [self._module.lookup_function(name).reflection for name in self.names]
        self._texts = {key: text for texts in said for key, text in texts.items()}

    @property
    def is_module(self) -> bool:
        """Whether it is a module of functions that share state."""
        return MODULE_ATTRIBUTE in self._texts

    def header(self) -> Header:
        """Return the header of its one function, or raise an ArtifactError."""
        if self.is_module:
            what = "The file is a module of functions that share state, not one function."
            raise ArtifactError(self.path, what, "Load it by `load_iree_module`, or by `load`.")
        return iree_header_of(self.path, self._texts.get(ATTRIBUTE) if MAIN in self.names else None)

    def description(self) -> ModuleDescription:
        """Return the description of its functions and their state, or raise an ArtifactError."""
        if not self.is_module and ATTRIBUTE in self._texts:
            what = "The file is one function, not a module of functions that share state."
            raise ArtifactError(self.path, what, "Load it by `load_iree`, or by `load`.")
        return descriptions.module_description_of(self.path, self._texts.get(MODULE_ATTRIBUTE))

    def backend(
        self, target: str, dtypes: Mapping[str, Sequence[str]], called: str, others: Sequence[Any] = ()
    ) -> IreeFunctions:
        """Return the functions, ready to be called, or raise an ArtifactError if they do not run on the device.

        `target` is the one that the file was compiled for, as it says. `dtypes` are of the results of each function,
        and `called` is the functions' name in errors. The program needs the modules `others`.
        """
        with self._translating(f"It was compiled for {target!r}: name a device of that kind, or save it for this one."):
            hal = self.runtime.create_hal_module(self.config.vm_instance, self.config.device)
            context = self.runtime.SystemContext(vm_modules=[*others, hal, self._module], config=self.config)
            return IreeFunctions(context.modules[self._module.name], dtypes, called)

    @contextmanager
    def _translating(self, remedy: str) -> Iterator[None]:
        """Raise an exception of the runtime, which has several types, as an ArtifactError."""
        try:
            yield
        except Exception as error:
            what = f"IREE can't load it on {self.device}: {first_line(error)}."
            raise ArtifactError(self.path, what, remedy) from error


class IreeFunctions:
    """The functions of a program, run by IREE: a `Backend`."""

    threads, takes_turns = iree_threads, True

    def __init__(self, functions: Any, dtypes: Mapping[str, Sequence[str]], called: str):
        self._functions, self._dtypes, self._called = functions, dtypes, called

    def run(self, program: str, operands: Sequence[Any]) -> Sequence[Any]:
        """Return copies of the results of a function: IREE's own views outlive their memory."""
        arrays = [np.ascontiguousarray(x).reshape(x.shape) for x in operands]
        try:
            found = self._functions[program](*arrays)
        except Exception as error:  # the runtime raises several types
            raise RuntimeError(
                f"IREE failed to run {self._called}: {first_line(error)}. The arguments were checked, so this is a"
                " fault of IREE, or the device has too little memory. XLA runs the function if it is exported for JAX."
            ) from error
        results = found if isinstance(found, tuple | list) else () if found is None else (found,)
        return [owned(x, np.dtype(dtype)) for x, dtype in zip(results, self._dtypes[program], strict=True)]


class MachineCode:
    """A function or a module that IREE compiled."""

    def __instead__(self) -> str:
        """Return the objects to ask about in place of machine code."""
        return (
            "IREE compiled it to machine code, and print shows its arguments, results and state. Ask about the"
            " function that it was made of, or export that for JAX, by a path that does not end in .vmfb."
        )


def not_copied(given: Any, path: str) -> TypeError:
    """Return the error for a copy of a function or module in a file."""
    remedy = f"load {path} again, where it is needed, and set its state"
    return TypeError(f"{given!r:.200} can't be copied or pickled: {remedy}.")


def iree_header_of(path: str | os.PathLike, text: Any) -> Header:
    """Return the header that a text spells, or raise an ArtifactError."""
    remedy = "Export it again, as a `.vmfb` file of pytensor_jaxpr_linker."
    return read_description(Header, path, text, "what its arguments are", remedy, check_iree_header, OF_JAX)


def check_iree_header(header: Header) -> None:
    """Raise a `Misfit` if the parts of a header do not fit together."""
    check_fixed((*header.arguments, *header.outputs, *header.state))
    if not header.target:
        raise Misfit("it has no target")


def iree_runtime() -> Any:
    """Return the module ``iree.runtime``, or raise an ImportError."""
    try:
        import iree.runtime
    except ModuleNotFoundError as error:
        raise ImportError(
            "iree.runtime is not installed: `pip install iree-base-runtime`, or"
            " `pip install 'pytensor_jaxpr_linker[iree]'`.",
            name="iree.runtime",
        ) from error
    return iree.runtime


def owned(result: Any, dtype: np.dtype) -> np.ndarray:
    """Return a result of IREE as an array with its own memory. It has no unsigned results, and booleans are bytes."""
    array = np.array(result.to_host() if hasattr(result, "to_host") else result, copy=True)
    if array.dtype == dtype:
        return array
    return array.astype(bool) if dtype.kind == "b" else array.view(dtype)


def first_line(error: Exception) -> str:
    """Return the first line of a message, without the dot at its end."""
    return next(iter(str(error).splitlines()), type(error).__name__).removesuffix(".")


#: Kinds of files of parameters. The first one that exists is read.
PARAMETER_FILES = (".irpa", ".safetensors")


def parameter_modules(
    program: IreeProgram, description: ModuleDescription, given: str | os.PathLike | None, verify: bool
) -> list[Any]:
    """Return the module that reads the file of parameters, which it maps into memory; empty without parameters.

    Raise an ArtifactError if the file is missing, lacks an array, or, with `verify`, holds other values than the
    program was saved with.
    """
    wanted = [g for g in description.globals if g.parameter]
    if not wanted:
        return []
    file = parameter_file(program.path, given)
    index = program.runtime.ParameterIndex()
    try:
        index.load(os.fspath(file))
    except Exception as error:  # the runtime raises several types
        what = f"IREE can't read the parameters: {first_line(error)}."
        raise ArtifactError(file, what, "Save the module again.") from error
    entries = dict(index.items())
    for g in wanted:
        check_parameter(file, program.path, g, entries.get(str(g.parameter)), verify)
    provider = index.create_provider(scope=description.scope)
    return [program.runtime.create_io_parameters_module(program.config.vm_instance, provider)]


def parameter_file(path: str, given: str | os.PathLike | None) -> Path:
    """Return the file of a module's parameters: the given one, or the one next to the module."""
    near = [Path(path).with_suffix(kind) for kind in PARAMETER_FILES]
    file = Path(given) if given is not None else next((p for p in near if p.exists()), near[0])
    if not file.exists():
        remedy = "Copy it to the module, or say where it is: load_iree_module(path, parameters=...)."
        raise ArtifactError(path, f"Its parameters are in another file, and {file} is not there.", remedy)
    return file


def check_parameter(file: Path, path: str, known: GlobalDescription, entry: Any, verify: bool) -> None:
    """Raise an ArtifactError unless an entry of a file, or None, is the parameter of the module at `path`."""
    view = entry.file_view if entry is not None and entry.is_file else None  # mapped, not copied
    if view is None or len(view) != known.nbytes:
        what = f"It has not the parameter {known.parameter} of {path}."
        raise ArtifactError(file, what, "Use the files of one module.")
    if verify and hashlib.sha256(view).hexdigest() != known.sha256:
        what = (
            f"The parameter {known.parameter} is not the one that {path} was saved with: its checksum does not fit."
            " The file is damaged, or from another save."
        )
        raise ArtifactError(file, what, "Copy both files again, or save the module again.")


class IreeFunction(MachineCode, ProgramFunction):
    """A function that `load` made of a ``.vmfb`` file: call it with arguments by position or by name.

    A call returns the outputs as NumPy arrays of their own, after updates went into `state`.

    Attributes
    ----------
    header : Header
        The header of the file: names, dtypes, shapes, checks, the target, versions.
    state : State
        The values that it keeps between calls, by the names of the shared variables.
    """

    def __init__(self, program: IreeProgram):
        self.path, self.header = program.path, program.header()
        arguments = [argument_of(s) for s in self.header.state]
        dtypes = {MAIN: self.header.result_dtypes, FIRST_STATE: [a.dtype for a in arguments]}
        called = f"{self.header.name}, and the state keeps its values"
        backend = program.backend(self.header.target, dtypes, called)
        state = State(arguments, backend.run(FIRST_STATE, []) if arguments else [])
        super().__init__(descriptions.function_description(self.header), backend, MAIN, state, ())

    def __reduce__(self) -> Any:
        raise not_copied(self, self.path)

    def __str__(self) -> str:
        return descriptions.described(self.header)

    def __repr__(self) -> str:
        return f"<{self.header.name}{self.__signature__} loaded from {self.path} by IREE>"


class IreeModule(MachineCode):
    """A module that `load_iree_module` made of a ``.vmfb`` file. Its functions and its state are its attributes.

    Functions take arguments by position or by name, in trees where the original has trees, and return new NumPy arrays.
    They return a named tuple for a named tuple or a dataclass, and take any tree that has parts of the same names.
    State has `get_value` and `set_value`. State whose name begins with an underscore is not in the file.

    Attributes
    ----------
    path : str
        The file.
    description : ModuleDescription
        The description in the file: names, dtypes, shapes, checks, globals, the target, versions.
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
        return descriptions.described_module(self.__description)

    def __repr__(self) -> str:
        parts = [f"{x.__name__}{x.__signature__}" for x in vars(self).values() if isinstance(x, IreeModuleFunction)]
        parts += [repr(x) for x in vars(self).values() if isinstance(x, ModuleState)]
        return f"<module {self.__description.name} loaded from {self.__path} by IREE: {', '.join(parts)}>"


class IreeModuleFunction(MachineCode, ProgramFunction):
    """A function of an `IreeModule`."""

    def __init__(self, description: FunctionDescription, backend: Backend, state: State):
        super().__init__(description, backend, description.name, state, ())
        self.__doc__ = f"Return {', '.join(r.name for r in description.outputs) or 'nothing'}."

    def __repr__(self) -> str:
        return f"<function {self.__name__}{self.__signature__} run by IREE>"


class GlobalValues(State):
    """The globals of a module. IREE holds the values: getters read them, and setters set them."""

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
        """Replace values by a caller's, all or none."""
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
            f"The module has no setter of {', '.join(given)}: a function has the setter's name, or constants are in the"
            " same tree and an older version wrote the file. Then save the module again."
        )

    def is_mutable(self, name: str) -> bool:
        """Return whether a global may change."""
        return self._globals[name].is_mutable

    def spelled_type(self, name: str) -> str:
        """Return dtype and shape of a global."""
        return f"{self._globals[name].dtype}{list(self._globals[name].shape)}"
