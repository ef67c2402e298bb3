"""Scalar Ops of several primitives: arithmetic, logic, complex numbers, logarithms and exponentials."""

from __future__ import annotations

from functools import wraps
from typing import Any

import numpy as np
import pytensor.scalar as ps
import pytensor.scalar.math as psm
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base.rules import ScalarRule
from pytensor_jaxpr_linker.emit import scalar_primitives
from pytensor_jaxpr_linker.emit.scalar import (
    Emit,
    all_true,
    emits_scalar,
    in_own_dtypes,
    number,
    numpy_astype,
    refuse_complex,
)
from pytensor_jaxpr_linker.emit.scalar_math.derivative import values
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.formula import Value, apply, exp, expm1, first_of, floor, log, log1p, minimum, where

# -- arithmetic --------------------------------------------------------------------------------------------------------


@emits_scalar(ps.IntDiv, form=in_own_dtypes, refuse=refuse_complex)
def int_div(op, b, dtype, x, y):
    """``x // y``: rounds down; an integer divided by zero is 0 as in NumPy."""
    x, y = (numpy_astype(b, a, arithmetic_dtype(dtype)) for a in (x, y))
    if x.aval.dtype.kind == "f":
        return prims.stop_gradient(b, floor_division(b, x, y))
    quotient, zero = prims.div(b, x, y), number(b, x, 0)
    if x.aval.dtype.kind == "i":
        inexact = prims.ne(b, prims.rem(b, x, y), zero)
        negative = prims.ne(b, prims.lt(b, x, zero), prims.lt(b, y, zero))
        quotient = prims.select(b, prims.and_(b, inexact, negative), prims.sub(b, quotient, number(b, x, 1)), quotient)
    return prims.select(b, prims.eq(b, y, zero), zero, quotient)


def arithmetic_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype that NumPy divides in: booleans are int8, and float16 is computed in float32."""
    return np.dtype({"bool": "int8", "float16": "float32"}.get(dtype.name, dtype))


def floor_division(b: JaxprBuilder, x: Atom, y: Atom) -> Atom:
    """Emit NumPy's floating-point ``x // y``, which is exact where ``floor(x / y)`` is not (``npy_divmod``)."""
    dividend, divisor = Value(b, x), Value(b, y)
    rest, ratio = dividend % divisor, dividend / divisor
    quotient = (dividend - rest) / divisor
    quotient = where((rest != 0) & ((rest < 0) != (divisor < 0)), quotient - 1, quotient)
    whole = floor(quotient)
    whole = where(quotient - whole > 0.5, whole + 1, whole)
    return where(divisor == 0, ratio, where(quotient == 0, ratio * 0, whole)).atom


@emits_scalar(ps.Mod, form=in_own_dtypes, refuse=refuse_complex)
def mod(op, b, dtype, x, y):
    """``x % y``: has the sign of `y`; an integer modulo zero is 0 as in NumPy."""
    dtype = arithmetic_dtype(dtype)
    x, y = numpy_astype(b, x, dtype), numpy_astype(b, y, dtype)
    zero = number(b, x, 0)
    rest = prims.rem(b, x, y)
    if dtype.kind in "if":
        wrong_sign = prims.ne(b, prims.lt(b, rest, zero), prims.lt(b, y, zero))
        fix = prims.and_(b, prims.ne(b, rest, zero), wrong_sign)
        rest = prims.select(b, fix, prims.add(b, rest, y), rest)
    if dtype.kind == "f":
        return prims.select(b, prims.eq(b, rest, zero), signed_zero(b, rest, y), rest)
    return prims.select(b, prims.eq(b, y, zero), zero, rest)


def signed_zero(b: JaxprBuilder, rest: Atom, y: Atom) -> Atom:
    """Return a zero with the sign of `y` and the derivative of `rest`."""
    still = prims.stop_gradient(b, rest)
    negative = prims.neg(b, prims.sub(b, still, rest))
    return prims.select(b, prims.lt(b, y, number(b, y, 0)), negative, prims.sub(b, rest, still))


@emits_scalar(ps.Pow, form=in_own_dtypes)
def power(op, b, dtype, x, y):
    """``x ** y``: a small constant integer exponent is repeated multiplication, whose derivative is finite at 0."""
    value = b.known(y)
    x = numpy_astype(b, x, dtype)
    small = value is not None and value.ndim == 0 and abs(value) <= 16 and value == int(value.real)
    if small and (dtype.kind not in "iu" or value >= 0):
        return prims.integer_pow(b, x, int(value.real))
    if dtype.kind in "iu":
        check_exponent(b, y)
        return integer_power(b, x, numpy_astype(b, y, dtype))
    if dtype.kind == "c":
        return scalar_primitives.complex_power(b, x, numpy_astype(b, y, dtype))
    return prims.pow_(b, x, numpy_astype(b, y, dtype))


