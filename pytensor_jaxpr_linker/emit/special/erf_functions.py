"""The error function's relatives: scaled, inverted, and inverted on the scale of logarithms."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytensor.scalar.math as psm

from pytensor_jaxpr_linker import prims
from pytensor_jaxpr_linker.emit.expression import (
    Value,
    erf,
    erfc,
    exp,
    expm1,
    first_of,
    floor,
    function,
    horner,
    log,
    maximum,
    minimum,
    split,
    sqrt,
    where,
)
from pytensor_jaxpr_linker.emit.special.derivative import special_function

# W. J. Cody, Rational Chebyshev approximations for the error function, Math. Comp. 23 (1969), 631-637: coefficients of
# numerators and denominators, highest power first, as in his routine CALERF.
MIDDLE_P = (
    *(2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1),
    *(2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3),
    1.23033935479799725e3,
)
MIDDLE_Q = (
    *(1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3),
    *(3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3),
)
TAIL_P = (
    *(1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1),
    *(1.60837851487422766e-2, 6.58749161529837803e-4),
)
TAIL_Q = (
    *(1.0, 2.56852019228982242e0, 1.87295284992346725e0, 5.27905102951428412e-1, 6.05183413124413191e-2),
    2.33520497626869185e-3,
)
SQRT_PI = float(np.sqrt(np.pi))
#: log(2) with 42 digits.
LOG_2 = Fraction("0.693147180559945309417232121458176568075500")

erf_inv = function(prims.erf_inv)


def exp_of_square(x: Value, sign: float = 1.0) -> Value:
    """Return ``exp(sign * x**2)``: the square of x cut to 1/16 is exact, so that rounding is not amplified (Cody)."""
    size = abs(x)
    cut = floor(size * 16.0) / 16.0
    return exp(sign * cut * cut) * exp(sign * (size - cut) * (size + cut))


def scaled_erfc(x: Value) -> Value:
    """Return ``exp(x**2) * erfc(x)`` for x >= 0, by Cody's approximations; 3 units in the last place at most."""
    center = exp(minimum(x, 0.5) * minimum(x, 0.5)) * (1 - erf(minimum(x, 0.5)))
    y = minimum(maximum(x, 0.25), 4.0)
    middle = horner(y, MIDDLE_P[::-1]) / horner(y, MIDDLE_Q[::-1])
    inverse = 1 / maximum(x, 4.0)
    z = inverse * inverse
    tail = inverse * (1 / SQRT_PI - z * horner(z, TAIL_P[::-1]) / horner(z, TAIL_Q[::-1]))
    return first_of((x < 0.46875, center), (x <= 4.0, middle), otherwise=tail)


def inverse_log_erfc(log_q: Value) -> Value:
    """Return the y >= 0 for which ``log(erfc(y))`` is `log_q`, which is at most -0.6.

    The start is S. Winitzki's formula (2008), good to 0.2 %; three of Halley's steps on the logarithm follow, whose
    rounding is not amplified however far out the tail is.
    """
    lowest = 0.9 * float(np.finfo(log_q.dtype).min)
    target = maximum(log_q, lowest)
    log_of_one_minus_square = target + log(2 - exp(target))
    half = 2 / (np.pi * 0.147) + log_of_one_minus_square * 0.5
    # The difference of the square root and `half`, which is negative in the tail.
    y = sqrt(abs(half) * sqrt(1 - (log_of_one_minus_square / half) / (half * 0.147)) - half)
    for _ in range(3):
        e = scaled_erfc(y)
        slope = (2 / SQRT_PI) / e
        step = (y * y + (target - log(e))) / slope
        # Between 0 and 1 / y (DLMF 7.8.2), which is more than the difference keeps of it far out.
        bend = minimum(maximum(slope - 2 * y, 0.0), 1 / y)
        y = y - step / (1 - step * bend * 0.5)
    return where(log_q < lowest, np.inf, y)


def inverse_erf_near_zero(x: Value) -> Value:
    """Return the inverse error function for |x| <= 1/2: XLA's approximation and one step of Newton's."""
    x = minimum(maximum(x, -0.5), 0.5)
    y = erf_inv(x)
    return y - (erf(y) - x) * exp(y * y) * (SQRT_PI / 2)


@special_function(psm.Erfc, single=True)
def complementary_erf(x: Value) -> Value:
    """The complementary error function; 3 ulp, also in its tail; 5 in float32."""
    tail = exp_of_square(minimum(maximum(x, 0.5), 30.0), -1.0) * scaled_erfc(maximum(x, 0.5))
    return where(x < 0.5, erfc(x), tail)


@special_function(psm.Erfcx, single=True)
def erfcx(x: Value) -> Value:
    """The scaled complementary error function; 3 ulp, 4 in float32."""
    size = abs(x)
    return where(x < 0, 2 * exp_of_square(minimum(size, 30.0)) - scaled_erfc(size), scaled_erfc(size))


@special_function(psm.Erfinv, single=True)
def erfinv(x: Value) -> Value:
    """The inverse error function; 2 ulp, 5 in float32."""
    size = abs(x)
    tail = inverse_log_erfc(log(1 - maximum(size, 0.5)))
    inner = inverse_erf_near_zero(x)
    return where(size <= 0.5, inner, where(x < 0, -tail, tail))


@special_function(psm.Erfcinv, single=True)
def erfcinv(x: Value) -> Value:
    """The inverse complementary error function; 2 ulp, 5 in float32."""
    tail = inverse_log_erfc(log(minimum(minimum(x, 2 - x), 0.5)))
    return first_of((x < 0.5, tail), (x > 1.5, -tail), otherwise=inverse_erf_near_zero(1 - x))


@special_function(psm.NdtriExp, single=True)
def ndtri_exp(x: Value) -> Value:
    """The normal quantile of ``exp(x)``; 3 ulp, 5 in float32.

    Near the median, where it changes its sign, ``2 * exp(x) - 1`` is ``expm1(x + log(2))``.
    """
    log_2, rest = split(LOG_2, x.dtype)
    low = x < np.log(0.25)
    upper = maximum(x, np.log(0.5))
    log_of_two_tails = where(low, minimum(x, -1.0) + log_2, log(-2 * expm1(where(upper <= 0, upper, np.nan))))
    tail = inverse_log_erfc(where(x < np.log(0.75), minimum(log_of_two_tails, -0.6), log_of_two_tails))
    inner = inverse_erf_near_zero(expm1((x + log_2) + rest))
    return np.sqrt(2.0) * first_of((low, -tail), (x > np.log(0.75), tail), (x == x, inner), otherwise=x)
