"""Scalar Ops: tables for those that are one primitive, short rules for those that are a few.

A scalar rule gets operands that a primitive accepts side by side (equal shapes, or 0-d), not yet in a common dtype, and the
dtype of its result. Semantics are those of the NumPy function that the Op's `impl` calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any

import numpy as np
import pytensor.scalar as ps
import pytensor.scalar.math as psm
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import AbstractFunctionGraph
from pytensor.scalar.basic import Composite, ScalarInnerGraphOp

from pytensor_jaxpr_linker.base.rules import Table
from pytensor_jaxpr_linker.emit import complex as complex_numbers
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder

type ScalarRule = Callable[..., Atom]


def absolute(b: JaxprBuilder, x: Atom) -> Atom:
    """``|x|`` as ``x * sign(x)``, whose derivative at 0 is 0 as PyTensor's is; that of ``abs`` is 1."""
    if x.aval.dtype.kind in "bu":
        return x
    return prims.mul(b, x, prims.sign(b, x)) if x.aval.dtype.kind == "f" else prims.abs_(b, x)


def extremum(primitive: ScalarRule, precedes: ScalarRule) -> ScalarRule:
    """Return the rule of maximum or minimum, whose derivative goes to the first operand where both are equal.

    The primitive's own goes to both by halves.
    """

    of_complex = complex_numbers.extremum(precedes)

    def rule(b: JaxprBuilder, x: Atom, y: Atom) -> Atom:
        if x.aval.dtype.kind == "c":
            return of_complex(b, x, y)
        if x.aval.dtype.kind != "f":
            return primitive(b, x, y)
        return prims.select(b, prims.or_(b, precedes(b, x, y), prims.ne(b, x, x)), x, y)

    return rule


def fold(binary: ScalarRule, for_bool: ScalarRule) -> ScalarRule:
    """Return the rule of an n-ary Op that repeats a binary primitive, another one for booleans."""

    def rule(b: JaxprBuilder, x: Atom, *others: Atom) -> Atom:
        step = for_bool if x.aval.dtype.kind == "b" else binary
        for y in others:
            x = step(b, x, y)
        return x

    return rule


def by_kind(of_real: ScalarRule, of_complex: ScalarRule) -> ScalarRule:
    """Return the rule of an Op that is one function of real numbers and another one of complex numbers."""
    return wraps(of_real)(lambda b, x, *xs: (of_complex if x.aval.dtype.kind == "c" else of_real)(b, x, *xs))


