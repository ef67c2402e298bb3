"""Modified Bessel functions of real order, scaled by an exponential.

For an order between -1/2 and 1/2, K is Temme's series (J. Comput. Phys. 19 (1975), 324-337) if x < 1, else Steed's evaluation
of a continued fraction (I. Thompson and A. Barnett, Comput. Phys. Commun. 47 (1987), 245-257). The recurrence gives larger
orders. I follows from the Wronskian and the continued fraction of ``I(v + 1) / I(v)``.
"""

from __future__ import annotations

from math import fsum

import numpy as np
import pytensor.scalar.math as psm

from pytensor_jaxpr_linker.emit.scalar import emits_scalar
from pytensor_jaxpr_linker.emit.scalar_math.derivative import values
from pytensor_jaxpr_linker.emit.scalar_math.gamma_functions import hurwitz_zeta, sin_pi
from pytensor_jaxpr_linker.emit.scalar_math.incomplete_gamma import EPSILON
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.formula import (
    Value,
    exp,
    first_of,
    floor,
    function,
    horner,
    iterate,
    log,
    maximum,
    minimum,
    round_even,
    sqrt,
    where,
)

#: Orders up to which the recurrence runs: one step an order.
LARGEST_ORDER = 100_000

i0_scaled, i1_scaled = function(prims.bessel_i0e), function(prims.bessel_i1e)


def reciprocal_gamma_series(count: int) -> list[float]:
    """Return Taylor's series of ``1 / gamma(1 + z)``, by the recurrence of DLMF 5.7.2."""
    zeta = [0.0, float(np.euler_gamma)] + [hurwitz_zeta(k, 1.0) for k in range(2, count)]
    series = [1.0]
    for n in range(1, count):
        series.append(fsum((-1) ** (k + 1) * zeta[k] * series[n - k] for k in range(1, n + 1)) / n)
    return series


RECIPROCAL_GAMMA = reciprocal_gamma_series(28)


def small_sinh_ratio(x: Value) -> Value:
    """Return ``sinh(x) / x``, by its series for small x."""
    small = abs(x) < 0.5
    near = where(small, x * x, 0.0)
    series = horner(near, [1.0, 1 / 6, 1 / 120, 1 / 5040, 1 / 362880, 1 / 39916800, 1 / 6227020800])
    far = where(small, 1.0, x)
    return where(small, series, (exp(far) - exp(-far)) * 0.5 / far)


def temme_series(mu: Value, x: Value, active: Value) -> tuple[Value, Value]:
    """Return ``K(mu)`` and ``K(mu + 1)`` for 0 < x < 1 and |mu| <= 1/2."""
    square, logarithm = mu * mu, log(2 / x)
    gamma_1 = -horner(square, RECIPROCAL_GAMMA[1::2])
    gamma_2 = horner(square, RECIPROCAL_GAMMA[::2])
    angle = mu * logarithm
    sine = where(mu == 0, 1.0, np.pi * mu / sin_pi(where(mu == 0, 0.5, mu)))
    power = exp(angle)
    f = sine * (gamma_1 * ((power + 1 / power) * 0.5) + gamma_2 * small_sinh_ratio(angle) * logarithm)
    p = 0.5 * power / (gamma_2 - mu * gamma_1)
    q = 0.5 / (power * (gamma_2 + mu * gamma_1))

    def step(n, states, fixed):
        (total, next_total, f, p, q, c), (mu, z) = states, fixed
        f = (n * f + p + q) / (n * n - mu * mu)
        p, q, c = p / (n - mu), q / (n + mu), c * (z / n)
        total, next_total = total + c * f, next_total + c * (p - n * f)
        return (total, next_total, f, p, q, c), abs(c * f) > abs(total) * (EPSILON / 4)

    states = [f, p, f, p, q, f.like(1.0)]
    total, next_total, *_ = iterate(step, states, [mu, x * x * 0.25], active=active, limit=100)
    return total, next_total * (2 / x)


def steed_fraction(mu: Value, x: Value, active: Value) -> tuple[Value, Value]:
    """Return ``exp(x) K(mu)`` and ``exp(x) K(mu + 1)`` for x >= 1 and |mu| <= 1/2."""
    first = 0.25 - mu * mu
    b = 2 * (1 + x)
    d = 1 / b

    def step(n, states, fixed):
        (h, delta, s, q, q1, q2, c, a, b, d) = states
        a = a - 2 * n
        c = -a * c / (n + 1)
        q1, q2 = q2, (q1 - b * q2) / a
        q, b = q + c * q2, b + 2
        d = 1 / (b + a * d)
        delta = (b * d - 1) * delta
        s = s + q * delta
        return (h + delta, delta, s, q, q1, q2, c, a, b, d), (abs(q * delta) > abs(s) * (EPSILON / 2)) | (n < 3)

    states = [d, d, 1 + first * d, first, d.like(0.0), d.like(1.0), first, -first, b, d]
    h, _, s, *_ = iterate(step, states, active=active, limit=500)
    value = sqrt(np.pi / (2 * x)) / s
    return value, value * (mu + x + 0.5 - first * h) / x


