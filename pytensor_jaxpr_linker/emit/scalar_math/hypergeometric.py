"""Gauss' hypergeometric function of real arguments.

Its series (DLMF 15.2.1) serves 0 <= z < 0.8; ``z / (z - 1)`` maps negative z there (DLMF 15.8.1). The series of `near_one`
serve z closer to 1, and so large negative z. These regions are R. C. Forrey's: Computing the hypergeometric function,
J. Comput. Phys. 137 (1997), 79-100. A terminating series is summed for every z.
"""

from __future__ import annotations

import numpy as np
import pytensor.scalar.math as psm

from pytensor_jaxpr_linker.emit.scalar import emits_scalar
from pytensor_jaxpr_linker.emit.scalar_math.derivative import values
from pytensor_jaxpr_linker.emit.scalar_math.gamma_functions import gamma
from pytensor_jaxpr_linker.emit.scalar_math.hypergeometric_near_one import (
    is_nonpositive_integer,
    near_one,
    reciprocal_gamma,
)
from pytensor_jaxpr_linker.emit.scalar_math.incomplete_gamma import EPSILON
from pytensor_jaxpr_linker.jaxpr.formula import Value, first_of, iterate, maximum, minimum, where

#: From here on, series in 1 - z.
CLOSE_TO_ONE = 0.8


def series(a: Value, b: Value, c: Value, z: Value, active: Value) -> Value:
    """Return the sum of the hypergeometric series."""

    def step(n, states, fixed):
        (total, term), (a, b, c, z) = states, fixed
        k = n - 1  # added at once: c may be next to a pole
        term = term * ((a + k) * (b + k) / ((c + k) * n)) * z
        total = total + term
        # The terms grow until n is of the order of the parameters.
        rises = n < -minimum(minimum(a, b), c)
        return (total, term), (term != 0) & ((abs(term) > abs(total) * (EPSILON / 4)) | rises)

    one = z.like(1.0)
    return iterate(step, [one, one], [a, b, c, z], active=active, limit=100_000)[0]


def at_one(a: Value, b: Value, c: Value) -> Value:
    """Return the value at z = 1 (DLMF 15.4.20)."""
    value = gamma(c) * gamma(c - a - b) * reciprocal_gamma(c - a) * reciprocal_gamma(c - b)
    return where(c - a - b > 0, value, np.inf)


def degree_of(a: Value, b: Value) -> Value:
    """Return after how many terms the series ends, infinity if it does not."""
    of_a, of_b = (where(is_nonpositive_integer(x), -x, np.inf) for x in (a, b))
    return minimum(of_a, of_b)


@emits_scalar(psm.Hyp2F1, form=values())
def hyp2f1(a: Value, b: Value, c: Value, z: Value) -> Value:
    """Gauss' hypergeometric function; infinite for z > 1 and where c is a pole, unless the series ends before.

    The error grows with the parameters, where large terms cancel, as in SciPy.
    """
    a, b = maximum(a, b), minimum(a, b)
    degree = degree_of(a, b)
    polynomial = degree < np.inf
    pole = is_nonpositive_integer(c) & ~(degree <= -c)
    nan = (a != a) | (b != b) | (c != c) | (z != z) | (abs(z) == np.inf)
    ok = ~(nan | pole)
    inside = ok & ~polynomial & (z < 1)
    negative = inside & (z < 0)
    one_minus_z = 1 - where(inside, z, 0.0)
    quotient = where(negative, z, 0.0) / where(negative, one_minus_z, 1.0)
    position = where(negative, -quotient, z)
    close = inside & (position >= CLOSE_TO_ONE)
    by_series = ok & (polynomial | inside) & ~close

    total = series(
        where(by_series, a, 1.0),
        where(by_series, where(negative, c - b, b), 1.0),
        where(by_series, c, 1.0),
        where(by_series, position, 0.0),
        by_series,
    )
    total = total * where(negative, one_minus_z**-a, 1.0)
    # With b, the smaller one, the excess of the transformed function is not negative.
    r = where(negative, 1 / one_minus_z, one_minus_z)
    beside_one = near_one(
        where(close, b, 0.3),
        where(close, where(negative, c - a, a), 0.3),
        where(close, c - b, 0.4),
        where(close, where(negative, a, c - a), 0.4),
        where(close, c, 0.7),
        where(close, maximum(r, np.finfo("float64").tiny), 0.1),
        where(close, where(negative, a - b, c - a - b), 0.1),
        close,
    )
    beside_one = beside_one * where(negative, one_minus_z**-b, 1.0)
    at_infinity = where(polynomial & (degree == 0), 1.0, where(z > 0, z, np.nan))
    return first_of(
        (by_series, total),
        (close, beside_one),
        (abs(z) == np.inf, at_infinity),
        (nan, np.nan),
        (pole, np.inf),
        (z == 1, at_one(where(ok, a, 0.3), where(ok, b, 0.3), where(ok, c, 1.0))),
        otherwise=where(z > 1, np.inf, z),
    )
