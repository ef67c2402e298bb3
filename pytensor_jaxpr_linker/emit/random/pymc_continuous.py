"""Continuous univariate random variables of PyMC, by class name: PyMC is neither imported nor required.

Compositions (`SymbolicRandomVariable`) need no rules: they are inlined.
"""

from __future__ import annotations

import numpy as np
from pytensor.graph.basic import Apply

from pytensor_jaxpr_linker.emit.indexing import take_rows
from pytensor_jaxpr_linker.emit.random import samplers_inversion as inversion
from pytensor_jaxpr_linker.emit.random.continuous import location_scale, scaled
from pytensor_jaxpr_linker.emit.random.parameter_checks import (
    above_zero,
    from_zero,
    in_common_shape,
    positive,
    scipy_domain,
)
from pytensor_jaxpr_linker.emit.random.sampler import emits_draws, open_uniform, split_key, standard_normal
from pytensor_jaxpr_linker.emit.random.samplers_gamma import beta_logit
from pytensor_jaxpr_linker.emit.random.samplers_truncated_normal import truncated_normal
from pytensor_jaxpr_linker.emit.scalar import number, one
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape

MODULE = "pymc.distributions.continuous"


def skew_normal(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, alpha: Atom) -> Atom:
    """``(alpha |x| + y) / sqrt(1 + alpha ** 2)``, x and y normal.

    Henze, *A Probabilistic Representation of the Skew-Normal Distribution*, 1986.
    """
    first, second = split_key(b, key)
    root = prims.rsqrt(b, prims.add(b, one(b, alpha), prims.square(b, alpha)))
    skewed = prims.mul(b, inversion.half_normal(b, first, shape, dtype), alpha)
    return prims.mul(b, prims.add(b, skewed, standard_normal(b, second, shape, dtype)), root)


def skew_student_t(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, alpha: Atom, beta: Atom) -> Atom:
    """``sqrt(alpha + beta) sinh(l / 2)``, l the logit of a beta variable x.

    That is ``sqrt(alpha + beta) (2 x - 1) / (2 sqrt(x (1 - x)))`` of Jones and Faddy, *A Skew Extension of the
    t-Distribution*, 2003, without the cancellation.
    """
    logit = beta_logit(b, key, shape, dtype, alpha, beta)
    return prims.mul(
        b, prims.sinh(b, prims.mul(b, logit, number(b, logit, 0.5))), prims.sqrt(b, prims.add(b, alpha, beta))
    )


def rice(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, nu: Atom) -> Atom:
    """The distance from the origin of a normal point in the plane about (`nu`, 0)."""
    first, second = split_key(b, key)
    x = prims.add(b, standard_normal(b, first, shape, dtype), nu)
    y = standard_normal(b, second, shape, dtype)
    return prims.sqrt(b, prims.add(b, prims.square(b, x), prims.square(b, y)))


for name, check, sample in (
    ("MoyalRV", scipy_domain("moyal", None, from_zero), location_scale(inversion.standard_moyal)),
    ("RiceRV", scipy_domain("rice", from_zero, from_zero), scaled(rice)),
    (
        "SkewStudentTRV",
        scipy_domain("jf_skew_t", above_zero, above_zero, None, from_zero),
        location_scale(skew_student_t),
    ),
):
    emits_draws(f"{MODULE}.{name}", check)(sample)


@emits_draws(f"{MODULE}.SkewNormalRV", scipy_domain("skewnorm", None, from_zero, prims.is_finite))
def sample_skewnormal(b, key, shape, dtype, mu, sigma, alpha):
    """PyMC has the shape parameter last."""
    return location_scale(skew_normal)(b, key, shape, dtype, alpha, mu, sigma)