def scaled_k(v: Value, x: Value) -> tuple[Value, Value]:
    """Return ``exp(x) K(v)`` and ``exp(x) K(v + 1)`` for v >= 0 and x > 0."""
    steps = floor(v + 0.5)
    mu = v - steps
    near = x < 1
    factor = exp(minimum(x, 1.0))
    small = temme_series(mu, minimum(x, 1.0), near)
    large = steed_fraction(mu, maximum(x, 1.0), ~near)
    states = [where(near, factor * y, z) for y, z in zip(small, large, strict=True)]

    def step(n, states, fixed):
        (k, following), (steps, order_ratio, double_inverse) = states, fixed
        return (following, (order_ratio + n * double_inverse) * following + k), n < steps

    double_inverse = 2 / x
    fixed = [steps, mu * double_inverse, double_inverse]
    k, following = iterate(step, states, fixed, active=steps > 0, limit=LARGEST_ORDER)
    return k, following


def ratio_of_i(v: Value, x: Value, active: Value) -> Value:
    """Return ``I(v + 1) / I(v)`` by its continued fraction (DLMF 10.33.1)."""

    def step(n, states, fixed):
        (total, c, d), (start, double_inverse) = states, fixed
        b = start + n * double_inverse
        d, c = 1 / (b + d), b + 1 / c
        return (total * (c * d), c, d), abs(c * d - 1) > EPSILON / 2

    first = (v + 1) * (2 / x)
    start = 1 / first
    return iterate(step, [start, first.like(1e300), start], [first, 2 / x], active=active, limit=20_000)[0]


def hankel_sum(v: Value, x: Value, sign: float, active: Value) -> Value:
    """Return the sum of the asymptotic expansion for large x (DLMF 10.40.1)."""

    def step(n, states, fixed):
        (total, term), (square, inverse) = states, fixed
        odd = 2 * n - 1
        term = term * (square - odd * odd) * (inverse / n)
        total = total + term
        return (total, term), abs(term) > abs(total) * (EPSILON / 4)

    return iterate(step, [x.like(1.0), x.like(1.0)], [4 * v * v, sign / (8 * x)], active=active, limit=200)[0]


def scaled_i_and_k(v: Value, x: Value) -> tuple[Value, Value]:
    """Return ``exp(-x) I(v)`` and ``exp(x) K(v)`` for v >= 0 and x > 0."""
    k, following = scaled_k(v, x)
    far = x > 25 + 0.5 * v * v
    wronskian = 1 / (x * (following + ratio_of_i(v, x, ~far) * k))
    return where(far, hankel_sum(v, x, -1.0, far) / sqrt(2 * np.pi * x), wronskian), k


def is_order(v: Value) -> Value:
    """Tell which orders the recurrence reaches."""
    return abs(v) <= LARGEST_ORDER


def parity(v: Value) -> Value:
    """Return -1 for odd integers, else 1."""
    return where(round_even(v) % 2.0 == 0, v.like(1.0), -1.0)


@emits_scalar(psm.Kve, form=values())
def kve(v: Value, x: Value) -> Value:
    """The modified Bessel function of the second kind, times ``exp(x)``."""
    ok = (x > 0) & (x < np.inf) & is_order(v)
    value = scaled_k(where(ok, abs(v), 0.0), where(ok, x, 1.0))[0]
    return first_of((ok, value), (x == 0, np.inf), otherwise=np.nan)


@emits_scalar(psm.Ive, form=values())
def ive(v: Value, x: Value) -> Value:
    """The modified Bessel function of the first kind, times ``exp(-abs(x))``; real for negative x if v is an integer."""
    size, integer = abs(x), v == floor(v)
    ok = (size > 0) & (size < np.inf) & is_order(v) & ((x > 0) | integer)
    order, y = where(ok, abs(v), 0.0), where(ok, size, 1.0)
    i, k = scaled_i_and_k(order, y)
    reflected = i + where(integer, 0.0, (2 / np.pi) * sin_pi(order) * exp(-2 * y) * k)
    value = where(v < 0, reflected, i) * where(x < 0, parity(v), 1.0)
    at_zero = where(v == 0, 1.0, where((v > 0) & (v < np.inf) | integer & (v < 0), v.like(0.0), np.nan))
    return first_of((ok, value), (x == 0, at_zero), otherwise=np.nan)


@emits_scalar(psm.I0, form=values())
def i0(x: Value) -> Value:
    """The modified Bessel function of the first kind of order 0."""
    return i0_scaled(x) * exp(abs(x))


@emits_scalar(psm.I1, form=values())
def i1(x: Value) -> Value:
    """The modified Bessel function of the first kind of order 1."""
    return i1_scaled(x) * exp(abs(x))
