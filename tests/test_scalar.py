"""Scalar Ops: every table entry against PyTensor, for every kind of dtype and for special values."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.scalar.math as psm
import pytensor.tensor as pt
import pytest
from helpers import FULLGRAPH, compare, compare_grad
from pytensor.scalar.basic import Composite
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import MulWithoutZeros

from pytensor_jaxpr_linker.emit.scalar import COMPARISONS, ONE_PRIMITIVE, RULES

FLOATS = ["float32", "float64"]
INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
COMPLEX = ["complex64", "complex128"]

#: An Op of each class that is sampled on all values of all dtypes that PyTensor defines it for.
ANYWHERE = {
    ps.Abs: ps.abs,
    ps.Add: ps.add,
    ps.AND: ps.and_,
    ps.ArcTan: ps.arctan,
    ps.ArcTan2: ps.arctan2,
    ps.Cast: ps.convert_to_float64,
    ps.Ceil: ps.ceil,
    ps.Clip: ps.clip,
    ps.Conj: ps.conj,
    ps.Cos: ps.cos,
    ps.Cosh: ps.cosh,
    ps.EQ: ps.eq,
    ps.Exp: ps.exp,
    ps.Exp2: ps.exp2,
    ps.Expm1: ps.expm1,
    ps.Floor: ps.floor,
    ps.GE: ps.ge,
    ps.GT: ps.gt,
    ps.Identity: ps.identity,
    ps.Imag: ps.imag,
    ps.IntDiv: ps.int_div,
    ps.Invert: ps.invert,
    ps.IsInf: ps.isinf,
    ps.IsNan: ps.isnan,
    ps.LE: ps.le,
    ps.LT: ps.lt,
    ps.Log: ps.log,
    ps.Log10: ps.log10,
    ps.Log1p: ps.log1p,
    ps.Log2: ps.log2,
    ps.Maximum: ps.maximum,
    ps.Minimum: ps.minimum,
    ps.Mod: ps.mod,
    ps.Mul: ps.mul,
    MulWithoutZeros: MulWithoutZeros(ps.upcast_out, name="mul_without_zeros"),
    ps.Neg: ps.neg,
    ps.NEQ: ps.neq,
    ps.OR: ps.or_,
    ps.Real: ps.real,
    ps.Reciprocal: ps.reciprocal,
    ps.RoundHalfAwayFromZero: ps.round_half_away_from_zero,
    ps.RoundHalfToEven: ps.round_half_to_even,
    ps.Second: ps.second,
    ps.Sign: ps.sign,
    ps.Sin: ps.sin,
    ps.Sinh: ps.sinh,
    ps.Sqr: ps.sqr,
    ps.Sqrt: ps.sqrt,
    ps.Sub: ps.sub,
    ps.Switch: ps.switch,
    ps.Tan: ps.tan,
    ps.Tanh: ps.tanh,
    ps.TrueDiv: ps.true_div,
    ps.Trunc: ps.trunc,
    ps.XOR: ps.xor,
    psm.Erf: psm.erf,
    psm.Erfc: psm.erfc,
    psm.Sigmoid: psm.sigmoid,
    psm.Softplus: psm.softplus,
    ps.ArcCos: ps.arccos,
    ps.ArcCosh: ps.arccosh,
    ps.ArcSin: ps.arcsin,
    ps.ArcSinh: ps.arcsinh,
    ps.ArcTanh: ps.arctanh,
    psm.Erfinv: psm.erfinv,
    psm.Gamma: psm.gamma,
    psm.GammaLn: psm.gammaln,
    psm.Psi: psm.psi,
    psm.TriGamma: psm.tri_gamma,
    psm.I0: psm.i0,
    psm.I1: psm.i1,
    psm.Log1mexp: psm.log1mexp,
}
#: Classes that have tests of their own, below, in test_special.py or in test_pymc_math.py.
ELSEWHERE = {
    *(ps.Complex, ps.Pow, psm.BetaInc, psm.BetaIncInv, psm.Erfcinv, psm.Erfcx, psm.GammaInc, psm.GammaIncC),
    *(psm.GammaIncCInv, psm.GammaIncInv, psm.Hyp2F1, psm.Ive, psm.J0, psm.J1, psm.Jv, psm.Kve, psm.NdtriExp),
    *(psm.Owens_t, psm.PolyGamma),
    *(f"pymc.distributions.dist_math.{name}" for name in ("I0e", "I1e")),
}


def test_every_rule_has_a_sample():
    assert ANYWHERE.keys() | ELSEWHERE == ONE_PRIMITIVE.keys() | COMPARISONS.keys() | RULES.keys()


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


#: What PyTensor's own rewrites or `impl` cannot do: an Op and the kinds of dtype to leave it out for.
REFERENCE_FAILS = {
    MulWithoutZeros: "iu",  # its `impl` overflows a Python integer
    ps.ArcTan2: "c",
    ps.Cast: "c",
    ps.Conj: "b",
    ps.IntDiv: "c",
    ps.Mod: "c",
    ps.Neg: "u",
    psm.GammaLn: "c",
    psm.I0: "c",
    psm.I1: "c",
    psm.Sigmoid: "c",
    psm.Softplus: "bc",  # of booleans it is computed in float16
}
#: What XLA does not know.
REFUSED = {ps.GE, ps.GT, ps.LE, ps.LT, psm.Erf, psm.Gamma, psm.Psi}
#: Ops whose zero may have the other sign.
UNSIGNED_ZERO = {ps.IntDiv, ps.Maximum, ps.Minimum, ps.Mod, ps.RoundHalfAwayFromZero, ps.Sign, psm.Erfinv, psm.I1}
#: Points at which an Op is known to differ: XLA ignores the sign of a zero, and has another limit.
DIFFERENT_AT = {psm.Gamma: -0.0, psm.GammaLn: -np.inf, psm.Psi: -0.0}


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


def arity(op):
    return {ps.Switch: 3}.get(type(op), op.nin if op.nin > 0 else 2)


def defined(op, inputs):
    """Return the Op's result, or None where PyTensor does not define it."""
    kind = np.dtype(inputs[0].type.dtype).kind
    if kind in REFERENCE_FAILS.get(type(op), "") or (kind == "c" and type(op) in REFUSED):
        return None
    try:
        return Elemwise(op)(*inputs)
    except TypeError:
        return None


