"""`IreeProgram`: what a ``.vmfb`` file holds, mapped into memory, and what it says of itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from jaxpr_artifact.errors import ArtifactError
from jaxpr_artifact.fork import iree_threads
from jaxpr_artifact.header import OF_JAX, Header, Misfit, check_fixed, read_description
from jaxpr_artifact.module_header import MODULE_ATTRIBUTE, ModuleDescription, module_description_of
from jaxpr_artifact.seal import check_seal

#: The attribute of the function ``main`` that holds the header, among those that IREE keeps for programs that load a module.
ATTRIBUTE = "pytensor_jaxpr_linker"

#: The functions of a file with one function: its program, and the first values of the state.
MAIN, FIRST_STATE = "main", "first_state"

#: The device that IREE runs a program on unless another one is named.
DEVICE = "local-task"

#: What reports say of what IREE compiled.
MACHINE_CODE = (
    "IREE compiled it to machine code, of which print tells the arguments, results and state. Ask about the function that it was made of,"
    " or export that for JAX, by a path that does not end in .vmfb."
)


class IreeProgram:
    """A program in a ``.vmfb`` file, which is one function or a module of functions. Nothing in it has run.

    Attributes
    ----------
    path, device
        The file, and the name of the device that is to run it.
    names
        The names of the functions in it.
    """

    def __init__(self, path: str | os.PathLike, device: str = DEVICE):
        self.path, self.device = os.fspath(path), device
        check_seal(path)
        iree_threads.start()
        self.runtime = iree_runtime()
        self.config = configured(self.runtime, device)
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
        """Return what it says of its one function, or raise an ArtifactError."""
        if self.is_module:
            what = "The file is a module of functions that share state, not one function."
            raise ArtifactError(self.path, what, "Load it by `load_iree_module`, or by `load`.")
        return iree_header_of(self.path, self._texts.get(ATTRIBUTE) if MAIN in self.names else None)

    def description(self) -> ModuleDescription:
        """Return what it says of its functions and their state, or raise an ArtifactError."""
        if not self.is_module and ATTRIBUTE in self._texts:
            what = "The file is one function, not a module of functions that share state."
            raise ArtifactError(self.path, what, "Load it by `load_iree`, or by `load`.")
        return module_description_of(self.path, self._texts.get(MODULE_ATTRIBUTE))

    def backend(
        self, target: str, dtypes: Mapping[str, Sequence[str]], called: str, others: Sequence[Any] = ()
    ) -> IreeFunctions:
        """Return the functions, ready to be called.

        Parameters
        ----------
        target
            What the file says that it was compiled for.
        dtypes
            The dtypes of the results of each function.
        called
            What an error of IREE says that it failed to run.
        others
            Modules that this one needs.

        Raises
        ------
        ArtifactError
            If it does not run on the device.
        """
        with self._translating(f"It was compiled for {target!r}: name a device of that kind, or save it for this one."):
            hal = self.runtime.create_hal_module(self.config.vm_instance, self.config.device)
            context = self.runtime.SystemContext(vm_modules=[*others, hal, self._module], config=self.config)
            return IreeFunctions(context.modules[self._module.name], dtypes, called)

    @contextmanager
    def _translating(self, remedy: str) -> Iterator[None]:
        """Raise what the runtime raises, which is of several types, as an ArtifactError."""
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
                f"IREE failed to run {self._called}: {first_line(error)}. The arguments were checked, so this is a fault of IREE, or the"
                " device has too little memory. XLA runs the function if it is exported for JAX."
            ) from error
        results = found if isinstance(found, tuple | list) else () if found is None else (found,)
        return [owned(x, np.dtype(dtype)) for x, dtype in zip(results, self._dtypes[program], strict=True)]


class MachineCode:
    """A function or a module that IREE compiled."""

    def __instead__(self) -> str:
        """Return what to ask about in place of machine code."""
        return MACHINE_CODE


def not_copied(given: Any, path: str) -> TypeError:
    """Return the error for a copy of what is in a file."""
    return TypeError(
        f"{given!r:.200} can't be copied or pickled: load {path} again, where it is needed, and set its state."
    )


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
    """Return the module ``iree.runtime``.

    Raises
    ------
    ImportError
        If it is not installed.
    """
    try:
        import iree.runtime
    except ModuleNotFoundError as error:
        raise ImportError(
            "iree.runtime is not installed: `pip install iree-base-runtime`, or `pip install 'pytensor_jaxpr_linker[iree]'`.",
            name="iree.runtime",
        ) from error
    return iree.runtime


def configured(runtime: Any, device: str) -> Any:
    """Return the runtime's configuration for a device.

    Raises
    ------
    ValueError
        If this machine has no such device.
    """
    try:
        return runtime.Config(device)
    except Exception as error:  # the runtime raises several types
        drivers = ", ".join(runtime.query_available_drivers())
        raise ValueError(
            f"IREE finds no device {device!r} on this machine: {first_line(error)}. `device` is the name of a driver, as"
            f" `iree-run-module --device` takes it; the runtime has {drivers}, and `iree-run-module --list_devices` lists the devices."
        ) from error


def owned(result: Any, dtype: np.dtype) -> np.ndarray:
    """Return a result of IREE as an array with memory of its own. IREE has no unsigned results, and booleans are bytes."""
    array = np.array(result.to_host() if hasattr(result, "to_host") else result, copy=True)
    if array.dtype == dtype:
        return array
    return array.astype(bool) if dtype.kind == "b" else array.view(dtype)


def first_line(error: Exception) -> str:
    """Return the first line of a message, without the dot at its end."""
    return next(iter(str(error).splitlines()), type(error).__name__).removesuffix(".")
