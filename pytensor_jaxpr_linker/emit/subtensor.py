"""Indexing: reading, setting and incrementing parts of a tensor.

Static slices become slices, reversals and paddings; integers known only at run time become dynamic slices; index arrays become
one gather or scatter. Indices are checked here if they are known, else at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pytensor.graph.basic import Apply
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    unflatten_index_variables,
)

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.indexing import (
    add_or_any,
    gather_points,
    index_dtype,
    known_positions,
    resolve_points,
    runtime_positions,
    scatter_points,
    shape_text,
)
from pytensor_jaxpr_linker.emit.scalar import numpy_astype
from pytensor_jaxpr_linker.graph.lanes.ops import check_mask
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape


def static_slice_bounds(first: int) -> Callable[[Apply], list[int]]:
    """Return the function that gives the positions of a node's slice bounds; its indices begin at input `first`."""

    def positions(node: Apply) -> list[int]:
        slices = [entry for entry in node.op.idx_list if isinstance(entry, slice)]
        return [first + i for s in slices for i in (s.start, s.stop, s.step) if i is not None]

    return positions


# -- the rules ---------------------------------------------------------------------------------------------------------


@emits(Subtensor, static=static_slice_bounds(1))
def emit_Subtensor(op, node, b, x, *flat):
    """Read at slices and integers."""
    parts = split_indices(b, op.idx_list, flat, x.aval.shape)
    box = resolve_box(b, node, x.aval.shape, parts) if b.checked or all_indices_known(b, parts) else None
    if box is None:
        return read_points(b, node, x, parts)
    if not has_elements(x.aval.shape, box):
        shape = [len(r) for axis, r in enumerate(box.ranges) if axis not in parts.arrays]
        return prims.broadcast_to(b, b.constant(0, x.aval.dtype), tuple(shape))
    x = prims.rev(b, read_box(b, x, box), parts.flipped)
    return prims.squeeze(b, x, tuple(parts.arrays))


@emits(AdvancedSubtensor, static=static_slice_bounds(1))
def emit_AdvancedSubtensor(op, node, b, x, *flat):
    """Read at index arrays and slices."""
    return read_points(b, node, x, split_indices(b, op.idx_list, flat, x.aval.shape))


@emits(IncSubtensor, static=static_slice_bounds(2))
def emit_IncSubtensor(op, node, b, x, y, *flat):
    """Set or increment at slices and integers."""
    parts = split_indices(b, op.idx_list, flat, x.aval.shape)
    y = numpy_astype(b, y, x.aval.dtype)
    if not (b.checked or all_indices_known(b, parts)):
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


@emits(AdvancedIncSubtensor, static=static_slice_bounds(2))
def emit_AdvancedIncSubtensor(op, node, b, x, y, *flat):
    """Set or increment at index arrays and slices."""
    op._check_runtime_broadcast_of_vector_index(node, x.aval, y.aval, getattr(flat[0], "aval", flat[0]))
    parts = split_indices(b, op.idx_list, flat, x.aval.shape)
    how = "set" if op.set_instead_of_inc else "add once" if op.ignore_duplicates else "add"
    return write_points(b, node, x, numpy_astype(b, y, x.aval.dtype), parts, how)


# -- indices -----------------------------------------------------------------------------------------------------------


class Parts(NamedTuple):
    """An index, axis by axis."""

    ranges: list[range]  #: the positions that the slice of each axis takes, ascending; all of them beside `arrays`
    flipped: list[int]  #: axes whose slices run backwards
    arrays: dict[int, Atom]  #: integers and index arrays by axis


class Block(NamedTuple):
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
        for array in mask_positions(b, entry, shape, axis) if entry.aval.dtype == bool else (entry,):
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
    check_mask(shape, value.shape, axis)
    return [b.constant(positions) for positions in value.nonzero()]


def all_indices_known(b: JaxprBuilder, parts: Parts) -> bool:
    return all(b.known(array) is not None for array in parts.arrays.values())


# -- blocks: slices and integers ---------------------------------------------------------------------------------------


