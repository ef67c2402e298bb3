"""The regularized incomplete gamma functions P and Q, and their inverses.

P is its power series (DLMF 8.7.1) below the transition at x = a, and Q its continued fraction (DLMF 8.9.2) above. Both
converge slowly close to the transition of a large a; Temme's uniform expansion (DLMF 8.12.3) serves there. The factor
``x**a exp(-x)`` is C. Loader's (Fast and accurate computation of binomial probabilities, 2000), which subtracts nothing
large.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np
import pytensor.scalar.math as psm

from pytensor_jaxpr_linker.emit.scalar import emits_scalar
from pytensor_jaxpr_linker.emit.scalar_math.derivative import values
from pytensor_jaxpr_linker.emit.scalar_math.erf_functions import inverse_erf_near_zero, inverse_log_erfc, scaled_erfc
from pytensor_jaxpr_linker.emit.scalar_math.gamma_functions import (
    BERNOULLI,
    LARGE,
    gamma_of_positive,
    lgamma_of_one_plus,
    lgamma_of_positive,
    stirling_error,
)
from pytensor_jaxpr_linker.jaxpr.formula import (
    Value,
    exp,
    expm1,
    first_of,
    horner,
    iterate,
    log,
    maximum,
    minimum,
    sqrt,
    where,
)

EPSILON = float(np.finfo("float64").eps)
#: From which `a` on, and up to which relative distance of x from a, Temme's expansion is used.
TEMME_FROM, TEMME_UP_TO = 200.0, 0.15


def log_ratio_minus(x: Value, a: Value, mu: Value) -> Value:
    """Return ``log(x / a) - mu`` for ``mu = (x - a) / a``; for small mu by the series of atanh (DLMF 4.6.4)."""
    small = minimum(maximum(mu, -0.4), 0.5)
    r = small / (2 + small)
    square = r * r
    series = r * (2 * square * horner(square, [1 / (2 * k + 3) for k in range(14)]) - small)
    return where((mu >= -0.4) & (mu <= 0.5), series, log(x / a) - mu)


def density(a: Value, x: Value) -> Value:
    """Return ``x**a exp(-x) / gamma(a + 1)``."""
    small = minimum(a, LARGE)
    near = minimum(x, 1000.0)
    direct = near**small * exp(-near) / gamma_of_positive(small + 1)
    large = maximum(a, LARGE)
    deviance = large * log_ratio_minus(x, large, (x - large) / large) - stirling_error(large)
    return where(a < LARGE, direct, exp(deviance) / sqrt(2 * np.pi * large))


def lower_series(a: Value, x: Value, active: Value) -> Value:
    """Return P divided by `density`."""

    def step(n, states, fixed):
        (total, term), (a, x) = states, fixed
        term = term * x / (a + n)
        total = total + term
        return (total, term), term > total * (EPSILON / 4)

    return iterate(step, [a.like(1.0), a.like(1.0)], [a, x], active=active, limit=5000)[0]


def upper_fraction(a: Value, x: Value, active: Value) -> Value:
    """Return Q divided by ``density * a``, by Lentz' evaluation of the continued fraction."""

    def step(n, states, fixed):
        (total, c, d), (a, x) = states, fixed
        numerator, denominator = n * (a - n), x + 1 - a + 2 * n
        d = 1 / (denominator + numerator * d)
        c = denominator + numerator / c
        return (total * (c * d), c, d), abs(c * d - 1) > EPSILON

    start = 1 / where(active, x + 1 - a, 1.0)
    return iterate(step, [start, start.like(1e300), start], [a, x], active=active, limit=5000)[0]


def upper_series(a: Value, x: Value) -> Value:
    """Return Q for x < 1.1 and a < 1, where 1 - P would cancel (DLMF 8.7.3)."""
    a, x = minimum(a, 1.0), minimum(maximum(x, 1e-300), 1.1)
    total, term = a.like(0.0), a.like(1.0)
    for n in range(1, 20):
        term = term * (-x / n)
        total = total + term / (a + n)
    exponent = a * log(x) - lgamma_of_one_plus(a)
    return -expm1(exponent) - exp(exponent) * a * total


