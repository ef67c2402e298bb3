"""Blocks of arrays: the positions that slices take, and how a block is read and written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jax.errors import InconclusiveDimensionOperation
from jax.lax import GatherDimensionNumbers, ScatterDimensionNumbers

from pytensor_jaxpr_linker.emit.indexing import add_or_any, index_dtype
from pytensor_jaxpr_linker.emit.scalar import number
from pytensor_jaxpr_linker.graph.static_values import choice, is_at_least, larger, smaller, within
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape


class Span(NamedTuple):
    """Positions along an axis: `length` of them, ``start, start + step, ...``."""

    start: int
    length: int
    step: int = 1


class Block(NamedTuple):
    """A block of an array: the positions taken of each axis, and where it starts on axes for which run time tells."""

    spans: list[Span]
    starts: dict[int, Atom]

    @property
    def shape(self) -> Shape:
        """The shape of the block."""
        return tuple([span.length for span in self.spans])


# -- slices ------------------------------------------------------------------------------------------------------------


def static_span(start: int | None, stop: int | None, step: int | None, n: int) -> Span:
    """Return the positions that a slice takes of an axis of length `n`; the step of fewer than two is 1."""
    positions = range(*slice(start, stop, step).indices(n))
    count = len(positions)
    if count < 2:
        return Span(positions[0], 1) if count else Span(0, 0)
    return Span(positions.start, count, positions.step)


def symbolic_span(start: Any, stop: Any, step: Any, n: Any) -> Span:
    """Return the positions that a slice takes where a bound or the length `n` is a symbolic dimension.

    JAX has to decide the sign of the step, as in `jax.numpy`; else it raises `InconclusiveDimensionOperation`.
    """
    step = 1 if step is None else int(step)
    if step == 0:
        raise ValueError("slice step cannot be zero")
    # Backwards, the slice takes the positions after `stop`, up to `start`.
    first, last, offset = (start, stop, 0) if step > 0 else (stop, start, 1)
    low, from_end = (0, False) if first is None else from_start(first, n, offset)
    high, to_end = (n, True) if last is None else from_start(last, n, offset)
    high = high if to_end else smaller(high, n)
    size = larger(smaller(high - low, high) if from_end else high - low, 0)
    begin = high - 1 if step < 0 else larger(low, 0) if from_end else smaller(low, n)
    gap = abs(step)
    return Span(begin, size if gap == 1 else (size + gap - 1) // gap, step)


def from_start(bound: Any, n: Any, offset: int) -> tuple[Any, bool]:
    """Return `offset` after a bound, counted from the start, and whether the bound counts from the end."""
    try:
        return (bound + offset, False) if bound >= 0 else (bound + n + offset, True)
    except InconclusiveDimensionOperation:
        # As PyTensor's graph of the length has it: equal lengths have one form.
        is_negative = is_at_least(-1, bound)
        return within(choice(is_negative, larger(bound + n + offset, 0), smaller(bound + offset, n)), n), False


def make_block(b: JaxprBuilder, shape: Shape, spans: Sequence[Span], symbolic: Iterable[int]) -> Block:
    """Return the block of some spans; a `symbolic` one that JAX can't decide to fit starts where run time says."""
    box = Block(list(spans), {})
    for axis in symbolic:
        span = spans[axis]
        if not lies_within(span, shape[axis]):
            box.starts[axis] = b.constant(span.start, index_dtype(shape))
            box.spans[axis] = Span(0, span.length)
    return box


def lies_within(span: Span, n: Any) -> bool:
    """Return whether JAX can decide that a span lies within an axis of length `n`."""
    try:
        return span.start >= 0 and span.length >= 0 and n >= span.start + span.length
    except InconclusiveDimensionOperation:
        return False


# -- reading and writing -----------------------------------------------------------------------------------------------


def has_elements(shape: Shape, box: Block) -> bool:
    """Return whether a block has elements that the array has, too."""
    return 0 not in shape and all(box.shape)


def box_starts(b: JaxprBuilder, shape: Shape, box: Block) -> list[Atom]:
    """Return the atoms of the positions at which a block starts."""
    dtype = index_dtype(shape)
    return [box.starts[i] if i in box.starts else b.constant(r.start, dtype) for i, r in enumerate(box.spans)]


