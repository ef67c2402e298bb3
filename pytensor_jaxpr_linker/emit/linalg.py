"""Linear algebra, and `Blockwise`, which repeats a core Op over leading axes.

A core rule takes operands with leading batch axes of equal lengths; a node without them is the case of none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax.extend.core import primitives
from pytensor.graph.basic import Apply
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.linalg.solvers.psd import CholeskySolve
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular
from pytensor.tensor.math import Dot
from pytensor.tensor.sort import ArgSortOp, SortOp

from pytensor_jaxpr_linker import prims
from pytensor_jaxpr_linker.builder import Atom, JaxprBuilder
from pytensor_jaxpr_linker.emit.math import emit_ArgSortOp, emit_Dot, emit_SortOp
from pytensor_jaxpr_linker.emit.scalar import convert, find, number
from pytensor_jaxpr_linker.emit.tensor_basic import diagonal
from pytensor_jaxpr_linker.registry import emits, find_rule

#: The rules of core Ops that take batch axes.
CORE_RULES: dict[type, Callable[..., Atom]] = {
    ArgSortOp: emit_ArgSortOp,
    Dot: emit_Dot,
    SortOp: emit_SortOp,
}


def core_rule(op_type: type) -> Callable[[Callable], Callable]:
    """Register the decorated function for a core Op, alone and inside a `Blockwise`."""

    def register(rule: Callable) -> Callable:
        CORE_RULES[op_type] = rule
        return emits(op_type, refuse=refuse_complex)(rule)

    return register


def refuse_complex(node: Apply) -> str | None:
    """Return why linear algebra on a node's dtypes can't be emitted, or None."""
    is_complex = any(v.type.dtype.startswith("complex") for v in node.inputs)
    return "it is emitted for real numbers only" if is_complex else None


# -- Blockwise ---------------------------------------------------------------------------------------------------------


def refuse_blockwise(node: Apply) -> str | None:
    """Return why a `Blockwise` can't be emitted, or None."""
    core = node.op.core_op
    if find(CORE_RULES, core) is None:
        return f"no batched emission rule is registered for the core Op {core}"
    rule = find_rule(core)
    return rule.refuse(node) if rule is not None else None


@emits(Blockwise, refuse=refuse_blockwise)
def emit_Blockwise(op, node, b, *xs):
    """Broadcast the batch axes of the operands, then apply the core Op's rule."""
    n = op.batch_ndim(node)
    batch = batch_shape(node, n, xs)
    operands = [prims.broadcast_to(b, x, (*batch, *x.aval.shape[n:])) for x in xs]
    return find(CORE_RULES, op.core_op)(op.core_op, node, b, *operands)


def batch_shape(node: Apply, n: int, xs: tuple[Atom, ...]) -> tuple[int, ...]:
    """Return what the first `n` axes of the operands broadcast to.

    Raises
    ------
    ValueError
        If lengths differ, or if a length of 1 meets another one in a dimension that was not declared broadcastable.
    """
    shapes = [x.aval.shape[:n] for x in xs]
    result = np.broadcast_shapes(*shapes)
    for variable, shape in zip(node.inputs, shapes, strict=True):
        if any(k == 1 != out and v != 1 for k, out, v in zip(shape, result, variable.type.shape[:n], strict=True)):
            raise ValueError(
                "Runtime broadcasting not allowed. At least one input has a distinct batch dimension length of 1, but"
                " was not marked as broadcastable.\n"
                "If broadcasting was intended, use `specify_broadcastable` on the relevant input."
            )
    return result


# -- factors and solutions ---------------------------------------------------------------------------------------------


@core_rule(Cholesky)
def emit_Cholesky(op, node, b, x):
    """The triangular factor, of the triangle that `lower` names; all NaN if `x` is not positive definite.

    The primitive reads one triangle and its derivative is by that triangle, as PyTensor has it.
    """
    x = convert(b, x, node.outputs[0].type.dtype)
    shape = x.aval.shape
    if 0 in shape[-2:]:
        return prims.broadcast_to(b, number(b, x, 0), shape)
    if shape[-1] != shape[-2]:
        raise ValueError(f"Input array is expected to be square but has the shape: {shape[-2:]}.")
    factor = prims.cholesky(b, x if op.lower else swap(b, x))
    first = prims.slice_(b, factor, [0] * len(shape), (*shape[:-2], 1, 1), [1] * len(shape))
    first = prims.broadcast_to(b, first, shape)
    row, column = (prims.iota(b, "int32", shape, len(shape) - i) for i in (2, 1))
    kept = prims.or_(b, prims.ge(b, row, column), prims.ne(b, first, first))
    factor = prims.select(b, kept, factor, number(b, x, 0))
    return factor if op.lower else swap(b, factor)


