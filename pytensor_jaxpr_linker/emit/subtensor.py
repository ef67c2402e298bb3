"""Indexing: reading, setting and incrementing parts of a tensor.

Slices are static and become slices, reversals and paddings. Integers that are known only at run time become dynamic slices,
index arrays become one gather or scatter. That an index is in bounds is checked here if it is known, else at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.lax import GatherDimensionNumbers, GatherScatterMode, ScatterDimensionNumbers
from pytensor.graph.basic import Apply, Constant
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    unflatten_index_variables,
)

from pytensor_jaxpr_linker import prims
from pytensor_jaxpr_linker.builder import Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.emit.scalar import convert
from pytensor_jaxpr_linker.errors import DATA_SIZE, Reason
from pytensor_jaxpr_linker.registry import emits

MASK_REASON = Reason("a boolean mask selects a number of elements that is known only at run time", DATA_SIZE)


def slice_bounds(first: int) -> Callable[[Apply], list[int]]:
    """Return the function that gives the positions of a node's slice bounds; its indices begin at input `first`."""

    def positions(node: Apply) -> list[int]:
        slices = [entry for entry in node.op.idx_list if isinstance(entry, slice)]
        return [first + i for s in slices for i in (s.start, s.stop, s.step) if i is not None]

    return positions


def refuse_mask(first: int) -> Callable[[Apply], str | None]:
    """Return the refusal of nodes with a boolean mask that is not a constant."""

    def reason(node: Apply) -> str | None:
        masks = [v for v in node.inputs[first:] if getattr(v.type, "dtype", None) == "bool"]
        return None if all(isinstance(v, Constant) for v in masks) else MASK_REASON

    return reason


# -- the rules ---------------------------------------------------------------------------------------------------------


@emits(Subtensor, static=slice_bounds(1))
def emit_Subtensor(op, node, b, x, *flat):
    """Read at slices and integers."""
    parts = split_indices(b, op.idx_list, flat, x.aval.shape)
    box = resolve_box(b, node, x.aval.shape, parts) if b.checked or all_known(b, parts) else None
    if box is None:
        return read_points(b, node, x, parts)
    if not has_elements(x.aval.shape, box):
        shape = [len(r) for axis, r in enumerate(box.ranges) if axis not in parts.arrays]
        return prims.broadcast_to(b, b.constant(0, x.aval.dtype), tuple(shape))
    x = prims.rev(b, read_box(b, x, box), parts.flipped)
    return prims.squeeze(b, x, tuple(parts.arrays))


@emits(AdvancedSubtensor, static=slice_bounds(1), refuse=refuse_mask(1))
def emit_AdvancedSubtensor(op, node, b, x, *flat):
    """Read at index arrays and slices."""
    return read_points(b, node, x, split_indices(b, op.idx_list, flat, x.aval.shape))


@emits(IncSubtensor, static=slice_bounds(2))
def emit_IncSubtensor(op, node, b, x, y, *flat):
    """Set or increment at slices and integers."""
    parts = split_indices(b, op.idx_list, flat, x.aval.shape)
    y = convert(b, y, x.aval.dtype)
    if not (b.checked or all_known(b, parts)):
        return write_points(b, node, x, y, parts, "set" if op.set_instead_of_inc else "add")
    box = resolve_box(b, node, x.aval.shape, parts)
    kept = [axis for axis in range(len(x.aval.shape)) if axis not in parts.arrays]
    shape = tuple(len(box.ranges[axis]) for axis in kept)
    message = (
        f"could not broadcast input array from shape {shape_text(y.aval.shape)} into shape {shape_text(shape)}"
        if op.set_instead_of_inc
        else operands_message(shape, y.aval.shape)
    )
    y = fit_update(b, y, shape, message)
    y = prims.broadcast_in_dim(b, y, tuple(map(len, box.ranges)), kept)
    return write_box(b, x, prims.rev(b, y, parts.flipped), box, op.set_instead_of_inc)


@emits(AdvancedIncSubtensor, static=slice_bounds(2), refuse=refuse_mask(2))
def emit_AdvancedIncSubtensor(op, node, b, x, y, *flat):
    """Set or increment at index arrays and slices."""
    op._check_runtime_broadcast_of_vector_index(node, x.aval, y.aval, getattr(flat[0], "aval", flat[0]))
    parts = split_indices(b, op.idx_list, flat, x.aval.shape)
    how = "set" if op.set_instead_of_inc else "add once" if op.ignore_duplicates else "add"
    return write_points(b, node, x, convert(b, y, x.aval.dtype), parts, how)


# -- indices -----------------------------------------------------------------------------------------------------------


