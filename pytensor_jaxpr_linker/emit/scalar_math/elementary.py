"""Logarithms of sums with an exponential."""

from __future__ import annotations

import numpy as np
import pytensor.scalar.math as psm
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.emit.complex import exponential, on_branch_cuts
from pytensor_jaxpr_linker.emit.scalar import emits_scalar, number, refuse_complex
from pytensor_jaxpr_linker.emit.scalar_math.derivative import values
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.formula import Value, exp, expm1, log, log1p, where


@emits_scalar(psm.Softplus, refuse=refuse_complex)
def softplus(b, x):
    """``log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|))``.

    The maximum is a choice: XLA's library for sums would take it along, and with it an array of zeros. Where JAX differentiates, ``-|x|`` is a choice, too:
    its derivatives at 0 are those of one side, so derivatives of all orders are right there. Other programs have the absolute value, which the library takes
    along.
    """
    zero, negated = number(b, x, 0), prims.neg(b, x)
    if b.differentiable:
        is_positive = prims.ge(b, x, zero)
        minus_abs = prims.select(b, is_positive, negated, x)
    else:
        is_positive = prims.gt(b, x, zero)
        minus_abs = prims.neg(b, prims.abs_(b, without_sign(b, x)))
    positive_part = prims.select(b, is_positive, x, zero)
    return prims.add(b, positive_part, prims.log1p(b, prims.exp(b, minus_abs)))


def without_sign(b, x):
    """Return the operand of a negation, and other values as they are: both have one absolute value, which softplus of `x` and of ``-x`` share."""
    negation = b.definition(x, p.neg_p)
    return x if negation is None else negation.invars[0]


def complex_log1mexp(b, x):
    """``log(1 - exp(x))`` of complex numbers, in the form that PyTensor takes for each."""
    far = prims.log1p(b, prims.neg(b, exponential(b, x)))
    near = prims.log(b, prims.neg(b, prims.expm1(b, x)))
    re = prims.real(b, x)
    return prims.select(b, prims.lt(b, re, number(b, re, -np.log(2.0))), far, near)


@emits_scalar(psm.Log1mexp, form=values(of_complex=on_branch_cuts(complex_log1mexp), single=True))
def log1mexp(x: Value) -> Value:
    """``log(1 - exp(x))`` for negative `x`, by Mächler (2012), https://cran.r-project.org/web/packages/Rmpfr/vignettes/."""
    return where(x < -np.log(2.0), log1p(-exp(x)), log(-expm1(x)))
