"""R-hat and effective sample sizes of draws, with ArviZ's definitions.

ArviZ imports ``scipy.stats`` for them, which takes a second: as long as a short run. These functions need NumPy alone.

References
----------
.. [1] A. Vehtari, A. Gelman, D. Simpson, B. Carpenter, P.-C. Bürkner (2021). Rank-normalization, folding, and
localization: an
   improved R-hat for assessing convergence of MCMC.
.. [2] C. Geyer (1992). Practical Markov chain Monte Carlo: where the sum of autocorrelations ends.
.. [3] C. Margossian et al. (2024). Nested R-hat: assessing the convergence of Markov chain Monte Carlo when running
many short chains.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist

import numpy as np

#: Draws of a chain from which R-hat and effective sample sizes are defined.
LEAST_DRAWS = 4


def rhat(draws: np.ndarray, superchains: int | None = None) -> np.ndarray:
    """Return the rank-normalized split R-hat [1]_ of each element, NaN where it is not defined.

    Draws have the shape ``(chain, draw, ...)``. With `superchains`, the number of groups of equally many successive
    chains that started at one point each, it is nested R-hat [3]_.
    """
    return by_element(draws, 2, lambda x: rhat_of_chains(x, superchains))


def ess(draws: np.ndarray) -> np.ndarray:
    """Return the effective sample size of the bulk [1]_ of each element, or NaN; shapes as for `rhat`."""
    return by_element(draws, 1, lambda x: effective_size(normal_scores(halves_of(x))))


def by_element(draws: np.ndarray, least_chains: int, statistic: Callable[[np.ndarray], float]) -> np.ndarray:
    """Return a statistic of the chains of each element, NaN for too few chains or draws, or if a draw is NaN."""
    elements = draws.reshape(*draws.shape[:2], math.prod(draws.shape[2:]))
    is_short = draws.shape[0] < least_chains or draws.shape[1] < LEAST_DRAWS
    columns = [elements[..., i] for i in range(elements.shape[-1])]
    with np.errstate(all="ignore"):
        found = [np.nan if is_short or np.isnan(x).any() else statistic(x) for x in columns]
    return np.reshape(np.array(found, dtype=float), draws.shape[2:])


def halves_of(chains: np.ndarray) -> np.ndarray:
    """Return the first and the second halves of chains as chains, without the middle one of an odd number of draws."""
    half = chains.shape[1] // 2
    return np.concatenate([chains[:, :half], chains[:, -half:]])


def normal_scores(x: np.ndarray) -> np.ndarray:
    """Replace numbers by normal quantiles of their ranks in all of `x`; ties share their average rank."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    twice_ranks = 2 * np.cumsum(counts) - counts + 1
    return blom_scores(x.size)[twice_ranks[inverse]].reshape(x.shape)


@lru_cache(maxsize=4)
def blom_scores(size: int) -> np.ndarray:
    """Return Blom's normal scores of all ranks in a sample, by twice the rank: halves are the ranks of ties."""
    quantile = NormalDist().inv_cdf
    lower = np.array([-np.inf, -np.inf, *(quantile((i / 2 - 3 / 8) / (size + 1 / 4)) for i in range(2, size + 1))])
    return np.concatenate([lower, [0.0], -lower[:1:-1]])


def rhat_of_chains(chains: np.ndarray, superchains: int | None) -> float:
    """Return R-hat of the chains of one element: the larger one of its location and of its scale."""
    halves = halves_of(chains)
    found = []
    for x in (halves, abs(halves - np.median(halves))):
        scores = normal_scores(x)
        means, variances, count = scores.mean(axis=1), scores.var(axis=1, ddof=1), scores.shape[1]
        if superchains is None:
            ratio = means.var(ddof=1) / variances.mean() - 1 / count
        else:
            # The halves of all chains come one after the other: axis 1 is the point where a chain started.
            means, variances = (
                y.reshape(2, superchains, -1).swapaxes(0, 1).reshape(superchains, -1) for y in (means, variances)
            )
            ratio = means.mean(axis=1).var(ddof=1) / (variances.mean(axis=1) + means.var(axis=1, ddof=1)).mean()
        found.append(float(np.sqrt(1 + ratio)))
    return max(found)


def effective_size(x: np.ndarray) -> float:
    """Return the effective sample size of the mean of chains of equal length."""
    chains, draws = x.shape
    if np.ptp(x) < np.finfo(float).resolution:
        return x.size
    length = 1 << (2 * draws - 1).bit_length()
    power = abs(np.fft.rfft(x - x.mean(axis=1, keepdims=True), length)) ** 2
    covariances = np.fft.irfft(power.mean(axis=0), length)[:draws] / draws
    within = covariances[0] * draws / (draws - 1)
    between = x.mean(axis=1).var(ddof=1) if chains > 1 else 0.0
    correlations = 1 - (within - covariances) / (covariances[0] + between)
    correlations[0] = 1
    # Sums of correlations at lags 2k and 2k + 1 are positive and fall, of an ergodic chain. The first that is not
    # positive is noise.
    last_pair = max(0, (draws - 3) // 2)
    sums = correlations[: 2 * last_pair + 2].reshape(-1, 2).sum(axis=1)
    end = next(iter(np.flatnonzero(~(sums > 0))), last_pair)
    rest = correlations[2 * end]
    rest = rest if rest > 0 or sums[end] >= 0 else 0.0
    time = 2 * np.minimum.accumulate(sums[:end]).sum() + rest - 1
    return float(x.size / max(time, 1 / np.log10(x.size)))
