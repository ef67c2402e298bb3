"""Scalar Ops of several primitives: logarithms and special functions."""

from __future__ import annotations

import numpy as np
import pytensor.scalar as ps
import pytensor.scalar.math as psm

from pytensor_jaxpr_linker import prims
from pytensor_jaxpr_linker.emit.scalar import (
    RULES,
    ScalarRule,
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
    # Each formula sees only its own half: the derivative of the one that is not chosen must stay finite.
    near = prims.log(b, prims.neg(b, prims.expm1(b, prims.max_(b, x, limit))))
    far = prims.log1p(b, prims.neg(b, prims.exp(b, prims.min_(b, x, limit))))
    return prims.select(b, prims.lt(b, x, limit), far, near)
