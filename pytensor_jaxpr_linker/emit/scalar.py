"""Registration of scalar rules, the forms to write them in, conversions, and scalar Ops with an inner graph.

A scalar rule gets operands that a primitive accepts together: of equal shapes, or 0-d. It computes like the NumPy
function in the Op's `impl`. `scalar_primitives` has the rules of one primitive, `scalar_basic` of a few primitives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, wraps
from typing import Any

import numpy as np
import pytensor.scalar as ps
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import AbstractFunctionGraph

from pytensor_jaxpr_linker.base.rules import SCALAR_RULES, ScalarRefusal, ScalarRule, check_op_types
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.nested import any_of, nested

type Emit = Callable[..., Any]


#: NumPy takes longer to look a dtype up by its name than the rest of a rule takes.
as_dtype = cache(np.dtype)

UINT64 = np.dtype(np.uint64)


def emits_scalar(
    *op_types: type | str, form: Callable[[Any], ScalarRule] | None = None, refuse: ScalarRefusal | None = None
) -> Callable[[Emit], Emit]:
    """Register the decorated emission rule for scalar Ops and their subclasses.

    Parameters
    ----------
    *op_types
        Classes of scalar Ops, or their names as `class_name` gives them, for a library that need not be installed.
    form
        How the rule is written: `in_result_dtype` if not given, else `in_own_dtypes`, `in_common_dtype`,
        `several_results`, or `scalar_math.derivative.values` for a formula.
    refuse
        A function from the Op and the dtypes of the operands to the reason why the rule can't take them, or None.

    Examples
    --------
    A rule for a scalar Op of your own, which any `Elemwise` of it then uses:

    >>> import pytensor, pytensor.scalar as ps, pytensor.tensor as pt
    >>> from pytensor.tensor.elemwise import Elemwise
    >>> from pytensor_jaxpr_linker import emits_scalar, prims
    >>> class Cube(ps.UnaryScalarOp):
    ...     def impl(self, x):
    ...         return x * x * x
    >>> @emits_scalar(Cube)
    ... def cube(b, x):
    ...     return prims.integer_pow(b, x, 3)
    >>> x = pt.vector("x", dtype="float64")
    >>> pytensor.function([x], Elemwise(Cube(ps.upgrade_to_float))(x), mode="JAXPR")([1.0, 2.0])
    array([1., 8.])
    """

    check_op_types("emits_scalar", op_types)

    def register(function: Emit) -> Emit:
        rule = (form or in_result_dtype)(function)
        for op_type in op_types:
            SCALAR_RULES[op_type] = rule if refuse is None else replace(rule, refuse=refuse)
        return function

    return register


def why_refused(op: ps.ScalarOp, operands: Sequence[Variable]) -> str | None:
    rule = SCALAR_RULES.of(type(op))
    if rule is None:
        return f"no emission rule is registered for the scalar Op {op}"
    return None if rule.refuse is None else rule.refuse(op, [v.type.dtype for v in operands])


def refuse_complex(op: ps.ScalarOp, dtypes: Sequence[str]) -> str | None:
    """Return why XLA can't run an Op on complex numbers, which PyTensor accepts: some end the process."""
    is_complex = any(dtype.startswith("complex") for dtype in dtypes)
    return f"XLA has no {op} of complex numbers" if is_complex else None


def emit_scalar(op: ps.ScalarOp, dtype: str, b: JaxprBuilder, xs: Sequence[Atom]) -> Atom:
    """Emit a scalar Op with one result, of `dtype`, on operands of equal shapes (or 0-d)."""
    of_result = as_dtype(dtype)
    result = scalar_rule(op).emit(op, b, of_result, *xs)
    return result if result.aval.dtype is of_result else numpy_astype(b, result, of_result)


def emit_scalars(op: ps.ScalarOp, dtypes: Sequence[str], b: JaxprBuilder, xs: Sequence[Atom]) -> list[Atom]:
    """Emit a scalar Op with any number of results, of `dtypes`."""
    several = scalar_rule(op).several if len(dtypes) > 1 else None
    return [emit_scalar(op, dtypes[0], b, xs)] if several is None else several(op, b, dtypes, *xs)


