"""Evaluates shape arithmetic when a region is specialized: with NumPy, or with symbolic dimensions of `jax.export`.

A symbolic dimension overloads Python's operators, and has the methods ``max`` and ``min``, which decide what JAX can
decide. So nothing here imports JAX. A value with a symbolic dimension is an array of objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pytensor.scalar as ps
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import Alloc, Join, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor, IncSubtensor, Subtensor

from pytensor_jaxpr_linker.base.errors import CannotEmit
from pytensor_jaxpr_linker.base.pytensor_compat import IfElse
from pytensor_jaxpr_linker.base.rules import Table
from pytensor_jaxpr_linker.graph.lanes.ops import SliceBounds


class NotStatic(CannotEmit):
    """Only the program can compute a value that follows from symbolic dimensions."""

    def __init__(self) -> None:
        super().__init__(
            "it must know, while the program is built, a value that follows from symbolic dimensions by more than"
            " integer arithmetic; JAX needs a length to be an integer or a symbolic expression"
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

        It is an array of objects if it has symbolic dimensions. If these don't express it, raise `NotStatic`.
        """
        stack = [variable]
        while stack:
            v = stack[-1]
            if v in self._values:
                stack.pop()
            elif isinstance(v, Constant):
                self._values[v] = v.data
            elif v.owner is None:
                raise KeyError(v)
            elif missing := [u for u in operands_of(v) if u not in self._values]:
                stack += missing
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
        """Return the value of an output of `IfElse`: the common value of the branches, or the chosen one."""
        on_true, on_false = (self._values[v] for v in operands_of(variable))
        if np.array_equal(on_true, on_false):
            return on_true
        try:
            return on_true if self(variable.owner.inputs[0]) else on_false
        except KeyError:
            error = CannotEmit(f"a shape is {on_true} if the condition is true and {on_false} if it is false", 0)
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
        if isinstance(op, Elemwise | ps.ScalarOp) and len(node.outputs) == 1 and node.outputs[0].type.ndim == 0:
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
    """Return the variables whose values determine the value of `variable`."""
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


# -- symbolic dimensions -----------------------------------------------------------------------------------------------

#: The value of a variable that no symbolic dimension expresses: the program computes it.
AT_RUN_TIME = object()


def is_symbolic(value: Any) -> bool:
    """Return whether a static value has symbolic dimensions."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "O"


def symbolic_results(node: Apply, operands: Sequence[Any], values: Mapping[Variable, Any]) -> list[Any]:
    """Return the values of a node with symbolic operands, or `AT_RUN_TIME`; `values` has the variables before it."""
    if any(x is AT_RUN_TIME for x in operands) or any(v.type.dtype[0] not in "biu" for v in node.outputs):
        return [AT_RUN_TIME] * len(node.outputs)
    if isinstance(node.op, SliceBounds):
        return [as_static(n, "int64") for n in start_and_length(*(as_objects(x).item() for x in operands))]
    make = VALUES.of(type(node.op)) if len(node.outputs) == 1 else None
    rule = None if make is None else make(node.op, node)
    if rule is None:
        return [AT_RUN_TIME] * len(node.outputs)
    found = simple_choice(node, operands, values)
    return [as_static(rule(*operands) if found is None else found, node.outputs[0].type.dtype)]


def as_static(value: Any, dtype: str) -> Any:
    """Return an array of a dtype, or of objects if a number is symbolic."""
    if value is AT_RUN_TIME:
        return value
    array = np.asarray(value, object)
    return array.astype(dtype) if all(isinstance(n, int | np.integer) for n in array.flat) else array


# -- numbers -----------------------------------------------------------------------------------------------------------


def larger(x: Any, y: Any) -> Any:
    """Return the larger of two dimensions: symbolic if JAX can't decide."""
    first, second = dims_in_order(x, y)
    return max(x, y) if isinstance(first, int) else first.max(second)


def smaller(x: Any, y: Any) -> Any:
    """Return the smaller of two dimensions: symbolic if JAX can't decide."""
    first, second = dims_in_order(x, y)
    return min(x, y) if isinstance(first, int) else first.min(second)


def dims_in_order(x: Any, y: Any) -> tuple[Any, Any]:
    """Return two dimensions, a symbolic one first, in one order: JAX tells ``max(n, m)`` from ``max(m, n)``."""
    return (y, x) if isinstance(x, int) or (not isinstance(y, int) and str(y) < str(x)) else (x, y)


