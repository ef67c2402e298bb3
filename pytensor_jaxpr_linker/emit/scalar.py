"""Scalar Ops: tables for those that are one primitive, short rules for those that are a few.

A scalar rule gets operands that a primitive accepts side by side (equal shapes, or 0-d), not yet in a common dtype, and the
dtype of its result. Semantics are those of the NumPy function that the Op's `impl` calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pytensor.scalar as ps
import pytensor.scalar.math as psm
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import AbstractFunctionGraph
from pytensor.scalar.basic import Composite, ScalarInnerGraphOp
from pytensor.tensor.math import MulWithoutZeros

from pytensor_jaxpr_linker import prims
from pytensor_jaxpr_linker.builder import Atom, JaxprBuilder

type ScalarRule = Callable[..., Atom]

#: Ops that are one primitive, after their operands were converted to the result's dtype.
ONE_PRIMITIVE: dict[type, ScalarRule] = {
    ps.Abs: lambda b, x: x if x.aval.dtype.kind in "bu" else prims.abs_(b, x),
    ps.AND: prims.and_,
    ps.ArcCos: prims.acos,
    ps.ArcCosh: prims.acosh,
    ps.ArcSin: prims.asin,
    ps.ArcSinh: prims.asinh,
    ps.ArcTan: prims.atan,
    ps.ArcTan2: prims.atan2,
    ps.ArcTanh: prims.atanh,
    ps.Cast: lambda b, x: x,
    ps.Cos: prims.cos,
    ps.Cosh: prims.cosh,
    ps.Exp: prims.exp,
    ps.Exp2: prims.exp2,
    ps.Expm1: prims.expm1,
    ps.Identity: lambda b, x: x,
    ps.Invert: prims.not_,
    ps.Log: prims.log,
    ps.Log1p: prims.log1p,
    ps.Maximum: prims.max_,
    ps.Minimum: prims.min_,
    ps.Neg: prims.neg,
    ps.OR: prims.or_,
    ps.Reciprocal: lambda b, x: prims.div(b, one(b, x), x),
    ps.Second: lambda b, x, y: y,
    ps.Sin: prims.sin,
    ps.Sinh: prims.sinh,
    ps.Sqrt: prims.sqrt,
    ps.Sub: prims.sub,
    ps.Tan: prims.tan,
    ps.Tanh: prims.tanh,
    ps.TrueDiv: prims.div,
    ps.XOR: prims.xor,
    psm.Erf: prims.erf,
    psm.Erfc: prims.erfc,
    psm.Erfinv: prims.erf_inv,
    psm.GammaInc: prims.igamma,
    psm.GammaIncC: prims.igammac,
    psm.GammaLn: prims.lgamma,
    psm.Psi: prims.digamma,
    psm.Sigmoid: prims.logistic,
}

#: Comparisons: operands are converted to their common dtype, the result is boolean.
COMPARISONS: dict[type, ScalarRule] = {
    ps.EQ: prims.eq,
    ps.GE: prims.ge,
    ps.GT: prims.gt,
    ps.LE: prims.le,
    ps.LT: prims.lt,
    ps.NEQ: prims.ne,
}

#: Ops of `ONE_PRIMITIVE` whose float16 results PyTensor computes in float32.
IN_FLOAT32 = (psm.Erf, psm.Erfc, psm.Erfinv, psm.GammaLn, psm.Psi)

#: Ops that PyTensor also defines for complex numbers, but XLA does not.
REAL_ONLY = (ps.GE, ps.GT, ps.LE, ps.LT, psm.Erf, psm.Gamma, psm.GammaLn, psm.Psi)

#: Rules that see their operands' own dtypes: ``rule(op, b, dtype, *xs)``.
RULES: dict[type, ScalarRule] = {}


def scalar_rule(*op_types: type) -> Callable[[ScalarRule], ScalarRule]:
    """Register the decorated function, called as ``rule(op, b, dtype, *xs)``, for scalar Ops."""

    def register(rule: ScalarRule) -> ScalarRule:
        RULES.update(dict.fromkeys(op_types, rule))
        return rule

    return register


#: Rules of Ops with inner graphs, which may have several results: ``rule(op, dtypes, b, xs)``.
INNER_GRAPH_RULES: dict[type, Callable[..., list[Atom]]] = {}


def inner_graph_rule(op_type: type) -> Callable[[Callable[..., list[Atom]]], Callable[..., list[Atom]]]:
    """Register the decorated function for a scalar Op that has an inner graph."""

    def register(rule: Callable[..., list[Atom]]) -> Callable[..., list[Atom]]:
        INNER_GRAPH_RULES[op_type] = rule
        return rule

    return register


def has_scalar_rule(op: ps.ScalarOp) -> bool:
    """Tell whether `emit_scalar` can emit a scalar Op."""
    if find(RULES, op) is not None:
        return True
    return isinstance(op, ScalarInnerGraphOp) and (
        find(INNER_GRAPH_RULES, op) is not None and all(has_scalar_rule(node.op) for node in op.fgraph.toposort())
    )


def is_real_only(op: ps.ScalarOp, operands: Sequence[Variable]) -> bool:
    """Tell whether an Op, which has a rule, has none for operands of these types: XLA knows it for real ones only."""
    if isinstance(op, ScalarInnerGraphOp):
        return any(is_real_only(node.op, node.inputs) for node in op.fgraph.toposort())
    return type(op) in REAL_ONLY and any(v.type.dtype.startswith("complex") for v in operands)


def find(table: dict[type, Any], op: Any) -> Any:
    """Return the entry of the most specific class of `op` in a table."""
    for cls in type(op).__mro__:
        if cls in table:
            return table[cls]
    return None


def emit_scalar(op: ps.ScalarOp, dtypes: Sequence[str], b: JaxprBuilder, xs: Sequence[Atom]) -> list[Atom]:
    """Emit a scalar Op on operands of equal shapes (or 0-d); return its results in `dtypes`."""
    rule = find(RULES, op)
    if rule is not None:
        dtype = np.dtype(dtypes[0])
        return [convert(b, rule(op, b, dtype, *xs), dtype)]
    inner_rule = find(INNER_GRAPH_RULES, op)
    if inner_rule is not None:
        return inner_rule(op, dtypes, b, xs)
    raise NotImplementedError(f"No emission rule for the scalar Op {op}")


@inner_graph_rule(Composite)
def emit_composite(op: Composite, dtypes: Sequence[str], b: JaxprBuilder, xs: Sequence[Atom]) -> list[Atom]:
    """Emit a fused scalar Op."""
    results = emit_inner(op.fgraph, b, xs)
    return [convert(b, x, np.dtype(t)) for x, t in zip(results, dtypes, strict=True)]


def emit_inner(fgraph: AbstractFunctionGraph, b: JaxprBuilder, xs: Sequence[Atom]) -> list[Atom]:
    """Emit the inner graph of a scalar Op."""
    env: dict[Any, Atom] = dict(zip(fgraph.inputs, xs, strict=True))

    def read(variable: Any) -> Atom:
        return b.constant(variable.data, variable.type.dtype) if isinstance(variable, Constant) else env[variable]

    for variable, x in zip(fgraph.inputs, xs, strict=True):
        env[variable] = convert(b, x, variable.type.dtype)
    for node in fgraph.toposort():
        results = emit_scalar(node.op, [v.type.dtype for v in node.outputs], b, [read(v) for v in node.inputs])
        env.update(zip(node.outputs, results, strict=True))
    return [read(v) for v in fgraph.outputs]


# -- helpers -----------------------------------------------------------------------------------------------------------


def number(b: JaxprBuilder, x: Atom, value: Any) -> Atom:
    """Return the literal `value` in the dtype of `x`."""
    return b.constant(np.asarray(value, x.aval.dtype))


def one(b: JaxprBuilder, x: Atom) -> Atom:
    """Return the literal 1 in the dtype of `x`."""
    return number(b, x, 1)


def convert(b: JaxprBuilder, x: Atom, dtype: Any) -> Atom:
    """Convert as NumPy's ``astype`` does: a number is true if it is not zero, a complex one loses its imaginary part."""
    dtype, old = np.dtype(dtype), x.aval.dtype
    if dtype == old:
        return x
    if dtype.kind == "b":
        return prims.ne(b, x, number(b, x, 0))
    if old.kind == "c" and dtype.kind != "c":
        return prims.convert(b, prims.real(b, x), dtype)
    if old.kind == "b" and dtype.kind in "fc" and b.known(x) is None:
        # XLA rewrites the product with a converted mask as a choice, in which a NaN or an infinity times zero is zero.
        return prims.select(b, x, b.constant(dtype.type(1)), b.constant(dtype.type(0)))
    if old.kind == "f" and dtype.kind in "iu" and dtype.itemsize < 8:
        # XLA saturates; C, and so NumPy, truncates to a wide integer and wraps.
        x = prims.convert(b, x, "int64")
    elif old.kind == "f" and dtype == np.uint64:
        wrapped = prims.convert(b, prims.convert(b, x, "int64"), dtype)
        return prims.select(b, prims.lt(b, x, number(b, x, 0)), wrapped, prims.convert(b, x, dtype))
    return prims.convert(b, x, dtype)


