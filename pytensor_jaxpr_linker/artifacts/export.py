"""`export`: a function into a file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pytensor_jaxpr_linker.artifacts.call_forms import target_and_path
from pytensor_jaxpr_linker.artifacts.exportable import exportable
from pytensor_jaxpr_linker.artifacts.files import check_kind, platforms_of, write_file
from pytensor_jaxpr_linker.artifacts.iree.targets import CompileTarget
from pytensor_jaxpr_linker.artifacts.lowering import PLATFORMS, checked_platforms
from pytensor_jaxpr_linker.artifacts.shapes import Spec, as_texts
from pytensor_jaxpr_linker.base.jax_compat import with_x64_restored


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
    """Write a function into a file that runs with JAX alone, on other machines and accelerators, or without Python (``.vmfb``).

    Parameters
    ----------
    inputs : sequence of Variable, pytensor.compile.executor.Function, or others
        What `as_jax_function` takes: the inputs of a graph; or, without `outputs`, a function compiled with mode JAXPR, one that a
        PyMC model compiled with it, a model (its log density and gradient), or what `as_jax_function` returned.
    outputs : Variable or sequence of Variable
        The outputs of the graph. They may come before the inputs, if it is certain which are which: some output is computed, and no input is.
    path : str or os.PathLike
        The file, as the last argument by position or by its name. One that is there is replaced, when everything else has succeeded. If its name ends in ``.vmfb``, IREE compiles the
        function, for fixed lengths, into a program that needs neither Python nor JAX, see docs/iree.md.
    mode : Mode or str
        Whose rewrites a graph gets.
    dims : dict from str or Variable to str or sequence
        Shapes of inputs: ``{"x": "n, 3"}`` or ``{x: ("n", 3)}``. Each symbol stands for a length of 1 or more. Lengths that are
        equal have one symbol; expressions such as ``"2*n"`` work, and ``"_"`` says nothing.
    examples : sequence, or dict from str or Variable
        Arguments whose shapes the function is for, where `dims` says nothing. A length that neither they nor the type of the input
        says is a symbol of its own: ``x_0`` for axis 0 of ``x``, or the name of the dimension where the type has names.
    static : dict from str or Variable
        Values of inputs that determine shapes: they become part of the program, and are no arguments of it.
    constraints : str or sequence of str
        What is known of the symbols, as in `jax.export.symbolic_shape`: ``"n >= 2"``, ``"n == 2*m"``.
    platforms : sequence of {"cpu", "cuda", "rocm", "tpu"}
        Where it is to run.
    target : {"host", "x86-64", "aarch64", "cuda"}, or sequence of str
        What IREE compiles a ``.vmfb`` file for; a sequence is flags of ``iree-compile``.
    gradient : {"pytensor", "jax"}
        Whose derivatives it has, see `as_jax_function`.
    vjp_order : {0, 1, 2}
        How often JAX can differentiate the loaded function.
    batched : bool
        Whether the file has a second program, for arguments with one more axis: `jax.vmap` of the loaded function calls it.
    checks : bool
        Whether run-time checks raise their exceptions when the function is called. If not, they are taken for true, as
        `as_jax_function` does.
    name : str
        What the function is called, by default the name of the compiled function or of the output.

    Returns
    -------
    jaxpr_artifact.LoadedFunction or jaxpr_artifact.IreeFunction
        The function in the file, as `load` or `load_iree` returns it. Shared variables are its `state`. None if IREE compiled it for another
        target than "host".

    Raises
    ------
    GraphBreakError
        If the graph can't be one XLA program. It lists the nodes that run on the host.
    TypeError
        If `inputs` is none of these, it can't be told which are the inputs, the path is missing, or the value of an input that determines a
        shape is not known.
    ValueError
        If an option has a value that is none, or the name of the file is that of another format.
    NotImplementedError
        If JAX can't lower it for one of the platforms, or IREE lacks an operation that nothing stands for.
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
