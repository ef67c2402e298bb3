"""Elemwise, DimShuffle, and scalar Ops used by themselves."""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.core import primitives
from pytensor.graph.basic import Apply
from pytensor.scalar.basic import ScalarOp
from pytensor.tensor.elemwise import DimShuffle, Elemwise

from pytensor_jaxpr_linker import prims
from pytensor_jaxpr_linker.builder import Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.emit.scalar import REAL_ONLY, RULES, emit_scalar, has_scalar_rule, is_real_only
from pytensor_jaxpr_linker.registry import emits


@emits(Elemwise, refuse=lambda node: refuse_scalar(node.op.scalar_op, node))
def emit_Elemwise(op, node, b, *xs):
    """Broadcast the operands as `Elemwise.perform` does, then apply the scalar Op."""
    shape = broadcast_shape(node, xs)
    operands = [broadcast_operand(b, x, shape) for x in xs] if shape else xs
    results = emit_scalar(op.scalar_op, [v.type.dtype for v in node.outputs], b, operands)
    results = [r if r.aval.shape == shape else prims.broadcast_to(b, r, shape) for r in results]
    return results if len(results) > 1 else results[0]


@emits(ScalarOp, refuse=lambda node: refuse_scalar(node.op, node))
def emit_ScalarOp(op, node, b, *xs):
    """Apply a scalar Op to scalars, which are 0-d arrays here."""
    results = emit_scalar(op, [v.type.dtype for v in node.outputs], b, list(xs))
    return results if len(results) > 1 else results[0]


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
    shapes = [x.aval.shape for x in xs]
    if shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
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


def broadcast_operand(b: JaxprBuilder, x: Atom, shape: Shape) -> Atom:
    """Return an operand that an elementwise primitive accepts beside others of `shape`, which is not 0-d.

    What is one number is passed as a 0-d operand, which primitives broadcast by themselves.
    """
    inner = b.definition(x, primitives.broadcast_in_dim_p)
    if inner is not None:
        source: Atom = inner.invars[0]
        if not source.aval.shape:
            return source
    if x.aval.shape == shape and shape.count(1) < len(shape):
        return x
    value = b.known(x)
    if value is not None and value.size == 1:
        return prims.reshape(b, x, ())
    return prims.broadcast_to(b, x, shape)


def refuse_scalar(op: ScalarOp, node: Apply) -> str | None:
    """Return why a scalar Op can't be emitted for the operands of `node`, or None."""
    if type(op) in RULES and type(op) not in REAL_ONLY:
        return None  # most nodes: what follows takes ten times as long
    if not has_scalar_rule(op):
        return f"no emission rule is registered for the scalar Op {op}"
    if is_real_only(op, node.inputs):
        return f"XLA has no {op} of complex numbers"
    return None
