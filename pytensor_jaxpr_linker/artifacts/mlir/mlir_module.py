"""`MlirModule`: a module as MLIR, with its description and its file of parameters."""

from __future__ import annotations

import hashlib
import io
import math
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import jax
import jax.extend.mlir as jax_mlir
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from jaxpr_artifact.descriptions import GlobalDescription, ModuleDescription
from jaxpr_artifact.files import replacing
from jaxpr_artifact.iree import iree_runtime
from pytensor_jaxpr_linker.artifacts.mlir.build import Lower, ModuleSource, module_with_globals, pure_module
from pytensor_jaxpr_linker.artifacts.writing import versions_now, without_source_paths

#: Arrays of more bytes than this are parameters outside the module.
INLINE_BYTES = 2**16


class MlirModule:
    """A module as MLIR, made by `Module.mlir`.

    Attributes
    ----------
    description : ModuleDescription
        Its functions with names, dtypes and shapes of arguments and results, the messages of their checks, and its
        globals with the checksums of the parameters.
    parameters : dict from str to numpy.ndarray
        The values that are not part of the text, by their names in the text. Values on the CPU are not copied.

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
        most = math.inf if inline_bytes is None else inline_bytes
        values = {name: g.value for name, g in source.globals.items()}
        # IREE 3.13 crashes on parameters of complex numbers.
        large = {name: x for name, x in values.items() if x.nbytes > most and x.dtype.kind != "c"}
        self.parameters: Mapping[str, np.ndarray] = large
        with jax.enable_x64(True), without_source_paths():
            self._lowered = {f.name: lower(f.jaxpr, f.name, f.places) for f in source.functions if f.jaxpr is not None}

    @cached_property
    def description(self) -> ModuleDescription:
        """The description of the module, made at the first use, because it reads all parameters."""
        functions, known = tuple(f.description for f in self.source.functions), []
        for name, g in self.source.globals.items():
            parameter = (name, sha256_of(g.value)) if name in self.parameters else (None, None)
            known.append(GlobalDescription(name, g.value.dtype.name, g.value.shape, g.is_key, g.is_mutable, *parameter))
        name, state = self.source.name, tuple(self.source.state)
        return ModuleDescription(name, functions, tuple(known), state, scope=name, versions=versions_now())

    def text(self, locations: bool = False) -> str:
        """Return the whole module as text: `ml_program` globals, and functions of StableHLO that load and store them.

        Parameters
        ----------
        locations : bool
            Whether to name the PyTensor node, and the variable of the user's, that each operation computes.
        """
        return str(self._whole().operation.get_asm(enable_debug_info=locations))

    def bytecode(self) -> bytes:
        """Return the whole module as MLIR bytecode. For another version of StableHLO see `portable`."""
        return bytecode_of(self._whole())

    def pure_text(self) -> str:
        """Return the functions of StableHLO as text, without globals: see `portable`."""
        return str(pure_module(self.source.name, self._lowered))

    def portable(self, version: str | None = None) -> bytes:
        """Return the functions as portable bytecode of StableHLO, for readers of this version and later ones.

        StableHLO has no globals. These functions are pure: they take the arguments and then the globals that they read,
        and return the results, the next values of the globals that they write, and the code of the checks. The
        description lists the globals.

        Parameters
        ----------
        version : str
            A version of StableHLO such as "1.9.0". By default the one of twelve weeks ago.

        Raises
        ------
        ValueError
            If it is not a version, newer than this jaxlib, or too old for it or for a function.
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
        """Write the module, and next to it the description (``.json``) and the parameters, if there are any.

        Parameters
        ----------
        path : str or os.PathLike
            A file that ends with ``.mlir``, for text, or ``.mlirbc``, for bytecode.
        parameters : str or os.PathLike
            A file that ends with ``.irpa`` or ``.safetensors``. By default the name of the module's file, with
            ``.safetensors``.
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
        """Return the whole module for IREE, with locations, and the description in an attribute that IREE keeps."""
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


def numbers_of(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, or raise a ValueError."""
    if not isinstance(version, str) or not re.fullmatch(r"\d+\.\d+\.\d+", version, re.ASCII):
        raise ValueError(f'A version of StableHLO is a text such as "1.9.0", not {version!r}.')
    return tuple(map(int, version.split(".")))


def bytecode_of(module: ir.Module) -> bytes:
    """Return a module as MLIR bytecode."""
    out = io.BytesIO()
    module.operation.write_bytecode(out)
    return out.getvalue()


#: The package that writes each kind of file, and the extra that installs it.
FILE_PACKAGES = {".safetensors": ("safetensors", "export"), ".irpa": ("iree.runtime", "iree")}


def write_parameter_file(path: str | os.PathLike, parameters: Mapping[str, np.ndarray]) -> None:
    """Write arrays into a ``.irpa`` or ``.safetensors`` file, in place of an older one.

    Raise an ImportError if the package that writes such files is missing, or a ValueError for another kind of file.
    """
    kind = Path(path).suffix
    if kind not in FILE_PACKAGES:
        raise ValueError(f"Parameters are written into .irpa or .safetensors files, not {os.fspath(path)!r}.")
    arrays = {name: np.ascontiguousarray(x).reshape(x.shape) for name, x in parameters.items()}
    with replacing(path) as new:
        try:
            if kind == ".irpa":  # a program names an array #flow.parameter.named<"scope"::"name">
                index = iree_runtime().ParameterIndex()
                for name, array in arrays.items():
                    index.add_buffer(name, array.reshape(-1).view(np.uint8))
                index.create_archive_file(os.fspath(new))
            else:
                from safetensors.numpy import save_file

                save_file(arrays, new)
        except ImportError as error:
            package, extra = FILE_PACKAGES[kind]
            raise ImportError(
                f"A {kind} file needs the package {package}: pip install 'pytensor_jaxpr_linker[{extra}]'."
            ) from error


def sha256_of(array: np.ndarray) -> str:
    """Return the SHA-256 of the bytes of an array in files of parameters."""
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8)).hexdigest()
