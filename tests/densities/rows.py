"""All rows of the table."""

from __future__ import annotations

from densities.composed import COMPOSED
from densities.loops import LOOPS
from densities.multivariate import MULTIVARIATE
from densities.row import Row
from densities.series import SERIES
from densities.univariate import CONTINUOUS, DISCRETE

ROWS: list[Row] = [*CONTINUOUS, *DISCRETE, *COMPOSED, *MULTIVARIATE, *SERIES, *LOOPS]
