"""Bessel functions of real order.

Modified ones are scaled by an exponential. For an order between -1/2 and 1/2, K is Temme's series (J. Comput. Phys. 19
(1975), 324-337) if x < 1, else Steed's evaluation of a continued fraction (I. Thompson and A. Barnett, Comput. Phys.
Commun. 47 (1987), 245-257). The recurrence gives larger orders. I follows from the Wronskian and the continued fraction
of ``I(v + 1) / I(v)``.

Of the functions of the first kind, the power series (DLMF 10.2.2) serves small x and Hankel's expansion (DLMF 10.17.3)
large x. Between them, one continued fraction gives the logarithmic derivative and another the modulus (Steed's method:
A. Barnett, D. Feng, J. Steed and L. Goldfarb, Comput. Phys. Commun. 8 (1974), 377-395). Next to a zero the error is
relative to the modulus.
"""

from __future__ import annotations

from math import fsum

import numpy as np
import pytensor.scalar.math as psm

from pytensor_jaxpr_linker.emit.scalar import emits_scalar
from pytensor_jaxpr_linker.emit.scalar_math.derivative import values
from pytensor_jaxpr_linker.emit.scalar_math.gamma_functions import (
    cos_pi,
    gamma,
    hurwitz_zeta,
    lgamma_of_positive,
    sin_pi,
)
from pytensor_jaxpr_linker.emit.scalar_math.incomplete_gamma import EPSILON
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.formula import (
    Value,
    cos,
    exp,
    first_of,
    floor,
    function,
    horner,
    is_finite,
    iterate,
    log,
    maximum,
    minimum,
    round_even,
    sin,
    sqrt,
    where,
)

# -- modified Bessel functions -----------------------------------------------------------------------------------------


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
    """Return which orders the recurrence reaches."""
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
    """The modified Bessel function of the first kind, times ``exp(-abs(x))``; for x < 0 real if v is an integer."""
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


# -- Bessel functions of the first kind --------------------------------------------------------------------------------


TINY = 1e-300


def power_series(v: Value, x: Value, active: Value) -> Value:
    """Return J(v) for x**2 < 4 abs(v + 1) or so; v is no negative integer."""

    def step(n, states, fixed):
        (total, term), (v, z) = states, fixed
        term = term * z / (n * (n + v))
        return (total + term, term), (abs(term) > abs(total) * (EPSILON / 4)) | (n < 1 - v)

    total, _ = iterate(step, [x.like(1.0), x.like(1.0)], [v, -0.25 * x * x], active=active, limit=500)
    small = v < 150
    direct = (x * 0.5) ** where(small, v, 0.0) / gamma(where(small, v, 0.0) + 1)
    logarithmic = exp(v * log(x * 0.5) - lgamma_of_positive(maximum(v, 150.0) + 1))
    return where(small, direct, logarithmic) * total


def logarithmic_derivative(v: Value, x: Value, active: Value) -> tuple[Value, Value]:
    """Return ``J'(v) / J(v)`` by Lentz' evaluation of its continued fraction (DLMF 10.10.1), and the sign of J(v)."""

    def away_from_zero(y: Value) -> Value:
        return where(abs(y) < TINY, TINY, y)

    def step(n, states, fixed):
        (total, c, d, sign), (start, double_inverse) = states, fixed
        b = start + n * double_inverse
        d, c = 1 / away_from_zero(b - d), away_from_zero(b - 1 / c)
        return (total * (c * d), c, d, where(d < 0, -sign, sign)), abs(c * d - 1) > EPSILON

    start = away_from_zero(v / x)
    states = [start, start, start.like(0.0), start.like(1.0)]
    total, _, _, sign = iterate(step, states, [v * (2 / x), 2 / x], active=active, limit=50_000)
    return total, sign


def modulus_fraction(mu: Value, x: Value, active: Value) -> tuple[Value, Value]:
    """Return p and q, for which ``(J' + i Y') / (J + i Y) = p + i q`` at order mu.

    Here x >= 2, and |mu| <= 1/2 or x is close to mu.
    """

    # Lentz' evaluation with complex numbers as pairs.
    def times(a, b):
        return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]

    def inverse(a):
        size = a[0] * a[0] + a[1] * a[1]
        return a[0] / size, -a[1] / size

    def step(n, states, fixed):
        (pr, pi, cr, ci, dr, di), (mu, x) = states, fixed
        a = (n + 0.5) * (n + 0.5) - mu * mu
        br, bi = 2 * x, 2 * (n + 1)
        d = inverse((br + a * dr, bi + a * di))
        reciprocal = inverse((cr, ci))
        c = (br + a * reciprocal[0], bi + a * reciprocal[1])
        delta = times(c, d)
        p = times((pr, pi), delta)
        return (*p, *c, *d), abs(delta[0] - 1) + abs(delta[1]) > EPSILON

    # The first term: a / (x b), b = 2 x + 2 i.
    a = 0.25 - mu * mu
    zero = x.like(0.0)
    b = (2 * x, x.like(2.0))
    d = inverse(b)
    states = [*d, b[0], b[1], *d]
    states[2], states[3] = x.like(1e300) + zero, zero
    pr, pi, *_ = iterate(step, states, [mu, x], active=active, limit=20_000)
    # p + i q = -1 / (2 x) + i + (i / x) a / (b + ...)
    return -0.5 / x - a * pi / x, 1 + a * pr / x


