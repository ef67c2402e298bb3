"""Special functions: values against SciPy's in units of the last place, limits, poles, and derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.scalar.math as psm
import pytensor.tensor as pt
import pytest
from helpers import FULLGRAPH
from jax.extend.core import check_jaxpr
from pytensor.gradient import NullTypeGradError
from pytensor.tensor.elemwise import Elemwise
from scipy import special as sp

import pytensor_jaxpr_linker as pjl

SPECIAL = [0.0, np.nan, np.inf, -np.inf, -1.0, 1.0, 0.5, 2.0]
UNIT = np.linspace(0.001, 0.999, 41)
REAL = np.linspace(-9.7, 9.8, 61)
POSITIVE = np.exp(np.linspace(-20, 20, 81))


class Row(NamedTuple):
    """One Op: what SciPy calls it, arguments, and how many units in the last place of double precision it may be off.

    Where SciPy is less exact than this package, the number is SciPy's error; see `EXACT`.
    """

    op: ps.ScalarOp
    reference: Callable[..., Any]
    arguments: Sequence[np.ndarray]
    ulp: float
    #: What is absolute, next to zeros of oscillating functions.
    atol: float = 0.0
    #: The same two of single precision: half a unit, if double precision is rounded.
    single: tuple[float, float] = (2.0, 0.0)


def grid(*values: Any) -> list[np.ndarray]:
    """Return the columns of the Cartesian product of vectors."""
    return [a.ravel() for a in np.meshgrid(*map(np.asarray, values), indexing="ij")]


def columns(*parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return several grids one after the other."""
    return [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]


def log1mexp(x: np.ndarray) -> np.ndarray:
    """Return ``log(1 - exp(x))``."""
    return np.where(x < -np.log(2), np.log1p(-np.exp(x)), np.log(-np.expm1(x)))


