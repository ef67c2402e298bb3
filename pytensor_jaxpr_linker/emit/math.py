"""Reductions, cumulative Ops, sorting, searching and matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from math import prod

import numpy as np
import pytensor.scalar as ps
from jax import lax
from jax.extend.core import primitives
from pytensor.graph.basic import Apply
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.extra_ops import CumOp, SearchsortedOp
from pytensor.tensor.math import Argmax, Dot, MulWithoutZeros
from pytensor.tensor.sort import ArgSortOp, SortOp
from pytensor.tensor.special import LogSoftmax, Softmax, XLog1PY, XLogY

from pytensor_jaxpr_linker.base.errors import empty_reduction
from pytensor_jaxpr_linker.base.rules import Table, emits
from pytensor_jaxpr_linker.emit.scalar import convert, number, one, to_common_dtype
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder

#: Up to so many pairs, comparing all at once is faster than a binary search.
COMPARED_AT_ONCE = 2**16

type Reduction = Callable[[JaxprBuilder, Atom, Sequence[int]], Atom]

# -- reductions --------------------------------------------------------------------------------------------------------


def prod_without_zeros(b: JaxprBuilder, x: Atom, axes: Sequence[int]) -> Atom:
    """Emit the product of the elements that are not zero; 0 if there are none."""
    is_zero = prims.eq(b, x, number(b, x, 0))
    product = prims.reduce_prod(b, prims.select(b, is_zero, one(b, x), x), axes)
    return prims.select(b, prims.reduce_and(b, is_zero, axes), number(b, x, 0), product)


def total(b: JaxprBuilder, x: Atom, axes: Sequence[int]) -> Atom:
    """Emit the sum of the elements. Where one truth chooses between an array and -inf (or 0) everywhere, it chooses between their sums.

    The sum need not wait for the truth then. PyMC checks parameters so: ``switch(all(sigma > 0), logp, -inf).sum()``.
    """
    choice = b.definition(x, primitives.select_n_p)
    if choice is not None and not choice.invars[0].aval.shape:
        condition, *cases = choice.invars
        sums = [sum_of_repeated(b, case, axes) for case in cases]
        if any(s is not None for s in sums):
            on_false, on_true = (
                prims.reduce_sum(b, case, axes) if s is None else s for s, case in zip(sums, cases, strict=True)
            )
            return prims.select(b, condition, on_true, on_false)
    return prims.reduce_sum(b, x, axes)


def sum_of_repeated(b: JaxprBuilder, x: Atom, axes: Sequence[int]) -> Atom | None:
    """Return the sum over axes of what is one number everywhere, if that is the number itself (0, inf, nan), else None."""
    shape, repeated = x.aval.shape, b.definition(x, primitives.broadcast_in_dim_p)
    value = None if repeated is None or repeated.invars[0].aval.shape else b.known(repeated.invars[0])
    if (
        value is None
        or (np.isfinite(value) and value != 0)
        or not all(type(shape[i]) is int and shape[i] for i in axes)
    ):
        return None
    return prims.broadcast_to(b, repeated.invars[0], tuple(n for i, n in enumerate(shape) if i not in axes))


def conjunction(b: JaxprBuilder, x: Atom, axes: Sequence[int]) -> Atom:
    """Emit whether all elements are true. What a vector of single truths says of arrays of one shape is reduced in one pass.

    PyMC checks parameters so: ``all([all(p >= 0), all(p <= 1)])``.
    """
    parts = single_numbers(b, x)
    if parts is None:
        return prims.reduce_and(b, x, axes)
    arrays: dict[tuple[int, ...], Atom] = {}
    for part in parts:
        eqn = b.definition(part, primitives.reduce_and_p)
        array: Atom = part if eqn is None else eqn.invars[0]
        shape = array.aval.shape
        arrays[shape] = prims.and_(b, arrays[shape], array) if shape in arrays else array
    truths = [prims.reduce_and(b, a, range(len(shape))) if shape else a for shape, a in arrays.items()]
    return reduce(partial(prims.and_, b), truths)


def single_numbers(b: JaxprBuilder, x: Atom) -> list[Atom] | None:
    """Return the numbers that a vector was made of one by one, or None."""
    if len(x.aval.shape) != 1:
        return None
    joined = b.definition(x, primitives.concatenate_p)
    sources = [b.definition(part, primitives.broadcast_in_dim_p) for part in (joined.invars if joined else [x])]
    if any(eqn is None or eqn.invars[0].aval.shape or eqn.outvars[0].aval.shape != (1,) for eqn in sources):
        return None
    return [eqn.invars[0] for eqn in sources]


#: The reduction of numbers and that of booleans, by scalar Op.
REDUCTIONS: Table[tuple[Reduction, Reduction]] = Table(
    {
        ps.Add: (total, prims.reduce_or),
        ps.Mul: (prims.reduce_prod, prims.reduce_and),
        ps.Maximum: (prims.reduce_max, prims.reduce_or),
        ps.Minimum: (prims.reduce_min, prims.reduce_and),
        ps.AND: (prims.reduce_and, conjunction),
        ps.OR: (prims.reduce_or, prims.reduce_or),
        ps.XOR: (prims.reduce_xor, prims.reduce_xor),
        MulWithoutZeros: (prod_without_zeros, prims.reduce_and),
    }
)


def refuse_reduction(node: Apply) -> str | None:
    """Return why a `CAReduce` can't be emitted, or None."""
    if REDUCTIONS.of(type(node.op.scalar_op)) is None:
        return f"no reduction by the scalar Op {node.op.scalar_op} is registered"
    if node.inputs[0].type.dtype.startswith("complex") and not isinstance(node.op.scalar_op, ps.Add | ps.Mul):
        return "complex numbers have no order"
    return None


