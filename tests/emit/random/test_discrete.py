"""Discrete random variables against SciPy's distributions, and their errors against FAST_COMPILE's."""

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


def binomial(n, p):
    """Return SciPy's distribution, or its limit where SciPy's is not accurate."""
    limit = st.poisson(n * p) if p < 1e-9 else st.norm(n * p, np.sqrt(n * p * (1 - p)))
    return st.binom(n, p) if n < 1e9 else limit


def poisson(mean):
    """Return SciPy's distribution, or the normal one where SciPy's is not accurate."""
    return st.poisson(mean) if mean < 1e9 else st.norm(mean, np.sqrt(mean))


def integers(low, high):
    """Return SciPy's distribution, or the uniform one where the range is too long for it."""
    return st.randint(low, high) if high - low < 1e9 else st.uniform(float(low), float(high) - float(low))


TOP = np.iinfo("int64").max
#: Op, a column of parameters for each distribution, and what makes its distribution from these.
DISTRIBUTIONS = {
    "bernoulli": (R.bernoulli, ([0.3, 0.999],), st.bernoulli),
    "betabinom": (R.betabinom, ([10, 100], [0.5, 20.0], [2.0, 3.0]), st.betabinom),
    "binomial": (
        R.binomial,
        ([1, 5, 20, 20, 40, 41, 1000, 10**15, 10**16], [0.3, 0.999, 0.5, 0.55, 0.25, 0.75, 0.005, 0.3, 1e-15]),
        binomial,
    ),
    "geometric": (R.geometric, ([0.3, 0.9, 1e-3],), st.geom),
    "hypergeometric": (
        R.hypergeometric,
        ([3, 5, 10, 100, 1000, 999_999_999], [4, 5, 3, 7, 3000, 999_999], [2, 5, 11, 50, 2000, 1000]),
        lambda good, bad, sample: st.hypergeom(good + bad, good, sample),
    ),
    "integers": (R.integers, ([-3, 0, -TOP - 1], [4, 1000, TOP]), integers),
    "negative_binomial": (R.negative_binomial, ([2.5, 0.1, 50.0], [0.3, 0.5, 0.9]), st.nbinom),
    "poisson": (R.poisson, ([1e-3, 0.3, 9.99, 10.0, 20.0, 1e4, 1e15],), poisson),
}
#: The chance that a table of right samplers fails is one in a thousand: Bonferroni's correction.
THRESHOLD = 1e-3 / sum(len(params[0]) for _, params, _ in DISTRIBUTIONS.values())


def generator(seed=20240511):
    return pytensor.shared(np.random.default_rng(seed), name="rng")


@pytest.fixture(scope="module")
def draws():
    """Draws of all distributions, of shape (DRAWS, columns), by one program."""
    rng, outputs = generator(), {}
    for name, (op, params, _) in DISTRIBUTIONS.items():
        size = (DRAWS, len(params[0]))
        rng, outputs[name] = op(*map(np.array, params), size=size, rng=rng, return_next_rng=True)
    return dict(zip(outputs, pytensor.function([], list(outputs.values()), mode=FULLGRAPH)(), strict=True))


def chi_square(x, distribution):
    """Return the p-value of counts in bins between quantiles; bins with few expected counts are put together."""
    low, high = distribution.support()
    assert low <= x.min() <= x.max() <= high
    edges = np.unique(distribution.ppf(np.linspace(0.02, 0.98, 49)))
    expected = np.diff(np.array([0, *distribution.cdf(edges), 1])) * len(x)
    observed = np.bincount(np.searchsorted(edges, x), minlength=len(expected))
    largest, rare = np.argmax(expected), expected < 10
    for counts in (expected, observed):
        counts[largest] += counts[rare].sum()
    return st.chisquare(observed[~rare], expected[~rare]).pvalue if (~rare).sum() > 1 else 1.0


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distribution(draws, name):
    _, params, distribution = DISTRIBUTIONS[name]
    assert draws[name].dtype == "int64"
    assert draws[name].shape == (DRAWS, len(params[0]))
    for values, x in zip(zip(*params, strict=True), draws[name].T, strict=True):
        expected = distribution(*values)
        assert chi_square(x.astype("float64"), expected) > THRESHOLD, values
        mean, variance, kurtosis = expected.stats("mvk")
        if kurtosis < 100:
            assert abs(x.mean() - mean) < 5 * np.sqrt(variance / DRAWS), values
            assert abs(x.var() - variance) < 5 * variance * np.sqrt((kurtosis + 2) / DRAWS), values


