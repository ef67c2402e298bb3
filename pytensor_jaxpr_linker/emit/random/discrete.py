"""Discrete univariate random variables of PyTensor, and of PyMC by class name: PyMC is neither imported nor required.

Counts are drawn in float64, whatever the dtype of the parameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax
from pytensor.graph.basic import Apply
from pytensor.tensor.random import basic as rv

from pytensor_jaxpr_linker.base.rules import Refusal
from pytensor_jaxpr_linker.emit.elemwise import broadcast_operand
from pytensor_jaxpr_linker.emit.random import samplers_discrete as samplers
from pytensor_jaxpr_linker.emit.random.parameter_checks import (
    above_zero,
    check_all,
    demand,
    from_zero,
    in_common_shape,
    scipy_domain,
)
from pytensor_jaxpr_linker.emit.random.sampler import counts, emits_draws, general, open_uniform, split_key
from pytensor_jaxpr_linker.emit.random.samplers_continuous import beta_logit, gamma_variables, standard_exponential
from pytensor_jaxpr_linker.emit.random.samplers_discrete import FLOAT, integers_from
from pytensor_jaxpr_linker.emit.scalar import number, numpy_astype
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.formula import Value, ceil, floor, log1p, maximum, minimum, where

#: From here on `numpy.random.Generator.hypergeometric` takes no parameter.
HYPERGEOMETRIC_END = 10**9


def is_chance(p: Any) -> Any:
    return (p >= 0.0) & (p <= 1.0)


def is_positive_chance(p: Any) -> Any:
    return (p > 0.0) & (p <= 1.0)


def some_nan(*params: Atom) -> str:
    """Return NumPy's message about a NaN among parameters."""
    return "contains NaNs" if any(x.aval.shape for x in params) else "is NaN"


def check_binomial(b: JaxprBuilder, node: Apply, n: Atom, p: Atom) -> None:
    """Check the parameters as `numpy.random.Generator.binomial` does."""
    demand(b, node, f"p < 0, p > 1 or p {some_nan(n, p)}", is_chance, p)
    demand(b, node, "n < 0", lambda n: n >= 0.0, n)


def check_poisson(b: JaxprBuilder, node: Apply, mean: Atom) -> None:
    """Check the parameter as `numpy.random.Generator.poisson` does."""
    if mean.aval.shape:
        demand(b, node, "lam value too large", lambda m: m <= samplers.POISSON_MAX, mean)
    demand(b, node, f"lam < 0 or lam {some_nan(mean)}", lambda m: m >= 0.0, mean)
    demand(b, node, "lam value too large", lambda m: m <= samplers.POISSON_MAX, mean)


def check_geometric(b: JaxprBuilder, node: Apply, p: Atom) -> None:
    """Check the parameter as `numpy.random.Generator.geometric` does."""
    demand(b, node, "p <= 0, p > 1 or p contains NaNs", is_positive_chance, p)


def check_hypergeometric(b: JaxprBuilder, node: Apply, good: Atom, bad: Atom, sample: Atom) -> None:
    """Check the parameters as `numpy.random.Generator.hypergeometric` does."""
    message = "both ngood and nbad must be less than 1000000000"
    demand(b, node, message, lambda n, m: (n < HYPERGEOMETRIC_END) & (m < HYPERGEOMETRIC_END), good, bad)
    demand(b, node, "ngood + nbad < nsample", lambda n, m, k: n + m >= k, good, bad, sample)
    for name, x in {"ngood": good, "nbad": bad, "nsample": sample}.items():
        demand(b, node, f"{name} < 0", lambda x: x >= 0.0, x)


def check_negative_binomial(b: JaxprBuilder, node: Apply, n: Atom, p: Atom) -> None:
    """Check the parameters as SciPy does, and then NumPy."""
    scipy_domain("nbinom", above_zero, is_positive_chance)(b, node, n, p)
    message = "n too large or p too small, see Generator.negative_binomial Notes"
    # NumPy demands this of the mean plus ten times its square root, with n in the root's place.
    within = lambda n, p: (1.0 - p) * (n + 10.0 * n**0.5) <= samplers.POISSON_MAX * p  # noqa: E731
    demand(b, node, message, within, n, p)


def check_integers(b: JaxprBuilder, node: Apply, low: Atom, high: Atom) -> None:
    """Check the parameters as `numpy.random.Generator.integers` does."""
    for name, x, end in (("low", low, 2**63), ("high", high, 2**63 + 1)):
        if x.aval.dtype == np.uint64:
            ok = prims.lt(b, x, b.constant(end, x.aval.dtype))
            check_all(b, ok, ValueError(f"{name} is out of bounds for int64"), node)
    known = b.known(low), b.known(high)
    if all(x is not None for x in known) and np.all(np.less(*known)):
        return
    zero = known[0] is not None and known[0].ndim == len(high.aval.shape) == 0 and known[0] == 0
    shape = lax.broadcast_shapes(low.aval.shape, high.aval.shape)
    first, end = (broadcast_operand(b, numpy_astype(b, x, "int64"), shape) for x in (low, high))
    ok = prims.lt(b, first, end)
    if high.aval.dtype == np.uint64:  # 2**63 is no int64
        ok = prims.or_(b, ok, prims.eq(b, end, b.constant(-(2**63), "int64")))
    check_all(b, ok, ValueError("high <= 0" if zero else "low >= high"), node)


