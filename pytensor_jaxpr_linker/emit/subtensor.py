"""Indexing: reading, setting and incrementing parts of a tensor.

Static slices become slices, reversals and paddings; integers known only at run time become dynamic slices; index arrays
become one gather or scatter. Indices are checked here if they are known, else at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jax.errors import InconclusiveDimensionOperation
from pytensor.graph.basic import Apply
from pytensor.tensor import subtensor

from pytensor_jaxpr_linker.base.jax_compat import SymbolicDim
from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit import blocks
from pytensor_jaxpr_linker.emit.indexing import (
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


@emits(subtensor.Subtensor, static=static_slice_bounds(1))
def emit_Subtensor(op, node, b, x, *flat):
    """Read at slices and integers."""
    parts = split_indices(b, op.idx_list, flat, x.aval.shape)
    shape = x.aval.shape
    if not (b.checked or all_in_bounds(b, shape, parts)):
        return read_points(b, node, x, parts)
    box = resolve_box(b, node, shape, parts)
    if not blocks.has_elements(shape, box):
        shape = [n for axis, n in enumerate(box.shape) if axis not in parts.arrays]
        return prims.broadcast_to(b, b.constant(0, x.aval.dtype), tuple(shape))
    x = blocks.read_spans(b, prims.rev(b, blocks.read_box(b, x, box), parts.flipped), parts.stepped)
    return prims.squeeze(b, x, tuple(parts.arrays))


@emits(subtensor.AdvancedSubtensor, static=static_slice_bounds(1))
def emit_AdvancedSubtensor(op, node, b, x, *flat):
    """Read at index arrays and slices."""
    return read_points(b, node, x, split_indices(b, op.idx_list, flat, x.aval.shape))


@emits(subtensor.IncSubtensor, static=static_slice_bounds(2))
def emit_IncSubtensor(op, node, b, x, y, *flat):
    """Set or increment at slices and integers."""
    parts = split_indices(b, op.idx_list, flat, x.aval.shape)
    y = numpy_astype(b, y, x.aval.dtype)
    if not (b.checked or all_in_bounds(b, x.aval.shape, parts)):
        return write_points(b, node, x, y, parts, "set" if op.set_instead_of_inc else "add")
    box = resolve_box(b, node, x.aval.shape, parts)
    block, is_set = box.shape, op.set_instead_of_inc
    block = tuple([parts.stepped[axis].length if axis in parts.stepped else n for axis, n in enumerate(block)])
    kept = [axis for axis in range(len(x.aval.shape)) if axis not in parts.arrays]
    shape = tuple([block[axis] for axis in kept])
    y = fit_update(b, y, shape, update_message(is_set, y.aval.shape, shape))
    y = prims.broadcast_in_dim(b, y, block, kept)
    y = prims.rev(b, y, parts.flipped)
    if parts.stepped:
        y, is_set = blocks.write_spans(b, blocks.read_box(b, x, box), y, parts.stepped, is_set), True
    return blocks.write_box(b, x, y, box, is_set)


@emits(subtensor.AdvancedIncSubtensor, static=static_slice_bounds(2))
def emit_AdvancedIncSubtensor(op, node, b, x, y, *flat):
    """Set or increment at index arrays and slices."""
    op._check_runtime_broadcast_of_vector_index(node, x.aval, y.aval, getattr(flat[0], "aval", flat[0]))
    parts = split_indices(b, op.idx_list, flat, x.aval.shape)
    how = "set" if op.set_instead_of_inc else "add once" if op.ignore_duplicates else "add"
    return write_points(b, node, x, numpy_astype(b, y, x.aval.dtype), parts, how)


# -- indices -----------------------------------------------------------------------------------------------------------


class Parts(NamedTuple):
    """An index, axis by axis."""

    spans: list[blocks.Span]  #: the ascending positions that each axis's slice takes; for `arrays`, all
    flipped: list[int]  #: axes whose slices run backwards
    arrays: dict[int, Atom]  #: integers and index arrays by axis
    #: What slices with a step take of axes of symbolic length; `spans` has these axes whole.
    stepped: dict[int, blocks.Span]
    symbolic: list[int]  #: axes whose slice has symbolic bounds


def split_indices(b: JaxprBuilder, idx_list: Sequence[Any], flat: Sequence[Any], shape: Shape) -> Parts:
    """Assign the indices of a node to the axes of an array."""
    parts = Parts([], [], {}, {}, [])
    for entry in subtensor.unflatten_index_variables(flat, idx_list):
        axis = len(parts.spans)
        if isinstance(entry, slice):
            add_slice(parts, entry, shape[axis])
            continue
        for array in mask_positions(b, entry, shape, axis) if entry.aval.dtype == bool else (entry,):
            parts.arrays[len(parts.spans)] = array
            parts.spans.append(blocks.Span(0, shape[len(parts.spans)]))
    parts.spans.extend([blocks.Span(0, n) for n in shape[len(parts.spans) :]])
    return parts


def add_slice(parts: Parts, entry: slice, n: int) -> None:
    """Add the positions that a slice takes of an axis of length `n`."""
    axis = len(parts.spans)
    start, stop, step = [None if v is None else v.item() for v in (entry.start, entry.stop, entry.step)]
    if type(n) is int and SymbolicDim not in (type(start), type(stop), type(step)):
        span = blocks.static_span(start, stop, step, n)
        step = span.step
        if step < 0:
            span = blocks.Span(span.start + (span.length - 1) * step, span.length, -step)
    else:
        parts.symbolic.append(axis)
        span = blocks.symbolic_span(start, stop, step, n)
        step = span.step
        if abs(step) != 1:
            parts.stepped[axis], span, step = span, blocks.Span(0, n), 1
        elif step < 0:
            span = blocks.Span(span.start - span.length + 1, span.length)
    if step < 0:
        parts.flipped.append(axis)
    parts.spans.append(span)


def mask_positions(b: JaxprBuilder, mask: Atom, shape: Shape, axis: int) -> list[Atom]:
    """Return the index arrays that stand for a constant mask."""
    value = b.known(mask)
    check_mask(shape, value.shape, axis)
    return [b.constant(positions) for positions in value.nonzero()]


def all_in_bounds(b: JaxprBuilder, shape: Shape, parts: Parts) -> bool:
    """Return whether integers are known to be in bounds."""
    return all(
        b.known(array) is not None
        and (type(shape[axis]) is int or known_position(b, array, axis, shape[axis]) is not None)
        for axis, array in parts.arrays.items()
    )


def known_position(b: JaxprBuilder, index: Atom, axis: int, n: int) -> int | None:
    """Return a known integer counted from the start of its axis; None if JAX can't decide that it is in bounds."""
    value = b.known(index)
    if value is None:
        return None
    if type(n) is int:
        return int(known_positions(value, axis, n))
    i = int(value)
    try:
        return i + n if -n <= i < 0 else i if 0 <= i < n else None
    except InconclusiveDimensionOperation:
        return None


