"""Scalar Ops in graphs, and their derivatives. All values of all dtypes are in emit/test_scalar_values.py."""

from __future__ import annotations

import jax
import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.scalar.math as psm
import pytensor.tensor as pt
import pytest
from helpers import FULLGRAPH, compare, compare_error, compare_grad
from pytensor.scalar.basic import Composite
from pytensor.tensor.elemwise import Elemwise
from scalar_ops import OPS

import pytensor_jaxpr_linker as pjl

FLOATS = ["float32", "float64"]
INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def values_of(dtype):
    """Return special and ordinary values of a dtype."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.unique(np.array([0, 1, 2, 3, 5, 7, info.min, info.max, info.max // 2], dtype)).astype(dtype)
    if dtype.kind == "c":
        return np.array([1 + 2j, -0.5 + 0.25j, 3 - 1j, -2 - 0.75j, 0.125 + 0j], dtype)
    special = [0.0, -0.0, np.nan, np.inf, -np.inf]
    return np.array([*special, 0.5, -0.5, 0.75, 1.0, -1.0, 1.5, -1.5, 2.5, -2.5, 3.0, -7.25, 20.0, -40.5], dtype)


#: Ops that PyTensor declares for complex numbers, and that XLA does not know for these. Of the first row, nor does
#: NumPy.
REFUSED = {
    *(ps.ArcTan2, ps.IntDiv, ps.Mod, psm.Sigmoid, psm.Softplus),
    *(ps.GE, ps.GT, ps.LE, ps.LT, psm.Erf, psm.Gamma, psm.Psi),
}


def evaluate(inputs, outputs, arrays, mode):
    with np.errstate(all="ignore"):
        return pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")(*arrays)


def tolerance(dtype):
    return {"f": {2: 1e-3, 4: 1e-5, 8: 1e-12}, "c": {8: 1e-5, 16: 1e-12}}.get(dtype.kind, {}).get(dtype.itemsize, 0)


def grid(*values):
    """Return the columns of the Cartesian product of vectors."""
    return [a.ravel() for a in np.meshgrid(*values, indexing="ij")]


def vectors(*dtypes):
    return [pt.vector(f"x{i}", dtype=dtype) for i, dtype in enumerate(dtypes)]


def check(inputs, outputs, arrays, rtol=None):
    """Compare many outputs of one function, whatever the values."""
    expected = evaluate(inputs, outputs, arrays, "FAST_COMPILE")
    results = evaluate(inputs, outputs, arrays, "JAXPR")
    for output, want, got in zip(outputs, expected, results, strict=True):
        assert got.dtype == want.dtype == output.type.dtype, output.owner
        tiny = np.finfo(want.dtype).tiny if want.dtype.kind in "fc" else 0  # XLA flushes subnormal numbers to zero
        np.testing.assert_allclose(
            got, want, rtol=tolerance(want.dtype) if rtol is None else rtol, atol=tiny, err_msg=str(output.owner)
        )
    return expected, results


@pytest.mark.parametrize("cls", sorted(REFUSED, key=lambda cls: cls.__name__), ids=lambda cls: cls.__name__)
def test_complex_is_refused(cls):
    op = OPS[cls.__name__]
    inputs = vectors(*["complex128"] * op.nin)
    with pytest.raises(NotImplementedError, match="of complex numbers"):
        pytensor.function(inputs, Elemwise(op)(*inputs), mode=FULLGRAPH)(*[np.ones(1, "complex128")] * len(inputs))


@pytest.mark.filterwarnings("ignore::pytensor_jaxpr_linker.base.errors.GraphBreakWarning")
@pytest.mark.parametrize("op", [pt.int_div, pt.arctan2, pt.mod], ids=["int_div", "arctan2", "mod"])
def test_complex_operands_raise_what_pytensor_raises(op):
    x, z = inputs = vectors("float64", "complex128")
    scalar_op = {pt.mod: Elemwise(ps.mod)}.get(op, op)  # `pt.mod` itself refuses complex operands
    for output in (scalar_op(x, z), scalar_op(z, z)):
        compare_error(inputs, output, [np.ones(2), np.ones(2, "complex128")])


@pytest.mark.filterwarnings("ignore::pytensor_jaxpr_linker.base.errors.GraphBreakWarning")
@pytest.mark.parametrize("dtypes", [("int8", "uint64"), ("uint32", "int64")], ids=str)
def test_bits_of_mixed_integers(dtypes):
    inputs = vectors(*dtypes)
    values = [np.array([1, 2], dtype) for dtype in dtypes]
    if "uint64" in dtypes:  # have no common integer type
        compare_error(inputs, pt.bitwise_or(*inputs), values)
    else:
        compare(inputs, pt.bitwise_or(*inputs), values)


@pytest.mark.parametrize("dtype, spacing_1", [("float16", 2**10), ("float32", 2**23), ("float64", 2**52)])
@pytest.mark.parametrize("shape", [(), (0,), (4,)], ids=str)
def test_quotients_without_digits_after_the_point(dtype, spacing_1, shape):
    x, y = inputs = [pt.tensor(name, dtype=dtype, shape=shape) for name in "xy"]
    arrays = [np.resize(np.array([spacing_1 + 1, 2 * spacing_1 - 1, -spacing_1 - 1, 7], dtype), shape) for _ in "xy"]
    arrays[1] = np.ones_like(arrays[1])
    results = compare(inputs, [x // y, x // np.array(1, dtype), x % y], arrays, rtol=0, atol=0)
    np.testing.assert_array_equal(results[0], arrays[0])


def test_comparisons_of_mixed_integers_are_exact():
    x, y = inputs = vectors("int64", "uint64")
    outputs = [x < y, x >= y, pt.eq(y, x), pt.neq(x, y), y > np.int8(-1), x < np.uint64(2**63)]
    arrays = np.array([2**53 + 1, -1, 2**63 - 1]), np.array([2**53, 2**64 - 1, 2**63], "uint64")
    results = compare(inputs, outputs, arrays)
    assert [list(r) for r in results[:3]] == [[False, True, True], [True, False, False], [False] * 3]


@pytest.mark.parametrize("missing", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_missing_number_is_no_index(dtype, missing):
    rows, x = inputs = vectors("float64", "float64")
    compare_error(inputs, rows[x.astype(dtype)], [np.arange(3.0), np.array([1, missing])])
    compare_error(inputs, rows[x[0].astype(dtype)], [np.arange(3.0), np.array([missing])])


def test_integers_to_negative_powers_are_an_error():
    x, y = inputs = vectors("int64", "int8")
    compare(inputs, x**y, [np.array([2, 3]), np.array([3, 0], "int8")])
    compare_error(inputs, x**y, [np.array([2, 1]), np.array([3, -1], "int8")], match="negative integer powers")


@pytest.mark.parametrize("dtype", FLOATS)
def test_power_of_floats(dtype):
    x, y, i = inputs = vectors(dtype, dtype, "int64")
    constants = [x**c for c in (0, 1, 2, 3, -1, -2, 17, 0.5, 2.5)]
    values = values_of(dtype)
    check(inputs, [x**y, x**i, *constants], grid(values, values, np.array([0, 1, 2, 3, -1, -2, 17])))


@pytest.mark.parametrize("dtype", INTS)
def test_power_of_integers(dtype):
    x, y = inputs = vectors(dtype, dtype)
    check(inputs, [x**y, x**0.5], grid(values_of(dtype), np.array([0, 1, 2, 3, 7], dtype)))


def test_power_of_complex():
    x, y = inputs = vectors("complex128", "complex128")
    values = values_of("complex128")
    check(inputs, [x**y, x**2, x**3, x**-1, x**0.5], grid(values, values))


def test_complex_from_parts():
    x, y = inputs = vectors("float64", "float64")
    z = pt.complex(x, y)
    check(inputs, [z, pt.real(z), pt.imag(z), abs(z), pt.conj(z), z * z], grid([1.5, -2.0], [0.5, 3.0, 0.0]))


# The incomplete gamma and beta functions and Hurwitz' zeta are series and continued fractions that XLA and SciPy cut at
# different places, so their tolerance is 1e-10, and 1e-4 in float32.
@pytest.mark.parametrize("dtype, rtol", [("float32", 1e-4), ("float64", 1e-10)], ids=FLOATS)
def test_functions_of_several_arguments(dtype, rtol):
    p = np.array([0.3, 1, 2.5, 7], dtype)
    x = np.array([0, 0.01, 0.5, 0.9, 1, 3, 20, 60, np.inf, -1, np.nan], dtype)
    a, b = inputs = vectors(dtype, dtype)
    arrays = grid(p, x)
    check(inputs, [pt.gammainc(a, b), pt.gammaincc(a, b)], arrays, rtol)
    columns = grid(p, p, np.array([0, 0.1, 0.5, 0.9, 1, -0.5, 2], dtype))
    inputs = vectors(dtype, dtype, dtype)
    check(inputs, [pt.betainc(*inputs)], columns, rtol)
    inputs = vectors("int64", dtype)
    check(
        inputs, [pt.polygamma(*inputs)], grid([0, 1, 2, 3, 5], np.array([0.1, 0.5, 1, 3.25, 20, np.inf], dtype)), rtol
    )


# -- fused Ops ---------------------------------------------------------------------------------------------------------


def test_fused_composite_is_emitted():
    x, y = ps.float64("x"), ps.float32("y")
    inner = Composite([x, y], [ps.exp(x) + y, ps.mul(x, y)])
    # PyTensor 3.3.7 confuses the outputs of an inner Composite that has several, so the nested one has one.
    total = Composite([x, y], [ps.exp(x) + y])(x, y)
    nested = Composite([x, y], [ps.tanh(total) * 2.0, ps.mul(x, y), ps.identity(x)])
    a, b = vectors("float64", "float32")
    arrays = [np.array([0.5, -1.0, 2.0]), np.array([1.5, 0.25, -3.0], "float32")]
    compare([a, b], Elemwise(inner)(a, b), arrays)
    compare([a, b], Elemwise(nested)(a, b), arrays)


# -- derivatives -------------------------------------------------------------------------------------------------------

#: Ops that are differentiated within (-1, 1), and Ops of positive numbers.
UNIT = {ps.ArcCos, ps.ArcSin, ps.ArcTanh, psm.Erfinv}
SMOOTH = [
    *(ps.Abs, ps.ArcTan, ps.Cos, ps.Cosh, ps.Exp, ps.Exp2, ps.Expm1, ps.Log, ps.Log10, ps.Log1p, ps.Log2, ps.Neg),
    *(ps.Reciprocal, ps.Sin, ps.Sinh, ps.Sqr, ps.Sqrt, ps.Tan, ps.Tanh, ps.ArcSinh, ps.Identity),
    *(psm.Erf, psm.Erfc, psm.Sigmoid, psm.Softplus, psm.GammaLn, psm.Psi, psm.I0, psm.I1, psm.Gamma),
]


def test_gradients_of_functions_of_one_argument():
    (x,) = vectors("float64")
    apply = {cls: Elemwise(OPS[cls.__name__]) for cls in [*SMOOTH, *UNIT, ps.ArcCosh, psm.Log1mexp]}
    outputs = [apply[cls](x) for cls in SMOOTH] + [apply[cls](x / 10) for cls in UNIT]
    outputs += [apply[ps.ArcCosh](x + 1), apply[psm.Log1mexp](-x), pt.clip(x, 0.5, 2.0)]
    for half in (outputs[::2], outputs[1::2]):  # PyTensor's fused Ops take up to 32 operands
        compare_grad([x], pt.concatenate(half), [np.array([0.3, 1.2, 2.7])], rtol=1e-8)


def test_gradients_of_functions_of_several_arguments():
    x, y = inputs = vectors("float64", "float64")
    outputs = [x + y, x - y, x * y, x / y, x**y, x**3, pt.maximum(x, y), pt.minimum(x, y), pt.arctan2(x, y), x % y]
    outputs += [pt.switch(x > y, x, y), pt.second(x, y), pt.clip(x, y / 2, y), pt.gammainc(2.0, y), pt.polygamma(1, x)]
    compare_grad(inputs, pt.concatenate(outputs), [np.array([0.3, 1.2, 2.7]), np.array([1.1, 0.7, 2.3])], rtol=1e-7)


def test_gradient_of_a_square_is_finite_at_zero():
    (x,) = vectors("float64")
    compare_grad([x], x**2 + pt.sqr(x) + x**3, [np.array([0.0, 1.0])])


def test_gradients_of_remainders():
    x, y = inputs = vectors("float64", "float64")
    points = [np.array([4.0, -4.0, 5.5, -5.5, 0.5]), np.array([2.0, 2.0, -2.0, 2.0, -3.0])]
    compare_grad(inputs, x % y, points)
    compare_grad(inputs, x // y + x, points)


def test_casts_have_no_derivative():
    (x,) = vectors("float64")
    compare_grad([x], x * x.astype("int64") + x.astype("uint32") * x, [np.array([1.5, 2.5])])


#: Complex functions of which the result depends on the sign of a zero, or whose parts are computed one by one.
BY_PARTS = [
    *(ps.ArcCos, ps.ArcCosh, ps.ArcSin, ps.ArcSinh, ps.ArcTan, ps.ArcTanh, ps.Exp, ps.Exp2, ps.Log10, ps.Log2),
    *(ps.Reciprocal, ps.Sqrt, psm.Log1mexp),
]


@pytest.mark.parametrize("op", BY_PARTS, ids=lambda cls: cls.__name__)
def test_derivatives_of_complex_functions(op):
    (z,) = vectors("complex128")
    points = np.array([0.3 + 0.4j, -0.3 + 0.2j, -0.2 - 1.3j, 0.6 + 0j])
    with jax.enable_x64(True):
        fn = pjl.as_jax_function([z], [Elemwise(OPS[op.__name__])(z)], gradient="jax")
        derivative = jax.grad(lambda x: fn(x[None])[0][0], holomorphic=True)
        got = jax.vmap(derivative)(jax.numpy.asarray(points))
        step = 1e-6
        slope = (fn(points + step)[0] - fn(points - step)[0]) / (2 * step)
    np.testing.assert_allclose(got, slope, rtol=1e-6)


def test_derivatives_of_complex_quotients_and_powers():
    z, w = vectors("complex128", "complex128")
    points = np.array([0.3 + 0.4j, -1.3 + 0.2j]), np.array([1.5 - 0.5j, 0.25 + 2j])
    with jax.enable_x64(True):
        fn = pjl.as_jax_function([z, w], [z / w + z**w + pt.maximum(z, w)], gradient="jax")
        got = jax.vmap(jax.grad(lambda x, y: fn(x[None], y[None])[0][0], (0, 1), holomorphic=True))(*points)
        step = 1e-6
        for i, slope in enumerate(got):
            up, down = ([p + s * step * (i == j) for j, p in enumerate(points)] for s in (1, -1))
            np.testing.assert_allclose(slope, (fn(*up)[0] - fn(*down)[0]) / (2 * step), rtol=1e-6)
