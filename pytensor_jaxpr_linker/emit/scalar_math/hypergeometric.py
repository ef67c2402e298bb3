"""Gauss' hypergeometric function of real arguments.

Its series (DLMF 15.2.1) serves 0 <= z < 0.8; ``z / (z - 1)`` maps negative z there (DLMF 15.8.1). The series of
`near_one` serve z closer to 1, and so large negative z. These regions are R. C. Forrey's: Computing the hypergeometric
function, J. Comput. Phys. 137 (1997), 79-100. A terminating series is summed for every z.

Next to 1, with ``s = c - a - b`` the function is a sum of two series in ``r = 1 - z`` (DLMF 15.8.4). Both have a pole
where s is an integer, and cancel near one (DLMF 15.8.10). Let s = m + e with an integer m >= 0 and |e| <= 1/2. The
terms of both series from the m-th on are one function ``g`` of a number t, at t = 0 and at t = e, so the sum has the
terms ``(g(0) - g(e)) / e``. These follow each other by a recurrence without small divisors: N. Michel and M. V.
Stoitsov, Fast computation of the Gauss hypergeometric function with all its parameters complex, Comput. Phys. Commun.
178 (2008), 535-551. The first consists of divided differences of the reciprocal of the gamma function, which has no
poles.
"""

from __future__ import annotations

import numpy as np
import pytensor.scalar.math as psm

from pytensor_jaxpr_linker.emit.scalar import emits_scalar
from pytensor_jaxpr_linker.emit.scalar_math.derivative import values
from pytensor_jaxpr_linker.emit.scalar_math.gamma_functions import cos_pi, gamma, psi, sin_pi_near_zero
from pytensor_jaxpr_linker.emit.scalar_math.incomplete_gamma import EPSILON
from pytensor_jaxpr_linker.jaxpr.formula import (
    Value,
    expm1,
    first_of,
    floor,
    iterate,
    log,
    maximum,
    minimum,
    together,
    where,
)

# -- next to 1 ---------------------------------------------------------------------------------------------------------


#: Beyond this |e| a plain difference keeps enough digits.
SMALL = 0.05
#: Nodes and weights of Gauss' quadrature over [0, 1], of an even number: the middle may be a pole of digamma.
NODES, WEIGHTS = ((np.polynomial.legendre.leggauss(4)[i] + [1, 0][i]) / 2 for i in (0, 1))


def is_nonpositive_integer(x: Value) -> Value:
    """Return where the gamma function has a pole."""
    return (x <= 0) & (x == floor(x))


def reciprocal_gamma(x: Value) -> Value:
    """Return ``1 / gamma(x)``, zero at poles."""
    pole = is_nonpositive_integer(x)
    return where(pole, 0.0, 1 / gamma(where(pole, 1.0, x)))


def reciprocal_gamma_slope(x: Value) -> Value:
    """Return the derivative of ``1 / gamma(x)``; at a pole -n of gamma, ``(-1)^n n!``."""
    pole = is_nonpositive_integer(x)
    of_gamma = gamma(where(pole, 1 - x, x))
    return where(pole, cos_pi(x) * of_gamma, -psi(where(pole, 1.0, x)) / of_gamma)


def divided_differences(e: Value, *xs: Value) -> list[Value]:
    """Return ``(1 / gamma(x + e) - 1 / gamma(x)) / e`` for each x and a small e: the mean of the derivative."""
    points = [x + e * float(node) for x in xs for node in NODES]
    slopes = iter(together(reciprocal_gamma_slope, *points))
    return [sum((next(slopes) * float(w) for w in WEIGHTS), e.like(0.0)) for _ in xs]


def telescoped(starts: list[Value], ends: list[Value], differences: list[Value]) -> Value:
    """Return the divided difference of a product from its factors' divided differences."""
    total = starts[0].like(0.0)
    for i, difference in enumerate(differences):
        for factor in (*ends[:i], *starts[i + 1 :]):
            difference = difference * factor
        total = total + difference
    return total


def first_terms(a: Value, b: Value, s: Value, m: Value, r: Value, of_s: Value, active: Value) -> list[Value]:
    """Return the sum of the m terms without a pole, and the factor of the others: ``(a)_m (b)_m (-r)^m / m!``."""

    def step(n, states, fixed):
        (total, factor, of_s), (a, b, s, m, r) = states, fixed
        total = total + factor * of_s
        factor = factor * ((a + (n - 1)) * (b + (n - 1)) / n) * -r
        return (total, factor, of_s / (s - n)), n < m

    zero, one = r.like(0.0), r.like(1.0)
    return iterate(step, [zero, one, of_s], [a, b, s, m, r], active=active & (m > 0), limit=10_000)[:2]