class Parts(NamedTuple):
    """An index, axis by axis."""

    ranges: list[range]  #: the positions that the slice of each axis takes, ascending; all of them beside `arrays`
    flipped: list[int]  #: axes whose slices run backwards
    arrays: dict[int, Atom]  #: integers and index arrays by axis


class Box(NamedTuple):
    """A block of an array: the positions taken of each axis, and where it starts on axes for which run time tells."""

    ranges: list[range]
    starts: dict[int, Atom]


def split_indices(b: JaxprBuilder, idx_list: Sequence[Any], flat: Sequence[Any], shape: Shape) -> Parts:
    """Assign the indices of a node to the axes of an array."""
    parts = Parts([], [], {})
    for entry in unflatten_index_variables(flat, idx_list):
        axis = len(parts.ranges)
        if isinstance(entry, slice):
            positions = slice_range(entry, shape[axis])
            if positions.step < 0:
                parts.flipped.append(axis)
                positions = positions[::-1]
            parts.ranges.append(positions)
            continue
        for array in mask_positions(b, entry, shape[axis:], axis) if entry.aval.dtype == bool else (entry,):
            parts.arrays[len(parts.ranges)] = array
            parts.ranges.append(range(shape[len(parts.ranges)]))
    parts.ranges.extend(map(range, shape[len(parts.ranges) :]))
    return parts


def slice_range(entry: slice, n: int) -> range:
    """Return the positions that a slice takes of an axis of length `n`; the step of fewer than two is 1."""
    bounds = (None if v is None else int(v) for v in (entry.start, entry.stop, entry.step))
    positions = range(*slice(*bounds).indices(n))
    if len(positions) < 2:
        return range(positions[0], positions[0] + 1) if positions else range(0)
    return positions


def mask_positions(b: JaxprBuilder, mask: Atom, shape: Shape, axis: int) -> list[Atom]:
    """Return the index arrays that stand for a constant mask."""
    value = b.known(mask)
    for i, (n, m) in enumerate(zip(shape, value.shape, strict=False)):
        if n != m:
            raise IndexError(
                f"boolean index did not match indexed array along axis {axis + i}; size of axis is {n}"
                f" but size of corresponding boolean axis is {m}"
            )
    return [b.constant(positions) for positions in value.nonzero()]


def all_known(b: JaxprBuilder, parts: Parts) -> bool:
    """Tell whether all integers and index arrays are known."""
    return all(b.known(array) is not None for array in parts.arrays.values())


def known_positions(value: np.ndarray, axis: int, n: int) -> np.ndarray:
    """Return known indices counted from the start of their axis; one out of bounds is an `IndexError`."""
    bad = (value >= n) | (value < -n)
    if bad.any():
        raise IndexError(f"index {value[bad].flat[0]} is out of bounds for axis {axis} with size {n}")
    value = value.astype("int64")
    return np.where(value < 0, value + n, value)


def runtime_positions(b: JaxprBuilder, node: Apply | None, index: Atom, axis: int, n: int, dtype: np.dtype) -> Atom:
    """Emit indices counted from the start of their axis, as `dtype`, and the check that they are in bounds."""
    signed = index.aval.dtype.kind == "i"
    # They are compared before they are narrowed, in a dtype that holds `n` too.
    wide = index.aval.dtype if index.aval.dtype == np.uint64 else np.promote_types(index.aval.dtype, dtype)
    index, length = prims.convert(b, index, wide), b.constant(n, wide)
    ok = prims.lt(b, index, length)
    if signed:
        ok = prims.and_(b, ok, prims.ge(b, index, b.constant(-n, wide)))
        index = prims.select(b, prims.lt(b, index, b.constant(0, wide)), prims.add(b, index, length), index)
    ok = prims.reduce_and(b, ok, range(len(ok.aval.shape))) if ok.aval.shape else ok
    b.check(ok, lambda: IndexError(f"index is out of bounds for axis {axis} with size {n}"), node)
    return prims.convert(b, index, dtype)


def index_dtype(shape: Shape) -> np.dtype:
    """Return the narrower index dtype that counts every axis of `shape`."""
    return np.dtype("int32" if all(n < 2**31 for n in shape) else "int64")


# -- blocks: slices and integers ---------------------------------------------------------------------------------------


def resolve_box(b: JaxprBuilder, node: Apply, shape: Shape, parts: Parts) -> Box:
    """Return the block that slices and integers index, after checking the integers."""
    box = Box(list(parts.ranges), {})
    for axis, index in parts.arrays.items():
        value = b.known(index)
        if value is not None:
            start = int(known_positions(value, axis, shape[axis]))
            box.ranges[axis] = range(start, start + 1)
        else:
            box.starts[axis] = runtime_positions(b, node, index, axis, shape[axis], index_dtype(shape))
            box.ranges[axis] = range(1)
    return box


