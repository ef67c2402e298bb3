"""Keeps an array of unknown length as all of its lanes and a mask, as long as it only meets Ops that allow it. Uses no JAX.

``log1p(x[m]).sum()`` needs the logarithm of as many elements as `m` selects, a number that a compiled program can't depend on.
The logarithm of all elements is as good, if the sum counts those that are selected: one program for every `m`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np
import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import MakeVector
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot, MulWithoutZeros
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.special import LogSoftmax, Softmax
from pytensor.tensor.subtensor import Subtensor

from pytensor_jaxpr_linker.base.errors import empty_reduction
from pytensor_jaxpr_linker.graph.lanes.ops import Compact, DynamicSlice, FillLanes, WriteLanes, apply


class Selection:
    """Which lanes are used.

    Parameters
    ----------
    mask
        A boolean array, true where they are.
    count
        How many are, if a variable of the graph says so.
    start
        The first of them, if they are the `count` elements of a slice.

    Attributes
    ----------
    keeps
        What becomes of the lanes, by class of Op.
    """

    def __init__(self, mask: Variable, count: Variable | None = None, start: Variable | None = None):
        self.mask, self.start = mask, start
        self.keeps: Mapping[type, Keep] = KEEPS
        self._count = count
        self._along: dict[tuple[int, int], Variable] = {}

    @cached_property
    def count(self) -> Variable:
        """How many lanes are used."""
        if self._count is not None:
            return self._count
        count = pt.sum(self.mask, dtype="int64")
        if self.mask.name:
            count.name = f"{self.mask.name}.sum()"
        return count

    @cached_property
    def flat(self) -> Variable:
        """The mask as a vector."""
        return self.mask if self.mask.type.ndim == 1 else pt.reshape(self.mask, (-1,))

    def along(self, axis: int, ndim: int) -> Variable:
        """Return the mask as an array of `ndim` dimensions that broadcasts along all but `axis`."""
        key = (axis, ndim)
        if key not in self._along:
            self._along[key] = pt.expand_dims(self.flat, [i for i in range(ndim) if i != axis])
        return self._along[key]

    def compact(self, x: Variable, axis: int, mask: Variable) -> Variable:
        """Return those elements of `x` that are used; `mask` indexes `axis` and those that follow."""
        if self.start is not None:
            return apply(DynamicSlice((axis,)), x, self.start, self.count)
        return apply(Compact(axis), x, mask, self.count)


class Lanes:
    """A variable of unknown length along one axis: what it is in all lanes, and which of them are used.

    Parameters
    ----------
    selection
        The lanes that are used.
    axis
        The axis of lanes.
    old
        The variable of the user's graph.
    fill, compact
        Make a variable with all lanes, of which those that are not used repeat one that is, and one with those that are.
    """

    def __init__(
        self,
        selection: Selection,
        axis: int,
        old: Variable,
        fill: Callable[[], Variable],
        compact: Callable[[], Variable] | None = None,
    ):
        self.selection, self.axis, self.old = selection, axis, old
        self._fill, self._compact = fill, compact

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.old.type.ndim

    @cached_property
    def filled(self) -> Variable:
        """The variable with all lanes."""
        return named(self._fill(), self.old)

    @cached_property
    def compact(self) -> Variable:
        """The variable with the lanes that are used."""
        if self._compact is not None:
            return named(self._compact(), self.old)
        return named(self.selection.compact(self.filled, self.axis, self.selection.flat), self.old)

    def used(self, default: float | bool) -> Variable:
        """Return all lanes, with `default` in those that are not used."""
        x = self.filled
        return pt.switch(self.selection.along(self.axis, self.ndim), x, pt.constant(default, dtype=x.type.dtype))


type Operand = Variable | Lanes
type Keep = Callable[[Apply, Sequence[Operand]], list[Operand] | None]


def plain(operand: Operand) -> Variable:
    """Return an operand as a variable of the length that it has in the user's graph."""
    return operand.compact if isinstance(operand, Lanes) else operand


def filled(operand: Operand) -> Variable:
    """Return an operand with all lanes."""
    return operand.filled if isinstance(operand, Lanes) else operand


def named(new: Variable, old: Variable) -> Variable:
    """Give a variable the name and the line of the user's variable that it replaces."""
    if new is not old and new.owner is not None:
        new.name = new.name or old.name
        if trace := getattr(old.tag, "trace", None):
            new.tag.trace = trace
    return new


