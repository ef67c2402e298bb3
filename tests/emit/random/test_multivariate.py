"""Multivariate random variables: marginal distributions, moments, shapes and errors."""

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.stats as st
from helpers import FULLGRAPH, compare, compare_error
from pytensor.tensor.random.type import random_generator_type

import pytensor_jaxpr_linker as pjl

R = pt.random
DRAWS = 20_000
MEAN = np.array([1.0, -2.0, 0.5])
COV = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]])
METHODS = ("cholesky", "svd", "eigh")
THRESHOLD = 1e-3 / 40


def generator(seed=20240511):
    return pytensor.shared(np.random.default_rng(seed), name="rng")


def draw(*calls):
    """Return draws of ``(op, params, keywords)``, by one program."""
    rng, outputs = generator(), []
    for op, params, keywords in calls:
        rng, x = op(*params, **keywords, rng=rng, return_next_rng=True)
        outputs.append(x)
    return pytensor.function([], outputs, mode=FULLGRAPH)()


# -- normal vectors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_multivariate_normal(dtype):
    params = MEAN.astype(dtype), COV.astype(dtype)
    calls = [(R.multivariate_normal, params, {"size": (DRAWS,), "method": m, "dtype": dtype}) for m in METHODS]
    directions = np.array([[1.0, 0, 0], [1, -1, 0], [1, 1, 1]])
    for x in draw(*calls):
        assert x.dtype == dtype
        assert x.shape == (DRAWS, 3)
        for v in directions:
            z = (x @ v - MEAN @ v) / np.sqrt(v @ COV @ v)
            assert st.kstest(z, "norm").pvalue > THRESHOLD
        np.testing.assert_allclose(np.cov(x.T), COV, atol=5 * 4 * np.sqrt(2 / DRAWS))


@pytest.mark.parametrize("method", METHODS)
def test_singular_covariances_and_batches(method):
    """A covariance of rank 1, which has no Cholesky factor for NumPy, beside a regular one; means broadcast."""
    second = np.ones((2, 2)) if method != "cholesky" else np.eye(2)
    cov = np.stack([np.diag([1.0, 100.0]), second])
    mean = np.array([[[0.0, 0.0]], [[1e4, 1e4]]])
    (x,) = draw((R.multivariate_normal, (mean, cov), {"size": (2000, 2, 2), "method": method}))
    assert x.shape == (2000, 2, 2, 2)
    for i, j in np.ndindex(2, 2):
        z = x[:, i, j] - mean[i, 0]
        np.testing.assert_allclose(np.cov(z.T), cov[j], atol=5 * cov[j].max() * np.sqrt(2 / 2000))
    if method != "cholesky":
        np.testing.assert_allclose(x[:, :, 1, 0], x[:, :, 1, 1], atol=1e-6)


@pytest.mark.parametrize(
    "cov, method",
    [
        (-np.eye(2), "cholesky"),
        (np.array([np.eye(2), np.ones((2, 2)) - 2]), "cholesky"),
        (np.full((2, 2), np.nan), "svd"),
        (np.ones((2, 3)), "cholesky"),
        (np.eye(3), "cholesky"),
    ],
)
def test_covariances_without_a_factor(cov, method):
    c = pt.tensor("c", shape=(None,) * cov.ndim, dtype="float64")
    _, x = R.multivariate_normal(np.zeros(2), c, method=method, rng=generator(), return_next_rng=True)
    compare_error([c], x, [cov])


@pytest.mark.parametrize("cov, method", [(np.diag([1.0, -1.0]), "eigh"), (np.full((2, 2), np.nan), "cholesky")])
def test_factors_that_are_nan(cov, method):
    """For NumPy, neither a negative eigenvalue nor a NaN in the covariance is an error."""
    (x,) = draw((R.multivariate_normal, (np.zeros(2), cov), {"method": method}))
    assert np.isnan(x).any()


def test_gradient_through_a_normal_vector():
    rng, mean, cov = random_generator_type("rng"), pt.dvector("mean"), pt.dmatrix("cov")
    _, x = R.multivariate_normal(mean, cov, rng=rng, return_next_rng=True)
    fn = pjl.as_jax_function([rng, mean, cov], [x])
    with jax.enable_x64(True):
        key = jax.random.key_data(jax.random.key(0))
        z = fn(key, np.zeros(1), np.eye(1))[0][0]
        slope = jax.grad(lambda c: fn(key, np.zeros(1), c)[0].sum())(np.full((1, 1), 4.0))
        np.testing.assert_allclose(slope, [[z / 4]])


# -- shares and counts -------------------------------------------------------------------------------------------------


def test_dirichlet():
    alphas = [np.array(a) for a in ([1.0, 2.0, 0.5], [1e-3, 1e-3, 2e-3], [1e5, 1e5, 3e5])]
    (x,) = draw((R.dirichlet, (np.array(alphas),), {"size": (DRAWS, 3)}))
    np.testing.assert_allclose(x.sum(-1), 1, rtol=1e-12)
    for a, shares in zip(alphas, x.swapaxes(0, 1), strict=True):
        for k in range(3):
            rest = a.sum() - a[k]
            # A share next to 1 is rounded: its distribution function is compared where it is not.
            inner = np.linspace(0.01, 0.99, 99)
            quantiles = np.clip(st.beta(a[k], rest).ppf(inner), 1e-300, 1 - 1e-12)
            expected = st.beta(a[k], rest).cdf(quantiles)
            deviation = np.abs(np.searchsorted(np.sort(shares[:, k]), quantiles, "right") / DRAWS - expected)
            assert deviation.max() < st.kstwobign.isf(THRESHOLD) / np.sqrt(DRAWS)


