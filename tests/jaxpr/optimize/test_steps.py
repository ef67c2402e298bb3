"""Comparisons of rounding errors have one answer, whoever reads it (`jaxpr/optimize/steps.py`)."""

from __future__ import annotations

import jax
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.pymc import logdensity

#: Rows; their squares are below and above 4,096, 16,384 and 65,536 numbers.
SIZES = [6, 40, *(pytest.param(n, marks=pytest.mark.nightly) for n in (70, 130, 260))]

#: What jumps where the distance of two equal points is above zero.
STEPS = {
    "ge": lambda d: d >= 0,
    "both": lambda d: (d >= 0) & (d <= np.inf),
    "sign": pt.sign,
    "floor": pt.floor,
    "ceil": pt.ceil,
    "choice": lambda d: pt.switch(d > 0, 1.0, 2.0),
    "other sign": lambda d: -d > 0,
    "moved": lambda d: d.T > 0,
    "integer": lambda d: pt.cast(d * 2**60, "int64"),
}


def squared_distances(x, y):
    """As PyMC's kernels compute them: rounding errors where two points are equal."""
    return -2 * x[:, None] * y[None, :] + (x**2)[:, None] + (y**2)[None, :]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", STEPS)
def test_all_readers_see_one_answer(name, n):
    x, y = pt.dvectors("xy")
    step = STEPS[name](squared_distances(x * 1.1, y * 1.1)).astype("float64")
    readers = [step, step.sum(axis=0), step.sum(axis=1), step.sum(), (step + 1).T, step.max(axis=0), step[::-1].sum(1)]
    values = np.random.default_rng(n).normal(size=n)
    function = pytensor.function([x, y], readers, mode="JAXPR")
    whole, columns, rows, total, moved, largest, backwards = function(values, values[::-1].copy())
    np.testing.assert_allclose(columns, whole.sum(axis=0), rtol=1e-11)
    np.testing.assert_allclose(rows, whole.sum(axis=1), rtol=1e-11)
    np.testing.assert_allclose(total, whole.sum(), rtol=1e-11)
    np.testing.assert_array_equal(moved, (whole + 1).T)
    np.testing.assert_array_equal(largest, whole.max(axis=0))
    np.testing.assert_allclose(backwards, whole[::-1].sum(axis=1), rtol=1e-11)


def test_two_comparisons_are_opposites():
    x, y = pt.dvectors("xy")
    d = squared_distances(x, y)
    above, below = pytensor.function([x, y], [(d > 0).sum(axis=0), (d <= 0).sum(axis=1)], mode="JAXPR")(
        *[np.random.default_rng(0).normal(size=64)] * 2
    )
    assert above.sum() + below.sum() == 64**2


COV = pm.gp.cov
KERNELS = {
    "one column": lambda s: COV.ExpQuad(2, ls=s, active_dims=[0]),
    "ExpQuad": lambda s: COV.ExpQuad(2, ls=s),
    "two scales": lambda s: COV.ExpQuad(2, ls=pt.stack([s, 2 * s])),
    "RatQuad": lambda s: COV.RatQuad(2, ls=s, alpha=1.5),
    "Matern52": lambda s: COV.Matern52(2, ls=s),
    "Matern32": lambda s: COV.Matern32(2, ls=s),
    "Cosine": lambda s: COV.Cosine(2, ls=s),
    "Periodic": lambda s: COV.Periodic(2, period=1.7, ls=s),
    "WarpedInput": lambda s: COV.WarpedInput(2, COV.ExpQuad(2, ls=s), lambda x, power: x**power, args=(2,)),
    "product": lambda s: COV.ExpQuad(2, ls=s) * COV.Matern52(2, ls=3 * s),
}


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_of_kernels(kernel, n, x64):
    rng = np.random.default_rng(n)
    points, weights = np.column_stack([np.linspace(0, 3, n), rng.normal(size=n)]), rng.normal(size=(n, n))
    with pm.Model() as model:
        scale = pm.Flat("scale")
        pm.Potential("p", (KERNELS[kernel](scale)(points) * weights).sum())
    expected, ours = (
        pytensor.function(model.value_vars, model.dlogp(), mode=mode) for mode in ("FAST_COMPILE", "JAXPR")
    )
    gradients = [jax.jit(jax.grad(logdensity(model, gradient=gradient))) for gradient in ("pytensor", "jax")]
    for value in (0.7, 1.3, 2.1):
        np.testing.assert_allclose(ours(value), expected(value), rtol=1e-9)
        for gradient in gradients:
            np.testing.assert_allclose(gradient({"scale": value})["scale"], expected(value)[0], rtol=1e-9)


@pytest.mark.parametrize(("operand", "count"), [(lambda x: x, 0), (lambda x: x * x - 2 * x, 1)])
def test_only_computed_sums_get_a_barrier(operand, count):
    x = pt.dvector("x")
    above = operand(x) > 0
    function = pytensor.function([x], [above.sum(), pt.switch(above, x, 0).sum()], mode="JAXPR")
    assert str(pjl.make_jaxpr(function, np.ones(3))).count("optimization_barrier") == count