def check_exponent(b: JaxprBuilder, y: Atom) -> None:
    """Emit NumPy's check that no exponent of an integer is negative."""
    if y.aval.dtype.kind == "i":
        ok = all_true(b, prims.ge(b, y, number(b, y, 0)))
        b.check(ok, lambda: ValueError("Integers to negative integer powers are not allowed."))


def integer_power(b: JaxprBuilder, x: Atom, y: Atom) -> Atom:
    """Emit the power of integers by repeated squaring, one step a bit of the exponent; overflow wraps."""
    zero, result = number(b, x, 0), number(b, x, 1)
    for _ in range(x.aval.dtype.itemsize * 8 if x.aval.dtype.kind == "u" else x.aval.dtype.itemsize * 8 - 1):
        odd = prims.ne(b, prims.and_(b, y, number(b, y, 1)), zero)
        result = prims.select(b, odd, prims.mul(b, result, x), result)
        x, y = prims.mul(b, x, x), prims.shift_right_logical(b, y, number(b, y, 1))
    return result


@emits_scalar(ps.Sqr)
def sqr(b, x):
    """``x ** 2``."""
    return prims.and_(b, x, x) if x.aval.dtype.kind == "b" else prims.square(b, x)


@emits_scalar(ps.Clip)
def clip(b, x, low, high):
    """`low` if `x` is less, else `high` if `x` is more, else `x`: in this order, and a NaN limits nothing."""
    below_high = prims.select(b, prims.gt(b, x, high), high, x)
    return prims.select(b, prims.lt(b, x, low), low, below_high)


@emits_scalar(ps.Sign)
def sign(b, x):
    """The sign: 0 or 1 of an unsigned number, on the unit circle of a complex number."""
    if x.aval.dtype.kind == "c":
        x = finite_direction(b, x)
    if x.aval.dtype.kind == "f":
        zero = number(b, x, 0)
        return prims.select(b, prims.eq(b, x, zero), zero, prims.sign(b, x))  # 0.0 of -0.0
    return x if x.aval.dtype.kind == "b" else prims.sign(b, x)


def finite_direction(b: JaxprBuilder, x: Atom) -> Atom:
    """Return a complex number with 1, 0 or -1 for the parts of an infinite one; NaN where both parts are infinite."""
    re, im = scalar_primitives.parts(b, x)
    infinite = [abs(part) == np.inf for part in (re, im)]

    def finite(part: Value, own: Value, other: Value) -> Value:
        return where(own, where(other, np.nan, apply(prims.sign, part)), where(other, 0.0, part))

    return scalar_primitives.of_parts(finite(re, *infinite), finite(im, *reversed(infinite)))


def rounding(function: Emit) -> ScalarRule:
    """Make a rule of a function ``(b, x)`` that rounds floating-point numbers, and leaves integers as they are."""

    @wraps(function)
    def rule(op: ps.ScalarOp, b: JaxprBuilder, dtype: np.dtype, x: Atom) -> Atom:
        return function(b, numpy_astype(b, x, dtype)) if x.aval.dtype.kind == "f" else x

    return ScalarRule(rule)


@emits_scalar(ps.Trunc, form=rounding)
def trunc(b, x):
    """Round towards zero."""
    return prims.select(b, prims.lt(b, x, number(b, x, 0)), prims.ceil(b, x), prims.floor(b, x))


for op_type, function in {
    ps.Ceil: prims.ceil,
    ps.Floor: prims.floor,
    ps.RoundHalfAwayFromZero: prims.round_away,
    ps.RoundHalfToEven: prims.round_even,
}.items():
    emits_scalar(op_type, form=rounding)(function)


# -- logic -------------------------------------------------------------------------------------------------------------


@emits_scalar(ps.Switch, form=in_own_dtypes)
def switch(op, b, dtype, condition, on_true, on_false):
    """One of two values, the condition being true if it is not zero."""
    return prims.select(b, numpy_astype(b, condition, bool), *(numpy_astype(b, x, dtype) for x in (on_true, on_false)))


@emits_scalar(ps.IsNan, form=in_own_dtypes)
def isnan(op, b, dtype, x):
    """Whether `x` is not a number: the one that differs from itself."""
    return prims.ne(b, x, x) if x.aval.dtype.kind in "fc" else full_like(b, x, False)


@emits_scalar(ps.IsInf, form=in_own_dtypes)
def isinf(op, b, dtype, x):
    """Whether `x` is infinite."""
    if x.aval.dtype.kind == "c":
        return prims.or_(b, isinf(op, b, dtype, prims.real(b, x)), isinf(op, b, dtype, prims.imag(b, x)))
    if x.aval.dtype.kind != "f":
        return full_like(b, x, False)
    return prims.eq(b, prims.abs_(b, x), number(b, x, np.inf))


