"""Ops of `pymc.distributions.dist_math`: splines and Bessel functions."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import FULLGRAPH, compare, compare_error, compare_grad
from scipy.interpolate import CubicSpline, InterpolatedUnivariateSpline, LSQUnivariateSpline

import pytensor_jaxpr_linker as pjl

pm = pytest.importorskip("pymc")
dist_math = pytest.importorskip("pymc.distributions.dist_math")
# PyMC's Op has no `pullback` but an older method.
pytestmark = pytest.mark.filterwarnings("ignore:SplineWrapper should implement:FutureWarning")

KNOTS = np.array([-1.0, 0.0, 0.5, 2.0, 3.0, 3.5])
HEIGHTS = np.array([0.0, 2.0, 1.0, 4.0, -1.0, 0.5])
# Ends, knots, between them, beyond.
POINTS = np.array([-1.0, -0.3, 0.0, 0.5, 1.7, 3.0, 3.2, 3.5, -1.5, 4.0])


def splines(degree):
    """Return one for each way to go beyond the knots, and one of two pieces."""
    made = [
        InterpolatedUnivariateSpline(KNOTS, HEIGHTS, k=degree, ext=ext) for ext in ("extrapolate", "zeros", "const")
    ]
    return [*made, LSQUnivariateSpline(KNOTS, HEIGHTS, [1.0], k=degree, ext="zeros")]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_splines_and_their_derivatives(dtype):
    x = pt.tensor("x", dtype=dtype, shape=(None,))
    outputs = []
    for degree in (1, 2, 3):
        for spline in splines(degree):
            op = dist_math.SplineWrapper(spline)
            outputs += [op(x), op.grad_op(x)]
    compare([x], outputs, [POINTS.astype(dtype)], rtol=1e-11 if dtype == "float64" else 1e-6, atol=1e-12)


def test_shapes_integers_and_nan():
    op = dist_math.SplineWrapper(splines(3)[3])  # its values at integers are none
    x, y, z, n = pt.dscalar(), pt.dmatrix(), pt.dvector(), pt.lvector()
    values = [np.array(0.7), POINTS.reshape(2, 5), np.array([np.nan, 1.0]), np.arange(-2, 5)]
    compare([x, y, z, n], [op(x), op(y), op(z), op(n)], values)
    compare([z], op(z), [np.zeros(0)])


@pytest.mark.parametrize("which", range(4))
def test_jaxs_derivative_is_pytensors(which):
    x = pt.dvector("x")
    compare_grad([x], dist_math.SplineWrapper(splines(2)[which])(x), [POINTS])


def test_beyond_the_knots_may_be_an_error():
    op, x, n = (
        dist_math.SplineWrapper(InterpolatedUnivariateSpline(KNOTS, HEIGHTS, ext="raise")),
        pt.dvector(),
        pt.dscalar(),
    )
    compare([x, n], [op(x), op(n)], [POINTS[:8], 1.0])
    for bad in (-1.5, 4.0):
        compare_error([x], op(x), [np.array([1.0, bad])], match="Found x value not in the domain")
        compare_error([n], op(n), [bad], match="Found x value not in the domain")


def test_other_functions_run_on_the_host():
    x = pt.dvector()
    y = dist_math.SplineWrapper(CubicSpline(KNOTS, HEIGHTS))(x)
    with pytest.raises(pjl.GraphBreakError, match="its spline is a CubicSpline"):
        pytensor.function([x], y, mode=FULLGRAPH)
    with pytest.warns(pjl.GraphBreakWarning):
        compare([x], y, [POINTS])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_bessel_functions(dtype):
    """PyMC gives a derivative of the function of order 0 alone."""
    x, n = pt.tensor("x", dtype=dtype, shape=(None,)), pt.lvector("n")
    values = np.array([0.0, 0.5, -0.5, 3.0, -8.1, 700.0, np.inf], dtype)
    zero, one = dist_math.i0e(x), dist_math.i1e(x)
    slope = pytensor.grad(zero.sum(), x)
    rtol, atol = (1e-14, 1e-16) if dtype == "float64" else (1e-6, 1e-7)  # the derivative is a difference
    compare([x, n], [zero, one, slope, dist_math.i0e(n)], [values, np.arange(-2, 3)], rtol=rtol, atol=atol)
    compare([x], [zero, one], [values[:0]])


def test_jaxs_derivative_of_bessel_functions():
    x = pt.dvector("x")
    compare_grad([x], dist_math.i0e(x), [np.array([0.5, -0.5, 3.0, 8.1])])


@pytest.mark.parametrize(
    "make",
    [
        lambda: pm.VonMises("x", pm.Normal("mu"), pm.HalfNormal("kappa")),
        lambda: pm.Rice("x", nu=pm.HalfNormal("nu"), sigma=1.0),
        lambda: pm.Interpolated("x", KNOTS, np.abs(HEIGHTS) + 1),
    ],
)
def test_densities_are_one_program(make):
    with pm.Model() as model:
        make()
    outputs, point = [model.logp(), model.dlogp()], model.initial_point()
    functions = [model.compile_fn(outputs, inputs=model.value_vars, mode=mode) for mode in (FULLGRAPH, "FAST_COMPILE")]
    for got, want in zip(*(f(point) for f in functions), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