def test_draws_without_choice():
    """Parameters that leave one value: FAST_COMPILE's."""
    rng = generator()
    outputs = [
        R.binomial([0, 5, 5, 10**18], [0.5, 0.0, 1.0, 1.0], rng=rng, return_next_rng=True)[1],
        R.poisson([0.0, 1e-300], rng=rng, return_next_rng=True)[1],
        R.geometric(1.0, rng=rng, return_next_rng=True)[1],
        R.geometric([1.0, 1e-300], rng=rng, return_next_rng=True)[1],
        R.hypergeometric([0, 5, 5, 3, 0], [5, 0, 3, 2, 0], [3, 2, 8, 0, 0], rng=rng, return_next_rng=True)[1],
        R.negative_binomial(2.0, [1.0, 1.0], rng=rng, return_next_rng=True)[1],
        R.betabinom([0, 0], 1.0, 2.0, rng=rng, return_next_rng=True)[1],
        R.bernoulli([0.0, 1.0], rng=rng, return_next_rng=True)[1],
        R.integers([-5, TOP - 1], [-4, TOP], rng=rng, return_next_rng=True)[1],
        R.categorical([[0.0, 1.0], [1.0, 0.0]], rng=rng, return_next_rng=True)[1],
        R.categorical([0, 0, 1], size=(2, 2), rng=rng, return_next_rng=True)[1],
        R.poisson(np.zeros(2), rng=rng, dtype="int8", return_next_rng=True)[1],
        R.binomial([300, 301], 1.0, rng=rng, dtype="int8", return_next_rng=True)[1],
        R.bernoulli(1.0, size=(2, 0), rng=rng, dtype="uint16", return_next_rng=True)[1],
    ]
    compare([], outputs, [])


# -- parameters --------------------------------------------------------------------------------------------------------

#: Op, parameters as vectors, and which values of each are tried.
REALS, COUNTS = (-1.0, 0.0, 1.5, 1e-300, 1e300, np.nan), (-1, 0, 3, 10**9)
PARAMETERS = {
    "bernoulli": ((0.3, REALS),),
    "betabinom": ((4, COUNTS), (2.0, REALS[:3]), (3.0, REALS[:3])),
    "binomial": ((4, COUNTS), (0.3, REALS)),
    "geometric": ((0.3, REALS),),
    "hypergeometric": ((4, COUNTS), (5, COUNTS), (6, COUNTS)),
    "integers": ((-4, COUNTS), (4, COUNTS)),
    "negative_binomial": ((4.0, REALS), (0.5, REALS)),
    "poisson": ((4.0, (*REALS, np.inf)),),
}


@pytest.fixture(scope="module")
def both_modes():
    """The function of all distributions, with vectors of parameters as inputs, in FAST_COMPILE and in this mode."""
    rng, outputs, inputs, values = generator(), [], [], []
    for name, params in PARAMETERS.items():
        given = [np.array([x, x]) for x, _ in params]
        vectors = [pt.vector(dtype=x.dtype) for x in given]
        rng, x = DISTRIBUTIONS[name][0](*vectors, rng=rng, return_next_rng=True)
        inputs, values, outputs = inputs + vectors, values + given, [*outputs, x]
    functions = [pytensor.function(inputs, outputs, mode=mode) for mode in ("FAST_COMPILE", FULLGRAPH)]
    return functions, values


TRIED = [(name, tried) for name, params in PARAMETERS.items() for _, tried in params]


@pytest.mark.parametrize("position", range(len(TRIED)), ids=[name for name, _ in TRIED])
def test_parameters(both_modes, position):
    """The same errors, and the same shapes where there is none."""
    (reference, f), values = both_modes
    for bad in TRIED[position][1]:
        given = [np.array(x) for x in values]
        given[position][1] = bad
        try:
            want = reference(*given)
        except ValueError as error:
            with pytest.raises(ValueError) as raised:
                f(*given)
            assert str(raised.value) == str(error), bad
        else:
            assert [x.shape for x in f(*given)] == [x.shape for x in want]


