"""Index arrays: from PyTensor's indices to one gather or scatter, and the check that they are in bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pytensor.scalar as ps
from jax import lax
from jax.lax import GatherDimensionNumbers, GatherScatterMode, ScatterDimensionNumbers
from pytensor.graph.basic import Apply

from pytensor_jaxpr_linker.emit.conditional import ON_CPU, emit_one_of
from pytensor_jaxpr_linker.emit.scalar import all_true, emit_scalar, number
from pytensor_jaxpr_linker.graph.data_layout import in_order_given
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.jaxpr.optimize.sums import add_to_groups
from pytensor_jaxpr_linker.jaxpr.passes import CPU
from pytensor_jaxpr_linker.plan.model import WIDE_CONSTANT_BYTES


def known_positions(value: np.ndarray, axis: int, n: int) -> np.ndarray:
    """Return known indices counted from the start of their axis; one out of bounds is an `IndexError`."""
    check_positions(value, axis, n)
    value = value.astype("int64")
    return np.where(value < 0, value + n, value)


def check_positions(value: np.ndarray, axis: int, n: int) -> None:
    """Raise an `IndexError` that names the first of known indices that is out of bounds, if one is."""
    bad = (value >= n) | (value < -n)
    if bad.any():
        raise IndexError(f"index {value[bad].flat[0]} is out of bounds for axis {axis} with size {n}")


def runtime_positions(b: JaxprBuilder, node: Apply | None, index: Atom, axis: int, n: int, dtype: np.dtype) -> Atom:
    """Emit indices counted from the start of their axis, as `dtype`, and the check that they are in bounds."""
    signed = index.aval.dtype.kind == "i"
    # Compare before narrowing, in a dtype that holds `n`, too.
    wide = index.aval.dtype if index.aval.dtype == np.uint64 else np.promote_types(index.aval.dtype, dtype)
    index, length = prims.convert(b, index, wide), b.constant(n, wide)
    ok = prims.lt(b, index, length)
    if signed:
        ok = prims.and_(b, ok, prims.ge(b, index, b.constant(-n, wide)))
        index = prims.select(b, prims.lt(b, index, b.constant(0, wide)), prims.add(b, index, length), index)
    b.check(all_true(b, ok), lambda: IndexError(f"index is out of bounds for axis {axis} with size {n}"), node)
    return prims.convert(b, index, dtype)


def index_dtype(shape: Shape) -> np.dtype:
    """Return the narrower index dtype that counts every axis of `shape`; a symbolic one may have any length."""
    return np.dtype("int32" if all(type(n) is int and n < 2**31 for n in shape) else "int64")


def axis_positions(b: JaxprBuilder, node: Apply | None, index: Atom, axis: int, n: int, dtype: np.dtype) -> Atom:
    """Return checked indices of one axis, counted from its start, as `dtype`; known ones are checked at once."""
    value = b.known(index)
    if value is None or type(n) is not int:
        return runtime_positions(b, node, index, axis, n, dtype)
    return b.constant(known_positions(value, axis, n), dtype)


class Points(NamedTuple):
    """Index arrays as a gather or scatter takes them."""

    indices: Atom  #: the index vectors, along the last axis
    axes: tuple[int, ...]  #: the axes that they index
    shape: Shape  #: the shape that reading at them gives
    window: tuple[int, ...]  #: the axes of that shape that come from axes which are not indexed
    valid: bool  #: whether there is an element to read or write


def resolve_points(b: JaxprBuilder, node: Apply | None, shape: Shape, arrays: dict[int, Atom]) -> Points:
    """Return the index arrays of an array of `shape` as one array of index vectors, after checking them."""
    axes = tuple(arrays)
    common = broadcast_indices([array.aval.shape for array in arrays.values()])
    rest = [n for axis, n in enumerate(shape) if axis not in arrays]
    # NumPy: the indexed dimensions stay where they are if they are next to each other, else they come first.
    lead = axes[0] if axes == tuple(range(axes[0], axes[0] + len(axes))) else 0
    result = (*rest[:lead], *common, *rest[lead:])
    window = (*range(lead), *range(lead + len(common), len(result)))
    indices = None
    if 0 not in common:
        indices = index_vectors(b, node, shape, arrays, common)
    else:  # NumPy looks at numbers all the same, but not at arrays
        for axis, array in arrays.items():
            if not array.aval.shape:
                axis_positions(b, node, array, axis, shape[axis], np.dtype("int64"))
    return Points(indices, axes, result, window, 0 not in result and all(shape[axis] for axis in axes))


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return NumPy's broadcast shape; a symbolic dimension broadcasts with an equal one and with 1."""
    try:
        return np.broadcast_shapes(*shapes)
    except TypeError:  # a symbolic dimension, which NumPy does not take
        return lax.broadcast_shapes(*shapes)