@emits(CAReduce, refuse=refuse_reduction)
def emit_CAReduce(op, node, b, x):
    """Reduce axes in the accumulator's dtype; only maximum and minimum need an element, unless they have `initial`."""
    dtype = node.outputs[0].type.dtype
    axes = range(len(x.aval.shape)) if op.axis is None else op.axis
    is_extremum = isinstance(op.scalar_op, ps.Maximum | ps.Minimum)
    if is_extremum and not getattr(op, "initial", False):
        check_not_empty(x, axes, op.scalar_op.nfunc_spec[0])
    x = convert(b, x, op.acc_dtype or dtype)
    if len(axes):
        of_numbers, of_bools = REDUCTIONS.of(type(op.scalar_op))  # type: ignore[misc]  # see `refuse_reduction`
        x = (of_bools if x.aval.dtype.kind == "b" else of_numbers)(b, x, axes)
    return convert(b, x, dtype)


def check_not_empty(x: Atom, axes: Sequence[int], name: str) -> None:
    """Raise what NumPy raises for the extremum of no elements.

    Raises
    ------
    ValueError
        If one of `axes` has length 0.
    """
    if any(x.aval.shape[i] == 0 for i in axes):
        raise empty_reduction(name)


@emits(Argmax)
def emit_Argmax(op, node, b, x):
    """The first position of the maximum, in row-major order of the reduced axes."""
    ndim = len(x.aval.shape)
    axes = tuple(range(ndim)) if op.axis is None else op.axis
    kept = [i for i in range(ndim) if i not in axes]
    x = prims.transpose(b, x, [*kept, *axes])
    lead, last = x.aval.shape[: len(kept)], x.aval.shape[len(kept) :]
    if 0 in last:
        raise ValueError("attempt to get argmax of an empty sequence")
    if x.aval.dtype.kind == "b":
        x = convert(b, x, "int8")
    return prims.argmax(b, prims.reshape(b, x, (*lead, prod(last))), len(kept), "int64")


@emits(CumOp)
def emit_CumOp(op, node, b, x):
    """Cumulative sum or product in the operand's dtype, as PyTensor's C code has it."""
    cumulative = prims.cumsum if op.mode == "add" else prims.cumprod
    if x.aval.dtype.kind == "b":
        return convert(b, cumulative(b, convert(b, x, "int32"), op.axis), bool)
    return cumulative(b, x, op.axis)


# -- symbolic Ops whose inner graph is not what should be emitted ------------------------------------------------------