@emits_draws(f"{MODULE}.WaldRV", lambda b, node, *params: positive("mean", "scale")(b, node, *params[:2]))
def sample_shifted_wald(b, key, shape, dtype, mean, scale, shift):
    """An inverse Gaussian variable plus `shift`."""
    return prims.add(b, inversion.inverse_gaussian(b, key, shape, dtype, mean, scale), shift)


def check_truncated_normal(b: JaxprBuilder, node: Apply, mu: Atom, sigma: Atom, lower: Atom, upper: Atom) -> None:
    """Check that the bounds are in order, as SciPy does after it has standardized them."""
    mu, sigma, lower, upper = in_common_shape(b, mu, sigma, lower, upper)
    ordered = prims.lt(b, *(prims.div(b, prims.sub(b, x, mu), sigma) for x in (lower, upper)))
    scipy_domain("truncnorm", above_zero, from_zero)(b, node, ordered, sigma)


@emits_draws(f"{MODULE}.TruncatedNormalRV", check_truncated_normal)
def sample_truncated_normal(b, key, shape, dtype, mu, sigma, lower, upper):
    """A standard normal variable between the standardized bounds; rounding must not take it past them."""
    low, high = (prims.div(b, prims.sub(b, x, mu), sigma) for x in (lower, upper))
    draw = location_scale(truncated_normal)(b, key, shape, dtype, low, high, mu, sigma)
    return prims.max_(b, prims.min_(b, draw, upper), lower)


@emits_draws(f"{MODULE}.BetaClippedRV", scipy_domain("beta", above_zero, above_zero))
def sample_clipped_beta(b, key, shape, dtype, alpha, beta):
    """A beta variable that is neither 0 nor 1. XLA counts subnormal numbers as 0."""
    draw = prims.logistic(b, beta_logit(b, key, shape, dtype, alpha, beta))
    low, high = np.finfo(dtype).tiny, np.nextafter(np.asarray(1, dtype), np.asarray(0, dtype))
    return prims.clamp(b, number(b, draw, low), draw, number(b, draw, high))


@emits_draws(f"{MODULE}.InterpolatedRV")
def sample_interpolated(b, key, shape, dtype, x, pdf, cdf):
    """Invert the integral of a piecewise linear density, which is quadratic in each interval.

    The root ``2 p / (f + sqrt(f ** 2 + 2 slope p))``, with the remaining probability p and the density f at the interval's begin,
    neither cancels nor divides by a slope of 0.
    """
    if any(n != 1 for points in (x, pdf, cdf) for n in points.aval.shape[:-1]):
        raise NotImplementedError("Interpolated has no draws of batched points")
    x, pdf, cdf = (prims.reshape(b, points, points.aval.shape[-1:]) for points in (x, pdf, cdf))
    count = x.aval.shape[0]
    u = open_uniform(b, key, shape, dtype)
    grid = (*shape, count)
    is_below = prims.lt(
        b, prims.broadcast_to(b, cdf, grid), prims.broadcast_in_dim(b, u, grid, tuple(range(len(shape))))
    )
    interval = prims.sub(
        b, prims.reduce_sum(b, prims.convert(b, is_below, "int32"), (len(shape),)), b.constant(np.int32(1))
    )
    interval = prims.clamp(b, number(b, interval, 0), interval, number(b, interval, count - 2))
    x0, f0, c0 = (take_rows(b, points, interval, 0) for points in (x, pdf, cdf))
    following = prims.add(b, interval, one(b, interval))
    x1, f1 = (take_rows(b, points, following, 0) for points in (x, pdf))
    slope = prims.div(b, prims.sub(b, f1, f0), prims.sub(b, x1, x0))
    twice = prims.mul(b, number(b, u, 2), prims.sub(b, u, c0))
    square = prims.add(b, prims.square(b, f0), prims.mul(b, slope, twice))
    root = prims.sqrt(b, prims.max_(b, square, prims.broadcast_to(b, number(b, square, 0), shape)))
    return prims.add(b, x0, prims.div(b, twice, prims.add(b, f0, root)))