def swap(b: JaxprBuilder, x: Atom) -> Atom:
    """Emit the transpose of the last two axes."""
    n = len(x.aval.shape)
    return prims.transpose(b, x, [*range(n - 2), n - 1, n - 2])


def untransposed(b: JaxprBuilder, a: Atom) -> tuple[Atom, bool]:
    """Return a matrix whose transpose `a` is, and True; or `a` and False. A solver reads it without moving memory."""
    eqn = b.definition(a, primitives.transpose_p)
    n = len(a.aval.shape)
    swaps = eqn is not None and tuple(eqn.params["permutation"]) == (*range(n - 2), n - 1, n - 2)
    return (eqn.invars[0], True) if swaps else (a, False)


def solve_operands(op: Any, node: Apply, b: JaxprBuilder, a: Atom, y: Atom) -> tuple[Atom, Atom]:
    """Return the operands of a solution in its dtype, the right-hand side as a matrix.

    Raises
    ------
    ValueError
        If `a` is not square or has not as many rows as `y`.
    """
    a, y = (convert(b, x, node.outputs[0].type.dtype) for x in (a, y))
    if op.b_ndim == 1:
        y = prims.broadcast_in_dim(b, y, (*y.aval.shape, 1), range(len(y.aval.shape)))
    shape, rows = a.aval.shape[-2:], y.aval.shape[-2]
    if shape[0] != shape[1]:
        raise ValueError(f"expected square matrix, got the shape {shape}")
    if shape[0] != rows:
        raise ValueError(f"shapes of a {shape} and b {y.aval.shape[-2:]} are incompatible")
    return a, y


def as_right_hand_side(op: Any, b: JaxprBuilder, x: Atom) -> Atom:
    """Emit a solution with as many axes as the right-hand side had."""
    return prims.squeeze(b, x, [len(x.aval.shape) - 1] if op.b_ndim == 1 else [])


@core_rule(SolveTriangular)
def emit_SolveTriangular(op, node, b, a, y):
    """Solve ``a @ x = y``; all NaN if the diagonal has a zero."""
    a, y = solve_operands(op, node, b, a, y)
    if 0 in y.aval.shape:
        return as_right_hand_side(op, b, y)
    a, transposed = untransposed(b, a)
    how = {"lower": op.lower != transposed, "unit_diagonal": op.unit_diagonal}
    rows, sideways = untransposed(b, y)
    if sideways:  # x.T @ a.T = y.T
        x = swap(b, prims.triangular_solve(b, a, rows, left_side=False, transpose_a=not transposed, **how))
    else:
        x = prims.triangular_solve(b, a, y, transpose_a=transposed, **how)
    if not op.unit_diagonal:
        batch = len(a.aval.shape) - 2
        singular = prims.reduce_or(b, prims.eq(b, diagonal(b, a), number(b, a, 0)), (batch,))
        singular = prims.broadcast_in_dim(b, singular, x.aval.shape, range(batch))
        x = prims.select(b, singular, number(b, x, np.nan), x)
    return as_right_hand_side(op, b, x)


@core_rule(CholeskySolve)
def emit_CholeskySolve(op, node, b, a, y):
    """Solve ``c @ c.T @ x = y`` for a factor `c`: two triangular solutions."""
    a, y = solve_operands(op, node, b, a, y)
    if 0 in y.aval.shape:
        return as_right_hand_side(op, b, y)
    y = prims.triangular_solve(b, a, y, lower=op.lower, transpose_a=not op.lower)
    y = prims.triangular_solve(b, a, y, lower=op.lower, transpose_a=op.lower)
    return as_right_hand_side(op, b, y)
