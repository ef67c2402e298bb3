"""Scalar Ops that are one primitive, or one function of the operands in the dtype of the result.

Complex functions are computed by their parts where XLA's differ from NumPy's: at zeros, infinities and branch cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps

import numpy as np
import pytensor.scalar as ps
import pytensor.scalar.math as psm

from pytensor_jaxpr_linker.emit.scalar import (
    Emit,
    emits_scalar,
    in_common_dtype,
    in_own_dtypes,
    number,
    numpy_astype,
    refuse_complex,
)
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.formula import Value, apply, first_of, is_finite, where

# -- complex functions by their parts ----------------------------------------------------------------------------------


#: A function of complex atoms, called as ``function(b, *xs)``.
type ComplexRule = Callable[..., Atom]


def parts(b: JaxprBuilder, z: Atom) -> tuple[Value, Value]:
    """Return the real and the imaginary part of a complex atom."""
    return Value(b, prims.real(b, z)), Value(b, prims.imag(b, z))


def of_parts(re: Value, im: Value) -> Atom:
    """Return the complex number of two parts."""
    return apply(prims.complex_, re, im).atom


def has_sign(x: Value) -> Value:
    """Return which numbers have a minus sign, such as -0.0."""
    bits = prims.bitcast(x.b, x.atom, f"int{8 * x.dtype.itemsize}")
    return Value(x.b, bits) < 0


def is_nan(x: Value) -> Value:
    return x != x


def negated(condition: Value, x: Value) -> Value:
    """Return `x` with its sign changed where a condition holds."""
    return where(condition, -x, x)


def divide(b: JaxprBuilder, x: Atom, y: Atom) -> Atom:
    """Divide as NumPy does, by Smith's method; XLA's quotient by an infinite number has other NaNs."""
    (re, im), (c, d) = parts(b, x), parts(b, y)
    upright = abs(c) >= abs(d)
    large, small = where(upright, c, d), where(upright, d, c)
    first, second = where(upright, re, im), where(upright, im, re)
    ratio = small / large
    size = large + small * ratio
    by_zero = upright & (c == 0)
    zero = c.like(0)
    value_re, value_im = (first + second * ratio) / size, negated(~upright, second - first * ratio) / size
    return of_parts(where(by_zero, re / zero, value_re), where(by_zero, im / zero, value_im))


def complex_reciprocal(b: JaxprBuilder, z: Atom) -> Atom:
    """Return ``1 / z`` as NumPy does: NaN at 0."""
    re, im = parts(b, z)
    upright = abs(im) <= abs(re)
    large, small = where(upright, re, im), where(upright, im, re)
    ratio = small / large
    size = large + small * ratio
    return of_parts(where(upright, 1, ratio) / size, -where(upright, ratio, 1) / size)


def complex_power(b: JaxprBuilder, x: Atom, y: Atom) -> Atom:
    """Return ``x ** y``; zero to the power of a number is zero where the exponent's real part is positive."""
    (re, im), (c, d) = parts(b, x), parts(b, y)
    value_re, value_im = parts(b, prims.pow_(b, x, y))
    is_one, is_zero = (c == 0) & (d == 0), (re == 0) & (im == 0)
    cases = [(is_zero & (c > 0), c.like(0)), (is_zero | is_nan(c) | is_nan(d), c.like(np.nan))]
    of_re, of_im = (first_of(*cases, otherwise=x) for x in (value_re, value_im))
    return of_parts(where(is_one, c.like(1), of_re), where(is_one, c.like(0), of_im))


def complex_extremum(precedes: ComplexRule) -> ComplexRule:
    """Return the rule of maximum or minimum: by the real part, then by the imaginary one; NaN wins."""

    def rule(b: JaxprBuilder, x: Atom, y: Atom) -> Atom:
        (re, im), (c, d) = parts(b, x), parts(b, y)
        first = apply(precedes, re, c) & (re != c) & ~is_nan(im) & ~is_nan(d)
        second = (re == c) & apply(precedes, im, d)
        chosen = first | second | is_nan(re) | is_nan(im)
        return prims.select(b, chosen.atom, x, y)

    return rule