def below_maximum(op: Softmax | LogSoftmax, node: Apply, b: JaxprBuilder, x: Atom) -> tuple[Atom, Atom]:
    """Return ``x - max(x)`` and ``sum(exp(x - max(x)))``. The shift is no part of the derivative."""
    shape = x.aval.shape
    axes = range(len(shape)) if op.axis is None else [axis % len(shape) for axis in op.axis]
    check_not_empty(x, axes, "maximum")
    x = convert(b, x, node.outputs[0].type.dtype)
    if not shape:
        return prims.sub(b, x, prims.stop_gradient(b, x)), one(b, x)
    kept = [i for i in range(len(shape)) if i not in axes]
    top = prims.stop_gradient(b, prims.reduce_max(b, x, axes))
    shifted = prims.sub(b, x, prims.broadcast_in_dim(b, top, shape, kept))
    total = prims.reduce_sum(b, prims.exp(b, shifted), axes)
    return shifted, prims.broadcast_in_dim(b, total, shape, kept)


@emits(Softmax)
def emit_Softmax(op, node, b, x):
    """``exp(x) / sum(exp(x))``."""
    shifted, total = below_maximum(op, node, b, x)
    return prims.div(b, prims.exp(b, shifted), total)


@emits(LogSoftmax)
def emit_LogSoftmax(op, node, b, x):
    """``x - log(sum(exp(x)))``."""
    shifted, total = below_maximum(op, node, b, x)
    return prims.sub(b, shifted, prims.log(b, total))


@emits(XLogY, XLog1PY)
def emit_XLogY(op, node, b, x, y):
    """``x * log(y)``, 0 where `x` is; as for PyTensor its derivative by `x` is ``log(y)`` there too."""
    shape = np.broadcast_shapes(x.aval.shape, y.aval.shape)
    x, y = (prims.broadcast_to(b, convert(b, v, node.outputs[0].type.dtype), shape) for v in (x, y))
    log = prims.log(b, y) if isinstance(op, XLogY) else prims.log1p(b, y)
    singular = prims.and_(b, prims.eq(b, x, number(b, x, 0)), prims.not_(b, prims.is_finite(b, log)))
    return prims.mul(b, x, prims.select(b, singular, number(b, x, 0), log))


# -- sorting and searching ---------------------------------------------------------------------------------------------


def axis_operand(node: Apply) -> range:
    """Return where the axis is among the operands of a sort: PyTensor 3.3.0 has it there, later versions in the Op."""
    return range(1, len(node.inputs))


def refuse_batched_axis(node: Apply) -> str | None:
    """Return why a sort can't be emitted, or None."""
    return "the axis is an operand of a batch" if isinstance(node.op, Blockwise) and axis_operand(node) else None


@emits(SortOp, static=axis_operand, refuse=refuse_batched_axis, batched=True)
def emit_SortOp(op, node, b, x, *axis):
    """Sort one axis, NaN last."""
    return prims.sort(b, [x], sorted_axis(op, node, axis))[0]


def sorted_axis(op: SortOp | ArgSortOp, node: Apply, operand: Sequence[np.ndarray]) -> int:
    """Return the axis of an Op that may be the core of a `Blockwise`, counted with the batch axes."""
    if operand:
        return int(operand[0]) % node.inputs[0].type.ndim
    return op.axis + (node.op.batch_ndim(node) if isinstance(node.op, Blockwise) else 0)


@emits(ArgSortOp, static=axis_operand, refuse=refuse_batched_axis, batched=True)
def emit_ArgSortOp(op, node, b, x, *axis):
    """The positions that sort one axis; of equal elements the first comes first."""
    dim = sorted_axis(op, node, axis)
    return prims.sort(b, [x, prims.iota(b, "int64", x.aval.shape, dim)], dim)[1]


@emits(SearchsortedOp)
def emit_SearchsortedOp(op, node, b, x, v, *sorter):
    """Count the elements of the sorted vector `x` that come before each element of `v`."""
    if sorter:
        x = permute(node, b, x, convert(b, sorter[0], "int64"))
    x, v = to_common_dtype(b, (x, v))
    if x.aval.shape[0] * prod(v.aval.shape) > COMPARED_AT_ONCE:
        return search(b, x, v, op.side)
    shape = (*v.aval.shape, *x.aval.shape)
    x = prims.broadcast_to(b, x, shape)
    v = prims.broadcast_in_dim(b, v, shape, range(len(shape) - 1))
    return prims.reduce_sum(b, prims.convert(b, goes_before(b, x, v, op.side), "int64"), (len(shape) - 1,))


