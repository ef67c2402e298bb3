"""`IreeFunction`: a function out of a ``.vmfb`` file, run by IREE."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpr_artifact.arguments import check_sizes, signature_of, taken
from jaxpr_artifact.describe import described
from jaxpr_artifact.fork import iree_threads
from jaxpr_artifact.iree_program import DEVICE, FIRST_STATE, MACHINE_CODE, MAIN, IreeProgram, first_line, owned
from jaxpr_artifact.loaded import State, error_of


class IreeFunction:
    """A function that `load` made of a ``.vmfb`` file: call it with arguments by position or by name.

    Attributes
    ----------
    header : Header
        What the file says of it: names, dtypes, shapes, checks, the target, versions.
    state : State
        What it keeps between calls, by the names of the shared variables.
    """

    def __init__(self, program: IreeProgram):
        self.path, self.header = program.path, program.header()
        self._functions = program.functions(self.header.target)
        self.__name__ = self.__qualname__ = self.header.name
        self.__signature__ = signature_of(self.header.arguments)
        self._turn = threading.Lock()
        first = self._invoke(FIRST_STATE, [], [s.dtype for s in self.header.state]) if self.header.state else []
        self.state = State(self.header.state, first)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs as NumPy arrays of their own, after updates went into `state`.

        Raises
        ------
        TypeError
            If arguments do not fit, before anything runs.
        Exception
            What a run-time check of the graph raises. The state keeps its values.
        """
        iree_threads.check()
        header = self.header
        given = self.__signature__.bind(*args, **kwargs).args
        values = [np.asarray(taken(a, value)) for a, value in zip(header.arguments, given, strict=True)]
        check_sizes(header.arguments, values)
        with self._turn:
            state = self.state.snapshot()
            results = self._invoke(
                MAIN, [*values, *[np.asarray(state[s.name]) for s in header.state]], header.result_dtypes
            )
            if header.checks and (code := int(results[-1])):
                raise error_of(header.checks[code - 1])
            self.state.update_all({s.name: results[s.output] for s in header.state if s.output is not None})
        outputs = results[: len(header.outputs)]
        return outputs[0] if header.is_bare else outputs

    def _invoke(self, name: str, values: Sequence[np.ndarray], dtypes: Sequence[str]) -> list[np.ndarray]:
        """Call a function of the file, and return copies of its results: IREE's own views outlive their memory."""
        try:
            found = self._functions[name](*[np.ascontiguousarray(v).reshape(v.shape) for v in values])
        except Exception as error:  # the runtime raises several types
            raise RuntimeError(
                f"IREE failed to run {self.header.name}, and the state keeps its values: {first_line(error)}. The arguments were checked, so"
                " this is a fault of IREE, or the device has too little memory. XLA runs the function if it is exported for JAX."
            ) from error
        found = found if isinstance(found, tuple | list) else (found,)
        return [owned(x, np.dtype(dtype)) for x, dtype in zip(found, dtypes, strict=True)]

    def __instead__(self) -> str:
        """Return what to ask about in place of machine code."""
        return MACHINE_CODE

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self!r:.200} can't be copied or pickled: load {self.path} again, where it is needed, and set its state."
        )

    def __str__(self) -> str:
        return described(self.header)

    def __repr__(self) -> str:
        return f"<{self.header.name}{self.__signature__} loaded from {self.path} by IREE>"


def load_iree(path: str | os.PathLike, *, device: str = DEVICE) -> IreeFunction:
    """Return the function in a ``.vmfb`` file that `pytensor_jaxpr_linker.export` wrote. It needs IREE's runtime and no compiler.

    Parameters
    ----------
    path : str or os.PathLike
        The file. It is mapped into memory; an export to the same path makes a new file.
    device : str
        Where it runs, as ``iree-run-module --device`` takes it: "local-task" uses all cores, "local-sync" the thread of the caller.

    Returns
    -------
    IreeFunction
        Call it by position or by name. ``print`` says what it was made of.

    Raises
    ------
    ArtifactError
        If the file is damaged, of another machine, or no file of this package.
    ImportError
        If the runtime is not installed.

    Examples
    --------
    The first lines need the compiler, the last one needs neither it nor PyTensor:

    >>> import pytest
    >>> _ = pytest.importorskip("iree.compiler"), pytest.importorskip("iree.runtime")
    >>> import tempfile, pytensor.tensor as pt, pytensor_jaxpr_linker as pjl
    >>> x = pt.vector("x", dtype="float64")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pjl.export([x], pt.exp(-x), path=f"{folder}/decay.vmfb", dims={"x": "2"}, name="decay")
    ...     decay = load_iree(f"{folder}/decay.vmfb")
    >>> decay([0.0, 1.0]).round(3)
    array([1.   , 0.368])
    >>> decay([0.0, 1.0, 2.0])
    Traceback (most recent call last):
    ...
    TypeError: x has shape (2,), and its value has (3,).
    """
    return IreeFunction(IreeProgram(path, device))
