"""Continuous random variables against SciPy's distributions, and their errors against FAST_COMPILE's."""

from functools import cache

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.stats as st
from helpers import FULLGRAPH
from pytensor.tensor.random.type import random_generator_type

import pytensor_jaxpr_linker as pjl

INF = np.inf


def wrapped_vonmises(mu, kappa):
    """Return the distribution on [-pi, pi]; SciPy's is on [mu - pi, mu + pi]."""
    whole = st.vonmises(kappa, mu)
    return lambda x: (whole.cdf(x) - whole.cdf(-np.pi)) % 1


def triangular(left, mode, right):
    return st.triang((mode - left) / (right - left), left, right - left)


#: Op, a column of parameters for each distribution, and the function from these to its distribution.
DISTRIBUTIONS = [
    (pt.random.beta, ([2.0, 200.0, 0.05], [3.0, 0.5, 1.0]), st.beta),
    (pt.random.cauchy, ([1.0], [2.0]), st.cauchy),
    (pt.random.exponential, ([2.0],), lambda scale: st.expon(scale=scale)),
    (pt.random.gamma, ([3.0, 0.05, 1.0, 1e6, 1e10], None, [2.0] * 5), lambda a, scale: st.gamma(a, scale=scale)),
    (pt.random.gengamma, ([2.0, 0.2], [3.0, 0.5], [1.5, 1.0]), lambda a, p, s: st.gengamma(a / p, p, scale=s)),
    (pt.random.gumbel, ([1.0], [2.0]), st.gumbel_r),
    (pt.random.halfcauchy, ([1.0], [2.0]), st.halfcauchy),
    (pt.random.halfnormal, ([1.0], [2.0]), st.halfnorm),
    (pt.random.invgamma, ([3.0, 0.5], [2.0, 1.0]), lambda a, scale: st.invgamma(a, scale=scale)),
    (pt.random.laplace, ([1.0], [2.0]), st.laplace),
    (pt.random.logistic, ([1.0], [2.0]), st.logistic),
    (pt.random.lognormal, ([1.0], [0.5]), lambda mu, sigma: st.lognorm(sigma, scale=np.exp(mu))),
    (pt.random.pareto, ([3.0], [2.0]), lambda b, scale: st.pareto(b, scale=scale)),
    (pt.random.t, ([3.0, 0.3], [1.0, 0.0], [2.0, 1.0]), st.t),
    (pt.random.triangular, ([0.0, 0.0, -1.0], [0.5, 0.0, 1.0], [2.0, 1.0, 1.0]), triangular),
    (pt.random.truncexpon, ([1.5, 0.01, 700.0], [1.0, 0.0, 0.0], [2.0, 1.0, 1.0]), st.truncexpon),
    (pt.random.vonmises, ([0.0, 0.0, 0.0, 3.0, 9.0], [0.5, 1e4, 1e-6, 1.0, 4.0]), wrapped_vonmises),
    (pt.random.wald, ([3.0, 1e3], [2.0, 0.1]), lambda mean, scale: st.invgauss(mean / scale, scale=scale)),
    (pt.random.weibull, ([1.5, 0.3],), st.weibull_min),
]  # fmt: skip
IDS = [op.__name__ if hasattr(op, "__name__") else op.name for op, _, _ in DISTRIBUTIONS]
DRAWS = 20_000
#: The chance that a table of right samplers fails is one in a thousand: Bonferroni's correction for KS tests of both
#: dtypes.
THRESHOLD = 1e-3 / (2 * sum(len(params[0]) for _, params, _ in DISTRIBUTIONS))


def generator(seed=20240511):
    return pytensor.shared(np.random.default_rng(seed), name="rng")


#: Where a single precision matters: loops, logarithms, and what could cancel.
IN_FLOAT32 = ["beta", "gamma", "gengamma", "halfcauchy", "t", "truncexpon", "vonmises", "wald"]


