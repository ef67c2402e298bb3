"""Which chains start again: those that the first transitions of their warm-up led to a region of negligible probability.

A chain that starts near a minor mode stays there, and its draws say nothing of the posterior. The other chains show that it is minor: it has as good as none
of the probability around them. Such a chain starts again from another random point, in its warm-up, so what it draws later is not biased.

References
----------
.. [1] A. Gelman et al. (2020). Bayesian Workflow, section 11: chains that bad starting points led to modes of negligible probability.
.. [2] Y. Yao, A. Vehtari and A. Gelman (2022). Stacking for non-mixing Bayesian computations: chains in several modes are weighted by what these are worth.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytensor_jaxpr_linker.pymc.chains.programs import Chunk

#: After how many transitions of the warm-up chains are compared. In 144 runs of the 23 models of `benchmarks/`, a chain that had arrived by then had a
#: logarithm (`log_shares`) of -1 to 0, one on its way -9, and those in a minor mode -43 or less.
TRIAL = 100
#: Shorter warm-ups compare after a fifth of their transitions, but not after fewer than this.
SHORTEST_TRIAL = 20
#: How often a chain may start again.
RESTARTS = 3
#: The logarithm of the share of the probability below which a region is negligible: 2e-9.
NEGLIGIBLE = -20.0
#: A chain whose mean log density rises by more than so many of its standard deviations, from the third to the fourth quarter of the transitions, is on its way.
#: In 48 runs of `mixture` and `hidden_markov` no chain in a minor mode rose by more than 1. In 40 runs of four of posteriordb's regressions and time series 32 chains
#: were still far away, because of the scales of their predictors, and rose by 2.9 or more.
RISING = 3.0


def trial_length(tune: int) -> int:
    """Return after how many transitions of a warm-up of `tune` chains are compared; 0 if they are not.

    Examples
    --------
    >>> from pytensor_jaxpr_linker.pymc.chains.restarts import trial_length
    >>> trial_length(1000), trial_length(200), trial_length(50)
    (100, 40, 0)
    """
    length = min(TRIAL, tune // 5)
    return length if length >= SHORTEST_TRIAL else 0


def lost_chains(chunks: Sequence[Chunk]) -> dict[int, float]:
    """Return the chains, by their `log_shares`, whose regions are negligible, except those on their way to another."""
    if not chunks:
        return {}
    shares = log_shares(chunks)
    return {int(i): float(shares[i]) for i in np.flatnonzero((shares < NEGLIGIBLE) & ~are_rising(chunks))}


def are_rising(chunks: Sequence[Chunk]) -> np.ndarray:
    """Tell of each chain whether its log density still rises, so that it is in no mode yet.

    The standard deviation of the log density of a normal distribution of d dimensions is the square root of d / 2.

    Examples
    --------
    >>> import numpy as np
    >>> from pytensor_jaxpr_linker.pymc.chains.restarts import are_rising
    >>> lp = np.array([[-100.0] * 20, np.linspace(-200, -100, 20)])
    >>> are_rising([({"x": np.zeros((2, 20, 8))}, {"lp": lp})]).tolist()
    [False, True]
    """
    positions, stats = zip(*chunks, strict=True)
    late = second_half([x["lp"] for x in stats])
    middle = late.shape[1] // 2
    dimensions = sum(x[0, 0].size for x in positions[0].values())
    with np.errstate(all="ignore"):
        return late[:, middle:].mean(axis=1) - late[:, :middle].mean(axis=1) > RISING * np.sqrt(dimensions / 2)


def log_shares(chunks: Sequence[Chunk]) -> np.ndarray:
    """Return, for each chain, an upper estimate of the logarithm of how much probability its region has, for 1 of that of the best chain.

    By Laplace's approximation, the probability of a region is proportional to the mean density of its draws, and to their standard deviation in each direction.
    A region that seems narrower than the best chain's counts as equally wide: a chain that hardly moves shows too little of its width. The second half
    of the transitions counts. The best chain is that of the highest density. NaN if no density is finite.

    Examples
    --------
    >>> import numpy as np
    >>> from pytensor_jaxpr_linker.pymc.chains.restarts import log_shares
    >>> rng = np.random.default_rng(1)
    >>> x = rng.normal([[0], [0], [50]], [[1], [1], [2]], (3, 100))
    >>> lp = np.array([[-1.0], [-1.0], [-31.0]]) + np.zeros((3, 100))
    >>> log_shares([({"x": x}, {"lp": lp})]).round().tolist()
    [0.0, 0.0, -29.0]
    """
    positions, stats = zip(*chunks, strict=True)
    with np.errstate(all="ignore"):
        heights = second_half([x["lp"] for x in stats]).mean(axis=1)
        best = np.argmax(np.where(np.isfinite(heights), heights, -np.inf))
        shares = heights - heights[best]
        for name in positions[0]:
            variances = second_half([x[name] for x in positions]).var(axis=1).reshape(len(shares), -1)
            shares += np.maximum(0.0, np.log(variances / variances[best])).sum(axis=1) / 2
    return shares


def second_half(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the second half of the transitions of chunks."""
    return np.concatenate(parts, axis=1)[:, sum(x.shape[1] for x in parts) // 2 :]
