"""Ops for parts of an array whose size depends on values.

PyTensor's own Ops leave the size to NumPy. These take it as an operand, the one value that must be known to build a program, or
return all lanes, so that no value must be known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.tensor.type import TensorType, dmatrix, dvector, iscalar, lscalar

from pytensor_jaxpr_linker.base.errors import mask_mismatch


def only_output(op: Op, *inputs: Variable) -> Variable:
    """Return the only output of an Op."""
    (output,) = op.make_node(*inputs).outputs
    return output


# -- slices ------------------------------------------------------------------------------------------------------------


class SliceBounds(Op):
    """Where ``x[start:stop]`` starts and how long it is, for an axis of length `n`, as NumPy clips bounds."""

    __props__ = ()

    def make_node(self, *inputs: Variable) -> Apply:
        """Take three integers; return the first position and the length."""
        return Apply(self, list(inputs), [lscalar(), lscalar()])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Clip the bounds."""
        start, stop, n = map(int, inputs)
        start, stop, _ = slice(start, stop).indices(n)
        outputs[0][0] = np.asarray(start, "int64")
        outputs[1][0] = np.asarray(max(stop - start, 0), "int64")


class DynamicSlice(Op):
    """``x[start : start + length]`` along some axes. Only the lengths must be known to build a program."""

    __props__ = ("axes",)

    def __init__(self, axes: Sequence[int]):
        self.axes = tuple(axes)

    def make_node(self, *inputs: Variable) -> Apply:
        """Take an array, a start for each axis, then a length for each."""
        x, lengths = inputs[0], inputs[1 + len(self.axes) :]
        shape = list(x.type.shape)
        for axis, n in zip(self.axes, lengths, strict=True):
            shape[axis] = int(n.data) if isinstance(n, Constant) else None
        return Apply(self, list(inputs), [x.type.clone(shape=shape)()])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Take the slices."""
        x, *bounds = inputs
        outputs[0][0] = x[block_index(x.ndim, self.axes, bounds)].copy()


class DynamicUpdate(Op):
    """`x` with ``x[start : start + length]`` along some axes set to, or incremented by, `y`."""

    __props__ = ("axes", "set_instead_of_inc")

    def __init__(self, axes: Sequence[int], set_instead_of_inc: bool):
        self.axes, self.set_instead_of_inc = tuple(axes), set_instead_of_inc

    def make_node(self, *inputs: Variable) -> Apply:
        """Take two arrays, a start for each axis, then a length for each."""
        return Apply(self, list(inputs), [inputs[0].type()])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Write to a copy."""
        x, y, *bounds = inputs
        outputs[0][0] = written(x, block_index(x.ndim, self.axes, bounds), y, self.set_instead_of_inc)


def block_index(ndim: int, axes: Sequence[int], bounds: Sequence) -> tuple[slice, ...]:
    """Return the index that takes slices, of given starts and lengths, along `axes`."""
    index = [slice(None)] * ndim
    for axis, start, length in zip(axes, bounds, bounds[len(axes) :], strict=False):
        index[axis] = slice(int(start), int(start) + int(length))
    return tuple(index)


def written(x: np.ndarray, index: tuple, y: np.ndarray, is_set: bool) -> np.ndarray:
    """Return a copy of `x` with a part set to, or incremented by, `y`."""
    x = x.copy()
    if is_set:
        x[index] = y
    else:
        np.add.at(x, index, y)
    return x


