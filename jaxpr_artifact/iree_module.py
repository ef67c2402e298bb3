"""`IreeModule`: functions that share state, out of a ``.vmfb`` file, run by IREE."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxpr_artifact.arguments import check_sizes, spelled, taken
from jaxpr_artifact.iree_parameters import parameter_modules
from jaxpr_artifact.iree_program import DEVICE, IreeProgram, owned
from jaxpr_artifact.loaded import error_of
from jaxpr_artifact.module_header import FunctionDescription


class IreeModule:
    """A module that `load_iree_module` made of a ``.vmfb`` file. Its functions are its attributes; its state is in it.

    A function takes its arrays in their order, or by their names: the leaves of trees one by one. It returns a list of new NumPy arrays, or
    one array where the original did. Getters and setters, such as ``m.get_w()``, reach the state.

    Attributes
    ----------
    description : ModuleDescription
        What the file says of itself: names, dtypes, shapes, checks, globals, the target, versions.
    """

    def __init__(self, program: IreeProgram, parameters: str | os.PathLike | None = None, verify: bool = True):
        self.path, self.description = program.path, program.description()
        self._functions = program.functions(
            self.description.target, parameter_modules(program, self.description, parameters, verify)
        )
        self._turn = threading.Lock()
        for function in self.description.functions:
            vars(self)[function.name] = self._bound(function)

    def _bound(self, function: FunctionDescription) -> Callable[..., Any]:
        """Return a function of the module as users call it."""
        places = {a.name: i for i, a in enumerate(function.arguments)}
        names = ", ".join(places) or "nothing"

        def call(*args: Any, **named: Any) -> Any:
            given = dict(enumerate(args)) | {places.get(name, -1): x for name, x in named.items()}
            if sorted(given) != list(range(len(places))) or len(given) != len(args) + len(named):
                raise TypeError(f"{function.name} takes {names}, each once.")
            arrays = [np.asarray(taken(a, given[i])) for i, a in enumerate(function.arguments)]
            check_sizes(function.arguments, arrays)
            with self._turn:
                raw = self._functions[function.name](*[np.ascontiguousarray(x).reshape(x.shape) for x in arrays])
            raw = list(raw) if isinstance(raw, tuple | list) else [] if raw is None else [raw]
            results = [owned(x, np.dtype(r.dtype)) for x, r in zip(raw, function.results, strict=True)]
            if function.checks and (code := int(results.pop())):
                raise error_of(function.checks[code - 1])
            return results[0] if function.is_bare else results

        call.__name__ = call.__qualname__ = function.name
        call.__doc__ = f"{function.kind} of {names}."
        return call

    def __repr__(self) -> str:
        functions = [f"{f.name}({', '.join(a.name for a in f.arguments)})" for f in self.description.functions]
        state = [f"{g.name} {g.dtype}{spelled(g.shape)}" for g in self.description.globals if g.is_mutable]
        return f"<module {self.description.name} loaded from {self.path} by IREE: {', '.join([*functions, *state])}>"


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