@pytest.fixture(scope="module")
def draws():
    """Return a function from a dtype to draws of all distributions, of shape (DRAWS, columns), by one program."""

    @cache
    def draw(dtype):
        rng, outputs = generator(), {}
        for name, (op, params, _) in zip(IDS, DISTRIBUTIONS, strict=True):
            if dtype == "float64" or name in IN_FLOAT32:
                columns = [None if x is None else np.array(x, dtype) for x in params]
                size = (DRAWS, len(params[0]))
                rng, outputs[name] = op(*columns, size=size, rng=rng, return_next_rng=True, dtype=dtype)
        values = pytensor.function([], list(outputs.values()), mode=FULLGRAPH)()
        return dict(zip(outputs, values, strict=True))

    return draw


@pytest.mark.parametrize(
    "dtype, name", [*(("float64", name) for name in IDS), *(("float32", name) for name in IN_FLOAT32)]
)
def test_distribution(draws, dtype, name):
    _, params, distribution = DISTRIBUTIONS[IDS.index(name)]
    columns = list(zip(*(p for p in params if p is not None), strict=True))
    draw = draws(dtype)[name]
    assert draw.dtype == dtype
    assert draw.shape == (DRAWS, len(columns))
    for values, x in zip(columns, draw.T.astype("float64"), strict=True):
        expected = distribution(*values)
        pvalue = st.kstest(x, getattr(expected, "cdf", expected)).pvalue
        assert pvalue > THRESHOLD, (values, pvalue)
        if hasattr(expected, "stats"):
            check_moments(x, *expected.stats("mvk"))


def check_moments(x, mean, variance, kurtosis):
    """Check mean and variance, where the kurtosis is not too large for that."""
    if kurtosis < 100:
        assert abs(x.mean() - mean) < 5 * np.sqrt(variance / DRAWS)
        assert abs(x.var() - variance) < 5 * variance * np.sqrt((kurtosis + 2) / DRAWS)


@pytest.fixture(scope="module")
def both_modes():
    """The function of all distributions, with vectors of parameters as inputs, in FAST_COMPILE and in this mode."""
    rng, outputs, inputs, values = generator(), [], [], []
    for op, params, _ in DISTRIBUTIONS:
        given = [x for x in params if x is not None]
        vectors = [pt.dvector() for _ in given]
        inputs += vectors
        values += [np.array([x[0], x[0]]) for x in given]
        columns = iter(vectors)
        rng, x = op(*(None if x is None else next(columns) for x in params), rng=rng, return_next_rng=True)
        outputs.append(x)
    functions = [pytensor.function(inputs, outputs, mode=mode) for mode in ("FAST_COMPILE", FULLGRAPH)]
    return functions, values


INPUTS = [(i, j) for i, (_, params, _) in enumerate(DISTRIBUTIONS) for j, x in enumerate(params) if x is not None]


@pytest.mark.parametrize("position", range(len(INPUTS)), ids=[f"{IDS[i]}-{j}" for i, j in INPUTS])
def test_parameters(both_modes, position):
    """Zeros, signs, infinities and NaN: the same errors, and otherwise the same NaN."""
    (reference, f), values = both_modes
    row, _ = INPUTS[position]
    for bad in (-1.0, 0.0, -0.0, np.nan, INF, -INF):
        given = [np.array(x) for x in values]
        given[position][1] = bad
        try:
            with np.errstate(all="ignore"):
                want = reference(*given)[row]
        except (ValueError, OverflowError) as error:
            with pytest.raises(type(error)) as raised:
                f(*given)
            assert str(raised.value) == str(error)
        else:
            got = f(*given)[row]
            assert got.shape == want.shape
            assert np.isfinite(got[0])
            if not np.isinf(bad):
                assert np.isnan(got[1]) == np.isnan(want[1]), (bad, got, want)