def select(x: Variable, selection: Selection, axis: int, old: Variable) -> Lanes:
    """Return the elements of `x` at the selection's mask, which indexes `axis` and those that follow."""
    mask = selection.mask
    return Lanes(
        selection,
        axis,
        old,
        lambda: apply(FillLanes(axis), x, mask),
        lambda: selection.compact(x, axis, selection.mask),
    )


def lanes_from_end(x: Variable, selection: Selection, axis: int) -> int:
    """Return which axis, counted from the last, the lanes of `x` are: broadcasting aligns axes there."""
    return (x.type.ndim - selection.mask.type.ndim + 1) - axis


def is_compact(x: Variable, y: Operand, selection: Selection, axis: int) -> bool:
    """Tell whether `y`, to be written to the lanes of `x`, may have as many elements as lanes are used."""
    at = lanes_from_end(x, selection, axis)
    if isinstance(y, Lanes):
        return y.selection is not selection or y.ndim - y.axis != at
    return y.type.ndim >= at and y.type.shape[-at] != 1


def write(x: Variable, y: Operand, selection: Selection, axis: int, is_set: bool) -> Variable:
    """Return `x` with the elements that are selected set to, or incremented by, `y`."""
    if is_compact(x, y, selection, axis):
        y = plain(y)
        at = lanes_from_end(x, selection, axis)
        spread = y.type.ndim >= at and y.type.shape[-at] != 1
        return apply(WriteLanes(axis, is_set, spread), x, y, selection.mask)
    return apply(WriteLanes(axis, is_set, False), x, filled(y), selection.mask)


# -- Ops that take lanes -----------------------------------------------------------------------------------------------


