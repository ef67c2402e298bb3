"""Elementwise primitives, conversions of dtypes, reductions and sorting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base.jax_compat import ERFC_PARAMS
from pytensor_jaxpr_linker.jaxpr.builder import BOOL, Atom, JaxprBuilder, Shape, conversion_to
from pytensor_jaxpr_linker.jaxpr.prims.layout import broadcast_to


def elementwise_shape(xs: Sequence[Atom]) -> Shape:
    """Return the shape of an elementwise result: the shape of the first operand that is not 0-d."""
    for x in xs:
        if x.aval.shape:
            return x.aval.shape
    return ()


def named_after[F: Callable[..., Atom]](assemble: F, primitive: Any, doc: str = "Assemble ``{}``.") -> F:
    """Return an assembler function with the name of its primitive, which stands for the braces of its docstring."""
    assemble.__name__ = assemble.__qualname__ = primitive.name
    assemble.__doc__ = doc.format(primitive.name)
    return assemble


def elementwise(primitive: Any, dtype: np.dtype | None = None, **params: Any) -> Callable[..., Atom]:
    """Return the assembler function of an elementwise primitive whose result has `dtype`, or its last operand's."""

    def assemble(b: JaxprBuilder, *xs: Atom) -> Atom:
        aval = xs[-1].aval
        if dtype is not None or not aval.shape:
            aval = b.aval(elementwise_shape(xs), dtype or aval.dtype)
        return b.bind_many(primitive, xs, (aval,), params)[0]

    return named_after(assemble, primitive, "Assemble the elementwise primitive ``{}``.")


acos = elementwise(p.acos_p)
acosh = elementwise(p.acosh_p)
add = elementwise(p.add_p)
and_ = elementwise(p.and_p)
asin = elementwise(p.asin_p)
asinh = elementwise(p.asinh_p)
atan = elementwise(p.atan_p)
atan2 = elementwise(p.atan2_p)
atanh = elementwise(p.atanh_p)
bessel_i0e = elementwise(p.bessel_i0e_p)
bessel_i1e = elementwise(p.bessel_i1e_p)
ceil = elementwise(p.ceil_p)
cos = elementwise(p.cos_p, accuracy=None)
cosh = elementwise(p.cosh_p)
digamma = elementwise(p.digamma_p)
div = elementwise(p.div_p)
eq = elementwise(p.eq_p, BOOL)
erf = elementwise(p.erf_p)
erf_inv = elementwise(p.erf_inv_p)
erfc = elementwise(p.erfc_p, **ERFC_PARAMS)
exp = elementwise(p.exp_p, accuracy=None)
exp2 = elementwise(p.exp2_p, accuracy=None)
expm1 = elementwise(p.expm1_p, accuracy=None)
floor = elementwise(p.floor_p)
gt = elementwise(p.gt_p, BOOL)
igamma = elementwise(p.igamma_p)
igammac = elementwise(p.igammac_p)
is_finite = elementwise(p.is_finite_p, BOOL)
lgamma = elementwise(p.lgamma_p)
log = elementwise(p.log_p, accuracy=None)
log1p = elementwise(p.log1p_p, accuracy=None)
logistic = elementwise(p.logistic_p, accuracy=None)
lt = elementwise(p.lt_p, BOOL)
max_ = elementwise(p.max_p)
min_ = elementwise(p.min_p)
mul = elementwise(p.mul_p, out_dtype=None)
ne = elementwise(p.ne_p, BOOL)
nextafter = elementwise(p.nextafter_p)
not_ = elementwise(p.not_p)
or_ = elementwise(p.or_p)
polygamma = elementwise(p.polygamma_p)
pow_ = elementwise(p.pow_p)
regularized_incomplete_beta = elementwise(p.regularized_incomplete_beta_p)
rem = elementwise(p.rem_p)
round_even = elementwise(p.round_p, rounding_method=lax.RoundingMethod.TO_NEAREST_EVEN)
round_away = elementwise(p.round_p, rounding_method=lax.RoundingMethod.AWAY_FROM_ZERO)
rsqrt = elementwise(p.rsqrt_p, accuracy=None)
shift_left = elementwise(p.shift_left_p)
shift_right_arithmetic = elementwise(p.shift_right_arithmetic_p)
shift_right_logical = elementwise(p.shift_right_logical_p)
sign = elementwise(p.sign_p)
sin = elementwise(p.sin_p, accuracy=None)
sinh = elementwise(p.sinh_p)
sqrt = elementwise(p.sqrt_p, accuracy=None)
square = elementwise(p.square_p)
stop_gradient = elementwise(p.stop_gradient_p)
sub = elementwise(p.sub_p)
tan = elementwise(p.tan_p, accuracy=None)
tanh = elementwise(p.tanh_p, accuracy=None)
xor = elementwise(p.xor_p)
zeta = elementwise(p.zeta_p)