def scalar_rule(op: ps.ScalarOp) -> ScalarRule:
    """Return the rule of a scalar Op, which has one: see `why_refused`."""
    rule = SCALAR_RULES.of(type(op))
    if rule is None:
        raise NotImplementedError(f"No emission rule for the scalar Op {op}")
    return rule


def in_result_dtype(function: Emit) -> ScalarRule:
    """Make a rule of ``function(b, *xs)``, which gets its operands in the dtype of the result."""
    return ScalarRule(wraps(function)(lambda op, b, dtype, *xs: function(b, *in_dtype(b, xs, dtype))), plain=function)


def in_own_dtypes(function: Emit) -> ScalarRule:
    """Make a rule of ``function(op, b, dtype, *xs)``: operands in their own dtypes, and the result's dtype."""
    return ScalarRule(function)


def in_common_dtype(function: Emit) -> ScalarRule:
    """Make a rule of a comparison ``function(b, x, y)``, which gets its operands in their common dtype."""

    @wraps(function)
    def rule(op: ps.ScalarOp, b: JaxprBuilder, dtype: np.dtype, x: Atom, y: Atom) -> Atom:
        kinds = x.aval.dtype.kind + y.aval.dtype.kind
        if kinds in ("iu", "ui") and np.result_type(x.aval.dtype, y.aval.dtype).kind == "f":
            signed, unsigned = (x, y) if kinds == "iu" else (y, x)
            negative = prims.lt(b, signed, number(b, signed, 0))
            # A negative number is to every unsigned one as it is to 0.
            below = [number(b, signed, 0) if a is unsigned else a for a in (x, y)]
            return prims.select(b, negative, function(b, *below), function(b, *in_dtype(b, (x, y), UINT64)))
        return function(b, *to_common_dtype(b, (x, y)))

    return ScalarRule(rule)


def several_results(function: Callable[..., list[Atom]]) -> ScalarRule:
    """Make a rule of ``function(op, b, dtypes, *xs)``, which returns a list, for an Op with an inner graph."""
    single = wraps(function)(lambda op, b, dtype, *xs: function(op, b, [dtype], *xs)[0])
    return ScalarRule(single, refuse_inner, several=function)


def refuse_inner(op: Any, dtypes: Sequence[str]) -> str | None:
    """Return why a scalar Op with an inner graph can't be emitted: why the first of the nodes there can't."""
    reasons = (why_refused(node.op, node.inputs) for node in op.fgraph.toposort())
    return next((reason for reason in reasons if reason), None)


@emits_scalar(ps.Composite, form=several_results)
def emit_composite(op, b, dtypes, *xs):
    """Emit a fused scalar Op."""
    results = emit_inner(op.fgraph, b, xs)
    return [numpy_astype(b, x, np.dtype(t)) for x, t in zip(results, dtypes, strict=True)]


def emit_inner(fgraph: AbstractFunctionGraph, b: JaxprBuilder, xs: Sequence[Atom]) -> list[Atom]:
    """Emit the inner graph of a scalar Op."""
    env: dict[Any, Atom] = dict(zip(fgraph.inputs, xs, strict=True))

    def read(variable: Any) -> Atom:
        return b.constant(variable.data, variable.type.dtype) if isinstance(variable, Constant) else env[variable]

    for variable, x in zip(fgraph.inputs, xs, strict=True):
        env[variable] = numpy_astype(b, x, variable.type.dtype)
    for node in fgraph.toposort():
        results = emit_scalars(node.op, [v.type.dtype for v in node.outputs], b, [read(v) for v in node.inputs])
        env.update(zip(node.outputs, results, strict=True))
    return [read(v) for v in fgraph.outputs]


def number(b: JaxprBuilder, x: Atom, value: Any) -> Atom:
    """Return the literal `value` in the dtype of `x`."""
    return b.constant(value, x.aval.dtype)