def test_sizes_of_rejection_loops():
    rng, outputs, sizes = generator(), [], [None, (), (0,), (2, 0), (2, 3)]
    for size in sizes:
        rng, x = pt.random.gamma(0.5, scale=2.0, size=size, rng=rng, return_next_rng=True)
        outputs.append(x)
    for x, size in zip(pytensor.function([], outputs, mode=FULLGRAPH)(), sizes, strict=True):
        assert x.shape == (size or ())
        assert np.isfinite(x).all()


def test_parameters_broadcast():
    alpha, scale = pt.tensor("alpha", shape=(None, 1), dtype="float64"), pt.vector("scale", dtype="int64")
    _, x = pt.random.gamma(alpha, scale=scale, rng=generator(), return_next_rng=True)
    value = pytensor.function([alpha, scale], x, mode=FULLGRAPH)(np.array([[1e6], [1e10]]), np.array([1, 10, 0]))
    np.testing.assert_allclose(value, [[1e6, 1e7, 0], [1e10, 1e11, 0]], rtol=1e-2)


def test_float16():
    _, x = pt.random.gamma(
        np.float16(2), scale=np.float16(1), size=(3000,), rng=generator(), return_next_rng=True, dtype="float16"
    )
    x = pytensor.function([], x, mode=FULLGRAPH)()
    assert x.dtype == "float16"
    assert st.kstest(x.astype("float64"), st.gamma(2).cdf).pvalue > 1e-3


@pytest.fixture(scope="module")
def pure():
    """A function of a key and parameters, without checks, whose draws are made by two loops."""
    rng, alpha = random_generator_type("rng"), pt.dvector("alpha")
    next_rng, x = pt.random.gamma(alpha, scale=1.0, rng=rng, return_next_rng=True)
    _, y = pt.random.vonmises(0.0, alpha, rng=next_rng, return_next_rng=True)
    return pjl.as_jax_function([rng, alpha], [x, y])


def test_vmap_over_keys(pure):
    values = np.array([0.1, 1.0, 5.0, 0.01])
    with jax.enable_x64(True):
        keys = jax.random.key_data(jax.random.split(jax.random.key(0), 4))
        batch = jax.vmap(pure, in_axes=(0, None))(keys, values)
        for one, many in zip(pure(keys[2], values), batch, strict=True):
            np.testing.assert_allclose(many[2], one, rtol=1e-12)
            assert len(np.unique(many)) == 16


def test_without_checks_bad_parameters_give_nan_and_loops_end(pure):
    with jax.enable_x64(True):
        x, y = pure(jax.random.key_data(jax.random.key(0)), np.array([-1.0, -INF, np.nan, INF]))
    np.testing.assert_array_equal(x, [np.nan, np.nan, np.nan, INF])
    np.testing.assert_array_equal(y, [np.nan, np.nan, np.nan, 0.0])


def test_gradient_of_the_scale():
    rng, scale = random_generator_type("rng"), pt.dscalar("scale")
    _, x = pt.random.gamma(2.0, scale=scale, size=(3,), rng=rng, return_next_rng=True)
    fn = pjl.as_jax_function([rng, scale], [x.sum()])
    with jax.enable_x64(True):
        key = jax.random.key_data(jax.random.key(0))
        total, slope = jax.value_and_grad(lambda s: fn(key, s)[0])(2.0)
        np.testing.assert_allclose(slope, total / 2)


def test_export_with_a_symbolic_length(pure):
    with jax.enable_x64(True):
        key, (n,) = jax.random.key_data(jax.random.key(0)), jax.export.symbolic_shape("n")
        declared = jax.ShapeDtypeStruct(key.shape, key.dtype), jax.ShapeDtypeStruct((n,), "float64")
        exported = jax.export.export(jax.jit(pure))(*declared)
        values = np.array([0.1, 1.0, 5.0, 0.01])
        for got, want in zip(exported.call(key, values), pure(key, values), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12)