def within(x: Any, n: Any) -> Any:
    """Return `x` limited to the positions from 0 to `n`.

    The rest, ``n - within(x, n)``, is ``within(n - x, n)``. JAX must see one of these two forms only.
    """
    simpler = min(x, n - x, key=lambda e: (len(str(e)), str(e)))
    limited = smaller(larger(simpler, 0), n)
    return limited if simpler is x else n - limited


def is_at_least(x: Any, y: Any) -> Any:
    """Return 1 if ``x >= y``, else 0: a number if JAX can decide it, else a dimension that is 1 or 0 at run time."""
    return smaller(larger(x - y + 1, 0), 1)


def equal(x: Any, y: Any) -> Any:
    """Return 1 if ``x == y``, else 0."""
    return is_at_least(x, y) * is_at_least(y, x)


def choice(condition: Any, on_true: Any, on_false: Any) -> Any:
    """Return the number that a condition, 1 or 0, chooses."""
    return on_false + condition * (on_true - on_false)


def start_and_length(start: Any, stop: Any, n: Any) -> tuple[Any, Any]:
    """Return where ``x[start:stop]`` starts, and its length."""
    low, high = (choice(is_at_least(-1, b), larger(b + n, 0), smaller(b, n)) for b in (start, stop))
    return low, larger(high - low, 0)


#: The difference that is not negative if a comparison holds.
DIFFERENCES: Table[Callable[[Any, Any], Any]] = Table(
    {
        ps.GE: lambda x, y: x - y,
        ps.GT: lambda x, y: x - y - 1,
        ps.LE: lambda x, y: y - x,
        ps.LT: lambda x, y: y - x - 1,
    }
)


def simple_choice(node: Apply, operands: Sequence[Any], values: Mapping[Variable, Any]) -> Any:
    """Return a choice by a comparison if it is a maximum or a minimum, else None.

    PyTensor's shapes of slices are full of ``switch(n < 0, 0, n)``: in this form, JAX can compare them.
    """
    if not isinstance(getattr(node.op, "scalar_op", node.op), ps.Switch) or node.outputs[0].type.ndim:
        return None
    comparison = node.inputs[0].owner
    while comparison is not None and isinstance(comparison.op, ScalarFromTensor | TensorFromScalar):
        comparison = comparison.inputs[0].owner
    of_op = None if comparison is None else DIFFERENCES.of(type(getattr(comparison.op, "scalar_op", comparison.op)))
    if of_op is None or any(is_run_time(v, values) for v in comparison.inputs):
        return None
    low = of_op(*(as_objects(values[v]).item() for v in comparison.inputs))
    on_true, on_false = (as_objects(x).item() for x in operands[1:])
    gain = on_true - on_false
    for difference in (low, low + 1):
        if gain == difference:
            return on_false + larger(difference, 0)
        if gain == -difference:
            return on_false - larger(difference, 0)
    return None


def is_run_time(variable: Variable, values: Mapping[Variable, Any]) -> bool:
    """Return whether a number is not known as an integer or a dimension."""
    return variable not in values or values[variable] is AT_RUN_TIME or variable.type.dtype[0] not in "biu"


def quotient(x: Any, y: Any) -> Any:
    """Return the floor of a quotient; PyTensor's is 0 if the divisor is."""
    return 0 if isinstance(y, int) and y == 0 else x // y


def remainder(x: Any, y: Any) -> Any:
    """Return the remainder that belongs to `quotient`."""
    return 0 if isinstance(y, int) and y == 0 else x % y


type Numbers = Callable[..., Any]

#: Integer arithmetic of dimensions, by scalar Op.
ARITHMETIC_OF_DIMS: Table[Numbers] = Table(
    {
        ps.Add: lambda *xs: sum(xs),
        ps.Sub: lambda x, y: x - y,
        ps.Mul: lambda *xs: reduce(lambda x, y: x * y, xs),
        ps.IntDiv: quotient,
        ps.Mod: remainder,
        ps.Neg: lambda x: -x,
        ps.Sqr: lambda x: x * x,
        ps.Abs: lambda x: larger(x, -x),
        ps.Sign: lambda x: is_at_least(x, 1) - is_at_least(-1, x),
        ps.Identity: lambda x: x,
        ps.Maximum: larger,
        ps.Minimum: smaller,
        ps.Clip: lambda x, low, high: smaller(larger(x, low), high),
        ps.GE: is_at_least,
        ps.LE: lambda x, y: is_at_least(y, x),
        ps.GT: lambda x, y: is_at_least(x, y + 1),
        ps.LT: lambda x, y: is_at_least(y, x + 1),
        ps.EQ: equal,
        ps.NEQ: lambda x, y: 1 - equal(x, y),
        ps.Switch: lambda c, x, y: choice(1 - equal(c, 0), x, y),
    }
)

