"""`MlirModule`: a module as MLIR, with what describes it and the parameters beside it."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import jax.extend.mlir as jax_mlir
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from jaxpr_artifact.module_header import GlobalDescription, ModuleDescription
from jaxpr_artifact.replacing import replacing
from pytensor_jaxpr_linker.artifacts.mlir.build import Lower, lowered_functions, module_with_globals, pure_module
from pytensor_jaxpr_linker.artifacts.mlir.parameters import sha256_of, write_parameter_file
from pytensor_jaxpr_linker.artifacts.mlir.source import GlobalSource, ModuleSource
from pytensor_jaxpr_linker.artifacts.writing import versions_now

#: Arrays of more bytes than this are parameters beside the module.
INLINE_BYTES = 2**16


class MlirModule:
    """A module as MLIR: what `Module.mlir` returns.

    Attributes
    ----------
    description : ModuleDescription
        Its functions with names, dtypes and shapes of what they take and return, the messages of their checks, and its globals with the
        checksums of the parameters.
    parameters : dict from str to numpy.ndarray
        The values that are not part of the text, by the names by which it asks for them. They are no copies where they are on the CPU.

    Examples
    --------
    >>> import pytensor, pytensor.tensor as pt
    >>> import pytensor_jaxpr_linker as pjl
    >>> count, by = pytensor.shared(0, name="count"), pt.lscalar("by")
    >>> m = pjl.Module("counter", functions={"advance": pjl.public([by], updates={count: count + by})})
    >>> print(m.mlir())  # doctest: +ELLIPSIS
    module @counter {
      "ml_program.global"() {is_mutable, sym_name = "count", ... value = dense<0> : tensor<i64>} : () -> ()
      func.func public @advance(%arg0: tensor<i64>) {
        %0 = "ml_program.global_load"() {global = @count} : () -> tensor<i64>
        %1 = call @advance.body(%arg0, %0) : (tensor<i64>, tensor<i64>) -> tensor<i64>
        "ml_program.global_store"(%1) {global = @count} : (tensor<i64>) -> ()
        return
      }
      func.func public @get_count() -> tensor<i64> {
        ...
    <BLANKLINE>
    """

    def __init__(self, source: ModuleSource, lower: Lower, inline_bytes: int | None = INLINE_BYTES):
        self.source = source
        self.parameters: Mapping[str, np.ndarray] = {
            name: given.value for name, given in source.globals.items() if is_external(given.value, inline_bytes)
        }
        self._lowered = lowered_functions(source, lower)

    @cached_property
    def description(self) -> ModuleDescription:
        """What the module says of itself, made when it is first asked for: that reads all parameters."""
        functions = tuple(f.description for f in self.source.functions)
        known = tuple(self._described(g) for g in self.source.globals.values())
        name, state = self.source.name, tuple(self.source.state)
        return ModuleDescription(name, functions, known, state, scope=name, versions=versions_now())

    def _described(self, given: GlobalSource) -> GlobalDescription:
        """Return the description of a global."""
        name, value = given.name, given.value
        parameter = (name, sha256_of(value)) if name in self.parameters else (None, None)
        return GlobalDescription(name, value.dtype.name, value.shape, given.is_key, given.is_mutable, *parameter)

    def text(self, locations: bool = False) -> str:
        """Return the whole module as text: globals of the dialect `ml_program`, and functions of StableHLO that load and store them.

        Parameters
        ----------
        locations : bool
            Whether to say of each operation which PyTensor node, and which variable of the user's, it computes.
        """
        return str(self._whole().operation.get_asm(enable_debug_info=locations))

    def bytecode(self) -> bytes:
        """Return the whole module as MLIR bytecode. For another version of StableHLO see `portable`."""
        return bytecode_of(self._whole())

    def pure_text(self) -> str:
        """Return the functions of StableHLO as text, without globals: see `portable`."""
        return str(pure_module(self.source.name, self._lowered))

    def portable(self, version: str | None = None) -> bytes:
        """Return the functions as portable bytecode of StableHLO, which readers of this version and later ones understand.

        StableHLO has no globals. These functions are pure: they take the arguments and then the globals that the description says they
        read, and return the results, the next values of the globals that they write, and the code of the checks.

        Parameters
        ----------
        version : str
            A version of StableHLO such as "1.9.0". By default the one of twelve weeks ago.

        Raises
        ------
        ValueError
            If the version is none, newer than this jaxlib, or too old for it or for a function.
        """
        requirement = stablehlo.StablehloCompatibilityRequirement.WEEK_12
        wanted = stablehlo.get_version_from_compatibility_requirement(requirement) if version is None else version
        first, last = stablehlo.get_minimum_version(), stablehlo.get_current_version()
        refused = f"The functions can't be written in version {wanted} of StableHLO"
        if numbers_of(wanted) > numbers_of(last):  # jaxlib would write its own version
            raise ValueError(f"{refused}: this jaxlib writes {first} to {last}.")
        module = bytecode_of(pure_module(self.source.name, self._lowered))
        try:
            return jax_mlir.serialize_portable_artifact(module, wanted)
        except Exception as error:  # jaxlib's own types
            reason = str(error).splitlines()[0]
            raise ValueError(f"{refused}: {reason} This jaxlib writes {first} to {last}.") from error

    def save(self, path: str | os.PathLike, parameters: str | os.PathLike | None = None) -> None:
        """Write the module, and beside it the description (``.json``) and the parameters, if there are any.

        Parameters
        ----------
        path : str or os.PathLike
            A file that ends with ``.mlir``, for text, or ``.mlirbc``, for bytecode.
        parameters : str or os.PathLike
            A file that ends with ``.irpa`` or ``.safetensors``. By default the name of the module's file, with ``.safetensors``.
        """
        path = Path(path)
        if path.suffix not in (".mlir", ".mlirbc"):
            raise ValueError(f"A module is written into a .mlir or .mlirbc file, not {os.fspath(path)!r}.")
        with replacing(path) as new, replacing(path.with_suffix(".json")) as described:
            new.write_bytes(self.text().encode() if path.suffix == ".mlir" else self.bytecode())
            described.write_text(self.description.as_text(indent=1) + "\n", encoding="ascii")
            if self.parameters:
                write_parameter_file(parameters or path.with_suffix(".safetensors"), self.parameters)

    def text_with_description(self, target: str) -> str:
        """Return the whole module for a compiler: with locations, and with the description in an attribute that IREE keeps."""
        described = replace(self.description, target=target, versions=versions_now(IREE="iree-base-compiler"))
        whole = self._whole(described.as_text())
        return str(whole.operation.get_asm(enable_debug_info=True))

    def _whole(self, description: str | None = None) -> ir.Module:
        """Return the whole module, in a context that ends with it."""
        return module_with_globals(self.source, self._lowered, self.parameters.keys(), description)

    def __contains__(self, text: str) -> bool:
        return text in self.text()

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        functions = ", ".join(f.name for f in self.source.functions)
        return f"<MLIR of module {self.source.name}: {functions}; {len(self.parameters)} parameters beside it>"


def is_external(value: np.ndarray, inline_bytes: int | None) -> bool:
    """Return whether a value stays out of the module. IREE 3.13 has no parameters of complex numbers: its compiler crashes."""
    return inline_bytes is not None and value.nbytes > inline_bytes and value.dtype.kind != "c"


def numbers_of(version: str) -> tuple[int, ...]:
    """Return the numbers of a version.

    Raises
    ------
    ValueError
        If it is none.
    """
    if not isinstance(version, str) or not re.fullmatch(r"\d+\.\d+\.\d+", version, re.ASCII):
        raise ValueError(f'A version of StableHLO is a text such as "1.9.0", not {version!r}.')
    return tuple(map(int, version.split(".")))


def bytecode_of(module: ir.Module) -> bytes:
    """Return a module as MLIR bytecode."""
    out = io.BytesIO()
    module.operation.write_bytecode(out)
    return out.getvalue()
