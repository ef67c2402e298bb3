"""`ScalarLoop`: a loop for each element, and the gradients of special functions that PyTensor writes with it."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import FULLGRAPH, compare
from pytensor.scalar import float64, int64
from pytensor.scalar.basic import exp
from pytensor.scalar.loop import ScalarLoop
from pytensor.tensor.elemwise import Elemwise

import pytensor_jaxpr_linker as pjl

# FAST_COMPILE's C code complains where no BLAS is installed.
pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

X = np.array([[0.5, 1.5, 3.0], [0.1, 20.0, 7.0]])


def power_loop():
    x, y, k = float64("x"), float64("y"), float64("k")
    return ScalarLoop(init=[x, y], constant=[k], update=[x * k + y, y + 1.0])


def halving_loop():
    x, i, k = float64("x"), int64("i"), float64("k")
    return ScalarLoop(init=[x, i], constant=[k], update=[x / 2, i + 1], until=(x / 2) < k)


def test_scalars():
    n, x = pt.lscalar("n"), pt.dscalar("x")
    for op, init in ((power_loop(), 1.0), (halving_loop(), np.int64(0))):
        outs = Elemwise(op)(n, x, pt.constant(init), pt.constant(0.3))
        for steps in (1, 4):
            compare([n, x], outs, [steps, 2.5])


def test_elements_stop_by_themselves():
    x, k, n = pt.dmatrix("x"), pt.dvector("k"), pt.lvector("n")
    limits = np.array([0.4, 2.0, 0.01])
    compare([x, k], Elemwise(halving_loop())(pt.constant(50), x, pt.constant(0), k), [X, limits])
    compare([n, x, k], Elemwise(halving_loop())(n, x, pt.constant(0), k), [np.array([1, 2, 30]), X, limits])
    compare([n, x], Elemwise(power_loop())(n, x, x, pt.constant(0.9)), [np.array([1, 0, 5]), X])
    f = pytensor.function([x, k], Elemwise(halving_loop())(pt.constant(50), x, pt.constant(0), k), mode=FULLGRAPH)
    assert [e.primitive.name for e in pjl.make_jaxpr(f, X, limits).eqns].count("while") == 1


def test_no_steps_are_no_failure():
    """The Op documents it so; its Python implementation says otherwise."""
    x = pt.dvector("x")
    outs = Elemwise(halving_loop())(pt.constant(0), x, pt.constant(3), pt.constant(0.1))
    y, i, done = pytensor.function([x], outs, mode=FULLGRAPH)(X[0])
    np.testing.assert_array_equal(y, X[0])
    np.testing.assert_array_equal(i, [3, 3, 3])
    assert done.all()


def test_functions_inside():
    x = float64("x")
    op = ScalarLoop(init=[x], update=[exp(-x)])
    v = pt.dmatrix("v")
    compare([v], Elemwise(op)(pt.constant(20), v), [X])


@pytest.mark.parametrize(
    "function, point",
    [
        (lambda a, x: pt.gammainc(a, x), (X, X[::-1] + 0.2)),
        (lambda a, x: pt.gammaincc(a, x), (X, X[::-1] + 0.2)),
        (lambda a, x: pt.betainc(a, a + 1, x), (X, np.clip(X[::-1] / 30, 0.05, 0.9))),
    ],
    ids=["gammainc", "gammaincc", "betainc"],
)
def test_gradients_of_special_functions(function, point):
    a, x = pt.dmatrices("a", "x")
    compare([a, x], pytensor.grad(function(a, x).sum(), [a, x]), list(point), rtol=1e-6)


def test_gradient_of_2f1():
    a, b, c, z = pt.dvectors("a", "b", "c", "z")
    out = pt.hyp2f1(a, b, c, z).sum()
    values = [np.array(v) for v in ([1.5, 0.5], [2.0, 1.2], [3.5, 2.5], [0.3, -0.4])]
    compare([a, b, c, z], pytensor.grad(out, [a, b, c]), values, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_of_the_state(dtype):
    a = pt.matrix("a", dtype=dtype)
    compare([a], pytensor.grad(pt.gammainc(a, pt.constant(2.0, dtype=dtype)).sum(), a), [X.astype(dtype)], rtol=1e-4)
