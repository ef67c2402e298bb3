"""Elemwise, DimShuffle, reductions, and scalar Ops used by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytensor.scalar as ps
from jax.extend.core import Var
from pytensor.graph.basic import Apply
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import MulWithoutZeros

from pytensor_jaxpr_linker.base.errors import empty_reduction
from pytensor_jaxpr_linker.base.rules import SCALAR_RULES, Table, emits
from pytensor_jaxpr_linker.emit.scalar import as_dtype, emit_scalars, number, numpy_astype, why_refused
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape


@emits(Elemwise, refuse=lambda node: why_refused(node.op.scalar_op, node.inputs))
def emit_Elemwise(op, node, b, *xs):
    """Broadcast the operands as `Elemwise.perform` does, then apply the scalar Op."""
    rule: Any = SCALAR_RULES.of(type(op.scalar_op))
    aval = xs[0].aval
    if rule.plain is not None and aval.dtype is as_dtype(node.outputs[0].type.dtype) and 1 not in aval.shape:
        # Most nodes: operands of one shape and of the result's dtype. The general path takes three times as long.
        repeated = b.repeated if aval.shape else ()
        if not [x for x in xs if x.aval is not aval or x in repeated]:
            return rule.plain(b, *xs)
    shape = broadcast_shape(node, xs)
    operands = broadcast_operands(b, xs, shape)
    results = emit_scalars(op.scalar_op, [v.type.dtype for v in node.outputs], b, operands)
    return [prims.broadcast_to(b, r, shape) for r in results]


@emits(ps.ScalarOp, refuse=lambda node: why_refused(node.op, node.inputs))
def emit_ScalarOp(op, node, b, *xs):
    """Apply a scalar Op to scalars, which are 0-d arrays here."""
    return emit_scalars(op, [v.type.dtype for v in node.outputs], b, xs)


@emits(DimShuffle)
def emit_DimShuffle(op, node, b, x):
    """Drop, permute and add axes."""
    for axis in op.drop:
        if x.aval.shape[axis] != 1:
            raise ValueError(f"Cannot drop a non-broadcastable dimension: {x.aval.shape}, axis {axis}")
    x = prims.squeeze(b, x, op.drop)
    kept = sorted(op.shuffle)
    x = prims.transpose(b, x, [kept.index(i) for i in op.shuffle])
    dims = [i for i, axis in enumerate(op.new_order) if axis != "x"]
    shape = [1] * len(op.new_order)
    for i, n in zip(dims, x.aval.shape, strict=True):
        shape[i] = n
    return prims.broadcast_in_dim(b, x, tuple(shape), dims)


def broadcast_shape(node: Apply, xs: Sequence[Atom]) -> Shape:
    """Return the operands' broadcast shape; a ValueError if lengths differ, or an undeclared 1 meets another."""
    shape: Shape = xs[0].aval.shape
    shapes = [x.aval.shape for x in xs]
    if shapes.count(shape) == len(shapes):
        return shape
    return tuple(broadcast_length(node, axis, lengths) for axis, lengths in enumerate(zip(*shapes, strict=True)))


def broadcast_length(node: Apply, axis: int, lengths: Sequence[int]) -> int:
    """Return the common length of one dimension."""
    others = [n for n in lengths if n != 1]
    if not others:
        return 1
    if others.count(others[0]) != len(others):
        shapes = [str(n) for n in lengths]
        raise ValueError(f"Incompatible Elemwise input shapes {shapes}: dimension mismatch in dimension {axis}")
    for i, (variable, n) in enumerate(zip(node.inputs, lengths, strict=True)):
        if n == 1 and variable.type.shape[axis] != 1:
            raise ValueError(
                "Runtime broadcasting not allowed. At least one input has a distinct dimension length of 1, but was not"
                f" marked as broadcastable: input {i} ({variable.name or variable.type}), dimension {axis}.\n"
                "If broadcasting was intended, use `specify_broadcastable` on the relevant input(s)."
            )
    return others[0]


