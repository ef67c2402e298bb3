"""The assembler: one function a primitive, and the only place that spells a primitive's params.

Each function takes a `JaxprBuilder`, the operand atoms and what the params need, states the shape and dtype of the result,
and returns the result's atom. Which params a primitive takes is a contract that JAX does not check and that moves between
releases: ``tests/test_prims.py`` compares every equation with the one that ``jax.make_jaxpr`` gives for the same `jax.lax`
call.

Operands of one elementwise primitive have equal shapes; JAX also takes 0-d operands beside them. dtypes are not promoted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base.jax_compat import (
    ERFC_PARAMS,
    LinearSolveTuple,
    bcsr_product,
    dim_as_value_p,
    dim_value_aval,
    geqp3_p,
    geqrf_p,
    jvp_param,
    scan_trees,
)
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape

BOOL = np.dtype(bool)
INT32 = np.dtype("int32")
UINT32 = np.dtype("uint32")


def elementwise_shape(xs: Sequence[Atom]) -> Shape:
    """Return the shape of an elementwise result: that of the first operand that is not 0-d."""
    for x in xs:
        if x.aval.shape:
            return x.aval.shape
    return ()


def elementwise(primitive: Any, dtype: np.dtype | None = None, **params: Any) -> Callable[..., Atom]:
    """Return the assembler function of an elementwise primitive whose result has `dtype`, or its last operand's."""

    def assemble(b: JaxprBuilder, *xs: Atom) -> Atom:
        aval = xs[-1].aval
        if dtype is not None or not aval.shape:
            aval = b.aval(elementwise_shape(xs), dtype or aval.dtype)
        return b.bind_many(primitive, xs, (aval,), params)[0]

    assemble.__name__ = assemble.__qualname__ = primitive.name
    assemble.__doc__ = f"Assemble the elementwise primitive ``{primitive.name}``."
    return assemble


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
ge = elementwise(p.ge_p, BOOL)
gt = elementwise(p.gt_p, BOOL)
igamma = elementwise(p.igamma_p)
igammac = elementwise(p.igammac_p)
is_finite = elementwise(p.is_finite_p, BOOL)
le = elementwise(p.le_p, BOOL)
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
    """Assemble the negation, or return what `x` is the negation of."""
    inner = b.definition(x, p.neg_p)
    return b.bind(p.neg_p, (x,), x.aval.shape, x.aval.dtype, {}) if inner is None else inner.invars[0]


def part_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of the real part of a complex dtype."""
    return np.dtype("float32") if dtype == np.complex64 else np.dtype("float64")


def complex_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of complex numbers whose parts have a real dtype."""
    return np.dtype("complex64" if dtype == np.float32 else "complex128")


def real_dtype(dtype: np.dtype) -> np.dtype:
    """Return a dtype, or that of its real part if it is complex."""
    return part_dtype(dtype) if dtype.kind == "c" else dtype


def abs_(b: JaxprBuilder, x: Atom) -> Atom:
    """Assemble the absolute value; that of a complex number is real."""
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
    value = b.known(x)
    if value is not None and value.ndim == 0:
        return b.constant(value.astype(dtype))
    params = {"new_dtype": dtype, "weak_type": False, "sharding": None}
    return b.bind(p.convert_element_type_p, (x,), x.aval.shape, dtype, params)


def bitcast(b: JaxprBuilder, x: Atom, dtype: Any) -> Atom:
    """Assemble the reinterpretation of the bits of `x` as a `dtype` of the same width."""
    dtype = np.dtype(dtype)
    return b.bind(p.bitcast_convert_type_p, (x,), x.aval.shape, dtype, {"new_dtype": dtype})


def copy(b: JaxprBuilder, x: Atom) -> Atom:
    """Assemble a copy: an output that is no input's buffer."""
    return b.bind(p.copy_p, (x,), x.aval.shape, x.aval.dtype, {})


