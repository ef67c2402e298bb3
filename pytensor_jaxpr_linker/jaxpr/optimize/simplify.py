"""Peepholes: simpler equals of an equation, by the equations that computed its operands.

`JaxprBuilder.bind` calls the peephole of a primitive before it adds an equation. The peephole returns an atom with the
same value, or None. The functions of `prims.elementwise` call `JaxprBuilder.bind_many`, so of elementwise primitives
only the negation and two comparisons have a peephole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import jax.extend.core as jex
import numpy as np
from jax.errors import InconclusiveDimensionOperation
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Peephole, Shape


def merging(primitive: jex.Primitive, merge: Callable[..., Atom | None]) -> Peephole:
    """Return the peephole of an equation on the result of an inner one with this primitive.

    It is ``merge(b, x, inner, outer, aval)``, of the operand of the inner equation, the params of both, and the
    result's abstract value.
    """

    def simplify(b: JaxprBuilder, operands: Sequence[Atom], aval: Any, params: dict) -> Atom | None:
        inner = b.definition(operands[0], primitive)
        return None if inner is None else merge(b, inner.invars[0], inner.params, params, aval)

    return simplify


def merge_broadcasts(b: JaxprBuilder, x: Atom, inner: dict, outer: dict, aval: Any) -> Atom:
    """A broadcast of a broadcast."""
    dims = [outer["broadcast_dimensions"][i] for i in inner["broadcast_dimensions"]]
    return prims.broadcast_in_dim(b, x, aval.shape, dims)


def merge_transposes(b: JaxprBuilder, x: Atom, inner: dict, outer: dict, aval: Any) -> Atom:
    """A transpose of a transpose."""
    return prims.transpose(b, x, [inner["permutation"][i] for i in outer["permutation"]])


# -- elementwise -------------------------------------------------------------------------------------------------------


def simplify_bound(
    holds: Callable[[Any], Any], b: JaxprBuilder, operands: Sequence[Atom], aval: Any, params: dict
) -> Atom | None:
    """A sigmoid against a bound that ``holds(bound)`` unless it is NaN: PyMC's check of a Bernoulli probability."""
    x, bound = operands
    sigmoid, value = b.definition(x, p.logistic_p), b.known(bound)
    if value is None or not np.all(holds(value)) or sigmoid is None or x.aval.shape != aval.shape:
        return None
    return prims.eq(b, sigmoid.invars[0], sigmoid.invars[0])


def simplify_convert(b: JaxprBuilder, operands: Sequence[Atom], aval: Any, params: dict) -> Atom | None:
    """A number that is known, in another dtype."""
    value = b.known(operands[0])
    return None if value is None or value.ndim else b.constant(value.astype(aval.dtype))


# -- layout ------------------------------------------------------------------------------------------------------------


def simplify_reshape(b: JaxprBuilder, operands: Sequence[Atom], aval: Any, params: dict) -> Atom | None:
    """A number from a constant array, or a reshape of a reshape."""
    (x,) = operands
    if not aval.shape and (value := b.known(x)) is not None:
        return b.constant(value.reshape(()))
    inner = b.definition(x, p.reshape_p)
    return None if inner is None else prims.reshape(b, inner.invars[0], aval.shape)


def simplify_concatenate(b: JaxprBuilder, operands: Sequence[Atom], aval: Any, params: dict) -> Atom | None:
    """A concatenation with empty parts."""
    axis = params["dimension"]
    lengths = [x.aval.shape[axis] for x in operands]
    parts = [x for x, n in zip(operands, lengths, strict=True) if type(n) is not int or n]
    return None if len(parts) == len(operands) else prims.concatenate(b, parts or operands[:1], axis)


def simplify_slice(b: JaxprBuilder, operands: Sequence[Atom], aval: Any, params: dict) -> Atom | None:
    """A slice of a reversal, of one part of a concatenation, or of an update."""
    (x,) = operands
    eqn = b.definition(x)
    if eqn is None or (simpler := SLICES.get(eqn.primitive)) is None:
        return None
    starts, limits = params["start_indices"], params["limit_indices"]
    try:
        return simpler(b, eqn, starts, limits, params["strides"] or [1] * len(starts))
    except InconclusiveDimensionOperation:  # which part the slice takes is known at run time only
        return None


