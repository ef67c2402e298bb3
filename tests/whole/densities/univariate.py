"""Rows of the distributions of one number."""

from __future__ import annotations

import numpy as np
import pymc as pm
from densities import textbook as book
from densities.links import above, fixed, interval, log_transform, no_transform, positive, real, unit
from densities.row import rows_of
from densities.textbook import Number, Terms
from mpmath import mp, mpf

INF = mp.inf
#: Constants are numbers of float32, so that they are the same ones in both precisions.
CONTINUOUS = [
    *rows_of(pm.Uniform, book.uniform, [0.25], interval(-1.5, 2.5), lower=fixed(-1.5), upper=real(2.5)),
    *rows_of(pm.Uniform, book.uniform, [1.25], lower=real(-1.5), upper=fixed(2.5)),
    *rows_of(pm.HalfFlat, lambda x: [], [], log_transform),
    *rows_of(pm.Normal, book.normal, [2.25], no_transform, mu=real(0.375), sigma=positive(1.5)),
    *rows_of(pm.Normal, book.by_tau(book.normal), [2.25], mu=real(0.375), tau=positive(0.375)),
    *rows_of(
        pm.TruncatedNormal,
        book.truncated_normal,
        [0.25],
        interval(-0.75, 2.5),
        mu=real(0.375),
        sigma=positive(1.5),
        lower=fixed(-0.75),
        upper=fixed(2.5),
    ),
    *rows_of(
        pm.TruncatedNormal,
        book.truncated_normal,
        [0.25],
        above(-0.75),
        mu=real(0.375),
        sigma=positive(1.5),
        lower=fixed(-0.75),
    ),
    *rows_of(pm.TruncatedNormal, book.truncated_normal, [0.25], mu=real(0.375), sigma=positive(1.5), upper=fixed(2.5)),
    *rows_of(pm.HalfNormal, book.half_normal, [1.25], log_transform, sigma=positive(1.5)),
    *rows_of(pm.HalfNormal, book.by_tau(book.half_normal), [1.25], tau=positive(0.375)),
    *rows_of(
        pm.SkewNormal,
        book.skew_normal,
        [1.25],
        no_transform,
        mu=real(0.375),
        sigma=positive(1.5),
        alpha=real(1.75),
    ),
    *rows_of(pm.Beta, book.beta, [0.375], interval(0, 1), alpha=positive(2.25), beta=positive(1.5)),
    *rows_of(pm.Beta, book.beta_mean, [0.375], mu=unit(0.625), sigma=fixed(0.125)),
    *rows_of(pm.Beta, book.beta_size, [0.375], mu=unit(0.625), nu=positive(5.5)),
    *rows_of(pm.Kumaraswamy, book.kumaraswamy, [0.375], interval(0, 1), a=positive(2.25), b=positive(1.5)),
    *rows_of(pm.Exponential, book.exponential, [1.25], log_transform, lam=positive(0.75)),
    *rows_of(pm.Exponential, book.exponential_scale, [1.25], scale=positive(0.75)),
    *rows_of(pm.Laplace, book.laplace, [2.25], no_transform, mu=real(0.375), b=positive(1.5)),
    *rows_of(
        pm.AsymmetricLaplace,
        book.asymmetric_laplace,
        [2.25, -1.5],
        no_transform,
        mu=real(0.375),
        b=positive(1.5),
        kappa=positive(0.75),
    ),
    *rows_of(pm.AsymmetricLaplace, book.asymmetric_laplace_q, [2.25], mu=real(0.375), b=positive(1.5), q=unit(0.375)),
    *rows_of(pm.LogNormal, book.log_normal, [2.25], log_transform, mu=real(0.375), sigma=positive(1.5)),
    *rows_of(pm.LogNormal, book.by_tau(book.log_normal), [2.25], mu=real(0.375), tau=positive(0.375)),
    *rows_of(pm.StudentT, book.student_t, [2.25], no_transform, nu=positive(4.5), mu=real(0.375), sigma=positive(1.5)),
    *rows_of(pm.StudentT, book.by_lam(book.student_t), [2.25], nu=positive(4.5), mu=real(0.375), lam=positive(0.375)),
    *rows_of(pm.HalfStudentT, book.half_student_t, [2.25], log_transform, nu=positive(4.5), sigma=positive(1.5)),
    *rows_of(pm.HalfStudentT, book.by_lam(book.half_student_t), [2.25], nu=positive(4.5), lam=positive(0.375)),
    *rows_of(
        pm.SkewStudentT,
        book.skew_student_t,
        [2.25],
        no_transform,
        a=positive(2.5),
        b=positive(1.75),
        mu=real(0.375),
        sigma=positive(1.5),
    ),
    *rows_of(pm.Pareto, book.pareto, [2.25], above(1.5), alpha=positive(2.5), m=positive(1.5)),
    *rows_of(pm.Cauchy, book.cauchy, [2.25], no_transform, alpha=real(0.375), beta=positive(1.5)),
    *rows_of(pm.HalfCauchy, book.half_cauchy, [2.25], log_transform, beta=positive(1.5)),
    *rows_of(pm.Gamma, book.gamma, [2.25], log_transform, alpha=positive(2.5), beta=positive(1.5)),
    *rows_of(pm.Gamma, book.gamma_mean, [2.25], mu=positive(2.5), sigma=positive(1.5)),
    *rows_of(pm.InverseGamma, book.inverse_gamma, [2.25], log_transform, alpha=positive(2.5), beta=positive(1.5)),
    *rows_of(pm.InverseGamma, book.inverse_gamma_mean, [2.25], mu=positive(2.5), sigma=positive(1.5)),
    *rows_of(pm.ChiSquared, book.chi_squared, [2.25], log_transform, nu=positive(4.5)),
    *rows_of(pm.Weibull, book.weibull, [2.25], log_transform, alpha=positive(2.5), beta=positive(1.5)),
    *rows_of(
        pm.ExGaussian, book.ex_gaussian, [2.25], no_transform, mu=real(0.375), sigma=positive(1.5), nu=positive(0.75)
    ),
    *rows_of(pm.VonMises, book.von_mises, [2.25], mu=real(0.375), kappa=positive(1.5)),
    *rows_of(
        pm.Triangular,
        book.triangular,
        [0.25],
        interval(-1.5, 2.5),
        lower=fixed(-1.5),
        c=fixed(0.625),
        upper=fixed(2.5),
    ),
    *rows_of(pm.Gumbel, book.gumbel, [2.25], no_transform, mu=real(0.375), beta=positive(1.5)),
    *rows_of(pm.Rice, book.rice, [2.25], log_transform, nu=positive(0.75), sigma=positive(1.5)),
    *rows_of(pm.Rice, book.rice_b, [2.25], b=positive(0.75), sigma=positive(1.5)),
    *rows_of(pm.Logistic, book.logistic, [2.25], no_transform, mu=real(0.375), s=positive(1.5)),
    *rows_of(pm.LogitNormal, book.logit_normal, [0.375], mu=real(0.375), sigma=positive(1.5)),
    *rows_of(pm.LogitNormal, book.by_tau(book.logit_normal), [0.375], mu=real(0.375), tau=positive(0.375)),
    *rows_of(pm.Moyal, book.moyal, [2.25], no_transform, mu=real(0.375), sigma=positive(1.5)),
    *rows_of(pm.Wald, book.wald, [2.25], log_transform, mu=positive(1.75), lam=positive(1.5)),
    *rows_of(pm.Wald, lambda x, mu, phi: book.wald(x, mu, mu * phi), [2.25], mu=positive(1.75), phi=positive(0.5)),
    *rows_of(pm.Wald, lambda x, lam, phi: book.wald(x, lam / phi, lam), [2.25], lam=positive(1.75), phi=positive(0.5)),
]

