"""Arrays in the making: values with NumPy's broadcasting and static slices, for algorithms over matrices.

A `Value` of `jaxpr.formula` is for formulas of one shape. The last two axes of an `Array` are the axes of a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import INT32, Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.jaxpr.formula import Value, where
from pytensor_jaxpr_linker.jaxpr.nested import nested


class Array(Value):
    """A value that broadcasts. Numbers in a formula with it get its dtype."""

    __slots__ = ()

    def operands(self, xs: Sequence[Any]) -> list[Atom]:
        """Return the atoms of arrays and numbers in their common shape."""
        arrays = [self.like(x) for x in xs]
        shape = lax.broadcast_shapes(*[x.shape for x in arrays])
        return [x.broadcast(shape).atom for x in arrays]

    def never_reaches(self, number: Any, is_low: Callable[[Any, int], bool]) -> bool:
        """Return False: each comparison has the shape of its operands."""
        return False

    def broadcast(self, shape: Shape) -> Array:
        """Return the array in a larger shape."""
        if self.shape == tuple(shape):
            return self
        lead = len(shape) - len(self.shape)
        kept = [i for i, n in enumerate(self.shape) if n == shape[lead + i]]
        atom = prims.reshape(self.b, self.atom, tuple(self.shape[i] for i in kept))
        return self.made(prims.broadcast_in_dim(self.b, atom, shape, [lead + i for i in kept]))

    def reshape(self, *shape: int) -> Array:
        """Return the elements in another shape."""
        return self.made(prims.reshape(self.b, self.atom, shape))

    def astype(self, dtype: Any) -> Array:
        """Return the elements in another dtype."""
        return self.made(prims.convert(self.b, self.atom, dtype))

    def transpose(self, axes: Sequence[int]) -> Array:
        """Return the array with its axes in another order."""
        return self.made(prims.transpose(self.b, self.atom, axes))

    @property
    def mT(self) -> Array:
        """The transposes of the matrices."""
        rank = len(self.shape)
        return self.transpose([*range(rank - 2), rank - 1, rank - 2])

    @property
    def conj(self) -> Array:
        """The complex conjugate, or the array itself if it is real."""
        return self.made(prims.conj(self.b, self.atom)) if self.dtype.kind == "c" else self

    @property
    def real(self) -> Array:
        """The real part, or the array itself if it is real."""
        return self.made(prims.real(self.b, self.atom)) if self.dtype.kind == "c" else self

    @property
    def imag(self) -> Array:
        """The imaginary part of complex numbers."""
        return self.made(prims.imag(self.b, self.atom))

    def __getitem__(self, index: Any) -> Array:
        """Return a part of the last axes, by static slices and integers; ``None`` adds an axis. ``...`` comes first."""
        index = index if isinstance(index, tuple) else (index,)
        assert index[0] is Ellipsis
        parts = [i for i in index[1:] if i is not None]
        whole = [slice(None)] * (len(self.shape) - len(parts))
        ranges = [
            range(n)[i] if isinstance(i, slice) else range(i % n, i % n + 1)
            for n, i in zip(self.shape, [*whole, *parts], strict=True)
        ]
        starts, stops, steps = zip(*[(r.start, max(r.start, r.stop), r.step) for r in ranges], strict=True)
        shape = np.broadcast_to(False, self.shape)[index].shape
        return self.made(prims.slice_(self.b, self.atom, starts, stops, steps)).reshape(*shape)

    def at(self, i: Array, axis: int, count: int = 1) -> Array:
        """Return the part of an axis, of length `count`, from a position on that is known at run time."""
        axis %= len(self.shape)
        sizes = tuple(count if k == axis else n for k, n in enumerate(self.shape))
        return self.made(prims.dynamic_slice(self.b, self.atom, self._starts(i, axis), sizes))

    def put(self, i: Array, axis: int, part: Array) -> Array:
        """Return the array with a part of an axis written, from a position on that is known at run time."""
        axis %= len(self.shape)
        return self.made(prims.dynamic_update_slice(self.b, self.atom, part.atom, self._starts(i, axis)))

    def _starts(self, i: Array, axis: int) -> list[Atom]:
        zero = self.b.constant(np.int32(0))
        return [i.atom if k == axis else zero for k in range(len(self.shape))]

    def sum(self, axis: int) -> Array:
        """Return the sum over an axis, which gets length 1."""
        return self._reduced(prims.reduce_sum, axis)

    def max(self, axis: int) -> Array:
        """Return the maximum over an axis, which gets length 1."""
        return self._reduced(prims.reduce_max, axis)

    def _reduced(self, primitive: Callable[..., Atom], axis: int) -> Array:
        axis %= len(self.shape)
        shape = tuple(1 if k == axis else n for k, n in enumerate(self.shape))
        return self.made(primitive(self.b, self.atom, [axis])).reshape(*shape)

    def has_nan(self) -> Array:
        """Return whether each matrix has an element that is NaN."""
        count = (self != self).astype(np.int32)
        return count.sum(-1).sum(-2) > 0 if 0 not in self.shape[-2:] else full(self.b, False, (1, 1), np.dtype(bool))

    def larger_size(self) -> Array:
        """Return the size of numbers, of complex ones the larger of both parts."""
        if self.dtype.kind != "c":
            return abs(self)
        return where(abs(self.real) > abs(self.imag), abs(self.real), abs(self.imag))

    def one_norm(self) -> Array:
        """Return the size of numbers, of complex ones the sum of both parts' sizes."""
        return abs(self.real) + abs(self.imag) if self.dtype.kind == "c" else abs(self)

    def squares(self) -> Array:
        """Return the squares of the sizes."""
        return self.real * self.real + self.imag * self.imag if self.dtype.kind == "c" else self * self

    def positions(self) -> tuple[Array, Array]:
        """Return the positions of rows, of shape (m, 1), and the positions of columns, of shape (1, n)."""
        m, n = self.shape[-2:]
        return row_positions(self.b, m), self.made(prims.iota(self.b, INT32, (1, n), 1))

    def is_diagonal(self) -> Array:
        """Return which elements of a matrix are on its diagonal."""
        rows, columns = self.positions()
        return rows == columns

    def diagonal(self) -> Array:
        """Return diagonals as columns."""
        return where(self.is_diagonal(), self, 0).sum(-1)

    def identity(self, rows: int, columns: int) -> Array:
        """Return an identity matrix for each of the matrices."""
        shape = (*self.shape[:-2], rows, columns)
        return full(self.b, 0, shape, self.dtype).is_diagonal().astype(self.dtype).broadcast(shape)

    def any(self) -> Array:
        """Return whether any element is true."""
        return self.made(prims.reduce_or(self.b, self.atom, range(len(self.shape))))

    @property
    def tiny(self) -> float:
        """The smallest normal number of the dtype, or of its parts."""
        return float(np.finfo(self.dtype).tiny)

    @property
    def eps(self) -> float:
        """The distance from 1 to the next number of the dtype, or of its parts."""
        return float(np.finfo(self.dtype).eps)

    def flip(self, *axes: int) -> Array:
        """Return the array with axes reversed."""
        return self.made(prims.rev(self.b, self.atom, [axis % len(self.shape) for axis in axes]))

    def __matmul__(self, other: Array) -> Array:
        batch = range(len(self.shape) - 2)
        contract = [len(batch) + 1], [len(batch)]
        return self.made(prims.dot_general(self.b, self.atom, other.atom, contract, (batch, batch)))


