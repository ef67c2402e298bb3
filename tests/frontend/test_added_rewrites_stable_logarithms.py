"""Logarithms of probabilities near 0 and 1: stacked, read twice, or of the probit link, compared with mpmath."""

from __future__ import annotations

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from mpmath import diff, exp, log, log1p, mp, mpf, ncdf
from pytensor.tensor.basic import Join, MakeVector

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.frontend.pregrad import pregrad

POINTS = [-800.0, -60.0, -38.0, -8.5, -1.0, -1e-9, 0.0, 0.7, 5.0, 27.0, 37.0, 60.0, 800.0]
SQRT_HALF = np.sqrt(0.5)


@pytest.fixture(autouse=True)
def precision():
    """Work with 64 bits in JAX."""
    with jax.enable_x64(True):
        yield


def probit(x):
    return pt.erfc(-x * SQRT_HALF) / 2


def sigmoid(x):
    return 1 / (1 + exp(-x))


def log_sigmoid(x):
    return -log1p(exp(-x))


def log_normal(x):
    return log(ncdf(x)) if x < 0 else log1p(-ncdf(-x))


def stacked(p):
    """Return the logarithms of a probability and its complement, by the vector of both."""
    both = pt.log(pt.stack([p, 1 - p]))
    return both[0] - 2 * both[1]


def expanded(p):
    both = pt.log(pt.stack([1 - p, p])[None, :, None])
    return both[0, 1, 0] - 2 * both[0, 0, 0]


def joined(p):
    both = pt.log(pt.concatenate([p[None, None], 1 - p[None, None]], axis=1))
    return both[0, 0] - 2 * both[0, 1]


def selected(p):
    """Return the logarithm of a row of a matrix that an index chooses."""
    return pt.log(pt.stack([p, 1 - p, pt.constant(0.0)])[pt.as_tensor([0, 1, 1])]).sum()


def transitions(p):
    """Return a sum over the logarithms of a matrix of transitions with the rows ``[p, 1 - p]`` and ``[1 - p, p]``."""
    logs = pt.log(pt.stack([pt.stack([p, 1 - p]), pt.stack([1 - p, p])]))
    return logs[0, 0] + 2 * logs[1, 0]


GRAPHS = {
    "transitions": (lambda x: transitions(pt.sigmoid(x)), lambda x: log_sigmoid(x) + 2 * log_sigmoid(-x)),
    "stacked sigmoids": (lambda x: stacked(pt.sigmoid(x)), lambda x: log_sigmoid(x) - 2 * log_sigmoid(-x)),
    "expanded sigmoids": (lambda x: expanded(pt.sigmoid(x)), lambda x: log_sigmoid(x) - 2 * log_sigmoid(-x)),
    "joined sigmoids": (lambda x: joined(pt.sigmoid(x)), lambda x: log_sigmoid(x) - 2 * log_sigmoid(-x)),
    "normal survival": (lambda x: pt.log(pt.erfc(x * SQRT_HALF)), lambda x: log_normal(-x) + log(2)),
    "probit": (lambda x: pt.log(probit(x)), log_normal),
    "complement of probit": (lambda x: pt.log1p(-probit(x)), lambda x: log_normal(-x)),
    "one minus probit": (lambda x: pt.log(1 - probit(x)), lambda x: log_normal(-x)),
    "stacked probits": (lambda x: stacked(probit(x)), lambda x: log_normal(x) - 2 * log_normal(-x)),
    "selected sigmoids": (lambda x: selected(pt.sigmoid(x)), lambda x: log_sigmoid(x) + 2 * log_sigmoid(-x)),
    "selected exponential": (
        lambda x: pt.log(pt.exp(pt.stack([x, -(x**2)]))[pt.as_tensor([1, 0, 1])]).sum(),
        lambda x: x - 2 * x**2,
    ),
    "free beta": (
        lambda x: (p := pt.sigmoid(x)) * 0 + 2 * pt.log(p) + 3 * pt.log1p(-1 * p),
        lambda x: 2 * log_sigmoid(x) + 3 * log_sigmoid(-x),
    ),
    "complement read twice": (lambda x: pt.log(q := 1 - pt.sigmoid(x)) + q, lambda x: log_sigmoid(-x) + sigmoid(-x)),
}


#: Graphs whose operand may be a vector: rewrites of scalars and of vectors differ.
ELEMENTWISE = [
    "normal survival",
    "probit",
    "complement of probit",
    "one minus probit",
    "free beta",
    "complement read twice",
]


