"""Discrete and multivariate random variables of PyMC: with a sampler of their own, or composed by PyMC."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.stats as st
from helpers import FULLGRAPH, compare_error

import pytensor_jaxpr_linker as pjl

pm = pytest.importorskip("pymc")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:pymc", "ignore::FutureWarning:pymc")

DRAWS = 5000
THRESHOLD = 1e-5
COV = np.array([[2.0, 0.5], [0.5, 1.0]])
W = np.array([[0.0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]])


def seeded(*variables):
    """Return draws of variables by one program, whose generators have a fixed seed."""
    f = pytensor.function([], list(variables), mode=FULLGRAPH)
    for i, rng in enumerate(v for v in f.get_shared() if isinstance(v.get_value(borrow=True), np.random.Generator)):
        rng.set_value(np.random.default_rng([20240511, i]))
    return f()


def test_discrete_uniform():
    (x,) = seeded(pm.DiscreteUniform.dist([-2, 0], [5.0, 0.0], shape=(DRAWS, 2)))
    assert x.dtype == "int64"
    assert st.chisquare(np.bincount(x[:, 0] + 2, minlength=8)).pvalue > THRESHOLD
    assert (x[:, 1] == 0).all()


@pytest.mark.parametrize("lower, upper", [([3.0, 0.0], [2.0, 0.0]), ([np.nan, 0.0], [2.0, 0.0])])
def test_discrete_uniform_errors(lower, upper):
    inputs = pt.dvectors("lower", "upper")
    x = pm.DiscreteUniform.dist(*inputs)
    node = x.owner.op.make_node(pytensor.shared(np.random.default_rng(1)), None, *inputs)
    compare_error(inputs, node.outputs[1], [np.array(lower), np.array(upper)], match=r"scipy.stats.randint")


def test_multivariate_with_samplers_of_their_own():
    """Matrices by covariances of rows and columns, autoregression by its precision, weights by their beta shares."""
    matrixnormal, rng = pm.distributions.multivariate.matrixnormal, pytensor.shared(np.random.default_rng(1))
    rows, columns = np.linalg.cholesky(COV), np.diag([1.0, 2.0, 3.0])
    matrix, car, weights, none = seeded(
        matrixnormal(np.ones((2, 3)), rows, columns, size=(DRAWS,), rng=rng, return_next_rng=True)[1],
        pm.CAR.dist(mu=np.arange(4.0), W=W, alpha=0.5, tau=2.0, shape=(DRAWS, 4)),
        pm.StickBreakingWeights.dist(alpha=[0.5, 2.0], K=3, shape=(DRAWS, 2, 4)),
        pm.StickBreakingWeights.dist(alpha=2.0, K=0),
    )
    z = np.linalg.solve(rows, (matrix - 1)) @ np.linalg.inv(columns)
    assert matrix.shape == (DRAWS, 2, 3)
    assert st.kstest(z.ravel(), "norm").pvalue > THRESHOLD
    np.testing.assert_allclose(np.cov(z.reshape(DRAWS, 6).T), np.eye(6), atol=5 * np.sqrt(2 / DRAWS))
    cov = np.linalg.inv(2.0 * (np.diag(W.sum(0)) - 0.5 * W))
    np.testing.assert_allclose(car.mean(0), np.arange(4.0), atol=5 * np.sqrt(cov.max() / DRAWS))
    np.testing.assert_allclose(np.cov(car.T), cov, atol=5 * cov.max() * np.sqrt(2 / DRAWS))
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-12)
    for alpha, x in zip([0.5, 2.0], weights.swapaxes(0, 1), strict=True):
        for share in (x[:, 0], x[:, 1] / (1 - x[:, 0])):
            assert st.kstest(share, st.beta(1, alpha).cdf).pvalue > THRESHOLD
    np.testing.assert_array_equal(none, [1.0])


@pytest.mark.parametrize("alpha, weight", [(1.5, 1.0), (0.5, -1.0)])
def test_car_errors(alpha, weight):
    a, w = pt.dscalar("alpha"), pt.dmatrix("W")
    node = pm.CAR.dist(mu=np.zeros(4), W=W, alpha=0.5, tau=2.0).owner
    rng, size, mu, _, _, tau, is_valid = node.inputs
    x = node.op.make_node(rng, size, mu, w, a, tau, is_valid).outputs[1]
    compare_error([a, w], x, [alpha, weight * W])


def test_sparse_adjacency_runs_on_the_host():
    import scipy.sparse

    x = pm.CAR.dist(mu=np.zeros(4), W=scipy.sparse.csr_matrix(W), alpha=0.5, tau=2.0)
    with pytest.raises(pjl.GraphBreakError, match="no array"):
        pytensor.function([], x, mode=FULLGRAPH)


def test_compositions_are_one_program():
    """PyMC's compositions are inlined: mixtures, hurdles, random walks, matrices by their factors."""
    n, start = DRAWS, pm.Normal.dist()
    expected = {
        "zero inflated": (pm.ZeroInflatedPoisson.dist(0.3, 4.0, shape=n), 0.3 * 4),
        "hurdle": (pm.HurdleLogNormal.dist(0.3, mu=0.0, sigma=0.5, shape=n), 0.3 * np.exp(0.125)),
        "mixture": (pm.NormalMixture.dist(w=[0.3, 0.7], mu=[0.0, 5.0], sigma=1.0, shape=n), 3.5),
        "ordered": (pm.OrderedLogistic.dist(eta=0.0, cutpoints=[-1.0, 0.0, 1.0], shape=n), 1.5),
        "censored": (pm.Censored.dist(pm.Geometric.dist(0.3), 1, 2, shape=n), 1.7),
        "student": (pm.MvStudentT.dist(nu=8, mu=[1.0, 2.0], scale=COV, shape=(n, 2)), [1.0, 2.0]),
        "kronecker": (pm.KroneckerNormal.dist(mu=np.ones(4), covs=[COV, COV], sigma=0.1, shape=(n, 4)), np.ones(4)),
        "walk": (pm.GaussianRandomWalk.dist(mu=1.0, sigma=0.3, init_dist=start, steps=2, shape=(n, 3)), [0, 1, 2]),
        "zero sum": (pm.ZeroSumNormal.dist(sigma=1.0, shape=(n, 3)), np.zeros(3)),
        "weibull": (pm.DiscreteWeibull.dist(0.5, 1.0, shape=n), 1.0),
    }  # fmt: skip
    draws = seeded(*(x for x, _ in expected.values()))
    for name, x, (variable, mean) in zip(expected, draws, expected.values(), strict=True):
        assert x.dtype == variable.type.dtype
        error = x.std(0) / np.sqrt(DRAWS) + 1e-12
        assert (abs(x.mean(0) - mean) < 5 * error).all(), name


def test_matrices_are_one_program():
    wishart, correlation = seeded(pm.Wishart.dist(nu=5, V=COV, shape=(2, 2)), pm.LKJCorr.dist(n=3, eta=2.0))
    assert (np.linalg.eigvalsh(wishart) > 0).all()
    np.testing.assert_allclose((correlation**2).sum(-1), 1, rtol=1e-6)