SHAPES = [0.07, 0.5, 1.0, 2.5, 9.99, 10.0, 30.0, 150.0]
AROUND = np.exp(np.linspace(-1.2, 1.2, 11))
LIMITS = [0.0, np.inf, np.nan, -1.0, 0.5, 1.0]
ROWS = [
    Row(psm.erfc, sp.erfc, columns([REAL], [SPECIAL]), 60, single=(5.0, 0.0)),
    Row(psm.erfcx, sp.erfcx, columns([REAL / 4], [POSITIVE], [SPECIAL]), 10, single=(4.0, 0.0)),
    Row(psm.erfinv, sp.erfinv, columns([UNIT], [-UNIT], [1 - 1 / POSITIVE[41:]], [SPECIAL]), 4, single=(5.0, 0.0)),
    Row(psm.erfcinv, sp.erfcinv, columns([2 * UNIT], [10.0 ** -np.arange(1, 300, 9)], [SPECIAL]), 4, single=(5.0, 0.0)),
    Row(psm.ndtri_exp, sp.ndtri_exp, columns([-POSITIVE[:50]], [SPECIAL]), 60, 1e-15, single=(5.0, 0.0)),
    Row(psm.log1mexp, log1mexp, columns([-POSITIVE], [SPECIAL]), 4, single=(3.0, 0.0)),
    Row(psm.gamma, sp.gamma, columns([REAL], [POSITIVE], [[20.5, 100.3, 171.6, 172, -20.3]], [SPECIAL]), 10),
    Row(psm.gammaln, sp.gammaln, columns([np.linspace(0.1, 40, 60)], [POSITIVE], [SPECIAL]), 20, single=(7.0, 0.0)),
    Row(psm.gammaln, sp.gammaln, [-np.linspace(0.1, 20.05, 50)], 20, 1e-14, single=(7.0, 2e-6)),
    Row(
        psm.psi,
        sp.psi,
        columns([np.linspace(0.1, 40, 60)], [POSITIVE], [[1.4616321449683622]], [SPECIAL]),
        12,
        single=(4.0, 0.0),
    ),
    Row(psm.psi, sp.psi, [-np.linspace(0.1, 20.05, 50)], 80, 1e-13, single=(4.0, 2e-6)),
    Row(psm.tri_gamma, lambda x: sp.polygamma(1, x), columns([REAL], [POSITIVE], [SPECIAL]), 20, single=(6.0, 0.0)),
    Row(psm.polygamma, sp.polygamma, grid(np.arange(8), [*POSITIVE[::4], *SPECIAL]), 12),
    Row(psm.polygamma, sp.polygamma, grid(np.arange(1, 6), -np.linspace(0.1, 7.05, 9)), 100),
    Row(psm.i0, sp.i0, columns([REAL], [POSITIVE], [SPECIAL]), 12),
    Row(psm.i1, sp.i1, columns([REAL], [POSITIVE], [SPECIAL]), 12),
    Row(psm.gammainc, sp.gammainc, columns(grid(SHAPES, [0.0, 0.3, 3, 40]), grid(LIMITS, LIMITS)), 400),
    Row(psm.gammaincc, sp.gammaincc, columns(grid(SHAPES, [0.0, 0.3, 3, 40]), grid(LIMITS, LIMITS)), 400),
]
ROWS += [
    Row(op, reference, [a, a * factor], 2000)
    for op, reference in ((psm.gammainc, sp.gammainc), (psm.gammaincc, sp.gammaincc))
    for a, factor in [grid([*SHAPES, 199.0, 201.0, 1e4], AROUND[3:8])]
]
BETAS = grid([0.07, 0.5, 3.0, 12.0, 90.0], [0.2, 1.0, 9.0, 11.0, 70.0], [0.0, 1e-5, 0.1, 0.4, 0.8, 0.99, 1.0])
ORDERS = [0.0, 0.3, 0.5, 1.0, 2.5, 7.0, 21.3]
POINTS = [1e-3, 0.4, 1.0, 1.9, 2.1, 6.0, 24.0, 30.0, 90.0, 300.0]
ROWS += [
    Row(psm.gammaincinv, sp.gammaincinv, columns(grid(SHAPES[1:], [1e-9, *UNIT[::4]]), grid([1.0, -1.0], LIMITS)), 400),
    Row(
        psm.gammainccinv, sp.gammainccinv, columns(grid(SHAPES[1:], [1e-9, *UNIT[::4]]), grid([1.0, -1.0], LIMITS)), 400
    ),
    Row(
        psm.betainc,
        sp.betainc,
        columns(BETAS, grid([1.0, 0.0, -1.0, np.inf], [1.0, 0.0, np.inf], [-0.5, 0.5, 2.0])),
        400,
    ),
    Row(
        psm.betaincinv,
        sp.betaincinv,
        columns(
            grid([0.5, 3.0, 12.0, 90.0], [1.0, 9.0, 70.0], [0.0, 1e-5, 0.1, 0.8, 1.0, 2.0]),
            grid([1.0, np.inf], [1.0, np.inf, 0.0], [0.0, 0.5, 1.0, -0.5]),
        ),
        400,
    ),
    Row(psm.kve, sp.kve, columns(grid([*ORDERS, -2.5], POINTS), grid([0.0, 1.5], [0.0, -1.0, np.inf, np.nan])), 200),
    Row(psm.ive, sp.ive, columns(grid([*ORDERS, -1.0, -2.5], POINTS), grid([0, 1.5], [0, np.inf, np.nan])), 1000),
    Row(psm.ive, sp.ive, grid([0.0, 1.0, 2.0, -3.0, 0.5], [-0.3, -5.0, -40.0]), 200),
    Row(
        psm.jv,
        sp.jv,
        columns(grid([*ORDERS, -1.0, -2.3], POINTS), grid([0.0, 1.5, -1.5], [0.0, np.inf, -1.0])),
        60,
        4e-15,
    ),
    Row(psm.j0, sp.j0, columns([REAL], [POSITIVE[:60]], [SPECIAL]), 8, 1e-15),
    Row(psm.j1, sp.j1, columns([REAL], [POSITIVE[:60]], [SPECIAL]), 8, 1e-15),
    Row(
        psm.owens_t,
        sp.owens_t,
        grid([0.0, 0.3, -0.9, 2.0, 4.0, 9.0, np.inf, np.nan], [0, 0.2, -1, 1.7, 30, np.inf]),
        100,
    ),
    Row(
        psm.hyp2f1,
        sp.hyp2f1,
        columns(
            grid([0.5, 1.7], [0.3, 2.2], [1.1, 5.0], [0.0, 0.2, 0.8, 0.97, -0.6, -7.0]),
            np.transpose(
                [[-2, 2, 3, 1.5], [1, 1, 3, 1], [1, 2, 3, 1], [1, 2, -3, 0.5], [-2, 2, -3, 0.5], [1, 2, 3, 1.5]]
            ),
        ),
        400,
    ),
    Row(ps.cosh, np.cosh, columns([REAL * 73], [REAL], [SPECIAL]), 4, single=(4.0, 0.0)),
    Row(ps.sinh, np.sinh, columns([REAL * 73], [REAL], [SPECIAL]), 4, single=(4.0, 0.0)),
    Row(ps.exp2, np.exp2, columns([REAL * 100], [REAL], [SPECIAL]), 4),
]


