"""All rows of the table."""

from __future__ import annotations

from densities.composed import COMPOSED
from densities.loops import LOOPS
from densities.multivariate import MULTIVARIATE
from densities.row import Row
from densities.series import SERIES
from densities.univariate import CONTINUOUS, DISCRETE

ROWS: list[Row] = [*CONTINUOUS, *DISCRETE, *COMPOSED, *MULTIVARIATE, *SERIES, *LOOPS]

#: What has no rows, and why.
EXCLUDED = {
    "Continuous": "a base class",
    "Discrete": "a base class",
    "Distribution": "a base class",
    "SymbolicRandomVariable": "a base class",
    "CustomDist": "its log density is the user's own",
    "DensityDist": "another name of CustomDist",
    "Simulator": "it has no log density",
    "DiscreteUniform": "no parameter is continuous",
    "HyperGeometric": "no parameter is continuous",
    "PolyaGamma": "its log density is an Op without a gradient",
    "Lognormal": "another name of LogNormal",
    "RandomWalk": "GaussianRandomWalk is one",
    "Flat": "its log density is zero: it is the free variable of most rows",
}