POINTS, HEIGHTS = np.array([0.0, 1.0, 3.0]), np.array([0.5, 1.0, 0.25])


def interpolated(x: Number) -> Terms:
    """Straight lines between points: the area below them is 2."""
    height = mpf(1) / 2 * (1 + x) if x < 1 else 1 - mpf(3) / 8 * (x - 1)
    return [mp.log(height), -mp.log(2)] if 0 <= x <= 3 else [-INF]


CONTINUOUS += rows_of(
    lambda name, **given: pm.Interpolated(name, POINTS, HEIGHTS, **given),
    interpolated,
    [],
    interval(0, 3),
    distribution="Interpolated",
)

DISCRETE = [
    *rows_of(pm.Binomial, book.binomial, [0, 3, 7], n=fixed(7), p=unit(0.375)),
    *rows_of(pm.Bernoulli, book.bernoulli, [0, 1], p=unit(0.375)),
    *rows_of(pm.BetaBinomial, book.beta_binomial, [0, 3], alpha=positive(2.5), beta=positive(1.5), n=fixed(7)),
    *rows_of(pm.DiscreteWeibull, book.discrete_weibull, [0, 3], q=unit(0.375), beta=positive(1.5)),
    *rows_of(pm.Poisson, book.poisson, [0, 3], mu=positive(2.5)),
    *rows_of(pm.NegativeBinomial, book.negative_binomial, [0, 3], mu=positive(2.5), alpha=positive(1.5)),
    *rows_of(pm.NegativeBinomial, book.negative_binomial_np, [0, 3], p=unit(0.375), n=positive(1.5)),
    *rows_of(pm.Geometric, book.geometric, [1, 3], p=unit(0.375)),
    *rows_of(pm.ZeroInflatedPoisson, book.zero_inflated(book.poisson), [0, 3], psi=unit(0.375), mu=positive(2.5)),
    *rows_of(
        pm.ZeroInflatedBinomial, book.zero_inflated(book.binomial), [0, 3], psi=unit(0.375), n=fixed(7), p=unit(0.375)
    ),
    *rows_of(
        pm.ZeroInflatedNegativeBinomial,
        book.zero_inflated(book.negative_binomial),
        [0, 3],
        psi=unit(0.375),
        mu=positive(2.5),
        alpha=positive(1.5),
    ),
    *rows_of(
        pm.ZeroInflatedNegativeBinomial,
        book.zero_inflated(book.negative_binomial_np),
        [0, 3],
        psi=unit(0.375),
        p=unit(0.375),
        n=positive(1.5),
    ),
    *rows_of(pm.HurdlePoisson, book.hurdle_counts(book.poisson), [0, 3], psi=unit(0.375), mu=positive(2.5)),
    *rows_of(
        pm.HurdleNegativeBinomial,
        book.hurdle_counts(book.negative_binomial),
        [0, 3],
        psi=unit(0.375),
        mu=positive(2.5),
        alpha=positive(1.5),
    ),
    *rows_of(
        pm.HurdleGamma, book.hurdle(book.gamma), [0.0, 2.25], psi=unit(0.375), alpha=positive(2.5), beta=positive(1.5)
    ),
    *rows_of(
        pm.HurdleLogNormal,
        book.hurdle(book.log_normal),
        [0.0, 2.25],
        psi=unit(0.375),
        mu=real(0.375),
        sigma=positive(1.5),
    ),
]
