"""Bessel functions of the first kind, of real order.

The power series (DLMF 10.2.2) serves small x and Hankel's expansion (DLMF 10.17.3) large x. Between them, one continued fraction
gives the logarithmic derivative and another the modulus (Steed's method: A. Barnett, D. Feng, J. Steed and L. Goldfarb, Comput.
Phys. Commun. 8 (1974), 377-395). Next to a zero the error is relative to the modulus.
"""

from __future__ import annotations

import numpy as np
import pytensor.scalar.math as psm

from pytensor_jaxpr_linker.emit.scalar import emits_scalar
from pytensor_jaxpr_linker.emit.scalar_math.bessel_modified import is_order, parity
from pytensor_jaxpr_linker.emit.scalar_math.derivative import values
from pytensor_jaxpr_linker.emit.scalar_math.gamma_functions import cos_pi, gamma, lgamma_of_positive, sin_pi
from pytensor_jaxpr_linker.emit.scalar_math.incomplete_gamma import EPSILON
from pytensor_jaxpr_linker.jaxpr.formula import (
    Value,
    cos,
    exp,
    first_of,
    floor,
    is_finite,
    iterate,
    log,
    maximum,
    sin,
    sqrt,
    where,
)

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
    """Return p and q, for which ``(J' + i Y') / (J + i Y) = p + i q`` at order mu, |mu| <= 1/2 or x close to mu, x >= 2."""

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
    j, y = (
        where(by_hankel, far, near)
        for far, near in zip(
            hankel(size, where(by_hankel, x, 30.0), by_hankel),
            steed(where(between, size, 1.0), where(between, x, 5.0), between),
            strict=True,
        )
    )
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
    return first_of(
        (ok, value), ((x == 0) & (v == v), at_zero), ((v == np.inf) & (size < np.inf), 0.0), otherwise=np.nan
    )


@emits_scalar(psm.J0, form=values())
def j0(x: Value) -> Value:
    """The Bessel function of the first kind of order 0."""
    return jv(x.like(0.0), x)


@emits_scalar(psm.J1, form=values())
def j1(x: Value) -> Value:
    """The Bessel function of the first kind of order 1."""
    return jv(x.like(1.0), x)
