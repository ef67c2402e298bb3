"""Long arrays on CPUs: stacks of a few columns, computed column by column, and logarithms of float64 as arithmetic.

The log density of a mixture stacks the log densities of its components, and takes the logarithm of a sum of
exponentials over the stack. XLA's loops over such rows are as short as the rows, and its library for sums takes 2 ns
for each number. Elementwise equations on the stack are elementwise on its columns, and a sum over the stack is a few
additions.

For each logarithm, XLA's CPU compiler calls a function of the C library: 3 to 5 ns. Of arithmetic it makes vector
instructions: 1 ns. A library of XLA's computes sums, and the arithmetic before them, by vector instructions of its own.
So a logarithm stays as it is if only one sum reads it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape, is_variable, live_equations
from pytensor_jaxpr_linker.jaxpr.formula import Value, economized, first_of, function, horner, is_finite, where
from pytensor_jaxpr_linker.jaxpr.optimize.shared_functions import may_share
from pytensor_jaxpr_linker.jaxpr.optimize.xla_options import LIBRARY_PRODUCT
from pytensor_jaxpr_linker.jaxpr.passes import replace_equations
from pytensor_jaxpr_linker.jaxpr.traits import ELEMENTWISE_PRIMITIVES

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
        elif eqn.primitive in ELEMENTWISE_PRIMITIVES and len({stacks[x].axis for x in read}) == 1:
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
    """Return equations that make a variable the concatenation of its columns, for readers of the whole."""
    b.restart()
    axis, columns = stack
    prims.concatenate(b, [with_axis(b, column, axis) for column in columns], axis)
    return b.ending_in([x])


def with_axis(b: JaxprBuilder, column: Atom, axis: int) -> Atom:
    """Emit a column with the axis of its stack, of length 1."""
    shape = column.aval.shape
    kept = [i + (i >= axis) for i in range(len(shape))]
    return prims.broadcast_in_dim(b, column, (*shape[:axis], 1, *shape[axis:]), kept)


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
    """Emit a column of an operand that is not a stack: a number itself, or a smaller broadcast."""
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
    """Emit the elements at one position of an axis, without the axis."""
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


#: The fewest numbers whose logarithms are worth it: the formula takes 25 ms more to compile.
LEAST = LIBRARY_PRODUCT + 1
#: The same inside of special functions, which have many logarithms: the logarithms of `lgamma` and `digamma` take 0.2 s
#: more to compile.
LEAST_INSIDE = 2**15
#: Equations that XLA's library computes together with a sum, their only reader; a reshape takes no computation.
IN_SUMS = frozenset(
    {
        *(p.abs_p, p.add_p, p.div_p, p.exp_p, p.integer_pow_p, p.max_p, p.min_p, p.mul_p, p.neg_p, p.sqrt_p),
        *(p.square_p, p.sub_p, p.reshape_p, p.squeeze_p),
    }
)  # fmt: skip
SUMMING = frozenset({p.reduce_sum_p, p.dot_general_p})

FLOAT, BITS = np.finfo("float64"), np.dtype("int64")
#: The bits of the square root of 1/2, and of 1: their difference moves the numbers from there to the square root
#: of 2 to the exponent of 1.
ROOT, ONE = (int(np.float64(x).view(BITS)) for x in (math.sqrt(0.5), 1.0))
FRACTION = 2**FLOAT.nmant - 1
LOG_TWO = Fraction("0.693147180559945309417232121458176568")
#: The logarithm of 2 in two parts: products of the first with exponents are exact.
HIGH = round(float(LOG_TWO) * 2**40) / 2**40
LOW = float(LOG_TWO - Fraction(HIGH))
#: ``(2 atanh(s) / s - 2) / s**2``, by the square of s, for numbers from the square root of 1/2 to the square root of 2.
SERIES = economized([2 / (2 * k + 3) for k in range(14)], (3 - 2 * math.sqrt(2)) ** 2)


def vectorize(eqns: list[Any], b: JaxprBuilder) -> list[Any]:
    """Rewrite ``log`` and ``log1p`` of long arrays."""
    sums = sums_reading(eqns, b.outputs)

    def replace(b: JaxprBuilder, eqn: Any) -> Atom | None:
        readers = sums[eqn.outvars[0]]
        if len(readers) == 1 and NO_SUM not in readers:  # XLA's library computes the logarithm along with the sum
            return None
        value = (vector_log if eqn.primitive is p.log_p else vector_log1p)(Value(b, eqn.invars[0]))
        # In a kernel with its readers, XLA would put parts of the formula into arrays of their own.
        return prims.barrier(b, [value.atom])[0]

    return replace_equations(eqns, b, is_long_logarithm, replace)


def is_long_logarithm(eqn: Any, b: JaxprBuilder) -> bool:
    """Return whether there are many logarithms of float64, but few enough for another array."""
    if eqn.primitive not in (p.log_p, p.log1p_p):
        return False
    aval = eqn.outvars[0].aval
    least = LEAST_INSIDE if b.is_inner else LEAST
    return aval.dtype == FLOAT.dtype and may_share(aval) and aval.size >= least


#: Stands for readers other than sums.
NO_SUM = 0


def sums_reading(eqns: Sequence[Any], outputs: Sequence[Atom]) -> Mapping[Atom, set[int]]:
    """Return the ids of the sums that read each value, or arithmetic of it, and `NO_SUM` for other readers."""
    found: dict[Atom, set[int]] = defaultdict(set)
    for x in filter(is_variable, outputs):
        found[x].add(NO_SUM)
    for eqn in reversed(eqns):
        read = {id(eqn) if eqn.primitive in SUMMING else NO_SUM}
        if eqn.primitive in IN_SUMS:
            read = found[eqn.outvars[0]]
        for x in filter(is_variable, eqn.invars):
            found[x] |= read
    return found


# -- formulas ----------------------------------------------------------------------------------------------------------

bits_and, bits_right = function(prims.and_), function(prims.shift_right_logical)


def with_dtype(x: Value, dtype: np.dtype, how: Any) -> Value:
    """Return a value as another dtype: `prims.convert` keeps numbers, `prims.bitcast` keeps bits."""
    return Value(x.b, how(x.b, x.atom, dtype))


def vector_log(x: Value) -> Value:
    """Emit the logarithm. Its error is below one unit in the last place, as in the C library."""
    is_tiny = x < float(FLOAT.tiny)
    power, rest = power_and_rest(where(is_tiny, x * 2.0**54, x))
    return where_it_is_finite(x, log_of_parts(where(is_tiny, power - 54, power), rest))


def vector_log1p(x: Value) -> Value:
    """Emit ``log(1 + x)``. Where ``1 + x`` is near 1, `x` itself is the rest."""
    power, rest = power_and_rest(1 + x)
    return where_it_is_finite(1 + x, log_of_parts(power, where(power == 0, x, rest)))


def power_and_rest(x: Value) -> tuple[Value, Value]:
    """Return n and r of ``x = 2**n * (1 + r)``, for normal x above 0, with ``1 + r`` from sqrt(1/2) to sqrt(2)."""
    bits = with_dtype(x, BITS, prims.bitcast) + (ONE - ROOT)
    power = with_dtype(bits_right(bits, FLOAT.nmant) - (ONE >> FLOAT.nmant), FLOAT.dtype, prims.convert)
    return power, with_dtype(bits_and(bits, FRACTION) + ROOT, FLOAT.dtype, prims.bitcast) - 1


def log_of_parts(power: Value, rest: Value) -> Value:
    """Return ``n * log(2) + log(1 + r)``, the second as ``2 atanh(s)``, ``s = r / (2 + r)``: r and a small rest."""
    s = rest / (2 + rest)
    square, half_square = s * s, 0.5 * rest * rest
    left = half_square - (s * (half_square + square * horner(square, SERIES)) + power * LOW)
    near = rest - left
    return where(power == 0, near, power * HIGH + near)


def where_it_is_finite(x: Value, logarithm: Value) -> Value:
    """Return a logarithm of x with its values for 0, infinity, NaN and negative numbers."""
    others = first_of((x == 0, -np.inf), (x > 0, x), otherwise=np.nan)
    return where(is_finite(x) & (x > 0), logarithm, others)