def broadcast_indices(shapes: Sequence[Shape]) -> Shape:
    """Return the shape that index arrays broadcast to."""
    try:
        return broadcast_shapes(*shapes)
    except ValueError:
        listed = "".join(f"{shape_text(s)} " for s in shapes)
        message = f"shape mismatch: indexing arrays could not be broadcast together with shapes {listed}"
        raise IndexError(message) from None


def index_vectors(b: JaxprBuilder, node: Apply | None, shape: Shape, arrays: dict, common: Shape) -> Atom:
    """Return the array of index vectors."""
    lengths = tuple(shape[axis] for axis in arrays)
    dtype, values = index_dtype(lengths), [b.known(array) for array in arrays.values()]
    if all(v is not None for v in values) and all(type(n) is int for n in lengths):
        given = [in_order_given(node, v) for v in values]
        make = partial(known_vectors, values, given, tuple(arrays), lengths, common)
        (array, *others), (value, *_) = arrays.values(), values
        is_large = value.nbytes > WIDE_CONSTANT_BYTES and array not in b.constvars
        if not others and is_large and value.min() >= 0:  # the program need not hold the indices a second time
            column = prims.broadcast_in_dim(b, prims.convert(b, array, dtype), (*common, 1), range(len(common)))
            return b.remember(column, make())
        return b.constant_of(make, arrays.values(), ("index vectors", *arrays, *lengths))
    atoms = [axis_positions(b, node, array, axis, shape[axis], dtype) for axis, array in arrays.items()]
    atoms = [prims.broadcast_to(b, atom, common) for atom in atoms]
    atoms = [prims.broadcast_in_dim(b, atom, (*common, 1), range(len(common))) for atom in atoms]
    return prims.concatenate(b, atoms, len(common))


def known_vectors(
    values: Sequence[np.ndarray], given: Sequence[np.ndarray], axes: Sequence[int], lengths: Shape, common: Shape
) -> np.ndarray:
    """Return index vectors of known arrays; errors name those of `given`, as the user gave them: see `sorted_rows`."""
    for each in zip(given, axes, lengths, strict=True):
        check_positions(*each)
    columns = [known_positions(*each) for each in zip(values, axes, lengths, strict=True)]
    return np.stack([np.broadcast_to(c, common) for c in columns], -1).astype(index_dtype(lengths))


def all_differ(vectors: np.ndarray | None, shape: Shape) -> bool:
    """Return whether index vectors into an array of `shape` are known, and no two are equal."""
    if vectors is None or math.prod(vectors.shape[:-1]) > math.prod(shape):
        return False
    flat = np.ravel_multi_index(tuple(np.moveaxis(vectors, -1, 0)), shape).ravel()
    return len(np.unique(flat)) == len(flat)


def gather_points(b: JaxprBuilder, x: Atom, points: Points) -> Atom:
    """Emit the elements of `x` at `points`."""
    if not points.valid:
        return prims.broadcast_to(b, b.constant(0, x.aval.dtype), points.shape)
    is_safe = b.checked or b.known(points.indices) is not None
    mode = GatherScatterMode.PROMISE_IN_BOUNDS if is_safe else GatherScatterMode.FILL_OR_DROP
    dims = GatherDimensionNumbers(points.window, points.axes, points.axes)
    sizes = tuple(1 if axis in points.axes else n for axis, n in enumerate(x.aval.shape))
    return prims.gather(b, x, points.indices, dims, sizes, points.shape, mode)


def scatter_points(b: JaxprBuilder, x: Atom, y: Atom, points: Points, how: str) -> Atom:
    """Emit `x` with `y` written, or added, at `points`."""
    if not points.valid:
        return x
    if how == "add once":  # as `x[indices] += y`: of equal indices the last one counts
        y, how = add_or_any(b, gather_points(b, x, points), y), "set"
    if how == "add" and x.aval.dtype == bool:
        x, y = prims.convert(b, x, "int32"), prims.convert(b, y, "int32")
        return prims.ne(b, scatter_points(b, x, y, points, how), b.constant(np.int32(0)))
    if is_diagonal(b.known(points.indices), x.aval.shape, points.axes):
        return write_diagonal(b, x, y, points.axes[0], how)
    if how == "add" and b.is_inner and CPU(b) and (sums := add_to_groups(b, x, points.indices, y)) is not None:
        return sums
    dims = ScatterDimensionNumbers(points.window, points.axes, points.axes)
    shape = tuple(x.aval.shape[axis] for axis in points.axes)
    vectors = b.known(points.indices)
    unique = all_differ(vectors, shape)
    if how == "add" or unique:
        scatter = prims.scatter if how == "set" else prims.scatter_add
        return scatter(b, x, points.indices, y, dims, unique)
    if vectors is not None and all(type(n) is int for n in shape):
        return prims.scatter(b, x, b.constant(only_last(vectors, shape)), y, dims)

    def in_order(b: JaxprBuilder, x: Atom, indices: Atom, y: Atom) -> list[Atom]:
        return [prims.scatter(b, x, indices, y, dims)]

    def in_any_order(b: JaxprBuilder, x: Atom, indices: Atom, y: Atom) -> list[Atom]:
        return [prims.scatter(b, x, last_of_equal(b, indices, shape), y, dims)]

    return emit_one_of(b, ON_CPU, in_order, in_any_order, [x, points.indices, y])[0]


