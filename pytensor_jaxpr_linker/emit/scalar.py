"""Scalar Ops: tables for those that are one primitive, short rules for those that are a few.

A scalar rule gets operands that a primitive accepts side by side (equal shapes, or 0-d), not yet in a common dtype, and the
dtype of its result. Semantics are those of the NumPy function that the Op's `impl` calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from typing import Any

import numpy as np
import pytensor.scalar as ps
import pytensor.scalar.math as psm
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import AbstractFunctionGraph
from pytensor.scalar.basic import Composite, ScalarInnerGraphOp

from pytensor_jaxpr_linker import prims
from pytensor_jaxpr_linker.builder import Atom, JaxprBuilder
from pytensor_jaxpr_linker.registry import registered

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

    def rule(b: JaxprBuilder, x: Atom, y: Atom) -> Atom:
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


#: Ops that are one primitive, or one function for numbers of all kinds, after their operands were converted to the result's dtype.
ONE_PRIMITIVE: dict[type, ScalarRule] = {
    ps.Add: fold(prims.add, prims.or_),
    ps.AND: prims.and_,
    ps.ArcCos: prims.acos,
    ps.ArcCosh: prims.acosh,
    ps.ArcSin: prims.asin,
    ps.ArcSinh: prims.asinh,
    ps.ArcTan: prims.atan,
    ps.ArcTan2: prims.atan2,
    ps.ArcTanh: prims.atanh,
    ps.Cos: prims.cos,
    ps.Exp: prims.exp,
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
    ps.Reciprocal: lambda b, x: prims.div(b, one(b, x), x),
    ps.Second: lambda b, x, y: y,
    ps.Sin: prims.sin,
    ps.Sqrt: prims.sqrt,
    ps.Sub: prims.sub,
    ps.Tan: prims.tan,
    ps.Tanh: prims.tanh,
    ps.TrueDiv: prims.div,
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

#: Ops that PyTensor also defines for complex numbers, but XLA does not.
REAL_ONLY: set[type] = {ps.GE, ps.GT, ps.LE, ps.LT, psm.Erf}

#: NumPy takes longer to look a dtype up by its name than the rest of a rule takes.
as_dtype = cache(np.dtype)

#: Rules that see their operands' own dtypes: ``rule(op, b, dtype, *xs)``.
RULES: dict[type | str, ScalarRule] = {}


def scalar_rule(*op_types: type | str) -> Callable[[ScalarRule], ScalarRule]:
    """Register the decorated function, called as ``rule(op, b, dtype, *xs)``, for scalar Ops or names of their classes."""

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


def find(table: Mapping[Any, Any], op: Any) -> Any:
    """Return the entry of the most specific class of `op` in a table."""
    for cls in type(op).__mro__:
        if (entry := registered(table, cls)) is not None:
            return entry
    return None


def emit_scalar(op: ps.ScalarOp, dtype: str, b: JaxprBuilder, xs: Sequence[Atom]) -> Atom:
    """Emit a scalar Op with one result, of `dtype`, on operands of equal shapes (or 0-d)."""
    rule = RULES.get(type(op)) or find(RULES, op)
    if rule is None:
        return emit_inner_graph(op, [dtype], b, xs)[0]
    of_result = as_dtype(dtype)
    result = rule(op, b, of_result, *xs)
    return result if result.aval.dtype is of_result else convert(b, result, of_result)


def emit_inner_graph(op: ps.ScalarOp, dtypes: Sequence[str], b: JaxprBuilder, xs: Sequence[Atom]) -> list[Atom]:
    """Emit a scalar Op that has an inner graph; return its results in `dtypes`."""
    rule = find(INNER_GRAPH_RULES, op)
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

    def rule(op: ps.ScalarOp, b: JaxprBuilder, dtype: np.dtype, *xs: Atom) -> Atom:
        return primitive(b, *to_common_dtype(b, xs))

    return rule


RULES.update({op_type: one_primitive(primitive) for op_type, primitive in ONE_PRIMITIVE.items()})
RULES.update({op_type: takes_complex(primitive) for op_type, primitive in TAKES_COMPLEX.items()})
RULES.update({op_type: widened(primitive) for op_type, primitive in IN_FLOAT32.items()})
RULES.update({op_type: comparison(primitive) for op_type, primitive in COMPARISONS.items()})


def converted(rule: ScalarRule) -> ScalarRule:
    """Have a rule ``(b, *xs)`` get its operands in the dtype of the result."""
    return wraps(rule)(lambda op, b, dtype, *xs: rule(b, *(convert(b, x, dtype) for x in xs)))