@cache
def temme_coefficients() -> list[list[float]]:
    """Return the coefficients of eta in ``c_k(eta)`` (DLMF 8.12.8) by exact recurrences, without negligible ones."""
    orders, degree = 8, 16
    count = degree + 2 * orders
    # mu in powers of eta: both sides of (1 + mu) eta = mu dmu/deta.
    mu = [Fraction(0), Fraction(1)]
    for n in range(2, count + 2):
        mu.append((mu[n - 1] - sum(mu[k] * (n - k + 1) * mu[n - k + 1] for k in range(2, n))) / (n + 1))
    inverse = [Fraction(1)]
    for n in range(1, count + 1):
        inverse.append(-sum((mu[k + 1] * inverse[n - k] for k in range(1, n + 1)), Fraction(0)))
    # Powers of 1/a in the exponential of Stirling's series.
    stirling = {2 * k - 1: BERNOULLI[2 * k] / (2 * k * (2 * k - 1)) for k in range(1, orders)}
    scaled = [Fraction(1)]
    for n in range(1, orders):
        scaled.append(sum((j * s * scaled[n - j] for j, s in stirling.items() if j <= n), Fraction(0)) / n)
    rows = [inverse[1:]]
    for k in range(1, orders):
        last = rows[-1]
        rows.append([(n + 2) * last[n + 2] + (-1) ** k * scaled[k] * rows[0][n] for n in range(len(last) - 2)])
    return [
        [float(c) for n, c in enumerate(row[:degree]) if n == 0 or abs(c) * 0.16**n > 1e-18 * TEMME_FROM**k]
        for k, row in enumerate(rows)
    ]


def temme_tail(a: Value, mu: Value) -> Value:
    """Return P for x < a and Q for x >= a, where ``mu = (x - a) / a`` is small."""
    half_square = -log_ratio_minus(1 + mu, a.like(1), mu)
    eta = sqrt(2 * half_square)
    signed = where(mu < 0, -eta, eta)
    series = horner(1 / a, [horner(signed, row) for row in temme_coefficients()]) / sqrt(2 * np.pi * a)
    exponent = a * half_square
    return exp(-exponent) * (scaled_erfc(sqrt(exponent)) * 0.5 + where(mu < 0, -series, series))


def both_tails(a: Value, x: Value) -> tuple[Value, Value, Value]:
    """Return P, Q and `density` for positive finite arguments."""
    mu = (x - a) / a
    temme = (a >= TEMME_FROM) & (abs(mu) <= TEMME_UP_TO)
    below = x < maximum(a, 1.1)
    factor = density(a, x)
    lower = factor * lower_series(a, x, ~temme & below)
    upper = factor * a * upper_fraction(a, x, ~(temme | below))
    tail = temme_tail(maximum(a, TEMME_FROM), minimum(maximum(mu, -TEMME_UP_TO), TEMME_UP_TO))
    lower, upper = where(temme, tail, lower), where(temme, tail, upper)
    is_lower = where(temme, mu, where(below, -1.0, 1.0)) < 0
    complement = where((x < 1.1) & (lower > 0.7), upper_series(a, x), 1 - lower)
    return where(is_lower, lower, 1 - upper), where(is_lower, complement, upper), factor


def with_limits(a: Value, x: Value, value: Value, at_zero: float, at_infinity: float) -> Value:
    """Return `value`, or the limits of P or Q where an argument is 0 or infinite; NaN where both are, or one is < 0."""
    both = ((a == 0) & (x == 0)) | ((a == np.inf) & (x == np.inf)) | (a < 0) | (x < 0) | (a != a) | (x != x)
    low, high = (x == 0) | (a == np.inf), (a == 0) | (x == np.inf)
    return first_of((both, np.nan), (low, at_zero), (high, at_infinity), otherwise=value)