def broadcast_operands(b: JaxprBuilder, xs: Sequence[Atom], shape: Shape) -> Sequence[Atom]:
    """Return operands for an elementwise result of `shape`; a repeated number stays 0-d: primitives broadcast it."""
    if not shape:
        return xs
    if shape.count(1) == len(shape):
        xs = [x if (value := b.known(x)) is None else b.constant(value.reshape(())) for x in xs]
    repeated = b.repeated
    return [x if x.aval.shape == shape and x not in repeated else broadcast_operand(b, x, shape) for x in xs]


def broadcast_operand(b: JaxprBuilder, x: Atom, shape: Shape) -> Atom:
    """Return the number that `x` repeats, or `x` broadcast to `shape`."""
    if type(x) is Var and x in b.repeated:
        return b.repeated[x]
    value = b.known(x)
    if value is not None and value.size == 1:
        return prims.reshape(b, x, ())
    return prims.broadcast_to(b, x, shape)


type Reduction = Callable[[JaxprBuilder, Atom, Sequence[int]], Atom]


def prod_without_zeros(b: JaxprBuilder, x: Atom, axes: Sequence[int]) -> Atom:
    """Emit the product of the elements that are not zero; 0 if there are none."""
    is_zero = prims.eq(b, x, number(b, x, 0))
    product = prims.reduce_prod(b, prims.select(b, is_zero, number(b, x, 1), x), axes)
    return prims.select(b, prims.reduce_and(b, is_zero, axes), number(b, x, 0), product)


#: The reductions of numbers and of booleans, by scalar Op.
REDUCTION_RULES: Table[tuple[Reduction, Reduction]] = Table(
    {
        ps.Add: (prims.reduce_sum, prims.reduce_or),
        ps.Mul: (prims.reduce_prod, prims.reduce_and),
        ps.Maximum: (prims.reduce_max, prims.reduce_or),
        ps.Minimum: (prims.reduce_min, prims.reduce_and),
        ps.AND: (prims.reduce_and, prims.reduce_and),
        ps.OR: (prims.reduce_or, prims.reduce_or),
        ps.XOR: (prims.reduce_xor, prims.reduce_xor),
        MulWithoutZeros: (prod_without_zeros, prims.reduce_and),
    }
)


def refuse_reduction(node: Apply) -> str | None:
    if REDUCTION_RULES.of(type(node.op.scalar_op)) is None:
        return f"no reduction by the scalar Op {node.op.scalar_op} is registered"
    is_ordered = not node.inputs[0].type.dtype.startswith("complex")
    return None if is_ordered or isinstance(node.op.scalar_op, ps.Add | ps.Mul) else "complex numbers have no order"


@emits(CAReduce, refuse=refuse_reduction)
def emit_CAReduce(op, node, b, x):
    """Reduce axes in the accumulator's dtype; only maximum and minimum need an element, unless they have `initial`."""
    dtype = node.outputs[0].type.dtype
    axes = range(len(x.aval.shape)) if op.axis is None else op.axis
    is_extremum = isinstance(op.scalar_op, ps.Maximum | ps.Minimum)
    if is_extremum and not getattr(op, "initial", False):
        check_not_empty(x, axes, op.scalar_op.nfunc_spec[0])
    x = numpy_astype(b, x, op.acc_dtype or dtype)
    if len(axes):
        of_numbers, of_bools = REDUCTION_RULES.of(type(op.scalar_op))  # type: ignore[misc]  # see `refuse_reduction`
        x = (of_bools if x.aval.dtype.kind == "b" else of_numbers)(b, x, axes)
    return numpy_astype(b, x, dtype)


def check_not_empty(x: Atom, axes: Sequence[int], name: str) -> None:
    """Raise NumPy's ValueError for an extremum over no elements."""
    if any(x.aval.shape[i] == 0 for i in axes):
        raise empty_reduction(name)
