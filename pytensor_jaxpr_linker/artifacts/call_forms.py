"""The forms in which `export` is called: a function, or a graph in either order of inputs and outputs, and then a path."""

from __future__ import annotations

import os
from typing import Any

from pytensor.compile.mode import predefined_modes
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable

from pytensor_jaxpr_linker.base.errors import variable_name
from pytensor_jaxpr_linker.frontend.targets import Target, graph_target, target_of

HOW = "export(f, 'f.jaxpr'), or export(inputs, outputs, 'f.jaxpr')"


def target_and_path(inputs: Any, outputs: Any, path: Any, mode: Any) -> tuple[Target, str | os.PathLike]:
    """Return what is exported, and the path of the file, which may come in place of the outputs.

    Raises
    ------
    TypeError
        If the path is missing, or it can't be told which are the inputs and which the outputs.
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
    return target_asked_for(inputs, outputs, mode), path


def target_asked_for(inputs: Any, outputs: Any, mode: Any) -> Target:
    """Return what is exported: a function, or a graph whose inputs and outputs are in either order."""
    if outputs is None:
        return target_of(inputs, "export", mode, ", or the inputs and the outputs of a graph")
    if isinstance(inputs, Variable | list | tuple):
        return graph_target(*inputs_and_outputs(inputs, outputs), mode, "export")
    target = target_of(inputs, "export", mode, ", or the inputs and the outputs of a graph")
    known = inputs_of_target(target)
    if not (isinstance(outputs, list | tuple) and list(map(id, outputs)) == list(map(id, known))):
        names = ", ".join(map(variable_name, known))
        raise TypeError(
            f"What is exported has inputs of its own, ({names}): leave out the second argument, as in export(f, 'f.jaxpr')."
        )
    return target


def inputs_of_target(target: Target) -> list[Variable]:
    """Return the inputs that a user gave."""
    if (f := target.function) is None:
        return list(target.inputs)
    return [given.variable for given in f.maker.inputs if not given.shared]


def inputs_and_outputs(first: Any, second: Any) -> tuple[Any, Any]:
    """Return the inputs and the outputs of a graph. They are in this order, unless it is certain that they are not.

    Raises
    ------
    TypeError
        If both orders have a meaning.
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
    """Return whether something is a list of variables that nothing computes: inputs, shared variables."""
    return isinstance(variables, list | tuple) and all(
        isinstance(v, Variable) and v.owner is None and not isinstance(v, Constant) for v in variables
    )