def read_box(b: JaxprBuilder, x: Atom, box: Block) -> Atom:
    """Emit the elements of a block, in as many dimensions as `x` has."""
    spans = [Span(0, n) if i in box.starts else s for i, (n, s) in enumerate(zip(x.aval.shape, box.spans, strict=True))]
    stops = [start + (count - 1) * step + 1 if count else start for start, count, step in spans]
    x = prims.slice_(b, x, [s.start for s in spans], stops, [s.step for s in spans])
    if not box.starts:
        return x
    shape = box.shape
    inside = Block([Span(0, n) for n in shape], box.starts)
    return prims.dynamic_slice(b, x, box_starts(b, x.aval.shape, inside), shape)


def write_box(b: JaxprBuilder, x: Atom, y: Atom, box: Block, is_set: bool) -> Atom:
    """Emit `x` with a block set to, or incremented by, `y`, which has the block's shape."""
    shape = x.aval.shape
    if not has_elements(shape, box):
        return x
    if y.aval.shape == shape:
        return y if is_set else add_or_any(b, x, y)
    if all(span.step == 1 for span in box.spans):
        y = y if is_set else add_or_any(b, read_box(b, x, box), y)
        return prims.dynamic_update_slice(b, x, y, box_starts(b, shape, box))
    if box.starts:
        lengths = [s.length if i in box.starts else n for i, (n, s) in enumerate(zip(shape, box.spans, strict=True))]
        row = Block([Span(0, n) for n in lengths], box.starts)
        y = write_box(b, read_box(b, x, row), y, Block(box.spans, {}), is_set)
        return prims.dynamic_update_slice(b, x, y, box_starts(b, shape, row))
    return write_strided(b, x, y, box.spans, is_set)


def write_strided(b: JaxprBuilder, x: Atom, y: Atom, spans: Sequence[Span], is_set: bool) -> Atom:
    """Emit `x` with every `step`-th element set to, or incremented by, an element of `y`: by padding, not a scatter."""
    ends = [n - 1 - start - (count - 1) * step for n, (start, count, step) in zip(x.aval.shape, spans, strict=True)]
    config = [(span.start, end, span.step - 1) for span, end in zip(spans, ends, strict=True)]
    spread = prims.pad(b, y, b.constant(0, y.aval.dtype), config)
    if not is_set:
        return add_or_any(b, x, spread)
    written = prims.broadcast_to(b, b.constant(True), y.aval.shape)
    return prims.select(b, prims.pad(b, written, b.constant(False), config), spread, x)


# -- slices with a step and a symbolic length --------------------------------------------------------------------------


def read_spans(b: JaxprBuilder, x: Atom, spans: Mapping[int, Span]) -> Atom:
    """Emit the elements at positions along some axes, one axis after the other: by a gather, as `jax.numpy`."""
    for axis, span in spans.items():
        x = take_lanes(b, x, positions_of(b, span), axis)
    return x


def positions_of(b: JaxprBuilder, span: Span) -> Atom:
    """Emit the positions of a span."""
    positions = prims.iota(b, "int64", (span.length,), 0)
    positions = prims.mul(b, positions, number(b, positions, span.step))
    return prims.add(b, positions, number(b, positions, span.start))


def take_lanes(b: JaxprBuilder, x: Atom, positions: Atom, axis: int) -> Atom:
    """Emit the elements of one axis at positions that are in bounds."""
    (count,), shape = positions.aval.shape, x.aval.shape
    window = tuple(i for i in range(len(shape)) if i != axis)
    dims = GatherDimensionNumbers(window, (axis,), (axis,))
    sizes = tuple(1 if i == axis else n for i, n in enumerate(shape))
    result = tuple(count if i == axis else n for i, n in enumerate(shape))
    return prims.gather(b, x, prims.reshape(b, positions, (count, 1)), dims, sizes, result)


def write_spans(b: JaxprBuilder, x: Atom, y: Atom, spans: Mapping[int, Span], is_set: bool) -> Atom:
    """Emit `x` with the elements that `read_spans` reads set to, or incremented by, `y`: a scatter for each axis."""
    if not spans:
        return y if is_set else add_or_any(b, x, y)
    (axis, span), *rest = spans.items()
    positions = positions_of(b, span)
    if rest or not is_set:
        y = write_spans(b, take_lanes(b, x, positions, axis), y, dict(rest), is_set)
    window = tuple(i for i in range(len(x.aval.shape)) if i != axis)
    dims = ScatterDimensionNumbers(window, (axis,), (axis,))
    return prims.scatter(b, x, prims.reshape(b, positions, (span.length, 1)), y, dims, unique_indices=True)
