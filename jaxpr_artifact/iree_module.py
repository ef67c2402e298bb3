"""`IreeModule`: functions that share state, out of a ``.vmfb`` file, run by IREE."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from inspect import Parameter, Signature
from typing import Any

import numpy as np

from jaxpr_artifact.arguments import check_sizes, taken
from jaxpr_artifact.describe import described_module
from jaxpr_artifact.fork import iree_threads
from jaxpr_artifact.iree_parameters import parameter_modules
from jaxpr_artifact.iree_program import DEVICE, MACHINE_CODE, IreeProgram, owned
from jaxpr_artifact.loaded import error_of
from jaxpr_artifact.module_header import FunctionDescription, ModuleDescription
from jaxpr_artifact.module_state import ModuleState
from jaxpr_artifact.tree_description import tree_like
from jaxpr_artifact.trees import leaves_like, with_leaves


class IreeModule:
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
        self.path, self.description = program.path, program.description()
        self.__path, self.__description = self.path, self.description  # a part may have one of these names
        others = parameter_modules(program, self.description, parameters, verify)
        loaded, turn = program.functions(self.description.target, others), threading.RLock()
        functions = [IreeModuleFunction(f, loaded[f.name], turn) for f in self.description.functions]
        values = GlobalValues(self.description, functions, turn)
        for state in self.description.state:
            if values.has(state.globals):
                vars(self)[state.name] = ModuleState(state.name, tree_like(state.tree, iter(state.globals)), values)
        for function in functions:
            vars(self)[function.__name__] = function

    def __instead__(self) -> str:
        """Return what to ask about in place of machine code."""
        return MACHINE_CODE

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self!r:.200} can't be copied or pickled: load {self.__path} again, where it is needed, and set its state."
        )

    def __str__(self) -> str:
        return described_module(self.__description)

    def __repr__(self) -> str:
        parts = [f"{x.__name__}{x.__signature__}" for x in vars(self).values() if isinstance(x, IreeModuleFunction)]
        parts += [repr(x) for x in vars(self).values() if isinstance(x, ModuleState)]
        return f"<module {self.__description.name} loaded from {self.__path} by IREE: {', '.join(parts)}>"


class IreeModuleFunction:
    """A function of an `IreeModule`.

    Attributes
    ----------
    description : FunctionDescription
        What the file says of it.
    """

    def __init__(self, description: FunctionDescription, call: Any, turn: AbstractContextManager):
        self.description, self._call, self._turn = description, call, turn
        self._trees = {
            a.name: tree_like(a.tree, iter(range(len(description.arguments)))) for a in description.signature
        }
        self._returned = tree_like(description.returned, iter(range(len(description.results))))
        self.__name__ = self.__qualname__ = description.name
        self.__signature__ = Signature(
            [Parameter(a.name, Parameter.POSITIONAL_OR_KEYWORD) for a in description.signature]
        )
        results = description.results[: -1 if description.checks else None]
        self.__doc__ = f"Return {', '.join(r.name for r in results) or 'nothing'}."

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        try:
            given = self.__signature__.bind(*args, **kwargs).args
        except TypeError as error:
            raise TypeError(f"{self.__name__}{self.__signature__}: {error}") from None
        pairs = zip(self._trees.items(), given, strict=True)
        flat = [x for (name, tree), value in pairs for _, _, x in leaves_like(tree, value, name)]
        return with_leaves(self._returned, iter(self.flat(flat)))

    def flat(self, given: Sequence[Any]) -> list[np.ndarray]:
        """Return the arrays of the results for the arrays of the arguments, checked."""
        iree_threads.check()
        what = self.description
        arrays = [np.asarray(taken(a, x)) for a, x in zip(what.arguments, given, strict=True)]
        check_sizes(what.arguments, arrays)
        with self._turn:
            raw = self._call(*[np.ascontiguousarray(x).reshape(x.shape) for x in arrays])
        raw = list(raw) if isinstance(raw, tuple | list) else [] if raw is None else [raw]
        results = [owned(x, np.dtype(r.dtype)) for x, r in zip(raw, what.results, strict=True)]
        if what.checks and (code := int(results.pop())):
            raise error_of(what.checks[code - 1])
        return results

    def __instead__(self) -> str:
        """Return what to ask about in place of machine code."""
        return MACHINE_CODE

    def __repr__(self) -> str:
        return f"<function {self.__name__}{self.__signature__} run by IREE>"


class GlobalValues:
    """The globals of a module as its getters and setters reach them."""

    def __init__(
        self, description: ModuleDescription, functions: Sequence[IreeModuleFunction], turn: AbstractContextManager
    ):
        self._turn = turn
        self._globals = {g.name: g for g in description.globals}
        self._getters = {f.description.reads: f for f in functions if f.description.kind == "getter"}
        self._setters = {f.description.writes: f for f in functions if f.description.kind == "setter"}
        self._places = {name: (names, i) for names in self._getters for i, name in enumerate(names)}

    def has(self, names: Sequence[str]) -> bool:
        """Tell whether getters return all of these globals."""
        return self._places.keys() >= set(names)

    def read(self, names: Sequence[str]) -> list[np.ndarray]:
        """Return the values of globals, all of one moment."""
        with self._turn:
            found = {group: self._getters[group].flat([]) for group in {self._places[name][0] for name in names}}
        return [found[group][i] for group, i in (self._places[name] for name in names)]

    def set(self, given: Mapping[str, Any]) -> None:
        """Replace values by those of a caller, all or none."""
        for names, setter in self._setters.items():
            others = [name for name in names if name not in given]
            if given.keys() <= set(names) and self.has(others):
                with self._turn:
                    values = {**given, **dict(zip(others, self.read(others), strict=True))}
                    setter.flat([values[name] for name in names])
                return
        if constants := [name for name in given if not self.is_mutable(name)]:
            raise TypeError(f"{constants[0]} is a constant of the module: none of its functions updates it.")
        raise TypeError(
            f"The module has no setter of {', '.join(given)}: constants are in the same tree, or a function has the setter's name."
        )

    def is_mutable(self, name: str) -> bool:
        """Tell whether a global may change."""
        return self._globals[name].is_mutable

    def spelled_type(self, name: str) -> str:
        """Return dtype and shape of a global."""
        return f"{self._globals[name].dtype}{list(self._globals[name].shape)}"


def load_iree_module(
    path: str | os.PathLike,
    *,
    parameters: str | os.PathLike | None = None,
    device: str = DEVICE,
    verify: bool = True,
) -> IreeModule:
    """Return the module in a ``.vmfb`` file that `pytensor_jaxpr_linker.Module.save` wrote. It needs IREE's runtime and no compiler.

    Parameters
    ----------
    path : str or os.PathLike
        The file. It is mapped into memory, like its parameters.
    parameters : str or os.PathLike
        The file of its parameters, by default the one of the same name that ends with ``.irpa`` or ``.safetensors``.
    device : str
        Where it runs, as ``iree-run-module --device`` takes it.
    verify : bool
        Whether to compare the checksums of the parameters, which reads them; that of the program is always compared.

    Returns
    -------
    IreeModule
        Its functions are its attributes. It begins with the state that the module had when it was saved.

    Raises
    ------
    ArtifactError
        If a file is damaged, missing, of another machine, or no module of this package.
    ImportError
        If the runtime is not installed.

    Examples
    --------
    >>> import pytest
    >>> _ = pytest.importorskip("iree.compiler"), pytest.importorskip("iree.runtime")
    >>> import tempfile, pytensor, pytensor.tensor as pt, pytensor_jaxpr_linker as pjl
    >>> count, by = pytensor.shared(0, name="count"), pt.lscalar("by")
    >>> class Counter(pjl.Module):
    ...     advance = pjl.public([by], count + by, updates={count: count + by})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Counter().save(f"{folder}/counter.vmfb")
    ...     counter = load_iree_module(f"{folder}/counter.vmfb")  # without PyTensor
    >>> counter.advance(3), counter.advance(by=3)
    (array(3), array(6))
    """
    return IreeModule(IreeProgram(path, device), parameters, verify)
