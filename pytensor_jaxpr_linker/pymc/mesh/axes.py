"""Which axes of a graph have one length because an operation lines them up.

So an axis may run along observations though no dim says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pytensor.compile.ops import DeepCopyOp, TypeCastingOp
from pytensor.graph.basic import Apply, Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor import subtensor
from pytensor.tensor.basic import Alloc, Join
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.special import LogSoftmax, LogSumExp, Softmax

from pytensor_jaxpr_linker.base.array_types import is_tensor
from pytensor_jaxpr_linker.base.rules import Table
from pytensor_jaxpr_linker.graph.walk import toposort

#: A variable and the number of one of its axes.
type Axis = tuple[Variable, int]
#: The dim of each axis of an array, None for an axis without one.
type Dims = tuple[str | None, ...]

EVERYTHING = slice(None)


def dims_of_axes(
    outputs: Sequence[Variable], named: Mapping[Variable, Dims], preferred: Collection[str]
) -> Callable[[Variable], Dims]:
    """Return a function that says which dims the axes of a variable run along, from the dims that are `named`.

    An operation may line up axes that have different dims, or none. They run along the same one, a `preferred` one if
    there is one. Operations that are not in `LINED_UP` line up nothing: an axis may be left without a dim, but gets
    none that is wrong.
    """
    groups = Groups()
    for node in toposort(outputs, ()):
        if (rule := LINED_UP.of(type(node.op))) is not None:
            for axes in rule(node):
                groups.join([(v, i) for v, i in axes if v.type.shape[i] != 1])
    given = [((v, i), dim) for v, dims in named.items() for i, dim in enumerate(dims) if dim is not None]
    found: dict[Axis, str] = {}
    for axis, dim in sorted(given, key=lambda pair: pair[1] not in preferred):
        found.setdefault(groups.find(axis), dim)

    def dims_of(variable: Variable) -> Dims:
        return tuple(found.get(groups.find((variable, i))) for i in range(variable.type.ndim))

    return dims_of


class Groups:
    """Disjoint sets of axes."""

    def __init__(self) -> None:
        self._parents: dict[Axis, Axis] = {}

    def find(self, axis: Axis) -> Axis:
        """Return the axis that stands for the set of this one."""
        while (parent := self._parents.get(axis, axis)) != axis:
            self._parents[axis] = self._parents.get(parent, parent)  # halves the path
            axis = parent
        return axis

    def join(self, axes: Sequence[Axis]) -> None:
        """Make one set of the sets of several axes."""
        for axis in axes[1:]:
            self._parents[self.find(axis)] = self.find(axes[0])


# -- which axes the operations line up ---------------------------------------------------------------------------------


def elementwise_axes(node: Apply) -> Iterator[Iterable[Axis]]:
    """All operands have the axes of the result."""
    for i in range(node.outputs[0].type.ndim):
        yield [(v, i) for v in (*node.outputs, *node.inputs)]


def last_axes(node: Apply) -> Iterator[Iterable[Axis]]:
    """The last axes of the result are the axes of the first operand."""
    x, out = node.inputs[0], node.outputs[0]
    if is_tensor(x.type) and x.type.ndim <= out.type.ndim:
        for i in range(x.type.ndim):
            yield (x, i), (out, i + out.type.ndim - x.type.ndim)


def shuffled_axes(node: Apply) -> Iterator[Iterable[Axis]]:
    """`DimShuffle`."""
    for i, axis in enumerate(node.op.new_order):
        if axis != "x":
            yield (node.inputs[0], axis), (node.outputs[0], i)


def kept_axes(node: Apply) -> Iterator[Iterable[Axis]]:
    """A reduction keeps the axes that it does not reduce."""
    reduced = range(node.inputs[0].type.ndim) if node.op.axis is None else node.op.axis
    kept = [i for i in range(node.inputs[0].type.ndim) if i not in reduced]
    for i, axis in enumerate(kept):
        yield (node.inputs[0], axis), (node.outputs[0], i)


def batched_axes(node: Apply) -> Iterator[Iterable[Axis]]:
    """`Blockwise`: core axes with one letter in the signature, and axes of batches, which are counted from the last."""
    letters: dict[str | int, list[Axis]] = {}
    for v, core in zip((*node.inputs, *node.outputs), (*node.op.inputs_sig, *node.op.outputs_sig), strict=True):
        batches = v.type.ndim - len(core)
        for i in range(v.type.ndim):
            letters.setdefault(i - batches if i < batches else core[i - batches], []).append((v, i))
    yield from letters.values()


def product_axes(node: Apply) -> Iterator[Iterable[Axis]]:
    """A product of two matrices."""
    (x, y), (out,) = node.inputs, node.outputs
    yield from ([(x, 0), (out, 0)], [(x, 1), (y, 0)], [(y, 1), (out, 1)])


def joined_axes(node: Apply) -> Iterator[Iterable[Axis]]:
    """Arrays that are joined have all axes in common but the one along which they are."""
    for i in range(node.outputs[0].type.ndim):
        if i != node.op.axis:
            yield [(v, i) for v in (*node.outputs, *node.inputs) if v.type.ndim > i]


def indexed_axes(node: Apply) -> Iterator[Iterable[Axis]]:
    """`Subtensor` and `AdvancedSubtensor` keep the axes that they read whole.

    The axes of index arrays stand where the first array is, or in front if a slice is between two of them.
    """
    (x, *flat), (out,) = node.inputs, node.outputs
    entries: list[Any] = [*subtensor.unflatten_index_variables(flat, node.op.idx_list)]
    entries += [EVERYTHING] * (x.type.ndim - len(entries))
    arrays = [i for i, entry in enumerate(entries) if not isinstance(entry, slice)]
    if any(entries[i].type.dtype == "bool" for i in arrays):
        return
    ndim = max((entries[i].type.ndim for i in arrays), default=0)
    first = arrays[0] if arrays and arrays[-1] - arrays[0] + 1 == len(arrays) else 0
    for i in arrays:
        index = entries[i]
        for axis in range(index.type.ndim):
            yield (index, axis), (out, first + ndim - index.type.ndim + axis)
    slices = [i for i, entry in enumerate(entries) if isinstance(entry, slice)]
    for position, i in enumerate(slices):
        if entries[i] == EVERYTHING:
            yield (x, i), (out, position if position < first else position + ndim)


#: Yields the axes that a node of an Op lines up, by class.
LINED_UP: Table[Callable[[Apply], Iterable[Iterable[Axis]]]] = Table(
    {
        Alloc: last_axes,
        Blockwise: batched_axes,
        CAReduce: kept_axes,
        CheckAndRaise: last_axes,
        CumOp: last_axes,
        DeepCopyOp: last_axes,
        DimShuffle: shuffled_axes,
        Dot: product_axes,
        Elemwise: elementwise_axes,
        Join: joined_axes,
        LogSoftmax: last_axes,
        LogSumExp: kept_axes,
        Softmax: last_axes,
        SpecifyShape: last_axes,
        TypeCastingOp: last_axes,
        subtensor.AdvancedIncSubtensor: last_axes,
        subtensor.AdvancedSubtensor: indexed_axes,
        subtensor.IncSubtensor: last_axes,
        subtensor.Subtensor: indexed_axes,
    }
)
