"""Special functions in arbitrary precision, by mpmath where that is reliable, else by series of positive terms.

Each function takes floats and returns an mpf of some 30 correct digits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from mpmath import mp, mpf
from mpmath.calculus.quadrature import GaussLegendre
from scipy import special

#: Digits beyond those that an argument close to a singularity takes.
DIGITS = 35


def digits_of(*xs: float) -> int:
    """Return enough digits that 1 + x keeps some of each x."""
    return mp.dps + max((int(-mp.log10(abs(x))) for x in xs if 0 < abs(x) < 1), default=0)


def newton(f: Callable[[mpf], tuple[mpf, mpf]], start: float) -> mpf:
    """Return a zero of f; `f` returns its value and its slope as functions of ``log(x)``."""
    x = mpf(start)
    if not 0 < x < mp.inf:
        raise ArithmeticError(f"no zero from {start}")
    for _ in range(60):
        value, slope = f(x)
        change = -value / slope
        x *= mp.exp(max(min(change, 5), -5))
        if abs(change) < mpf(10) ** -25:
            return x
    raise ArithmeticError(f"no zero from {start}")


def erfcx(x: float) -> mpf:
    if x < 1e6:
        return mp.exp(mpf(x) ** 2) * mp.erfc(x)
    square = 1 / (2 * mpf(x) ** 2)
    return (1 - square + 3 * square**2) / (x * mp.sqrt(mp.pi))


def erfcinv(x: float) -> mpf:
    if x > 0.5:
        return mp.erfinv(1 - mpf(x))

    def f(y):
        value = mp.erfc(y)
        return mp.log(value / x), -2 / mp.sqrt(mp.pi) * mp.exp(-y * y) / value * y

    return newton(f, mp.sqrt(-mp.log(x)))


def erfinv(x: float) -> mpf:
    with mp.workdps(digits_of(1 - abs(x))):
        return mp.erfinv(x)


def normal_quantile(log_q: mpf) -> mpf:
    """Return the y > 0 for which the upper tail of the normal distribution is exp(log_q), which is less than a half."""

    def f(y):
        if y < 1000:
            tail = mp.erfc(y / mp.sqrt(2)) / 2
            return mp.log(tail) - log_q, -mp.npdf(y) / tail * y
        w = 1 / (y * y)
        mills = 1 - w + 3 * w**2 - 15 * w**3 + 105 * w**4
        return -y * y / 2 - mp.log(y * mp.sqrt(2 * mp.pi)) + mp.log(mills) - log_q, -y * y / mills

    return newton(f, mp.sqrt(-2 * log_q))


def ndtri_exp(x: float) -> mpf:
    if x < -0.75:
        return -normal_quantile(mpf(x))
    if x > -0.6:
        return normal_quantile(mp.log(-mp.expm1(x)))
    return mp.sqrt(2) * mp.erfinv(2 * mp.exp(x) - 1)


def log1mexp(x: float) -> mpf:
    return mp.log(-mp.expm1(x)) if x > -1 else mp.log1p(-mp.exp(x))


def softplus(x: float) -> mpf:
    return mp.log1p(mp.exp(x))


def sigmoid(x: float) -> mpf:
    return 1 / (1 + mp.exp(-mpf(x)))


def exp2(x: float) -> mpf:
    return mpf(2) ** x


def gammaln(x: float) -> mpf:
    with mp.workdps(digits_of(x) + 20):
        return mp.loggamma(x) if x > 0 else mp.log(abs(mp.gamma(x)))


def gammaln_terms(x: float) -> mpf:
    """Return the larger term of the reflection formula."""
    return mp.loggamma(1 - mpf(x))


def psi(x: float) -> mpf:
    with mp.workdps(digits_of(x)):
        return mp.psi(0, x)


def psi_terms(x: float) -> mpf:
    """Return the larger term of the reflection formula."""
    return abs(mp.psi(0, 1 - mpf(x)))


def polygamma(n: float, x: float) -> mpf:
    with mp.workdps(digits_of(x)):
        return mp.psi(int(n), x)


def positive_series(numerator: mpf, slope: mpf, denominator: mpf, bits: int) -> mpf:
    """Return ``1 + t1 + t1 t2 + ...`` for ``tn = (numerator + slope n) / (denominator + n)``, in integers."""
    one = 1 << bits
    p, s, q = (int(mp.floor(v * one + mpf(1) / 2)) for v in (numerator, slope, denominator))
    total = term = one
    while term > 16:
        p, q = p + s, q + one
        term = term * p // q
        total += term
    return mpf(total) / one


def gamma_tails(a: mpf, x: mpf) -> tuple[mpf, mpf, mpf]:
    """Return P, Q and ``x**a exp(-x) / gamma(a + 1)``, at the working precision."""
    factor = mp.exp(a * mp.log(x) - x - mp.loggamma(a + 1))
    if x <= max(a, 2):
        lower = factor * positive_series(x, mpf(0), a, mp.prec + 20)
        return lower, 1 - lower, factor
    start = x + 1 - a
    total = d = 1 / start
    c, n = mp.inf, 0
    while True:
        n += 1
        numerator, denominator = n * (a - n), start + 2 * n
        d = 1 / (denominator + numerator * d)
        c = denominator + numerator / c
        total *= c * d
        if abs(c * d - 1) < 1e6 * mp.eps:
            upper = factor * a * total
            return 1 - upper, upper, factor


def gammainc(a: float, x: float) -> mpf:
    with mp.workdps(digits_of(a) + 10):
        return gamma_tails(mpf(a), mpf(x))[0]


def gammaincc(a: float, x: float) -> mpf:
    with mp.workdps(digits_of(a) + 10):
        return gamma_tails(mpf(a), mpf(x))[1]


def gamma_quantile(a: float, p: mpf, q: mpf, start: float) -> mpf:
    """Return the x for which P is p and Q is q = 1 - p."""

    def f(x):
        lower, upper, factor = gamma_tails(mpf(a), x)
        value, sign = (lower, 1) if p < q else (upper, -1)
        return mp.log(value / min(p, q)), sign * factor * a / value

    with mp.workdps(digits_of(a) + 10):
        return newton(f, start)


def gammaincinv(a: float, p: float) -> mpf:
    return gamma_quantile(a, mpf(p), 1 - mpf(p), special.gammaincinv(a, p))


def gammainccinv(a: float, q: float) -> mpf:
    return gamma_quantile(a, 1 - mpf(q), mpf(q), special.gammainccinv(a, q))


def beta_tails(a: mpf, b: mpf, x: mpf) -> tuple[mpf, mpf, mpf]:
    """Return I, 1 - I and ``x**a (1 - x)**b / B(a, b)``, at the working precision."""
    y = 1 - x
    factor = mp.exp(a * mp.log(x) + b * mp.log(y) + mp.loggamma(a + b) - mp.loggamma(a) - mp.loggamma(b))
    if x * (a + b + 2) <= a + 1:
        lower = factor / a * positive_series((a + b - 1) * x, x, a, mp.prec + 20)
        return lower, 1 - lower, factor
    upper = factor / b * positive_series((a + b - 1) * y, y, b, mp.prec + 20)
    return 1 - upper, upper, factor


def betainc(a: float, b: float, x: float) -> mpf:
    with mp.workdps(digits_of(a, b, x) + 10):
        return beta_tails(mpf(a), mpf(b), mpf(x))[0]


def betaincinv(a: float, b: float, p: float) -> mpf:
    start = special.betaincinv(a, b, p)
    if start < 1e-300:
        return mpf(0)

    def f(x):
        lower, upper, factor = beta_tails(mpf(a), mpf(b), x)
        value, sign = (lower, 1) if p < 0.5 else (upper, -1)
        return mp.log(value / min(mpf(p), 1 - mpf(p))), sign * factor / (value * (1 - x))

    with mp.workdps(digits_of(a, b, start) + 10):
        return newton(f, start)


def derivative(f: Callable[..., mpf], position: int) -> Callable[..., mpf]:
    """Return a partial derivative by a central difference, of an error of 1e-40."""

    def slope(*xs):
        with mp.workdps(3 * DIGITS):
            step = abs(mpf(xs[position])) * mpf(10) ** -22
            ends = [
                f(*(x + sign * step if i == position else x for i, x in enumerate(map(mpf, xs)))) for sign in (1, -1)
            ]
            difference = ends[0] - ends[1]
            if abs(difference) < abs(ends[0]) * mp.eps * mpf(10) ** DIGITS:
                raise ArithmeticError("the difference of values next to 1 has no digits left")
            return difference / (2 * step)

    return slope


def jv_amplitude(v: float, x: float) -> mpf:
    """Return about the modulus (DLMF 10.18.17 and 10.19.8) where J oscillates, else zero."""
    v, x = abs(v), abs(x)
    if x < v + 1:
        return mpf(0)
    return mp.sqrt(2 / (mp.pi * max(mp.sqrt(mpf(x) ** 2 - v * v), 0.8 * mpf(v) ** (2 / 3))))


def jv_terms(v: float, x: float) -> mpf:
    """Return the larger term of the reflection formula."""
    return mp.hypot(mp.besselj(-v, x), mp.bessely(-v, x))


def ive_terms(v: float, x: float) -> mpf:
    """Return the larger term of the reflection formula."""
    return max(ive(-v, x), mp.besselk(-v, x) * mp.exp(-mpf(x)))


def ive(v: float, x: float) -> mpf:
    return mp.besseli(v, x) * mp.exp(-abs(mpf(x)))


def kve(v: float, x: float) -> mpf:
    """Return the trapezoidal sum of its integral (DLMF 10.32.9), whose error is that of the cut tails."""
    with mp.workdps(mp.dps + 10):
        v, x = abs(mpf(v)), mpf(x)
        width = min(mpf("0.1"), mpf("0.4") / mp.sqrt(mp.sqrt(x * x + v * v)))
        total, n, peak = mpf(1) / 2, 0, mp.asinh(v / x)
        while True:
            n += 1
            t = n * width
            term = mp.exp(-2 * x * mp.sinh(t / 2) ** 2) * mp.cosh(v * t)
            total += term
            if t > peak and term < total * mp.eps:
                return width * total


@cache
def gauss_legendre() -> list[tuple[mpf, mpf]]:
    """Return 48 nodes and weights on [0, 1]."""
    return [((1 + x) / 2, w / 2) for x, w in GaussLegendre(mp).calc_nodes(5, mp.prec)]


def owens_t(h: float, a: float) -> mpf:
    """Return the integral for a slope of at most 1; steeper ones by T(h, a) + T(a h, 1 / a) (Patefield and Tandy, equation 3)."""
    h, size = abs(mpf(h)), abs(mpf(a))
    sign = -1 if a < 0 else 1
    if size <= 1:
        end = min(size, 12 / h) if h else size
        nodes = [(end * (x + k) / 2, w) for k in (0, 1) for x, w in gauss_legendre()]
        width = mp.fsum(w * mp.exp(-((h * t) ** 2) / 2) / (1 + t * t) for t, w in nodes) / 2
        return sign * mp.exp(-h * h / 2) * end * width / (2 * mp.pi)
    with mp.workdps(mp.dps + 20):
        p, q = (mp.erfc(y / mp.sqrt(2)) / 2 for y in (h, h * size))
        return sign * ((p + q) / 2 - p * q - owens_t(h * size, 1 / size))


erf, erfc, cosh, sinh, gamma, hyp2f1, jv = mp.erf, mp.erfc, mp.cosh, mp.sinh, mp.gamma, mp.hyp2f1, mp.besselj
j0, j1 = (partial(mp.besselj, n) for n in (0, 1))
i0, i1 = (partial(mp.besseli, n) for n in (0, 1))
j0_amplitude, j1_amplitude = (partial(jv_amplitude, n) for n in (0, 1))
tri_gamma = partial(polygamma, 1)
gammainc_da = derivative(gammainc, 0)
betainc_da, betainc_db = (derivative(betainc, i) for i in (0, 1))
hyp2f1_da, hyp2f1_db, hyp2f1_dc = (derivative(hyp2f1, i) for i in (0, 1, 2))
