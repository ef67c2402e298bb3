"""Relatives of the error function: scaled, inverted, inverted on a logarithmic scale, and Owen's T function."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from functools import cache

import numpy as np
import pytensor.scalar.math as psm

from pytensor_jaxpr_linker.emit.scalar import emits_scalar
from pytensor_jaxpr_linker.emit.scalar_math.derivative import values
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.formula import (
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
    together,
    where,
)

# M. M. Shepherd and J. G. Laframboise, Chebyshev approximation of (1 + 2x) exp(x**2) erfc(x) in 0 <= x < inf, Math.
# Comp. 36 (1981), 249-253. With u = x / (x + 3.75) that function is 1 + u * q(2u - 1), exact near 0. These are the
# coefficients of q, lowest power first, by interpolation at 24 Chebyshev nodes, computed with 60 digits.
SCALED_ERFC = (
    *(0.4750252616756552, -0.7555064588467492, 0.762677289817679, -0.5981238128373795),
    *(0.3805159525538443, -0.19590731023332641, 0.07852051305461424, -0.021795958213859577),
    *(0.0023027990935266334, 0.001208452593337095, -0.0006210252434549075, 4.071715938785341e-05),
    *(6.258098869848917e-05, -1.7812711647175662e-05, -5.0755000195908945e-06, 3.1287249860920657e-06),
    *(3.7447468942466183e-07, -4.892962108849401e-07, -2.801070614840259e-08, 7.480777477448438e-08),
    *(2.552185612304626e-09, -1.014856520777704e-08, -2.1304201785121033e-10, 8.540944854369934e-10),
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
    """Return ``exp(x**2) * erfc(x)`` for x >= 0."""
    finite = minimum(x, 1e30)  # the quotient of two infinities is NaN
    u = finite / (finite + 3.75)
    return (u * horner(u + u - 1, SCALED_ERFC) + 1) * 0.5 / (x + 0.5)


def inverse_log_erfc(log_q: Value) -> Value:
    """Return the y >= 0 with ``log(erfc(y)) = log_q``, for `log_q` of at most -0.6.

    The start is S. Winitzki's formula (2008), good to 0.2 %. Three of Halley's steps on the logarithm follow; they do
    not amplify rounding, however far out the tail is.
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
        # Between 0 and 1 / y (DLMF 7.8.2); far out, the difference keeps less than these bounds.
        bend = minimum(maximum(slope - 2 * y, 0.0), 1 / y)
        y = y - step / (1 - step * bend * 0.5)
    return where(log_q < lowest, np.inf, y)


def inverse_erf_near_zero(x: Value) -> Value:
    """Return the inverse error function for |x| <= 1/2: XLA's approximation and one step of Newton's."""
    x = minimum(maximum(x, -0.5), 0.5)
    y = erf_inv(x)
    return y - (erf(y) - x) * exp(y * y) * (SQRT_PI / 2)


@emits_scalar(psm.Erfc, form=values(single=True))
def complementary_erf(x: Value) -> Value:
    """The complementary error function, exact also in its tail."""
    tail = exp_of_square(minimum(maximum(x, 0.5), 30.0), -1.0) * scaled_erfc(maximum(x, 0.5))
    return where(x < 0.5, erfc(x), tail)


@emits_scalar(psm.Erfcx, form=values(single=True))
def erfcx(x: Value) -> Value:
    """The scaled complementary error function."""
    size = abs(x)
    return where(x < 0, 2 * exp_of_square(minimum(size, 30.0)) - scaled_erfc(size), scaled_erfc(size))


@emits_scalar(psm.Erfinv, form=values(single=True))
def erfinv(x: Value) -> Value:
    """The inverse error function."""
    size = abs(x)
    tail = inverse_log_erfc(log(1 - maximum(size, 0.5)))
    inner = inverse_erf_near_zero(x)
    return where(size <= 0.5, inner, where(x < 0, -tail, tail))