def to_common_dtype(b: JaxprBuilder, xs: Sequence[Atom]) -> list[Atom]:
    """Convert operands to the dtype that NumPy would compare them in."""
    common = np.result_type(*(x.aval.dtype for x in xs))
    return [convert(b, x, common) for x in xs]


def one_primitive(op_type: type, primitive: ScalarRule) -> ScalarRule:
    """Return the rule of an Op of `ONE_PRIMITIVE`."""
    takes_complex, is_widened = op_type in (ps.Abs, ps.Cast), op_type in IN_FLOAT32

    def rule(op: ps.ScalarOp, b: JaxprBuilder, dtype: np.dtype, *xs: Atom) -> Atom:
        if takes_complex and xs[0].aval.dtype.kind == "c":
            return primitive(b, xs[0])
        if is_widened and dtype == np.float16:
            dtype = np.dtype("float32")
        return primitive(b, *[convert(b, x, dtype) for x in xs])

    return rule


def comparison(primitive: ScalarRule) -> ScalarRule:
    """Return the rule of an Op of `COMPARISONS`."""

    def rule(op: ps.ScalarOp, b: JaxprBuilder, dtype: np.dtype, *xs: Atom) -> Atom:
        return primitive(b, *to_common_dtype(b, xs))

    return rule


RULES.update({op_type: one_primitive(op_type, primitive) for op_type, primitive in ONE_PRIMITIVE.items()})
RULES.update({op_type: comparison(primitive) for op_type, primitive in COMPARISONS.items()})


