"""What each primitive is: one table, from which builder and passes take the sets that they need."""

from __future__ import annotations

from enum import Flag, auto

import jax.extend.core as jex
from jax import lax
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base.jax_compat import dim_as_value_p, geqp3_p, geqrf_p


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


ELEMENTWISE, LAYOUT, CHEAP, COMMUTATIVE = Trait.ELEMENTWISE, Trait.LAYOUT, Trait.CHEAP, Trait.COMMUTATIVE
BOUNDED_SLOPE, BOUNDED_REAL_SLOPE = Trait.BOUNDED_SLOPE, Trait.BOUNDED_REAL_SLOPE
KERNEL, LIBRARY_CALL, CONTROL_FLOW = Trait.KERNEL, Trait.LIBRARY_CALL, Trait.CONTROL_FLOW
NONE = Trait(0)

#: Every primitive that the assembler has, and a few of JAX's own that traced leaves bring. The product of a sparse matrix
#: has none of these traits, and is not here because importing it takes half a second.
TRAITS: dict[jex.Primitive, Trait] = {
    p.abs_p: ELEMENTWISE | CHEAP | BOUNDED_SLOPE,
    p.acos_p: ELEMENTWISE,
    p.acosh_p: ELEMENTWISE,
    p.add_p: ELEMENTWISE | CHEAP | COMMUTATIVE | BOUNDED_SLOPE,
    p.and_p: ELEMENTWISE | CHEAP | COMMUTATIVE,
    p.argmax_p: NONE,
    p.argmin_p: NONE,
    p.asin_p: ELEMENTWISE,
    p.asinh_p: ELEMENTWISE | BOUNDED_REAL_SLOPE,
    p.atan_p: ELEMENTWISE | BOUNDED_REAL_SLOPE,
    p.atan2_p: ELEMENTWISE,
    p.atanh_p: ELEMENTWISE,
    p.bessel_i0e_p: ELEMENTWISE,
    p.bessel_i1e_p: ELEMENTWISE,
    p.bitcast_convert_type_p: ELEMENTWISE,
    p.broadcast_in_dim_p: LAYOUT | CHEAP | BOUNDED_SLOPE,
    p.ceil_p: ELEMENTWISE | BOUNDED_SLOPE,
    p.cholesky_p: LIBRARY_CALL,
    p.clamp_p: ELEMENTWISE | BOUNDED_SLOPE,
    p.closed_call_p: NONE,
    p.complex_p: ELEMENTWISE | BOUNDED_SLOPE,
    p.concatenate_p: CHEAP | BOUNDED_SLOPE,
    p.cond_p: CONTROL_FLOW,
    p.conj_p: ELEMENTWISE | BOUNDED_SLOPE,
    p.conv_general_dilated_p: KERNEL,
    p.convert_element_type_p: ELEMENTWISE | LAYOUT | CHEAP | BOUNDED_SLOPE,
    p.copy_p: ELEMENTWISE | CHEAP | BOUNDED_SLOPE,
    p.cos_p: ELEMENTWISE | BOUNDED_REAL_SLOPE,
    p.cosh_p: ELEMENTWISE,
    p.cummax_p: NONE,
    p.cumprod_p: NONE,
    p.cumsum_p: NONE,
    p.custom_jvp_call_p: NONE,
    p.digamma_p: ELEMENTWISE,
    p.div_p: ELEMENTWISE,
    p.dot_general_p: KERNEL,
    p.dynamic_slice_p: BOUNDED_SLOPE,
    p.dynamic_update_slice_p: NONE,
    p.eig_p: NONE,
    p.eigh_p: LIBRARY_CALL,
    p.eq_p: ELEMENTWISE | CHEAP | COMMUTATIVE,
    p.erf_p: ELEMENTWISE | BOUNDED_REAL_SLOPE,
    p.erf_inv_p: ELEMENTWISE,
    p.erfc_p: ELEMENTWISE | BOUNDED_REAL_SLOPE,
    p.exp_p: ELEMENTWISE,
    p.exp2_p: ELEMENTWISE,
    p.expm1_p: ELEMENTWISE,
    p.fft_p: NONE,
    p.floor_p: ELEMENTWISE | BOUNDED_SLOPE,
    p.gather_p: BOUNDED_SLOPE,
    p.ge_p: ELEMENTWISE | CHEAP,
    p.gt_p: ELEMENTWISE | CHEAP,
    p.householder_product_p: LIBRARY_CALL,
    p.igamma_p: ELEMENTWISE,
    p.igammac_p: ELEMENTWISE,
    p.imag_p: ELEMENTWISE | BOUNDED_SLOPE,
    p.integer_pow_p: ELEMENTWISE | CHEAP,
    p.iota_p: NONE,
    p.is_finite_p: ELEMENTWISE | CHEAP,
    p.le_p: ELEMENTWISE | CHEAP,
    p.lgamma_p: ELEMENTWISE,
    p.linear_solve_p: NONE,
    p.log_p: ELEMENTWISE,
    p.log1p_p: ELEMENTWISE,
    p.logistic_p: ELEMENTWISE | BOUNDED_REAL_SLOPE,
    p.lt_p: ELEMENTWISE | CHEAP,
    p.lu_p: LIBRARY_CALL,
    p.max_p: ELEMENTWISE | CHEAP | COMMUTATIVE | BOUNDED_SLOPE,
    p.min_p: ELEMENTWISE | CHEAP | COMMUTATIVE | BOUNDED_SLOPE,
    p.mul_p: ELEMENTWISE | CHEAP | COMMUTATIVE,
    p.ne_p: ELEMENTWISE | CHEAP | COMMUTATIVE,
    p.neg_p: ELEMENTWISE | CHEAP | BOUNDED_SLOPE,
    p.nextafter_p: ELEMENTWISE,
    p.not_p: ELEMENTWISE | CHEAP,
    p.or_p: ELEMENTWISE | CHEAP | COMMUTATIVE,
    p.pad_p: BOUNDED_SLOPE,
    p.polygamma_p: ELEMENTWISE,
    p.pow_p: ELEMENTWISE,
    p.qr_p: NONE,
    p.real_p: ELEMENTWISE | BOUNDED_SLOPE,
    p.reduce_and_p: NONE,
    p.reduce_max_p: NONE,
    p.reduce_min_p: NONE,
    p.reduce_or_p: NONE,
    p.reduce_prod_p: NONE,
    p.reduce_sum_p: BOUNDED_SLOPE,
    p.reduce_xor_p: NONE,
    p.regularized_incomplete_beta_p: ELEMENTWISE,
    p.rem_p: ELEMENTWISE,
    p.reshape_p: LAYOUT | CHEAP | BOUNDED_SLOPE,
    p.rev_p: LAYOUT | CHEAP | BOUNDED_SLOPE,
    p.round_p: ELEMENTWISE | BOUNDED_SLOPE,
    p.rsqrt_p: ELEMENTWISE,
    p.scan_p: CONTROL_FLOW,
    p.scatter_p: NONE,
    p.scatter_add_p: NONE,
    p.scatter_mul_p: NONE,
    p.schur_p: NONE,
    p.select_n_p: ELEMENTWISE | CHEAP | BOUNDED_SLOPE,
    p.shift_left_p: ELEMENTWISE,
    p.shift_right_arithmetic_p: ELEMENTWISE,
    p.shift_right_logical_p: ELEMENTWISE,
    p.sign_p: ELEMENTWISE | CHEAP | BOUNDED_SLOPE,
    p.sin_p: ELEMENTWISE | BOUNDED_REAL_SLOPE,
    p.sinh_p: ELEMENTWISE,
    p.slice_p: LAYOUT | CHEAP | BOUNDED_SLOPE,
    p.sort_p: NONE,
    p.sqrt_p: ELEMENTWISE,
    p.square_p: ELEMENTWISE | CHEAP,
    p.squeeze_p: LAYOUT | CHEAP | BOUNDED_SLOPE,
    p.stop_gradient_p: ELEMENTWISE | CHEAP | BOUNDED_SLOPE,
    p.sub_p: ELEMENTWISE | CHEAP | BOUNDED_SLOPE,
    p.svd_p: LIBRARY_CALL,
    p.tan_p: ELEMENTWISE,
    p.tanh_p: ELEMENTWISE | BOUNDED_REAL_SLOPE,
    p.threefry2x32_p: NONE,
    p.transpose_p: LAYOUT | CHEAP | BOUNDED_SLOPE,
    p.triangular_solve_p: LIBRARY_CALL,
    p.tridiagonal_solve_p: NONE,
    p.while_p: CONTROL_FLOW,
    p.xor_p: ELEMENTWISE | CHEAP | COMMUTATIVE,
    p.zeta_p: ELEMENTWISE,
    dim_as_value_p: NONE,
    geqp3_p: NONE,
    geqrf_p: NONE,
    lax.linalg.lu_pivots_to_permutation_p: NONE,
}


def having(trait: Trait) -> frozenset[jex.Primitive]:
    """Return the primitives that have a trait, or any of several."""
    return frozenset(primitive for primitive, traits in TRAITS.items() if traits & trait)
