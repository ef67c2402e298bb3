"""The regularized incomplete beta function and its inverse.

A continued fraction gives it on the side of the mean where the fraction converges fast. The factor ``x**a (1 - x)**b``
is C. Loader's (Fast and accurate computation of binomial probabilities, 2000).
"""

from __future__ import annotations

import numpy as np
import pytensor.scalar.math as psm

from pytensor_jaxpr_linker.emit.scalar import emits_scalar
from pytensor_jaxpr_linker.emit.scalar_math.derivative import values
from pytensor_jaxpr_linker.emit.scalar_math.gamma_functions import (
    LARGE,
    STIRLING,
    gamma_of_positive,
    lgamma_of_one_plus,
    stirling_error,
)
from pytensor_jaxpr_linker.emit.scalar_math.incomplete_gamma import EPSILON, log_ratio_minus
from pytensor_jaxpr_linker.jaxpr.formula import (
    Value,
    exp,
    expm1,
    first_of,
    iterate,
    log,
    log1p,
    maximum,
    minimum,
    sqrt,
    where,
)


def beta_density(a: Value, b: Value, x: Value, y: Value) -> Value:
    """Return ``x**a y**b / B(a, b)`` for ``y = 1 - x``, by three formulas: no, one or both parameters are large."""
    small, large = minimum(a, b), maximum(a, b)
    at_small, at_large = where(a <= b, x, y), where(a <= b, y, x)
    return first_of(
        (large < LARGE, both_small(minimum(small, LARGE), minimum(large, LARGE), at_small, at_large)),
        (small < LARGE, one_large(minimum(small, LARGE), maximum(large, LARGE), at_small, at_large)),
        otherwise=both_large(maximum(small, LARGE), maximum(large, LARGE), at_small, at_large),
    )


def both_small(a: Value, b: Value, x: Value, y: Value) -> Value:
    """Return the density from gamma functions; the smaller parameter's, which may overflow, by its recurrence."""
    ratio = gamma_of_positive(a + b + 1) / (gamma_of_positive(a + 1) * gamma_of_positive(b + 1))
    return power_of_share(x, y, a) * power_of_share(y, x, b) * (ratio * a * (b / (a + b)))


def power_of_share(x: Value, y: Value, a: Value) -> Value:
    """Return ``x**a``, where ``y = 1 - x`` is the exact one of the two if it is the smaller."""
    return where(y < 0.5, exp(a * log1p(-minimum(y, 0.5))), x**a)


def one_large(a: Value, b: Value, x: Value, y: Value) -> Value:
    """Return the density for a small a, whose gamma function is computed, and a large b, by Stirling's series."""
    ratio = a / b
    # log(gamma(a + b) / gamma(b)) - a log(b)
    exponent = a * ratio + (a + b) * log_ratio_minus(1 + ratio, b.like(1), ratio) - 0.5 * log1p(ratio)
    exponent = exponent + (stirling_error(a + b) - stirling_error(b))
    # Half of the power at a time, so that it does not underflow before the result does.
    root = power_of_share(y, x, b * 0.5)
    return root * ((b * x) ** a * exp(exponent) * (a / gamma_of_positive(a + 1))) * root


def both_large(a: Value, b: Value, x: Value, y: Value) -> Value:
    """Return the density by its deviance from the mean a / (a + b)."""
    total = a + b
    difference = x * b - y * a
    deviance = a * log_ratio_minus(x * total, a, difference / a) + b * log_ratio_minus(y * total, b, -difference / b)
    correction = stirling_error(total) - stirling_error(a) - stirling_error(b)
    return sqrt(a / total * b / (2 * np.pi)) * exp(deviance + correction)


def fraction(a: Value, b: Value, x: Value, y: Value) -> Value:
    """Return `beta_density` divided by I, for x below the mean, by Lentz' evaluation.

    The fraction is the even part of DLMF 8.17.22 (A. DiDonato and A. Morris, ACM TOMS 18 (1992), 360-373), where the
    distance from the mean is one difference without amplification.
    """

    def step(n, states, fixed):
        (total, c, d), (a, b, x, y) = states, fixed
        # A tiny a keeps its digits in the first step, where n - 1 is zero.
        before, middle = a + (n - 1), a + (2 * n - 1)
        coefficient = n * (b - n) * x / middle
        numerator = before * ((before + b) / middle) * x * coefficient
        denominator = n + coefficient + (a + n) / (middle + 2) * ((a * y - b * x) + (1 + n * (1 + y)))
        d = 1 / (denominator + numerator * d)
        c = denominator + numerator / c
        return (total * (c * d), c, d), abs(c * d - 1) > EPSILON

    start = a / (a + 1) * ((a * y - b * x) + 1)
    return iterate(step, [start, start, start.like(0.0)], [a, b, x, y], active=x == x, limit=5000)[0]


def log_leading_term(a: Value, b: Value, x: Value) -> Value:
    """Return ``log(x**a / (a B(a, b)))`` for a < 1, with a small relative error even for a tiny a.

    Stirling's series gives the ratio of gamma functions at ``b + 10``, with its terms for `a + b` and `b` subtracted as
    polynomials (ALGDIV of TOMS 708); the recurrence leads to a smaller b.
    """
    large = b >= LARGE
    excess = a.like(0.0)
    for j in range(int(LARGE)):
        ratio = a / (b + j)
        excess = excess + ratio + excess * ratio
    end = where(large, b, b + LARGE)
    ratio = a / end
    rest = (a + end) * log_ratio_minus(1 + ratio, a.like(1.0), ratio)
    value = a * log(x * end) + a * ratio + rest - 0.5 * log1p(ratio)
    return value + a * stirling_slope(end, end + a) - where(large, 0.0, log1p(excess)) - lgamma_of_one_plus(a)