class SliceLanes(Op):
    """A mask of length `n` that is true for the positions of a slice."""

    __props__ = ()

    def make_node(self, *inputs: Variable) -> Apply:
        """Take the slice's first position and length, and the length of the mask."""
        return Apply(self, list(inputs), [TensorType("bool", (None,))()])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Compare positions."""
        start, length, n = map(int, inputs)
        positions = np.arange(n)
        outputs[0][0] = (positions >= start) & (positions < start + length)


class ShiftLanes(Op):
    """An axis of length `n` whose element `i` is element ``i + shift`` of `x`, or the nearest one that there is."""

    __props__ = ("axis",)

    def __init__(self, axis: int):
        self.axis = axis

    def make_node(self, *inputs: Variable) -> Apply:
        """Take an array, the shift, and the length of the result's axis."""
        x = inputs[0]
        shape = [None if axis == self.axis else n for axis, n in enumerate(x.type.shape)]
        return Apply(self, list(inputs), [TensorType(x.type.dtype, shape)()])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Take the positions. If the axis is empty, every lane is 1."""
        x, shift, n = inputs
        if not x.shape[self.axis]:
            outputs[0][0] = np.ones((*x.shape[: self.axis], int(n), *x.shape[self.axis + 1 :]), x.dtype)
            return
        outputs[0][0] = x.take(np.arange(n) + shift, axis=self.axis, mode="clip")


class PadLanes(Op):
    """An array whose axis is made longer, from `length` to `n` elements: the new ones repeat the first.

    Where the axis has another length, this raises the error of an elementwise Op.
    """

    __props__ = ("axis", "length")

    def __init__(self, axis: int, length: int):
        self.axis, self.length = axis, length

    def make_node(self, *inputs: Variable) -> Apply:
        """Take an array, and the length of the result's axis."""
        x = inputs[0]
        shape = [None if axis == self.axis else n for axis, n in enumerate(x.type.shape)]
        return Apply(self, list(inputs), [x.type.clone(shape=shape)()])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Repeat the first element."""
        x, n = inputs
        self.check(x.shape[self.axis])
        outputs[0][0] = x.take(np.where(np.arange(n) < self.length, np.arange(n), 0), axis=self.axis)

    def check(self, length: int) -> None:
        """Raise a ValueError unless an axis has the length that the Op is for."""
        if length != self.length:
            raise ValueError(f"Incompatible Elemwise input shapes: a length is {length}, and must be {self.length}")


# -- masks -------------------------------------------------------------------------------------------------------------


class AtMask(Op):
    """Base of Ops on the elements of an array at which a mask is true.

    The mask indexes `axis` and those that follow; the result has one axis, of *lanes*, in their place.
    """

    __props__: tuple[str, ...] = ("axis",)

    def __init__(self, axis: int):
        self.axis = axis

    def lane_type(self, x: Variable, mask: Variable) -> TensorType:
        """Return the type of an array with an axis of lanes."""
        shape = x.type.shape
        return TensorType(x.type.dtype, (*shape[: self.axis], None, *shape[self.axis + mask.type.ndim :]))

    def split(self, x: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return array and mask with the masked axes flattened to one, of all lanes."""
        check_mask(x.shape, mask.shape, self.axis)
        x = x[(*[slice(None)] * self.axis, *map(slice, mask.shape))]  # an empty mask need not fit
        return x.reshape((*x.shape[: self.axis], mask.size, *x.shape[self.axis + mask.ndim :])), mask.ravel()

    def index(self, lanes: np.ndarray) -> tuple:
        """Return the index that takes `lanes`."""
        return (*[slice(None)] * self.axis, lanes)


def check_mask(shape: Sequence[int], mask_shape: Sequence[int], axis: int) -> None:
    """Raise NumPy's IndexError if a mask, which indexes `axis` and the following axes of an array, has another shape.

    A length of 0 fits any axis, as in NumPy: such a mask selects nothing.
    """
    for i, (n, m) in enumerate(zip(shape[axis:], mask_shape, strict=False)):
        if m not in (0, n):
            raise mask_mismatch(axis + i, n, m)


class FillLanes(AtMask):
    """All lanes of `x`: inactive ones hold a copy of the first active one, or 1 if no lane is active.

    What elementwise Ops make of the copies is discarded. A copy of an active lane adds nothing that the lane itself does not
    cause: no invalid value, no infinite derivative to be multiplied by 0.
    """

    def make_node(self, *inputs: Variable) -> Apply:
        """Take an array and a boolean array."""
        return Apply(self, list(inputs), [self.lane_type(*inputs)()])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Copy the first active lane to the inactive ones."""
        x, mask = self.split(*inputs)
        x = x.copy()
        x[self.index(~mask)] = x[self.index(mask.nonzero()[0][:1])] if mask.any() else 1
        outputs[0][0] = x


class Compact(AtMask):
    """``x[mask]``, whose length `count` must be known to build a program."""

    def make_node(self, *inputs: Variable) -> Apply:
        """Take an array, a boolean array and the number of elements that are true."""
        return Apply(self, list(inputs), [self.lane_type(*inputs[:2])()])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Index with the mask."""
        x, mask = self.split(*inputs[:2])
        outputs[0][0] = x[self.index(mask)]


