"""Continuous univariate random variables of PyTensor, and of PyMC by class name: PyMC is neither imported nor required.

PyMC's compositions (`SymbolicRandomVariable`) need no rules: they are inlined.
"""

from __future__ import annotations

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.tensor.random import basic as rv

from pytensor_jaxpr_linker.emit.indexing import take_rows
from pytensor_jaxpr_linker.emit.random import samplers_continuous as samplers
from pytensor_jaxpr_linker.emit.random.parameter_checks import (
    above_zero,
    check_all,
    check_not_negative,
    check_ordered,
    from_zero,
    in_common_shape,
    not_negative,
    positive,
    scipy_domain,
)
from pytensor_jaxpr_linker.emit.random.sampler import (
    Sampler,
    emits_draws,
    open_uniform,
    split_key,
    standard_normal,
    uniform,
)
from pytensor_jaxpr_linker.emit.scalar import number
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.jaxpr.formula import Value, is_finite, maximum, sqrt


def scaled(standard: Sampler) -> Sampler:
    """Return the sampler whose last parameter scales the draws of `standard`."""
    return lambda b, key, shape, dtype, *params: prims.mul(b, standard(b, key, shape, dtype, *params[:-1]), params[-1])


def location_scale(standard: Sampler) -> Sampler:
    """Return the sampler whose last two parameters move and scale the draws of `standard`."""
    return lambda b, key, shape, dtype, *params: prims.add(
        b, scaled(standard)(b, key, shape, dtype, *params[:-2], params[-1]), params[-2]
    )


def check_uniform(b: JaxprBuilder, node: Apply, low: Atom, high: Atom) -> None:
    """Check the parameters of a uniform distribution as `numpy.random.Generator.uniform` does."""
    known = b.known(low), b.known(high)
    if all(value is not None for value in known):
        with np.errstate(all="ignore"):
            width = np.subtract(known[1], known[0], dtype="float64")
        if (width >= 0).all() and np.isfinite(width).all():
            return
    low, high = in_common_shape(b, low, high)
    width = prims.sub(b, high, low)
    scope = "R" if prims.elementwise_shape((low, high)) else "high - low r"
    check_all(b, prims.is_finite(b, width), OverflowError(f"{scope}ange exceeds valid bounds"), node)
    check_not_negative(b, width, "high - low", node)


def check_triangular(b: JaxprBuilder, node: Apply, left: Atom, mode: Atom, right: Atom) -> None:
    check_ordered(b, left, mode, False, "left > mode", node)
    check_ordered(b, mode, right, False, "mode > right", node)
    check_ordered(b, left, right, True, "left == right", node)


@emits_draws(rv.UniformRV, check_uniform)
def sample_uniform(b, key, shape, dtype, low, high):
    """``low + (high - low) * u``, u uniform in [0, 1)."""
    return location_scale(uniform)(b, key, shape, dtype, low, prims.sub(b, high, low))


@emits_draws(rv.LogNormalRV, not_negative(None, "sigma"))
def sample_lognormal(b, key, shape, dtype, mean, sigma):
    """The exponential of a normal variable."""
    return prims.exp(b, location_scale(standard_normal)(b, key, shape, dtype, mean, sigma))


@emits_draws(rv.BetaRV, positive("a", "b"))
def sample_beta(b, key, shape, dtype, alpha, beta):
    """The sigmoid of the logit."""
    return prims.logistic(b, samplers.beta_logit(b, key, shape, dtype, alpha, beta))


@emits_draws(rv.InvGammaRV, not_negative("shape", "scale"))
def sample_invgamma(b, key, shape, dtype, alpha, scale):
    """``scale / g``, g a gamma variable."""
    return prims.div(b, scale, samplers.gamma_variables(b, key, shape, dtype, alpha))


@emits_draws(rv.VonMisesRV, not_negative(None, "kappa"))
def sample_vonmises(b, key, shape, dtype, mu, kappa):
    """An angle about `mu`."""
    return samplers.wrapped(b, prims.add(b, samplers.von_mises(b, key, shape, dtype, kappa), mu))


def check_gengamma(b: JaxprBuilder, node: Apply, alpha: Atom, power: Atom, scale: Atom) -> None:
    """Check the parameters that PyTensor gives to SciPy; the first is a quotient."""
    ratio = prims.div(b, *in_common_shape(b, alpha, power))
    domain = scipy_domain("gengamma", above_zero, lambda x: x != 0, from_zero)
    domain(b, node, ratio, power, scale)