def slice_of_reversal(b: JaxprBuilder, eqn: Any, starts: Shape, limits: Shape, strides: Sequence[int]) -> Atom | None:
    """A slice of a reversal is a reversed slice."""
    (x,), flipped = eqn.invars, eqn.params["dimensions"]
    if any(strides[axis] != 1 for axis in flipped):
        return None
    bounds = [
        (n - hi, n - lo) if i in flipped else (lo, hi)
        for i, (lo, hi, n) in enumerate(zip(starts, limits, x.aval.shape, strict=True))
    ]
    part = prims.slice_(b, x, [lo for lo, _ in bounds], [hi for _, hi in bounds], strides)
    return prims.rev(b, part, flipped)


def slice_of_concatenation(
    b: JaxprBuilder, eqn: Any, starts: Shape, limits: Shape, strides: Sequence[int]
) -> Atom | None:
    """A slice of one of the parts."""
    axis, offset = eqn.params["dimension"], [0] * len(starts)
    for part in eqn.invars:
        end = offset[axis] + part.aval.shape[axis]
        if offset[axis] <= starts[axis] < limits[axis] <= end:
            return prims.slice_(b, part, shifted_bounds(starts, offset), shifted_bounds(limits, offset), strides)
        offset[axis] = end
    return None


def slice_of_update(b: JaxprBuilder, eqn: Any, starts: Shape, limits: Shape, strides: Sequence[int]) -> Atom | None:
    """A slice of an update: PyTensor writes the initial states of a loop into the first rows of a buffer."""
    x, update, *places = eqn.invars
    if any(b.known(place) is None for place in places):
        return None
    offset = [int(b.known(place)) for place in places]
    ends = [first + n for first, n in zip(offset, update.aval.shape, strict=True)]
    fits = all(lo >= 0 and hi <= n for lo, hi, n in zip(offset, ends, x.aval.shape, strict=True))  # else XLA moves it
    if fits and all(a <= lo and hi <= z for a, lo, hi, z in zip(offset, starts, limits, ends, strict=True)):
        return prims.slice_(b, update, shifted_bounds(starts, offset), shifted_bounds(limits, offset), strides)
    return None


def shifted_bounds(bounds: Sequence[int], offset: Sequence[int]) -> list[int]:
    """Return bounds counted from an offset."""
    return [n - first for n, first in zip(bounds, offset, strict=True)]


#: How a slice simplifies, by the primitive that computed its operand.
SLICES = {
    p.rev_p: slice_of_reversal,
    p.concatenate_p: slice_of_concatenation,
    p.dynamic_update_slice_p: slice_of_update,
}


# -- products and reductions -------------------------------------------------------------------------------------------


def simplify_dot_general(b: JaxprBuilder, operands: Sequence[Atom], aval: Any, params: dict) -> Atom | None:
    """A product reads the matrices behind transposes, which XLA would copy, and a single column as a vector."""
    ((xc, yc), (xb, yb)), (x, y) = params["dimension_numbers"], operands
    (left, xc), (right, yc) = untransposed(b, x, xc, xb), untransposed(b, y, yc, yb)
    (left, xc, xb), (right, yc, yb) = without_single(b, left, xc, xb), without_single(b, right, yc, yb)
    if left is x and right is y:
        return None
    return prims.reshape(b, prims.dot_general(b, left, right, (xc, yc), (xb, yb)), aval.shape)


def untransposed(b: JaxprBuilder, x: Atom, contract: tuple, batch: tuple) -> tuple[Atom, tuple]:
    """Return the matrices whose transposes `x` holds, and their axes `contract`."""
    inner = b.definition(x, p.transpose_p)
    if inner is None or len(x.aval.shape) != len(contract) + len(batch) + 1:
        return x, contract
    source: tuple = inner.params["permutation"]
    moved = tuple(source[i] for i in contract)
    return (inner.invars[0], moved) if tuple(source[i] for i in batch) == batch else (x, contract)


def without_single(b: JaxprBuilder, x: Atom, contract: tuple, batch: tuple) -> tuple[Atom, tuple, tuple]:
    """Return an operand of a product without the result's axes of length 1, and its axes `contract` and `batch`.

    XLA copies a matrix with one column before and behind a small call, in a kernel of its own that takes it more than 5
    ms to compile.
    """
    shape = x.aval.shape
    kept = [i for i, n in enumerate(shape) if i in contract + batch or not (type(n) is int and n == 1)]
    if len(kept) == len(shape):
        return x, contract, batch
    moved = {i: place for place, i in enumerate(kept)}
    contract, batch = (tuple(moved[i] for i in axes) for axes in (contract, batch))
    return prims.reshape(b, x, tuple(shape[i] for i in kept)), contract, batch


