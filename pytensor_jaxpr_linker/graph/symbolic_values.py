"""Shape arithmetic with symbolic dimensions of `jax.export`.

Such a dimension overloads Python's operators, and has the methods ``max`` and ``min``, which decide what JAX can decide. So nothing
here imports JAX. A value with a symbolic dimension is an array of objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pytensor.scalar as ps
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import ScalarOp
from pytensor.tensor.basic import Alloc, Join, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor, IncSubtensor, Subtensor

from pytensor_jaxpr_linker.base.rules import Table
from pytensor_jaxpr_linker.graph.lanes.ops import SliceBounds

#: The value of a variable that no symbolic dimension expresses: the program computes it.
AT_RUN_TIME = object()


def is_symbolic(value: Any) -> bool:
    """Return whether a static value has symbolic dimensions."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "O"


def symbolic_results(node: Apply, operands: Sequence[Any], values: Mapping[Variable, Any]) -> list[Any]:
    """Return the values of a node's outputs, of which some operands are symbolic; `AT_RUN_TIME` for what has none.

    `values` are those of the variables before it.
    """
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
    if isinstance(x, int) and isinstance(y, int):
        return max(x, y)
    first, second = dims_in_order(x, y)
    return first.max(second)


def smaller(x: Any, y: Any) -> Any:
    """Return the smaller of two dimensions: symbolic if JAX can't decide."""
    if isinstance(x, int) and isinstance(y, int):
        return min(x, y)
    first, second = dims_in_order(x, y)
    return first.min(second)


def dims_in_order(x: Any, y: Any) -> tuple[Any, Any]:
    """Return two dimensions in one order, the symbolic one first: to JAX ``max(n, m)`` and ``max(m, n)`` are not equal."""
    return (y, x) if isinstance(x, int) or (not isinstance(y, int) and str(y) < str(x)) else (x, y)


def within(x: Any, n: Any) -> Any:
    """Return `x` limited to the positions from 0 to `n`.

    What is left over, ``n - within(x, n)``, is ``within(n - x, n)``: of these two forms, JAX sees only one.
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
    """Return what a condition, 1 or 0, chooses."""
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


def is_not_zero(x: Any) -> Any:
    """Return 1 if `x` is not zero."""
    return 1 - equal(x, 0)


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
        ps.Switch: lambda c, x, y: choice(is_not_zero(c), x, y),
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


def of_scalar_op(op: ScalarOp, node: Apply) -> Numbers | None:
    """Return the function that computes a scalar Op on arrays of numbers, or None."""
    dtypes = [v.type.dtype for v in node.inputs]
    if any(dtype[0] not in "biu" for dtype in dtypes):
        return None
    compute: Numbers | None
    if isinstance(op, ps.Cast):
        compute = (
            is_not_zero if node.outputs[0].type.dtype == "bool" != dtypes[0] else ARITHMETIC_OF_DIMS.of(ps.Identity)
        )
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

    def apply(x: np.ndarray) -> Any:
        numbers = list(as_objects(x))
        return reduce(compute, numbers) if numbers else identity

    return apply


def moved_elements(count: int) -> Callable[[Any, Apply], Numbers]:
    """Return the rule of an Op that moves the elements of its first `count` operands; the others are indices and shapes."""

    def rule(op: Any, node: Apply) -> Numbers:
        def apply(*operands: Any) -> Any:
            if any(map(is_symbolic, operands[count:])):
                return AT_RUN_TIME
            cell: list[Any] = [None]
            op.perform(node, [*map(as_objects, operands[:count]), *operands[count:]], [cell])
            return cell[0]

        return apply

    return rule


def first_operand(op: Op, node: Apply) -> Numbers:
    """Return the function for an Op that returns its first operand."""
    return lambda x, *_: x


def checked_value(op: CheckAndRaise, node: Apply) -> Numbers:
    """Return the function for an Op that returns its first operand if the others are true, which JAX must decide."""
    return lambda x, *conditions: (
        x if not any(map(is_symbolic, conditions)) and all(map(np.all, conditions)) else AT_RUN_TIME
    )


def of_scalars(op: Op, node: Apply) -> Numbers:
    """Return the function that makes a vector of numbers."""
    return lambda *xs: np.array([as_objects(x).item() for x in xs], object)


def joined(op: Join, node: Apply) -> Numbers:
    """Return the function that joins arrays."""
    return lambda *xs: np.concatenate([as_objects(x) for x in xs], op.axis)


def cumulated(op: CumOp, node: Apply) -> Numbers:
    """Return the function of a running sum or product."""
    step = np.frompyfunc(ARITHMETIC_OF_DIMS[ps.Add if op.mode == "add" else ps.Mul], 2, 1)
    return lambda x: step.accumulate(as_objects(x), op.axis, dtype=object)


#: How a node with symbolic operands is evaluated, by Op: a function of the Op and the node to one of the values, or to None.
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
        Join: joined,
        MakeVector: of_scalars,
        Reshape: moved_elements(1),
        ScalarFromTensor: first_operand,
        ScalarOp: of_scalar_op,
        SpecifyShape: first_operand,
        Subtensor: moved_elements(1),
        TensorFromScalar: first_operand,
    }
)
