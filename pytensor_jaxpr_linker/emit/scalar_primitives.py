"""Scalar Ops that are one primitive, or one function of the operands in the dtype of the result."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps

import numpy as np
import pytensor.scalar as ps
import pytensor.scalar.math as psm

from pytensor_jaxpr_linker.emit import complex as complex_numbers
from pytensor_jaxpr_linker.emit.scalar import (
    Emit,
    emits_scalar,
    in_common_dtype,
    in_own_dtypes,
    numpy_astype,
    one,
    refuse_complex,
)
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder


def extremum(primitive: Emit, precedes: Emit) -> Emit:
    """Return the rule of maximum or minimum; its derivative goes to the first of equal operands, the primitive's to both by halves."""

    of_complex = complex_numbers.complex_extremum(precedes)

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
    ps.ArcCos: by_kind(prims.acos, complex_numbers.on_branch_cuts(prims.acos)),
    ps.ArcCosh: by_kind(prims.acosh, complex_numbers.on_branch_cuts(prims.acosh)),
    ps.ArcSin: by_kind(prims.asin, complex_numbers.on_branch_cuts(prims.asin, odd=True)),
    ps.ArcSinh: by_kind(prims.asinh, complex_numbers.on_branch_cuts(prims.asinh, odd=True)),
    ps.ArcTan: by_kind(prims.atan, complex_numbers.complex_atan),
    ps.ArcTanh: by_kind(prims.atanh, complex_numbers.complex_atanh),
    ps.Cos: prims.cos,
    ps.Exp: by_kind(prims.exp, complex_numbers.exponential),
    ps.Expm1: prims.expm1,
    ps.Identity: lambda b, x: x,
    ps.Invert: prims.not_,
    ps.Log: prims.log,
    ps.Log1p: prims.log1p,
    ps.Maximum: extremum(prims.max_, prims.ge),
    ps.Minimum: extremum(prims.min_, prims.le),
    ps.Mul: repeated_binary(prims.mul, prims.and_),
    ps.Neg: prims.neg,
    ps.Reciprocal: by_kind(lambda b, x: prims.div(b, one(b, x), x), complex_numbers.complex_reciprocal),
    ps.Second: lambda b, x, y: y,
    ps.Sin: prims.sin,
    ps.Sqrt: by_kind(prims.sqrt, complex_numbers.complex_sqrt),
    ps.Sub: prims.sub,
    ps.Tan: prims.tan,
    ps.Tanh: prims.tanh,
    ps.TrueDiv: by_kind(prims.div, complex_numbers.divide),
}

REAL_NUMBERS: dict[type, Emit] = {ps.ArcTan2: prims.atan2, psm.Sigmoid: prims.logistic}

#: Operations on bits; float64, the common type of int64 and uint64, has none.
BITS: dict[type, Emit] = {ps.AND: prims.and_, ps.OR: prims.or_, ps.XOR: prims.xor}

EQUALITY: dict[type, Emit] = {ps.EQ: prims.eq, ps.NEQ: prims.ne}

ORDER: dict[type, Emit] = {ps.GE: prims.ge, ps.GT: prims.gt, ps.LE: prims.le, ps.LT: prims.lt}


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
for op_type, function in ORDER.items():
    emits_scalar(op_type, form=in_common_dtype, refuse=refuse_complex)(function)


@emits_scalar(ps.Abs, form=in_own_dtypes)
def absolute(op, b, dtype, x):
    """``|x|`` as ``x * sign(x)``, whose derivative at 0 is 0 as PyTensor's is; that of ``abs`` is 1."""
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
    return prims.erf(
        b, numpy_astype(b, x, np.float32 if dtype == np.float16 else dtype)
    )  # as PyTensor computes float16