def simplify_reduce_sum(b: JaxprBuilder, operands: Sequence[Atom], aval: Any, params: dict) -> Atom | None:
    """The sum of a choice by one truth, as PyMC's ``switch(all(sigma > 0), logp, -inf)``, need not wait for it."""
    choice, axes = b.definition(operands[0], p.select_n_p), params["axes"]
    if choice is None or choice.invars[0].aval.shape:
        return None
    condition, *cases = choice.invars
    sums = [sum_of_repeated(b, case, axes) for case in cases]
    if all(s is None for s in sums):
        return None
    on_false, on_true = (
        prims.reduce_sum(b, case, axes) if s is None else s for s, case in zip(sums, cases, strict=True)
    )
    return prims.select(b, condition, on_true, on_false)


def sum_of_repeated(b: JaxprBuilder, x: Atom, axes: Sequence[int]) -> Atom | None:
    """Return the sum of a repeated number if that is the number itself (0, inf, nan), else None."""
    shape, repeated = x.aval.shape, b.definition(x, p.broadcast_in_dim_p)
    value = None if repeated is None or repeated.invars[0].aval.shape else b.known(repeated.invars[0])
    if (
        value is None
        or (np.isfinite(value) and value != 0)
        or not all(type(shape[i]) is int and shape[i] for i in axes)
    ):
        return None
    return prims.broadcast_to(b, repeated.invars[0], tuple(n for i, n in enumerate(shape) if i not in axes))


def simplify_reduce_and(b: JaxprBuilder, operands: Sequence[Atom], aval: Any, params: dict) -> Atom | None:
    """Truths about arrays of one shape are reduced in one pass, as PyMC's ``all([all(p >= 0), all(p <= 1)])``."""
    parts = single_numbers(b, operands[0])
    if parts is None or aval.shape:
        return None
    arrays: dict[Shape, Atom] = {}
    for part in parts:
        eqn = b.definition(part, p.reduce_and_p)
        array: Atom = part if eqn is None or part.aval.shape else eqn.invars[0]
        shape = array.aval.shape
        arrays[shape] = prims.and_(b, arrays[shape], array) if shape in arrays else array
    truths = [prims.reduce_and(b, a, range(len(shape))) if shape else a for shape, a in arrays.items()]
    return reduce(partial(prims.and_, b), truths)


def single_numbers(b: JaxprBuilder, x: Atom) -> list[Atom] | None:
    """Return the numbers whose concatenation a vector is, or None."""
    if len(x.aval.shape) != 1:
        return None
    joined = b.definition(x, p.concatenate_p)
    sources = [b.definition(part, p.broadcast_in_dim_p) for part in (joined.invars if joined else [x])]
    if any(eqn is None or eqn.invars[0].aval.shape or eqn.outvars[0].aval.shape != (1,) for eqn in sources):
        return None
    return [eqn.invars[0] for eqn in sources]


PEEPHOLES: Mapping[jex.Primitive, Peephole] = {
    p.broadcast_in_dim_p: merging(p.broadcast_in_dim_p, merge_broadcasts),
    p.concatenate_p: simplify_concatenate,
    p.convert_element_type_p: simplify_convert,
    p.dot_general_p: simplify_dot_general,
    p.ge_p: partial(simplify_bound, lambda bound: bound <= 0),
    p.le_p: partial(simplify_bound, lambda bound: bound >= 1),
    p.neg_p: merging(p.neg_p, lambda b, x, inner, outer, aval: x),
    p.reduce_and_p: simplify_reduce_and,
    p.reduce_sum_p: simplify_reduce_sum,
    p.reshape_p: simplify_reshape,
    p.rev_p: merging(p.rev_p, lambda b, x, inner, outer, aval: x if inner == outer else None),
    p.slice_p: simplify_slice,
    p.squeeze_p: merging(p.reshape_p, lambda b, x, inner, outer, aval: prims.reshape(b, x, aval.shape)),
    p.transpose_p: merging(p.transpose_p, merge_transposes),
}