@emits_draws(rv.GenGammaRV, check_gengamma)
def sample_gengamma(b, key, shape, dtype, alpha, power, scale):
    """``scale * g ** (1 / power)``, g a gamma variable of parameter ``alpha / power``."""
    log = samplers.log_gamma(b, key, shape, dtype, prims.div(b, alpha, power))
    return prims.mul(b, prims.exp(b, prims.div(b, log, power)), scale)


below_a_bound = location_scale(samplers.truncated_exponential)
for op_type, check, sample in (
    (rv.CauchyRV, scipy_domain("cauchy", None, from_zero), location_scale(samplers.standard_cauchy)),
    (rv.ExponentialRV, not_negative("scale"), scaled(samplers.standard_exponential)),
    (rv.GammaRV, not_negative("shape", "scale"), scaled(samplers.gamma_variables)),
    (rv.GumbelRV, scipy_domain("gumbel_r", None, from_zero), location_scale(samplers.standard_gumbel)),
    (rv.HalfCauchyRV, scipy_domain("halfcauchy", None, from_zero), location_scale(samplers.half_cauchy)),
    (rv.HalfNormalRV, scipy_domain("halfnorm", None, from_zero), location_scale(samplers.half_normal)),
    (rv.LaplaceRV, not_negative(None, "scale"), location_scale(samplers.standard_laplace)),
    (rv.LogisticRV, not_negative(None, "scale"), location_scale(samplers.standard_logistic)),
    (rv.NormalRV, not_negative(None, "scale"), location_scale(standard_normal)),
    (rv.ParetoRV, scipy_domain("pareto", above_zero, from_zero), scaled(samplers.standard_pareto)),
    (rv.StudentTRV, scipy_domain("t", above_zero, None, from_zero), location_scale(samplers.student_t)),
    (rv.TriangularRV, check_triangular, samplers.triangular),
    (rv.TruncExponentialRV, scipy_domain("truncexpon", above_zero, None, from_zero), below_a_bound),
    (rv.WaldRV, positive("mean", "scale"), samplers.inverse_gaussian),
    (rv.WeibullRV, not_negative("a"), samplers.weibull),
):
    emits_draws(op_type, check)(sample)


# -- PyMC's ------------------------------------------------------------------------------------------------------------


MODULE = "pymc.distributions.continuous"


def skew_normal(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, alpha: Atom) -> Atom:
    """``(alpha |x| + y) / sqrt(1 + alpha ** 2)``, x and y normal.

    Henze, *A Probabilistic Representation of the Skew-Normal Distribution*, 1986.
    """
    first, second = split_key(b, key)
    root = prims.rsqrt(b, prims.add(b, number(b, alpha, 1), prims.square(b, alpha)))
    skewed = prims.mul(b, samplers.half_normal(b, first, shape, dtype), alpha)
    return prims.mul(b, prims.add(b, skewed, standard_normal(b, second, shape, dtype)), root)


def skew_student_t(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, alpha: Atom, beta: Atom) -> Atom:
    """``sqrt(alpha + beta) sinh(l / 2)``, l the logit of a beta variable x.

    That is ``sqrt(alpha + beta) (2 x - 1) / (2 sqrt(x (1 - x)))`` of Jones and Faddy, *A Skew Extension of the
    t-Distribution*, 2003, without the cancellation.
    """
    logit = samplers.beta_logit(b, key, shape, dtype, alpha, beta)
    sine = prims.sinh(b, prims.mul(b, logit, number(b, logit, 0.5)))
    return prims.mul(b, sine, prims.sqrt(b, prims.add(b, alpha, beta)))


def rice(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, nu: Atom) -> Atom:
    """The distance from the origin of a normal point in the plane about (`nu`, 0)."""
    first, second = split_key(b, key)
    x = prims.add(b, standard_normal(b, first, shape, dtype), nu)
    y = standard_normal(b, second, shape, dtype)
    return prims.sqrt(b, prims.add(b, prims.square(b, x), prims.square(b, y)))


check_skew_student_t = scipy_domain("jf_skew_t", above_zero, above_zero, None, from_zero)
emits_draws(f"{MODULE}.MoyalRV", scipy_domain("moyal", None, from_zero))(location_scale(samplers.standard_moyal))
emits_draws(f"{MODULE}.RiceRV", scipy_domain("rice", from_zero, from_zero))(scaled(rice))
emits_draws(f"{MODULE}.SkewStudentTRV", check_skew_student_t)(location_scale(skew_student_t))


