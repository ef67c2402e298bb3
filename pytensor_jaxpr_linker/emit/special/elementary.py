"""Scalar Ops of several primitives: logarithms, exponentials and hyperbolic functions."""

from __future__ import annotations

import numpy as np
import pytensor.scalar as ps
import pytensor.scalar.math as psm

from pytensor_jaxpr_linker.emit.complex import exponential, logarithm, on_branch_cuts
from pytensor_jaxpr_linker.emit.scalar import emits_scalar, number, refuse_complex
from pytensor_jaxpr_linker.emit.special.derivative import values
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.formula import Value, exp, expm1, first_of, log, log1p, minimum, where


@emits_scalar(ps.Log2)
def log2(b, x):
    """The logarithm to base 2."""
    return log_base(b, x, 2.0)


@emits_scalar(ps.Log10)
def log10(b, x):
    """The logarithm to base 10."""
    return log_base(b, x, 10.0)


def log_base(b: JaxprBuilder, x: Atom, base: float) -> Atom:
    """Emit the logarithm to a base."""
    if x.aval.dtype.kind == "c":
        return logarithm(b, x, 1 / np.log(base))
    return prims.div(b, prims.log(b, x), number(b, x, np.log(base)))


@emits_scalar(psm.Softplus, refuse=refuse_complex)
def softplus(b, x):
    """``log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|))``; written so, its derivative at 0 is that of the sigmoid, 1/2."""
    minus_abs = prims.min_(b, x, prims.neg(b, x))
    return prims.add(b, prims.max_(b, x, number(b, x, 0)), prims.log1p(b, prims.exp(b, minus_abs)))


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


@emits_scalar(ps.Exp2)
def exp2(b, x):
    """A power of two: XLA's own primitive rounds ``x * log(2)``, which costs up to 190 ulp in double precision."""
    if x.aval.dtype.kind == "c":
        return exponential(b, x, np.log(2.0))
    return prims.pow_(b, prims.broadcast_to(b, number(b, x, 2), x.aval.shape), x)


@emits_scalar(ps.Cosh, form=values(of_complex=prims.cosh, single=True))
def cosh(x: Value) -> Value:
    """The hyperbolic cosine; 3 ulp, where XLA's own primitive has 250. Half of the exponent at a time does not overflow."""
    root = exp(0.5 * abs(x))
    return (0.5 * root) * root + 0.5 / root / root


@emits_scalar(ps.Sinh, form=values(of_complex=prims.sinh, single=True))
def sinh(x: Value) -> Value:
    """The hyperbolic sine; 3 ulp, where XLA's own primitive has 250."""
    size = abs(x)
    root, growth = exp(0.5 * size), expm1(minimum(size, 20.0))
    value = where(size < 20, 0.5 * (growth + growth / (growth + 1)), (0.5 * root) * root)
    return first_of((x < 0, -value), (x > 0, value), otherwise=x)