def test_dirichlet_without_choice():
    rng = generator()
    alphas = [[[0.0, 1.0]], [[0.0, 0.0]], [[3.0]], np.ones((2, 0))]
    outputs = [R.dirichlet(np.array(a), rng=rng, return_next_rng=True)[1] for a in alphas]
    outputs.append(R.dirichlet(np.ones(1, "float32"), size=(0,), rng=rng, dtype="float32", return_next_rng=True)[1])
    compare([], outputs, [])


def test_dirichlet_error():
    a = pt.dvector("a")
    _, x = R.dirichlet(a, rng=generator(), return_next_rng=True)
    compare_error([a], x, [np.array([1.0, -1.0])], match="alpha < 0")


def test_multinomial():
    n, p = np.array([10, 1000]), np.array([[0.2, 0.3, 0.0, 0.5], [0.001, 0.001, 0.998, 0.0]])
    (x,) = draw((R.multinomial, (n, p), {"size": (DRAWS, 2)}))
    assert x.dtype == "int64"
    for i in range(2):
        np.testing.assert_array_equal(x[:, i].sum(-1), n[i])
        for k in np.flatnonzero(p[i]):
            marginal = st.binom(n[i], p[i, k])
            expected = marginal.pmf(np.arange(n[i] + 1)) * DRAWS
            observed = np.bincount(x[:, i, k], minlength=n[i] + 1)
            rare = expected < 10
            observed[observed.argmax()] += observed[rare].sum()
            expected[expected.argmax()] += expected[rare].sum()
            assert st.chisquare(observed[~rare], expected[~rare]).pvalue > THRESHOLD
        covariance = n[i] * (np.diag(p[i]) - np.outer(p[i], p[i]))
        np.testing.assert_allclose(np.cov(x[:, i].T), covariance, atol=6 * covariance.max() * np.sqrt(2 / DRAWS))
        assert (x[:, i, p[i] == 0] == 0).all()


def test_multinomial_without_choice():
    n, p = np.array([5, 0, 7, 10**9]), np.array([[0.0, 1.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.2], [1.0, 0.0, 0.0]])
    outputs = [R.multinomial(n, x, rng=generator(), return_next_rng=True)[1] for x in (p, p[:, 2:])]
    compare([], outputs, [])


def test_multinomial_of_fractions():
    """PyTensor hands a batch's numbers to NumPy one by one, which drops fractions; one alone is an error."""
    p = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    for n in (pt.dvector("n"), pt.dscalar("n")):
        _, x = R.multinomial(n, p, rng=generator(), return_next_rng=True)
        f = pytensor.function([n], x, mode=FULLGRAPH)
        value = np.array([5.7, -0.5]) if n.ndim else np.array(2.5)
        compare([n], x, [value])
        with pytest.raises(ValueError, match="n < 0"):
            f(-value - 1)
    n = pt.dscalar("n")
    with pytest.raises(pjl.GraphBreakError, match="a parameter that counts"):
        pytensor.function([n], R.multinomial(n, p[0], rng=generator(), return_next_rng=True)[1], mode=FULLGRAPH)


@pytest.mark.parametrize(
    "n, p, match",
    [
        (3, [0.5, -0.1, 0.6], "pvals < 0"),
        (3, [0.5, np.nan, 0.5], "pvals contains NaNs"),
        (3, [0.5, 0.6, 0.0], r"sum\(pvals\[:-1\]\) > 1.0"),
        (-1, [0.5, 0.5], "n < 0"),
        (1, [], "at least 1 dimension"),
    ],
)
def test_multinomial_errors(n, p, match):
    size, chances = pt.lscalar("n"), pt.dvector("p")
    _, x = R.multinomial(size, chances, rng=generator(), return_next_rng=True)
    compare_error([size, chances], x, [n, np.array(p)], match=match)


def test_vmap_over_keys():
    rng, n, p, a = random_generator_type("rng"), pt.lvector("n"), pt.dvector("p"), pt.dvector("a")
    next_rng, x = R.multinomial(n, p, rng=rng, return_next_rng=True)
    _, y = R.dirichlet(a, rng=next_rng, return_next_rng=True)
    fn = pjl.as_jax_function([rng, n, p, a], [x, y])
    values = np.array([10, 1000]), np.array([0.2, 0.3, 0.5]), np.array([0.5, 3.0])
    with jax.enable_x64(True):
        keys = jax.random.key_data(jax.random.split(jax.random.key(0), 4))
        counts, shares = jax.vmap(fn, in_axes=(0, None, None, None))(keys, *values)
        one = fn(keys[2], *values)
    np.testing.assert_array_equal(counts[2], one[0])
    np.testing.assert_allclose(shares[2], one[1], rtol=1e-12)
    assert len(np.unique(shares[:, 0])) == 4
