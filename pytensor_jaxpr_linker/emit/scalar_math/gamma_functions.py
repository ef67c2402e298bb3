"""The gamma function, its logarithm, and the logarithm's derivatives.

Taylor's series about 2 (DLMF 5.7.3) serves arguments from 1.5 to 2.5, and by the recurrence others below 10; Stirling's
series (DLMF 5.11.1) serves arguments from 10 on, and reflection (DLMF 5.5.3) negative ones.
"""

from __future__ import annotations

from fractions import Fraction
from math import comb, factorial, fsum, pi

import numpy as np
import pytensor.scalar.math as psm

from pytensor_jaxpr_linker.emit.scalar import emits_scalar
from pytensor_jaxpr_linker.emit.scalar_math.derivative import values
from pytensor_jaxpr_linker.jaxpr.formula import (
    Value,
    economized,
    exp,
    first_of,
    floor,
    horner,
    log,
    log1p,
    maximum,
    minimum,
    round_even,
    split,
    where,
    zeta,
)

#: From here on, nine terms of Stirling's series are exact to the last place.
LARGE = 10.0


def bernoulli_numbers(count: int) -> list[Fraction]:
    """Return the first Bernoulli numbers by their recurrence (DLMF 24.5.3)."""
    numbers: list[Fraction] = [Fraction(1)]
    for m in range(1, count):
        numbers.append(-sum((comb(m + 1, k) * b for k, b in enumerate(numbers)), Fraction(0)) / (m + 1))
    return numbers


BERNOULLI = bernoulli_numbers(22)
#: Coefficients of odd powers of 1/x in ``lgamma(x) - (x - 1/2) log(x) + x - log(2 pi) / 2``.
STIRLING = [float(BERNOULLI[2 * k] / (2 * k * (2 * k - 1))) for k in range(1, 11)]
#: Coefficients of even powers of 1/x in ``log(x) - 1 / (2 x) - digamma(x)``.
DIGAMMA = [float(BERNOULLI[2 * k] / (2 * k)) for k in range(1, 11)]

#: Coefficients of even powers of 1/x in ``x (x (x trigamma(x) - 1) - 1/2)``.
TRIGAMMA = [float(BERNOULLI[2 * k]) for k in range(1, 11)]
#: ``sin(pi x) / x`` in powers of the square of x.
SINE = [(-1) ** k * pi ** (2 * k + 1) / factorial(2 * k + 1) for k in range(12)]


def hurwitz_zeta(s: int, q: float) -> float:
    """Return Hurwitz' zeta function for an integer s > 1 by the Euler-Maclaurin formula (DLMF 25.11.5)."""
    end = q + 100
    terms = [(q + n) ** -s for n in range(100)] + [end ** (1 - s) / (s - 1), end**-s / 2]
    terms += [s * end ** (-s - 1) / 12, -s * (s + 1) * (s + 2) * end ** (-s - 3) / 720]
    terms += [s * (s + 1) * (s + 2) * (s + 3) * (s + 4) * end ** (-s - 5) / 30240]
    return fsum(terms)


EULER_GAMMA = float(np.euler_gamma)
#: ``lgamma(2 + z) / z``.
NEAR_TWO = economized([1 - EULER_GAMMA] + [(-1) ** k * hurwitz_zeta(k, 2.0) / k for k in range(2, 29)], 0.5)
#: ``digamma(2 + z)``.
DIGAMMA_NEAR_TWO = economized([1 - EULER_GAMMA] + [(-1) ** k * hurwitz_zeta(k, 2.0) for k in range(2, 29)], 0.5)
#: The positive zero of digamma, and Taylor's series there: ``digamma(x) / (x - zero)``.
DIGAMMA_ZERO = Fraction("1.461632144968362341262659542325721328468196")
NEAR_ZERO = economized([(-1) ** k * hurwitz_zeta(k, float(DIGAMMA_ZERO)) for k in range(2, 38)], 0.3)
LOG_SQRT_2_PI = 0.9189385332046728