@pytest.mark.parametrize("row", ROWS, ids=[f"{i}-{row.op}" for i, row in enumerate(ROWS)])
def test_values(row):
    """Both precisions in one function."""
    doubles = [np.asarray(x, "int64" if np.asarray(x).dtype.kind == "i" else "float64") for x in row.arguments]
    singles = [x.astype("float32") if x.dtype.kind == "f" else x for x in doubles]
    inputs = [pt.vector(dtype=x.dtype.name) for x in (*doubles, *singles)]
    outputs = [Elemwise(row.op)(*inputs[: len(doubles)]), Elemwise(row.op)(*inputs[len(doubles) :])]
    f = pytensor.function(inputs, outputs, mode=FULLGRAPH)
    for arguments, got, eps in zip((doubles, singles), f(*doubles, *singles), (2.0**-52, 2.0**-23), strict=True):
        with np.errstate(all="ignore"):
            want = row.reference(*(x.astype("float64") if x.dtype.kind == "f" else x for x in arguments))
            want = want.astype(got.dtype)
        # XLA flushes subnormal numbers to zero.
        ulp, atol = row.single if eps > 2.0**-52 else (max(row.ulp, 2), row.atol)
        np.testing.assert_allclose(got, want, rtol=ulp * eps, atol=max(atol, np.finfo(got.dtype).tiny))


#: Where SciPy 1.18 is off: an Op, arguments, and the value from mpmath with 40 digits.
EXACT = [
    (psm.gammaln, (1.9999945647317237,), -2.297936757918287173437e-06),
    (psm.gammaln, (1.0000044253463756,), -2.554363143688775172433e-06),
    (psm.erfcx, (-23.172343223737045,), 3.152863197629036713349e233),
    (psm.gammainc, (5522133.105149647, 5510937.743467818), 9.3391063765954415246e-7),
]


@pytest.mark.parametrize("op, arguments, want", EXACT, ids=[str(row[0]) for row in EXACT])
def test_values_that_scipy_misses(op, arguments, want):
    inputs = [pt.dscalar() for _ in arguments]
    np.testing.assert_allclose(
        pytensor.function(inputs, Elemwise(op)(*inputs), mode=FULLGRAPH)(*arguments), want, rtol=4e-15
    )


#: Gauss' hypergeometric function far from 0: a, b, c, z, and the value from mpmath with 60 digits. Among them are
#: differences of parameters that are integers or close to one, where SciPy 1.18 is off by up to all digits.
HYPERGEOMETRIC = [
    (0.5, 1.7, 1.1, -50.0, 0.09218276690155216453788),
    (0.5, 1.7, 1.1, -1000000.0, 0.0006455376388661910512499),
    (1.25, 1.25, 2.5, -10000000000.0, 1.142381883309196565698e-11),
    (2.0, 3.0, 1.5, -1e100, -1.249999999999999960243e-201),
    (1.5, 4.5, 2.25, -1e200, 1.589765412712520426998e-301),
    (-1.25, 2.75, 0.5, -300000.0, 50512636.97005395514795),
    (1.0, 1.0000009536743164, 2.5, -10000.0, 0.001289576845779310162201),
    (0.3, 0.3000000000009095, 1.75, -4000.0, 0.3069494419119093673158),
    (0.5, 1.4375, -2.5, -250.0, 0.004207773389996088688392),
    (1.5, 2.5, 1.5, -10000000.0, 3.162276869599102639531e-18),
    (3.0, 3.0, 2.0, -1140.0, -3.357141824901101974424e-10),
    (1.25, 1.25, 1.25, -16.0, 0.0289693565003207250885),
    (0.5, 1.5, 3.0, 0.9990234375, 1.690131089319989306145),
    (0.5, 1.5, 2.0, 0.9999999990686774, 13.72998127493897761648),
    (1.5, 2.5, 2.0, 0.9999999999999998, 1.72162439799236971632e31),
    (0.5, 0.75, 1.2500000000291038, 0.9375, 1.981735783209437955221),
    (0.25, 0.5, 2.78125, 0.99, 1.06549652235980761597),
    (2.5, -1.75, -2.25, 0.96875, -29907.7038533606638878),
    (0.25, 3.5, -1.5, 0.9999990463256836, 2.801502325894328866161e32),
    (5.5, 5.0, 4.000244140625, 0.875, 984128.9481720828949617),
    (5.25, -3.75, 9.313225746154785e-10, 0.5, 150255890.7558147818029),
]