@pytest.mark.parametrize(
    ("name", "kind"), [*((n, pt.dscalar) for n in GRAPHS), *((n, pt.dvector) for n in ELEMENTWISE)]
)
def test_beside_mpmath(name, kind):
    make, exact = GRAPHS[name]
    x = kind("x")
    y = make(x).sum()
    with mp.workdps(100):
        wanted = [(exact(mpf(v)), diff(exact, mpf(v), h=mpf(10) ** -40)) for v in POINTS]
    f = jax.value_and_grad(pjl.as_jax_function([x], y))
    atol = 1e-15 if name == "normal survival" else 1e-300  # erfc is 1 at 0, and its digits below that are gone
    for v, (value, slope) in zip(POINTS, wanted, strict=True):
        got, grad = f(np.array([v])) if x.type.ndim else f(v)
        np.testing.assert_allclose(got, float(value), rtol=1e-12, atol=atol, err_msg=f"value at {v}")
        np.testing.assert_allclose(np.ravel(grad)[0], float(slope), rtol=1e-12, atol=1e-300, err_msg=f"slope at {v}")


def test_values_of_functions_are_pytensors():
    """Only graphs that are differentiated are rewritten so."""
    x = pt.dvector("x")
    y = pt.log(pt.stack([1 - pt.sigmoid(x), pt.sigmoid(x)]))
    points = np.array([-2.0, 0.5, 36.5])
    f, wanted = (pytensor.function([x], y, mode=mode) for mode in ("JAXPR", "FAST_COMPILE"))
    np.testing.assert_allclose(f(points), wanted(points), rtol=1e-12)
    assert any(isinstance(node.op, Join) for node in f.maker.fgraph.toposort())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_other_dtypes_and_constants_stay(dtype):
    x, i = pt.tensor("x", dtype=dtype, shape=()), pt.lscalar("i")
    constants = pt.log(pt.stack([pt.constant(0.5, dtype=dtype), pt.constant(2, dtype=dtype)]))
    mixed = pt.log(pt.stack([x * 2, i.astype(dtype)]))
    (found,) = pregrad([(mixed * constants).sum()])
    assert found.type.dtype == dtype
    given = {x: np.asarray(3, dtype), i: 5}
    wanted = np.log(6) * np.log(0.5) + np.log(5) * np.log(2)
    np.testing.assert_allclose(found.eval(given, mode="FAST_COMPILE"), wanted, rtol=1e-6)


def test_vectors_that_stay():
    """Logarithms of integers have another dtype, and logarithms of inputs are not simpler."""
    i, v = pt.lscalar("i"), pt.dvector("v")
    for parts in ([i, i + 1], [v[0], v[2]]):
        (found,) = pregrad([pt.log(pt.stack(parts))])
        assert found.owner.op == pt.log and isinstance(found.owner.inputs[0].owner.op, MakeVector)


def test_what_an_index_leaves_out_may_be_zero():
    x, i = pt.dscalar("x"), pt.lvector("i")
    f = jax.grad(pjl.as_jax_function([x, i], pt.log(pt.stack([pt.maximum(x, 0), x**2])[i]).sum()))
    np.testing.assert_allclose(f(-2.0, np.array([1, 1])), -2.0)


@pytest.mark.parametrize("name", ["probit", "one minus probit", "stacked sigmoids"])
def test_float32(name):
    """Values and slopes of a float32 graph are finite in both tails."""
    x = pt.fscalar("x")
    with pytensor.config.change_flags(floatX="float32"):
        p = pt.sigmoid(x) if name == "stacked sigmoids" else pt.erfc(-x * np.float32(SQRT_HALF)) / np.float32(2)
        y = {"probit": pt.log(p), "one minus probit": pt.log(np.float32(1) - p)}.get(name)
        y = pt.log(pt.stack([p, np.float32(1) - p])).sum() if y is None else y
    assert y.type.dtype == "float32"
    exact = {
        "probit": log_normal,
        "one minus probit": lambda v: log_normal(-v),
        "stacked sigmoids": lambda v: log_sigmoid(v) + log_sigmoid(-v),
    }[name]
    f = jax.value_and_grad(pjl.as_jax_function([x], y))
    for v in (-60.0, -14.0, -0.5, 0.0, 3.0, 60.0):
        with mp.workdps(100):
            wanted = float(exact(mpf(v))), float(diff(exact, mpf(v), h=mpf(10) ** -40))
        np.testing.assert_allclose(f(np.float32(v)), wanted, rtol=1e-4, atol=1e-37, err_msg=f"at {v}")


def test_infinite_and_missing_numbers():
    x = pt.dscalar("x")
    f = pjl.as_jax_function([x], stacked(pt.sigmoid(x)))
    assert np.isnan(f(np.nan))
    np.testing.assert_array_equal([f(np.inf), f(-np.inf)], [np.inf, -np.inf])
    g = pjl.as_jax_function([x], pt.log(probit(x)))
    assert np.isnan(g(np.nan))
    np.testing.assert_array_equal([g(np.inf), g(-np.inf)], [0, -np.inf])