def has_elements(shape: Shape, box: Box) -> bool:
    """Tell whether a block has elements that the array has, too."""
    return 0 not in shape and all(map(len, box.ranges))


def box_starts(b: JaxprBuilder, shape: Shape, box: Box) -> list[Atom]:
    """Return the atoms of the positions at which a block starts."""
    dtype = index_dtype(shape)
    return [box.starts[i] if i in box.starts else b.constant(r.start, dtype) for i, r in enumerate(box.ranges)]


def read_box(b: JaxprBuilder, x: Atom, box: Box) -> Atom:
    """Emit the elements of a block, in as many dimensions as `x` has."""
    ranges = [range(n) if i in box.starts else r for i, (n, r) in enumerate(zip(x.aval.shape, box.ranges, strict=True))]
    stops = [r[-1] + 1 if r else r.start for r in ranges]
    x = prims.slice_(b, x, [r.start for r in ranges], stops, [r.step for r in ranges])
    if not box.starts:
        return x
    shape = tuple(map(len, box.ranges))
    inside = Box([range(n) for n in shape], box.starts)
    return prims.dynamic_slice(b, x, box_starts(b, x.aval.shape, inside), shape)


def write_box(b: JaxprBuilder, x: Atom, y: Atom, box: Box, is_set: bool) -> Atom:
    """Emit `x` with a block set to, or incremented by, `y`, which has the block's shape."""
    shape = x.aval.shape
    if not has_elements(shape, box):
        return x
    if y.aval.shape == shape:
        return y if is_set else add(b, x, y)
    if all(r.step == 1 for r in box.ranges):
        y = y if is_set else add(b, read_box(b, x, box), y)
        return prims.dynamic_update_slice(b, x, y, box_starts(b, shape, box))
    if box.starts:
        row = Box([range(1) if i in box.starts else range(n) for i, n in enumerate(shape)], box.starts)
        y = write_box(b, read_box(b, x, row), y, Box(box.ranges, {}), is_set)
        return prims.dynamic_update_slice(b, x, y, box_starts(b, shape, row))
    return write_strided(b, x, y, box.ranges, is_set)


def write_strided(b: JaxprBuilder, x: Atom, y: Atom, ranges: Sequence[range], is_set: bool) -> Atom:
    """Emit `x` with every `step`-th element set to, or incremented by, those of `y`: by padding, not by scattering."""
    config = [(r.start, n - 1 - r[-1], r.step - 1) for n, r in zip(x.aval.shape, ranges, strict=True)]
    spread = prims.pad(b, y, b.constant(0, y.aval.dtype), config)
    if not is_set:
        return add(b, x, spread)
    written = prims.broadcast_to(b, b.constant(True), y.aval.shape)
    return prims.select(b, prims.pad(b, written, b.constant(False), config), spread, x)


def add(b: JaxprBuilder, x: Atom, y: Atom) -> Atom:
    """Emit NumPy's sum, which is "or" for booleans."""
    return (prims.or_ if x.aval.dtype == bool else prims.add)(b, x, y)


# -- points: index arrays ----------------------------------------------------------------------------------------------


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
    indices = index_vectors(b, node, shape, arrays, common) if 0 not in common else None
    return Points(indices, axes, result, window, 0 not in result and all(shape[axis] for axis in axes))