def on_branch_cuts(primitive: ComplexRule, odd: bool = False) -> ComplexRule:
    """Return a function that honours the sign of a zero on a branch cut, as NumPy does and XLA does not.

    It evaluates above the real axis, since ``f(conj(z)) = conj(f(z))``, and if `odd` right of the imaginary axis, too.
    """

    def rule(b: JaxprBuilder, z: Atom) -> Atom:
        re, im = parts(b, z)
        below = has_sign(im)
        left = has_sign(re) if odd else None
        inside = of_parts(re if left is None else negated(left, re), negated(below, im))
        value_re, value_im = parts(b, primitive(b, inside))
        return of_parts(value_re if left is None else negated(left, value_re), negated(below, value_im))

    return rule


def complex_sqrt(b: JaxprBuilder, z: Atom) -> Atom:
    """Return the square root, infinite where the imaginary part is."""
    re, im = parts(b, on_branch_cuts(prims.sqrt)(b, z))
    given = parts(b, z)[1]
    infinite = abs(given) == np.inf
    return of_parts(where(infinite, abs(given), re), where(infinite, given, im))


def complex_atanh(b: JaxprBuilder, z: Atom) -> Atom:
    """The inverse hyperbolic tangent; XLA's drops a NaN imaginary part."""
    re, im = parts(b, on_branch_cuts(prims.atanh, odd=True)(b, z))
    given = parts(b, z)[1]
    return of_parts(re, where(is_nan(given), given, im))


def complex_atan(b: JaxprBuilder, z: Atom) -> Atom:
    """Return the inverse tangent, ``-i atanh(i z)``."""
    re, im = parts(b, z)
    value_re, value_im = parts(b, complex_atanh(b, of_parts(-im, re)))
    return of_parts(value_im, -value_re)


def exponential(b: JaxprBuilder, z: Atom, factor: float = 1.0) -> Atom:
    """Return ``exp(factor * z)``, which is 0 at minus infinity whatever the imaginary part."""
    re, im = (x * factor for x in parts(b, z))
    vanishes = (re == -np.inf) & ~is_finite(im)
    value_re, value_im = parts(b, prims.exp(b, of_parts(re, im)))
    return of_parts(where(vanishes, 0, value_re), where(vanishes, 0, value_im))


def logarithm(b: JaxprBuilder, z: Atom, factor: float) -> Atom:
    """Return ``factor * log(z)``."""
    re, im = parts(b, prims.log(b, z))
    return of_parts(re * factor, im * factor)


# -- tables ------------------------------------------------------------------------------------------------------------


def extremum(primitive: Emit, precedes: Emit) -> Emit:
    """Return the rule of an extremum; its derivative goes to the first of equals, the primitive's to both by halves."""

    of_complex = complex_extremum(precedes)

    def rule(b: JaxprBuilder, x: Atom, y: Atom) -> Atom:
        if x.aval.dtype.kind == "c":
            return of_complex(b, x, y)
        if x.aval.dtype.kind != "f":
            return primitive(b, x, y)
        return prims.select(b, prims.or_(b, precedes(b, x, y), prims.ne(b, x, x)), x, y)

    return rule


def repeated_binary(binary: Emit, for_bool: Emit) -> Emit:
    """Return the rule of an n-ary Op that repeats a binary primitive, another one for booleans."""

    def rule(b: JaxprBuilder, x: Atom, *others: Atom) -> Atom:
        step = for_bool if x.aval.dtype.kind == "b" else binary
        for y in others:
            x = step(b, x, y)
        return x

    return rule


def by_kind(of_real: Emit, of_complex: Emit) -> Emit:
    """Return the rule of an Op that is one function of real numbers and another one of complex numbers."""
    return wraps(of_real)(lambda b, x, *xs: (of_complex if x.aval.dtype.kind == "c" else of_real)(b, x, *xs))


