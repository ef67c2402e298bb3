"""Discrete univariate random variables of PyMC, by class name: PyMC is neither imported nor required."""

from __future__ import annotations

import numpy as np
from pytensor.graph.basic import Apply

from pytensor_jaxpr_linker.emit.random.discrete import check_integers, refuse_fractions, sample_integers
from pytensor_jaxpr_linker.emit.random.parameter_checks import from_zero, in_common_shape, scipy_domain
from pytensor_jaxpr_linker.emit.random.sampler import emits_draws, general
from pytensor_jaxpr_linker.emit.random.samplers_integers import integers_from
from pytensor_jaxpr_linker.emit.scalar import numpy_astype, one
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder


def is_whole(b: JaxprBuilder, x: Atom) -> Atom:
    return prims.eq(b, x, prims.floor(b, x))


def check_discrete_uniform(b: JaxprBuilder, node: Apply, lower: Atom, upper: Atom) -> None:
    """Check the parameters as `scipy.stats.randint` does."""
    scipy_domain("randint", is_whole, is_whole)(b, node, lower, upper)
    lower, upper = in_common_shape(b, lower, upper)
    scipy_domain("randint", from_zero)(b, node, prims.sub(b, upper, lower))


@emits_draws("pymc.distributions.discrete.DiscreteUniformRV", check_discrete_uniform, form=general)
def sample_discrete_uniform(b, key, shape, dtype, lower, upper):
    """Integers from `lower` to `upper`, both included."""
    lower, upper = numpy_astype(b, lower, np.int64), numpy_astype(b, upper, np.int64)
    return integers_from(b, key, shape, lower, prims.add(b, upper, one(b, upper)))


# `pymc.Minibatch` draws its indices by a class of its own that only has another name.
emits_draws("pymc.data.MinibatchIndexRV", check_integers, refuse=refuse_fractions(0, 1), form=general)(sample_integers)
