"""`export`: a function into a file, for IREE if its name ends in ``.vmfb``, otherwise for JAX."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pytensor.compile.mode import predefined_modes
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable

from jaxpr_artifact import IreeFunction, LoadedFunction
from pytensor_jaxpr_linker.artifacts.exportable import exportable
from pytensor_jaxpr_linker.artifacts.iree import CompileTarget, write_iree
from pytensor_jaxpr_linker.artifacts.shapes import Spec, as_texts
from pytensor_jaxpr_linker.artifacts.writing import PLATFORMS, Exportable, checked_platforms, write_exportable
from pytensor_jaxpr_linker.base.errors import variable_name
from pytensor_jaxpr_linker.base.jax_compat import with_x64_restored
from pytensor_jaxpr_linker.frontend.targets import Target, graph_target, target_of
from pytensor_jaxpr_linker.run.placement import process


@with_x64_restored
def export(
    inputs: Any,
    outputs: Any = None,
    path: str | os.PathLike | None = None,
    *,
    mode: Any = "JAXPR",
    dims: Mapping[str, Spec] | None = None,
    examples: Sequence[Any] | Mapping[str, Any] = (),
    static: Mapping[str, Any] | None = None,
    constraints: str | Sequence[str] = (),
    platforms: Sequence[str] = PLATFORMS,
    target: CompileTarget = "host",
    gradient: Literal["pytensor", "jax"] = "pytensor",
    vjp_order: Literal[0, 1, 2] = 0,
    batched: bool = False,
    checks: bool = True,
    name: str = "",
) -> Any:
    """Write a function into a file that runs with JAX alone, also on other machines, or without Python (``.vmfb``).

    Parameters
    ----------
    inputs : sequence of Variable, pytensor.compile.executor.Function, or others
        As `as_jax_function` takes them: the inputs of a graph; or, without `outputs`, a function compiled with mode
        JAXPR, one that a PyMC model compiled with it, a model (its log density and gradient), or a result of
        `as_jax_function`.
    outputs : Variable or sequence of Variable
        The outputs of the graph. They may come before the inputs if the order is certain: some output is computed, and
        no input is.
    path : str or os.PathLike
        The file, as the last argument by position or by its name. An older file is replaced, when everything else has
        succeeded. If its name ends in ``.vmfb``, IREE compiles the function, for fixed lengths, into a program that
        needs neither Python nor JAX, see docs/iree.md.
    mode : Mode or str
        The mode whose rewrites a graph gets.
    dims : dict from str or Variable to str or sequence
        Shapes of inputs: ``{"x": "n, 3"}`` or ``{x: ("n", 3)}``. Each symbol stands for a length of 1 or more. Equal
        lengths have one symbol; expressions such as ``"2*n"`` work, and ``"_"`` leaves a length open.
    examples : sequence, or dict from str or Variable
        Arguments with the shapes that the function is for, where `dims` has no entry. If neither they nor the type of
        the input give a length, it is a symbol of its own: ``x_0`` for axis 0 of ``x``, or the name of the dimension
        where the type has names.
    static : dict from str or Variable
        Values of inputs that determine shapes: they become part of the program, which does not take them as arguments.
    constraints : str or sequence of str
        Facts about the symbols, as in `jax.export.symbolic_shape`: ``"n >= 2"``, ``"n == 2*m"``.
    platforms : sequence of {"cpu", "cuda", "rocm", "tpu"}
        Where it is to run.
    target : {"host", "x86-64", "aarch64", "cuda"}, or sequence of str
        The target that IREE compiles a ``.vmfb`` file for; a sequence is flags of ``iree-compile``.
    gradient : {"pytensor", "jax"}
        Whose derivatives it has, see `as_jax_function`.
    vjp_order : {0, 1, 2}
        How often JAX can differentiate the loaded function.
    batched : bool
        Whether the file has a second program, for arguments with one more axis. `jax.vmap` of the loaded function calls
        it.
    checks : bool
        Whether run-time checks raise their exceptions when the function is called. If not, they are assumed to pass, as
        in `as_jax_function`.
    name : str
        The name of the function, by default the compiled function's or the output's.

    Returns
    -------
    jaxpr_artifact.LoadedFunction or jaxpr_artifact.IreeFunction
        The function in the file, as `load` or `load_iree` returns it. Shared variables are its `state`. None if IREE
        compiled it for another target than "host".

    Raises
    ------
    GraphBreakError
        If the graph can't be one XLA program. It lists the nodes that run on the host.
    TypeError
        If `inputs` is of another kind, inputs and outputs can't be told apart, the path is missing, or the value of an
        input that determines a shape is unknown.
    ValueError
        If an option has an impossible value, or the name of the file belongs to another format.
    NotImplementedError
        If JAX can't lower it for one of the platforms, or IREE lacks an operation that nothing replaces.
    IreeError
        If IREE's compiler refuses the program, or crashes.

    Examples
    --------
    >>> import tempfile, pytensor, pytensor.tensor as pt
    >>> import pytensor_jaxpr_linker as pjl
    >>> x = pt.vector("x", dtype="float64")
    >>> f = pytensor.function([x], pt.exp(x), mode="JAXPR", name="growth")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     exported = pjl.export(f, f"{folder}/growth.jaxpr", dims={"x": "n"})
    ...     growth = pjl.load(f"{folder}/growth.jaxpr")  # without PyTensor: jaxpr_artifact.load
    >>> growth(x=[0.0, 1.0, 2.0]).round(3)
    array([1.   , 2.718, 7.389])
    """
    if gradient not in ("pytensor", "jax"):
        raise ValueError(f'gradient is "pytensor" or "jax", not {gradient!r}.')
    if vjp_order not in (0, 1, 2):
        raise ValueError(f"vjp_order is 0, 1 or 2, not {vjp_order!r}.")
    platforms = checked_platforms(platforms)
    constraints = as_texts(constraints)
    given, path = target_and_path(inputs, outputs, path, mode)
    check_kind(path)
    found = exportable(
        given,
        platforms=platforms_of(path, platforms),
        dims=dims or {},
        examples=examples,
        static=static or {},
        constraints=constraints,
        gradient=gradient,
        with_derivatives=vjp_order > 0,
        checks=checks,
        name=name,
    )
    return write_file(path, found, platforms, target, vjp_order, batched, constraints)


#: The forms of a call: a function, or a graph in either order of inputs and outputs, and then a path.
HOW = "export(f, 'f.jaxpr'), or export(inputs, outputs, 'f.jaxpr')"


def target_and_path(inputs: Any, outputs: Any, path: Any, mode: Any) -> tuple[Target, str | os.PathLike]:
    """Return the target to export and the path of the file, which may come in place of the outputs.

    Raise a TypeError if the path is missing, or inputs and outputs can't be told apart.
    """
    if isinstance(outputs, str | os.PathLike):
        if path is not None:
            raise TypeError(f"export takes one path, not {os.fspath(outputs)!r} and {path!r:.80}: {HOW}.")
        outputs, path = None, outputs
    if isinstance(path, str) and path in predefined_modes:
        raise TypeError(f"{path!r} is a mode, not the path of a file: {HOW[:-1]}, mode={path!r}).")
    if path is None:
        raise TypeError(f"export needs the path of the file that it writes: {HOW}.")
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"The path of a file is a str or an os.PathLike, not {path!r:.80}: {HOW}.")
    return graph_or_function(inputs, outputs, mode), path


def graph_or_function(inputs: Any, outputs: Any, mode: Any) -> Target:
    """Return the target to export: a function, or a graph whose inputs and outputs are in either order."""
    if outputs is not None and isinstance(inputs, Variable | list | tuple):
        return graph_target(*inputs_and_outputs(inputs, outputs), mode, "export")
    target = target_of(inputs, "export", mode, ", or the inputs and the outputs of a graph")
    if outputs is None:
        return target
    f = target.function
    own = list(target.inputs) if f is None else [given.variable for given in f.maker.inputs if not given.shared]
    if not (isinstance(outputs, list | tuple) and list(map(id, outputs)) == list(map(id, own))):
        names = ", ".join(map(variable_name, own))
        raise TypeError(
            f"The function to export has inputs of its own, ({names}): leave out the second argument, as in"
            " export(f, 'f.jaxpr')."
        )
    return target


def inputs_and_outputs(first: Any, second: Any) -> tuple[Any, Any]:
    """Return the inputs and the outputs of a graph. They are in this order, unless the other one is certain.

    Raise a TypeError if both orders are possible.
    """
    if not are_roots(second):
        return first, second
    if isinstance(first, Variable):  # inputs come in a list
        return second, first
    if not (all(isinstance(v, Variable) for v in first) and any(v.owner is not None for v in first)):
        return first, second
    if all(v in first or isinstance(v, SharedVariable) for v in second):
        raise TypeError(
            "export can't tell which of the two lists are the inputs: both could be. Export the function that"
            " pytensor.function(inputs, outputs, mode='JAXPR') returns."
        )
    return second, first


def are_roots(variables: Any) -> bool:
    """Return whether this is a list of variables that nothing computes: inputs, shared variables."""
    return isinstance(variables, list | tuple) and all(
        isinstance(v, Variable) and v.owner is None and not isinstance(v, Constant) for v in variables
    )


def is_for_iree(path: str | os.PathLike) -> bool:
    """Return whether a path names a file of IREE."""
    return Path(path).suffix.lower() == ".vmfb"


#: Names of formats that `export` does not write.
OTHER_FORMATS = frozenset(
    [".mlir", ".mlirbc", ".onnx", ".pb", ".pt", ".pkl", ".h5", ".json", ".npy", ".npz", ".safetensors", ".irpa"]
)


def check_kind(path: str | os.PathLike) -> None:
    """Raise an error if a path names a folder, a file in a missing folder, or a file of another format."""
    if Path(path).is_dir():
        raise IsADirectoryError(
            f"{os.fspath(path)} is a folder: export writes a file, such as {Path(path, 'f.jaxpr')}."
        )
    if not Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(f"{os.fspath(path)}: the folder {Path(path).parent} is missing.")
    if (suffix := Path(path).suffix.lower()) in OTHER_FORMATS:
        mlir = " Module('m', functions={'f': f}).mlir().save(path) writes MLIR." if suffix.startswith(".mlir") else ""
        raise ValueError(
            f"{os.fspath(path)}: export does not write {suffix} files. A name that ends in .jaxpr is for JAX, one in"
            f" .vmfb for IREE.{mlir}"
        )


def platforms_of(path: str | os.PathLike, platforms: Sequence[str]) -> Sequence[str]:
    """Return the platforms that a function is planned for: IREE takes what JAX emits for a CPU, whatever the target."""
    return ("cpu",) if is_for_iree(path) else platforms


def write_file(
    path: str | os.PathLike,
    given: Exportable,
    platforms: Sequence[str],
    target: CompileTarget,
    vjp_order: int = 0,
    batched: bool = False,
    constraints: Sequence[str] = (),
) -> LoadedFunction | IreeFunction | None:
    """Write a function, and return the function in the file; None if it is for another machine.

    Raise a TypeError if an option is for another kind of file.
    """
    process.start()  # lowering has threads, too
    if not is_for_iree(path):
        if target != "host":
            raise TypeError(f"target={target!r} is for files of IREE, whose names end in .vmfb; others have platforms.")
        return write_exportable(path, given, platforms, vjp_order, batched, constraints)
    options = {"platforms": tuple(platforms) != PLATFORMS, "vjp_order": vjp_order, "batched": batched}
    if wrong := [name for name, is_given in options.items() if is_given]:
        raise TypeError(
            f"{wrong[0]} is for files of JAX. A .vmfb file holds one program: export the gradient, or a function of a"
            " batch, as a function of its own, and say where it runs by target."
        )
    return write_iree(path, given, target)
