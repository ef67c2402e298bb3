"""Owen's T function."""

from __future__ import annotations

from decimal import Decimal
from functools import cache

import numpy as np
import pytensor.scalar.math as psm

from pytensor_jaxpr_linker.emit.scalar import emits_scalar
from pytensor_jaxpr_linker.emit.scalar_math.derivative import values
from pytensor_jaxpr_linker.emit.scalar_math.erf_functions import exp_of_square, scaled_erfc
from pytensor_jaxpr_linker.jaxpr.formula import Value, erf, exp, first_of, minimum, together, where

#: Beyond this many standard deviations the integrand does not count.
REACH = 8.6


@cache
def gauss_legendre(count: int) -> list[tuple[float, float]]:
    """Return nodes and weights on [0, 1]: NumPy's, which are off by up to 100 ulp, after Newton's method with 28 digits."""
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
