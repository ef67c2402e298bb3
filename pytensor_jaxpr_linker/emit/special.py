"""Scalar Ops of several primitives: logarithms and special functions."""

from __future__ import annotations

import numpy as np
import pytensor.scalar as ps
import pytensor.scalar.math as psm

from pytensor_jaxpr_linker import prims
from pytensor_jaxpr_linker.emit.scalar import (
    RULES,
    ScalarRule,
    absolute,
    convert,
    converted,
    number,
    one,
    scalar_rule,
)


@scalar_rule(ps.Log2, ps.Log10)
@lambda rule: lambda op, b, dtype, x: rule(b, convert(b, x, dtype), 2.0 if isinstance(op, ps.Log2) else 10.0)
def log_base(b, x, base):
    """The logarithm to base 2 or 10."""
    return prims.div(b, prims.log(b, x), number(b, x, np.log(base)))


@scalar_rule(psm.Softplus)
@converted
def softplus(b, x):
    """``log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|))``; written so, its derivative at 0 is that of the sigmoid, 1/2."""
    minus_abs = prims.min_(b, x, prims.neg(b, x))
    return prims.add(b, prims.max_(b, x, number(b, x, 0)), prims.log1p(b, prims.exp(b, minus_abs)))


@scalar_rule(psm.Log1mexp)
@converted
def log1mexp(b, x):
    """``log(1 - exp(x))`` for negative `x`, by Mächler (2012), https://cran.r-project.org/web/packages/Rmpfr/vignettes/."""
    limit = number(b, x, -np.log(2.0))
    below = prims.expm1(b, prims.max_(b, x, limit))
    # Where that is 0, so must its opposite be, and not -0: the derivative is minus infinity there.
    above = prims.neg(b, below) if x.aval.dtype.kind == "c" else prims.sub(b, number(b, x, 0), below)
    # Each formula sees only its own half: the derivative of the one that is not chosen must stay finite.
    near = prims.log(b, above)
    far = prims.log1p(b, prims.neg(b, prims.exp(b, prims.min_(b, x, limit))))
    return prims.select(b, prims.lt(b, x, limit), far, near)


@scalar_rule(psm.Gamma)
@converted
def gamma(b, x):
    """The gamma function: ``exp(lgamma(x))`` with the sign of the half-plane's strips; NaN at negative integers."""
    size = prims.exp(b, prims.lgamma(b, x))
    floor, zero = prims.floor(b, x), number(b, x, 0)
    odd = prims.ne(b, prims.rem(b, floor, number(b, x, 2)), zero)
    signed = prims.select(b, prims.and_(b, prims.lt(b, x, zero), odd), prims.neg(b, size), size)
    pole = prims.and_(b, prims.lt(b, x, zero), prims.eq(b, x, floor))
    return prims.select(b, pole, number(b, x, np.nan), signed)


@scalar_rule(psm.TriGamma)
@converted
def trigamma(b, x):
    """The derivative of digamma, for negative `x` by reflection to 1 - x."""
    negative, infinite = prims.lt(b, x, number(b, x, 0)), prims.eq(b, x, number(b, x, np.inf))
    reflected = prims.select(b, negative, prims.sub(b, one(b, x), x), x)
    finite = prims.select(b, infinite, one(b, x), reflected)
    series = prims.polygamma(b, prims.broadcast_to(b, one(b, x), x.aval.shape), finite)
    series = prims.select(b, infinite, number(b, x, 0), series)
    # Half-way between poles where there is nothing to reflect, so that the unused branch has a finite derivative.
    angle = prims.mul(b, number(b, x, np.pi), prims.select(b, negative, x, number(b, x, 0.5)))
    pole = prims.square(b, prims.div(b, number(b, x, np.pi), prims.sin(b, angle)))
    at_pole = prims.and_(b, negative, prims.eq(b, x, prims.floor(b, x)))
    reflection = prims.select(b, at_pole, number(b, x, np.inf), prims.sub(b, pole, series))
    return prims.select(b, negative, reflection, series)


@scalar_rule(psm.PolyGamma)
@converted
def polygamma(b, n, x):
    """The n-th derivative of digamma, which is 0 at infinity; that of digamma itself is infinity."""
    infinite = prims.and_(b, prims.eq(b, x, number(b, x, np.inf)), prims.gt(b, n, number(b, n, 0)))
    finite = prims.select(b, infinite, one(b, x), x)
    return prims.select(b, infinite, number(b, x, 0), prims.polygamma(b, n, finite))


def bessel(scaled: ScalarRule) -> ScalarRule:
    """Return the rule of a modified Bessel function from the exponentially scaled one."""
    return lambda b, x: prims.mul(b, scaled(b, x), prims.exp(b, absolute(b, x)))


RULES[psm.I0] = converted(bessel(prims.bessel_i0e))
RULES[psm.I1] = converted(bessel(prims.bessel_i1e))


@scalar_rule(psm.BetaInc)
@converted
def betainc(b, p, q, x):
    """The regularized incomplete beta function."""
    shape = prims.elementwise_shape((p, q, x))
    return prims.regularized_incomplete_beta(b, *(prims.broadcast_to(b, a, shape) for a in (p, q, x)))
