"""Long arrays of a few columns, computed column by column.

The log density of a mixture stacks those of its components, and takes the logarithm of a sum of exponentials over the stack. XLA's loops over such rows are as short as
the rows, and its library for sums takes 2 ns for each number. What is elementwise on the stack is elementwise on its columns, and a sum over the stack is a few additions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape, is_variable, live_equations
from pytensor_jaxpr_linker.jaxpr.optimize.xla_options import LIBRARY_PRODUCT
from pytensor_jaxpr_linker.jaxpr.traits import TRAITS, Trait

#: The most columns for which it is worth it.
MOST_COLUMNS = 4
#: The fewest rows: XLA's library for sums is left out of programs of shorter arrays, and they gain nothing.
LEAST_ROWS = LIBRARY_PRODUCT + 1
#: How two columns become one in a reduction over the stack, and the reduction over further axes.
REDUCTIONS: dict[Any, tuple[Callable[..., Atom], Callable[..., Atom]]] = {
    p.reduce_max_p: (prims.max_, prims.reduce_max),
    p.reduce_min_p: (prims.min_, prims.reduce_min),
    p.reduce_sum_p: (prims.add, prims.reduce_sum),
    p.reduce_prod_p: (prims.mul, prims.reduce_prod),
    p.reduce_and_p: (prims.and_, prims.reduce_and),
    p.reduce_or_p: (prims.or_, prims.reduce_or),
}


class Stack(NamedTuple):
    """An array as its columns along an axis, which they don't have."""

    axis: int
    columns: list[Atom]


def split_stacks(eqns: list[Any], b: JaxprBuilder) -> list[Any]:
    """Rewrite equations on long arrays that are concatenations of a few columns."""
    stacks: dict[Atom, Stack] = {}
    broadcasts = {eqn.outvars[0]: eqn for eqn in eqns if eqn.primitive is p.broadcast_in_dim_p}
    ends = set(filter(is_variable, b.outputs))
    result: list[Any] = []
    for eqn in eqns:
        b.restart(eqn)
        read, out = [x for x in eqn.invars if is_variable(x) and x in stacks], eqn.outvars[0]
        if is_stack(eqn, b) and not read:
            axis = eqn.params["dimension"]
            stacks[out] = Stack(axis, [prims.squeeze(b, x, [axis]) for x in eqn.invars])
            result += b.eqns
        elif read and is_elementwise(eqn, [stacks[x].axis for x in read]):
            stacks[out] = columns_of(b, eqn, stacks, broadcasts)
            result += b.eqns
        elif read and emit_of_columns(b, eqn, stacks[read[0]]):
            result += b.ending_in(eqn.outvars)
        else:
            for x in dict.fromkeys(read):
                result += put_together(b, x, stacks.pop(x))
            result.append(eqn)
        if out in ends and out in stacks:
            result += put_together(b, out, stacks.pop(out))
    return live_equations(result, b.outputs)[0]


def is_stack(eqn: Any, b: JaxprBuilder) -> bool:
    """Return whether an equation concatenates a few columns of a known number of rows."""
    if eqn.primitive is not p.concatenate_p or not 1 < len(eqn.invars) <= MOST_COLUMNS:
        return False
    axis, shape = eqn.params["dimension"], eqn.outvars[0].aval.shape
    if not all(type(n) is int for n in shape) or any(x.aval.shape[axis] != 1 for x in eqn.invars):
        return False
    return math.prod(shape) >= LEAST_ROWS * len(eqn.invars)


def put_together(b: JaxprBuilder, x: Atom, stack: Stack) -> list[Any]:
    """Return the equations by which a variable is the concatenation of columns, for those that read it as a whole."""
    b.restart()
    axis, columns = stack
    prims.concatenate(b, [with_axis(b, column, axis) for column in columns], axis)
    return b.ending_in([x])


def with_axis(b: JaxprBuilder, column: Atom, axis: int) -> Atom:
    """Emit a column with the axis of its stack, of length 1."""
    shape = column.aval.shape
    kept = [i + (i >= axis) for i in range(len(shape))]
    return prims.broadcast_in_dim(b, column, (*shape[:axis], 1, *shape[axis:]), kept)


def is_elementwise(eqn: Any, axes: Sequence[int]) -> bool:
    """Return whether a result is elementwise, and the stacks that it reads are all along one axis."""
    return Trait.ELEMENTWISE in TRAITS.get(eqn.primitive, Trait(0)) and len(set(axes)) == 1


def columns_of(b: JaxprBuilder, eqn: Any, stacks: Mapping[Atom, Stack], broadcasts: Mapping[Atom, Any]) -> Stack:
    """Emit an elementwise result of stacks. `broadcasts` has the equations of broadcasts by their results."""
    axis, columns = next(stacks[x] for x in eqn.invars if is_variable(x) and x in stacks)
    (out,) = eqn.outvars
    column = b.aval(shape_without(out.aval.shape, axis), out.aval.dtype)
    found = []
    for i in range(len(columns)):
        operands = []
        for x in eqn.invars:
            of_stack = is_variable(x) and x in stacks
            operands.append(stacks[x].columns[i] if of_stack else column_of(b, x, axis, i, broadcasts))
        found += b.bind_many(eqn.primitive, operands, [column], eqn.params)
    return Stack(axis, found)


def shape_without(shape: Shape, axis: int) -> Shape:
    """Return a shape without one of its axes."""
    return (*shape[:axis], *shape[axis + 1 :])


def column_of(b: JaxprBuilder, x: Atom, axis: int, i: int, broadcasts: Mapping[Atom, Any]) -> Atom:
    """Emit a column of an operand that is no stack: of a number that number, of a broadcast the broadcast of what it repeats."""
    shape = x.aval.shape
    if not shape:
        return x
    inner = broadcasts.get(x)
    if inner is None:
        return taken(b, x, axis, i)
    source, dimensions = inner.invars[0], [*inner.params["broadcast_dimensions"]]
    if axis in dimensions:
        at = dimensions.index(axis)
        del dimensions[at]
        source = taken(b, source, at, min(i, source.aval.shape[at] - 1))  # an axis of length 1 repeats
    return prims.broadcast_in_dim(b, source, shape_without(shape, axis), [k - (k > axis) for k in dimensions])


def taken(b: JaxprBuilder, x: Atom, axis: int, i: int) -> Atom:
    """Emit what is at one position of an axis, without the axis."""
    starts, stops = [0] * len(x.aval.shape), list(x.aval.shape)
    starts[axis], stops[axis] = i, i + 1
    return prims.squeeze(b, prims.slice_(b, x, starts, stops, [1] * len(stops)), [axis])


def emit_of_columns(b: JaxprBuilder, eqn: Any, stack: Stack) -> bool:
    """Emit an equation that reads one column of a stack, or reduces over its axis. Return whether it is such a one."""
    axis, columns = stack
    if eqn.primitive is p.slice_p:
        start, stop = (eqn.params[f"{which}_indices"][axis] for which in ("start", "limit"))
        return stop == start + 1 and with_axis(b, columns[start], axis).aval.shape == eqn.outvars[0].aval.shape
    if eqn.primitive not in REDUCTIONS or axis not in eqn.params["axes"]:
        return False
    combine, reduce_over = REDUCTIONS[eqn.primitive]
    total = reduce(partial(combine, b), columns)
    if axes := [k - (k > axis) for k in eqn.params["axes"] if k != axis]:
        reduce_over(b, total, axes)
    return True