class WriteLanes(AtMask):
    """`x` with ``x[mask]`` set to, or incremented by, `y`.

    With `is_compact`, `y` has the length of ``x[mask]``. Else it has one element for all, or for each, of the lanes.
    """

    __props__ = ("axis", "set_instead_of_inc", "is_compact")

    def __init__(self, axis: int, set_instead_of_inc: bool, is_compact: bool):
        super().__init__(axis)
        self.set_instead_of_inc, self.is_compact = set_instead_of_inc, is_compact

    def make_node(self, *inputs: Variable) -> Apply:
        """Take two arrays and a boolean array."""
        return Apply(self, list(inputs), [inputs[0].type()])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Write to a copy."""
        x, y, mask = inputs
        lanes, flat = self.split(x, mask)
        index = self.index(flat)
        if not self.is_compact:
            y = np.broadcast_to(y, lanes.shape)[index]
        new = written(lanes, index, y, self.set_instead_of_inc)
        outputs[0][0] = new.reshape(x.shape) if mask.size else x.copy()


class CountedNonzero(Op):
    """``x.nonzero()``, whose length `count` must be known to build a program."""

    __props__ = ()

    def make_node(self, *inputs: Variable) -> Apply:
        """Take an array and the number of its elements that are not zero."""
        return Apply(self, list(inputs), [TensorType("int64", (None,))() for _ in range(inputs[0].type.ndim)])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Find the positions."""
        for cell, positions in zip(outputs, inputs[0].nonzero(), strict=True):
            cell[0] = positions.astype("int64")


class RepeatCounts(Op):
    """How often `numpy.repeat` repeats each of the elements along an axis of length `n`."""

    __props__ = ()

    def make_node(self, *inputs: Variable) -> Apply:
        """Take a vector of counts, or of one for all, and the length of the axis."""
        return Apply(self, list(inputs), [TensorType("int64", (None,))()])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Check the counts, and give each element its own."""
        repeats, n = inputs
        check_repeats(len(repeats), int(n))
        if (repeats < 0).any():
            raise ValueError(NEGATIVE_REPEATS)
        outputs[0][0] = np.broadcast_to(repeats, (int(n),)).astype("int64")


#: NumPy's message.
NEGATIVE_REPEATS = "repeats may not contain negative values."


def check_repeats(count: int, length: int) -> None:
    """Check that there is a count for each element of an axis, or one for all."""
    if count not in (1, length):
        raise ValueError(f"operands could not be broadcast together with shape ({length},) ({count},)")


class MatchedMask(AtMask):
    """The mask, after its shape was compared with that of the array which it indexes."""

    def make_node(self, *inputs: Variable) -> Apply:
        """Take a boolean array and the array that it indexes."""
        return Apply(self, list(inputs), [inputs[0].type()])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Compare the shapes."""
        mask, x = inputs
        check_mask(x.shape, mask.shape, self.axis)
        outputs[0][0] = mask


# -- least squares -----------------------------------------------------------------------------------------------------


class LstsqParts(Op):
    """What `Lstsq` returns, with a residual for every column, and a mask that is true for the residuals that it returns.

    NumPy returns all residuals if there are more rows than columns and the rank is full, and else none.
    """

    __props__ = ()

    def make_node(self, *inputs: Variable) -> Apply:
        """Take two matrices and a number; the fifth output is the mask."""
        return Apply(self, list(inputs), [dmatrix(), dvector(), iscalar(), dvector(), TensorType("bool", (None,))()])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Solve, and compute the residuals again."""
        x, y, rcond = inputs
        solution, _, rank, s = np.linalg.lstsq(x, y, rcond)
        outputs[0][0], outputs[3][0] = solution.astype("float64"), s.astype("float64")
        outputs[1][0] = ((y - x @ solution) ** 2).sum(0).astype("float64")
        outputs[2][0] = np.asarray(rank, "int32")
        outputs[4][0] = np.full(y.shape[1], rank == x.shape[1] < x.shape[0])