def resolve_box(b: JaxprBuilder, node: Apply, shape: Shape, parts: Parts) -> Block:
    """Return the block that slices and integers index, after checking the integers."""
    box = Block(list(parts.ranges), {})
    for axis, index in parts.arrays.items():
        value = b.known(index)
        if value is not None:
            start = int(known_positions(value, axis, shape[axis]))
            box.ranges[axis] = range(start, start + 1)
        else:
            box.starts[axis] = runtime_positions(b, node, index, axis, shape[axis], index_dtype(shape))
            box.ranges[axis] = range(1)
    return box


def has_elements(shape: Shape, box: Block) -> bool:
    """Tell whether a block has elements that the array has, too."""
    return 0 not in shape and all(map(len, box.ranges))


def box_starts(b: JaxprBuilder, shape: Shape, box: Block) -> list[Atom]:
    """Return the atoms of the positions at which a block starts."""
    dtype = index_dtype(shape)
    return [box.starts[i] if i in box.starts else b.constant(r.start, dtype) for i, r in enumerate(box.ranges)]


def read_box(b: JaxprBuilder, x: Atom, box: Block) -> Atom:
    """Emit the elements of a block, in as many dimensions as `x` has."""
    ranges = [range(n) if i in box.starts else r for i, (n, r) in enumerate(zip(x.aval.shape, box.ranges, strict=True))]
    stops = [r[-1] + 1 if r else r.start for r in ranges]
    x = prims.slice_(b, x, [r.start for r in ranges], stops, [r.step for r in ranges])
    if not box.starts:
        return x
    shape = tuple(map(len, box.ranges))
    inside = Block([range(n) for n in shape], box.starts)
    return prims.dynamic_slice(b, x, box_starts(b, x.aval.shape, inside), shape)


def write_box(b: JaxprBuilder, x: Atom, y: Atom, box: Block, is_set: bool) -> Atom:
    """Emit `x` with a block set to, or incremented by, `y`, which has the block's shape."""
    shape = x.aval.shape
    if not has_elements(shape, box):
        return x
    if y.aval.shape == shape:
        return y if is_set else add_or_any(b, x, y)
    if all(r.step == 1 for r in box.ranges):
        y = y if is_set else add_or_any(b, read_box(b, x, box), y)
        return prims.dynamic_update_slice(b, x, y, box_starts(b, shape, box))
    if box.starts:
        row = Block([range(1) if i in box.starts else range(n) for i, n in enumerate(shape)], box.starts)
        y = write_box(b, read_box(b, x, row), y, Block(box.ranges, {}), is_set)
        return prims.dynamic_update_slice(b, x, y, box_starts(b, shape, row))
    return write_strided(b, x, y, box.ranges, is_set)


def write_strided(b: JaxprBuilder, x: Atom, y: Atom, ranges: Sequence[range], is_set: bool) -> Atom:
    """Emit `x` with every `step`-th element set to, or incremented by, those of `y`: by padding, not by scattering."""
    config = [(r.start, n - 1 - r[-1], r.step - 1) for n, r in zip(x.aval.shape, ranges, strict=True)]
    spread = prims.pad(b, y, b.constant(0, y.aval.dtype), config)
    if not is_set:
        return add_or_any(b, x, spread)
    written = prims.broadcast_to(b, b.constant(True), y.aval.shape)
    return prims.select(b, prims.pad(b, written, b.constant(False), config), spread, x)


# -- points: index arrays ----------------------------------------------------------------------------------------------


def read_points(b: JaxprBuilder, node: Apply, x: Atom, parts: Parts) -> Atom:
    """Emit the elements of `x` at slices and index arrays."""
    x = prims.rev(b, read_box(b, x, Block(parts.ranges, {})), parts.flipped)
    return gather_points(b, x, resolve_points(b, node, x.aval.shape, parts.arrays)) if parts.arrays else x


def write_points(b: JaxprBuilder, node: Apply, x: Atom, y: Atom, parts: Parts, how: str) -> Atom:
    """Emit `x` with `y` written, or added, at slices and index arrays."""
    box = Block(parts.ranges, {})
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


def operands_message(x: Shape, y: Shape) -> str:
    """Return NumPy's message about the operands of ``x += y``."""
    x_text, y_text = shape_text(x), shape_text(y)
    return f"operands could not be broadcast together with shapes {x_text} {y_text} {x_text} "
