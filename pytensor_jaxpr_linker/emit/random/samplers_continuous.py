"""Continuous variables: functions of one uniform or normal variable, and proposals that are accepted or rejected.

The functions of one variable, mostly inverse distribution functions, are Devroye's, *Non-Uniform Random Variate
Generation*, 1986, chapters II.2 and IX; the uniform variable lies in the open interval, so no draw is infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import numpy as np

from pytensor_jaxpr_linker.emit.random.rejection import Proposed, reject, when_any
from pytensor_jaxpr_linker.emit.random.sampler import (
    Attempt,
    Sampler,
    normal_of,
    open_uniform,
    open_uniform_of,
    split_key,
    standard_normal,
)
from pytensor_jaxpr_linker.emit.scalar import number
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.jaxpr.formula import Value, apply, exp, expm1, log, log1p, maximum, sqrt, where

# -- functions of one uniform or normal variable -----------------------------------------------------------------------


def of_uniform(formula: Callable[..., Value]) -> Sampler:
    """Return the sampler of a formula of uniform variables in (0, 1) and of parameters."""

    @wraps(formula)
    def sample(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, *params: Atom) -> Atom:
        return formula(*(Value(b, x) for x in (open_uniform(b, key, shape, dtype), *params))).atom

    return sample


def cauchy_of(u: Value) -> Value:
    """Return ``tan(pi (u - 1/2))``; the difference is exact and never 0."""
    return apply(prims.tan, (u - 0.5) * np.pi)


def truncated_exponential_of(u: Value, bound: Value) -> Value:
    """Return exponential variables below `bound`, which may be infinite."""
    return -log1p(u * expm1(-bound))


def half_normal_of(u: Value) -> Value:
    """Return the absolute value of a normal variable, never 0."""
    return apply(prims.erf_inv, u) * np.sqrt(2)


def laplace_of(u: Value) -> Value:
    """Return ``-sign(v) log(1 - 2 |v|)``, v = u - 1/2."""
    v = u - 0.5
    return -(apply(prims.sign, v) * log1p(-2.0 * abs(v)))


def triangular_of(u: Value, left: Value, mode: Value, right: Value) -> Value:
    """``left + sqrt(u (mode - left) (right - left))`` below the mode, its mirror image above it."""
    base, rise, fall = right - left, mode - left, right - mode
    above_left, below_right = sqrt(u * (rise * base)), sqrt((1.0 - u) * (fall * base))
    return where(u * base <= rise, left + above_left, right - below_right)


def weibull_of(u: Value, a: Value) -> Value:
    """``e ** (1 / a)``, e exponential; 0 for a = 0 as in NumPy."""
    return where(a == 0, 0.0, (-log(u)) ** (1.0 / a))


half_cauchy = of_uniform(lambda u: abs(cauchy_of(u)))
half_normal = of_uniform(half_normal_of)
standard_cauchy = of_uniform(cauchy_of)
standard_exponential = of_uniform(lambda u: -log(u))
standard_gumbel = of_uniform(lambda u: -log(-log(u)))
standard_laplace = of_uniform(laplace_of)
standard_logistic = of_uniform(lambda u: log(u) - log1p(-u))
standard_moyal = of_uniform(lambda u: -2.0 * log(half_normal_of(u)))
standard_pareto = of_uniform(lambda u, exponent: exp(-log(u) / exponent))
triangular = of_uniform(triangular_of)
truncated_exponential = of_uniform(truncated_exponential_of)
weibull = of_uniform(weibull_of)


def inverse_gaussian(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, mean: Atom, scale: Atom) -> Atom:
    """Emit inverse Gaussian variables by a transformation with two roots.

    Michael, Schucany and Haas, *Generating Random Variates Using Transformations with Multiple Roots*, 1976. With
    ``y = mean z ** 2 / scale``, z normal, the roots are ``mean * r`` and ``mean / r``. Here r is one over a sum of
    positive terms; the authors' difference cancels.
    """
    normal_key, uniform_key = split_key(b, key)
    z, m, s = (Value(b, x) for x in (standard_normal(b, normal_key, shape, dtype), mean, scale))
    y = z * z * (m / s)
    half = 0.5 * y
    inverse = 1.0 + (half + sqrt(y) * sqrt(1.0 + 0.5 * half))
    r = 1.0 / inverse
    u = Value(b, open_uniform(b, uniform_key, shape, dtype))
    return (m * where(u <= 1.0 / (1.0 + r), r, inverse)).atom


# -- gamma, beta, Student's t ------------------------------------------------------------------------------------------


def gamma_variables(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, alpha: Atom) -> Atom:
    """Emit gamma variables of shape parameter `alpha` and scale 1; NaN if `alpha` is negative."""
    draw, log_factor = gamma_and_log_factor(b, key, shape, dtype, alpha)
    return prims.mul(b, draw, prims.exp(b, log_factor))


def log_gamma(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, alpha: Atom) -> Atom:
    """Emit the logarithms of gamma variables, which are finite where a small `alpha` makes the variables underflow."""
    draw, log_factor = gamma_and_log_factor(b, key, shape, dtype, alpha)
    return prims.add(b, prims.log(b, draw), log_factor)


def gamma_and_log_factor(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, alpha: Atom) -> tuple[Atom, Atom]:
    """Emit a gamma variable of a shape parameter of at least 1, and the logarithm of the factor that makes it `alpha`.

    A gamma variable of ``alpha + 1`` times ``u ** (1 / alpha)``, u uniform, has shape parameter `alpha` (Stuart's
    theorem).
    """
    draw_key, factor_key = split_key(b, key)
    alpha = prims.select(b, prims.ge(b, alpha, number(b, alpha, 0)), alpha, number(b, alpha, np.nan))
    is_small = prims.lt(b, alpha, number(b, alpha, 1))
    boosted = prims.select(b, is_small, prims.add(b, alpha, number(b, alpha, 1)), alpha)
    draw = marsaglia_tsang(b, draw_key, shape, boosted)

    def emit(b: JaxprBuilder, key: Atom, alpha: Atom, is_small: Atom) -> Atom:
        log_factor = prims.div(b, prims.log(b, open_uniform(b, key, shape, dtype)), alpha)
        return prims.select(b, is_small, log_factor, number(b, alpha, 0))

    nothing = prims.broadcast_to(b, number(b, alpha, 0), shape)
    return draw, when_any(b, is_small, emit, [factor_key, alpha, is_small], nothing)


def marsaglia_tsang(b: JaxprBuilder, key: Atom, shape: Shape, alpha: Atom) -> Atom:
    """Emit gamma variables of a shape parameter of at least 1.

    Marsaglia and Tsang, *A Simple Method for Generating Gamma Variables*, 2000: a cubed normal variable is accepted
    with a probability of at least 0.95, nine of ten by the squeeze. Their ``v = (1 + w) ** 3`` stays in terms of w, so
    the logarithm of the acceptance probability does not cancel when `alpha` is large.
    """
    d = prims.sub(b, alpha, number(b, alpha, 1 / 3))
    c = prims.rsqrt(b, prims.mul(b, number(b, d, 9), d))

    def propose(b: JaxprBuilder, lanes: Attempt, *params: Atom) -> Proposed:
        d, c = (Value(b, x) for x in params)
        x, u = (Value(b, draw) for draw in lanes.numbers(d.atom.aval.dtype, normal_of, open_uniform_of))
        w = c * x
        # 1 - v = -w (3 + w (3 + w)). Below w = -1 the logarithm is NaN, and the proposal is not accepted.
        log_ratio = 3.0 * log1p(w) - w * (w * (w + 3.0) + 3.0)
        square = x * x
        accepted = log(u) < 0.5 * square + d * log_ratio
        surely = (u < 1.0 - 0.0331 * square * square) & (w > -1.0)
        v = w + 1.0
        return Proposed((d * (v * v * v)).atom, accepted.atom, surely.atom)

    return reject(b, key, propose, [d, c], prims.broadcast_to(b, alpha, shape), prims.is_finite(b, alpha))


def beta_logit(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, alpha: Atom, beta: Atom) -> Atom:
    """Emit ``log(x / (1 - x))`` of beta variables x: the difference of the logarithms of two gamma variables."""
    first, second = split_key(b, key)
    return prims.sub(b, log_gamma(b, first, shape, dtype, alpha), log_gamma(b, second, shape, dtype, beta))


def student_t(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, df: Atom) -> Atom:
    """Emit Student's t: a normal variable over the root of a mean square, by the logarithm of that."""
    normal_key, gamma_key = split_key(b, key)
    half = 0.5 * Value(b, df)
    log_mean_square = Value(b, log_gamma(b, gamma_key, shape, dtype, half.atom)) - log(half)
    return (Value(b, standard_normal(b, normal_key, shape, dtype)) * exp(-0.5 * log_mean_square)).atom


