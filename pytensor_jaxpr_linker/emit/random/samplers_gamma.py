"""Gamma variables and their logarithms, from which beta and Student's t stay accurate for small parameters."""

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
