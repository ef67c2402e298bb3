"""Shapes, reshapes, and lengths of axes: integers, or symbolic dimensions of `jax.export`, known at run time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jax.errors import InconclusiveDimensionOperation
from pytensor.graph.basic import Apply
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.graph.static_values import equal
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.builder import Shape as Lengths


@emits(Shape)
def emit_Shape(op, node, b, x):
    """The shape as a constant vector."""
    return prims.dimensions(b, x.aval.shape) if x.aval.shape else b.constant(np.empty(0, "int64"))


@emits(Shape_i)
def emit_Shape_i(op, node, b, x):
    """One length as a constant."""
    return b.constant(x.aval.shape[op.i], "int64")


@emits(SpecifyShape, static=lambda node: range(1, len(node.inputs)))
def emit_SpecifyShape(op, node, b, x, *lengths):
    """Check the shape, with the exception and the message of `SpecifyShape.perform`."""
    expected = tuple(None if want is None else want.item() for want in lengths)

    def make_error() -> AssertionError:
        return AssertionError(f"SpecifyShape: Got shape {x.aval.shape}, expected {expected}.")

    for n, want in zip(x.aval.shape, expected, strict=True):
        if want is not None and want != n:
            if equal(n, want) == 0:
                raise make_error()
            b.check(prims.eq(b, b.constant(n, "int64"), b.constant(want, "int64")), make_error, node)
    return x


@emits(Reshape, static=(1,))
def emit_Reshape(op, node, b, x, shape):
    """Reshape; one length may be -1."""
    if len(shape) != op.ndim:
        raise ValueError(f"Shape argument to Reshape has incorrect length: {len(shape)}, should be {op.ndim}")
    return prims.reshape(b, x, complete_shape(x.aval.shape, shape))


def complete_shape(old: Lengths, new: Sequence) -> Lengths:
    """Return the new shape with its -1 replaced; ValueError if the sizes differ, as `numpy.reshape` raises."""
    lengths = [n.item() if isinstance(n, np.generic | np.ndarray) else n for n in new]
    size, known = math.prod(old), math.prod(n for n in lengths if n != -1)
    unknown = lengths.count(-1)
    if unknown > 1:
        raise ValueError("can only specify one unknown dimension")
    if any(type(n) is int and n < -1 for n in lengths):
        raise ValueError("negative dimensions not allowed")
    if (unknown and (known == 0 or size % known != 0)) or (not unknown and known != size):
        raise ValueError(f"cannot reshape array of size {size} into shape {tuple(lengths)}")
    return tuple(size // known if n == -1 else n for n in lengths)


@emits(JoinDims)
def emit_JoinDims(op, node, b, x):
    """Join neighbouring dimensions into one; joining none adds a dimension of length 1."""
    shape, stop = x.aval.shape, op.start_axis + op.n_axes
    joined = math.prod(shape[op.start_axis : stop])
    return prims.reshape(b, x, (*shape[: op.start_axis], joined, *shape[stop:]))


@emits(SplitDims, static=(1,))
def emit_SplitDims(op, node, b, x, lengths):
    """Split one dimension into several."""
    shape = (*x.aval.shape[: op.axis], *lengths, *x.aval.shape[op.axis + 1 :])
    return prims.reshape(b, x, complete_shape(x.aval.shape, shape))


# -- lengths -----------------------------------------------------------------------------------------------------------


def as_lengths(values: Iterable[Any]) -> list[Any]:
    """Return a static vector, or several static numbers, as lengths."""
    return [np.asarray(n).item() for n in values]


def is_less(b: JaxprBuilder, m: Any, n: Any) -> Atom:
    """Emit whether a length is less than another one: a constant if JAX can decide it."""
    try:
        return b.constant(bool(m < n))
    except InconclusiveDimensionOperation:
        return prims.lt(b, b.constant(m, "int64"), b.constant(n, "int64"))


def position_dtype(n: Any) -> str:
    """Return the shortest signed integer type for positions: of 64 bits if JAX can't decide that 32 suffice."""
    try:
        return "int32" if n < 2**31 else "int64"
    except InconclusiveDimensionOperation:
        return "int64"


def check_length(b: JaxprBuilder, node: Apply, n: Any, least: int, error: Exception) -> None:
    """Raise an error if a length is less than `least`, or have it raised at run time if JAX can't decide it."""
    too_small = is_less(b, n, least)
    if (value := b.known(too_small)) is None:
        b.check(prims.not_(b, too_small), lambda: error, node)
    elif value:
        raise error