def select(b: JaxprBuilder, condition: Atom, on_true: Atom, on_false: Atom) -> Atom:
    """Assemble a choice between two operands; `condition` is boolean, 0-d operands are broadcast."""
    shape = elementwise_shape((condition, on_true, on_false))
    cases = (broadcast_to(b, on_false, shape), broadcast_to(b, on_true, shape))
    return b.bind(p.select_n_p, (condition, *cases), shape, on_true.aval.dtype, {})


def clamp(b: JaxprBuilder, low: Atom, x: Atom, high: Atom) -> Atom:
    """Assemble `x` limited to [low, high]; the limits are 0-d or have the shape of `x`."""
    return b.bind(p.clamp_p, (low, x, high), x.aval.shape, x.aval.dtype, {})


# -- shapes ------------------------------------------------------------------------------------------------------------


def broadcast_in_dim(b: JaxprBuilder, x: Atom, shape: Shape, dims: Sequence[int]) -> Atom:
    """Assemble the broadcast of `x` to `shape`, axis i of `x` becoming axis ``dims[i]``."""
    shape, dims = tuple(shape), tuple(dims)
    if x.aval.shape == shape:
        return x
    inner = b.definition(x, p.broadcast_in_dim_p)
    if inner is not None:  # a broadcast of a broadcast is one broadcast
        x, dims = inner.invars[0], tuple(dims[i] for i in inner.params["broadcast_dimensions"])
        if x.aval.shape == shape and dims == tuple(range(len(shape))):
            return x
    params = {"shape": shape, "broadcast_dimensions": dims, "sharding": None}
    result = b.bind(p.broadcast_in_dim_p, (x,), shape, x.aval.dtype, params)
    if not x.aval.shape:
        b.repeated[result] = x
    return result


def broadcast_to(b: JaxprBuilder, x: Atom, shape: Shape) -> Atom:
    """Assemble NumPy's broadcast of `x` to `shape`."""
    if x.aval.shape == shape:
        return x
    lead = len(shape) - len(x.aval.shape)
    return broadcast_in_dim(b, x, shape, range(lead, len(shape)))


def reshape(b: JaxprBuilder, x: Atom, shape: Shape) -> Atom:
    """Assemble the reshape of `x` to `shape`, all of whose dimensions are given."""
    shape = tuple(shape)
    value = b.known(x)
    if value is not None and value.size == 1 and not shape:
        return b.constant(value.reshape(()))
    if (inner := b.definition(x, p.reshape_p)) is not None:
        x = inner.invars[0]
    if x.aval.shape == shape:
        return x
    return b.bind(p.reshape_p, (x,), shape, x.aval.dtype, {"new_sizes": shape, "dimensions": None, "sharding": None})


def squeeze(b: JaxprBuilder, x: Atom, axes: Sequence[int]) -> Atom:
    """Assemble `x` without `axes`, which have length 1."""
    shape = tuple(n for i, n in enumerate(x.aval.shape) if i not in axes)
    return b.bind(p.squeeze_p, (x,), shape, x.aval.dtype, {"dimensions": tuple(sorted(axes))}) if axes else x


def transpose(b: JaxprBuilder, x: Atom, permutation: Sequence[int]) -> Atom:
    """Assemble the transpose whose axis i is axis ``permutation[i]`` of `x`."""
    permutation = tuple(permutation)
    if (inner := b.definition(x, p.transpose_p)) is not None:
        x, permutation = inner.invars[0], tuple(inner.params["permutation"][i] for i in permutation)
    if permutation == tuple(range(len(permutation))):
        return x
    shape = tuple(x.aval.shape[i] for i in permutation)
    return b.bind(p.transpose_p, (x,), shape, x.aval.dtype, {"permutation": permutation})


def concatenate(b: JaxprBuilder, xs: Sequence[Atom], axis: int) -> Atom:
    """Assemble the concatenation of arrays that agree in dtype and in every axis but `axis`."""
    if len(xs) == 1:
        return xs[0]
    shape = list(xs[0].aval.shape)
    shape[axis] = sum(x.aval.shape[axis] for x in xs)
    return b.bind(p.concatenate_p, xs, tuple(shape), xs[0].aval.dtype, {"dimension": axis})


