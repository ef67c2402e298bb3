"""Ops for parts of an array whose size depends on values.

PyTensor's own Ops leave the size to NumPy. These take it as an operand, the one value that must be known to build a
program, or return all lanes, so that no value must be known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.type import Type
from pytensor.tensor.type import TensorType, dmatrix, dvector, iscalar, lscalar, lvector

from pytensor_jaxpr_linker.base.errors import mask_mismatch


def only_output(op: Op, *inputs: Variable) -> Variable:
    """Return the only output of an Op."""
    (output,) = op.make_node(*inputs).outputs
    return output


class ArrayOp(Op):
    """An Op that a class describes by the types of its outputs and by their values."""

    __props__: tuple[str, ...] = ()

    def types(self, *inputs: Any, **_: Any) -> Sequence[Type]:
        """Return the types of the outputs for the variables of the inputs."""
        raise NotImplementedError

    def compute(self, *inputs: Any, **_: Any) -> Sequence[Any]:
        """Return the values of the outputs for values of the inputs."""
        raise NotImplementedError

    def make_node(self, *inputs: Variable) -> Apply:
        """Return the node for inputs."""
        return Apply(self, list(inputs), [type() for type in self.types(*inputs)])

    def perform(self, node: Apply, inputs: Sequence, outputs: list) -> None:
        """Compute the outputs with NumPy."""
        for cell, value in zip(outputs, self.compute(*inputs), strict=True):
            cell[0] = value


#: The type of masks that are vectors. PyTensor's name `bvector` is of int8.
mask_vector = TensorType("bool", (None,))

# -- slices ------------------------------------------------------------------------------------------------------------


class SliceBounds(ArrayOp):
    """Where ``x[start:stop]`` starts and how long it is, for an axis of length `n`, as NumPy clips bounds."""

    def types(self, start: Variable, stop: Variable, n: Variable) -> Sequence[Type]:
        """Take three integers; return the first position and the length."""
        return [lscalar, lscalar]

    def compute(self, start: Any, stop: Any, n: Any) -> Sequence[np.ndarray]:
        """Clip the bounds."""
        first, last, _ = slice(int(start), int(stop)).indices(int(n))
        return [np.asarray(first, "int64"), np.asarray(max(last - first, 0), "int64")]


class DynamicSlice(ArrayOp):
    """``x[start : start + length]`` along some axes. Only the lengths must be known to build a program."""

    __props__ = ("axes",)

    def __init__(self, axes: Sequence[int]):
        self.axes = tuple(axes)

    def types(self, x: Any, *bounds: Variable) -> Sequence[Type]:
        """Take an array, a start for each axis, then a length for each."""
        shape = list(x.type.shape)
        for axis, n in zip(self.axes, bounds[len(self.axes) :], strict=True):
            shape[axis] = int(n.data) if isinstance(n, Constant) else None
        return [x.type.clone(shape=shape)]

    def compute(self, x: np.ndarray, *bounds: np.ndarray) -> Sequence[np.ndarray]:
        """Take the slices."""
        return [x[block_index(x.ndim, self.axes, bounds)].copy()]


class DynamicUpdate(ArrayOp):
    """`x` with ``x[start : start + length]`` along some axes set to, or incremented by, `y`."""

    __props__ = ("axes", "set_instead_of_inc")

    def __init__(self, axes: Sequence[int], set_instead_of_inc: bool):
        self.axes, self.set_instead_of_inc = tuple(axes), set_instead_of_inc

    def types(self, x: Any, y: Variable, *bounds: Variable) -> Sequence[Type]:
        """Take two arrays, a start for each axis, then a length for each."""
        return [x.type]

    def compute(self, x: np.ndarray, y: np.ndarray, *bounds: np.ndarray) -> Sequence[np.ndarray]:
        """Write to a copy."""
        return [written(x, block_index(x.ndim, self.axes, bounds), y, self.set_instead_of_inc)]


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


class SliceLanes(ArrayOp):
    """A mask of length `n` that is true for the positions of a slice."""

    def types(self, start: Variable, length: Variable, n: Variable) -> Sequence[Type]:
        """Take the slice's first position and length, and the length of the mask."""
        return [mask_vector]

    def compute(self, start: Any, length: Any, n: Any) -> Sequence[np.ndarray]:
        """Compare positions."""
        positions = np.arange(int(n))
        return [(positions >= start) & (positions < start + length)]


