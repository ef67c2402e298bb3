"""Arrays in the making: values with NumPy's broadcasting and static slices, for algorithms over matrices.

A `Value` of `jaxpr.formula` is for formulas of one shape. The last two axes of an `Array` are those of a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import INT32, Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.jaxpr.formula import Value
from pytensor_jaxpr_linker.jaxpr.nested import nested


class Array(Value):
    """A value that broadcasts. Numbers beside it get its dtype."""

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

    @property
    def mT(self) -> Array:
        """The transposes of the matrices."""
        rank = len(self.shape)
        return self.made(prims.transpose(self.b, self.atom, [*range(rank - 2), rank - 1, rank - 2]))

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
        rank, count = len(self.shape), sum(i is not None for i in index[1:])
        parts = [slice(0, n, 1) for n in self.shape]
        shape: list[int] = list(self.shape[: rank - count])
        axis = rank - count
        for i in index[1:]:
            if i is None:
                shape.append(1)
                continue
            n = self.shape[axis]
            parts[axis] = slice(*i.indices(n)) if isinstance(i, slice) else slice(i % n, i % n + 1, 1)
            if isinstance(i, slice):
                shape.append(len(range(*i.indices(n))))
            axis += 1
        starts, stops, steps = zip(*[(p.start, max(p.start, p.stop), p.step) for p in parts], strict=True)
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


def column_positions(b: JaxprBuilder, n: int) -> Array:
    """Return the positions of columns, of shape (1, n)."""
    return Array(b, prims.iota(b, np.dtype("int32"), (1, n), 1))


def row_positions(b: JaxprBuilder, n: int) -> Array:
    """Return the positions of rows, of shape (n, 1)."""
    return Array(b, prims.iota(b, np.dtype("int32"), (n, 1), 0))


def identity_like(x: Array, rows: int, columns: int) -> Array:
    """Return identity matrices for each matrix of `x`."""
    diagonal = row_positions(x.b, rows) == column_positions(x.b, columns)
    return diagonal.astype(x.dtype).broadcast((*x.shape[:-2], rows, columns))


def tiny_of(dtype: np.dtype) -> float:
    """Return the smallest normal number of a dtype, or of its parts."""
    return float(np.finfo(dtype).tiny)


def eps_of(dtype: np.dtype) -> float:
    """Return the distance from 1 to the next number of a dtype, or of its parts."""
    return float(np.finfo(dtype).eps)


#: Takes the number of the step, the carry, and what the loop reads; returns the next carry.
type LoopStep = Callable[[Array, Sequence[Array], Sequence[Array]], Sequence[Array]]


def for_each(count: int, step: LoopStep, carry: Sequence[Array], read: Sequence[Array] = ()) -> list[Array]:
    """Return the carry after steps 0, 1, ..., ``count - 1``."""
    b = carry[0].b
    if not count:
        return list(carry)
    start = b.constant(np.int32(0))
    body, inner, (i, *old), passed = nested(b, [x.atom for x in read], [start, *[x.atom for x in carry]])
    new = step(Array(body, i), [Array(body, x) for x in old], [Array(body, x) for x in inner])
    following = prims.add(body, i, body.constant(np.int32(1)))
    done = body.build([following, *[x.atom for x in new]])
    return [Array(b, x) for x in prims.scan(b, done, passed, [start, *[x.atom for x in carry]], [], count)[1:]]


def repeat_while(
    going: Array, limit: int, step: LoopStep, carry: Sequence[Array], read: Sequence[Array] = ()
) -> list[Array]:
    """Return the carry after steps as long as the first of what a step returns, a boolean scalar, is true, and at most `limit` of them.

    `going` says whether there is a first step. Returns the carry without the boolean.
    """
    b = going.b
    initial = [b.constant(np.int32(0)), going.atom, *[x.atom for x in carry]]
    body, inner, (i, was_going, *old), passed = nested(b, [x.atom for x in read], initial)
    more, *new = step(Array(body, i), [Array(body, x) for x in old], [Array(body, x) for x in inner])
    following = prims.add(body, i, body.constant(np.int32(1)))
    # IREE's compiler mixes up the carry of a loop if the body reads a part of it nowhere.
    still = prims.and_(body, was_going, more.atom)
    done = body.build([following, still, *[x.atom for x in new]])
    condition, atoms = b.sub_jaxpr([x.aval for x in initial])
    below = prims.lt(condition, atoms[0], condition.constant(np.asarray(limit, INT32)))
    goes_on = condition.build([prims.and_(condition, atoms[1], below)])
    return [Array(b, x) for x in prims.while_loop(b, goes_on, [], done, passed, initial)[2:]]