def converted(rule: ScalarRule) -> ScalarRule:
    """Have a rule ``(b, *xs)`` get its operands in the dtype of the result."""
    return lambda op, b, dtype, *xs: rule(b, *(convert(b, x, dtype) for x in xs))


def fold(binary: ScalarRule, for_bool: ScalarRule) -> ScalarRule:
    """Return the rule of an n-ary Op that repeats a binary primitive, another one for booleans."""

    def rule(op: ps.ScalarOp, b: JaxprBuilder, dtype: np.dtype, *xs: Atom) -> Atom:
        step = for_bool if dtype.kind == "b" else binary
        return reduce(lambda x, y: step(b, x, y), (convert(b, x, dtype) for x in xs))

    return rule


RULES[ps.Add] = fold(prims.add, prims.or_)
RULES[ps.Mul] = fold(prims.mul, prims.and_)


# -- arithmetic --------------------------------------------------------------------------------------------------------


@scalar_rule(ps.IntDiv)
def int_div(op, b, dtype, x, y):
    """``x // y``: rounds down; an integer divided by zero is 0 as in NumPy."""
    x, y = (convert(b, a, arithmetic_dtype(dtype)) for a in (x, y))
    if x.aval.dtype.kind == "f":
        return floor_division(b, x, y)
    quotient, zero = prims.div(b, x, y), number(b, x, 0)
    if x.aval.dtype.kind == "i":
        inexact = prims.ne(b, prims.rem(b, x, y), zero)
        negative = prims.ne(b, prims.lt(b, x, zero), prims.lt(b, y, zero))
        quotient = prims.select(b, prims.and_(b, inexact, negative), prims.sub(b, quotient, one(b, x)), quotient)
    return prims.select(b, prims.eq(b, y, zero), zero, quotient)


