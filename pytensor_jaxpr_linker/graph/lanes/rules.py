"""How each Op takes operands with lanes. The index Ops are in `masks` and `slices`.

A rule takes the selections of the graph, a node and its operands. It returns the outputs, or None if the Op must know
the length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import ARange, MakeVector
from pytensor.tensor.math import MulWithoutZeros
from pytensor.tensor.shape import Shape_i
from pytensor.tensor.type_other import NoneConst, NoneTypeT

from pytensor_jaxpr_linker.base.errors import empty_reduction
from pytensor_jaxpr_linker.graph.lanes.graph_selections import GraphSelections
from pytensor_jaxpr_linker.graph.lanes.lanes import (
    Lanes,
    Operand,
    common_lanes,
    filled,
    first_lanes,
    for_all_lanes,
    has_lanes,
    moved_together,
    padded_like,
    padded_together,
    plain,
    refilled,
    selected_lanes,
)
from pytensor_jaxpr_linker.graph.lanes.ops import DynamicUpdate, only_output
from pytensor_jaxpr_linker.graph.lanes.selection import ONE, ZERO, PaddedRun, Run, value_key
from pytensor_jaxpr_linker.graph.lanes.slices import block_at

# -- each lane by itself -----------------------------------------------------------------------------------------------


def elementwise_lanes(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Elementwise Ops: the operands have the same lanes, or one element for all of them."""
    operands = moved_together(operands, "Incompatible Elemwise input shapes: slices of different lengths")
    operands = padded_together(operands)
    first = common_lanes(operands)
    return None if first is None else for_all_lanes(node, operands, first.selection, first.axis)