def neg(b: JaxprBuilder, x: Atom) -> Atom:
    """Assemble the negation."""
    return b.bind(p.neg_p, (x,), x.aval.shape, x.aval.dtype, {})


def ge(b: JaxprBuilder, x: Atom, y: Atom) -> Atom:
    """Assemble ``x >= y``."""
    return b.bind(p.ge_p, (x, y), elementwise_shape((x, y)), BOOL, {})


def le(b: JaxprBuilder, x: Atom, y: Atom) -> Atom:
    """Assemble ``x <= y``."""
    return b.bind(p.le_p, (x, y), elementwise_shape((x, y)), BOOL, {})


def part_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of the real part of a complex dtype."""
    return np.dtype("float32") if dtype == np.complex64 else np.dtype("float64")


def complex_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of complex numbers whose parts have a real dtype."""
    return np.dtype("complex64" if dtype == np.float32 else "complex128")


def real_dtype(dtype: np.dtype) -> np.dtype:
    """Return a dtype, or the dtype of its real part if it is complex."""
    return part_dtype(dtype) if dtype.kind == "c" else dtype


def abs_(b: JaxprBuilder, x: Atom) -> Atom:
    """Assemble the absolute value, which is real for complex numbers, too."""
    return b.bind(p.abs_p, (x,), x.aval.shape, real_dtype(x.aval.dtype), {})


def real(b: JaxprBuilder, x: Atom) -> Atom:
    """Assemble the real part of a complex operand."""
    return b.bind(p.real_p, (x,), x.aval.shape, part_dtype(x.aval.dtype), {})


def imag(b: JaxprBuilder, x: Atom) -> Atom:
    """Assemble the imaginary part of a complex operand."""
    return b.bind(p.imag_p, (x,), x.aval.shape, part_dtype(x.aval.dtype), {})


def conj(b: JaxprBuilder, x: Atom) -> Atom:
    """Assemble the conjugate of a complex operand."""
    return b.bind(p.conj_p, (x,), x.aval.shape, x.aval.dtype, {"input_dtype": x.aval.dtype})


def complex_(b: JaxprBuilder, re: Atom, im: Atom) -> Atom:
    """Assemble a complex number of two real operands of one dtype."""
    return b.bind(p.complex_p, (re, im), elementwise_shape((re, im)), complex_dtype(re.aval.dtype), {})


def integer_pow(b: JaxprBuilder, x: Atom, y: int) -> Atom:
    """Assemble the power with a constant integer exponent."""
    return b.bind(p.integer_pow_p, (x,), x.aval.shape, x.aval.dtype, {"y": y})


def convert(b: JaxprBuilder, x: Atom, dtype: Any) -> Atom:
    """Assemble the conversion of `x` to `dtype`, or return `x` if it has that dtype."""
    dtype = np.dtype(dtype)
    if x.aval.dtype == dtype and not x.aval.weak_type:
        return x
    return b.bind(p.convert_element_type_p, (x,), x.aval.shape, dtype, conversion_to(dtype))


def bitcast(b: JaxprBuilder, x: Atom, dtype: Any) -> Atom:
    """Assemble the reinterpretation of the bits of `x` as a `dtype` of the same width."""
    dtype = np.dtype(dtype)
    return b.bind(p.bitcast_convert_type_p, (x,), x.aval.shape, dtype, {"new_dtype": dtype})