#: The same of conditions, which are 1 or 0.
LOGIC: Table[Numbers] = Table(
    {
        ps.AND: lambda *xs: reduce(lambda x, y: x * y, xs),
        ps.OR: lambda *xs: reduce(larger, xs),
        ps.XOR: lambda x, y: x + y - 2 * x * y,
        ps.Invert: lambda x: 1 - x,
    }
)


def of_scalar_op(op: ps.ScalarOp, node: Apply) -> Numbers | None:
    """Return the function that computes a scalar Op on arrays of numbers, or None."""
    dtypes = [v.type.dtype for v in node.inputs]
    if any(dtype[0] not in "biu" for dtype in dtypes):
        return None
    compute: Numbers | None
    if isinstance(op, ps.Cast):
        is_test = node.outputs[0].type.dtype == "bool" != dtypes[0]
        compute = (lambda x: 1 - equal(x, 0)) if is_test else ARITHMETIC_OF_DIMS[ps.Identity]
    elif isinstance(op, ps.Switch) and dtypes[0] == "bool":
        compute = choice
    else:
        compute = (LOGIC if isinstance(op, ps.UnaryBitOp | ps.BinaryBitOp) else ARITHMETIC_OF_DIMS).of(type(op))
    if compute is None or (LOGIC.of(type(op)) is compute and set(dtypes) != {"bool"}):
        return None
    return lambda *xs: np.frompyfunc(compute, len(xs), 1)(*map(as_objects, xs))


def as_objects(x: Any) -> np.ndarray:
    """Return an array of Python's numbers and dimensions."""
    return np.asarray(np.asarray(x).tolist(), object) if not is_symbolic(x) else x


# -- arrays ------------------------------------------------------------------------------------------------------------


def reduced_value(op: CAReduce, node: Apply) -> Numbers | None:
    """Return the function that reduces an array, or None."""
    compute = of_scalar_op(op.scalar_op, node)
    if compute is None or node.inputs[0].type.ndim != 1:
        return None
    identity = getattr(op.scalar_op, "identity", None)

    return lambda x: reduce(compute, as_objects(x)) if len(x) else identity


def moved_elements(count: int) -> Callable[[Any, Apply], Numbers]:
    """Return the rule of an Op that moves the elements of its first `count` operands, by indices and shapes."""

    def rule(op: Any, node: Apply) -> Numbers:
        def apply(*operands: Any) -> Any:
            if any(map(is_symbolic, operands[count:])):
                return AT_RUN_TIME
            cell: list[Any] = [None]
            op.perform(node, [*map(as_objects, operands[:count]), *operands[count:]], [cell])
            return cell[0]

        return apply

    return rule


def checked_value(op: CheckAndRaise, node: Apply) -> Numbers:
    """Return the function for an Op that returns its first operand if the others are true, which JAX must decide."""
    return lambda x, *conditions: (
        x if not any(map(is_symbolic, conditions)) and all(map(np.all, conditions)) else AT_RUN_TIME
    )


def cumulated(op: CumOp, node: Apply) -> Numbers:
    """Return the function of a running sum or product."""
    step = np.frompyfunc(ARITHMETIC_OF_DIMS[ps.Add if op.mode == "add" else ps.Mul], 2, 1)
    return lambda x: step.accumulate(as_objects(x), op.axis, dtype=object)


#: How a node with symbolic operands is evaluated, by Op: a function of the Op and the node to one of the values, or to
#: None.
VALUES: Table[Callable[[Any, Apply], Numbers | None]] = Table(
    {
        AdvancedIncSubtensor: moved_elements(2),
        AdvancedSubtensor: moved_elements(1),
        Alloc: moved_elements(1),
        CAReduce: reduced_value,
        CheckAndRaise: checked_value,
        CumOp: cumulated,
        DimShuffle: moved_elements(1),
        Elemwise: lambda op, node: of_scalar_op(op.scalar_op, node),
        IncSubtensor: moved_elements(2),
        Join: lambda op, node: lambda *xs: np.concatenate([as_objects(x) for x in xs], op.axis),
        MakeVector: lambda op, node: lambda *xs: np.array([as_objects(x).item() for x in xs], object),
        Reshape: moved_elements(1),
        ps.ScalarOp: of_scalar_op,
        Subtensor: moved_elements(1),
        **dict.fromkeys((ScalarFromTensor, SpecifyShape, TensorFromScalar), lambda op, node: lambda x, *_: x),
    }
)
