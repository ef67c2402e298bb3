"""Log densities from textbooks, in mpmath: lists of the additive terms.

Parameters between 0 and 1 are a `Share`, which has what is left to 1, too.
"""

from __future__ import annotations

from typing import Any

from densities.links import Share, normal_cdf
from mpmath import mp, mpf

INF = mp.inf
type Number = Any
type Terms = list[Any]

log, gammaln = mp.log, mp.loggamma


def times_log(x: Number, y: Number) -> Number:
    """Return x log y, which is 0 for x = 0."""
    return mpf(0) if x == 0 else x * mp.log(y)


def log_beta(a: Number, b: Number) -> Terms:
    return [gammaln(a), gammaln(b), -gammaln(a + b)]


def minus(terms: Terms) -> Terms:
    return [-t for t in terms]


def log_choose(n: Number, k: Number) -> Terms:
    return [gammaln(mpf(n) + 1), -gammaln(mpf(k) + 1), -gammaln(mpf(n) - k + 1)]


# Continuous ones


def uniform(x: Number, lower: Number, upper: Number) -> Terms:
    return [-log(upper - lower)] if lower <= x <= upper else [-INF]


def normal(x: Number, mu: Number, sigma: Number) -> Terms:
    return [-(((x - mu) / sigma) ** 2) / 2, -log(sigma), -log(2 * mp.pi) / 2]


def by_tau(density: Any) -> Any:
    """Return the density by a precision instead of a scale."""
    return lambda x, tau, **others: density(x, sigma=1 / mp.sqrt(tau), **others)


def by_lam(density: Any) -> Any:
    return lambda x, lam, **others: density(x, sigma=1 / mp.sqrt(lam), **others)


def log_cdf_between(low: Number, high: Number) -> Number:
    """Return the log of the normal probability between two numbers."""
    if low > 0:
        low, high = -high, -low
    return log(normal_cdf(high).p - normal_cdf(low).p)


def truncated_normal(x: Number, mu: Number, sigma: Number, lower: Number = -INF, upper: Number = INF) -> Terms:
    if not lower <= x <= upper:
        return [-INF]
    return [*normal(x, mu, sigma), -log_cdf_between((lower - mu) / sigma, (upper - mu) / sigma)]


def half_normal(x: Number, sigma: Number) -> Terms:
    return [*normal(x, mpf(0), sigma), log(2)]


def skew_normal(x: Number, mu: Number, sigma: Number, alpha: Number) -> Terms:
    return [*normal(x, mu, sigma), log(2), log(normal_cdf(alpha * (x - mu) / sigma).p)]


def beta(x: Number, alpha: Number, beta: Number) -> Terms:
    return [(alpha - 1) * log(x), (beta - 1) * log(1 - x), *minus(log_beta(alpha, beta))]


def beta_mean(x: Number, mu: Share, sigma: float) -> Terms:
    nu = mu.p * mu.q / mpf(sigma) ** 2 - 1
    return beta(x, mu.p * nu, mu.q * nu) if nu > 0 else [-INF]


def beta_size(x: Number, mu: Share, nu: Number) -> Terms:
    return beta(x, mu.p * nu, mu.q * nu)


def kumaraswamy(x: Number, a: Number, b: Number) -> Terms:
    return [log(a), log(b), (a - 1) * log(x), (b - 1) * log(-mp.expm1(a * log(x)))]


def exponential(x: Number, lam: Number) -> Terms:
    return [log(lam), -lam * x]


def exponential_scale(x: Number, scale: Number) -> Terms:
    return [-log(scale), -x / scale]


def laplace(x: Number, mu: Number, b: Number) -> Terms:
    return [-log(2 * b), -abs(x - mu) / b]


def asymmetric_laplace(x: Number, mu: Number, b: Number, kappa: Number) -> Terms:
    side = kappa if x >= mu else -1 / kappa
    return [log(b), -log(kappa + 1 / kappa), -(x - mu) * b * side]


def asymmetric_laplace_q(x: Number, mu: Number, b: Number, q: Share) -> Terms:
    return asymmetric_laplace(x, mu, b, mp.sqrt(q.p / q.q))


def log_normal(x: Number, mu: Number, sigma: Number) -> Terms:
    return [*normal(log(x), mu, sigma), -log(x)]