def arithmetic_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype to divide in: XLA does not divide booleans, NumPy takes them for int8."""
    return np.dtype("int8") if dtype.kind == "b" else dtype


def floor_division(b: JaxprBuilder, x: Atom, y: Atom) -> Atom:
    """Emit NumPy's floating-point ``x // y``, which is exact where ``floor(x / y)`` is not (``npy_divmod``)."""
    rest, zero = prims.rem(b, x, y), number(b, x, 0)
    quotient = prims.div(b, prims.sub(b, x, rest), y)
    wrong_sign = prims.ne(b, prims.lt(b, rest, zero), prims.lt(b, y, zero))
    below = prims.and_(b, prims.ne(b, rest, zero), wrong_sign)
    quotient = prims.select(b, below, prims.sub(b, quotient, one(b, x)), quotient)
    near = prims.floor(b, prims.add(b, quotient, number(b, quotient, 0.5)))
    return prims.select(b, prims.eq(b, y, zero), prims.div(b, x, y), near)


@scalar_rule(ps.Mod)
def mod(op, b, dtype, x, y):
    """``x % y``: has the sign of `y`; an integer modulo zero is 0 as in NumPy."""
    dtype = arithmetic_dtype(dtype)
    x, y = convert(b, x, dtype), convert(b, y, dtype)
    zero = number(b, x, 0)
    rest = prims.rem(b, x, y)
    if dtype.kind in "if":
        wrong_sign = prims.ne(b, prims.lt(b, rest, zero), prims.lt(b, y, zero))
        fix = prims.and_(b, prims.ne(b, rest, zero), wrong_sign)
        rest = prims.select(b, fix, prims.add(b, rest, y), rest)
    return rest if dtype.kind == "f" else prims.select(b, prims.eq(b, y, zero), zero, rest)


@scalar_rule(ps.Pow)
def power(op, b, dtype, x, y):
    """``x ** y``: a small constant integer exponent is repeated multiplication, whose derivative is finite at 0."""
    value = b.known(y)
    x = convert(b, x, dtype)
    small = value is not None and value.ndim == 0 and abs(value) <= 16 and value == int(value.real)
    if small and (dtype.kind not in "iu" or value >= 0):
        return prims.integer_pow(b, x, int(value.real))
    if dtype.kind in "iu":
        return integer_power(b, x, convert(b, y, dtype))
    return prims.pow_(b, x, convert(b, y, dtype))


def integer_power(b: JaxprBuilder, x: Atom, y: Atom) -> Atom:
    """Emit the power of integers by repeated squaring, one step a bit of the exponent; overflow wraps."""
    zero, result = number(b, x, 0), one(b, x)
    for _ in range(x.aval.dtype.itemsize * 8 if x.aval.dtype.kind == "u" else x.aval.dtype.itemsize * 8 - 1):
        odd = prims.ne(b, prims.and_(b, y, one(b, y)), zero)
        result = prims.select(b, odd, prims.mul(b, result, x), result)
        x, y = prims.mul(b, x, x), prims.shift_right_logical(b, y, one(b, y))
    return result


@scalar_rule(ps.Sqr)
@converted
def sqr(b, x):
    """``x ** 2``."""
    return prims.and_(b, x, x) if x.aval.dtype.kind == "b" else prims.square(b, x)


@scalar_rule(ps.Clip)
@converted
def clip(b, x, low, high):
    """`low` if `x` is less, else `high` if `x` is more, else `x`: in this order, and a NaN limits nothing."""
    below_high = prims.select(b, prims.gt(b, x, high), high, x)
    return prims.select(b, prims.lt(b, x, low), low, below_high)


@scalar_rule(ps.Sign)
@converted
def sign(b, x):
    """The sign; that of an unsigned number is 0 or 1, that of a complex number lies on the unit circle."""
    if x.aval.dtype.kind == "c":
        x = finite_direction(b, x)
    return x if x.aval.dtype.kind == "b" else prims.sign(b, x)