@emits_draws(f"{MODULE}.SkewNormalRV", scipy_domain("skewnorm", None, from_zero, is_finite))
def sample_skewnormal(b, key, shape, dtype, mu, sigma, alpha):
    """PyMC has the shape parameter last."""
    return location_scale(skew_normal)(b, key, shape, dtype, alpha, mu, sigma)


@emits_draws(f"{MODULE}.WaldRV", lambda b, node, *params: positive("mean", "scale")(b, node, *params[:2]))
def sample_shifted_wald(b, key, shape, dtype, mean, scale, shift):
    """An inverse Gaussian variable plus `shift`."""
    return prims.add(b, samplers.inverse_gaussian(b, key, shape, dtype, mean, scale), shift)


def check_truncated_normal(b: JaxprBuilder, node: Apply, mu: Atom, sigma: Atom, lower: Atom, upper: Atom) -> None:
    """Check that the bounds are in order, as SciPy does after it has standardized them."""
    mu, sigma, lower, upper = in_common_shape(b, mu, sigma, lower, upper)
    ordered = prims.lt(b, *(prims.div(b, prims.sub(b, x, mu), sigma) for x in (lower, upper)))
    scipy_domain("truncnorm", above_zero, from_zero)(b, node, ordered, sigma)


@emits_draws(f"{MODULE}.TruncatedNormalRV", check_truncated_normal)
def sample_truncated_normal(b, key, shape, dtype, mu, sigma, lower, upper):
    """A standard normal variable between the standardized bounds; rounding must not take it past them."""
    low, high = (prims.div(b, prims.sub(b, x, mu), sigma) for x in (lower, upper))
    draw = location_scale(samplers.truncated_normal)(b, key, shape, dtype, low, high, mu, sigma)
    return prims.max_(b, prims.min_(b, draw, upper), lower)


@emits_draws(f"{MODULE}.BetaClippedRV", scipy_domain("beta", above_zero, above_zero))
def sample_clipped_beta(b, key, shape, dtype, alpha, beta):
    """A beta variable that is neither 0 nor 1. XLA counts subnormal numbers as 0."""
    draw = prims.logistic(b, samplers.beta_logit(b, key, shape, dtype, alpha, beta))
    low, high = np.finfo(dtype).tiny, np.nextafter(np.asarray(1, dtype), np.asarray(0, dtype))
    return prims.clamp(b, number(b, draw, low), draw, number(b, draw, high))


@emits_draws(f"{MODULE}.InterpolatedRV")
def sample_interpolated(b, key, shape, dtype, x, pdf, cdf):
    """Invert the integral of a piecewise linear density, which is quadratic in each interval.

    The root ``2 p / (f + sqrt(f ** 2 + 2 slope p))``, with the remaining probability p and the density f at the
    interval's begin, neither cancels nor divides by a slope of 0.
    """
    if any(n != 1 for points in (x, pdf, cdf) for n in points.aval.shape[:-1]):
        raise NotImplementedError("Interpolated has no draws of batched points")
    x, pdf, cdf = (prims.reshape(b, points, points.aval.shape[-1:]) for points in (x, pdf, cdf))
    u, grid = open_uniform(b, key, shape, dtype), (*shape, *x.aval.shape)
    is_below = prims.lt(b, prims.broadcast_to(b, cdf, grid), prims.broadcast_in_dim(b, u, grid, range(len(shape))))
    count = prims.reduce_sum(b, prims.convert(b, is_below, "int32"), (len(shape),))
    last = number(b, count, x.aval.shape[0] - 2)
    interval = prims.clamp(b, number(b, count, 0), prims.sub(b, count, number(b, count, 1)), last)
    following = prims.add(b, interval, number(b, interval, 1))
    x0, f0, c0 = (Value(b, take_rows(b, points, interval, 0)) for points in (x, pdf, cdf))
    x1, f1 = (Value(b, take_rows(b, points, following, 0)) for points in (x, pdf))
    twice = 2.0 * (Value(b, u) - c0)
    root = sqrt(maximum(f0 * f0 + (f1 - f0) / (x1 - x0) * twice, 0.0))
    return (x0 + twice / (f0 + root)).atom
