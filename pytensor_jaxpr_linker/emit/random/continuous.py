"""Continuous univariate random variables of PyTensor."""

from __future__ import annotations

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.tensor.random import basic as rv

from pytensor_jaxpr_linker.emit.random import samplers_inversion as inversion
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
from pytensor_jaxpr_linker.emit.random.sampler import Sampler, emits_draws, standard_normal, uniform
from pytensor_jaxpr_linker.emit.random.samplers_gamma import beta_logit, gamma_variables, log_gamma, student_t
from pytensor_jaxpr_linker.emit.random.samplers_vonmises import von_mises, wrapped
from pytensor_jaxpr_linker.emit.scalar import number
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape


def location_scale(standard: Sampler) -> Sampler:
    """Return the sampler whose last two parameters move and scale the draws of `standard`."""

    def sample(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, *params: Atom) -> Atom:
        *shape_params, loc, scale = params
        return prims.add(b, prims.mul(b, standard(b, key, shape, dtype, *shape_params), scale), loc)

    return sample


def scaled(standard: Sampler) -> Sampler:
    """Return the sampler whose last parameter scales the draws of `standard`."""

    def sample(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, *params: Atom) -> Atom:
        *shape_params, scale = params
        return prims.mul(b, standard(b, key, shape, dtype, *shape_params), scale)

    return sample


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
    return prims.logistic(b, beta_logit(b, key, shape, dtype, alpha, beta))


@emits_draws(rv.InvGammaRV, not_negative("shape", "scale"))
def sample_invgamma(b, key, shape, dtype, alpha, scale):
    """``scale / g``, g a gamma variable."""
    return prims.div(b, scale, gamma_variables(b, key, shape, dtype, alpha))


@emits_draws(rv.VonMisesRV, not_negative(None, "kappa"))
def sample_vonmises(b, key, shape, dtype, mu, kappa):
    """An angle about `mu`."""
    return wrapped(b, prims.add(b, von_mises(b, key, shape, dtype, kappa), mu))


def check_gengamma(b: JaxprBuilder, node: Apply, alpha: Atom, power: Atom, scale: Atom) -> None:
    """Check the parameters that PyTensor gives to SciPy; the first is a quotient."""
    ratio = prims.div(b, *in_common_shape(b, alpha, power))
    domain = scipy_domain("gengamma", above_zero, lambda b, x: prims.ne(b, x, number(b, x, 0)), from_zero)
    domain(b, node, ratio, power, scale)


@emits_draws(rv.GenGammaRV, check_gengamma)
def sample_gengamma(b, key, shape, dtype, alpha, power, scale):
    """``scale * g ** (1 / power)``, g a gamma variable of parameter ``alpha / power``."""
    log = log_gamma(b, key, shape, dtype, prims.div(b, alpha, power))
    return prims.mul(b, prims.exp(b, prims.div(b, log, power)), scale)


for op_type, check, sample in (
    (rv.CauchyRV, scipy_domain("cauchy", None, from_zero), location_scale(inversion.standard_cauchy)),
    (rv.ExponentialRV, not_negative("scale"), scaled(inversion.standard_exponential)),
    (rv.GammaRV, not_negative("shape", "scale"), scaled(gamma_variables)),
    (rv.GumbelRV, scipy_domain("gumbel_r", None, from_zero), location_scale(inversion.standard_gumbel)),
    (rv.HalfCauchyRV, scipy_domain("halfcauchy", None, from_zero), location_scale(inversion.half_cauchy)),
    (rv.HalfNormalRV, scipy_domain("halfnorm", None, from_zero), location_scale(inversion.half_normal)),
    (rv.LaplaceRV, not_negative(None, "scale"), location_scale(inversion.standard_laplace)),
    (rv.LogisticRV, not_negative(None, "scale"), location_scale(inversion.standard_logistic)),
    (rv.NormalRV, not_negative(None, "scale"), location_scale(standard_normal)),
    (rv.ParetoRV, scipy_domain("pareto", above_zero, from_zero), scaled(inversion.standard_pareto)),
    (rv.StudentTRV, scipy_domain("t", above_zero, None, from_zero), location_scale(student_t)),
    (rv.TriangularRV, check_triangular, inversion.triangular),
    (
        rv.TruncExponentialRV,
        scipy_domain("truncexpon", above_zero, None, from_zero),
        location_scale(inversion.truncated_exponential),
    ),
    (rv.WaldRV, positive("mean", "scale"), inversion.inverse_gaussian),
    (rv.WeibullRV, not_negative("a"), inversion.weibull),
):
    emits_draws(op_type, check)(sample)
