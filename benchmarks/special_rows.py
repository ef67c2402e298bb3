"""Which special functions are measured, on which arguments, and how far off they may be: docs/special-functions.md and the tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.scalar.math as psm
from pytensor.tensor.elemwise import Elemwise


class Row(NamedTuple):
    """One function on one part of its domain."""

    name: str
    #: The domain, as the table states it.
    domain: str
    #: From variables to the result.
    function: Callable[..., Any]
    #: The name of the reference in `special_reference`.
    reference: str
    #: Arguments, a column each. Those that somebody reported come first.
    points: list[np.ndarray]
    #: The largest errors in units of the last place of float64 and of float32 results.
    bounds: tuple[float, float]
    #: In what unit the last place is counted: of the result, or of what `scale` in `special_reference` says, if that is larger.
    scale: str = ""

    @property
    def id(self) -> str:
        return f"{self.name}, {self.domain}"


def errors(got: np.ndarray, want: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return distances in units of the last place of `want`, or of `scale` where that is larger."""
    unit = np.spacing(np.maximum(np.abs(want), scale).astype(got.dtype)).astype("float64")
    with np.errstate(all="ignore"):
        distance = np.abs(got.astype("float64") - want) / unit
    return np.where(np.isnan(distance), np.inf, distance)


def number(x: float, bits: int = 52) -> str:
    """Return an error of numbers of so many bits to two digits."""
    if x >= 2**bits:
        return "all digits"
    return f"{x:.1f}" if x < 10 else f"{float(f'{x:.2g}'):,.0f}" if x < 1e6 else f"{x:.0e}"


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng([2026, seed])


def geometric(low: float, high: float, n: int, seed: int = 0) -> np.ndarray:
    """Return a sample whose logarithm is uniform."""
    return np.exp(rng(seed).uniform(np.log(low), np.log(high), n))


def uniform(low: float, high: float, n: int, seed: int = 0) -> np.ndarray:
    return rng(seed).uniform(low, high, n)


def both(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, -x])


def near(centres: Any, n: int, closest: float = 1e-15) -> np.ndarray:
    """Return points on both sides of each centre, at relative distances from `closest` to 0.1."""
    steps = both(np.geomspace(closest, 0.1, n))
    return np.ravel([c + max(abs(c), 1e-300) * steps for c in np.asarray(centres, float)])


def joined(*parts: list[np.ndarray]) -> list[np.ndarray]:
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def row(name: str, domain: str, bounds: tuple[float, float], *points: np.ndarray, scale: str = "") -> Row:
    """Return a row of a function, or of PyTensor's derivative of one by an input, as in ``d gammainc / da``."""
    operation, _, letter = name.removeprefix("d ").partition(" / d")
    op = Elemwise(getattr(psm, operation, None) or getattr(ps, operation))
    if not letter:
        return Row(name, domain, op, name, [*points], bounds, scale)

    def slope(*xs: Any) -> Any:
        return pytensor.grad(op(*xs).sum(), xs["abc".index(letter)])

    return Row(name, domain, slope, f"{operation}_d{letter}", [*points], bounds, scale)


def one(name: str, domain: str, bounds: tuple[float, float], *parts: np.ndarray, scale: str = "") -> Row:
    """Return a row of a function of one argument, whose points are of several parts."""
    return row(name, domain, bounds, np.concatenate(parts), scale=scale)


#: The bound of float32 results that are computed in float64: half a unit, and what the error in float64 adds to it.
ROUNDED = 0.51
BULK = uniform(-10, 10, 800)
SMALL = both(geometric(1e-300, 1, 150, 1))
TINY_AND_HUGE = geometric(1e-300, 1e300, 300, 2)
PARAMETERS = geometric(1e-10, 1e6, 500, 3)
NEGATIVE = np.concatenate([-uniform(0.01, 20, 400, 4), near(-np.arange(1.0, 11), 15), -uniform(20, 170, 100, 5)])


def at_gamma_transition(n: int, low: float, high: float, width: float, seed: int) -> list[np.ndarray]:
    """Return a and x, a number of standard deviations of the gamma distribution from its mean."""
    a = geometric(low, high, n, seed)
    return [a, a + uniform(-width, width, n, seed + 100) * np.sqrt(a)]


def positive(points: list[np.ndarray]) -> list[np.ndarray]:
    keep = np.all([p > 0 for p in points], axis=0)
    return [p[keep] for p in points]


def beta_near_mean(n: int, low: float, high: float, width: float, seed: int) -> list[np.ndarray]:
    a, b = geometric(low, high, n, seed), geometric(low, high, n, seed + 100)
    mean = a / (a + b)
    x = mean + uniform(-width, width, n, seed + 200) * np.sqrt(mean * (1 - mean) / (a + b + 1))
    keep = (x > 0) & (x < 1)
    return [a[keep], b[keep], x[keep]]