def finite_direction(b: JaxprBuilder, x: Atom) -> Atom:
    """Return a complex number with 1, 0 or -1 for the parts of an infinite one; NaN where both parts are infinite."""
    parts = prims.real(b, x), prims.imag(b, x)
    infinite = [prims.eq(b, prims.abs_(b, part), number(b, part, np.inf)) for part in parts]

    def finite(part: Atom, own: Atom, other: Atom) -> Atom:
        at_infinity = prims.select(b, other, number(b, part, np.nan), prims.sign(b, part))
        return prims.select(b, own, at_infinity, prims.select(b, other, number(b, part, 0), part))

    return prims.complex_(b, finite(parts[0], *infinite), finite(parts[1], *reversed(infinite)))


@scalar_rule(MulWithoutZeros)
@converted
def mul_without_zeros(b, x, y):
    """The product in which a zero counts as one."""
    zero = number(b, x, 0)
    product = prims.select(b, prims.eq(b, y, zero), x, prims.mul(b, x, y))
    return prims.select(b, prims.eq(b, x, zero), y, product)


def rounding(primitive: ScalarRule) -> ScalarRule:
    """Return the rule of a rounding function, which leaves integers as they are."""

    def rule(op: ps.ScalarOp, b: JaxprBuilder, dtype: np.dtype, x: Atom) -> Atom:
        return primitive(b, convert(b, x, dtype)) if x.aval.dtype.kind == "f" else convert(b, x, dtype)

    return rule


def trunc(b: JaxprBuilder, x: Atom) -> Atom:
    """Emit the rounding towards zero."""
    return prims.select(b, prims.lt(b, x, number(b, x, 0)), prims.ceil(b, x), prims.floor(b, x))


RULES[ps.Ceil] = rounding(prims.ceil)
RULES[ps.Floor] = rounding(prims.floor)
RULES[ps.RoundHalfAwayFromZero] = rounding(prims.round_away)
RULES[ps.RoundHalfToEven] = rounding(prims.round_even)
RULES[ps.Trunc] = rounding(trunc)


# -- logic -------------------------------------------------------------------------------------------------------------


@scalar_rule(ps.Switch)
def switch(op, b, dtype, condition, on_true, on_false):
    """One of two values, the condition being true if it is not zero."""
    return prims.select(b, convert(b, condition, bool), convert(b, on_true, dtype), convert(b, on_false, dtype))


@scalar_rule(ps.IsNan)
def isnan(op, b, dtype, x):
    """Whether `x` is not a number: the one that differs from itself."""
    return prims.ne(b, x, x) if x.aval.dtype.kind in "fc" else full_like(b, x, False)


@scalar_rule(ps.IsInf)
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


# -- functions ---------------------------------------------------------------------------------------------------------


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
    return lambda b, x: prims.mul(b, scaled(b, x), prims.exp(b, prims.abs_(b, x)))


RULES[psm.I0] = converted(bessel(prims.bessel_i0e))
RULES[psm.I1] = converted(bessel(prims.bessel_i1e))


@scalar_rule(psm.BetaInc)
@converted
def betainc(b, p, q, x):
    """The regularized incomplete beta function."""
    shape = prims.elementwise_shape((p, q, x))
    return prims.regularized_incomplete_beta(b, *(prims.broadcast_to(b, a, shape) for a in (p, q, x)))


# -- complex numbers ---------------------------------------------------------------------------------------------------


@scalar_rule(ps.Real)
def real(op, b, dtype, x):
    """The real part."""
    return prims.real(b, x) if x.aval.dtype.kind == "c" else x


@scalar_rule(ps.Imag)
def imag(op, b, dtype, x):
    """The imaginary part; that of a real number is 0."""
    return prims.imag(b, x) if x.aval.dtype.kind == "c" else full_like(b, x, np.zeros((), dtype))


@scalar_rule(ps.Complex)
def complex_(op, b, dtype, re, im):
    """The complex number of two parts."""
    part = prims.part_dtype(dtype)
    return prims.complex_(b, convert(b, re, part), convert(b, im, part))


@scalar_rule(ps.Conj)
def conj(op, b, dtype, x):
    """The conjugate."""
    return prims.conj(b, x) if x.aval.dtype.kind == "c" else x
