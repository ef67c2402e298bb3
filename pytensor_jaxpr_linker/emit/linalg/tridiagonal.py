"""LU factors and solutions of tridiagonal systems, as LAPACK's ``gttrf`` and ``gttrs`` compute them.

XLA has only the combined solve. The factors are recurrences over the rows; each step takes the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from pytensor.tensor.linalg.solvers.tridiagonal import LUFactorTridiagonal, SolveLUFactorTridiagonal

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.scalar import number, numpy_astype
from pytensor_jaxpr_linker.emit.shape import check_length
from pytensor_jaxpr_linker.emit.tensor_basic import slice_axis
from pytensor_jaxpr_linker.graph.static_values import larger
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder

#: A step of a recurrence, from the carried values and a row to the next values and a row of results.
type RecurrenceStep = Callable[[JaxprBuilder, Sequence[Atom], Sequence[Atom]], list[Atom]]


def recurrence(
    b: JaxprBuilder, step: RecurrenceStep, carry: Sequence[Atom], xs: Sequence[Atom], backward: bool = False
) -> list:
    """Emit a step for each row of `xs`, from the last one if `backward`: the last carry, and stacked results."""
    rows = [b.aval(x.aval.shape[1:], x.aval.dtype) for x in xs]
    body, operands = b.sub_jaxpr([*(x.aval for x in carry), *rows])
    results = step(body, operands[: len(carry)], operands[len(carry) :])
    return prims.scan(b, body.build(results), [], carry, xs, xs[0].aval.shape[0], reverse=backward)


def rows_first(b: JaxprBuilder, x: Atom, axis: int) -> Atom:
    """Emit an array with one axis before the others."""
    return prims.transpose(b, x, [axis, *(i for i in range(len(x.aval.shape)) if i != axis)])


def rows_at(b: JaxprBuilder, x: Atom, axis: int) -> Atom:
    """Emit an array with its first axis at the position `axis`."""
    return prims.transpose(b, x, [*range(1, axis + 1), 0, *range(axis + 1, len(x.aval.shape))])


def padded(b: JaxprBuilder, x: Atom, before: int, after: int) -> Atom:
    """Emit an array with rows of zeros before and after the others."""
    return prims.pad(b, x, number(b, x, 0), [(before, after, 0), *[(0, 0, 0)] * (len(x.aval.shape) - 1)])


def eliminate(b: JaxprBuilder, carry: Sequence[Atom], row: Sequence[Atom]) -> list[Atom]:
    """Eliminate with the larger of the row carried and the next one, each of up to three elements."""
    (main, high), (low, next_main, next_high) = carry, row
    zero = prims.broadcast_to(b, number(b, main, 0), main.aval.shape)
    swapped = prims.lt(b, prims.abs_(b, main), prims.abs_(b, low))
    pairs = [(low, main), (next_main, high), (next_high, zero)]
    pivot, p1, p2 = (prims.select(b, swapped, x, y) for x, y in pairs)
    other, q1, q2 = (prims.select(b, swapped, y, x) for x, y in pairs)
    safe = prims.select(b, prims.eq(b, pivot, zero), number(b, pivot, 1), pivot)
    factor = prims.div(b, other, safe)
    left = [prims.sub(b, q, prims.mul(b, factor, p)) for q, p in ((q1, p1), (q2, p2))]
    return [*left, factor, pivot, p1, p2, swapped]


@emits(LUFactorTridiagonal, batched=True)
def emit_LUFactorTridiagonal(op, node, b, low, main, high):
    """The factors of L, the three diagonals of U, and the row that each row was exchanged with, counted from 1."""
    axis, n = len(main.aval.shape) - 1, main.aval.shape[-1]
    error = ValueError(f"a tridiagonal matrix of {n} rows can't be factored; it takes at least 3")
    check_length(b, node, n, 3, error)
    low, main, high = (rows_first(b, numpy_astype(b, x, node.outputs[0].type.dtype), axis) for x in (low, main, high))
    first = [prims.squeeze(b, slice_axis(b, x, 0, 0, 1), [0]) for x in (main, high)]
    # A row of zeros at the end gives the last element carried: a loop of n steps, while of n - 1 JAX could not tell
    # whether there are any.
    rows = [padded(b, low, 0, 1), *(slice_axis(b, padded(b, x, 0, k), 0, 1, n + 1) for x, k in ((main, 1), (high, 2)))]
    _, _, factors, diagonal, *upper, swapped = recurrence(b, eliminate, first, rows)
    factors, high = (slice_axis(b, x, 0, 0, n - 1) for x in (factors, upper[0]))
    upper = [diagonal, high, slice_axis(b, upper[1], 0, 0, larger(n - 2, 0))]
    swapped = prims.convert(b, swapped, "int32")
    position = prims.add(b, prims.iota(b, "int32", swapped.aval.shape, 0), b.constant(1, "int32"))
    return [rows_at(b, x, axis) for x in (factors, *upper, prims.add(b, position, swapped))]


@emits(SolveLUFactorTridiagonal, batched=True)
def emit_SolveLUFactorTridiagonal(op, node, b, low, main, high, high2, pivots, y):
    """Solve by the factors, or solve the transposed system."""
    dtype, axis = np.dtype(node.outputs[0].type.dtype), len(main.aval.shape) - 1
    if op.b_ndim == 1:
        y = prims.broadcast_in_dim(b, y, (*y.aval.shape, 1), range(axis + 1))
    n = main.aval.shape[-1]
    position = prims.add(b, prims.iota(b, "int32", pivots.aval.shape, axis), b.constant(1, "int32"))
    swapped = prims.ne(b, numpy_astype(b, pivots, "int32"), position)
    y = rows_first(b, numpy_astype(b, y, dtype), axis)
    diagonals = [*(numpy_astype(b, v, dtype) for v in (low, main, high, high2)), swapped]
    low, main, high, high2, swapped = (diagonal_rows(b, v, axis, y.aval.shape[1:]) for v in diagonals)
    lower = [low, slice_axis(b, swapped, 0, 0, n - 1)]
    upper = (main, high, high2)
    if op.transposed:
        x = solve_lower(b, lower, solve_upper(b, upper, y, True), True)
    else:
        x = solve_upper(b, upper, solve_lower(b, lower, y, False), False)
    x = rows_at(b, x, axis)
    return prims.squeeze(b, x, [axis + 1] if op.b_ndim == 1 else [])


def diagonal_rows(b: JaxprBuilder, x: Atom, axis: int, shape: tuple[int, ...]) -> Atom:
    """Emit a diagonal as rows that have the shape of the right-hand side's."""
    x = rows_first(b, x, axis)
    return prims.broadcast_in_dim(b, x, (x.aval.shape[0], *shape), range(axis + 1))


