"""Checks that the results of an emission rule are as its node declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import unwrap
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.type import Type
from pytensor.tensor.linalg.solvers.lstsq import TensorSolve

from pytensor_jaxpr_linker.base.errors import WrongResult, describe_node, user_line, variable_name
from pytensor_jaxpr_linker.base.rules import Rule
from pytensor_jaxpr_linker.base.words import counted


def checked_results(rule: Rule, node: Apply, operands: Sequence[Any], results: Any) -> Sequence[Any]:
    """Return the atoms that a rule returned for a node, as a sequence.

    A `WrongResult` says if their number differs from the number of outputs, or one has another dtype, rank or length
    than its variable.
    """
    outputs = node.outputs
    found = results if isinstance(results, list | tuple) else [results]
    if len(found) != len(outputs):
        raise wrong_result(
            rule, node, f"returned {counted(len(found), 'output')}, but the node has {counted(len(outputs), 'output')}"
        )
    for variable, atom in zip(outputs, found, strict=True):
        aval = getattr(atom, "aval", None)
        if aval is None:
            if hasattr(variable.type, "dtype"):  # a slice has none, nor has `None`
                what = f"returned a {type(atom).__name__} for {output_name(variable)}, which must be an atom"
                raise wrong_result(rule, node, f"{what}: what a function of `prims` returns, or an operand")
        # PyTensor declares a solution of `TensorSolve` a matrix, whatever its rank.
        elif not (fits(variable.type, aval) or isinstance(node.op, TensorSolve)) and declared_operands(node, operands):
            what = f"returned {aval.dtype}{list(aval.shape)} for {output_name(variable)}"
            raise wrong_result(rule, node, f"{what}, which is a {variable.type}")
    return found


def fits(declared: Type, aval: Any) -> bool:
    """Return whether an abstract value has the dtype, the rank and the lengths that a type declares."""
    try:
        dtype, shape = declared.numpy_dtype, declared.shape  # type: ignore[attr-defined]
    except AttributeError:  # a number, or no array
        name = getattr(declared, "dtype", None)
        return name is None or (aval.dtype == np.dtype(name) and not aval.shape)
    if aval.dtype is not dtype and aval.dtype != dtype:
        return False
    found = aval.shape
    if found == shape:
        return True
    if len(found) != len(shape):
        return False
    unknown = shape.count(None)  # most often all: the loop below takes as long as the rest of the rule's check
    return unknown == len(shape) or all(
        n is None or n == m or type(m) is not int  # a symbolic dimension
        for n, m in zip(shape, found, strict=True)
    )


def declared_operands(node: Apply, operands: Sequence[Any]) -> bool:
    """Return whether the operands are as declared. With `trust_input`, arguments may differ, by no fault of a rule."""
    pairs = zip(node.inputs, operands, strict=True)
    return all(fits(v.type, x.aval) for v, x in pairs if hasattr(x, "aval"))


def wrong_result(rule: Rule, node: Apply, what: str) -> WrongResult:
    """Return the error of a rule that returned something else than its node declares."""
    return WrongResult(
        f"The emission rule {rule_name(rule.emit)} {what}. The node is {describe_node(node)}.{user_line(node)}"
    )


def rule_name(emit: Callable[..., Any]) -> str:
    """Return the name of a rule, with the file and the line that define it."""
    code = getattr(unwrap(emit), "__code__", None)
    name = f"{emit.__module__}.{getattr(emit, '__qualname__', type(emit).__name__)}"
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"


def output_name(variable: Variable) -> str:
    """Return the name of an output in messages."""
    node = variable.owner
    number = f" {node.outputs.index(variable)}" if node is not None and len(node.outputs) > 1 else ""
    return variable_name(variable) if variable.name else f"output{number}"