# -- blocks: slices and integers ---------------------------------------------------------------------------------------


def resolve_box(b: JaxprBuilder, node: Apply, shape: Shape, parts: Parts) -> blocks.Block:
    """Return the block that slices and integers index, after checking the integers."""
    box = blocks.make_block(b, shape, parts.spans, parts.symbolic)
    for axis, index in parts.arrays.items():
        start = known_position(b, index, axis, shape[axis])
        if start is None:
            box.starts[axis] = runtime_positions(b, node, index, axis, shape[axis], index_dtype(shape))
            start = 0
        box.spans[axis] = blocks.Span(start, 1)
    return box


# -- points: index arrays ----------------------------------------------------------------------------------------------


def read_points(b: JaxprBuilder, node: Apply, x: Atom, parts: Parts) -> Atom:
    """Emit the elements of `x` at slices and index arrays."""
    box = blocks.make_block(b, x.aval.shape, parts.spans, parts.symbolic)
    x = blocks.read_spans(b, prims.rev(b, blocks.read_box(b, x, box), parts.flipped), parts.stepped)
    return gather_points(b, x, resolve_points(b, node, x.aval.shape, parts.arrays)) if parts.arrays else x


def write_points(b: JaxprBuilder, node: Apply, x: Atom, y: Atom, parts: Parts, how: str) -> Atom:
    """Emit `x` with `y` written, or added, at slices and index arrays."""
    box = blocks.make_block(b, x.aval.shape, parts.spans, parts.symbolic)
    block = blocks.read_box(b, x, box)
    part = blocks.read_spans(b, block, parts.stepped)
    points = resolve_points(b, node, part.aval.shape, parts.arrays)
    shape, given = points.shape, y.aval.shape
    message = {
        "set": f"shape mismatch: value array of shape {shape_text(given)} could not be broadcast to indexing result of"
        f" shape {shape_text(shape)}",
        "add": "array is not broadcastable to correct shape",
        "add once": operands_message(shape, given),
    }[how]
    y = fit_update(b, y, shape, message)
    rest = [axis for axis in range(len(parts.spans)) if axis not in parts.arrays]
    y = prims.rev(b, y, [points.window[rest.index(axis)] for axis in parts.flipped])
    part = blocks.write_spans(b, block, scatter_points(b, part, y, points, how), parts.stepped, is_set=True)
    return blocks.write_box(b, x, part, box, is_set=True)


# -- the value that is written -----------------------------------------------------------------------------------------


def fit_update(b: JaxprBuilder, y: Atom, shape: Shape, message: str) -> Atom:
    """Emit `y` broadcast to the written shape, without its leading 1s; `message` is the error if it does not fit."""
    given = y.aval.shape
    extra = max(0, len(given) - len(shape))
    tail = given[extra:]
    fits = all(n in (1, m) for n, m in zip(tail[::-1], shape[::-1], strict=False))
    if not fits or any(n != 1 for n in given[:extra]):
        raise ValueError(message)
    return prims.broadcast_to(b, prims.reshape(b, y, tail), shape)


def update_message(is_set: bool, given: Shape, shape: Shape) -> str:
    """Return NumPy's message about a value that does not fit the slice."""
    if is_set:
        return f"could not broadcast input array from shape {shape_text(given)} into shape {shape_text(shape)}"
    return operands_message(shape, given)


def operands_message(x: Shape, y: Shape) -> str:
    """Return NumPy's message about the operands of ``x += y``."""
    x_text, y_text = shape_text(x), shape_text(y)
    return f"operands could not be broadcast together with shapes {x_text} {y_text} {x_text} "
