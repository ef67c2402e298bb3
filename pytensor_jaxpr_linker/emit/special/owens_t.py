"""Owen's T function."""

from __future__ import annotations

import numpy as np
import pytensor.scalar.math as psm

from pytensor_jaxpr_linker.emit.expression import Value, erf, erfc, exp, first_of, minimum, where
from pytensor_jaxpr_linker.emit.special.derivative import special_function
from pytensor_jaxpr_linker.emit.special.erf_functions import exp_of_square

#: Gauss-Legendre's nodes and weights on [0, 1].
NODES, WEIGHTS = ((1 + np.polynomial.legendre.leggauss(31)[0]) / 2, np.polynomial.legendre.leggauss(31)[1] / 2)
#: Beyond this many standard deviations the integrand does not count.
REACH = 8.6


def integral(h: Value, a: Value) -> Value:
    """Return T for h >= 0 and 0 <= a <= 1: quadrature of its integral, cut where the integrand is negligible.

    This is the method T5 of M. Patefield and D. Tandy (J. Stat. Softw. 5 (2000), 1-25) with enough nodes for every h.
    """
    end = where(h * a > REACH, REACH / h, a)
    total = end.like(0.0)
    for node, weight in zip(NODES.tolist(), WEIGHTS.tolist(), strict=True):
        x = end * node
        scaled = h * x
        total = total + weight * exp(-0.5 * (scaled * scaled)) / (1 + x * x)
    return exp_of_square(minimum(h, 50.0), -0.5) * end * total / (2 * np.pi)


@special_function(psm.Owens_t)
def owens_t(h: Value, a: Value) -> Value:
    """Owen's T function; a > 1 is taken to 1 / a (Patefield and Tandy, equation 3)."""
    h, size = abs(h), abs(a)
    ok = (h < np.inf) & (size < np.inf)
    y, slope = where(ok, h, 1.0), where(ok, size, 1.0)
    steep = slope > 1
    product = where(steep, y * slope, 1.0)
    inner = integral(where(steep, product, y), where(steep, 1 / slope, slope))
    central, outer = 0.25 - 0.25 * erf(y * np.sqrt(0.5)) * erf(product * np.sqrt(0.5)), y * np.sqrt(0.5)
    tails, far = 0.5 * erfc(outer), 0.5 * erfc(product * np.sqrt(0.5))
    both = where(y <= 0.67, central, 0.5 * (tails + far) - tails * far)
    value = where(steep, both - inner, inner)
    half_line = 0.25 * erfc(h * np.sqrt(0.5))
    result = first_of((ok, value), (h == np.inf, 0.0), (h < np.inf, half_line), otherwise=np.nan)
    return where((h != h) | (a != a), np.nan, where(a < 0, -result, result))
