"""What each primitive is: one table, from which builder and passes take the sets that they need."""

from __future__ import annotations

from enum import Flag, auto

import jax.extend.core as jex
from jax import lax
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base.jax_compat import (
    dim_as_value_p,
    geqp3_p,
    geqrf_p,
    optimization_barrier_p,
    platform_index_p,
    xla_metadata_call_p,
)


class Trait(Flag):
    """What a pass may rely on. A primitive without a trait may still have the property: then no pass relies on it."""

    #: Each element of the result depends on the elements at the same place only, and no param holds a shape.
    ELEMENTWISE = auto()
    #: It moves or converts elements: emitting it again costs less than keeping its result for each step of a loop.
    LAYOUT = auto()
    #: Computing the result costs no more than reading it from memory.
    CHEAP = auto()
    #: It has two operands, which may be exchanged.
    COMMUTATIVE = auto()
    #: Its derivative is finite whatever the operands are; where nothing flows back, it is zero.
    BOUNDED_SLOPE = auto()
    #: The same for real operands only. For complex ones it has poles, or grows without bound.
    BOUNDED_REAL_SLOPE = auto()
    #: XLA computes it in a kernel of its own, and its operands before that.
    KERNEL = auto()
    #: A call of LAPACK or the like. One call for a whole batch costs less than one for each step of a loop.
    LIBRARY_CALL = auto()
    #: Batched, it takes the time of the slowest element.
    CONTROL_FLOW = auto()
    #: XLA's CPU compiler can't emit it in one function with other operations: it needs the run time, or the emitter
    #: lacks it.
    ALONE = auto()
    #: JAX lowers it to a function, which equal equations share.
    FUNCTION = auto()


ELEMENTWISE, LAYOUT, CHEAP, COMMUTATIVE = Trait.ELEMENTWISE, Trait.LAYOUT, Trait.CHEAP, Trait.COMMUTATIVE
BOUNDED_SLOPE, BOUNDED_REAL_SLOPE = Trait.BOUNDED_SLOPE, Trait.BOUNDED_REAL_SLOPE
KERNEL, LIBRARY_CALL, CONTROL_FLOW = Trait.KERNEL, Trait.LIBRARY_CALL, Trait.CONTROL_FLOW
ALONE, FUNCTION = Trait.ALONE, Trait.FUNCTION
NONE = Trait(0)

#: Every primitive that the assembler has, and others that traced leaves may bring, by their traits. The product of a
#: sparse matrix has none of them, and is not here because importing it takes half a second.
NAMES = {
    BOUNDED_SLOPE: "dynamic_slice gather pad reduce_sum",
    CONTROL_FLOW: "cond scan while",
    ELEMENTWISE: """
        acos acosh asin atan2 atanh bessel_i0e bessel_i1e bitcast_convert_type cosh digamma div erf_inv exp exp2
        expm1 igamma igammac log log1p nextafter polygamma pow rem rsqrt
        shift_left shift_right_arithmetic shift_right_logical sinh sqrt tan zeta
    """,
    ALONE: """
        eig fft linear_solve qr scatter scatter_add scatter_max scatter_mul schur sort tridiagonal_solve
    """,
    ALONE | FUNCTION: "threefry2x32",
    ELEMENTWISE | FUNCTION: "lgamma regularized_incomplete_beta",
    FUNCTION: "argmax argmin cummax cumprod cumsum",
    KERNEL | ALONE: "conv_general_dilated dot_general",
    LIBRARY_CALL | ALONE: "cholesky eigh householder_product lu svd triangular_solve",
    NONE: """
        closed_call custom_jvp_call dynamic_update_slice iota reduce_and reduce_max reduce_min reduce_or reduce_prod
        reduce_xor
    """,
    CHEAP | BOUNDED_SLOPE: "concatenate",
    ELEMENTWISE | BOUNDED_REAL_SLOPE: "asinh atan cos erf erfc logistic sin tanh",
    ELEMENTWISE | BOUNDED_SLOPE: "ceil clamp complex conj floor imag real round",
    ELEMENTWISE | CHEAP: "ge gt integer_pow is_finite le lt not square",
    ELEMENTWISE | CHEAP | BOUNDED_SLOPE: "abs copy neg select_n sign stop_gradient sub",
    ELEMENTWISE | CHEAP | COMMUTATIVE: "and eq mul ne or xor",
    LAYOUT | CHEAP | BOUNDED_SLOPE: "broadcast_in_dim reshape rev slice squeeze transpose",
    ELEMENTWISE | CHEAP | COMMUTATIVE | BOUNDED_SLOPE: "add max min",
    ELEMENTWISE | LAYOUT | CHEAP | BOUNDED_SLOPE: "convert_element_type",
}

TRAITS: dict[jex.Primitive, Trait] = {
    **{getattr(p, f"{name}_p"): traits for traits, names in NAMES.items() for name in names.split()},
    **dict.fromkeys(
        (dim_as_value_p, geqp3_p, geqrf_p, lax.linalg.lu_pivots_to_permutation_p, xla_metadata_call_p), ALONE
    ),
    optimization_barrier_p: NONE,
    platform_index_p: NONE,
}


def having(trait: Trait) -> frozenset[jex.Primitive]:
    """Return the primitives that have a trait, or any of several."""
    return frozenset(primitive for primitive, traits in TRAITS.items() if traits & trait)


ELEMENTWISE_PRIMITIVES = having(Trait.ELEMENTWISE)