#: Ops of numbers of all kinds.
NUMBERS: dict[type, Emit] = {
    ps.Add: repeated_binary(prims.add, prims.or_),
    ps.ArcCos: by_kind(prims.acos, on_branch_cuts(prims.acos)),
    ps.ArcCosh: by_kind(prims.acosh, on_branch_cuts(prims.acosh)),
    ps.ArcSin: by_kind(prims.asin, on_branch_cuts(prims.asin, odd=True)),
    ps.ArcSinh: by_kind(prims.asinh, on_branch_cuts(prims.asinh, odd=True)),
    ps.ArcTan: by_kind(prims.atan, complex_atan),
    ps.ArcTanh: by_kind(prims.atanh, complex_atanh),
    ps.Cos: prims.cos,
    ps.Exp: by_kind(prims.exp, exponential),
    ps.Expm1: prims.expm1,
    ps.Identity: lambda b, x: x,
    ps.Invert: prims.not_,
    ps.Log: prims.log,
    ps.Log1p: prims.log1p,
    ps.Maximum: extremum(prims.max_, prims.ge),
    ps.Minimum: extremum(prims.min_, prims.le),
    ps.Mul: repeated_binary(prims.mul, prims.and_),
    ps.Neg: prims.neg,
    ps.Reciprocal: by_kind(lambda b, x: prims.div(b, number(b, x, 1), x), complex_reciprocal),
    ps.Second: lambda b, x, y: y,
    ps.Sin: prims.sin,
    ps.Sqrt: by_kind(prims.sqrt, complex_sqrt),
    ps.Sub: prims.sub,
    ps.Tan: prims.tan,
    ps.Tanh: prims.tanh,
    ps.TrueDiv: by_kind(prims.div, divide),
}

REAL_NUMBERS: dict[type, Emit] = {ps.ArcTan2: prims.atan2, psm.Sigmoid: prims.logistic}

#: Operations on bits; float64, the common type of int64 and uint64, has none.
BITS: dict[type, Emit] = {ps.AND: prims.and_, ps.OR: prims.or_, ps.XOR: prims.xor}

EQUALITY: dict[type, Emit] = {ps.EQ: prims.eq, ps.NEQ: prims.ne}

ORDERINGS: dict[type, Emit] = {ps.GE: prims.ge, ps.GT: prims.gt, ps.LE: prims.le, ps.LT: prims.lt}


def refuse_floats(op: ps.ScalarOp, dtypes: Sequence[str]) -> str | None:
    is_float = np.result_type(*dtypes).kind == "f"
    return f"{op} of {' and '.join(dtypes)} is not an integer" if is_float else None


for op_type, function in NUMBERS.items():
    emits_scalar(op_type)(function)
for op_type, function in REAL_NUMBERS.items():
    emits_scalar(op_type, refuse=refuse_complex)(function)
for op_type, function in BITS.items():
    emits_scalar(op_type, refuse=refuse_floats)(function)
for op_type, function in EQUALITY.items():
    emits_scalar(op_type, form=in_common_dtype)(function)
for op_type, function in ORDERINGS.items():
    emits_scalar(op_type, form=in_common_dtype, refuse=refuse_complex)(function)


@emits_scalar(ps.Abs, form=in_own_dtypes)
def absolute(op, b, dtype, x):
    """``|x|`` as ``x * sign(x)``, whose derivative at 0 is 0 as PyTensor's is; ``abs`` has 1."""
    if x.aval.dtype.kind == "c":
        return prims.abs_(b, x)
    x = numpy_astype(b, x, dtype)
    if dtype.kind in "bu":
        return x
    return prims.mul(b, x, prims.sign(b, x)) if dtype.kind == "f" else prims.abs_(b, x)


@emits_scalar(ps.Cast, form=in_own_dtypes)
def cast_numbers(op, b, dtype, x):
    """Convert as NumPy's ``astype`` does."""
    return x


@emits_scalar(psm.Erf, form=in_own_dtypes, refuse=refuse_complex)
def erf(op, b, dtype, x):
    """The primitive `erf`."""
    computed = np.float32 if dtype == np.float16 else dtype  # as PyTensor computes float16
    return prims.erf(b, numpy_astype(b, x, computed))