def inside(a: Value, x: Value) -> tuple[Value, Value]:
    """Return the arguments, 1 where one is not positive or not finite."""
    ok = (a > 0) & (a < np.inf) & (x > 0) & (x < np.inf)
    return where(ok, a, 1.0), where(ok, x, 1.0)


@emits_scalar(psm.GammaInc, form=values())
def gammainc(a: Value, x: Value) -> Value:
    """The regularized lower incomplete gamma function."""
    return with_limits(a, x, both_tails(*inside(a, x))[0], 0.0, 1.0)


@emits_scalar(psm.GammaIncC, form=values())
def gammaincc(a: Value, x: Value) -> Value:
    """The regularized upper incomplete gamma function."""
    return with_limits(a, x, both_tails(*inside(a, x))[1], 1.0, 0.0)


def quantile(a: Value, p: Value, q: Value) -> Value:
    """Return the x for which P is p and Q is q = 1 - p, for arguments inside the domain.

    Newton's method solves for the logarithm of the smaller one as a function of ``log(x)``. The logarithm of a gamma
    variable has a log-concave density, so this function is concave and the iteration converges from any start. The
    first guess is the larger of E. Wilson and M. Hilferty's (1931) and the lower bound ``x**a <= p gamma(a + 1)``.
    """
    target, is_lower = minimum(p, q), p <= q
    deviate = np.sqrt(2.0) * normal_deviate(target)
    z = where(is_lower, -deviate, deviate)
    cube_root = maximum(1 - 1 / (9 * a) + z / (3 * sqrt(a)), 0.0)
    bound = exp((log(p) + lgamma_of_positive(a + 1)) / a)
    start = maximum(minimum(bound, 1e300), a * cube_root * cube_root * cube_root)

    def step(n, states, fixed):
        (x,), (a, target, sign) = states, fixed
        lower, upper, factor = both_tails(a, maximum(x, 1e-300))
        value = where(sign > 0, lower, upper)
        change = -sign * log(value / target) * value / (a * factor)
        change = where(value > 0, minimum(maximum(change, -8.0), 8.0), sign * np.log(2))
        return (x * exp(change),), abs(change) > 1e-9

    sign = where(is_lower, 1.0, -1.0)
    return iterate(step, [start], [a, target, sign], active=(start > 1e-290) & (start < 1e290), limit=60)[0]


def normal_deviate(target: Value) -> Value:
    """Return the y >= 0 for which ``erfc(y)`` is twice `target`, which is at most 1/2."""
    return where(target < 0.25, inverse_log_erfc(log(2 * minimum(target, 0.25))), inverse_erf_near_zero(1 - 2 * target))


def inverse_with_limits(a: Value, p: Value, q: Value) -> Value:
    """Return `quantile` and its limits: 0 for p = 0, infinity for q = 0, NaN outside of the domain."""
    ok = (a > 0) & (a < np.inf) & (p > 0) & (q > 0)
    x = quantile(where(ok, a, 1.0), where(ok, p, 0.5), where(ok, q, 0.5))
    outside = (a < 0) | (p < 0) | (q < 0) | (a != a) | (p != p)
    return first_of((outside, np.nan), (p == 0, 0.0), (q == 0, np.inf), (ok, x), otherwise=np.nan)


@emits_scalar(psm.GammaIncInv, form=values())
def gammaincinv(a: Value, p: Value) -> Value:
    """The inverse of the regularized lower incomplete gamma function."""
    return inverse_with_limits(a, p, 1 - p)


@emits_scalar(psm.GammaIncCInv, form=values())
def gammainccinv(a: Value, q: Value) -> Value:
    """The inverse of the regularized upper incomplete gamma function."""
    return inverse_with_limits(a, 1 - q, q)