# -- the truncated normal distribution ---------------------------------------------------------------------------------


#: The width from which on an interval about 0 is proposed to from the normal distribution itself.
WIDE_INTERVAL = np.sqrt(2 * np.pi)


def truncated_normal(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, low: Atom, high: Atom) -> Atom:
    """Emit standard normal variables between `low` and `high`; NaN where these are not in order.

    Robert, *Simulation of Truncated Normal Variables*, 1995. The interval is mirrored so that its upper end is the
    farther from 0. If it contains 0 and is wide, normal variables are proposed; else exponential ones from its lower
    end, truncated at its upper end, with the rate ``(low + sqrt(low ** 2 + 4)) / 2``, Robert's optimum for an interval
    without end. Both are accepted with a probability of at least 0.49.
    """
    bottom, top = Value(b, low), Value(b, high)
    is_mirrored = bottom + top < 0
    near, far = where(is_mirrored, -top, bottom), where(is_mirrored, -bottom, top)
    width = far - near
    is_wide = (near <= 0) & (width > WIDE_INTERVAL)
    # From here on positions are relative to the lower end; the density's ratio is largest at `peak`, unless cut off.
    peak = 2.0 / (near + sqrt(near * near + 4.0))
    cut = maximum(peak - width, 0.0)

    def propose(b: JaxprBuilder, lanes: Attempt, *params: Atom) -> Proposed:
        near, far, width, is_wide, peak, rate, cut = (Value(b, x) for x in params)
        z, u, v = (Value(b, x) for x in lanes.numbers(dtype, normal_of, open_uniform_of, open_uniform_of))
        offset = truncated_exponential_of(u, rate * width) / rate
        beyond = offset - peak
        accepted = where(is_wide, (z >= near) & (z <= far), log(v) < (beyond * beyond - cut) * -0.5)
        return Proposed(where(is_wide, z, near + offset).atom, accepted.atom)

    nowhere = prims.broadcast_to(b, b.constant(np.nan, dtype), shape)
    params = [x.atom for x in (near, far, width, is_wide, peak, near + peak, cut * cut)]
    draw = Value(b, reject(b, key, propose, params, nowhere, prims.lt(b, low, high)))
    return where(is_mirrored, -draw, draw).atom