#: Ops that are one primitive, or one function for numbers of all kinds, after their operands were converted to the result's dtype.
ONE_PRIMITIVE: dict[type, ScalarRule] = {
    ps.Add: fold(prims.add, prims.or_),
    ps.AND: prims.and_,
    ps.ArcCos: by_kind(prims.acos, complex_numbers.on_branch_cuts(prims.acos)),
    ps.ArcCosh: by_kind(prims.acosh, complex_numbers.on_branch_cuts(prims.acosh)),
    ps.ArcSin: by_kind(prims.asin, complex_numbers.on_branch_cuts(prims.asin, odd=True)),
    ps.ArcSinh: by_kind(prims.asinh, complex_numbers.on_branch_cuts(prims.asinh, odd=True)),
    ps.ArcTan: by_kind(prims.atan, complex_numbers.atan),
    ps.ArcTan2: prims.atan2,
    ps.ArcTanh: by_kind(prims.atanh, complex_numbers.atanh),
    ps.Cos: prims.cos,
    ps.Exp: by_kind(prims.exp, complex_numbers.exponential),
    ps.Expm1: prims.expm1,
    ps.Identity: lambda b, x: x,
    ps.Invert: prims.not_,
    ps.Log: prims.log,
    ps.Log1p: prims.log1p,
    ps.Maximum: extremum(prims.max_, prims.ge),
    ps.Minimum: extremum(prims.min_, prims.le),
    ps.Mul: fold(prims.mul, prims.and_),
    ps.Neg: prims.neg,
    ps.OR: prims.or_,
    ps.Reciprocal: by_kind(lambda b, x: prims.div(b, one(b, x), x), complex_numbers.reciprocal),
    ps.Second: lambda b, x, y: y,
    ps.Sin: prims.sin,
    ps.Sqrt: by_kind(prims.sqrt, complex_numbers.sqrt),
    ps.Sub: prims.sub,
    ps.Tan: prims.tan,
    ps.Tanh: prims.tanh,
    ps.TrueDiv: by_kind(prims.div, complex_numbers.divide),
    ps.XOR: prims.xor,
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

#: Ops that are one function, whose complex operands are not converted to the real dtype of the result.
TAKES_COMPLEX: dict[type, ScalarRule] = {ps.Abs: absolute, ps.Cast: lambda b, x: x}

#: Ops that are one primitive, whose float16 results PyTensor computes in float32.
IN_FLOAT32: dict[type, ScalarRule] = {psm.Erf: prims.erf}

#: Ops that PyTensor declares for complex numbers, too, and XLA does not know for these; of some, XLA ends the process.
REAL_ONLY: set[type] = {
    *(ps.ArcTan2, ps.GE, ps.GT, ps.IntDiv, ps.LE, ps.LT, ps.Mod, psm.Erf, psm.Sigmoid, psm.Softplus),
}

#: Ops on bits, which the common type of int64 and uint64, float64, does not have.
BITWISE: set[type] = {ps.AND, ps.OR, ps.XOR}

#: NumPy takes longer to look a dtype up by its name than the rest of a rule takes.
as_dtype = cache(np.dtype)

UINT64 = np.dtype(np.uint64)

#: Rules that see their operands' own dtypes: ``rule(op, b, dtype, *xs)``.
RULES: Table[ScalarRule] = Table()


def scalar_rule(*op_types: type | str) -> Callable[[ScalarRule], ScalarRule]:
    """Register the decorated function, called as ``rule(op, b, dtype, *xs)``, for scalar Ops or names of their classes."""

    def register(rule: ScalarRule) -> ScalarRule:
        for op_type in op_types:
            RULES[op_type] = rule
        return rule

    return register


#: Rules of Ops with inner graphs, which may have several results: ``rule(op, dtypes, b, xs)``.
INNER_GRAPH_RULES: Table[Callable[..., list[Atom]]] = Table()


def inner_graph_rule(op_type: type) -> Callable[[Callable[..., list[Atom]]], Callable[..., list[Atom]]]:
    """Register the decorated function for a scalar Op that has an inner graph."""

    def register(rule: Callable[..., list[Atom]]) -> Callable[..., list[Atom]]:
        INNER_GRAPH_RULES[op_type] = rule
        return rule

    return register


def has_scalar_rule(op: ps.ScalarOp) -> bool:
    """Tell whether `emit_scalar` can emit a scalar Op."""
    if RULES.of(type(op)) is not None:
        return True
    return isinstance(op, ScalarInnerGraphOp) and (
        INNER_GRAPH_RULES.of(type(op)) is not None and all(has_scalar_rule(node.op) for node in op.fgraph.toposort())
    )


def why_undefined(op: ps.ScalarOp, operands: Sequence[Variable]) -> str | None:
    """Return why an Op, which has a rule, has none for operands of these types, or None."""
    if isinstance(op, ScalarInnerGraphOp):
        reasons = (why_undefined(node.op, node.inputs) for node in op.fgraph.toposort())
        return next((reason for reason in reasons if reason), None)
    dtypes = [v.type.dtype for v in operands]
    if type(op) in REAL_ONLY and any(dtype.startswith("complex") for dtype in dtypes):
        return f"XLA has no {op} of complex numbers"
    if type(op) in BITWISE and np.result_type(*dtypes).kind == "f":
        return f"{op} of {' and '.join(dtypes)} is not an integer"
    return None


def emit_scalar(op: ps.ScalarOp, dtype: str, b: JaxprBuilder, xs: Sequence[Atom]) -> Atom:
    """Emit a scalar Op with one result, of `dtype`, on operands of equal shapes (or 0-d)."""
    rule = RULES.of(type(op))
    if rule is None:
        return emit_inner_graph(op, [dtype], b, xs)[0]
    of_result = as_dtype(dtype)
    result = rule(op, b, of_result, *xs)
    return result if result.aval.dtype is of_result else convert(b, result, of_result)


def emit_inner_graph(op: ps.ScalarOp, dtypes: Sequence[str], b: JaxprBuilder, xs: Sequence[Atom]) -> list[Atom]:
    """Emit a scalar Op that has an inner graph; return its results in `dtypes`."""
    rule = INNER_GRAPH_RULES.of(type(op))
    if rule is None:
        raise NotImplementedError(f"No emission rule for the scalar Op {op}")
    return rule(op, dtypes, b, xs)


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
        dtypes, operands = [v.type.dtype for v in node.outputs], [read(v) for v in node.inputs]
        if len(dtypes) == 1:
            env[node.outputs[0]] = emit_scalar(node.op, dtypes[0], b, operands)
        else:
            env.update(zip(node.outputs, emit_inner_graph(node.op, dtypes, b, operands), strict=True))
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
    old = x.aval.dtype
    if dtype is old or (dtype := np.dtype(dtype)) == old:
        return x
    if dtype.kind == "b":
        return prims.ne(b, x, number(b, x, 0))
    if old.kind == "c" and dtype.kind != "c":
        return convert(b, prims.real(b, x), dtype)
    if old.kind == "b" and dtype.kind in "fc" and b.known(x) is None:
        # XLA rewrites the product with a converted mask as a choice, in which a NaN or an infinity times zero is zero.
        return prims.select(b, x, b.constant(dtype.type(1)), b.constant(dtype.type(0)))
    if old.kind == "f" and dtype.kind in "iu":
        return truncated(b, x, dtype)
    return prims.convert(b, x, dtype)


def truncated(b: JaxprBuilder, x: Atom, dtype: np.dtype) -> Atom:
    """Convert floating-point numbers to integers as C on x86-64 does, and so NumPy; XLA saturates, and takes NaN for 0.

    What has no 32-bit integer (for int64 and uint64, no 64-bit one) becomes the smallest, whose bits narrower results keep.
    """
    if x.aval.dtype == np.float16:
        x = prims.convert(b, x, "float32")
    wide = np.dtype(np.int64 if dtype.itemsize == 8 else np.int32)
    smallest = np.iinfo(wide.name).min
    end = -float(smallest)
    if (value := b.known(x)) is not None and value.ndim == 0 and -end <= value < end:
        return b.constant(value.astype(wide).astype(dtype))
    if dtype.kind == "i" or dtype.itemsize < 4:
        return prims.convert(b, to_signed(b, x, wide), dtype)
    high = prims.ge(b, x, number(b, x, end))
    moved = prims.select(b, high, prims.sub(b, x, number(b, x, end)), x)
    bits = to_signed(b, moved, wide)
    flipped = prims.xor(b, bits, prims.broadcast_to(b, number(b, bits, smallest), bits.aval.shape))
    return prims.convert(b, prims.select(b, high, flipped, bits), dtype)


def to_signed(b: JaxprBuilder, x: Atom, dtype: np.dtype) -> Atom:
    """Convert to int32 or int64; what is out of range, and NaN, to the smallest of them."""
    smallest = np.iinfo(dtype.name).min
    fits = prims.lt(b, x, number(b, x, -float(smallest)))  # XLA gives the smallest to what is below
    return prims.select(b, fits, prims.convert(b, x, dtype), b.constant(np.asarray(smallest, dtype)))


def in_dtype(b: JaxprBuilder, xs: Sequence[Atom], dtype: np.dtype) -> Sequence[Atom]:
    """Convert operands to a dtype."""
    for x in xs:
        if x.aval.dtype is not dtype:
            return [convert(b, x, dtype) for x in xs]
    return xs


def to_common_dtype(b: JaxprBuilder, xs: Sequence[Atom]) -> list[Atom]:
    """Convert operands to the dtype that NumPy would compare them in."""
    common = np.result_type(*(x.aval.dtype for x in xs))
    return [convert(b, x, common) for x in xs]


def one_primitive(primitive: ScalarRule) -> ScalarRule:
    """Return the rule of an Op of `ONE_PRIMITIVE`."""
    return lambda op, b, dtype, *xs: primitive(b, *in_dtype(b, xs, dtype))


def takes_complex(primitive: ScalarRule) -> ScalarRule:
    """Return the rule of an Op of `TAKES_COMPLEX`."""

    def rule(op: ps.ScalarOp, b: JaxprBuilder, dtype: np.dtype, x: Atom) -> Atom:
        return primitive(b, x if x.aval.dtype.kind == "c" else convert(b, x, dtype))

    return rule


def widened(primitive: ScalarRule) -> ScalarRule:
    """Return the rule of an Op of `IN_FLOAT32`."""

    def rule(op: ps.ScalarOp, b: JaxprBuilder, dtype: np.dtype, x: Atom) -> Atom:
        return primitive(b, convert(b, x, np.float32 if dtype == np.float16 else dtype))

    return rule


def comparison(primitive: ScalarRule) -> ScalarRule:
    """Return the rule of an Op of `COMPARISONS`."""

    def rule(op: ps.ScalarOp, b: JaxprBuilder, dtype: np.dtype, x: Atom, y: Atom) -> Atom:
        kinds = x.aval.dtype.kind + y.aval.dtype.kind
        if kinds in ("iu", "ui") and np.result_type(x.aval.dtype, y.aval.dtype).kind == "f":
            signed, unsigned = (x, y) if kinds == "iu" else (y, x)
            negative = prims.lt(b, signed, number(b, signed, 0))
            # A negative number is to every unsigned one as it is to 0.
            below = [number(b, signed, 0) if a is unsigned else a for a in (x, y)]
            return prims.select(b, negative, primitive(b, *below), primitive(b, *in_dtype(b, (x, y), UINT64)))
        return primitive(b, *to_common_dtype(b, (x, y)))

    return rule


for form, table in (
    (one_primitive, ONE_PRIMITIVE),
    (takes_complex, TAKES_COMPLEX),
    (widened, IN_FLOAT32),
    (comparison, COMPARISONS),
):
    for op_type, primitive in table.items():
        RULES[op_type] = form(primitive)


def converted(rule: ScalarRule) -> ScalarRule:
    """Have a rule ``(b, *xs)`` get its operands in the dtype of the result."""
    return wraps(rule)(lambda op, b, dtype, *xs: rule(b, *(convert(b, x, dtype) for x in xs)))