@pytest.mark.parametrize(
    "op, values, match",
    [
        (R.binomial, (3, np.nan), "p is NaN"),
        (R.poisson, (np.nan,), "lam is NaN"),
        (R.integers, (0, 0), "high <= 0"),
        (R.integers, (np.uint64(2**63), 5), "low is out of bounds for int64"),
    ],
)
def test_errors_of_constants(op, values, match):
    _, x = op(*values, rng=generator(), return_next_rng=True)
    compare_error([], x, [], match=match)


def test_counts_that_are_fractions_are_left_to_numpy():
    _, x = R.binomial(np.array([2.5]), 0.5, rng=generator(), return_next_rng=True)
    with pytest.raises(pjl.GraphBreakError, match="a parameter that counts"):
        pytensor.function([], x, mode=FULLGRAPH)


def test_parameters_broadcast():
    n, p = pt.tensor("n", shape=(None, 1), dtype="int8"), pt.vector("p", dtype="float32")
    outputs = [R.binomial(n, p, size=size, rng=generator(), return_next_rng=True)[1] for size in (None, (4, 2, 3))]
    values = np.array([[0], [100]], "int8"), np.array([0, 0.5, 1], "float32")
    f = pytensor.function([n, p], outputs, mode=FULLGRAPH)
    for x, shape in zip(f(*values), [(2, 3), (4, 2, 3)], strict=True):
        assert x.shape == shape
        assert (x[..., 0, :] == 0).all()
        assert (x[..., 1, 0] == 0).all()
        assert (x[..., 1, 2] == 100).all()
        assert ((x[..., 1, 1] > 20) & (x[..., 1, 1] < 80)).all()


# -- categories --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_categorical(dtype):
    p = np.array([[0.2, 0.3, 0.0, 0.5], [0.05, 0.05, 0.9, 0.0]], dtype)
    _, x = R.categorical(p, size=(DRAWS, 2), rng=generator(), return_next_rng=True)
    _, unnormalized = R.categorical(p / 2, size=(DRAWS, 2), rng=generator(), return_next_rng=True)
    x, y = pytensor.function([], [x, unnormalized], mode=FULLGRAPH)()
    assert x.dtype == "int64"
    for i in range(2):
        for draws, chances in ((x, [*p[i], 0]), (y, [*p[i] / 2, 0.5])):  # what p leaves is a category of its own
            observed, expected = np.bincount(draws[:, i], minlength=5), np.array(chances, "float64") * DRAWS
            assert observed[expected == 0].sum() == 0
            kept = expected > 0
            expected *= DRAWS / expected.sum()
            assert st.chisquare(observed[kept], expected[kept]).pvalue > 1e-4


@pytest.mark.parametrize("size", [(2,), (1,), (3, 2)])
def test_categories_for_another_size(size):
    p = pt.matrix("p", dtype="float64")
    _, x = R.categorical(p, size=size, rng=generator(), return_next_rng=True)
    compare_error([p], x, [np.ones((3, 2)) / 2])


# -- pure functions ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pure():
    """A function of a key and parameters, without checks."""
    rng, mean, p = random_generator_type("rng"), pt.dvector("mean"), pt.dvector("p")
    next_rng, x = R.poisson(mean, rng=rng, return_next_rng=True)
    next_rng, y = R.binomial(100, p, rng=next_rng, return_next_rng=True)
    next_rng, z = R.integers(0, 2**40, size=(4,), rng=next_rng, return_next_rng=True)
    return pjl.as_jax_function([rng, mean, p], [x, y, z])


def test_vmap_over_keys(pure):
    mean, p = np.array([0.1, 5.0, 50.0, 1e6]), np.array([0.01, 0.3, 0.5, 0.95])
    with jax.enable_x64(True):
        keys = jax.random.key_data(jax.random.split(jax.random.key(0), 8))
        batch = jax.vmap(pure, in_axes=(0, None, None))(keys, mean, p)
        for one, many in zip(pure(keys[2], mean, p), batch, strict=True):
            np.testing.assert_array_equal(many[2], one)
            assert len(np.unique(many[:, 3])) > 3


def test_without_checks_loops_end_for_bad_parameters(pure):
    with jax.enable_x64(True):
        mean, p = np.array([-1.0, np.nan, np.inf, -np.inf]), np.array([-1.0, np.nan, 1.5, np.inf])
        x, y, _ = pure(jax.random.key_data(jax.random.key(0)), mean, p)
    assert (np.concatenate([x, y]) == np.iinfo("int64").min).all()