class ShiftLanes(ArrayOp):
    """An axis of length `n` whose element `i` is element ``i + shift`` of `x`, or the nearest one that there is."""

    __props__ = ("axis",)

    def __init__(self, axis: int):
        self.axis = axis

    def types(self, x: Any, shift: Variable, n: Variable) -> Sequence[Type]:
        """Take an array, the shift, and the length of the result's axis."""
        return [with_open_axis(x, self.axis)]

    def compute(self, x: np.ndarray, shift: Any, n: Any) -> Sequence[np.ndarray]:
        """Take the positions. If the axis is empty, every lane is 1."""
        if not x.shape[self.axis]:
            return [np.ones((*x.shape[: self.axis], int(n), *x.shape[self.axis + 1 :]), x.dtype)]
        return [x.take(np.arange(n) + shift, axis=self.axis, mode="clip")]


class PadLanes(ArrayOp):
    """An array whose axis is made longer, from `length` to `n` elements: the new ones repeat the first.

    Where the axis has another length, this raises the error of an elementwise Op.
    """

    __props__ = ("axis", "length")

    def __init__(self, axis: int, length: int):
        self.axis, self.length = axis, length

    def types(self, x: Any, n: Variable) -> Sequence[Type]:
        """Take an array, and the length of the result's axis."""
        return [with_open_axis(x, self.axis)]

    def compute(self, x: np.ndarray, n: Any) -> Sequence[np.ndarray]:
        """Repeat the first element."""
        self.check(x.shape[self.axis])
        return [x.take(np.where(np.arange(n) < self.length, np.arange(n), 0), axis=self.axis)]

    def check(self, length: int) -> None:
        """Raise a ValueError unless an axis has the length that the Op is for."""
        if length != self.length:
            raise ValueError(f"Incompatible Elemwise input shapes: a length is {length}, and must be {self.length}")


def with_open_axis(x: Any, axis: int) -> Type:
    """Return the type of an array in which one axis has any length."""
    return x.type.clone(shape=[None if i == axis else n for i, n in enumerate(x.type.shape)])


# -- masks -------------------------------------------------------------------------------------------------------------


class AtMask(ArrayOp):
    """Base of Ops on the elements of an array at which a mask is true.

    The mask indexes `axis` and the axes behind it; the result has one axis, of *lanes*, in their place.
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

    The results for copies are discarded. A copy of an active lane adds nothing that the lane itself
    does not cause: no invalid value, no infinite derivative to be multiplied by 0.
    """

    def types(self, x: Variable, mask: Variable) -> Sequence[Type]:
        """Take an array and a boolean array."""
        return [self.lane_type(x, mask)]

    def compute(self, x: np.ndarray, mask: np.ndarray) -> Sequence[np.ndarray]:
        """Copy the first active lane to the inactive ones."""
        x, mask = self.split(x, mask)
        x = x.copy()
        x[self.index(~mask)] = x[self.index(mask.nonzero()[0][:1])] if mask.any() else 1
        return [x]


class Compact(AtMask):
    """``x[mask]``, whose length `count` must be known to build a program."""

    def types(self, x: Variable, mask: Variable, count: Variable) -> Sequence[Type]:
        """Take an array, a boolean array and the number of elements that are true."""
        return [self.lane_type(x, mask)]

    def compute(self, x: np.ndarray, mask: np.ndarray, count: Any) -> Sequence[np.ndarray]:
        """Index with the mask."""
        x, mask = self.split(x, mask)
        return [x[self.index(mask)]]