def student_t(x: Number, nu: Number, mu: Number, sigma: Number) -> Terms:
    z = (x - mu) / sigma
    return [
        gammaln((nu + 1) / 2),
        -gammaln(nu / 2),
        -log(nu * mp.pi) / 2,
        -log(sigma),
        -(nu + 1) / 2 * mp.log1p(z * z / nu),
    ]


def half_student_t(x: Number, nu: Number, sigma: Number) -> Terms:
    return [*student_t(x, nu, mpf(0), sigma), log(2)]


def skew_student_t(x: Number, a: Number, b: Number, mu: Number, sigma: Number) -> Terms:
    z = (x - mu) / sigma
    root = mp.sqrt(a + b + z * z)
    if z > 0:  # 1 - z / root without cancellation
        up, down = 1 + z / root, (a + b) / (root * (root + z))
    else:
        up, down = (a + b) / (root * (root - z)), 1 - z / root
    return [
        (a + mpf(1) / 2) * log(up),
        (b + mpf(1) / 2) * log(down),
        -(a + b - 1) * log(2),
        -log(a + b) / 2,
        *minus(log_beta(a, b)),
        -log(sigma),
    ]


def pareto(x: Number, alpha: Number, m: Number) -> Terms:
    return [log(alpha), alpha * log(m), -(alpha + 1) * log(x)] if x >= m else [-INF]


def cauchy(x: Number, alpha: Number, beta: Number) -> Terms:
    return [-log(mp.pi), -log(beta), -mp.log1p(((x - alpha) / beta) ** 2)]


def half_cauchy(x: Number, beta: Number) -> Terms:
    return [*cauchy(x, mpf(0), beta), log(2)]


def gamma(x: Number, alpha: Number, beta: Number) -> Terms:
    return [alpha * log(beta), -gammaln(alpha), (alpha - 1) * log(x), -beta * x]


def gamma_mean(x: Number, mu: Number, sigma: Number) -> Terms:
    return gamma(x, (mu / sigma) ** 2, mu / sigma**2)


def inverse_gamma(x: Number, alpha: Number, beta: Number) -> Terms:
    return [alpha * log(beta), -gammaln(alpha), -(alpha + 1) * log(x), -beta / x]


def inverse_gamma_mean(x: Number, mu: Number, sigma: Number) -> Terms:
    alpha = (mu / sigma) ** 2 + 2
    return inverse_gamma(x, alpha, mu * (alpha - 1))


def chi_squared(x: Number, nu: Number) -> Terms:
    return gamma(x, nu / 2, mpf(1) / 2)


def weibull(x: Number, alpha: Number, beta: Number) -> Terms:
    return [log(alpha), -log(beta), (alpha - 1) * log(x / beta), -((x / beta) ** alpha)]


def ex_gaussian(x: Number, mu: Number, sigma: Number, nu: Number) -> Terms:
    z = (x - mu) / sigma - sigma / nu
    return [-log(nu), (mu - x) / nu, (sigma / nu) ** 2 / 2, log(normal_cdf(z).p)]


def von_mises(x: Number, mu: Number, kappa: Number) -> Terms:
    if not -mp.pi <= x <= mp.pi:
        return [-INF]
    return [kappa * mp.cos(mu - x), -log(2 * mp.pi), -log_bessel_i0(kappa)]


def log_bessel_i0(x: Number) -> Number:
    """Return log I0(x): by its asymptotic series where mpmath's own sum would have as many terms as x."""
    if x < 500:
        return log(mp.besseli(0, x))
    term, total, k = mpf(1), mpf(1), 0
    while abs(term) > mp.eps and k < 900:
        k += 1
        term *= mpf((2 * k - 1) ** 2) / (8 * k * x)
        total += term
    return x - log(2 * mp.pi * x) / 2 + log(total)


def triangular(x: Number, lower: Number, c: Number, upper: Number) -> Terms:
    if not (lower <= x <= upper and lower <= c <= upper):
        return [-INF]
    if x < c:
        return [log(2), log(x - lower), -log(upper - lower), -log(c - lower)]
    return [log(2), log(upper - x), -log(upper - lower), -log(upper - c)]