def test_hypergeometric_function_far_from_zero():
    *arguments, want = np.array(HYPERGEOMETRIC).T
    inputs = [pt.vector(dtype="float64") for _ in arguments]
    f = pytensor.function(inputs, pt.hyp2f1(*inputs), mode=FULLGRAPH)
    np.testing.assert_allclose(f(*arguments), want, rtol=1e-13)


@pytest.mark.parametrize("shape", [(), (2, 0), (1, 3)])
def test_shapes(shape):
    x, y = pt.tensor(shape=shape, dtype="float64"), pt.tensor(shape=(None,) * len(shape), dtype="float64")
    outputs = [pt.gammaincinv(y, x), pt.kve(x, y)]
    values = np.full(shape, 0.25), np.full(shape, 1.5)
    f = pytensor.function([x, y], outputs, mode=FULLGRAPH)
    g = pytensor.function([x, y], outputs, mode="FAST_COMPILE")
    for got, want in zip(f(*values), g(*values), strict=True):
        assert got.shape == want.shape == shape
        np.testing.assert_allclose(got, want, rtol=1e-13)
    with jax.enable_x64(True):
        check_jaxpr(pjl.make_jaxpr(f, *values))


def test_small_integers_and_halves():
    n, h = pt.vector("n", dtype="int8"), pt.vector("h", dtype="float16")
    outputs = [pt.erfcx(n), pt.gammaln(n), pt.erfcx(h), pt.psi(h), pt.gammainc(n, h)]
    values = np.array([1, 2, 5], "int8"), np.array([0.5, 1.5, 3], "float16")
    f = pytensor.function([n, h], outputs, mode=FULLGRAPH)
    for output, got, want in zip(
        outputs, f(*values), pytensor.function([n, h], outputs, mode="FAST_COMPILE")(*values), strict=True
    ):
        assert got.dtype == want.dtype == output.type.dtype
        np.testing.assert_allclose(got, want, rtol=2 * np.finfo(got.dtype).eps)


def test_mixed_shapes_broadcast():
    x, y = pt.matrix("x"), pt.scalar("y")
    f = pytensor.function([x, y], [pt.gammainc(x, y), pt.ive(y, x), pt.owens_t(y, x)], mode=FULLGRAPH)
    values = np.array([[0.3, 4.0], [1.0, 9.0]]).astype(x.dtype), 2.0
    for got, want in zip(
        f(*values), (sp.gammainc(*values), sp.ive(2.0, values[0]), sp.owens_t(2.0, values[0])), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-13)


# -- derivatives -------------------------------------------------------------------------------------------------------


def compare_gradients(inputs, outputs, values, rtol):
    """Check `jax.grad` under `jax.vmap` against `pytensor.grad`.

    What takes time is to compile: so there is one program for all functions, and XLA is to optimize less. `jax.grad`
    alone is in the tests further down.
    """
    weights = np.cos(np.arange(1.0, 1.0 + len(outputs)))
    cost = sum(w * output.sum() for w, output in zip(weights, outputs, strict=True))
    reference = pytensor.function(inputs, pytensor.grad(cost, inputs), mode="FAST_COMPILE")
    f = pjl.as_jax_function(inputs, [cost], gradient="jax")
    rows = [np.stack([v, v[::-1]]) for v in values]
    with jax.enable_x64(True):
        gradient = jax.grad(lambda *args: f(*args)[0], argnums=tuple(range(len(inputs))))
        got = jax.jit(jax.vmap(gradient), compiler_options={"xla_backend_optimization_level": 0})(*rows)
    for i in range(2):
        for row, want in zip(got, reference(*(r[i] for r in rows)), strict=True):
            np.testing.assert_allclose(row[i], want, rtol=rtol, atol=1e-8)


