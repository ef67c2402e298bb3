"""Elemwise, DimShuffle, and scalar Ops used by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.core import Var
from pytensor.graph.basic import Apply
from pytensor.scalar.basic import ScalarOp
from pytensor.tensor.elemwise import DimShuffle, Elemwise

from pytensor_jaxpr_linker.base.rules import SCALAR_RULES, emits
from pytensor_jaxpr_linker.emit.scalar import as_dtype, emit_scalar, emit_scalars, why_refused
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape


def refuse_elemwise(node: Apply) -> str | None:
    """Return why an `Elemwise` can't be emitted, or None."""
    return why_refused(node.op.scalar_op, node.inputs)


@emits(Elemwise, refuse=refuse_elemwise)
def emit_Elemwise(op, node, b, *xs):
    """Broadcast the operands as `Elemwise.perform` does, then apply the scalar Op."""
    rule: Any = SCALAR_RULES.of(type(op.scalar_op))
    aval = xs[0].aval
    if rule.plain is not None and aval.dtype is as_dtype(node.outputs[0].type.dtype) and 1 not in aval.shape:
        # Most nodes: operands of one shape and of the result's dtype. What follows does the same and takes three times as long.
        repeated = b.repeated if aval.shape else ()
        if not [x for x in xs if x.aval is not aval or x in repeated]:
            return rule.plain(b, *xs)
    shape = broadcast_shape(node, xs)
    operands = broadcast_operands(b, xs, shape)
    if len(node.outputs) == 1:
        return prims.broadcast_to(b, emit_scalar(op.scalar_op, node.outputs[0].type.dtype, b, operands), shape)
    results = emit_scalars(op.scalar_op, [v.type.dtype for v in node.outputs], b, operands)
    return [prims.broadcast_to(b, r, shape) for r in results]


@emits(ScalarOp, refuse=lambda node: why_refused(node.op, node.inputs))
def emit_ScalarOp(op, node, b, *xs):
    """Apply a scalar Op to scalars, which are 0-d arrays here."""
    if len(node.outputs) == 1:
        return emit_scalar(op, node.outputs[0].type.dtype, b, xs)
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
    """Return the shape that the operands of an `Elemwise` broadcast to.

    Raises
    ------
    ValueError
        If lengths differ, or if a length of 1 meets another one in a dimension that was not declared broadcastable.
    """
    shape: Shape = xs[0].aval.shape
    for x in xs:
        if x.aval.shape != shape:
            break
    else:
        return shape
    shapes = [x.aval.shape for x in xs]
    return tuple(broadcast_length(node, axis, lengths) for axis, lengths in enumerate(zip(*shapes, strict=True)))


def broadcast_length(node: Apply, axis: int, lengths: Sequence[int]) -> int:
    """Return the common length of one dimension."""
    others = [n for n in lengths if n != 1]
    if not others:
        return 1
    if others.count(others[0]) != len(others):
        raise ValueError(
            f"Incompatible Elemwise input shapes {[str(n) for n in lengths]}: dimension mismatch in dimension {axis}"
        )
    for i, (variable, n) in enumerate(zip(node.inputs, lengths, strict=True)):
        if n == 1 and variable.type.shape[axis] != 1:
            raise ValueError(
                "Runtime broadcasting not allowed. At least one input has a distinct dimension length of 1, but was not"
                f" marked as broadcastable: input {i} ({variable.name or variable.type}), dimension {axis}.\n"
                "If broadcasting was intended, use `specify_broadcastable` on the relevant input(s)."
            )
    return others[0]


def broadcast_operands(b: JaxprBuilder, xs: Sequence[Atom], shape: Shape) -> Sequence[Atom]:
    """Return operands that an elementwise primitive accepts side by side, for a result of `shape`.

    What is one number is passed as a 0-d operand, which primitives broadcast by themselves.
    """
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