def other_terms(
    a: Value, b: Value, m: Value, e: Value, r: Value, difference: Value, value: Value, active: Value
) -> Value:
    """Return the sum of ``r^k (g_k(0) - g_k(e)) / e``; `difference` is the term for k = 0 and `value` is g_0(0)."""

    def step(n, states, fixed):
        (total, difference, value), (a, b, m, e, r) = states, fixed
        total = total + difference
        x, y, v = a + (n - 1), b + (n - 1), m + n
        # Neither n - e nor v + e is small.
        slope = (x * y * (n + v) - (x + y + e) * (n - e) * v) / ((v * n) * ((n - e) * (v + e)))
        difference = (difference * ((x + e) * (y + e) / ((v + e) * n)) + value * slope) * r
        rises = n < -minimum(a, b)
        more = (abs(difference) > abs(total) * (EPSILON / 4)) | rises
        return (total, difference, value * (x * y / ((n - e) * v)) * r), more

    return iterate(step, [r.like(0.0), difference, value], [a, b, m, e, r], active=active, limit=10_000)[0]


def near_one(
    a: Value, b: Value, c_minus_a: Value, c_minus_b: Value, c: Value, r: Value, excess: Value, active: Value
) -> Value:
    """Return the function of ``1 - r``.

    Differences of the parameters are passed, since the ones that were subtracted from c are known better than they are
    recovered from it. `excess` is ``c - a - b``; where it is negative, Euler's transformation (DLMF 15.8.1) turns its
    sign.
    """
    turn = excess < 0
    a, c_minus_a = where(turn, c_minus_a, a), where(turn, a, c_minus_a)
    b, c_minus_b = where(turn, c_minus_b, b), where(turn, b, c_minus_b)
    scale, s = where(turn, r**excess, 1.0), abs(excess)
    m = floor(s + 0.5)
    e, log_r = s - m, log(r)
    at_e = [a + m, b + m, 1 - e, m + 1, m + 1 + e, c_minus_a, c_minus_b, c, where(m > 0, s, 1.0)]
    of_a, of_b, of_rest, of_m, of_m_e, of_c_a, of_c_b, of_c, of_s = together(reciprocal_gamma, *at_e)

    # g(t) is the product of 1 / gamma at c - b - t, c - a - t, 1 - e + t, m + 1 + t (times m!), and r^t.
    one = r.like(1.0)
    starts, ends = [of_c_b, of_c_a, of_rest, one, one], [of_a, of_b, one, of_m_e / of_m, r**e]
    small = abs(e) <= SMALL
    tiny = where(small, e, 0.0)
    of_a_diff, of_b_diff, of_rest_diff, of_m_diff = divided_differences(tiny, a + m, b + m, 1 - tiny, m + 1)
    is_zero = tiny == 0
    growth = where(is_zero, log_r, expm1(tiny * log_r) / where(is_zero, 1.0, tiny))
    differences = [of_a_diff, of_b_diff, -of_rest_diff, -of_m_diff / of_m, -growth]
    value, end = of_c_b * of_c_a * of_rest, of_a * of_b * ends[3] * ends[4]
    cancels = small & (abs(e * log_r) <= 1)
    plain = (value - end) / where(cancels, 1.0, e)
    difference = where(cancels, telescoped(starts, ends, differences), plain)

    head, factor = first_terms(a, b, s, m, r, 1 / of_s, active)
    tail = other_terms(a + m, b + m, m, e, r, difference, value, active)
    bend = where(e == 0, 1.0, np.pi * e / sin_pi_near_zero(where(e == 0, 0.5, e)))
    return scale / of_c * (head * of_c_a * of_c_b + bend * factor * tail)


# -- everywhere --------------------------------------------------------------------------------------------------------


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
    close_to_one = near_one(
        where(close, b, 0.3),
        where(close, where(negative, c - a, a), 0.3),
        where(close, c - b, 0.4),
        where(close, where(negative, a, c - a), 0.4),
        where(close, c, 0.7),
        where(close, maximum(r, np.finfo("float64").tiny), 0.1),
        where(close, where(negative, a - b, c - a - b), 0.1),
        close,
    )
    close_to_one = close_to_one * where(negative, one_minus_z**-b, 1.0)
    at_infinity = where(polynomial & (degree == 0), 1.0, where(z > 0, z, np.nan))
    return first_of(
        (by_series, total),
        (close, close_to_one),
        (abs(z) == np.inf, at_infinity),
        (nan, np.nan),
        (pole, np.inf),
        (z == 1, at_one(where(ok, a, 0.3), where(ok, b, 0.3), where(ok, c, 1.0))),
        otherwise=where(z > 1, np.inf, z),
    )