def steed(v: Value, x: Value, active: Value) -> tuple[Value, Value]:
    """Return J(v) and Y(v) for v >= 0 and x >= 2."""
    steps = maximum(floor(v - x + 1.5), 0.0)
    mu = v - steps
    slope, sign = logarithmic_derivative(v, x, active)

    def down(n, states, fixed):
        (j, derivative), (v, inverse, steps) = states, fixed
        above = (v - n + 1) * inverse * j + derivative
        return (above, (v - n) * inverse * above - j), n < steps

    top = sign * 1e-290
    j, derivative = iterate(down, [top, slope * top], [v, 1 / x, steps], active=active & (steps > 0), limit=100_000)
    f = derivative / where(j == 0, EPSILON, j)
    p, q = modulus_fraction(mu, x, active)
    gamma_ratio = (p - f) / q
    size = sqrt(2 / (np.pi * x) / ((p - f) * gamma_ratio + q))
    j_mu = where(j < 0, -size, size)
    y_mu = j_mu * gamma_ratio
    y_next = mu / x * y_mu - j_mu * (p * gamma_ratio + q)

    def up(n, states, fixed):
        (y, following), (mu, double_inverse, steps) = states, fixed
        return (following, (mu + n) * double_inverse * following - y), n < steps

    y, _ = iterate(up, [y_mu, y_next], [mu, 2 / x, steps], active=active & (steps > 0), limit=100_000)
    # Where the recurrence overflows, J underflows.
    return where(is_finite(j), top * (j_mu / j), 0.0), y


def hankel(v: Value, x: Value, active: Value) -> tuple[Value, Value]:
    """Return J(v) and Y(v) for large x."""

    def step(n, states, fixed):
        (p, q, term), (square, inverse) = states, fixed
        first, second = 4 * n - 3, 4 * n - 1
        odd = term * (square - first * first) * (inverse / (2 * n - 1))
        term = -odd * (square - second * second) * (inverse / (2 * n))
        return (p + term, q + odd, term), abs(odd) > EPSILON / 8

    one = x.like(1.0)
    p, q, _ = iterate(step, [one, x.like(0.0), one], [4 * v * v, 0.125 / x], active=active, limit=100)
    turn = 0.5 * v + 0.25
    c, s = cos_pi(turn), sin_pi(turn)
    cosine, sine = cos(x) * c + sin(x) * s, sin(x) * c - cos(x) * s
    size = sqrt(2 / (np.pi * x))
    return size * (p * cosine - q * sine), size * (p * sine + q * cosine)


def jv_of_positive(v: Value, x: Value) -> Value:
    """Return J(v) for x > 0; the order is finite."""
    integer = v == floor(v)
    order = where(integer, abs(v), v)
    size = abs(v)
    by_series = (x < 2) | ((x * x < size + 1) & (v > 0))
    by_hankel = x > 25 + 0.2 * v * v
    between = ~(by_series | by_hankel)
    series = power_series(where(by_series, order, 0.0), where(by_series, x, 1.0), by_series)
    far = hankel(size, where(by_hankel, x, 30.0), by_hankel)
    near = steed(where(between, size, 1.0), where(between, x, 5.0), between)
    j, y = (where(by_hankel, *pair) for pair in zip(far, near, strict=True))
    reflected = where(integer, j, cos_pi(size) * j - sin_pi(size) * y)
    sign = where((v < 0) & integer, parity(v), 1.0)
    return where(by_series, series, where(v < 0, reflected, j)) * sign


@emits_scalar(psm.Jv, form=values())
def jv(v: Value, x: Value) -> Value:
    """The Bessel function of the first kind. It is real for negative x if v is an integer."""
    size, integer = abs(x), v == floor(v)
    ok = (size > 0) & (size < np.inf) & is_order(v) & ((x > 0) | integer)
    value = jv_of_positive(where(ok, v, 0.0), where(ok, size, 1.0)) * where(x < 0, parity(v), 1.0)
    pole = (v < 0) & ~integer
    # The sign is that of gamma(v + 1).
    at_zero = first_of((v == 0, 1.0), (pole, parity(floor(v + 1)) * np.inf), otherwise=v.like(0.0))
    vanishes = (v == np.inf) & (size < np.inf)
    return first_of((ok, value), ((x == 0) & (v == v), at_zero), (vanishes, 0.0), otherwise=np.nan)


@emits_scalar(psm.J0, form=values())
def j0(x: Value) -> Value:
    """The Bessel function of the first kind of order 0."""
    return jv(x.like(0.0), x)


@emits_scalar(psm.J1, form=values())
def j1(x: Value) -> Value:
    """The Bessel function of the first kind of order 1."""
    return jv(x.like(1.0), x)