def stirling_error(x: Value) -> Value:
    """Return ``lgamma(x) - (x - 1/2) log(x) + x - log(2 pi) / 2`` for x >= 10."""
    inverse = 1 / x
    return inverse * horner(inverse * inverse, STIRLING)


def steps_from_two(x: Value) -> tuple[Value, Value]:
    """Return m and z for which ``x = 2 + m + z`` with |z| <= 1/2; m is from -2 to 8 for 0 < x < 10.5."""
    steps = floor(x - 1.5)
    return steps, x - (steps + 2)


def near_two(x: Value) -> tuple[Value, Value, Value]:
    """Return ``lgamma(2 + z)`` and p, q for 0 < x <= 10: ``Gamma(x) = Gamma(2 + z) p / q`` with |z| <= 1/2."""
    steps, z = steps_from_two(x)
    product = x.like(1)
    for j in range(1, 9):
        product = product * where(steps >= j, x - j, 1.0)
    divisor = where(steps < 0, x, 1.0) * where(steps < -1, x + 1, 1.0)
    return z * horner(z, NEAR_TWO), product, divisor


def gamma_of_positive(x: Value) -> Value:
    """Return the gamma function of x > 0."""
    log_value, product, divisor = near_two(minimum(x, LARGE))
    small = exp(log_value) * product / divisor
    y = minimum(maximum(x, LARGE), 200.0)
    # The power overflows before the result does: it comes in two factors.
    root = y ** (y * 0.5 - 0.25)
    return where(x < LARGE, small, root * exp(-y) * root * (np.sqrt(2 * np.pi) * exp(stirling_error(y))))


def lgamma_of_positive(x: Value) -> Value:
    """Return the logarithm of the gamma function of x > 0, exact also next to its zeros 1 and 2."""
    log_value, product, divisor = near_two(minimum(x, LARGE))
    y = maximum(x, LARGE)
    # One logarithm for all: of x itself next to 1, where the logarithm of its inverse would not be exact.
    is_below = x < 1.5
    logarithm = log(first_of((is_below, divisor), (x < LARGE, product), otherwise=y))
    small = log_value + where(is_below, -logarithm, logarithm)
    return where(x < LARGE, small, (y - 0.5) * (logarithm - 1) + ((LOG_SQRT_2_PI - 0.5) + stirling_error(y)))


def lgamma_of_one_plus(z: Value) -> Value:
    """Return the logarithm of ``gamma(1 + z)`` for 0 <= z < 1, exact next to zero."""
    return where(z <= 0.5, z * horner(z, NEAR_TWO) - log1p(z), (z - 1) * horner(z - 1, NEAR_TWO))


def distance_to_integer(x: Value) -> Value:
    """Return x minus the nearest integer."""
    return x - round_even(x)


def sin_pi_near_zero(x: Value) -> Value:
    """Return ``sin(pi x)`` for |x| <= 1/2 by Taylor's series, in a third of the time that XLA's sine takes."""
    return x * horner(x * x, SINE)


def sin_pi(x: Value) -> Value:
    """Return ``sin(pi x)``, zero at integers."""
    sine = sin_pi_near_zero(distance_to_integer(x))
    return where(round_even(x) % 2.0 == 0, sine, -sine)


def cos_pi(x: Value) -> Value:
    """Return ``cos(pi x)``, zero half-way between integers."""
    cosine = sin_pi_near_zero(0.5 - abs(distance_to_integer(x)))
    return where(round_even(x) % 2.0 == 0, cosine, -cosine)


@emits_scalar(psm.Gamma, form=values())
def gamma(x: Value) -> Value:
    """The gamma function. NaN at negative integers, infinite with the sign of x at 0."""
    size = where(x == 0, 1.0, abs(x))
    positive = gamma_of_positive(size)
    reflected = np.pi / (sin_pi(x) * (size * positive))
    pole = (x < 0) & (x == floor(x))
    return first_of((pole, np.nan), (x == 0, 1 / x), (x < 0, reflected), otherwise=where(x == np.inf, x, positive))


