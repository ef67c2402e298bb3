"""Proofs that values are never negative, by their equations: special functions then need no branch for such values."""

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
    if primitive is p.mul_p and operands[0] is operands[1] and is_variable(operands[0]):
        return operands[0].aval.dtype.kind == "f"
    if primitive is p.integer_pow_p:
        return eqn.params["y"] % 2 == 0 and operands[0].aval.dtype.kind == "f"
    if primitive is p.max_p and any(is_positive_number(b, x) for x in operands):
        return True
    if primitive not in KEEPING_THAT_OF or eqn.outvars[0].aval.dtype.kind != "f":
        return False
    return all(is_never_negative(b, x, depth) for x in operands[KEEPING_THAT_OF[primitive]])


def is_positive_number(b: JaxprBuilder, x: Atom) -> bool:
    """Return whether a value is a known number above zero."""
    value = b.known(x)
    return value is not None and value.dtype.kind == "f" and bool(np.all(value > 0))


def note_signs(b: JaxprBuilder, operands: Sequence[Atom], inner: JaxprBuilder, atoms: Sequence[Atom]) -> None:
    """Let the inputs of an inner Jaxpr be never negative where the operands of its call are."""
    inner.never_negative.update(a for a, x in zip(atoms, operands, strict=True) if is_never_negative(b, x))
