"""Proofs about the signs of values, by their equations: of no negative value for branches of special functions, of no
positive one for exponentials, which can't overflow then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.extend.core as jex
import numpy as np
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, is_variable

#: No result of these has a sign, whatever the operands are.
WITHOUT_SIGN = frozenset({p.abs_p, p.cosh_p, p.erfc_p, p.exp_p, p.exp2_p, p.logistic_p, p.square_p})
#: No result of these has a sign if no operand has one.
KEEPING = frozenset(
    {
        *(p.add_p, p.mul_p, p.div_p, p.min_p, p.max_p, p.sqrt_p, p.log1p_p, p.expm1_p, p.erf_p, p.tanh_p, p.ceil_p),
        *(p.floor_p, p.cumsum_p, p.cumprod_p, p.cummax_p, p.reduce_sum_p, p.reduce_prod_p, p.reduce_max_p),
        *(p.broadcast_in_dim_p, p.concatenate_p, p.copy_p, p.reshape_p, p.rev_p, p.slice_p, p.squeeze_p, p.transpose_p),
        *(p.convert_element_type_p, p.reduce_min_p),
    }
)  # fmt: skip
#: No result of these has a sign if the operands at these positions have none.
KEEPING_THAT_OF: dict[jex.Primitive, slice] = {
    p.pow_p: slice(1),
    p.rem_p: slice(1),
    p.dynamic_slice_p: slice(1),
    p.select_n_p: slice(1, None),
    **dict.fromkeys(KEEPING, slice(None)),
}
#: How many equations deep the search goes.
DEEPEST = 32


def is_never_negative(b: JaxprBuilder, x: Atom, depth: int = DEEPEST) -> bool:
    """Return whether it is proved that each element is NaN or has no sign, as -0.0 has, and its negative inverse."""
    value = b.known(x)
    if value is not None:
        return value.dtype.kind in "fiub" and not np.signbit(value.astype("float64")).any()
    if x.aval.dtype.kind in "ub" or x in b.never_negative:
        return True
    eqn = b.definition(x)
    if eqn is None or x.aval.dtype.kind not in "fi" or not depth:
        return False
    found = has_no_sign(b, eqn, depth - 1)
    if found:
        b.never_negative.add(x)
    return found


def has_no_sign(b: JaxprBuilder, eqn: Any, depth: int) -> bool:
    """Return whether it is proved that no result of an equation has a sign."""
    primitive, operands = eqn.primitive, eqn.invars
    if primitive in WITHOUT_SIGN:
        return operands[0].aval.dtype.kind == "f"  # integers overflow
    if primitive is p.mul_p and is_square_or_size(b, *operands):
        return operands[0].aval.dtype.kind == "f"
    if primitive is p.integer_pow_p:
        return eqn.params["y"] % 2 == 0 and operands[0].aval.dtype.kind == "f"
    if primitive is p.max_p and any(is_positive_number(b, x) for x in operands):
        return True
    if primitive not in KEEPING_THAT_OF or eqn.outvars[0].aval.dtype.kind != "f":
        return False
    return all(is_never_negative(b, x, depth) for x in operands[KEEPING_THAT_OF[primitive]])


#: No result of these is above zero if no operand is.
KEEPING_BELOW = frozenset(
    {
        *(p.add_p, p.min_p, p.max_p, p.broadcast_in_dim_p, p.concatenate_p, p.copy_p, p.reshape_p, p.rev_p, p.slice_p),
        *(p.squeeze_p, p.transpose_p, p.reduce_sum_p, p.reduce_max_p, p.reduce_min_p, p.cumsum_p, p.stop_gradient_p),
    }
)


def is_never_positive(b: JaxprBuilder, x: Atom, depth: int = DEEPEST) -> bool:
    """Return whether it is proved that no element is above zero; NaN is not."""
    value = b.known(x)
    if value is not None:
        return value.dtype.kind in "fi" and not (value > 0).any()
    eqn = b.definition(x)
    if eqn is None or x.aval.dtype.kind != "f" or not depth:
        return False
    primitive, operands = eqn.primitive, eqn.invars
    if primitive is p.neg_p:
        return is_never_negative(b, operands[0], depth - 1)
    if primitive in (p.mul_p, p.div_p):
        signs = [(is_never_negative(b, y, depth - 1), is_never_positive(b, y, depth - 1)) for y in operands]
        return any(signs[i][0] and signs[1 - i][1] for i in (0, 1))
    if primitive is p.min_p:
        return any(is_never_positive(b, y, depth - 1) for y in operands)
    if primitive is p.sub_p:
        return is_bounded_by(b, *operands)
    if primitive is p.select_n_p:
        operands = operands[1:]
    elif primitive not in KEEPING_BELOW:
        return False
    return all(is_never_positive(b, y, depth - 1) for y in operands)


def is_bounded_by(b: JaxprBuilder, value: Atom, bound: Atom) -> bool:
    """Return whether it is proved that `value`, elementwise, is at most `bound`, where that is a finite number."""
    axes = axes_of_bound(b, value, bound, DEEPEST)
    return axes is not None and all(axis == i or (axis is None and i not in axes) for i, axis in enumerate(axes))


def axes_of_bound(b: JaxprBuilder, value: Atom, bound: Atom, depth: int) -> list[int | None] | None:
    """Return the axis of `value` that each axis of `bound` follows, if `bound` is a maximum of it, else None.

    An axis over which the maximum is taken, and one of length 1, may be missing. A log-sum-exp subtracts 0 where the
    maximum is infinite: there its sum is infinite or 0, whatever the exponentials are.
    """
    if bound is value:
        return list(range(value.aval.ndim))
    eqn = b.definition(bound)
    if eqn is None or not depth:
        return None
    inner = eqn.invars[:1]
    if eqn.primitive is p.reduce_max_p:
        kept: list[int | None] = [i for i in range(value.aval.ndim) if i not in eqn.params["axes"]]
        return kept if inner[0] is value else None
    if eqn.primitive is p.max_p:
        inner = eqn.invars
    elif eqn.primitive is p.select_n_p:
        condition, *branches = eqn.invars
        inner = [x for x in branches if not is_nan_constant(b, x)]
        if is_where_infinite(b, condition, branches[0]):
            inner = branches[:1]
        elif len(inner) > 1 and not chooses_larger(b, condition, branches):
            return None
    elif eqn.primitive not in (p.broadcast_in_dim_p, p.squeeze_p, p.stop_gradient_p):
        return None
    axes = next((found for x in inner if (found := axes_of_bound(b, value, x, depth - 1)) is not None), None)
    if axes is not None and eqn.primitive is p.squeeze_p:
        return [axis for i, axis in enumerate(axes) if i not in eqn.params["dimensions"]]
    if axes is not None and eqn.primitive is p.broadcast_in_dim_p:
        places = dict(zip(eqn.params["broadcast_dimensions"], axes, strict=True))
        return [places.get(i) for i in range(bound.aval.ndim)]
    return axes


def chooses_larger(b: JaxprBuilder, condition: Atom, branches: Sequence[Atom]) -> bool:
    """Return whether a condition selects the larger of two values, or the second where that is NaN."""
    either = b.definition(condition, p.or_p)
    tests = [b.definition(x) for x in ([condition] if either is None else either.invars)]
    # An operand that is NaN differs from itself.
    found = [
        (test.primitive, *test.invars)
        for test in tests
        if test is not None and not (test.primitive is p.ne_p and test.invars[0] is test.invars[1])
    ]
    return found == [(p.ge_p, *reversed(branches))]


def is_where_infinite(b: JaxprBuilder, condition: Atom, x: Atom) -> bool:
    """Return whether a condition says where a value is infinite."""
    eqn = b.definition(condition, p.eq_p)
    if eqn is None:
        return False
    size, limit = b.definition(eqn.invars[0], p.abs_p), b.known(eqn.invars[1])
    return size is not None and size.invars[0] is x and limit is not None and bool(np.all(limit == np.inf))


def is_nan_constant(b: JaxprBuilder, x: Atom) -> bool:
    """Return whether a value is the constant NaN, or that broadcast."""
    eqn = b.definition(x, p.broadcast_in_dim_p)
    value = b.known(x if eqn is None else eqn.invars[0])
    return value is not None and value.dtype.kind == "f" and bool(np.isnan(value).all())


def is_square_or_size(b: JaxprBuilder, x: Atom, y: Atom) -> bool:
    """Return whether a product is of a value with itself, or with its sign."""
    signs = [b.definition(factor, p.sign_p) for factor in (x, y)]
    sizes = any(eqn is not None and eqn.invars[0] is other for eqn, other in zip(signs, (y, x), strict=True))
    return sizes or (x is y and is_variable(x))


def is_positive_number(b: JaxprBuilder, x: Atom) -> bool:
    """Return whether a value is a known number above zero."""
    value = b.known(x)
    return value is not None and value.dtype.kind == "f" and bool(np.all(value > 0))


def note_signs(b: JaxprBuilder, operands: Sequence[Atom], inner: JaxprBuilder, atoms: Sequence[Atom]) -> None:
    """Let the inputs of an inner Jaxpr be never negative where the operands of its call are."""
    inner.never_negative.update(a for a, x in zip(atoms, operands, strict=True) if is_never_negative(b, x))