# -- the von Mises distribution ----------------------------------------------------------------------------------------


def von_mises(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, kappa: Atom) -> Atom:
    """Emit angles in (-pi, pi) about 0 of concentration `kappa`.

    Best and Fisher, *Efficient Simulation of the von Mises Distribution*, 1979. A wrapped Cauchy angle is
    ``2 atan(q c)``, c a standard Cauchy variable; it is accepted with probability ``y exp(1 - y)``, where
    ``y = kappa (s - cos(angle))``. With ``s = (1 + r) / (2 kappa)``, ``r = sqrt(1 + 4 kappa ** 2)``, the authors'
    optimum, ``kappa (s - 1)`` is ``(1 + 1 / (r + 2 kappa)) / 2`` and ``q ** 2 = (s - 1) / (s + 1)``: written so,
    nothing cancels, and neither `kappa` = 0 nor a large one is special.
    """
    twice = Value(b, kappa) + Value(b, kappa)
    least = 0.5 * (1.0 + 1.0 / (sqrt(1.0 + twice * twice) + twice))
    q = sqrt(least / (least + twice))

    def propose(b: JaxprBuilder, lanes: Attempt, *params: Atom) -> Proposed:
        twice, least, q = (Value(b, x) for x in params)
        u, v = (Value(b, draw) for draw in lanes.numbers(dtype, open_uniform_of, open_uniform_of))
        tangent = q * cauchy_of(v)
        square = tangent * tangent
        y = least + twice * (square / (square + 1.0))  # the square of the half angle's sine
        half_angle = Value(b, prims.atan(b, tangent.atom))
        # The squeeze is y (2 - y) <= y exp(1 - y).
        return Proposed((half_angle + half_angle).atom, (log(u) < log(y) - y + 1.0).atom, (u < y * (2.0 - y)).atom)

    infinite = prims.eq(b, kappa, number(b, kappa, np.inf))
    otherwise = prims.select(b, infinite, number(b, kappa, 0), number(b, kappa, np.nan))
    possible = prims.and_(b, prims.ge(b, kappa, number(b, kappa, 0)), prims.is_finite(b, kappa))
    read = [x.atom for x in (twice, least, q)]
    return reject(b, key, propose, read, prims.broadcast_to(b, otherwise, shape), possible)


def wrapped(b: JaxprBuilder, angle: Atom) -> Atom:
    """Emit the equivalent of an angle in [-pi, pi]; one that is there already stays as it is."""
    turn = number(b, angle, 2 * np.pi)
    return prims.sub(b, angle, prims.mul(b, turn, prims.round_even(b, prims.div(b, angle, turn))))
