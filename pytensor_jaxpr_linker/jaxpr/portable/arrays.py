"""Arrays in the making: atoms with NumPy's arithmetic, broadcasting and static slices, for algorithms over matrices.

`jaxpr.formula.Value` is for formulas of one shape. An `Array` broadcasts, and its last two axes are those of a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape


class Array:
    """An atom with its builder. Numbers beside it get its dtype."""

    __slots__ = ("atom", "b")

    def __init__(self, b: JaxprBuilder, atom: Atom):
        self.b, self.atom = b, atom

    @property
    def shape(self) -> Shape:
        """That of the atom."""
        return self.atom.aval.shape

    @property
    def dtype(self) -> np.dtype:
        """That of the atom."""
        return self.atom.aval.dtype

    def like(self, number: Any) -> Array:
        """Return a number or a NumPy array as an array of this one's dtype."""
        return number if isinstance(number, Array) else Array(self.b, self.b.constant(np.asarray(number, self.dtype)))

    def broadcast(self, shape: Shape) -> Array:
        """Return the array in a larger shape."""
        if self.shape == tuple(shape):
            return self
        lead = len(shape) - len(self.shape)
        kept = [i for i, n in enumerate(self.shape) if n == shape[lead + i]]
        atom = prims.reshape(self.b, self.atom, tuple(self.shape[i] for i in kept))
        return Array(self.b, prims.broadcast_in_dim(self.b, atom, shape, [lead + i for i in kept]))

    def reshape(self, *shape: int) -> Array:
        """Return the elements in another shape."""
        return Array(self.b, prims.reshape(self.b, self.atom, shape))

    def astype(self, dtype: Any) -> Array:
        """Return the elements in another dtype."""
        return Array(self.b, prims.convert(self.b, self.atom, dtype))

    @property
    def mT(self) -> Array:
        """The transposes of the matrices."""
        rank = len(self.shape)
        return Array(self.b, prims.transpose(self.b, self.atom, [*range(rank - 2), rank - 1, rank - 2]))

    @property
    def conj(self) -> Array:
        """The complex conjugate, or the array itself if it is real."""
        return Array(self.b, prims.conj(self.b, self.atom)) if self.dtype.kind == "c" else self

    @property
    def real(self) -> Array:
        """The real part, or the array itself if it is real."""
        return Array(self.b, prims.real(self.b, self.atom)) if self.dtype.kind == "c" else self

    @property
    def imag(self) -> Array:
        """The imaginary part of complex numbers."""
        return Array(self.b, prims.imag(self.b, self.atom))

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
        return Array(self.b, prims.slice_(self.b, self.atom, starts, stops, steps)).reshape(*shape)

    def at(self, i: Array, axis: int, count: int = 1) -> Array:
        """Return the part of an axis, of length `count`, from a position on that is known at run time."""
        axis %= len(self.shape)
        sizes = tuple(count if k == axis else n for k, n in enumerate(self.shape))
        return Array(self.b, prims.dynamic_slice(self.b, self.atom, self._starts(i, axis), sizes))

    def put(self, i: Array, axis: int, part: Array) -> Array:
        """Return the array with a part of an axis written, from a position on that is known at run time."""
        axis %= len(self.shape)
        return Array(self.b, prims.dynamic_update_slice(self.b, self.atom, part.atom, self._starts(i, axis)))

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
        return Array(self.b, primitive(self.b, self.atom, [axis])).reshape(*shape)

    def flip(self, *axes: int) -> Array:
        """Return the array with axes reversed."""
        return Array(self.b, prims.rev(self.b, self.atom, [axis % len(self.shape) for axis in axes]))

    def __matmul__(self, other: Array) -> Array:
        batch = range(len(self.shape) - 2)
        contract = [len(batch) + 1], [len(batch)]
        return Array(self.b, prims.dot_general(self.b, self.atom, other.atom, contract, (batch, batch)))

    def __add__(self, other: Any) -> Array:
        return combine(prims.add, self, other)

    def __sub__(self, other: Any) -> Array:
        return combine(prims.sub, self, other)

    def __rsub__(self, other: Any) -> Array:
        return combine(prims.sub, other, self)

    def __mul__(self, other: Any) -> Array:
        return combine(prims.mul, self, other)

    def __truediv__(self, other: Any) -> Array:
        return combine(prims.div, self, other)

    def __rtruediv__(self, other: Any) -> Array:
        return combine(prims.div, other, self)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Array:
        return Array(self.b, prims.neg(self.b, self.atom))

    def __abs__(self) -> Array:
        return Array(self.b, prims.abs_(self.b, self.atom))

    def __lt__(self, other: Any) -> Array:
        return combine(prims.lt, self, other)

    def __le__(self, other: Any) -> Array:
        return combine(prims.le, self, other)

    def __gt__(self, other: Any) -> Array:
        return combine(prims.gt, self, other)

    def __ge__(self, other: Any) -> Array:
        return combine(prims.ge, self, other)

    def __eq__(self, other: Any) -> Array:  # type: ignore[override]
        return combine(prims.eq, self, other)

    def __ne__(self, other: Any) -> Array:  # type: ignore[override]
        return combine(prims.ne, self, other)

    def __and__(self, other: Array) -> Array:
        return combine(prims.and_, self, other)

    def __or__(self, other: Array) -> Array:
        return combine(prims.or_, self, other)

    def __invert__(self) -> Array:
        return Array(self.b, prims.not_(self.b, self.atom))

    __hash__ = None  # type: ignore[assignment]


def combine(primitive: Callable[..., Atom], *xs: Any) -> Array:
    """Emit an elementwise primitive on arrays and numbers, broadcast as NumPy does."""
    like = next(x for x in xs if isinstance(x, Array))
    arrays = [like.like(x) for x in xs]
    shape = lax.broadcast_shapes(*[x.shape for x in arrays])
    return Array(like.b, primitive(like.b, *[x.broadcast(shape).atom for x in arrays]))


def choose(condition: Array, on_true: Any, on_false: Any) -> Array:
    """Return a choice between two arrays or numbers, of which one is an array."""
    like = on_true if isinstance(on_true, Array) else on_false
    x, y = like.like(on_true), like.like(on_false)
    shape = lax.broadcast_shapes(condition.shape, x.shape, y.shape)
    atoms = [z.broadcast(shape).atom for z in (condition, x, y)]
    return Array(like.b, prims.select(like.b, *atoms))


def elementwise_function(primitive: Callable[..., Atom]) -> Callable[..., Array]:
    """Return an elementwise primitive as a function of arrays."""
    return lambda *xs: combine(primitive, *xs)


square_root = elementwise_function(prims.sqrt)
larger_of = elementwise_function(prims.max_)
smaller_of = elementwise_function(prims.min_)


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