def solve_lower(b: JaxprBuilder, lower: Sequence[Atom], y: Atom, transposed: bool) -> Atom:
    """Emit the solution by the unit lower factor and the exchanges of rows."""

    def step(b: JaxprBuilder, carry: Sequence[Atom], row: Sequence[Atom]) -> list[Atom]:
        (above,), (factor, swapped, below) = carry, row
        if transposed:
            below = prims.sub(b, below, prims.mul(b, factor, above))
            return [prims.select(b, swapped, above, below), prims.select(b, swapped, below, above)]
        first, second = prims.select(b, swapped, below, above), prims.select(b, swapped, above, below)
        return [prims.sub(b, second, prims.mul(b, factor, first)), first]

    n = y.aval.shape[0]
    start, zeros = ((n - 1, n), (1, 0)) if transposed else ((0, 1), (0, 1))
    carry = [prims.squeeze(b, slice_axis(b, y, 0, *start), [0])]
    others = slice_axis(b, padded(b, y, *zeros), 0, *((0, n) if transposed else (1, n + 1)))
    # A row of zeros gives the last one carried, see `emit_LUFactorTridiagonal`.
    return recurrence(b, step, carry, [*(padded(b, x, *zeros) for x in lower), others], transposed)[-1]


def solve_upper(b: JaxprBuilder, upper: Sequence[Atom], y: Atom, transposed: bool) -> Atom:
    """Emit the solution by the upper factor, with three elements in each row."""

    def step(b: JaxprBuilder, carry: Sequence[Atom], row: Sequence[Atom]) -> list[Atom]:
        (x1, x2), (main, high, high2, y) = carry, row
        known = prims.add(b, prims.mul(b, high, x1), prims.mul(b, high2, x2))
        x = prims.div(b, prims.sub(b, y, known), main)
        return [x, x1, x]

    main, *others = upper
    diagonals = [padded(b, x, *((k, 0) if transposed else (0, k))) for k, x in enumerate(others, 1)]
    zero = prims.broadcast_to(b, number(b, y, 0), y.aval.shape[1:])
    return recurrence(b, step, [zero, zero], [main, *diagonals, y], not transposed)[-1]
