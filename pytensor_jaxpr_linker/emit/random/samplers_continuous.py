"""Continuous variables: functions of one uniform or normal variable, and proposals that are accepted or rejected.

The functions of one variable, mostly inverse distribution functions, are Devroye's, *Non-Uniform Random Variate
Generation*, 1986, chapters II.2 and IX; the uniform variable lies in the open interval, so no draw is infinite.
"""

from __future__ import annotations

import numpy as np

from pytensor_jaxpr_linker.emit.random.rejection import Proposed, reject, when_any
from pytensor_jaxpr_linker.emit.random.sampler import (
    Attempt,
    normal_of,
    open_uniform,
    open_uniform_of,
    split_key,
    standard_normal,
)
from pytensor_jaxpr_linker.emit.scalar import number, one
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.jaxpr.formula import Value, log, log1p

# -- functions of one uniform or normal variable -----------------------------------------------------------------------


def standard_exponential(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype) -> Atom:
    """``-log(u)``."""
    return prims.neg(b, prims.log(b, open_uniform(b, key, shape, dtype)))


def standard_gumbel(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype) -> Atom:
    """``-log(e)``, e exponential."""
    return prims.neg(b, prims.log(b, standard_exponential(b, key, shape, dtype)))


def standard_logistic(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype) -> Atom:
    """``log(u / (1 - u))``."""
    u = open_uniform(b, key, shape, dtype)
    return prims.sub(b, prims.log(b, u), prims.log1p(b, prims.neg(b, u)))


def centered(b: JaxprBuilder, u: Atom) -> Atom:
    """``u - 1/2``, which is exact and never 0."""
    return prims.sub(b, u, number(b, u, 0.5))


def standard_laplace(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype) -> Atom:
    """``-sign(v) log(1 - 2 |v|)``, v = u - 1/2."""
    v = centered(b, open_uniform(b, key, shape, dtype))
    log = prims.log1p(b, prims.mul(b, number(b, v, -2), prims.abs_(b, v)))
    return prims.neg(b, prims.mul(b, prims.sign(b, v), log))


def standard_cauchy(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype) -> Atom:
    """``tan(pi (u - 1/2))``."""
    return cauchy_of(b, open_uniform(b, key, shape, dtype))


def cauchy_of(b: JaxprBuilder, u: Atom) -> Atom:
    """``tan(pi (u - 1/2))``."""
    return prims.tan(b, prims.mul(b, centered(b, u), number(b, u, np.pi)))


def half_cauchy(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype) -> Atom:
    """The absolute value of a Cauchy variable."""
    return prims.abs_(b, standard_cauchy(b, key, shape, dtype))


def half_normal(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype) -> Atom:
    """The absolute value of a normal variable, never 0: ``sqrt(2) erfinv(u)``."""
    u = open_uniform(b, key, shape, dtype)
    return prims.mul(b, prims.erf_inv(b, u), number(b, u, np.sqrt(2)))


def standard_moyal(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype) -> Atom:
    """``-log(z ** 2)``, z normal."""
    log = prims.log(b, half_normal(b, key, shape, dtype))
    return prims.mul(b, number(b, log, -2), log)


def truncated_exponential(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, bound: Atom) -> Atom:
    """``-log(1 - u (1 - exp(-bound)))``: exponential variables below `bound`, which may be infinite."""
    return truncated_exponential_of(b, open_uniform(b, key, shape, dtype), bound)


def truncated_exponential_of(b: JaxprBuilder, u: Atom, bound: Atom) -> Atom:
    """``-log(1 - u (1 - exp(-bound)))``."""
    return prims.neg(b, prims.log1p(b, prims.mul(b, u, prims.expm1(b, prims.neg(b, bound)))))


def weibull(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, a: Atom) -> Atom:
    """``e ** (1 / a)``, e exponential; 0 for a = 0 as in NumPy."""
    draw = prims.pow_(b, standard_exponential(b, key, shape, dtype), one_over(b, a))
    return prims.select(b, prims.eq(b, a, number(b, a, 0)), number(b, a, 0), draw)


def standard_pareto(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, exponent: Atom) -> Atom:
    """``exp(e / exponent)``, e exponential."""
    return prims.exp(b, prims.div(b, standard_exponential(b, key, shape, dtype), exponent))


def one_over(b: JaxprBuilder, x: Atom) -> Atom:
    """Emit ``1 / x``."""
    return prims.div(b, one(b, x), x)


