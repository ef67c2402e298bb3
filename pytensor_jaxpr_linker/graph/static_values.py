"""Evaluates shape arithmetic with NumPy when a region is specialized."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scalar.basic import ScalarOp
from pytensor.tensor.basic import ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.shape import Shape, Shape_i

from pytensor_jaxpr_linker.base.errors import CannotEmit
from pytensor_jaxpr_linker.base.pytensor_compat import IfElse
from pytensor_jaxpr_linker.graph.symbolic_values import AT_RUN_TIME, symbolic_results


class NotStatic(CannotEmit):
    """Only the program can compute a value that follows from symbolic dimensions."""

    def __init__(self) -> None:
        super().__init__(
            "it must know, while the program is built, a value that follows from symbolic dimensions by more than integer"
            " arithmetic; JAX needs a length to be an integer or a symbolic expression"
        )


class StaticValues:
    """The values that are known when a region is specialized, computed on demand and kept.

    `values` are the inputs that key the specialization. `shape_of` gives the shape of a lowered variable.
    """

    def __init__(self, values: Mapping[Variable, Any], shape_of: Callable[[Variable], tuple[int, ...]]):
        self._values: dict[Variable, Any] = dict(values)
        self._shape_of = shape_of

    def __call__(self, variable: Variable) -> Any:
        """Return the value of `variable`: an array, or None or a slice for PyTensor's types of these.

        It is an array of objects if symbolic dimensions of `jax.export` are in it; `NotStatic` if they don't express it.
        """
        stack = [variable]
        while stack:
            v = stack[-1]
            if v in self._values:
                stack.pop()
                continue
            if isinstance(v, Constant):
                self._values[v] = v.data
                continue
            if v.owner is None:
                raise KeyError(v)
            missing = [u for u in operands_of(v) if u not in self._values]
            if missing:
                stack.extend(missing)
            elif isinstance(v.owner.op, IfElse):
                self._values[v] = self._choose(v)
            else:
                self._values.update(zip(v.owner.outputs, self._compute(v.owner), strict=True))
        value = self._values[variable]
        if value is AT_RUN_TIME:
            raise NotStatic
        return value

    def shape(self, variable: Variable) -> tuple[int, ...]:
        """Return the shape of `variable`."""
        if (value := self._values.get(variable)) is not None and value is not AT_RUN_TIME:
            return np.shape(value)
        return self._shape_of(variable)

    def _choose(self, variable: Variable) -> Any:
        """Return the value of an output of `IfElse`: the branches' common value, or the one that the condition chooses."""
        on_true, on_false = (self._values[v] for v in operands_of(variable))
        if np.array_equal(on_true, on_false):
            return on_true
        try:
            return on_true if self(variable.owner.inputs[0]) else on_false
        except KeyError:
            reason = f"a shape is {on_true} if the condition is true and {on_false} if it is false"
            error = CannotEmit(reason, 0)
            error.node = variable.owner
            raise error from None

    def _compute(self, node: Apply) -> list[Any]:
        op = node.op
        if isinstance(op, Shape):
            return [as_value(self.shape(node.inputs[0]), "int64")]
        if isinstance(op, Shape_i):
            return [as_value(self.shape(node.inputs[0])[op.i], "int64")]
        operands = [self._values[v] for v in node.inputs]
        if [x for x in operands if x is AT_RUN_TIME or (type(x) is np.ndarray and x.dtype.hasobject)]:
            return symbolic_results(node, operands, self._values)
        if isinstance(op, Elemwise | ScalarOp) and len(node.outputs) == 1 and node.outputs[0].type.ndim == 0:
            # The scalar Op's own `impl` spares building a ufunc for one number.
            scalar_op = op.scalar_op if isinstance(op, Elemwise) else op
            with np.errstate(all="ignore"):
                return [as_value(scalar_op.impl(*operands), node.outputs[0].type.dtype)]
        if isinstance(op, ScalarFromTensor | TensorFromScalar):
            return [np.asarray(operands[0])]
        return perform(node, operands)


def as_value(value: Any, dtype: str) -> np.ndarray:
    """Return an array of a dtype, or of objects if a number is a symbolic dimension of `jax.export`."""
    array = np.asarray(value)
    return array if array.dtype == object else array.astype(dtype)


def operands_of(variable: Variable) -> list[Variable]:
    """Return the variables whose values determine that of `variable`."""
    op, inputs = variable.owner.op, variable.owner.inputs
    if isinstance(op, Shape | Shape_i):
        return []
    if isinstance(op, IfElse):
        return inputs[1 + variable.owner.outputs.index(variable) :: op.n_outs]
    return inputs


def perform(node: Apply, operands: list[Any]) -> list[Any]:
    """Evaluate `node` with its Op's own `perform`."""
    node.op.prepare_node(node, storage_map=None, compute_map=None, impl="py")
    storage: list[list[Any]] = [[None] for _ in node.outputs]
    node.op.perform(node, operands, storage)
    return [cell[0] for cell in storage]