def full_like(b: JaxprBuilder, x: Atom, value: Any) -> Atom:
    """Return `value` in the shape of `x`."""
    return prims.broadcast_to(b, b.constant(np.asarray(value)), x.aval.shape)


# -- complex numbers ---------------------------------------------------------------------------------------------------


@emits_scalar(ps.Real, form=in_own_dtypes)
def real_part(op, b, dtype, x):
    """The real part."""
    return prims.real(b, x) if x.aval.dtype.kind == "c" else x


@emits_scalar(ps.Imag, form=in_own_dtypes)
def imaginary_part(op, b, dtype, x):
    """The imaginary part, 0 of a real number."""
    return prims.imag(b, x) if x.aval.dtype.kind == "c" else full_like(b, x, np.zeros((), dtype))


@emits_scalar(ps.Complex, form=in_own_dtypes)
def complex_of_parts(op, b, dtype, re, im):
    """The complex number of two parts."""
    part = prims.part_dtype(dtype)
    return prims.complex_(b, numpy_astype(b, re, part), numpy_astype(b, im, part))


@emits_scalar(ps.Conj, form=in_own_dtypes)
def conjugate(op, b, dtype, x):
    """The conjugate."""
    return prims.conj(b, x) if x.aval.dtype.kind == "c" else x


# -- logarithms, exponentials and hyperbolic functions -----------------------------------------------------------------


def log_base(b: JaxprBuilder, x: Atom, base: float) -> Atom:
    """Emit the logarithm to a base."""
    if x.aval.dtype.kind == "c":
        return scalar_primitives.logarithm(b, x, 1 / np.log(base))
    return prims.div(b, prims.log(b, x), number(b, x, np.log(base)))


@emits_scalar(ps.Log2)
def log2(b, x):
    """The logarithm to base 2."""
    return log_base(b, x, 2.0)


@emits_scalar(ps.Log10)
def log10(b, x):
    """The logarithm to base 10."""
    return log_base(b, x, 10.0)


@emits_scalar(ps.Exp2)
def exp2(b, x):
    """A power of two: XLA's own primitive rounds ``x * log(2)``, which costs up to 190 ulp in double precision."""
    if x.aval.dtype.kind == "c":
        return scalar_primitives.exponential(b, x, np.log(2.0))
    return prims.pow_(b, prims.broadcast_to(b, number(b, x, 2), x.aval.shape), x)


@emits_scalar(ps.Cosh, form=values(of_complex=prims.cosh, single=True))
def cosh(x: Value) -> Value:
    """The hyperbolic cosine; 3 ulp, where XLA's own has 250. Half of the exponent at a time does not overflow."""
    root = exp(0.5 * abs(x))
    return (0.5 * root) * root + 0.5 / root / root


@emits_scalar(ps.Sinh, form=values(of_complex=prims.sinh, single=True))
def sinh(x: Value) -> Value:
    """The hyperbolic sine; 3 ulp, where XLA's own primitive has 250."""
    size = abs(x)
    root, growth = exp(0.5 * size), expm1(minimum(size, 20.0))
    value = where(size < 20, 0.5 * (growth + growth / (growth + 1)), (0.5 * root) * root)
    return first_of((x < 0, -value), (x > 0, value), otherwise=x)


@emits_scalar(psm.Softplus, refuse=refuse_complex)
def softplus(b, x):
    """``log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|))``.

    The maximum is a `select`: XLA's library for sums would fuse a maximum, but materialize an array of zeros. Where JAX
    differentiates, ``-|x|`` is a `select`, too: its derivatives at 0 are one-sided, so derivatives of all orders are
    right there. Other programs have the absolute value, which the library fuses.
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
    """Return the operand of a negation, else the value: softplus of `x` and of ``-x`` share its absolute value."""
    negation = b.definition(x, p.neg_p)
    return x if negation is None else negation.invars[0]


def complex_log1mexp(b, x):
    """``log(1 - exp(x))`` of complex numbers, in the form that PyTensor takes for each."""
    far = prims.log1p(b, prims.neg(b, scalar_primitives.exponential(b, x)))
    near = prims.log(b, prims.neg(b, prims.expm1(b, x)))
    re = prims.real(b, x)
    return prims.select(b, prims.lt(b, re, number(b, re, -np.log(2.0))), far, near)


@emits_scalar(psm.Log1mexp, form=values(of_complex=scalar_primitives.on_branch_cuts(complex_log1mexp), single=True))
def log1mexp(x: Value) -> Value:
    """``log(1 - exp(x))`` for negative `x`, by Mächler (2012).

    https://cran.r-project.org/web/packages/Rmpfr/vignettes/
    """
    return where(x < -np.log(2.0), log1p(-exp(x)), log(-expm1(x)))
