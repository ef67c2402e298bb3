"""Standard variables as functions of one uniform or normal variable, mostly the inverse distribution function.

The formulas are Devroye's, *Non-Uniform Random Variate Generation*, 1986, chapters II.2 and IX; the uniform variable lies in the
open interval, so no draw is infinite.
"""

from __future__ import annotations

import numpy as np

from pytensor_jaxpr_linker.emit.random.sampler import open_uniform, split_key, standard_normal
from pytensor_jaxpr_linker.emit.scalar import number, one
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape


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