def to_one(n: int, closest: float, seed: int) -> np.ndarray:
    """Return points of the unit interval, many of them next to its ends."""
    end = geometric(closest, 0.5, n // 2, seed)
    return np.concatenate([end, 1 - geometric(max(closest, 1e-16), 0.5, n - n // 2, seed + 100)])


GAMMA_BULK = [geometric(0.01, 200, 500, 10), geometric(0.01, 300, 500, 11)]
GAMMA_TINY = [geometric(1e-100, 0.1, 300, 12), geometric(1e-50, 30, 300, 13)]
GAMMA_LARGE = at_gamma_transition(200, 100, 1e6, 6, 14)
BETA_BULK = [geometric(0.01, 200, 500, 20), geometric(0.01, 200, 500, 21), to_one(500, 1e-10, 22)]
BETA_TINY = joined(
    [np.array([1e-8, 50, 0.5]), np.array([50, 1e-8, 1e-8]), np.array([0.01, 0.99, 0.9999])],
    [geometric(1e-30, 0.5, 300, 23), geometric(1e-3, 1e3, 300, 24), to_one(300, 1e-12, 25)],
    [geometric(1e-3, 1e3, 300, 26), geometric(1e-30, 0.5, 300, 27), to_one(300, 1e-12, 28)],
    [geometric(1e-15, 0.5, 100, 29), geometric(1e-15, 0.5, 100, 30), to_one(100, 1e-12, 31)],
)
BETA_LARGE = beta_near_mean(200, 10, 1e5, 6, 32)


def orders(n: int, high: float, seed: int, far: float) -> list[np.ndarray]:
    v = uniform(0, high, n, seed)
    v[::4] = np.round(v[::4])
    return [v, geometric(1e-3, far, n, seed + 100)]


def large_orders(n: int, seed: int) -> list[np.ndarray]:
    return [geometric(30, 1000, n, seed), geometric(1, 3000, n, seed + 1)]


def negative_orders(n: int, seed: int) -> list[np.ndarray]:
    return [-uniform(0, 10, n, seed), geometric(1e-2, 100, n, seed + 1)]


def hypergeometric(n: int, size: float, seed: int, low: float = -20.0, high: float = 1.0) -> list[np.ndarray]:
    return [*(uniform(-size, size, n, seed + k) for k in (100, 200, 300)), uniform(low, high, n, seed)]


X0 = np.array([2.404825557695773, 5.520078110286311, 8.653727912911013, 30.634606468431976])
X1 = np.array([3.8317059702075125, 7.015586669815619, 10.173468135062722, 32.189679910974405])

POLYGAMMA = np.concatenate([uniform(0.1, 40, 210), geometric(1e-10, 1e10, 210)])
OWENS = joined(
    [np.array([-20.0]), np.array([1e-20])],
    [both(uniform(0, 8, 200, 60)), geometric(1e-6, 1e6, 400, 61)],
    [uniform(0, 37, 200, 62), uniform(-1, 1, 200, 63)],
    [geometric(1e-200, 37, 150, 64), geometric(1e-150, 10, 150, 65)],
)
BETA_MODERATE = [geometric(0.1, 100, 120, 84), geometric(0.1, 100, 120, 85), to_one(120, 1e-3, 86)]
HYPERGEOMETRIC_MODERATE = [*(uniform(0.1, 3, 60, k) for k in (87, 88, 89)), uniform(-0.9, 0.9, 60, 90)]
BESSEL = np.concatenate([both(uniform(0, 700, 150)), geometric(1e-8, 100, 150)])

ROWS = [
    one("erf", "all x", (2, 4), BULK / 2, SMALL),
    one("erfc", "all x", (4, 5), BULK, uniform(-6, 26.5, 300), SMALL),
    one("erfcx", "x > -26", (4, 4), uniform(-26, 10, 600), TINY_AND_HUGE),
    one("erfinv", "-1 < x < 1", (3, 4), uniform(-1, 1, 300), SMALL, both(1 - geometric(2e-16, 0.5, 200))),
    one("erfcinv", "0 < x < 2", (3, 4), uniform(0, 2, 300), geometric(1e-307, 0.5, 300), near([1.0], 30)),
    one(
        "ndtri_exp",
        "x < 0",
        (4, 4),
        *(-geometric(1e-16, 1e16, 500), -geometric(1e-300, 1e300, 100), near([-np.log(2)], 30)),
    ),
    one("log1mexp", "x < 0", (3, 3), -geometric(1e-300, 700, 500), -near([np.log(2)], 30)),
    one("softplus", "all x", (3, 3), BULK * 4, SMALL, uniform(-700, 700, 200)),
    one("sigmoid", "all x", (3, 3), BULK * 4, SMALL, uniform(-700, 40, 200)),
    one("cosh", "all x", (3, 3), BULK, SMALL, uniform(-710, 710, 200)),
    one("sinh", "all x", (3, 3), BULK, SMALL, uniform(-710, 710, 200)),
    one("exp2", "all x", (2, 2), BULK, SMALL, uniform(-1022, 1024, 200)),
    one("gamma", "all x", (8, ROUNDED), uniform(0, 171, 400), geometric(1e-300, 1, 100), NEGATIVE),
    one("gammaln", "x > 0", (5, 4), uniform(0, 40, 400), near([1.0, 2.0], 30), TINY_AND_HUGE),
    one("gammaln", "x < 0", (5, 5), NEGATIVE, -geometric(1e-300, 1, 100), scale="gammaln_terms"),
    one("psi", "x > 0", (3, 3), uniform(0, 40, 400), near([1.4616321449683622], 30), TINY_AND_HUGE),
    one("psi", "x < 0", (5, 6), NEGATIVE, -geometric(1e-300, 1, 100), scale="psi_terms"),
    one("tri_gamma", "x > 0", (4, 3), uniform(0, 40, 400), geometric(1e-150, 1e300, 300)),
    one("tri_gamma", "x < 0", (6, 4), NEGATIVE, -geometric(1e-150, 1, 100)),
    row("polygamma", "n ≤ 20, x > 0", (15, ROUNDED), np.tile(np.arange(21), 20), POLYGAMMA),
    row("polygamma", "n ≤ 10, x < 0", (10, ROUNDED), np.tile(np.arange(1, 11), 20), -uniform(0.01, 20, 200)),
    *(
        row(name, domain, (bound, ROUNDED), *points)
        for name in ("gammainc", "gammaincc")
        for domain, bound, points in (
            ("0.01 < a < 200", 1500, GAMMA_BULK),
            ("a < 0.1, to 1e-100", 15, GAMMA_TINY),
            ("100 < a < 1e6, near the mean", 100, GAMMA_LARGE),
            ("1 < a < 1e4, far tails", 3000, positive(at_gamma_transition(300, 1, 1e4, 35, 15))),
        )
    ),
    *(
        row(name, "0.05 < a < 1e4", (60, ROUNDED), geometric(0.05, 1e4, 200, 16), to_one(200, 1e-200, 17))
        for name in ("gammaincinv", "gammainccinv")
    ),
    row("betainc", "0.01 < a, b < 200", (400, ROUNDED), *BETA_BULK),
    row("betainc", "a or b < 0.5, to 1e-30", (80, ROUNDED), *BETA_TINY),
    row("betainc", "10 < a, b < 1e5, near the mean", (500, ROUNDED), *BETA_LARGE),
    row("betainc", "1 < a, b < 1e4, far tails", (3000, ROUNDED), *beta_near_mean(300, 1, 1e4, 35, 34)),
    row(
        "betaincinv",
        "0.05 < a, b < 1e4",
        (50, ROUNDED),
        *(geometric(0.05, 1e4, 200, 35), geometric(0.05, 1e4, 200, 36), to_one(200, 1e-100, 37)),
    ),
    *(
        one(
            name,
            "|x| < 1e6",
            (20, ROUNDED),
            *(both(uniform(0, 60, 300)), near(zeros, 20), geometric(1e-8, 1e6, 200)),
            scale=f"{name}_amplitude",
        )
        for name, zeros in (("j0", X0), ("j1", X1))
    ),
    row("jv", "0 ≤ v < 30, x < 1e3", (80, ROUNDED), *orders(500, 30, 40, 1e3), scale="jv_amplitude"),
    row("jv", "30 < v < 1000, x < 3000", (1000, ROUNDED), *large_orders(200, 41), scale="jv_amplitude"),
    row("jv", "-10 < v < 0", (30, ROUNDED), *negative_orders(200, 43), scale="jv_terms"),
    one("i0", "|x| < 700", (5, ROUNDED), BESSEL),
    one("i1", "|x| < 700", (6, ROUNDED), BESSEL),
    row("ive", "0 ≤ v < 30, x < 1e4", (40, ROUNDED), *orders(400, 30, 45, 1e4)),
    row("ive", "30 < v < 1000, x < 3000", (300, ROUNDED), *large_orders(150, 46)),
    row("ive", "-10 < v < 0", (15, ROUNDED), *negative_orders(150, 48), scale="ive_terms"),
    row("kve", "0 ≤ v < 30, x < 1e4", (40, ROUNDED), *orders(400, 30, 50, 1e4)),
    row("kve", "30 < v < 1000, x < 3000", (400, ROUNDED), *large_orders(150, 51)),
    row("owens_t", "|h| < 37, all a", (10, ROUNDED), *OWENS),
    row("hyp2f1", "|a|, |b|, |c| < 3", (1000, ROUNDED), *hypergeometric(300, 3, 70)),
    row("hyp2f1", "|a|, |b|, |c| < 3, z near 1", (100, ROUNDED), *hypergeometric(150, 3, 71, 0.8)),
    row("hyp2f1", "|a|, |b|, |c| < 10", (1000000, ROUNDED), *hypergeometric(300, 10, 72)),
    row("d gammainc / da", "0.1 < a < 100", (1500, 500), *(geometric(0.1, 100, 120, k) for k in (80, 81))),
    *(row(f"d betainc / d{letter}", "0.1 < a, b < 100", (10_000, np.inf), *BETA_MODERATE) for letter in "ab"),
    *(
        row(f"d hyp2f1 / d{letter}", "0 < a, b, c < 3, |z| < 0.9", (1e8, np.inf), *HYPERGEOMETRIC_MODERATE)
        for letter in "abc"
    ),
]
