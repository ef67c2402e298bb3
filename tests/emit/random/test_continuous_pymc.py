"""Continuous distributions of PyMC, whose classes have rules by name, or that PyMC composes."""

import subprocess
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.stats as st
from helpers import FULLGRAPH

pm = pytest.importorskip("pymc")
continuous = pytest.importorskip("pymc.distributions.continuous")

INF = np.inf
DRAWS = 20_000

#: Op, a column of parameters for each distribution, and what makes the distribution from these.
DISTRIBUTIONS = [
    (
        continuous.truncated_normal,
        ([1.0] * 8, [2.0] * 8, [-1, 0, 7, 17, -INF, -INF, -9, -1.5], [5, INF, INF, 17.5, -9, INF, -8.9, 3.5]),
        lambda mu, sigma, low, high: st.truncnorm((low - mu) / sigma, (high - mu) / sigma, mu, sigma),
    ),
    (continuous.skewnormal, ([1.0, 0.0], [2.0, 1.0], [3.0, -0.5]), lambda mu, sigma, a: st.skewnorm(a, mu, sigma)),
    (continuous.skewstudentt, ([2.0, 0.5], [3.0, 4.0], [1.0, 0.0], [2.0, 1.0]), st.jf_skew_t),
    (continuous.rice, ([1.5, 0.0], [2.0, 1.0]), lambda b, scale: st.rice(b, scale=scale)),
    (continuous.moyal, ([1.0], [2.0]), st.moyal),
    (continuous.wald, ([3.0], [2.0], [0.5]), lambda mu, lam, shift: st.invgauss(mu / lam, shift, lam)),
    (continuous.BetaClippedRV(), ([2.0], [3.0]), st.beta),
]
COMPOSED = [
    (lambda size: pm.Kumaraswamy.dist(2.0, 3.0, size=size), lambda x: 1 - (1 - x**2) ** 3),
    (lambda size: pm.AsymmetricLaplace.dist(b=1.0, kappa=2.0, mu=0.5, size=size), st.laplace_asymmetric(2.0, 0.5).cdf),
    (lambda size: pm.HalfCauchy.dist(2.0, size=size), st.halfcauchy(0, 2).cdf),
    (lambda size: pm.Weibull.dist(1.5, 3.0, size=size), st.weibull_min(1.5, scale=3).cdf),
    (lambda size: pm.HalfStudentT.dist(3.0, 2.0, size=size), lambda x: 2 * st.t(3, 0, 2).cdf(x) - 1),
    (lambda size: pm.ExGaussian.dist(0.5, 1.0, nu=2.0, size=size), st.exponnorm(2, 0.5, 1).cdf),
    (lambda size: pm.Truncated.dist(pm.Exponential.dist(1.0), lower=1.0, size=size), st.expon(1).cdf),
    (
        lambda size: pm.Interpolated.dist(np.array([0.0, 1.0, 3.0]), np.array([0.0, 2.0, 0.0]), size=size),
        st.triang(1 / 3, 0, 3).cdf,
    ),
    (lambda size: pm.Interpolated.dist(np.linspace(1, 2, 7), np.ones(7), size=size), st.uniform(1).cdf),
]
THRESHOLD = 1e-3 / (2 * sum(len(params[0]) for _, params, _ in DISTRIBUTIONS) + len(COMPOSED))


@pytest.fixture(scope="module", params=["float64", "float32"])
def draws(request):
    rng, outputs = pytensor.shared(np.random.default_rng(42)), []
    for op, params, _ in DISTRIBUTIONS:
        columns = [np.array(x, request.param) for x in params]
        rng, x = op(*columns, size=(DRAWS, len(params[0])), rng=rng, return_next_rng=True, dtype=request.param)
        outputs.append(x)
    values = pytensor.function([], outputs, mode=FULLGRAPH)()
    assert [x.dtype for x in values] == [request.param] * len(values)
    return values


@pytest.mark.parametrize("row", range(len(DISTRIBUTIONS)), ids=[op.name for op, _, _ in DISTRIBUTIONS])
def test_distribution(draws, row):
    _, params, distribution = DISTRIBUTIONS[row]
    for values, x in zip(zip(*params, strict=True), draws[row].T, strict=True):
        expected = distribution(*values)
        low, high = expected.support()
        assert low <= x.min()
        assert x.max() <= high
        assert st.kstest(x.astype("float64"), expected.cdf).pvalue > THRESHOLD, values


def test_composed_distributions():
    """They are inlined, so they need no rule."""
    variables = [make((DRAWS,)) for make, _ in COMPOSED]
    values = pm.compile([], variables, mode=FULLGRAPH, random_seed=7)()
    for variable, x, (_, cdf) in zip(variables, values, COMPOSED, strict=True):
        assert x.dtype == variable.dtype
        assert st.kstest(x, cdf).pvalue > THRESHOLD, variable.owner.op


def test_parameters():
    """Zeros, signs, infinities, NaN and bounds out of order: the same errors as in FAST_COMPILE."""
    rng, outputs, inputs, given = pytensor.shared(np.random.default_rng(1)), [], [], []
    for op, params, _ in DISTRIBUTIONS:
        vectors = [pt.dvector() for _ in params]
        inputs += vectors
        given += [np.array([x[0], x[0]], "float64") for x in params]
        rng, x = op(*vectors, rng=rng, return_next_rng=True)
        outputs.append(x)
    reference, f = (pytensor.function(inputs, outputs, mode=mode) for mode in ("FAST_COMPILE", FULLGRAPH))
    for i in range(len(inputs)):
        for bad in (-1.0, 0.0, np.nan, INF, -INF, 50.0):
            values = [np.array(x) for x in given]
            values[i][1] = bad
            try:
                with np.errstate(all="ignore"):
                    reference(*values)
            except ValueError as error:
                with pytest.raises(ValueError, match=str(error)[:20]) as raised:
                    f(*values)
                assert str(raised.value) == str(error)
            else:
                f(*values)


def test_interpolated_takes_one_set_of_points():
    points = np.array([[0.0, 1.0], [0.0, 2.0]])
    x = continuous.interpolated(
        points, np.ones((2, 2)), points, rng=pytensor.shared(np.random.default_rng(1)), return_next_rng=True
    )[1]
    with pytest.raises(NotImplementedError, match="batched points"):
        pytensor.function([], x, mode=FULLGRAPH)()


def test_pymc_is_not_imported():
    code = "import pytensor_jaxpr_linker, sys; assert 'pymc' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
