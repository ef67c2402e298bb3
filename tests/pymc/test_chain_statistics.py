"""R-hat and effective sample sizes against ArviZ's."""

import numpy as np
import pytest
from arviz_stats.base import array_stats

from pytensor_jaxpr_linker.pymc.chain_statistics import blom_scores, ess, rhat

rng = np.random.default_rng(57)


def autoregression(chains, draws, coefficient):
    x = rng.normal(size=(chains, draws))
    for i in range(1, draws):
        x[:, i] += coefficient * x[:, i - 1]
    return x


with_nan = rng.normal(size=(4, 100))
with_nan[2, 7] = np.nan
with_infinities = rng.normal(size=(4, 100))
with_infinities[1, 3:6] = np.inf
with_infinities[2, 3] = -np.inf
one_moves = np.zeros((4, 100))
one_moves[0, 50:] = 1

CHAINS = {
    "independent": rng.normal(size=(4, 1000)),
    "heavy": rng.standard_cauchy(size=(4, 1001)),
    "correlated": autoregression(4, 1000, 0.95),
    "never mixed": autoregression(3, 500, 0.9999),
    "antithetic": autoregression(4, 1000, -0.9),
    "alternating": np.tile([1.0, -1.0], (4, 50)) + 1e-9 * rng.normal(size=(4, 100)),
    "exactly alternating": np.tile([1.0, -1.0], (4, 50)),
    "apart": rng.normal(size=(4, 200)) + np.arange(4)[:, None] * 3,
    "scales": rng.normal(size=(4, 200)) * np.arange(1, 5)[:, None],
    "constant": np.full((4, 100), 2.5),
    "constant chains": np.repeat(np.arange(4.0)[:, None], 100, axis=1),
    "one moves": one_moves,
    "ties": rng.integers(3, size=(4, 300)),
    "booleans": rng.random((4, 300)) < 0.1,
    "tiny": rng.normal(size=(4, 100)) * 1e-300,
    "huge": rng.normal(size=(4, 100)) * 1e300,
    "trend": np.linspace(0, 1, 400) + np.zeros((4, 1)),
    "many": rng.normal(size=(24, 50)),
    "one chain": rng.normal(size=(1, 100)),
    "NaN": with_nan,
    "infinite": with_infinities,
    "no draws": np.empty((4, 0)),
    **{f"{draws} draws": rng.normal(size=(4, draws)) for draws in range(1, 14)},
    **{
        f"{draws} draws up and down": np.tile([1.0, -1.0], (2, draws))[:, :draws] + 0.1 * rng.normal(size=(2, draws))
        for draws in range(4, 12)
    },
}


@pytest.mark.parametrize("chains", CHAINS.values(), ids=CHAINS)
@pytest.mark.filterwarnings("ignore")
def test_as_arviz(chains):
    expected = array_stats.rhat(chains) if chains.size else np.nan
    # Between chains that do not move R-hat is infinite; ArviZ rounds that to 7e15.
    np.testing.assert_allclose(np.minimum(rhat(chains), 1e12), np.minimum(expected, 1e12), rtol=1e-10)
    expected = array_stats.ess(chains, method="bulk") if chains.size else np.nan
    np.testing.assert_allclose(ess(chains), expected, rtol=1e-10)


@pytest.mark.parametrize("points", [2, 3, 8, 24])
def test_nested(points):
    chains = rng.normal(size=(24, 30)) + rng.normal(size=24)[:, None]
    ids = np.repeat(np.arange(points), 24 // points)
    np.testing.assert_allclose(rhat(chains, points), array_stats.rhat_nested(chains, ids), rtol=1e-10)


def test_elements():
    draws = rng.normal(size=(4, 50, 2, 3))
    assert rhat(draws).shape == ess(draws).shape == (2, 3)
    np.testing.assert_array_equal(rhat(draws)[1, 2], rhat(draws[:, :, 1, 2]))
    np.testing.assert_array_equal(ess(draws)[1, 2], ess(draws[:, :, 1, 2]))
    assert rhat(draws[..., :0]).shape == (2, 0)


@pytest.mark.parametrize("size", [4, 7, 5000])
def test_scores(size):
    from scipy.special import ndtri

    twice = np.arange(2, 2 * size + 1)
    np.testing.assert_allclose(
        blom_scores(size)[2:], ndtri((twice / 2 - 0.375) / (size + 0.25)), rtol=1e-11, atol=1e-15
    )