def search(b: JaxprBuilder, x: Atom, v: Atom, side: str) -> Atom:
    """Count by binary search: try steps of falling powers of two, and take each that stays before the element."""
    (n,), shape = x.aval.shape, v.aval.shape
    dims = lax.GatherDimensionNumbers(offset_dims=(), collapsed_slice_dims=(0,), start_index_map=(0,))
    count = prims.broadcast_to(b, b.constant(0, "int64"), shape)
    for k in reversed(range(n.bit_length())):
        further = prims.add(b, count, b.constant(2**k, "int64"))
        last = prims.sub(b, further, b.constant(1, "int64"))
        columns = prims.reshape(b, last, (*shape, 1))
        element = prims.gather(b, x, columns, dims, (1,), shape, lax.GatherScatterMode.CLIP)
        inside = prims.le(b, further, b.constant(n, "int64"))
        taken = prims.and_(b, inside, goes_before(b, element, v, side))
        count = prims.select(b, taken, further, count)
    return count


def goes_before(b: JaxprBuilder, x: Atom, v: Atom, side: str) -> Atom:
    """Emit whether an element of a sorted vector stays before `v` if `v` is put in on the left, or right, of its equals."""
    return comes_before(b, x, v) if side == "left" else prims.not_(b, comes_before(b, v, x))


def comes_before(b: JaxprBuilder, x: Atom, y: Atom) -> Atom:
    """Emit ``x < y`` in the order of a sort: NaN after all numbers."""
    less = prims.lt(b, x, y)
    if x.aval.dtype.kind != "f":
        return less
    return prims.or_(b, less, prims.and_(b, prims.eq(b, x, x), prims.ne(b, y, y)))


def permute(node: Apply, b: JaxprBuilder, x: Atom, positions: Atom) -> Atom:
    """Emit the elements of a vector at run-time positions, which are checked."""
    (n,), shape = x.aval.shape, positions.aval.shape
    if shape != (n,):
        raise ValueError("sorter.size must equal len(ap)")
    inside = prims.and_(
        b, prims.ge(b, positions, number(b, positions, 0)), prims.lt(b, positions, number(b, positions, n))
    )
    b.check(prims.reduce_and(b, inside, (0,)), lambda: ValueError("Sorter index out of range."), node)
    dims = lax.GatherDimensionNumbers(offset_dims=(), collapsed_slice_dims=(0,), start_index_map=(0,))
    rows = prims.reshape(b, positions, (n, 1))
    return prims.gather(b, x, rows, dims, (1,), shape, lax.GatherScatterMode.CLIP)


# -- products ----------------------------------------------------------------------------------------------------------


@emits(Dot, BatchedDot, batched=True)
def emit_Dot(op, node, b, x, y):
    """The product of matrices, or of stacks of them that have equal leading axes."""
    dtype = np.dtype(node.outputs[0].type.dtype)
    check_aligned(x, y)
    x, y = (convert(b, v, dtype) for v in (x, y))
    if dtype.kind == "b":
        x, y = (prims.convert(b, v, "int32") for v in (x, y))
    lead = len(x.aval.shape) - 2
    batch = tuple(range(lead))
    return convert(b, prims.dot_general(b, x, y, ((lead + 1,), (lead,)), (batch, batch)), dtype)


def check_aligned(x: Atom, y: Atom) -> None:
    """Compare the lengths that a product of matrices contracts and those that it shares.

    Raises
    ------
    TypeError
        If the latter differ, as `BatchedDot` does.
    ValueError
        If the former differ.
    """
    (*batch, rows, n), (*other, m, columns) = x.aval.shape, y.aval.shape
    if batch != other:
        raise TypeError(f"The operands must have the same size in axis 0, but have sizes [{batch[0]}, {other[0]}].")
    if n != m:
        raise ValueError(f"shapes ({rows},{n}) and ({m},{columns}) not aligned: {n} (dim 1) != {m} (dim 0)")