def triangular(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, left: Atom, mode: Atom, right: Atom) -> Atom:
    """``left + sqrt(u (mode - left) (right - left))`` below the mode, the like from the right above it."""
    u = open_uniform(b, key, shape, dtype)
    base, rise, fall = (prims.sub(b, x, y) for x, y in ((right, left), (mode, left), (right, mode)))
    above_left = prims.sqrt(b, prims.mul(b, u, prims.mul(b, rise, base)))
    below_right = prims.sqrt(b, prims.mul(b, prims.sub(b, one(b, u), u), prims.mul(b, fall, base)))
    rises = prims.le(b, prims.mul(b, u, base), rise)
    return prims.select(b, rises, prims.add(b, left, above_left), prims.sub(b, right, below_right))


def inverse_gaussian(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, mean: Atom, scale: Atom) -> Atom:
    """Emit inverse Gaussian variables by a transformation with two roots.

    Michael, Schucany and Haas, *Generating Random Variates Using Transformations with Multiple Roots*, 1976. With
    ``y = mean z ** 2 / scale``, z normal, the roots are ``mean * r`` and ``mean / r``. Here r is one over a sum of positive terms;
    the authors' difference cancels.
    """
    normal_key, uniform_key = split_key(b, key)
    y = prims.mul(b, prims.square(b, standard_normal(b, normal_key, shape, dtype)), prims.div(b, mean, scale))
    half = prims.mul(b, y, number(b, y, 0.5))
    root = prims.mul(b, prims.sqrt(b, y), prims.sqrt(b, prims.add(b, one(b, y), prims.mul(b, half, number(b, y, 0.5)))))
    inverse = prims.add(b, one(b, y), prims.add(b, half, root))
    r = one_over(b, inverse)
    takes_small = prims.le(b, open_uniform(b, uniform_key, shape, dtype), one_over(b, prims.add(b, one(b, r), r)))
    return prims.mul(b, mean, prims.select(b, takes_small, r, inverse))


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

    A gamma variable of ``alpha + 1`` times ``u ** (1 / alpha)``, u uniform, has shape parameter `alpha` (Stuart's theorem).
    """
    draw_key, factor_key = split_key(b, key)
    alpha = prims.select(b, prims.ge(b, alpha, number(b, alpha, 0)), alpha, number(b, alpha, np.nan))
    is_small = prims.lt(b, alpha, one(b, alpha))
    boosted = prims.select(b, is_small, prims.add(b, alpha, one(b, alpha)), alpha)
    draw = marsaglia_tsang(b, draw_key, shape, boosted)

    def emit(b: JaxprBuilder, key: Atom, alpha: Atom, is_small: Atom) -> Atom:
        log_factor = prims.div(b, prims.log(b, open_uniform(b, key, shape, dtype)), alpha)
        return prims.select(b, is_small, log_factor, number(b, alpha, 0))

    nothing = prims.broadcast_to(b, number(b, alpha, 0), shape)
    return draw, when_any(b, is_small, emit, [factor_key, alpha, is_small], nothing)


def marsaglia_tsang(b: JaxprBuilder, key: Atom, shape: Shape, alpha: Atom) -> Atom:
    """Emit gamma variables of a shape parameter of at least 1.

    Marsaglia and Tsang, *A Simple Method for Generating Gamma Variables*, 2000: a cubed normal variable is accepted with a
    probability of at least 0.95, nine of ten by the squeeze. Their ``v = (1 + w) ** 3`` stays in terms of w, so the logarithm of
    the acceptance probability does not cancel when `alpha` is large.
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
    half = prims.mul(b, df, number(b, df, 0.5))
    log_mean_square = prims.sub(b, log_gamma(b, gamma_key, shape, dtype, half), prims.log(b, half))
    factor = prims.exp(b, prims.mul(b, log_mean_square, number(b, log_mean_square, -0.5)))
    return prims.mul(b, standard_normal(b, normal_key, shape, dtype), factor)


# -- the truncated normal distribution ---------------------------------------------------------------------------------


#: The width from which on an interval about 0 is proposed to from the normal distribution itself.
WIDE_INTERVAL = np.sqrt(2 * np.pi)


def truncated_normal(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, low: Atom, high: Atom) -> Atom:
    """Emit standard normal variables between `low` and `high`; NaN where these are not in order.

    Robert, *Simulation of Truncated Normal Variables*, 1995. The interval is mirrored so that its upper end is the farther
    from 0. If it contains 0 and is wide, normal variables are proposed; else exponential ones from its lower end, truncated at
    its upper end, with the rate ``(low + sqrt(low ** 2 + 4)) / 2``, Robert's optimum for an interval without end. Both are
    accepted with a probability of at least 0.49.
    """
    is_mirrored = prims.lt(b, prims.add(b, low, high), number(b, low, 0))
    near = prims.select(b, is_mirrored, prims.neg(b, high), low)
    far = prims.select(b, is_mirrored, prims.neg(b, low), high)
    width = prims.sub(b, far, near)
    contains_zero = prims.le(b, near, number(b, near, 0))
    is_wide = prims.and_(b, contains_zero, prims.gt(b, width, number(b, width, WIDE_INTERVAL)))
    # From here on positions are relative to the lower end; the density's ratio is largest at `peak`, unless cut off.
    root = prims.sqrt(b, prims.add(b, prims.square(b, near), number(b, near, 4)))
    peak = prims.div(b, number(b, near, 2), prims.add(b, near, root))
    rate = prims.add(b, near, peak)
    cut = prims.square(b, prims.max_(b, prims.sub(b, peak, width), number(b, near, 0)))

    def propose(b: JaxprBuilder, lanes: Attempt, *params: Atom) -> Proposed:
        near, far, width, is_wide, peak, rate, cut = params
        z, u, v = lanes.numbers(dtype, normal_of, open_uniform_of, open_uniform_of)
        in_bounds = prims.and_(b, prims.ge(b, z, near), prims.le(b, z, far))
        offset = truncated_exponential_of(b, u, prims.mul(b, rate, width))
        offset = prims.div(b, offset, rate)
        excess = prims.sub(b, prims.square(b, prims.sub(b, offset, peak)), cut)
        bound = prims.mul(b, excess, number(b, excess, -0.5))
        is_below = prims.lt(b, prims.log(b, v), bound)
        accepted = prims.select(b, is_wide, in_bounds, is_below)
        return Proposed(prims.select(b, is_wide, z, prims.add(b, near, offset)), accepted)

    nowhere = prims.broadcast_to(b, b.constant(np.nan, dtype), shape)
    params = [near, far, width, is_wide, peak, rate, cut]
    draw = reject(b, key, propose, params, nowhere, prims.lt(b, low, high))
    return prims.select(b, is_mirrored, prims.neg(b, draw), draw)


# -- the von Mises distribution ----------------------------------------------------------------------------------------


def von_mises(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, kappa: Atom) -> Atom:
    """Emit angles in (-pi, pi) about 0 of concentration `kappa`.

    Best and Fisher, *Efficient Simulation of the von Mises Distribution*, 1979. A wrapped Cauchy angle is
    ``2 atan(q c)``, c a standard Cauchy variable; it is accepted with probability ``y exp(1 - y)``, where
    ``y = kappa (s - cos(angle))``. With ``s = (1 + r) / (2 kappa)``, ``r = sqrt(1 + 4 kappa ** 2)``, the authors' optimum,
    ``kappa (s - 1)`` is ``(1 + 1 / (r + 2 kappa)) / 2`` and ``q ** 2 = (s - 1) / (s + 1)``: written so, nothing cancels, and
    neither `kappa` = 0 nor a large one is special.
    """
    twice = prims.add(b, kappa, kappa)
    r = prims.sqrt(b, prims.add(b, one(b, kappa), prims.square(b, twice)))
    inverse = prims.div(b, one(b, r), prims.add(b, r, twice))
    least = prims.mul(b, number(b, inverse, 0.5), prims.add(b, one(b, inverse), inverse))
    q = prims.sqrt(b, prims.div(b, least, prims.add(b, least, twice)))

    def propose(b: JaxprBuilder, lanes: Attempt, *params: Atom) -> Proposed:
        twice, least, q = (Value(b, x) for x in params)
        u, v = (Value(b, draw) for draw in lanes.numbers(dtype, open_uniform_of, open_uniform_of))
        tangent = q * Value(b, cauchy_of(b, v.atom))
        square = tangent * tangent
        y = least + twice * (square / (square + 1.0))  # the square of the half angle's sine
        half_angle = Value(b, prims.atan(b, tangent.atom))
        # The squeeze is y (2 - y) <= y exp(1 - y).
        return Proposed((half_angle + half_angle).atom, (log(u) < log(y) - y + 1.0).atom, (u < y * (2.0 - y)).atom)

    infinite = prims.eq(b, kappa, number(b, kappa, np.inf))
    otherwise = prims.select(b, infinite, number(b, kappa, 0), number(b, kappa, np.nan))
    possible = prims.and_(b, prims.ge(b, kappa, number(b, kappa, 0)), prims.is_finite(b, kappa))
    return reject(b, key, propose, [twice, least, q], prims.broadcast_to(b, otherwise, shape), possible)


def wrapped(b: JaxprBuilder, angle: Atom) -> Atom:
    """Emit the equivalent of an angle in [-pi, pi]; one that is there already stays as it is."""
    turn = number(b, angle, 2 * np.pi)
    return prims.sub(b, angle, prims.mul(b, turn, prims.round_even(b, prims.div(b, angle, turn))))