@emits_scalar(psm.Erfcinv, form=values(single=True))
def erfcinv(x: Value) -> Value:
    """The inverse complementary error function."""
    tail = inverse_log_erfc(log(minimum(minimum(x, 2 - x), 0.5)))
    return first_of((x < 0.5, tail), (x > 1.5, -tail), otherwise=inverse_erf_near_zero(1 - x))


@emits_scalar(psm.NdtriExp, form=values(single=True))
def ndtri_exp(x: Value) -> Value:
    """The normal quantile of ``exp(x)``; near the median ``2 * exp(x) - 1`` is ``expm1(x + log(2))``."""
    log_2, rest = split(LOG_2, x.dtype)
    low = x < np.log(0.25)
    upper = maximum(x, np.log(0.5))
    log_of_two_tails = where(low, minimum(x, -1.0) + log_2, log(-2 * expm1(where(upper <= 0, upper, np.nan))))
    tail = inverse_log_erfc(where(x < np.log(0.75), minimum(log_of_two_tails, -0.6), log_of_two_tails))
    inner = inverse_erf_near_zero(expm1(x + log_2) + rest)  # in one sum XLA for GPUs would add the two constants first
    return np.sqrt(2.0) * first_of((low, -tail), (x > np.log(0.75), tail), (x == x, inner), otherwise=x)


# -- Owen's T function -------------------------------------------------------------------------------------------------


#: Beyond this many standard deviations the integrand does not count.
REACH = 8.6


@cache
def gauss_legendre(count: int) -> list[tuple[float, float]]:
    """Return nodes and weights on [0, 1]: NumPy's are off by up to 100 ulp; Newton's method with 28 digits follows."""
    rule = []
    for start in np.polynomial.legendre.leggauss(count)[0].tolist():
        x = Decimal(start)
        for _ in range(3):
            last, value = Decimal(1), x
            for n in range(2, count + 1):
                last, value = value, ((2 * n - 1) * x * value - (n - 1) * last) / n
            slope = count * (last - x * value) / (1 - x * x)
            x -= value / slope
        rule.append((float((1 + x) / 2), float(1 / ((1 - x * x) * slope * slope))))
    return rule


def integral(h: Value, a: Value) -> Value:
    """Return T for h >= 0 and 0 <= a <= 1: quadrature of its integral, cut where the integrand is negligible.

    This is the method T5 of M. Patefield and D. Tandy (J. Stat. Softw. 5 (2000), 1-25) with enough nodes for every h.
    """
    end = where(h * a > REACH, REACH / h, a)
    total = end.like(0.0)
    for node, weight in gauss_legendre(27):
        x = end * node
        scaled = h * x
        total = total + weight * exp(-0.5 * (scaled * scaled)) / (1 + x * x)
    return exp_of_square(minimum(h, 50.0), -0.5) * end * total / (2 * np.pi)


def upper_tail(h: Value) -> Value:
    """Return the probability that a standard normal variable exceeds h >= 0; rounding is not amplified far out."""
    return 0.5 * exp_of_square(minimum(h, 50.0), -0.5) * scaled_erfc(h * np.sqrt(0.5))


@emits_scalar(psm.Owens_t, form=values())
def owens_t(h: Value, a: Value) -> Value:
    """Owen's T function; a > 1 is taken to 1 / a (Patefield and Tandy, equation 3)."""
    h, size = abs(h), abs(a)
    ok = (h < np.inf) & (size < np.inf)
    y, slope = where(ok, h, 1.0), where(ok, size, 1.0)
    steep = slope > 1
    product = where(steep, y * slope, 1.0)
    inner = integral(where(steep, product, y), where(steep, 1 / slope, slope))
    central = 0.25 - 0.25 * erf(y * np.sqrt(0.5)) * erf(product * np.sqrt(0.5))
    near, far = together(upper_tail, y, product)
    both = where(y <= 0.67, central, 0.5 * (near + far) - near * far)
    value = where(steep, both - inner, inner)
    # An infinite slope leaves half of the half-plane beyond h.
    result = first_of((ok, value), (h == np.inf, 0.0), (h < np.inf, 0.5 * upper_tail(h)), otherwise=np.nan)
    return where((h != h) | (a != a), np.nan, where(a < 0, -result, result))