#: An index that scatters drop.
DROPPED = -1


def only_last(vectors: np.ndarray, shape: Shape) -> np.ndarray:
    """Return index vectors into an array of `shape`, with all but the last of equal ones `DROPPED`."""
    flat = np.ravel_multi_index(tuple(np.moveaxis(vectors, -1, 0)), shape)
    last = np.unique(flat.ravel()[::-1], return_index=True)[1]
    kept = np.zeros(flat.size, bool)
    kept[flat.size - 1 - last] = True
    return np.where(kept.reshape((*flat.shape, 1)), vectors, DROPPED).astype(vectors.dtype)


def last_of_equal(b: JaxprBuilder, vectors: Atom, shape: Shape) -> Atom:
    """Emit `only_last` of run-time index vectors: XLA for GPUs writes equal indices in any order."""
    common = vectors.aval.shape[:-1]
    order = prims.reshape(b, prims.iota(b, "int32", (math.prod(common),), 0), common)
    axes = tuple(range(len(shape)))
    none = prims.broadcast_to(b, number(b, order, DROPPED), shape)
    last = prims.scatter_max(b, none, vectors, order, ScatterDimensionNumbers((), axes, axes))
    mode = GatherScatterMode.FILL_OR_DROP
    found = prims.gather(b, last, vectors, GatherDimensionNumbers((), axes, axes), (1,) * len(axes), common, mode)
    kept = prims.broadcast_in_dim(b, prims.eq(b, found, order), vectors.aval.shape, range(len(common)))
    return prims.select(b, kept, vectors, number(b, vectors, DROPPED))


def is_diagonal(vectors: np.ndarray | None, shape: Shape, axes: Sequence[int]) -> bool:
    """Return whether index vectors are known and run along a diagonal of two neighbouring axes: (0, 0), (1, 1), ..."""
    if vectors is None or len(axes) != 2 or axes[1] != axes[0] + 1:
        return False
    length = min(shape[axis] for axis in axes)
    return vectors.shape == (length, 2) and bool((vectors == np.arange(length)[:, None]).all())


def write_diagonal(b: JaxprBuilder, x: Atom, y: Atom, axis: int, how: str) -> Atom:
    """Emit `x` with `y` on, or added to, its diagonal of two axes, by a select that XLA fuses with the consumer."""
    shape = x.aval.shape
    repeated = axis + 1 if shape[axis] <= shape[axis + 1] else axis
    y = prims.broadcast_in_dim(b, y, shape, [i for i in range(len(shape)) if i != repeated])
    row, column = (prims.iota(b, "int32", shape, axis + i) for i in (0, 1))
    return prims.select(b, prims.eq(b, row, column), y if how == "set" else add_or_any(b, x, y), x)


def take_rows(b: JaxprBuilder, x: Atom, indices: Atom, axis: int) -> Atom:
    """Emit the elements of one axis at an index array, which takes the place of the axis."""
    return gather_points(b, x, resolve_points(b, None, x.aval.shape, {axis: indices}))


def add_or_any(b: JaxprBuilder, x: Atom, y: Atom) -> Atom:
    """Emit NumPy's sum, which is "or" for booleans."""
    return (prims.or_ if x.aval.dtype == bool else prims.add)(b, x, y)


def shape_text(shape: Shape) -> str:
    """Return a shape as NumPy's messages write it."""
    return str(tuple(shape)).replace(" ", "")


def in_range(b: JaxprBuilder, node: Apply, x: Atom, n: int, mode: str, message: str) -> Atom:
    """Emit integers as positions from 0 to ``n - 1``: checked, wrapped around, or moved to the nearest end."""
    x = prims.convert(b, x, "int64")
    last, zero = number(b, x, n - 1), number(b, x, 0)
    if mode == "wrap":
        return emit_scalar(ps.mod, "int64", b, [x, number(b, x, n)])
    if mode == "raise":
        ok = prims.and_(b, prims.ge(b, x, zero), prims.le(b, x, last))
        b.check(all_true(b, ok), lambda: ValueError(message), node)
    return prims.clamp(b, zero, x, last)


def take_along_last(b: JaxprBuilder, x: Atom, indices: Atom) -> Atom:
    """Emit each last-axis vector's elements at the positions in the same vector of `indices`; other axes agree."""
    batch = tuple(range(len(x.aval.shape) - 1))
    axis = (len(batch),)
    dims = GatherDimensionNumbers((), axis, axis, batch, batch)
    columns = prims.reshape(b, indices, (*indices.aval.shape, 1))
    sizes, shape = (1,) * len(x.aval.shape), indices.aval.shape
    if not shape[-1] or 0 in x.aval.shape:
        return prims.broadcast_to(b, number(b, x, 0), shape)
    return prims.gather(b, x, columns, dims, sizes, shape, GatherScatterMode.CLIP)