def is_whole(x: Value) -> Value:
    return x == floor(x)


def whole_from_zero(x: Value) -> Value:
    return from_zero(x) & is_whole(x)


def refuse_fractions(*positions: int) -> Refusal:
    """Return the `refuse` of a rule whose parameters at these positions count."""

    def refuse(node: Apply) -> str | None:
        kinds = {np.dtype(node.inputs[i + 2].type.dtype).kind for i in positions}
        return None if kinds <= set("iub") else "a parameter that counts has a dtype that does not"

    return refuse


emits_draws(rv.BinomialRV, check_binomial, form=counts, refuse=refuse_fractions(0))(samplers.binomial)
emits_draws(rv.HyperGeometricRV, check_hypergeometric, form=counts, refuse=refuse_fractions(0, 1, 2))(
    samplers.hypergeometric
)
emits_draws(rv.PoissonRV, check_poisson, form=counts)(samplers.poisson)


@emits_draws(rv.BernoulliRV, scipy_domain("bernoulli", is_chance), form=counts)
def sample_bernoulli(b, key, shape, p):
    """``u < p``."""
    return prims.lt(b, open_uniform(b, key, shape, FLOAT), p)


@emits_draws(rv.GeometricRV, check_geometric, form=counts)
def sample_geometric(b, key, shape, p):
    """The trials that an exponential waiting time takes: Devroye (1986), section X.2."""
    time, chance = Value(b, standard_exponential(b, key, shape, FLOAT)), Value(b, p)
    trials = maximum(ceil(time / -log1p(-chance)), 1.0)
    return where(is_positive_chance(chance), trials, samplers.INVALID).atom


@emits_draws(rv.NegBinomialRV, check_negative_binomial, form=counts)
def sample_negative_binomial(b, key, shape, n, p):
    """A Poisson variable whose mean is a gamma variable."""
    gamma_key, poisson_key = split_key(b, key)
    chance = Value(b, p)
    mean = Value(b, gamma_variables(b, gamma_key, shape, FLOAT, n)) * ((1.0 - chance) / chance)
    return samplers.poisson(b, poisson_key, shape, minimum(mean, samplers.POISSON_MAX).atom)


@emits_draws(rv.BetaBinomialRV, scipy_domain("betabinom", whole_from_zero, above_zero, above_zero), form=counts)
def sample_beta_binomial(b, key, shape, n, alpha, beta):
    """A binomial variable whose probability is a beta variable."""
    beta_key, binomial_key = split_key(b, key)
    p = prims.logistic(b, beta_logit(b, beta_key, shape, FLOAT, alpha, beta))
    return samplers.binomial(b, binomial_key, shape, n, p)


@emits_draws(rv.CategoricalRV, form=general)
def sample_categorical(b, key, shape, dtype, p):
    """How many of the cumulative sums of `p` are below a uniform number; `p` is not normalized, as in PyTensor."""
    p = p if p.aval.dtype.kind == "f" else numpy_astype(b, p, FLOAT)
    sums = numpy_astype(b, prims.cumsum(b, p, len(p.aval.shape) - 1), FLOAT)
    u = prims.broadcast_in_dim(b, open_uniform(b, key, shape, FLOAT), (*shape, p.aval.shape[-1]), range(len(shape)))
    below = prims.lt(b, prims.broadcast_to(b, sums, u.aval.shape), u)
    return prims.reduce_sum(b, prims.convert(b, below, "int64"), (len(shape),))


@emits_draws(rv.IntegersRV, check_integers, form=general, refuse=refuse_fractions(0, 1))
def sample_integers(b, key, shape, dtype, low, high):
    """Integers in [low, high), drawn as int64."""
    return integers_from(b, key, shape, numpy_astype(b, low, "int64"), numpy_astype(b, high, "int64"))


# -- PyMC's ------------------------------------------------------------------------------------------------------------


def check_discrete_uniform(b: JaxprBuilder, node: Apply, lower: Atom, upper: Atom) -> None:
    """Check the parameters as `scipy.stats.randint` does."""
    scipy_domain("randint", is_whole, is_whole)(b, node, lower, upper)
    lower, upper = in_common_shape(b, lower, upper)
    scipy_domain("randint", from_zero)(b, node, prims.sub(b, upper, lower))


@emits_draws("pymc.distributions.discrete.DiscreteUniformRV", check_discrete_uniform, form=general)
def sample_discrete_uniform(b, key, shape, dtype, lower, upper):
    """Integers from `lower` to `upper`, both included."""
    lower, upper = numpy_astype(b, lower, np.int64), numpy_astype(b, upper, np.int64)
    return integers_from(b, key, shape, lower, prims.add(b, upper, number(b, upper, 1)))


# `pymc.Minibatch` draws its indices by a class of its own that only has another name.
emits_draws("pymc.data.MinibatchIndexRV", check_integers, refuse=refuse_fractions(0, 1), form=general)(sample_integers)