def pad(b: JaxprBuilder, x: Atom, value: Atom, config: Sequence[tuple[int, int, int]]) -> Atom:
    """Assemble a padding with `value`: (low, high, interior) an axis; negative numbers cut."""
    shape = tuple(lo + hi + n + max(n - 1, 0) * k for n, (lo, hi, k) in zip(x.aval.shape, config, strict=True))
    return b.bind(p.pad_p, (x, value), shape, x.aval.dtype, {"padding_config": tuple(config)})


def rev(b: JaxprBuilder, x: Atom, axes: Sequence[int]) -> Atom:
    """Assemble the reversal of `axes`; of the same reversal, it is what was reversed."""
    axes = [axis for axis in axes if x.aval.shape[axis] != 1]
    inner = b.definition(x, p.rev_p)
    if inner is not None and inner.params["dimensions"] == tuple(axes):
        return inner.invars[0]
    return b.bind(p.rev_p, (x,), x.aval.shape, x.aval.dtype, {"dimensions": tuple(axes)}) if axes else x


def slice_(b: JaxprBuilder, x: Atom, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]) -> Atom:
    """Assemble a static slice with positive strides.

    One of a concatenation that lies in one part is a slice of that, one of a reversal is a reversed slice.
    """
    inner = b.definition(x, p.rev_p)
    if inner is not None and all(strides[axis] == 1 for axis in inner.params["dimensions"]):
        flipped, shape = inner.params["dimensions"], x.aval.shape
        bounds = [
            (n - hi, n - lo) if i in flipped else (lo, hi)
            for i, (lo, hi, n) in enumerate(zip(starts, limits, shape, strict=True))
        ]
        return rev(b, slice_(b, inner.invars[0], [lo for lo, _ in bounds], [hi for _, hi in bounds], strides), flipped)
    inner = b.definition(x, p.concatenate_p)
    if inner is not None:
        axis, offset = inner.params["dimension"], 0
        for part in inner.invars:
            end = offset + part.aval.shape[axis]
            if offset <= starts[axis] < limits[axis] <= end:
                moved = [
                    (lo - offset, hi - offset) if i == axis else (lo, hi)
                    for i, (lo, hi) in enumerate(zip(starts, limits, strict=True))
                ]
                return slice_(b, part, [lo for lo, _ in moved], [hi for _, hi in moved], strides)
            offset = end
    shape = tuple(max(0, -(-(hi - lo) // k)) for lo, hi, k in zip(starts, limits, strides, strict=True))
    if shape == x.aval.shape:
        return x
    steps = None if all(k == 1 for k in strides) else tuple(strides)
    params = {"start_indices": tuple(starts), "limit_indices": tuple(limits), "strides": steps}
    return b.bind(p.slice_p, (x,), shape, x.aval.dtype, params)


def dynamic_slice(b: JaxprBuilder, x: Atom, starts: Sequence[Atom], sizes: Shape) -> Atom:
    """Assemble a slice of static `sizes` at run-time `starts`, 0-d and of one dtype; XLA clamps them."""
    return b.bind(p.dynamic_slice_p, (x, *starts), tuple(sizes), x.aval.dtype, {"slice_sizes": tuple(sizes)})


def dynamic_update_slice(b: JaxprBuilder, x: Atom, update: Atom, starts: Sequence[Atom]) -> Atom:
    """Assemble `x` with `update` written at run-time `starts`, 0-d and of one dtype; XLA clamps them."""
    return b.bind(p.dynamic_update_slice_p, (x, update, *starts), x.aval.shape, x.aval.dtype, {})


def iota(b: JaxprBuilder, dtype: Any, shape: Shape, axis: int) -> Atom:
    """Assemble an array that counts along `axis`."""
    dtype, shape = np.dtype(dtype), tuple(shape)
    return b.bind(p.iota_p, (), shape, dtype, {"dtype": dtype, "shape": shape, "dimension": axis, "sharding": None})


# -- reductions, sorting, products -------------------------------------------------------------------------------------


def reduction(primitive: Any, **params: Any) -> Callable[[JaxprBuilder, Atom, Sequence[int]], Atom]:
    """Return the assembler function of a reduction over axes that keeps the dtype."""

    def assemble(b: JaxprBuilder, x: Atom, axes: Sequence[int]) -> Atom:
        shape = tuple(n for i, n in enumerate(x.aval.shape) if i not in axes)
        return b.bind(primitive, (x,), shape, x.aval.dtype, {"axes": tuple(axes), **params})

    assemble.__name__ = assemble.__qualname__ = primitive.name
    assemble.__doc__ = f"Assemble the reduction ``{primitive.name}`` over `axes`."
    return assemble


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

    assemble.__name__ = assemble.__qualname__ = primitive.name
    assemble.__doc__ = f"Assemble ``{primitive.name}`` along `axis`: the first position, NaN before all numbers."
    return assemble


argmax = arg_reduction(p.argmax_p)
argmin = arg_reduction(p.argmin_p)


def cumulative(primitive: Any) -> Callable[[JaxprBuilder, Atom, int], Atom]:
    """Return the assembler function of a cumulative reduction."""

    def assemble(b: JaxprBuilder, x: Atom, axis: int) -> Atom:
        return b.bind(primitive, (x,), x.aval.shape, x.aval.dtype, {"axis": axis, "reverse": False})

    assemble.__name__ = assemble.__qualname__ = primitive.name
    assemble.__doc__ = f"Assemble ``{primitive.name}`` along `axis`."
    return assemble


cumsum = cumulative(p.cumsum_p)
cumprod = cumulative(p.cumprod_p)
cummax = cumulative(p.cummax_p)


def sort(b: JaxprBuilder, xs: Sequence[Atom], axis: int, num_keys: int = 1, is_stable: bool = True) -> list[Atom]:
    """Assemble the joint sort of arrays of one shape along `axis`, by the first `num_keys` of them."""
    params = {"dimension": axis, "is_stable": is_stable, "num_keys": num_keys}
    return list(b.bind_many(p.sort_p, xs, [x.aval for x in xs], params))


def untransposed(b: JaxprBuilder, x: Atom, contract: tuple, batch: tuple) -> tuple[Atom, tuple]:
    """Return the matrices whose transposes `x` holds, and their axes `contract`: XLA would copy to transpose."""
    inner = b.definition(x, p.transpose_p)
    if inner is None or len(x.aval.shape) != len(contract) + len(batch) + 1:
        return x, contract
    source: tuple = inner.params["permutation"]
    moved = tuple(source[i] for i in contract)
    return (inner.invars[0], moved) if tuple(source[i] for i in batch) == batch else (x, contract)


def dot_general(
    b: JaxprBuilder,
    x: Atom,
    y: Atom,
    contract: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
) -> Atom:
    """Assemble the product of `x` and `y`, summed over the axes `contract`, axes `batch` in parallel and first."""
    (xc, yc), (xb, yb) = (tuple(map(tuple, pair)) for pair in (contract, batch))
    (x, xc), (y, yc) = untransposed(b, x, xc, xb), untransposed(b, y, yc, yb)
    shape = (
        *(x.aval.shape[i] for i in xb),
        *(n for i, n in enumerate(x.aval.shape) if i not in xc + xb),
        *(n for i, n in enumerate(y.aval.shape) if i not in yc + yb),
    )
    params = {
        "dimension_numbers": ((xc, yc), (xb, yb)),
        "precision": None,
        "preferred_element_type": x.aval.dtype,
        "out_sharding": None,
    }
    return b.bind(p.dot_general_p, (x, y), shape, x.aval.dtype, params)


def bcsr_dot_general(b: JaxprBuilder, data: Atom, indices: Atom, indptr: Atom, y: Atom, shape: tuple[int, int]) -> Atom:
    """Assemble the product of a CSR matrix of a shape, its indices in bounds, with a dense matrix."""
    primitive, info = bcsr_product()
    params = {
        "dimension_numbers": (((1,), (0,)), ((), ())),
        "preferred_element_type": None,
        "lhs_spinfo": info(shape=shape, indices_sorted=False, unique_indices=False),
    }
    return b.bind(primitive, (data, indices, indptr, y), (shape[0], y.aval.shape[1]), y.aval.dtype, params)


def fft(b: JaxprBuilder, x: Atom, kind: lax.FftType, lengths: Sequence[int]) -> Atom:
    """Assemble the Fourier transform of the last axes, of which a real transform keeps ``n // 2 + 1`` elements of the last."""
    lengths, shape = tuple(lengths), list(x.aval.shape)
    dtype = x.aval.dtype
    if kind == lax.FftType.RFFT:
        shape[-1], dtype = lengths[-1] // 2 + 1, complex_dtype(dtype)
    elif kind == lax.FftType.IRFFT:
        shape[-1], dtype = lengths[-1], part_dtype(dtype)
    return b.bind(p.fft_p, (x,), tuple(shape), dtype, {"fft_type": kind, "fft_lengths": lengths})


# -- gather and scatter ------------------------------------------------------------------------------------------------


def fill_value(dtype: np.dtype) -> Any:
    """Return what `jax.lax.gather` fills in for what is out of bounds."""
    if dtype.kind in "fc":
        return np.nan
    if dtype.kind == "b":
        return True
    return int(np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max)


def gather(
    b: JaxprBuilder,
    x: Atom,
    indices: Atom,
    dims: lax.GatherDimensionNumbers,
    sizes: Shape,
    shape: Shape,
    mode: lax.GatherScatterMode = lax.GatherScatterMode.PROMISE_IN_BOUNDS,
) -> Atom:
    """Assemble a gather; `shape` is the result's."""
    params = {
        "dimension_numbers": dims,
        "slice_sizes": tuple(sizes),
        "unique_indices": False,
        "indices_are_sorted": False,
        "mode": mode,
        "fill_value": fill_value(x.aval.dtype) if mode == lax.GatherScatterMode.FILL_OR_DROP else None,
    }
    return b.bind(p.gather_p, (x, indices), tuple(shape), x.aval.dtype, params)


def scatter_body(b: JaxprBuilder, combine: Callable[..., Atom] | None, dtype: np.dtype) -> Any:
    """Return the Jaxpr by which a scatter combines the old and the new element."""
    body, (old, new) = b.sub_jaxpr([b.aval((), dtype)] * 2)
    return body.build([combine(body, old, new) if combine else new])


def scatter_family(primitive: Any, combine: Callable[..., Atom] | None) -> Callable[..., Atom]:
    """Return the assembler function of one of the scatter primitives."""

    def assemble(
        b: JaxprBuilder,
        x: Atom,
        indices: Atom,
        updates: Atom,
        dims: lax.ScatterDimensionNumbers,
        unique_indices: bool = False,
        mode: lax.GatherScatterMode = lax.GatherScatterMode.FILL_OR_DROP,
    ) -> Atom:
        body = scatter_body(b, combine, x.aval.dtype) if combine else None
        params = {
            "update_jaxpr": body,
            "update_consts": (),
            "dimension_numbers": dims,
            "indices_are_sorted": False,
            "unique_indices": unique_indices,
            "mode": mode,
        }
        return b.bind(primitive, (x, indices, updates), x.aval.shape, x.aval.dtype, params)

    assemble.__name__ = assemble.__qualname__ = primitive.name
    assemble.__doc__ = f"Assemble ``{primitive.name}``."
    return assemble


scatter = scatter_family(p.scatter_p, None)
scatter_add = scatter_family(p.scatter_add_p, add)
scatter_mul = scatter_family(p.scatter_mul_p, mul)


# -- linear algebra, control, random bits ------------------------------------------------------------------------------


def cholesky(b: JaxprBuilder, x: Atom) -> Atom:
    """Assemble the lower Cholesky factor of the last two axes; NaN where `x` is not positive definite.

    What is above the diagonal is not part of the factor: `jax.lax.linalg.cholesky` sets it to zero by a select.
    """
    return b.bind(p.cholesky_p, (x,), x.aval.shape, x.aval.dtype, {})


def triangular_solve(
    b: JaxprBuilder,
    a: Atom,
    x: Atom,
    lower: bool,
    transpose_a: bool = False,
    unit_diagonal: bool = False,
    left_side: bool = True,
    conjugate_a: bool = False,
) -> Atom:
    """Assemble the solution of ``a @ y = x``, or ``y @ a = x``, for a triangular `a` (``a.T`` with `transpose_a`)."""
    params = {
        "left_side": left_side,
        "lower": lower,
        "transpose_a": transpose_a,
        "conjugate_a": conjugate_a and a.aval.dtype.kind == "c",
        "unit_diagonal": unit_diagonal,
    }
    return b.bind(p.triangular_solve_p, (a, x), x.aval.shape, x.aval.dtype, params)


def tridiagonal_solve(b: JaxprBuilder, lower: Atom, main: Atom, upper: Atom, x: Atom) -> Atom:
    """Assemble the solution of a tridiagonal system; ``lower[0]`` and ``upper[-1]`` are not part of the matrix."""
    params = {"perturb_singular": False}
    return b.bind(p.tridiagonal_solve_p, (lower, main, upper, x), x.aval.shape, x.aval.dtype, params)


def linear_solve(
    b: JaxprBuilder,
    operator: Sequence[Atom],
    factors: Sequence[Atom],
    x: Atom,
    product: Callable[..., Atom],
    solve: Callable[..., Atom],
) -> Atom:
    """Assemble the solution y of ``A y = x``, whose derivative follows from the equation and not from how it is solved.

    `product` and `solve` emit ``A y`` of ``(b, *operator, y)`` and y of ``(b, *factors, x)``; both take `transposed`, which
    means the same of the transpose of A.
    """
    jaxprs = []
    for atoms, emit in ((operator, product), (factors, solve)):
        for transposed in (False, True):
            body, operands = b.sub_jaxpr([atom.aval for atom in (*atoms, x)])
            jaxprs.append(body.build([emit(body, *operands, transposed=transposed)]))
    lengths = LinearSolveTuple(len(operator), len(operator), len(factors), len(factors))
    params = {"const_lengths": lengths, "jaxprs": LinearSolveTuple(*jaxprs)}
    return b.bind(p.linear_solve_p, (*operator, *operator, *factors, *factors, x), x.aval.shape, x.aval.dtype, params)


def lu(b: JaxprBuilder, x: Atom) -> list[Atom]:
    """Assemble the LU factors in one matrix, the row exchanges, and the permutation that they are (int32, from 0)."""
    *batch, m, n = x.aval.shape
    avals = (x.aval, b.aval((*batch, min(m, n)), INT32), b.aval((*batch, m), INT32))
    return list(b.bind_many(p.lu_p, (x,), avals, {}))


def lu_pivots_to_permutation(b: JaxprBuilder, pivots: Atom) -> Atom:
    """Assemble the permutation of as many rows as there are exchanges `pivots` (int32)."""
    params = {"permutation_size": pivots.aval.shape[-1]}
    return b.bind(lax.linalg.lu_pivots_to_permutation_p, (pivots,), pivots.aval.shape, INT32, params)


def qr(b: JaxprBuilder, x: Atom, full_matrices: bool, pivoting: bool = False) -> list[Atom]:
    """Assemble Q and R, and with `pivoting` the positions of the columns (int32)."""
    *batch, m, n = x.aval.shape
    k = m if full_matrices else min(m, n)
    avals = [b.aval((*batch, m, k), x.aval.dtype), b.aval((*batch, k, n), x.aval.dtype)]
    avals += [b.aval((*batch, n), INT32)] * pivoting
    params = {"pivoting": pivoting, "full_matrices": full_matrices, "use_magma": None}
    return list(b.bind_many(p.qr_p, (x,), avals, params))


def geqrf(b: JaxprBuilder, x: Atom) -> list[Atom]:
    """Assemble LAPACK's form of a QR decomposition: R above reflectors, and their factors."""
    *batch, m, n = x.aval.shape
    return list(b.bind_many(geqrf_p, (x,), (x.aval, b.aval((*batch, min(m, n)), x.aval.dtype)), {}))


def geqp3(b: JaxprBuilder, x: Atom, columns: Atom) -> list[Atom]:
    """Assemble `geqrf` with pivoting; columns whose int32 is 0 may move. The positions come second, from 1."""
    *batch, m, n = x.aval.shape
    avals = (x.aval, columns.aval, b.aval((*batch, min(m, n)), x.aval.dtype))
    return list(b.bind_many(geqp3_p, (x, columns), avals, {"use_magma": None}))


def svd(b: JaxprBuilder, x: Atom, full_matrices: bool, compute_uv: bool) -> list[Atom]:
    """Assemble the singular values, and with `compute_uv` the matrices on their left and right."""
    *batch, m, n = x.aval.shape
    k = min(m, n)
    avals = [b.aval((*batch, k), real_dtype(x.aval.dtype))]
    if compute_uv:
        left, right = (m, n) if full_matrices else (k, k)
        avals += [b.aval((*batch, m, left), x.aval.dtype), b.aval((*batch, right, n), x.aval.dtype)]
    params = {
        "full_matrices": full_matrices,
        "compute_uv": compute_uv,
        "subset_by_index": None,
        "algorithm": None,
    }
    return list(b.bind_many(p.svd_p, (x,), avals, params))


def eigh(b: JaxprBuilder, x: Atom, lower: bool) -> list[Atom]:
    """Assemble eigenvectors and ascending eigenvalues of a Hermitian matrix, of which one triangle is read."""
    avals = (x.aval, b.aval(x.aval.shape[:-1], real_dtype(x.aval.dtype)))
    params = {"lower": lower, "sort_eigenvalues": True, "subset_by_index": None, "algorithm": None}
    return list(b.bind_many(p.eigh_p, (x,), avals, params))


def eig(b: JaxprBuilder, x: Atom) -> list[Atom]:
    """Assemble eigenvalues and right eigenvectors, both complex."""
    dtype = np.result_type(x.aval.dtype, np.complex64)
    params = {
        "compute_left_eigenvectors": False,
        "compute_right_eigenvectors": True,
        "enable_eigvec_derivs": False,
        "implementation": None,
    }
    return list(b.bind_many(p.eig_p, (x,), (b.aval(x.aval.shape[:-1], dtype), b.aval(x.aval.shape, dtype)), params))


def schur(b: JaxprBuilder, x: Atom) -> list[Atom]:
    """Assemble the Schur form and the Schur vectors."""
    params = {"compute_schur_vectors": True, "sort_eig_vals": False, "select_callable": None}
    return list(b.bind_many(p.schur_p, (x,), (x.aval, x.aval), params))


def cond(
    b: JaxprBuilder, index: Atom, branches: Sequence[Any], operands: Sequence[Atom], avals: Sequence[Any]
) -> list[Atom]:
    """Assemble the branch number `index` (int32; clamped) of closed Jaxprs that take `operands` and return `avals`."""
    return list(b.bind_many(p.cond_p, (index, *operands), avals, {"branches": tuple(branches)}))


def scan(
    b: JaxprBuilder,
    body: Any,
    consts: Sequence[Atom],
    carry: Sequence[Atom],
    xs: Sequence[Atom],
    length: int,
    unroll: int = 1,
    reverse: bool = False,
    extends: Any = None,
) -> list[Atom]:
    """Assemble `length` steps of a closed Jaxpr from constants, carry and a row of each of `xs` to carry and rows.

    Returns the last carry, then the rows of all steps, stacked. If the first step takes and writes the last rows, `reverse`
    is true. If it is a scan that was assembled before, with further constants and rows, `extends` is its equation, which it
    takes the place of, and only the further rows are returned.
    """
    rows = [b.aval((length, *aval.shape), aval.dtype) for aval in body.out_avals[len(carry) :]]
    params = {"reverse": reverse, "length": length, "jaxpr": body, "unroll": unroll}
    params |= scan_trees(len(consts), len(carry), len(xs), len(rows))
    operands, avals = (*consts, *carry, *xs), [*(x.aval for x in carry), *rows]
    if extends is not None:
        return list(b.extend(extends, operands, avals[len(extends.outvars) :], params))
    return list(b.bind_many(p.scan_p, operands, avals, params))


def while_loop(
    b: JaxprBuilder,
    condition: Any,
    condition_consts: Sequence[Atom],
    body: Any,
    consts: Sequence[Atom],
    carry: Sequence[Atom],
) -> list[Atom]:
    """Assemble steps of a closed Jaxpr from constants and carry to carry, as long as `condition` of the carry holds."""
    params = {
        "cond_jaxpr": condition,
        "cond_nconsts": len(condition_consts),
        "body_jaxpr": body,
        "body_nconsts": len(consts),
    }
    return list(b.bind_many(p.while_p, (*condition_consts, *consts, *carry), [x.aval for x in carry], params))


def closed_call(b: JaxprBuilder, jaxpr: Any, operands: Sequence[Atom]) -> list[Atom]:
    """Assemble the call of a closed Jaxpr."""
    return list(b.bind_many(p.closed_call_p, operands, jaxpr.out_avals, {"call_jaxpr": jaxpr}))


def custom_jvp_call(
    b: JaxprBuilder,
    jaxpr: Any,
    differentiate: Callable[[JaxprBuilder, Sequence[Atom], Sequence[Atom | None]], tuple[list[Atom], list[Atom]]],
    operands: Sequence[Atom],
) -> list[Atom]:
    """Assemble the call of a closed Jaxpr that has a derivative of its own.

    Parameters
    ----------
    b
        The builder.
    jaxpr
        What the call computes.
    differentiate
        Called as ``differentiate(child, primals, tangents)`` when JAX differentiates the call, and not before; a tangent
        that is None is zero. It emits the results and their tangents to `child`.
    operands
        What `jaxpr` takes.
    """

    def jvp_jaxpr(*zeros: bool) -> Any:
        avals = [x.aval for x in operands]
        tangent_avals = [aval for aval, zero in zip(avals, zeros, strict=True) if not zero]
        child, atoms = b.sub_jaxpr([*avals, *tangent_avals])
        given = iter(atoms[len(avals) :])
        results, slopes = differentiate(child, atoms[: len(avals)], [None if zero else next(given) for zero in zeros])
        return child.build([*results, *slopes]), [False] * len(slopes)

    params = {"call_jaxpr": jaxpr, "num_consts": 0, "symbolic_zeros": True} | jvp_param(
        jvp_jaxpr, jaxpr.jaxpr.debug_info
    )
    return list(b.bind_many(p.custom_jvp_call_p, operands, jaxpr.out_avals, params))


def dim_as_value(b: JaxprBuilder, dim: Any) -> Atom:
    """Assemble the value that a symbolic dimension of `jax.export` has at run time: an integer of JAX's default dtype."""
    return b.bind_many(dim_as_value_p, (), (dim_value_aval(),), {"dim": dim})[0]


def threefry2x32(b: JaxprBuilder, key: tuple[Atom, Atom], counts: tuple[Atom, Atom]) -> list[Atom]:
    """Assemble the Threefry-2x32 hash (Salmon et al., 2011) of two uint32 counters under a key of two uint32 words."""
    avals = (counts[0].aval, counts[1].aval)
    return list(b.bind_many(p.threefry2x32_p, (*key, *counts), avals, {}))