@pytest.mark.parametrize("operands", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "uint8", "uint32", *FLOATS, "complex128"])
def test_values_and_dtypes(dtype, operands):
    values = values_of(dtype)[: 8 if operands == 3 else None]
    inputs, arrays = vectors(*[dtype] * operands), grid(*[values] * operands)
    samples = {cls: defined(op, inputs) for cls, op in ANYWHERE.items() if arity(op) == operands}
    samples = {cls: output for cls, output in samples.items() if output is not None}
    expected = evaluate(inputs, list(samples.values()), arrays, "FAST_COMPILE")
    results = evaluate(inputs, list(samples.values()), arrays, "JAXPR")
    for cls, want, got in zip(samples, expected, results, strict=True):
        assert got.dtype == want.dtype == samples[cls].type.dtype, cls
        keep = np.full(want.shape, True)
        if cls in DIFFERENT_AT and dtype in FLOATS:
            point = np.asarray(DIFFERENT_AT[cls], dtype)
            keep = ~((arrays[0] == point) & (np.signbit(arrays[0]) == np.signbit(point)))
        tiny = np.finfo(want.dtype).tiny if want.dtype.kind in "fc" else 0
        np.testing.assert_allclose(got[keep], want[keep], rtol=tolerance(want.dtype), atol=tiny, err_msg=str(cls))
        if want.dtype.kind == "f" and cls not in UNSIGNED_ZERO:
            zero = keep & (want == 0)
            np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]), err_msg=f"sign of zero: {cls}")


@pytest.mark.parametrize("cls", sorted(REFUSED, key=lambda cls: cls.__name__), ids=lambda cls: cls.__name__)
def test_complex_is_refused(cls):
    inputs = vectors(*["complex128"] * arity(ANYWHERE[cls]))
    with pytest.raises(NotImplementedError, match="of complex numbers"):
        pytensor.function(inputs, Elemwise(ANYWHERE[cls])(*inputs), mode=FULLGRAPH)(
            *[np.ones(1, "complex128")] * len(inputs)
        )


def test_mul_without_zeros_of_integers():
    inputs = vectors("int64", "int64")
    check(inputs, [Elemwise(ANYWHERE[MulWithoutZeros])(*inputs)], grid([0, 1, -2, 3], [0, 1, -2, 3]))


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8"])
def test_mixed_dtypes(dtype):
    x, y = inputs = vectors(dtype, "float32")
    outputs = [x + y, x * y, x - y, x / y, x // y, x % y, pt.maximum(x, y), x < y, pt.eq(x, y), pt.switch(x, y, x)]
    check(inputs, outputs, grid(values_of(dtype)[:-2], np.array([0.5, -1.5, 2, 3], "float32")))


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


@pytest.mark.parametrize("dtype", [*INTS, "bool", *FLOATS, *COMPLEX])
def test_cast(dtype):
    (x,) = vectors(dtype)
    values = values_of(dtype)
    targets = [*COMPLEX] if dtype in COMPLEX else [*INTS, "bool", "float16", *FLOATS, *COMPLEX]
    if dtype in FLOATS:
        # What C truncates to int32 and wraps; beyond that, C and so NumPy define nothing.
        values = np.array([0, -0.0, 0.5, -0.5, 1.9, -1.9, 100.7, -100.7, 300.5, -300.5, 70000, -70000, 2e9], dtype)
        targets.remove("float16")
    check([x], [pt.cast(x, t) for t in targets], [values])


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

#: Ops that are differentiated within (-1, 1), and those that are for positive numbers.
UNIT = {ps.ArcCos, ps.ArcSin, ps.ArcTanh, psm.Erfinv}
SMOOTH = [
    *(ps.Abs, ps.ArcTan, ps.Cos, ps.Cosh, ps.Exp, ps.Exp2, ps.Expm1, ps.Log, ps.Log10, ps.Log1p, ps.Log2, ps.Neg),
    *(ps.Reciprocal, ps.Sin, ps.Sinh, ps.Sqr, ps.Sqrt, ps.Tan, ps.Tanh, ps.ArcSinh, ps.Identity),
    *(psm.Erf, psm.Erfc, psm.Sigmoid, psm.Softplus, psm.GammaLn, psm.Psi, psm.I0, psm.I1, psm.Gamma),
]


def test_gradients_of_functions_of_one_argument():
    (x,) = vectors("float64")
    apply = {cls: Elemwise(ANYWHERE[cls]) for cls in [*SMOOTH, *UNIT, ps.ArcCosh, psm.Log1mexp]}
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
