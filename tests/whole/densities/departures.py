"""Where our log densities or gradients are wrong though the truth is finite, and why. Nowhere else may they be."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from densities.row import Row


class Departure(NamedTuple):
    """Rows, by a regular expression that their whole id matches, the unconstrained values where they are wrong, and the reason."""

    rows: str
    where: Callable[[float], bool]
    reason: str
    precisions: tuple[str, ...] = ("float64", "float32")


def anywhere(u: float) -> bool:
    return True


def far(u: float) -> bool:
    return abs(u) >= 700


KNOWN = [
    Departure(
        r"Beta: .*(alpha|beta)=exp.*",
        lambda u: u == 0,
        "PyMC writes `switch(alpha == 1, 0, (alpha - 1) * log(x))`, so the gradient by a parameter that is exactly 1 is without this term.",
    ),
    Departure(
        r".*",
        far,
        "From ±700 on, `exp(a)` or a power of it overflows or underflows, so a number that PyMC's formula needs is infinite or zero, and its own"
        " check takes the parameter for invalid.",
    ),
    Departure(
        r"(Loop: )?(Beta: mu|AsymmetricLaplace|CAR|GARCH).*=(invlogit|invprobit|1 - exp).*",
        anywhere,
        "`1 - p` of a `p` that is rounded: where `p` is close to 1, its digits are gone before a logarithm or a gradient is taken.",
    ),
    Departure(
        r"DiscreteWeibull.*",
        anywhere,
        "`log(q**(x**beta) - q**((x + 1)**beta))`, a difference of numbers that round to each other.",
    ),
    Departure(
        r"(Hurdle|Truncated\(Poisson).*",
        anywhere,
        "`log(1 - exp(...))` of the log probability of zero, which has rounded to 0 or to -inf.",
    ),
    Departure(
        r"(Censored|Truncated|TruncatedNormal|Ordered).*",
        anywhere,
        "A difference of distribution functions, or the logarithm of one, that has rounded to 0 or 1.",
    ),
    Departure(r"Triangular.*", anywhere, "`x - lower` and `upper - x` of a value that has rounded to its bound."),
    Departure(
        r"Rice.*",
        anywhere,
        "The exponential of the density underflows before its logarithm is taken, and `i0` of a tiny number is 1.",
    ),
    Departure(
        r"Wald.*", anywhere, "`(x - mu) / mu` for a large `mu`, whose derivative is a difference of large numbers."
    ),
    Departure(
        r"Kumaraswamy.*",
        anywhere,
        "`log(1 - x**a)` of a power that is rounded: where `x**a` is close to 1, its digits are gone.",
    ),
    Departure(
        r"SkewStudentT.*sigma=.*",
        anywhere,
        "`1 - z / sqrt(a + b + z**2)` of a quotient that is rounded: for large `z` its digits are gone.",
    ),
    Departure(
        r"InverseGamma: mu.*",
        anywhere,
        "`(2 * sigma**2 + mu**2) / sigma**2`, whose derivative by `sigma` is a difference of large numbers.",
    ),
    Departure(
        r"ExGaussian.*", anywhere, "From `sigma = 20 * nu` on, PyMC takes the normal density for that of the sum."
    ),
    Departure(
        r"LKJCholeskyCov.*", anywhere, "The diagonal of the correlations is a quotient of norms that are rounded."
    ),
    Departure(
        r"(ZeroInflated)?NegativeBinomial: .*(n|alpha)=exp.*",
        anywhere,
        "`n` beyond 1e10, where PyMC takes the Poisson density, which has no `alpha`, and whose mean `n (1 - p) / p` is as large as `n`.",
    ),
]


def departure(row: Row, u: float, dtype: str = "float64") -> Departure | None:
    """Return why a row may be wrong at an unconstrained value; None if it must be right."""
    for known in KNOWN:
        if dtype in known.precisions and re.fullmatch(known.rows, row.id) and known.where(u):
            return known
    return None