def stirling_slope(x: Value, y: Value) -> Value:
    """Return ``(stirling_error(y) - stirling_error(x)) / (y - x)``, Horner's scheme for a divided difference."""
    u, v = 1 / x, 1 / y
    square, other = u * u, v * v
    value, slope = u.like(STIRLING[-1]), u.like(0.0)
    for c in reversed(STIRLING[:-1]):
        value, slope = value * square + c, slope * other + value
    return -(u * v) * (value + v * (u + v) * slope)


def complement_series(a: Value, b: Value, x: Value, active: Value) -> Value:
    """Return 1 - I for a < 1, x < 0.3 and b x < 1, where I is near 1: DLMF 8.17.7 without its first term, 1."""

    def step(n, states, fixed):
        (total, term), (a, b, x) = states, fixed
        term = term * ((n - b) * (x / n))
        total = total + term / (a + n)
        return (total, term), abs(term) > EPSILON / 4

    total, _ = iterate(step, [a.like(0.0), a.like(1.0)], [a, b, x], active=active, limit=100)
    exponent = log_leading_term(a, b, x)
    return -expm1(exponent) - exp(exponent) * (a * total)


def both_sides(a: Value, b: Value, x: Value, y: Value) -> tuple[Value, Value, Value]:
    """Return I, 1 - I and `beta_density`, for ``y = 1 - x`` and arguments inside the domain."""
    # The number of steps of the fraction grows as 1 / sqrt(a y) where y is small.
    below = (b * x <= a * y) & ((x < 0.99) | (a * y > 0.5)) | (x <= (a + 1) / (a + b + 2))
    p, q = where(below, a, b), where(below, b, a)
    z, rest = where(below, x, y), where(below, y, x)
    factor = beta_density(a, b, x, y)
    side = factor / fraction(p, q, z, rest)
    cancels = (side > 0.7) & (p < 1) & (z < 0.3) & (q * z < 1)
    p, q, z = (where(cancels, t, 0.5) for t in (p, q, z))
    series = complement_series(p, q, z, cancels)
    other = where(cancels, series, 1 - side)
    return where(below, side, other), where(below, other, side), factor


def is_inside(a: Value, b: Value, x: Value) -> Value:
    """Return where the parameters are positive and finite and x is between 0 and 1."""
    return (a > 0) & (b > 0) & (a < np.inf) & (b < np.inf) & (x > 0) & (x < 1)


@emits_scalar(psm.BetaInc, form=values())
def betainc(a: Value, b: Value, x: Value) -> Value:
    """The regularized incomplete beta function."""
    ok = is_inside(a, b, x)
    value = both_sides(where(ok, a, 1.0), where(ok, b, 1.0), where(ok, x, 0.5), where(ok, 1 - x, 0.5))[0]
    outside = (a < 0) | (b < 0) | (x < 0) | (x > 1) | (a != a) | (b != b) | (x != x)
    at_zero, at_one = (a == 0) | (b == np.inf), (b == 0) | (a == np.inf)
    return first_of(
        (ok, value),
        (outside | (at_zero & at_one), np.nan),
        (at_zero, where(x > 0, 1.0, 0.0)),
        (at_one, where(x < 1, 0.0, 1.0)),
        otherwise=x,
    )


@emits_scalar(psm.BetaIncInv, form=values())
def betaincinv(a: Value, b: Value, p: Value) -> Value:
    """The inverse of the regularized incomplete beta function in x.

    Newton's method solves for the logarithm of I or 1 - I as a function of ``logit(x)``. The logit of a beta variable
    has a log-concave density, so this function is concave and the iteration converges from any start. x and 1 - x are
    both kept.
    """
    ok = is_inside(a, b, p)
    shape_a, shape_b, level = where(ok, a, 1.0), where(ok, b, 1.0), where(ok, p, 0.5)
    mean = shape_a / (shape_a + shape_b)
    sign = where(level <= 0.5, 1.0, -1.0)
    target = where(level <= 0.5, level, 1 - level)

    def step(n, states, fixed):
        (x, y), (a, b, target, sign) = states, fixed
        lower, upper, factor = both_sides(a, b, maximum(x, 3e-308), maximum(y, 3e-308))
        value = where(sign > 0, lower, upper)
        change = -sign * log(value / target) * value / factor
        change = where(value > 0, minimum(maximum(change, -16.0), 16.0), sign * np.log(2))
        grown = x * exp(change)
        return (grown / (grown + y), y / (grown + y)), abs(change) > 1e-9

    start = [mean, shape_b / (shape_a + shape_b)]
    x, _ = iterate(step, start, [shape_a, shape_b, target, sign], active=ok, limit=80)
    in_domain = (a > 0) & (b > 0) & (p >= 0) & (p <= 1)
    at_end = (p == 0) | (p == 1)
    at_one, at_zero = (a == np.inf) & (b < np.inf), (b == np.inf) & (a < np.inf)
    inner = first_of((at_end, p), (at_one, 1.0), (at_zero, 0.0), otherwise=np.nan)
    return first_of((ok, x), (in_domain, inner), otherwise=np.nan)