def joined_arrays(parts: Sequence[Array], axis: int) -> Array:
    """Return arrays one behind the other."""
    parts = [x for x in parts if x.shape[axis]] or list(parts[:1])
    return Array(parts[0].b, prims.concatenate(parts[0].b, [x.atom for x in parts], axis % len(parts[0].shape)))


def full(b: JaxprBuilder, value: Any, shape: Shape, dtype: np.dtype) -> Array:
    """Return an array of one number."""
    return Array(b, b.constant(np.asarray(value, dtype))).broadcast(tuple(shape))


def row_positions(b: JaxprBuilder, n: int) -> Array:
    """Return the positions of rows, of shape (n, 1)."""
    return Array(b, prims.iota(b, INT32, (n, 1), 0))


#: Takes the number of the step, the carry, and the arrays that the loop reads; returns the next carry.
type LoopStep = Callable[..., Sequence[Array]]


def for_each(count: int, step: LoopStep, carry: Sequence[Array], read: Sequence[Array] = ()) -> list[Array]:
    """Return the carry after steps 0, 1, ..., ``count - 1``."""
    b = carry[0].b
    if not count:
        return list(carry)
    start = b.constant(np.int32(0))
    body, inner, (i, *old), passed = nested(b, [x.atom for x in read], [start, *[x.atom for x in carry]])
    new = step(*[Array(body, x) for x in (i, *old, *inner)])
    done = body.build([next_step(body, i), *[x.atom for x in new]])
    return [Array(b, x) for x in prims.scan(b, done, passed, [start, *[x.atom for x in carry]], [], count)[1:]]


def next_step(b: JaxprBuilder, i: Atom) -> Atom:
    """Return the number of the step after step `i`."""
    return prims.add(b, i, b.constant(np.int32(1)))


def repeat_while(going: Array, limit: int, step: LoopStep, carry: Sequence[Array]) -> list[Array]:
    """Return the carry after at most `limit` steps.

    A step returns whether another one follows, a boolean scalar, and the next carry. `going` says whether there is a
    first step.
    """
    b = going.b
    initial = [b.constant(np.int32(0)), going.atom, *[x.atom for x in carry]]
    body, (i, was_going, *old) = b.sub_jaxpr([x.aval for x in initial])
    more, *new = step(*[Array(body, x) for x in (i, *old)])
    # IREE's compiler mixes up the carry of a loop if the body reads a part of it nowhere.
    still = prims.and_(body, was_going, more.atom)
    done = body.build([next_step(body, i), still, *[x.atom for x in new]])
    condition, atoms = b.sub_jaxpr([x.aval for x in initial])
    below = prims.lt(condition, atoms[0], condition.constant(np.asarray(limit, INT32)))
    goes_on = condition.build([prims.and_(condition, atoms[1], below)])
    return [Array(b, x) for x in prims.while_loop(b, goes_on, [], done, [], initial)[2:]]