def copy(b: JaxprBuilder, x: Atom) -> Atom:
    """Assemble a copy: an output with a buffer of its own."""
    return b.bind(p.copy_p, (x,), x.aval.shape, x.aval.dtype, {})


def select(b: JaxprBuilder, condition: Atom, on_true: Atom, on_false: Atom) -> Atom:
    """Assemble a choice between two operands; `condition` is boolean, 0-d operands are broadcast."""
    shape = elementwise_shape((condition, on_true, on_false))
    cases = (broadcast_to(b, on_false, shape), broadcast_to(b, on_true, shape))
    return b.bind(p.select_n_p, (condition, *cases), shape, on_true.aval.dtype, {})


def clamp(b: JaxprBuilder, low: Atom, x: Atom, high: Atom) -> Atom:
    """Assemble `x` limited to [low, high]; the limits are 0-d or have the shape of `x`."""
    return b.bind(p.clamp_p, (low, x, high), x.aval.shape, x.aval.dtype, {})


def threefry2x32(b: JaxprBuilder, key: tuple[Atom, Atom], counts: tuple[Atom, Atom]) -> list[Atom]:
    """Assemble the Threefry-2x32 hash (Salmon et al., 2011) of two uint32 counters under a key of two uint32 words."""
    avals = (counts[0].aval, counts[1].aval)
    return list(b.bind_many(p.threefry2x32_p, (*key, *counts), avals, {}))


def reduction(primitive: Any, **params: Any) -> Callable[[JaxprBuilder, Atom, Sequence[int]], Atom]:
    """Return the assembler function of a reduction over axes that keeps the dtype."""

    def assemble(b: JaxprBuilder, x: Atom, axes: Sequence[int]) -> Atom:
        shape = tuple(n for i, n in enumerate(x.aval.shape) if i not in axes)
        return b.bind(primitive, (x,), shape, x.aval.dtype, {"axes": tuple(axes), **params})

    return named_after(assemble, primitive, "Assemble the reduction ``{}`` over `axes`.")


reduce_sum = reduction(p.reduce_sum_p, out_sharding=None)
reduce_prod = reduction(p.reduce_prod_p)
reduce_max = reduction(p.reduce_max_p, out_sharding=None)
reduce_min = reduction(p.reduce_min_p, out_sharding=None)
reduce_and = reduction(p.reduce_and_p)
reduce_or = reduction(p.reduce_or_p)
reduce_xor = reduction(p.reduce_xor_p)


def arg_reduction(primitive: Any) -> Callable[[JaxprBuilder, Atom, int, Any], Atom]:
    """Return the assembler function of an argmax or argmin."""

    def assemble(b: JaxprBuilder, x: Atom, axis: int, dtype: Any) -> Atom:
        shape, dtype = tuple(n for i, n in enumerate(x.aval.shape) if i != axis), np.dtype(dtype)
        return b.bind(primitive, (x,), shape, dtype, {"axes": (axis,), "index_dtype": dtype})

    return named_after(assemble, primitive, "Assemble ``{}`` along `axis`: the first position, NaN before all numbers.")


argmax = arg_reduction(p.argmax_p)
argmin = arg_reduction(p.argmin_p)


def cumulative(primitive: Any) -> Callable[[JaxprBuilder, Atom, int], Atom]:
    """Return the assembler function of a cumulative reduction."""

    def assemble(b: JaxprBuilder, x: Atom, axis: int) -> Atom:
        return b.bind(primitive, (x,), x.aval.shape, x.aval.dtype, {"axis": axis, "reverse": False})

    return named_after(assemble, primitive, "Assemble ``{}`` along `axis`.")


cumsum = cumulative(p.cumsum_p)
cumprod = cumulative(p.cumprod_p)
cummax = cumulative(p.cummax_p)


def sort(b: JaxprBuilder, xs: Sequence[Atom], axis: int, num_keys: int = 1, is_stable: bool = True) -> list[Atom]:
    """Assemble the joint sort of arrays of one shape along `axis`, by the first `num_keys` of them."""
    params = {"dimension": axis, "is_stable": is_stable, "num_keys": num_keys}
    return list(b.bind_many(p.sort_p, xs, [x.aval for x in xs], params))