def numpy_astype(b: JaxprBuilder, x: Atom, dtype: Any) -> Atom:
    """Convert as NumPy's ``astype`` does: numbers but 0 are true, complex ones lose the imaginary part."""
    old = x.aval.dtype
    if dtype is old or (dtype := np.dtype(dtype)) == old:
        return x
    if dtype.kind == "b":
        return prims.ne(b, x, number(b, x, 0))
    if old.kind == "c" and dtype.kind != "c":
        return numpy_astype(b, prims.real(b, x), dtype)
    if old.kind == "b" and dtype.kind in "fc" and b.known(x) is None:
        # XLA rewrites the product with a converted mask as a choice, in which a NaN or an infinity times zero is zero.
        return prims.select(b, x, b.constant(dtype.type(1)), b.constant(dtype.type(0)))
    if old.kind == "f" and dtype.kind in "iu":
        return truncated(b, x, dtype)
    return prims.convert(b, x, dtype)


def truncated(b: JaxprBuilder, x: Atom, dtype: np.dtype) -> Atom:
    """Convert floating-point numbers to integers as NumPy (C on x86-64) does; XLA saturates, and takes NaN for 0.

    A value without a 32-bit integer (64-bit for int64 and uint64) becomes the smallest; narrower results keep its low
    bits.
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
    """Convert to int32 or int64; values out of range and NaN become the smallest integer."""
    smallest = np.iinfo(dtype.name).min
    fits = prims.lt(b, x, number(b, x, -float(smallest)))  # XLA gives the smallest to values below
    return prims.select(b, fits, prims.convert(b, x, dtype), b.constant(np.asarray(smallest, dtype)))


def all_true(b: JaxprBuilder, ok: Atom) -> Atom:
    """Emit whether all elements are true."""
    return prims.reduce_and(b, ok, range(len(ok.aval.shape))) if ok.aval.shape else ok


def in_dtype(b: JaxprBuilder, xs: Sequence[Atom], dtype: np.dtype) -> Sequence[Atom]:
    for x in xs:
        if x.aval.dtype is not dtype:
            return [numpy_astype(b, x, dtype) for x in xs]
    return xs


def to_common_dtype(b: JaxprBuilder, xs: Sequence[Atom]) -> list[Atom]:
    """Convert operands to the dtype that NumPy would compare them in."""
    common = np.result_type(*(x.aval.dtype for x in xs))
    return [numpy_astype(b, x, common) for x in xs]


# -- loops -------------------------------------------------------------------------------------------------------------


@emits_scalar(ps.ScalarLoop, form=several_results)
def emit_ScalarLoop(op, b, dtypes, steps, *xs):
    """Step while any element goes on; without a step `until` is true, as the Op documents."""
    shape = prims.elementwise_shape((steps, *xs))
    state_count = len(op.outputs) - op.is_while
    operands = [numpy_astype(b, x, t.dtype) for x, t in zip(xs, op.inputs_type, strict=True)]
    states = [prims.broadcast_to(b, x, shape) for x in operands[:state_count]]
    if op.is_while:
        states.append(prims.broadcast_to(b, b.constant(True), shape))
    fixed = [steps, *operands[state_count:]]
    zero = b.constant(0, steps.aval.dtype)
    active = prims.broadcast_to(b, prims.lt(b, zero, steps), shape)
    carry = [zero, active, *states]

    body, (step_limit, *constants), (i, active, *old), passed = nested(b, fixed, carry)
    new = emit_inner(op.fgraph, body, [*old[:state_count], *constants])
    new = [prims.broadcast_to(body, numpy_astype(body, x, s.aval.dtype), shape) for x, s in zip(new, old, strict=True)]
    new = [prims.select(body, active, x, s) for x, s in zip(new, old, strict=True)]
    i = prims.add(body, i, body.constant(1, steps.aval.dtype))
    active = prims.and_(body, active, prims.broadcast_to(body, prims.lt(body, i, step_limit), shape))
    if op.is_while:
        active = prims.and_(body, active, prims.not_(body, new[-1]))
    condition, atoms = b.sub_jaxpr([x.aval for x in carry])
    goes_on = condition.build([any_of(condition, atoms[1])])
    results = prims.while_loop(b, goes_on, [], body.build([i, active, *new]), passed, carry)
    return [numpy_astype(b, x, np.dtype(t)) for x, t in zip(results[2:], dtypes, strict=True)]