def test_gradients_of_one_argument():
    x = pt.vector("x", dtype="float64")
    plain = [
        pt.erfcx,
        pt.gammaln,
        pt.psi,
        pt.tri_gamma,
        pt.gamma,
        pt.j0,
        pt.j1,
        pt.i0,
        pt.i1,
        pt.cosh,
        pt.sinh,
        pt.erfc,
    ]
    outputs = [op(x) for op in plain]
    outputs += [pt.erfinv(x / 4), pt.erfcinv(x / 2), pt.log1mexp(-x), Elemwise(psm.ndtri_exp)(-x)]
    compare_gradients([x], outputs, [np.array([0.3, 1.2, 2.7])], rtol=1e-10)


def test_gradients_of_several_arguments():
    x, y = inputs = [pt.vector(name, dtype="float64") for name in "xy"]
    outputs = [
        pt.gammainc(x, y),
        pt.gammaincc(x, y),
        pt.owens_t(x, y),
        pt.betainc(x, y, 0.3),
        pt.hyp2f1(x, y, x + 2, 0.4),
    ]
    values = [np.array([0.3, 1.2, 2.7]), np.array([1.1, 0.7, 2.3])]
    compare_gradients(inputs, outputs, values, rtol=1e-8)


def test_gradients_by_the_last_argument():
    """The parameters are double precision: PyTensor computes functions of float32 constants alone in float32."""
    x = pt.vector("x", dtype="float64")
    a, b = np.float64(0.8), np.float64(2.5)
    outputs = [pt.kve(a, x), pt.ive(a, x), pt.jv(b, x), pt.polygamma(2, x), pt.gammaincinv(b, x / 4)]
    outputs += [pt.gammainccinv(a, x / 4), pt.betaincinv(b, a, x / 4), pt.hyp2f1(a, b, 2 * b, -x)]
    compare_gradients([x], outputs, [np.array([0.3, 1.2, 2.7])], rtol=1e-9)


def test_gradient_that_pytensor_has_not():
    """`jax.grad` raises what `pytensor.grad` raises."""
    v, x = pt.dscalar("v"), pt.dscalar("x")
    with pytest.raises(NullTypeGradError):
        pytensor.grad(pt.kve(v, x), v)
    f = pjl.as_jax_function([v, x], [pt.kve(v, x)])
    with jax.enable_x64(True):
        np.testing.assert_allclose(jax.grad(lambda x: f(0.5, x)[0])(1.5), -sp.kve(0.5, 1.5) / 3, rtol=1e-12)
        with pytest.raises(NullTypeGradError, match="input 0"):
            jax.grad(lambda v: f(v, 1.5)[0])(0.5)


def test_derivatives_of_derivatives():
    """Forward over reverse, and reverse over reverse where PyTensor's derivative has no loop."""
    x = pt.dscalar("x")
    cost = pt.erfcx(x) + pt.gammaln(x) + pt.kve(1.5, x)
    f = pjl.as_jax_function([x], [cost], gradient="jax")
    want = pytensor.function([x], pytensor.grad(pytensor.grad(cost, x), x), mode="FAST_COMPILE")(0.8)
    with jax.enable_x64(True):
        value = jax.numpy.asarray(0.8)
        np.testing.assert_allclose(jax.hessian(lambda x: f(x)[0])(value), want, rtol=1e-11)
        np.testing.assert_allclose(jax.grad(jax.grad(lambda x: f(x)[0]))(value), want, rtol=1e-11)


def test_gradient_is_finite_where_another_branch_is_not():
    x = pt.vector("x", dtype="float64")
    cost = pt.log1mexp(x).sum() + pt.erfcx(-x).sum() + pt.gammaln(-x).sum()
    gradient = pytensor.function([x], pytensor.grad(cost, x), mode="FAST_COMPILE")
    values = np.array([-1e-12, -700.0, -3.0, -1.0])
    f = pjl.as_jax_function([x], [cost])
    with jax.enable_x64(True):
        got = jax.grad(lambda x: f(x)[0])(values)
    np.testing.assert_allclose(got, gradient(values), rtol=1e-12)