class WriteLanes(AtMask):
    """`x` with ``x[mask]`` set to, or incremented by, `y`.

    With `is_compact`, `y` has the length of ``x[mask]``. Else it has one element for all, or for each, of the lanes.
    """

    __props__ = ("axis", "set_instead_of_inc", "is_compact")

    def __init__(self, axis: int, set_instead_of_inc: bool, is_compact: bool):
        super().__init__(axis)
        self.set_instead_of_inc, self.is_compact = set_instead_of_inc, is_compact

    def types(self, x: Any, y: Variable, mask: Variable) -> Sequence[Type]:
        """Take two arrays and a boolean array."""
        return [x.type]

    def compute(self, x: np.ndarray, y: np.ndarray, mask: np.ndarray) -> Sequence[np.ndarray]:
        """Write to a copy."""
        lanes, flat = self.split(x, mask)
        index = self.index(flat)
        if not self.is_compact:
            y = np.broadcast_to(y, lanes.shape)[index]
        new = written(lanes, index, y, self.set_instead_of_inc)
        return [new.reshape(x.shape) if mask.size else x.copy()]


class CountedNonzero(ArrayOp):
    """``x.nonzero()``, whose length `count` must be known to build a program."""

    def types(self, x: Any, count: Variable) -> Sequence[Type]:
        """Take an array and the number of its elements that are not zero."""
        return [lvector] * x.type.ndim

    def compute(self, x: np.ndarray, count: Any) -> Sequence[np.ndarray]:
        """Find the positions."""
        return [positions.astype("int64") for positions in x.nonzero()]


class RepeatCounts(ArrayOp):
    """How often `numpy.repeat` repeats each of the elements along an axis of length `n`."""

    def types(self, repeats: Variable, n: Variable) -> Sequence[Type]:
        """Take a vector of counts, or of one for all, and the length of the axis."""
        return [lvector]

    def compute(self, repeats: np.ndarray, n: Any) -> Sequence[np.ndarray]:
        """Check the counts, and give each element its own."""
        check_repeats(len(repeats), int(n))
        if (repeats < 0).any():
            raise ValueError(NEGATIVE_REPEATS)
        return [np.broadcast_to(repeats, (int(n),)).astype("int64")]


#: NumPy's message.
NEGATIVE_REPEATS = "repeats may not contain negative values."


def check_repeats(count: int, length: int) -> None:
    """Check that there is a count for each element of an axis, or one for all."""
    if count not in (1, length):
        raise ValueError(f"operands could not be broadcast together with shape ({length},) ({count},)")


class MatchedMask(AtMask):
    """The mask, after a check that its shape fits the array that it indexes."""

    def types(self, mask: Any, x: Variable) -> Sequence[Type]:
        """Take a boolean array and the array that it indexes."""
        return [mask.type]

    def compute(self, mask: np.ndarray, x: np.ndarray) -> Sequence[np.ndarray]:
        """Compare the shapes."""
        check_mask(x.shape, mask.shape, self.axis)
        return [mask]


# -- least squares -----------------------------------------------------------------------------------------------------


class LstsqParts(ArrayOp):
    """The outputs of `Lstsq`, with a residual for every column, and a mask of the residuals that it returns.

    NumPy returns all residuals if there are more rows than columns and the rank is full, and else none.
    """

    def types(self, x: Variable, y: Variable, rcond: Variable) -> Sequence[Type]:
        """Take two matrices and a number; the fifth output is the mask."""
        return [dmatrix, dvector, iscalar, dvector, mask_vector]

    def compute(self, x: np.ndarray, y: np.ndarray, rcond: Any) -> Sequence[np.ndarray]:
        """Solve, and compute the residuals again."""
        solution, _, rank, s = np.linalg.lstsq(x, y, rcond)
        residuals = ((y - x @ solution) ** 2).sum(0).astype("float64")
        returned = np.full(y.shape[1], rank == x.shape[1] < x.shape[0])
        return [solution.astype("float64"), residuals, np.asarray(rank, "int32"), s.astype("float64"), returned]
