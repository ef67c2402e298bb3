"""Gauss' hypergeometric function of real arguments.

Its series (DLMF 15.2.1) for 0 <= z < 0.9; for negative z that of ``z / (z - 1)`` (DLMF 15.8.1); closer to 1 those of 1 - z
(DLMF 15.8.4), except where they cancel, since c - a - b is close to an integer: there the first series takes many terms.
"""

from __future__ import annotations

import numpy as np
import pytensor.scalar.math as psm

from pytensor_jaxpr_linker.emit.expression import Value, exp, first_of, floor, iterate, log1p, maximum, minimum, where
from pytensor_jaxpr_linker.emit.special.derivative import special_function
from pytensor_jaxpr_linker.emit.special.gamma_functions import distance_to_integer, gamma
from pytensor_jaxpr_linker.emit.special.incomplete_gamma import EPSILON

#: From here on, series in 1 - z.
CLOSE_TO_ONE = 0.9


def series(a: Value, b: Value, c: Value, z: Value, active: Value) -> Value:
    """Return the sum of the hypergeometric series."""

    def step(n, states, fixed):
        (total, term), (a, b, c, z) = states, fixed
        term = term * ((a + n - 1) * (b + n - 1) / ((c + n - 1) * n)) * z
        total = total + term
        # The terms grow until n is of the order of the parameters.
        rises = n < -minimum(minimum(a, b), c)
        return (total, term), (term != 0) & ((abs(term) > abs(total) * (EPSILON / 4)) | rises)

    one = z.like(1.0)
    return iterate(step, [one, one], [a, b, c, z], active=active, limit=100_000)[0]


def is_nonpositive_integer(x: Value) -> Value:
    """Tell where the gamma function has a pole."""
    return (x <= 0) & (x == floor(x))


def reciprocal_gamma(x: Value) -> Value:
    """Return ``1 / gamma(x)``, zero at poles."""
    pole = is_nonpositive_integer(x)
    return where(pole, 0.0, 1 / gamma(where(pole, 1.0, x)))


def near_one(a: Value, b: Value, c: Value, z: Value, active: Value) -> Value:
    """Return the function by the series in 1 - z."""
    excess, rest = c - a - b, 1 - z
    first = series(a, b, 1 - excess, rest, active) * gamma(excess) * reciprocal_gamma(c - a) * reciprocal_gamma(c - b)
    second = series(c - a, c - b, 1 + excess, rest, active) * gamma(-excess) * reciprocal_gamma(a) * reciprocal_gamma(b)
    return gamma(c) * (first + rest**excess * second)


def at_one(a: Value, b: Value, c: Value) -> Value:
    """Return the value at z = 1 (DLMF 15.4.20)."""
    value = gamma(c) * gamma(c - a - b) * reciprocal_gamma(c - a) * reciprocal_gamma(c - b)
    return where(c - a - b > 0, value, np.inf)


def degree_of(a: Value, b: Value) -> Value:
    """Return after how many terms the series ends, infinity if it does not."""
    of_a, of_b = (where(is_nonpositive_integer(x), -x, np.inf) for x in (a, b))
    return minimum(of_a, of_b)


@special_function(psm.Hyp2F1)
def hyp2f1(a: Value, b: Value, c: Value, z: Value) -> Value:
    """Gauss' hypergeometric function; infinite for z > 1 and where c is a pole, unless the series ends before."""
    a, b = maximum(a, b), minimum(a, b)
    degree = degree_of(a, b)
    polynomial = degree < np.inf
    pole = is_nonpositive_integer(c) & ~(degree <= -c)
    nan = (a != a) | (b != b) | (c != c) | (z != z) | (abs(z) == np.inf)
    ok = ~(nan | pole)
    by_quotient = ok & ~polynomial & (z < 0)
    excess = c - a - b
    by_complement = ok & ~polynomial & (z >= CLOSE_TO_ONE) & (z < 1) & (abs(distance_to_integer(excess)) > 0.02)
    by_series = ok & (polynomial | (z < 1)) & ~by_complement
    quotient = where(by_quotient, z, 0.0) / (where(by_quotient, z, 0.0) - 1)
    total = series(
        where(by_series, a, 1.0),
        where(by_series, where(by_quotient, c - b, b), 1.0),
        where(by_series, c, 1.0),
        where(by_quotient, quotient, where(by_series, z, 0.0)),
        by_series,
    )
    total = total * where(by_quotient, exp(-a * log1p(-where(by_quotient, z, 0.0))), 1.0)
    close = near_one(
        where(by_complement, a, 0.3),
        where(by_complement, b, 0.3),
        where(by_complement, c, 1.0),
        where(by_complement, z, 0.95),
        by_complement,
    )
    at_infinity = where(polynomial & (degree == 0), 1.0, where(z > 0, z, np.nan))
    return first_of(
        (by_series, total),
        (by_complement, close),
        (abs(z) == np.inf, at_infinity),
        (nan, np.nan),
        (pole, np.inf),
        (z == 1, at_one(where(ok, a, 0.3), where(ok, b, 0.3), where(ok, c, 1.0))),
        otherwise=where(z > 1, np.inf, z),
    )