def broadcast_indices(shapes: Sequence[Shape]) -> Shape:
    """Return the shape that index arrays broadcast to."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        listed = "".join(f"{shape_text(s)} " for s in shapes)
        message = f"shape mismatch: indexing arrays could not be broadcast together with shapes {listed}"
        raise IndexError(message) from None


def index_vectors(b: JaxprBuilder, node: Apply | None, shape: Shape, arrays: dict, common: Shape) -> Atom:
    """Return the array of index vectors."""
    dtype = index_dtype(tuple(shape[axis] for axis in arrays))
    values = [b.known(array) for array in arrays.values()]
    columns = []
    for v, (axis, array) in zip(values, arrays.items(), strict=True):
        where = axis, shape[axis]
        columns.append(runtime_positions(b, node, array, *where, dtype) if v is None else known_positions(v, *where))
    if all(v is not None for v in values):
        return b.constant(np.stack([np.broadcast_to(c, common) for c in columns], -1).astype(dtype))
    atoms = [b.constant(c, dtype) if isinstance(c, np.ndarray) else c for c in columns]
    atoms = [prims.broadcast_to(b, atom, common) for atom in atoms]
    atoms = [prims.broadcast_in_dim(b, atom, (*common, 1), range(len(common))) for atom in atoms]
    return prims.concatenate(b, atoms, len(common))


def all_differ(vectors: np.ndarray | None, shape: Shape) -> bool:
    """Tell whether index vectors into an array of `shape` are known, and no two are equal."""
    if vectors is None:
        return False
    flat = np.ravel_multi_index(tuple(np.moveaxis(vectors, -1, 0)), shape).ravel()
    return len(np.unique(flat)) == len(flat)


def gather_points(b: JaxprBuilder, x: Atom, points: Points) -> Atom:
    """Emit the elements of `x` at `points`."""
    if not points.valid:
        return prims.broadcast_to(b, b.constant(0, x.aval.dtype), points.shape)
    mode = GatherScatterMode.PROMISE_IN_BOUNDS
    if not b.checked and b.known(points.indices) is None:
        mode = GatherScatterMode.FILL_OR_DROP
    dims = GatherDimensionNumbers(points.window, points.axes, points.axes)
    sizes = tuple(1 if axis in points.axes else n for axis, n in enumerate(x.aval.shape))
    return prims.gather(b, x, points.indices, dims, sizes, points.shape, mode)


def scatter_points(b: JaxprBuilder, x: Atom, y: Atom, points: Points, how: str) -> Atom:
    """Emit `x` with `y` written, or added, at `points`."""
    if not points.valid:
        return x
    if how == "add once":  # what `x[indices] += y` does: of equal indices the last one counts
        y, how = add(b, gather_points(b, x, points), y), "set"
    if how == "add" and x.aval.dtype == bool:
        x, y = prims.convert(b, x, "int32"), prims.convert(b, y, "int32")
        return prims.ne(b, scatter_points(b, x, y, points, how), b.constant(np.int32(0)))
    dims = ScatterDimensionNumbers(points.window, points.axes, points.axes)
    scatter = prims.scatter if how == "set" else prims.scatter_add
    unique = all_differ(b.known(points.indices), tuple(x.aval.shape[axis] for axis in points.axes))
    return scatter(b, x, points.indices, y, dims, unique)


def read_points(b: JaxprBuilder, node: Apply, x: Atom, parts: Parts) -> Atom:
    """Emit the elements of `x` at slices and index arrays."""
    x = prims.rev(b, read_box(b, x, Box(parts.ranges, {})), parts.flipped)
    return gather_points(b, x, resolve_points(b, node, x.aval.shape, parts.arrays)) if parts.arrays else x


def write_points(b: JaxprBuilder, node: Apply, x: Atom, y: Atom, parts: Parts, how: str) -> Atom:
    """Emit `x` with `y` written, or added, at slices and index arrays."""
    box = Box(parts.ranges, {})
    part = read_box(b, x, box)
    points = resolve_points(b, node, part.aval.shape, parts.arrays)
    shape, given = points.shape, y.aval.shape
    message = {
        "set": f"shape mismatch: value array of shape {shape_text(given)} could not be broadcast to indexing result of"
        f" shape {shape_text(shape)}",
        "add": "array is not broadcastable to correct shape",
        "add once": operands_message(shape, given),
    }[how]
    y = fit_update(b, y, shape, message)
    rest = [axis for axis in range(len(parts.ranges)) if axis not in parts.arrays]
    y = prims.rev(b, y, [points.window[rest.index(axis)] for axis in parts.flipped])
    return write_box(b, x, scatter_points(b, part, y, points, how), box, is_set=True)


def take_rows(b: JaxprBuilder, x: Atom, indices: Atom, axis: int) -> Atom:
    """Emit the elements of one axis at an index array, which takes the place of the axis."""
    return gather_points(b, x, resolve_points(b, None, x.aval.shape, {axis: indices}))


# -- the value that is written -----------------------------------------------------------------------------------------


def fit_update(b: JaxprBuilder, y: Atom, shape: Shape, message: str) -> Atom:
    """Emit `y` broadcast to the shape that is written, with leading 1s dropped; `message` is the error if it can't be."""
    given = y.aval.shape
    extra = max(0, len(given) - len(shape))
    tail = given[extra:]
    fits = all(n in (1, m) for n, m in zip(tail[::-1], shape[::-1], strict=False))
    if not fits or any(n != 1 for n in given[:extra]):
        raise ValueError(message)
    return prims.broadcast_to(b, prims.reshape(b, y, tail), shape)


def shape_text(shape: Shape) -> str:
    """Return a shape as NumPy's messages write it."""
    return str(tuple(shape)).replace(" ", "")


def operands_message(x: Shape, y: Shape) -> str:
    """Return NumPy's message about the operands of ``x += y``."""
    x_text, y_text = shape_text(x), shape_text(y)
    return f"operands could not be broadcast together with shapes {x_text} {y_text} {x_text} "
