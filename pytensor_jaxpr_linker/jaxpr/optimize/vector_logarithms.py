"""Logarithms of long arrays of float64 as arithmetic, which XLA's CPU compiler makes vector instructions of.

It calls a function of the C library for each number otherwise: 3 to 5 ns instead of 1. A library of XLA's computes sums, and the arithmetic before them, by
vector instructions of its own. So a logarithm of which only a sum is read stays as it is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, is_variable
from pytensor_jaxpr_linker.jaxpr.formula import Value, economized, first_of, function, horner, is_finite, where
from pytensor_jaxpr_linker.jaxpr.optimize.shared_functions import may_share
from pytensor_jaxpr_linker.jaxpr.optimize.xla_options import LIBRARY_PRODUCT
from pytensor_jaxpr_linker.jaxpr.passes import replace_equations

#: The fewest numbers whose logarithms are worth it: the formula takes 25 ms more to compile.
LEAST = LIBRARY_PRODUCT + 1
#: The same inside of special functions, which have many logarithms: those of `lgamma` and `digamma` take 0.2 s more to compile.
LEAST_INSIDE = 2**15
#: What XLA's library computes together with a sum, where nothing else reads it; a reshape is no computation.
IN_SUMS = frozenset(
    {
        *(p.abs_p, p.add_p, p.div_p, p.exp_p, p.integer_pow_p, p.max_p, p.min_p, p.mul_p, p.neg_p, p.sqrt_p, p.square_p),
        *(p.sub_p, p.reshape_p, p.squeeze_p),
    }
)  # fmt: skip
SUMMING = frozenset({p.reduce_sum_p, p.dot_general_p})

FLOAT, BITS = np.finfo("float64"), np.dtype("int64")
#: The bits of the square root of 1/2, and those of 1: their difference moves the numbers from there to the square root of 2 to the exponent of 1.
ROOT, ONE = (int(np.float64(x).view(BITS)) for x in (math.sqrt(0.5), 1.0))
FRACTION = 2**FLOAT.nmant - 1
LOG_TWO = Fraction("0.693147180559945309417232121458176568")
#: The logarithm of 2 in two parts: products of the first with exponents are exact.
HIGH = round(float(LOG_TWO) * 2**40) / 2**40
LOW = float(LOG_TWO - Fraction(HIGH))
#: ``(2 atanh(s) / s - 2) / s**2``, by the square of s, for numbers from the square root of 1/2 to that of 2.
SERIES = economized([2 / (2 * k + 3) for k in range(14)], (3 - 2 * math.sqrt(2)) ** 2)


def vectorize_logarithms(eqns: list[Any], b: JaxprBuilder) -> list[Any]:
    """Rewrite ``log`` and ``log1p`` of long arrays."""
    sums = sums_reading(eqns, b.outputs)

    def replace(b: JaxprBuilder, eqn: Any) -> Atom | None:
        if is_of_one_sum(sums[eqn.outvars[0]]):
            return None
        value = (vector_log if eqn.primitive is p.log_p else vector_log1p)(Value(b, eqn.invars[0]))
        # In a kernel with what reads it, XLA would put parts of the formula into arrays of their own.
        return prims.barrier(b, [value.atom])[0]

    return replace_equations(eqns, b, is_long_logarithm, replace)


def is_long_logarithm(eqn: Any, b: JaxprBuilder) -> bool:
    """Return whether there are many logarithms of float64, but not so many that another array costs too much."""
    if eqn.primitive not in (p.log_p, p.log1p_p):
        return False
    aval = eqn.outvars[0].aval
    least = LEAST_INSIDE if b.is_inner else LEAST
    return aval.dtype == FLOAT.dtype and may_share(aval) and aval.size >= least


#: What stands for readers that are no sums.
NO_SUM = 0


def sums_reading(eqns: Sequence[Any], outputs: Sequence[Atom]) -> Mapping[Atom, set[int]]:
    """Return which sums read each value, or arithmetic of it, by the ids of their equations, and `NO_SUM` if something else does."""
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


def is_of_one_sum(sums: set[int]) -> bool:
    """Return whether one sum is all that reads a value: then XLA's library computes the value along with it."""
    return len(sums) == 1 and NO_SUM not in sums


# -- formulas ----------------------------------------------------------------------------------------------------------

bits_and, bits_right = function(prims.and_), function(prims.shift_right_logical)


def with_dtype(x: Value, dtype: np.dtype, how: Any) -> Value:
    """Return a value as another dtype: `prims.convert` keeps numbers, `prims.bitcast` keeps bits."""
    return Value(x.b, how(x.b, x.atom, dtype))


def vector_log(x: Value) -> Value:
    """Emit the logarithm. Its error is below one unit in the last place, as that of the C library."""
    is_tiny = x < float(FLOAT.tiny)
    power, rest = power_and_rest(where(is_tiny, x * 2.0**54, x))
    return where_it_is_finite(x, log_of_parts(where(is_tiny, power - 54, power), rest))


def vector_log1p(x: Value) -> Value:
    """Emit ``log(1 + x)``. Where ``1 + x`` is near 1, `x` itself is the rest."""
    power, rest = power_and_rest(1 + x)
    return where_it_is_finite(1 + x, log_of_parts(power, where(power == 0, x, rest)))


def power_and_rest(x: Value) -> tuple[Value, Value]:
    """Return n and r, for which ``x = 2**n * (1 + r)`` is between the square roots of 1/2 and 2, for normal numbers above 0."""
    bits = with_dtype(x, BITS, prims.bitcast) + (ONE - ROOT)
    power = with_dtype(bits_right(bits, FLOAT.nmant) - (ONE >> FLOAT.nmant), FLOAT.dtype, prims.convert)
    return power, with_dtype(bits_and(bits, FRACTION) + ROOT, FLOAT.dtype, prims.bitcast) - 1


def log_of_parts(power: Value, rest: Value) -> Value:
    """Return ``n * log(2) + log(1 + r)``. The second is ``2 atanh(s)`` with ``s = r / (2 + r)``, written as r and what is left, which is small."""
    s = rest / (2 + rest)
    square, half_square = s * s, 0.5 * rest * rest
    left = half_square - (s * (half_square + square * horner(square, SERIES)) + power * LOW)
    near = rest - left
    return where(power == 0, near, power * HIGH + near)


def where_it_is_finite(x: Value, logarithm: Value) -> Value:
    """Return a logarithm of x, and what it is of numbers that have none: 0, infinity, NaN and those below 0."""
    others = first_of((x == 0, -np.inf), (x > 0, x), otherwise=np.nan)
    return where(is_finite(x) & (x > 0), logarithm, others)