def gumbel(x: Number, mu: Number, beta: Number) -> Terms:
    z = (x - mu) / beta
    return [-log(beta), -z, -mp.exp(-z)]


def rice(x: Number, nu: Number, sigma: Number) -> Terms:
    return [log(x), -2 * log(sigma), -(x * x + nu * nu) / (2 * sigma**2), log_bessel_i0(x * nu / sigma**2)]


def rice_b(x: Number, b: Number, sigma: Number) -> Terms:
    return rice(x, b * sigma, sigma)


def logistic(x: Number, mu: Number, s: Number) -> Terms:
    z = abs(x - mu) / s
    return [-log(s), -z, -2 * mp.log1p(mp.exp(-z))]


def logit_normal(x: Number, mu: Number, sigma: Number) -> Terms:
    return [*normal(log(x / (1 - x)), mu, sigma), -log(x), -log(1 - x)]


def moyal(x: Number, mu: Number, sigma: Number) -> Terms:
    z = (x - mu) / sigma
    return [-z / 2, -mp.exp(-z) / 2, -log(sigma), -log(2 * mp.pi) / 2]


def wald(x: Number, mu: Number, lam: Number, alpha: Number = 0) -> Terms:
    x = x - alpha
    return [log(lam / (2 * mp.pi)) / 2, -3 * log(x) / 2, -lam / (2 * x) * ((x - mu) / mu) ** 2]


# Discrete ones


def binomial(x: int, n: int, p: Share) -> Terms:
    return [*log_choose(n, x), times_log(x, p.p), times_log(n - x, p.q)]


def bernoulli(x: int, p: Share) -> Terms:
    return [log(p.p if x else p.q)]


def beta_binomial(x: int, alpha: Number, beta: Number, n: int) -> Terms:
    return [*log_choose(n, x), *log_beta(x + alpha, n - x + beta), *minus(log_beta(alpha, beta))]


def discrete_weibull(x: int, q: Share, beta: Number) -> Terms:
    if x and beta * mp.log(x) > 5000:
        return [-INF]  # far beyond what float64 holds, and mpmath's exponential of it would not end
    up, down = mpf(x) ** beta * log(q.p), mpf(x + 1) ** beta * log(q.p)
    return [up, log(-mp.expm1(down - up))]


def poisson(x: int, mu: Number) -> Terms:
    return [times_log(x, mu), -mu, -gammaln(mpf(x) + 1)]


def negative_binomial(x: int, mu: Number, alpha: Number) -> Terms:
    return [
        gammaln(x + alpha),
        -gammaln(alpha),
        -gammaln(mpf(x) + 1),
        -alpha * mp.log1p(mu / alpha),
        times_log(x, mu / (mu + alpha)),
    ]


def negative_binomial_np(x: int, p: Share, n: Number) -> Terms:
    return [gammaln(x + n), -gammaln(n), -gammaln(mpf(x) + 1), n * log(p.p), times_log(x, p.q)]


def geometric(x: int, p: Share) -> Terms:
    return [log(p.p), times_log(x - 1, p.q)]


def mixed(weights: Terms, densities: list[Terms]) -> Terms:
    """Return the one term of a mixture."""
    return [log(sum(w * mp.exp(sum(d)) for w, d in zip(weights, densities, strict=True)))]


def zero_inflated(density: Any) -> Any:
    """Return a density of zeros beside counts: with probability `psi` a value is a count."""

    def inflated(x: int, psi: Share, **others: Number) -> Terms:
        if x:
            return [log(psi.p), *density(x, **others)]
        return [log(psi.q + psi.p * mp.exp(sum(density(0, **others))))]

    return inflated


def hurdle_counts(density: Any) -> Any:
    """Return a density of zeros with probability 1 - psi, and of counts above zero."""

    def hurdle(x: int, psi: Share, **others: Number) -> Terms:
        if x == 0:
            return [log(psi.q)]
        return [log(psi.p), *density(x, **others), -log(-mp.expm1(sum(density(0, **others))))]

    return hurdle


def hurdle(density: Any) -> Any:
    def hurdle(x: Number, psi: Share, **others: Number) -> Terms:
        return [log(psi.q)] if x == 0 else [log(psi.p), *density(x, **others)]

    return hurdle