def blockwise_lanes(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Blockwise Ops, if lanes are batches. Copies of an active batch raise no error that this batch does not raise."""
    if first_lanes(operands).axis >= node.op.batch_ndim(node):
        return None
    operands = padded_together(operands)
    first = common_lanes(operands)
    if first is None or not first.selection.never_empty:
        return None
    return for_all_lanes(node, operands, first.selection, first.axis)


def copied_lanes(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Copies and views."""
    x, (old,) = first_lanes(operands), node.outputs
    copied = partial(only_output, node.op)
    return [Lanes(x.selection, x.axis, old, lambda: copied(x.filled), lambda: copied(x.compact))]


def checked(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Checks, which pass on their first operand."""
    x, *conditions = operands
    if not isinstance(x, Lanes) or any(isinstance(v, Lanes) for v in conditions):
        return None
    return for_all_lanes(node, operands, x.selection, x.axis)


def specified(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """`SpecifyShape`, if it says nothing about the length of the lanes, or only known facts."""
    x, *lengths = operands
    if not isinstance(x, Lanes) or any(isinstance(v, Lanes) for v in lengths):
        return None
    run, length = x.selection, plain(lengths[x.axis])
    if not isinstance(length.type, NoneTypeT):
        if not isinstance(run, PaddedRun) or (value_key(length) != run.length and length is not run.count):
            return None
        lengths[x.axis] = NoneConst
    return for_all_lanes(node, [x, *lengths], run, x.axis)


def permuted(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """A permutation of axes that keeps the axis of lanes."""
    x = first_lanes(operands)
    if x.axis not in node.op.new_order:
        return None
    return for_all_lanes(node, operands, x.selection, node.op.new_order.index(x.axis))


def joined_lanes(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Arrays that all have the same lanes, joined along another axis; or a padded one and others, along its own."""
    if node.op.axis == first_lanes(operands).axis:
        return joined_with_blocks(node, operands)
    operands = padded_together(operands)
    first = common_lanes(operands)
    if first is None or not all(isinstance(x, Lanes) for x in operands):
        return None
    return for_all_lanes(node, operands, first.selection, first.axis)


def at_mask(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """`FillLanes` and `WriteLanes`: a mask with the same lanes selects some of them."""
    x, *values, mask = operands
    if not isinstance(x, Lanes) or not isinstance(mask, Lanes) or getattr(node.op, "is_compact", False):
        return None
    selection = x.selection
    if mask.ndim != 1 or mask.selection is not selection or x.axis != node.op.axis:
        return None
    if not all(has_lanes(y, selection, x.ndim - x.axis) for y in values):
        return None
    return for_all_lanes(node, operands, selection, x.axis)


# -- sorting -----------------------------------------------------------------------------------------------------------


def sorted_lanes(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """`SortOp` and `ArgSortOp`: inactive lanes hold the element that sorts last. Sorts are stable."""
    x, axis = first_lanes(operands), sorted_axis_of(node)
    if axis is None:
        return None
    if x.axis != axis:
        return for_all_lanes(node, operands, x.selection, x.axis)
    if not isinstance(x.selection, PaddedRun) or (last := sorted_last(x.filled.type.dtype)) is None:
        return None
    (new,) = node.clone_with_new_inputs([x.with_neutral(last), *map(filled, operands[1:])], strict=False).outputs
    return refilled(node, new, x.selection, axis)


def sorted_axis_of(node: Apply) -> int | None:
    """Return the axis of a sort: PyTensor 3.3.0 has it among the operands, later versions in the Op."""
    if len(node.inputs) == 1:
        return int(node.op.axis)
    axis = node.inputs[1]
    return int(axis.data) % node.inputs[0].type.ndim if isinstance(axis, Constant) else None


def sorted_last(dtype: str) -> float | int | bool | None:
    """Return the element of a dtype that sorts last, or None for complex numbers."""
    kind = np.dtype(dtype).kind
    return np.nan if kind == "f" else True if kind == "b" else None if kind == "c" else np.iinfo(dtype).max


# -- joining and splitting ---------------------------------------------------------------------------------------------


def joined_with_blocks(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """`Join` along a padded axis of one array with others of known lengths: the joined axis is padded, too."""
    axis, x = node.op.axis, first_lanes(operands)
    i = operands.index(x)
    lengths = [None if isinstance(y, Lanes) else y.type.shape[axis] for y in operands]
    lengths[i] = 0
    if not isinstance(x.selection, PaddedRun) or x.axis != axis or None in lengths:
        return None
    before, after = sum(lengths[:i]), sum(lengths[i:])  # type: ignore[arg-type]

    def fill() -> Variable:
        joined: Any
        (joined,) = node.clone_with_new_inputs([filled(y) for y in operands], strict=False).outputs
        if not after:
            return joined
        # Behind the padding these are copies of lanes. The lanes themselves follow the active ones.
        block = joined[(*[slice(None)] * axis, slice(-after, None))]
        start = pt.add(x.selection.count, before)
        return only_output(DynamicUpdate((axis,), True), joined, block, start, pt.constant(after, dtype="int64"))

    return [Lanes(x.selection.shorter(-before - after), axis, node.outputs[0], fill)]


def split_lanes(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """`Split` of a padded axis, all parts but one of known lengths, as in gradients of `Join`; or of another axis."""
    x, sizes = operands
    if not isinstance(x, Lanes) or isinstance(sizes, Lanes):
        return None
    if x.axis != (axis := node.op.axis):
        return for_all_lanes(node, operands, x.selection, x.axis)
    parts = sizes.owner.inputs if sizes.owner is not None and isinstance(sizes.owner.op, MakeVector) else []
    lengths = [int(v.data) if isinstance(v, Constant) else None for v in parts]
    if not isinstance(x.selection, PaddedRun) or lengths.count(None) != 1 or min((n or 0) for n in lengths) < 0:
        return None
    i = lengths.index(None)
    before, after = sum(n or 0 for n in lengths[:i]), sum(n or 0 for n in lengths[i:])
    run, all_lanes = x.selection.shorter(before + after), cast("Any", x.filled)
    open_part = all_lanes[(*[slice(None)] * axis, slice(before, -after or None))]
    if parts[i] is not run.count:
        check = CheckAndRaise(ValueError, "Split sizes do not sum to the length of the axis")
        open_part = only_output(check, open_part, pt.eq(parts[i], run.count))
    found: list[Operand] = []
    for place, (n, old) in enumerate(zip(lengths, node.outputs, strict=True)):
        if n is None:
            found.append(selected_lanes(open_part, run, run.flat, axis, old))
        else:
            offset = sum(n or 0 for n in lengths[:place])
            start = pt.constant(offset, dtype="int64") if place < i else pt.add(run.count, offset)
            found.append(block_at(x, start, n))
    return found


# -- lengths -----------------------------------------------------------------------------------------------------------


def one_length(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """`Shape_i`."""
    return [lanes_length(first_lanes(operands), node.op.i)]


def all_lengths(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """`Shape`."""
    x = first_lanes(operands)
    return [only_output(MakeVector("int64"), *(lanes_length(x, i) for i in range(x.ndim)))]


def lanes_length(x: Lanes, axis: int) -> Variable:
    """Return the length of one axis."""
    return x.selection.count if axis == x.axis else only_output(Shape_i(axis), x.filled)


def allocated(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """`Alloc` of a length that is the count of a selection, as in gradients. The value may have these lanes already."""
    value, lengths = operands[0], [plain(x) for x in operands[1:]]
    counted = {axis: found for axis, n in enumerate(lengths) if (found := known.counted(n)) is not None}
    if len(counted) != 1:
        return None
    ((axis, selection),) = counted.items()
    if not has_lanes(value, selection, len(lengths) - axis):
        return None
    all_lanes = [*lengths[:axis], only_output(Shape_i(0), selection.flat), *lengths[axis + 1 :]]

    def fill() -> Variable:
        result = only_output(node.op, filled(value), *all_lanes)
        if selection.count is lengths[axis]:
            return result
        # The proof that both lengths are equal is about integers. The integers of a program wrap around.
        return only_output(CheckAndRaise(ValueError, WRAPPED), result, pt.eq(selection.count, lengths[axis]))

    return [Lanes(selection, axis, node.outputs[0], fill, lambda: only_output(node.op, plain(value), *lengths))]


#: The message where two lengths differ that were proved to be equal.
WRAPPED = "the length of an array is not that of the slice it belongs to: an index of the slice is too large for int64"


def numbered(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """``arange(count)`` of a padded axis: the positions of its lanes."""
    start, stop, step = map(plain, operands)
    run = known.counts.get(stop)
    if not isinstance(run, Run) or (value_key(start), value_key(step)) != (0, 1):
        return None
    (old,) = node.outputs

    def fill() -> Variable:
        last = pt.sub(run.count, 1)
        return pt.minimum(only_output(ARange("int64"), ZERO, run.n, ONE), last).astype(old.type.dtype)

    return [Lanes(run, 0, old, fill)]


# -- all lanes together ------------------------------------------------------------------------------------------------


def lowest(dtype: np.dtype) -> Any:
    """Return the lowest number of a dtype."""
    return -np.inf if dtype.kind == "f" else False if dtype.kind == "b" else np.iinfo(dtype).min


def highest(dtype: np.dtype) -> Any:
    """Return the highest number of a dtype."""
    return np.inf if dtype.kind == "f" else True if dtype.kind == "b" else np.iinfo(dtype).max


#: Returns the element of a dtype that changes nothing in a reduction, by scalar Op.
NEUTRAL: dict[type, Callable[[np.dtype], Any]] = {
    ps.Add: lambda dtype: 0,
    ps.AND: lambda dtype: np.invert(np.zeros((), dtype)),
    ps.Maximum: lowest,
    ps.Minimum: highest,
    ps.Mul: lambda dtype: 1,
    ps.OR: lambda dtype: 0,
    ps.XOR: lambda dtype: 0,
    MulWithoutZeros: lambda dtype: 0,  # zeros are left out
}


def neutral_element(scalar_op: ps.ScalarOp, dtype: str) -> Any:
    """Return the element that changes nothing in a reduction, or None, since complex numbers have no order."""
    found = next((NEUTRAL[t] for t in type(scalar_op).__mro__ if t in NEUTRAL), None)
    is_ordered = not dtype.startswith("complex") or found not in (lowest, highest)
    return found(np.dtype(dtype)) if found is not None and is_ordered else None


def along_other_axes(node: Apply, x: Lanes, axes: Sequence[int]) -> list[Operand]:
    """Return the output of a reduction of axes other than the axis of lanes."""
    return for_all_lanes(node, [x], x.selection, x.axis - sum(axis < x.axis for axis in axes))


def reduced(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Reductions: inactive lanes hold the neutral element."""
    x, op = first_lanes(operands), node.op
    axes = range(x.ndim) if op.axis is None else op.axis
    if x.axis not in axes:
        return along_other_axes(node, x, axes)
    neutral = neutral_element(op.scalar_op, x.filled.type.dtype)
    if neutral is None:
        return None
    (result,) = node.clone_with_new_inputs([x.with_neutral(neutral)], strict=False).outputs
    if isinstance(op.scalar_op, ps.Maximum | ps.Minimum) and not getattr(op, "initial", False):
        error = empty_reduction(op.scalar_op.nfunc_spec[0])
        result = only_output(CheckAndRaise(type(error), str(error)), result, pt.gt(x.selection.count, 0))
    return [result]


def position_of_largest(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """`Argmax` of a run, or along another axis."""
    x = first_lanes(operands)
    axes = tuple(range(x.ndim)) if node.op.axis is None else node.op.axis
    if not isinstance(run := x.selection, Run):
        return None
    if x.axis not in axes:
        return along_other_axes(node, x, axes)
    neutral = neutral_element(ps.maximum, x.filled.type.dtype)
    if axes != (x.axis,) or neutral is None:
        return None
    (found,) = node.clone_with_new_inputs([x.with_neutral(neutral)], strict=False).outputs
    # If all active lanes hold the lowest number, too, the first of all lanes is found.
    place = pt.maximum(pt.sub(found, run.start), 0)
    error = CheckAndRaise(ValueError, "attempt to get argmax of an empty sequence")
    return [only_output(error, place, pt.gt(run.count, 0))]


def cumulative_lanes(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Cumulative sums and products of a run, or along another axis: inactive lanes add 0, or multiply by 1."""
    x = first_lanes(operands)
    if not isinstance(x.selection, Run):
        return None
    if x.axis != node.op.axis:
        return for_all_lanes(node, operands, x.selection, x.axis)
    new = only_output(node.op, x.with_neutral(0 if node.op.mode == "add" else 1))
    if x.selection.never_empty:  # behind the last active lane, its value is repeated
        return [Lanes(x.selection, x.axis, node.outputs[0], lambda: new)]
    return refilled(node, new, x.selection, x.axis)


def softmax(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """Softmax and its logarithm, of lanes or along another axis."""
    x = first_lanes(operands)
    if node.op.axis is not None and x.axis not in node.op.axis:
        return for_all_lanes(node, operands, x.selection, x.axis)
    if not x.filled.type.dtype.startswith("float"):
        return None
    (new,) = node.clone_with_new_inputs([x.with_neutral(-np.inf)], strict=False).outputs
    return refilled(node, new, x.selection, x.axis)


def matrix_product_of_lanes(known: GraphSelections, node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """A product of matrices that sums over lanes, or has them as its rows or columns."""
    x, y = operands
    if isinstance(x, Lanes) and x.axis == 1:
        y = padded_like(y, x, 0)
    elif isinstance(y, Lanes) and y.axis == 0:
        x = padded_like(x, y, 1)
    if isinstance(x, Lanes) and isinstance(y, Lanes):
        x, y = moved_together([x, y], "shapes not aligned: slices of different lengths")
        assert isinstance(x, Lanes)
        assert isinstance(y, Lanes)
        if x.selection is not y.selection or (x.axis, y.axis) != (1, 0):
            return None
        return list(node.clone_with_new_inputs([x.with_neutral(0), y.with_neutral(0)], strict=False).outputs)
    if isinstance(x, Lanes) and x.axis == 0:
        return for_all_lanes(node, operands, x.selection, 0)
    if isinstance(y, Lanes) and y.axis == 1:
        return for_all_lanes(node, operands, y.selection, 1)
    return None