def keep(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Return the outputs of a node of which an operand has lanes, or None if its Op does not allow that."""
    keeps = next(x for x in operands if isinstance(x, Lanes)).selection.keeps
    for op_type in type(node.op).__mro__:
        if (rule := keeps.get(op_type)) is not None:
            return rule(node, operands)
    return None


def with_lanes(node: Apply, operands: Sequence[Operand], selection: Selection, axis: int) -> list[Operand]:
    """Return the outputs of a node computed for all lanes, which they have along `axis`."""
    copied = node.clone_with_new_inputs([filled(x) for x in operands], strict=False)
    return [
        Lanes(selection, axis, old, lambda new=new: new)  # type: ignore[misc]
        for old, new in zip(node.outputs, copied.outputs, strict=True)
    ]


def refilled(node: Apply, new: Variable, selection: Selection, axis: int) -> list[Operand]:
    """Return lanes of which those that are not used hold anything yet."""
    return [Lanes(selection, axis, node.outputs[0], lambda: apply(FillLanes(axis), new, selection.flat))]


def meets(y: Operand, selection: Selection, from_end: int) -> bool:
    """Tell whether `y` has the lanes along an axis, counted from the last, or broadcasts along it."""
    if isinstance(y, Lanes):
        return y.selection is selection and y.ndim - y.axis == from_end
    return y.type.ndim < from_end or y.type.shape[-from_end] == 1


def common_lanes(operands: Sequence[Operand]) -> Lanes | None:
    """Return the first operand with lanes if all have the same along one axis, or one element there for all of them."""
    first = next(x for x in operands if isinstance(x, Lanes))
    for x in operands:
        if isinstance(x, Lanes):
            if x.selection is not first.selection or x.axis != first.axis:
                return None
        elif x.type.shape[first.axis] != 1:
            return None
    return first


def keep_Elemwise(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Elementwise Ops: the operands have the same lanes, or one element for all of them."""
    first = common_lanes(operands)
    return None if first is None else with_lanes(node, operands, first.selection, first.axis)


def keep_DimShuffle(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """A permutation that keeps the axis of lanes."""
    (x,) = operands
    assert isinstance(x, Lanes)
    if x.axis not in node.op.new_order:
        return None
    return with_lanes(node, operands, x.selection, node.op.new_order.index(x.axis))


def keep_CheckAndRaise(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """A value that is passed on."""
    x, *conditions = operands
    if not isinstance(x, Lanes) or any(isinstance(v, Lanes) for v in conditions):
        return None
    return with_lanes(node, operands, x.selection, x.axis)


def keep_Subtensor(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """An index of other axes."""
    x = operands[0]
    assert isinstance(x, Lanes)
    indices = node.op.idx_list
    if x.axis < len(indices) and indices[x.axis] != slice(None):
        return None
    return with_lanes(node, operands, x.selection, x.axis - sum(isinstance(i, int) for i in indices[: x.axis]))


def keep_Shape_i(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """One length."""
    (x,) = operands
    assert isinstance(x, Lanes)
    return [length(x, node.op.i)]


def keep_Shape(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """All lengths."""
    (x,) = operands
    assert isinstance(x, Lanes)
    return [apply(MakeVector("int64"), *(length(x, i) for i in range(x.ndim)))]


def length(x: Lanes, axis: int) -> Variable:
    """Return the length of one axis."""
    return x.selection.count if axis == x.axis else apply(Shape_i(axis), x.filled)


#: What an unused lane is for a reduction, by its scalar Op; None stands for the lowest, or the highest, number there is.
IDENTITIES: dict[type, float | None] = {
    ps.Add: 0,
    ps.Mul: 1,
    ps.Maximum: None,
    ps.Minimum: None,
    ps.AND: -1,
    ps.OR: 0,
    ps.XOR: 0,
    MulWithoutZeros: 0,  # zeros are left out
}


def identity(scalar_op: ps.ScalarOp, dtype: str) -> float | bool | None:
    """Return what changes nothing in a reduction, or None if there is no such number."""
    kind = np.dtype(dtype).kind
    found = next((t for t in type(scalar_op).__mro__ if t in IDENTITIES), None)
    if found is None:
        return None
    value = IDENTITIES[found]
    if value is not None:
        return int(np.iinfo(dtype).max) if value == -1 and kind == "u" else bool(value) if kind == "b" else value
    if kind == "c":
        return None
    is_maximum = found is ps.Maximum
    if kind == "f":
        return -np.inf if is_maximum else np.inf
    if kind == "b":
        return not is_maximum
    info = np.iinfo(dtype)
    return int(info.min if is_maximum else info.max)


def keep_CAReduce(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """A reduction, of lanes or of other axes."""
    (x,) = operands
    assert isinstance(x, Lanes)
    op = node.op
    axes = range(x.ndim) if op.axis is None else op.axis
    if x.axis not in axes:
        return with_lanes(node, operands, x.selection, x.axis - sum(axis < x.axis for axis in axes))
    unused = identity(op.scalar_op, x.filled.type.dtype)
    if unused is None:
        return None
    (result,) = node.clone_with_new_inputs([x.used(unused)], strict=False).outputs
    if isinstance(op.scalar_op, ps.Maximum | ps.Minimum) and not getattr(op, "initial", False):
        error = empty_reduction(op.scalar_op.nfunc_spec[0])
        result = apply(CheckAndRaise(type(error), str(error)), result, pt.gt(x.selection.count, 0))
    return [result]


def keep_Dot(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """A product of matrices that sums over lanes, or has them as its rows or columns."""
    x, y = operands
    if isinstance(x, Lanes) and isinstance(y, Lanes):
        if x.selection is not y.selection or (x.axis, y.axis) != (1, 0):
            return None
        return list(node.clone_with_new_inputs([x.used(0), y.used(0)], strict=False).outputs)
    if isinstance(x, Lanes) and x.axis == 0:
        return with_lanes(node, operands, x.selection, 0)
    if isinstance(y, Lanes) and y.axis == 1:
        return with_lanes(node, operands, y.selection, 1)
    return None


def keep_Softmax(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Softmax and its logarithm, of lanes or along another axis."""
    (x,) = operands
    assert isinstance(x, Lanes)
    if node.op.axis is not None and x.axis not in node.op.axis:
        return with_lanes(node, operands, x.selection, x.axis)
    if not x.filled.type.dtype.startswith("float"):
        return None
    (new,) = node.clone_with_new_inputs([x.used(-np.inf)], strict=False).outputs
    return refilled(node, new, x.selection, x.axis)


#: What becomes of lanes, by class of Op.
KEEPS: dict[type, Keep] = {
    CAReduce: keep_CAReduce,
    CheckAndRaise: keep_CheckAndRaise,
    DimShuffle: keep_DimShuffle,
    Dot: keep_Dot,
    Elemwise: keep_Elemwise,
    LogSoftmax: keep_Softmax,
    Shape: keep_Shape,
    Shape_i: keep_Shape_i,
    Softmax: keep_Softmax,
    Subtensor: keep_Subtensor,
}