@emits_scalar(psm.GammaLn, form=values(single=True))
def gammaln(x: Value) -> Value:
    """The logarithm of ``abs(gamma(x))``; next to zeros at x < 0 the error is absolute, some ulp of the terms."""
    positive = lgamma_of_positive(where(x < 0, 1 - x, x))
    reflected = -log(abs(sin_pi(x)) * (1 / np.pi)) - positive
    pole = (x <= 0) & (x == floor(x))
    return first_of((x == -np.inf, x), (pole, np.inf), (x < 0, reflected), otherwise=positive)


@emits_scalar(psm.Psi, form=values(single=True))
def psi(x: Value) -> Value:
    """The digamma function, exact also next to its positive zero."""
    y = where(x < 0, 1 - x, x)
    small = minimum(y, LARGE)
    steps, z = steps_from_two(small)
    near = horner(z, DIGAMMA_NEAR_TWO) - where(steps < 0, 1 / small, 0.0) - where(steps < -1, 1 / (small + 1), 0.0)
    for j in range(1, 9):
        near = near + where(steps >= j, 1 / (small - j), 0.0)
    large = maximum(y, LARGE)
    inverse = 1 / (large * large)
    value = where(y < LARGE, near, log(large) - 0.5 / large - inverse * horner(inverse, DIGAMMA))
    zero, rest = split(DIGAMMA_ZERO, x.dtype)
    distance = y - zero
    slope = horner(distance - rest, NEAR_ZERO)
    # As a product of the difference, XLA for GPUs would add the two constants first.
    value = where(abs(distance) < 0.3, distance * slope - rest * slope, value)
    turn = where(x < 0, x, 0.5)
    reflected = value - np.pi * cos_pi(turn) / sin_pi(turn)
    pole = (x < 0) & (x == floor(x))
    return first_of((pole, np.nan), (x == 0, -1 / x), (x < 0, reflected), otherwise=value)


def zeta_of_any(order: Value, x: Value) -> Value:
    """Return Hurwitz' zeta function of an integer order; for x < 0 by terms on both sides of 0 (DLMF 25.11.3)."""
    fraction = x - floor(x)
    negative, pole = x < 0, (x <= 0) & (x == floor(x))
    right = zeta(order, first_of((pole | (x == np.inf), 1.0), (negative, fraction), otherwise=x))
    beyond = zeta(order, where(negative & (x > -1e300), 1 - x, 1.0))
    left = zeta(order, where(negative, (floor(x) + 1) - x, 1.0)) - beyond
    both = right + where(order % 2.0 == 0, left, -left)
    far = maximum(x, 1e20) ** (1 - order) / (order - 1)
    return first_of((pole, np.inf), (negative, both), (x > 1e20, far), otherwise=right)


@emits_scalar(psm.TriGamma, form=values(single=True))
def trigamma(x: Value) -> Value:
    """The derivative of digamma. Small x reach Stirling's series (DLMF 5.15.8) by the recurrence."""
    y = where(x <= 0, 1 - x, x)
    is_large = y >= LARGE
    end = where(is_large, y, y + LARGE)
    inverse = 1 / end
    square = inverse * inverse
    value = inverse + square * (0.5 + inverse * horner(square, TRIGAMMA))
    for j in reversed(range(int(LARGE))):
        value = value + where(is_large, 0.0, 1 / ((y + j) * (y + j)))
    slope = np.pi / sin_pi(where(x < 0, x, 0.5))
    pole = (x <= 0) & (x == floor(x))
    return first_of((pole, np.inf), (x < 0, slope * slope - value), otherwise=value)


@emits_scalar(psm.PolyGamma, form=values())
def polygamma(n: Value, x: Value) -> Value:
    """The n-th derivative of digamma, by Hurwitz' zeta function (DLMF 5.15.2)."""
    order = maximum(n, 1.0)
    value = gamma_of_positive(order + 1) * zeta_of_any(order + 1, x)
    return where(n == 0, psi(x), where(order % 2.0 == 0, -value, value))
